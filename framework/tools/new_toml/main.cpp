// `vernier new toml`: looks at data, and writes a run that trains on them.
#include <vernier/error.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <system_error>

#include "common/child.h"
#include "common/config/config.h"
#include "common/output_file.h"
#include "common/scratch_folder.h"
#include "common/text/quoting.h"
#include "common/trials.h"
#include "common/verb.h"
#include "run_file.h"
#include "wiring/wiring.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using namespace vernier;

constexpr const char* usage = R"(usage: vernier new toml DATA [--target NAME] [--output FILE] [--set task.KEY=VALUE]…
       vernier new toml MODEL DATA [--target NAME] …

Looks at your data, prints what it found, and writes a TOML file that trains on them at once and that `vernier check`
accepts: NAME.toml for DATA NAME.csv. `vernier new DATA` does the same.

  table            .csv, .npy                          task/tabular
  texts            .csv or .jsonl with a text in it    task/text: a class, a number or an order of texts
  text             .txt, or a folder of them           task/gpt: a language model
  pictures         a folder for each class, or a list  task/images
  series           .csv, .npy, .npz                    task/sequence: a forecast, or a class of each sequence
  MODEL            a folder of Hugging Face            task/llama, task/gpt or task/text, on .jsonl, .txt or .csv
                   .pt2 of torch.export, TorchScript   task/graph, task/script

  --target NAME   the column that is predicted; by default the one named target, label, class, species or y, or else the
                  last. For x.npy the file of the targets, y.npy
  --output FILE   the file to write; one that is there is kept
  --force         replaces a file that is there
  --set task.KEY=VALUE
                  an option of the task, by which the data are read and which the file gets: task.decimal=",";
                  task.use=NAME chooses the task
)";

// The options that are given, as a table and as keys and values of TOML.
using Keys = std::vector<std::pair<std::string, std::string>>;
GivenData options_of(const po::variables_map& words, Keys& keys) {
  const std::string task = "task.";
  const auto merged = load_config({}, words_in(words, "set"));  // refuses what is not a --set
  for (const auto& set : words_in(words, "set")) {
    const auto equals = set.find('=');
    const auto key = set.substr(0, set.find_last_not_of(' ', equals - 1) + 1);
    if (!key.starts_with(task)) {
      refuse("--set " + shortened(set) + ": here it is for options of the task, as in --set 'task.decimal=\",\"'");
    }
    const auto name = key.substr(task.size());
    if (name == "data" || name == "target" || name == "targets") {
      refuse("--set " + key + ": name the data themselves, and what is predicted by --target");
    }
    if (name == "use") continue;
    const auto text = set.substr(equals + 1);
    const auto value = parse_value(text, "--set " + key);
    const auto* word = std::get_if<std::string>(&value.data);
    std::erase_if(keys, [&](const auto& each) { return each.first == name; });
    keys.emplace_back(name, word == nullptr ? text : toml_value(*word));
  }
  GivenData given{word_or(words, "target", ""), {}, ""};
  if (merged.contains("task")) given.task = std::get<Table>(merged.at("task").data);
  if (const auto use = given.task.extract("use"); !use.empty()) {
    const auto* name = std::get_if<std::string>(&use.mapped().data);
    given.use = name != nullptr ? *name : value_text(use.mapped());
  }
  if (words.count("target") != 0 && given.target.empty()) {
    refuse(
        "--target is empty; name a column or a file, or leave it out; a forecast has none: --set task.kind=forecast");
  }
  const auto kind = given.task.find("kind");
  const auto* word = kind == given.task.end() ? nullptr : std::get_if<std::string>(&kind->second.data);
  if (word != nullptr && *word == "forecast" && given.use.empty()) given.use = "sequence";
  return given;
}

// Puts the options that are given in the place of those that were found. Types that were found are of other columns.
void put(const Keys& keys, Keys& task) {
  for (const auto& [key, value] : keys) {
    const auto found = std::ranges::find(task, key, &Keys::value_type::first);
    if (found == task.end()) {
      task.emplace_back(key, value);
    } else if (key == "types" && value.find('=') != std::string::npos) {
      found->second.replace(0, 1, value.substr(0, value.rfind('}')) + ", ");
    } else {
      found->second = value;
    }
  }
}

// Takes the folder of a model from --set task.folder, as if it had been named beside the data.
void take_folder(GivenData& given, Keys& keys, std::vector<std::string>& paths) {
  const auto folder = given.task.extract("folder");
  if (folder.empty() || !std::holds_alternative<std::string>(folder.mapped().data)) return;
  paths.push_back(std::get<std::string>(folder.mapped().data));
  std::erase_if(keys, [](const auto& each) { return each.first == "folder"; });
}

// Runs `vernier check` on the text of a TOML file. The error message names the file that will be written.
Ended check(const std::string& text, const std::string& output) {
  const ScratchFolder folder;
  const auto path = (fs::path(folder.path()) / fs::path(output).filename()).string();
  write_whole(path, text);
  auto ended = Children(program_beside_this()).run({"check", path});
  if (const auto at = ended.err.rfind(path); at != std::string::npos) ended.err.replace(at, path.size(), output);
  return ended;
}

// Returns the text of a run that `vernier check` accepts. Adds what the task prints about its data to the findings. A
// network of one's own takes the first loss that fits its outputs and targets.
std::string checked_file(Findings& found, const GivenData& given, const std::string& output) {
  const auto* loss = given.task.contains("loss") ? nullptr : found.option("loss");
  std::vector<std::string> losses = {""};
  if (loss != nullptr) losses = {*loss};
  if (loss != nullptr && *loss == "\"cross_entropy\"") losses = {*loss, "\"bce\"", "\"mse\""};
  std::string refusal;
  for (const auto& each : losses) {
    if (loss != nullptr) put({{"loss", each}}, found.task);
    const auto text = run_file(found);
    const auto ended = check(text, output);
    if (ended.status == 0) {
      std::istringstream said(ended.err + ended.out);
      bool is_new = true;
      for (std::string line; is_new && std::getline(said, line);) {
        const bool is_known =
            std::ranges::any_of(found.lines, [&](const auto& known) { return line.ends_with(known); });
        is_new = line.find(" held out") == std::string::npos;
        if (line.starts_with("task/") && !is_known) found.lines.push_back(line);
      }
      return text;
    }
    if (refusal.empty()) refusal = reason_of(ended);
  }
  refuse(refusal + "; nothing was written");
}

void require_used(const GivenData& given, const Findings& found) {
  const auto* use = found.option("use");
  if (given.use.empty() || use == nullptr || *use == toml_value(given.use)) return;
  refuse("--set task.use=" + shortened(given.use) + ": these data are for task/" + use->substr(1, use->size() - 2) +
         "; leave it out");
}

void print_next(const Findings& found, const std::string& output) {
  const auto file = shell_quoted(output);
  std::cout << "wrote " << output << "\n\nnext\n  vernier check " << file << "\n  vernier train " << file << '\n';
  for (std::size_t i = 0; i < std::min<std::size_t>(2, found.others.size()); ++i) {
    const auto& [words, remark] = found.others[i];
    std::cout << (i == 0 ? "\nwould fit too\n" : "") << "  vernier new toml";
    for (const auto& word : words) std::cout << ' ' << shell_quoted(word);
    std::cout << "   # " << remark << '\n';
  }
}

int run(const po::variables_map& given) {
  auto paths = words_of(given);
  if (!paths.empty() && paths[0] == "toml") paths.erase(paths.begin());
  if (paths.empty()) refuse("name the data, as in `vernier new toml iris.csv`");
  const auto output = word_or(given, "output", name_of(paths[0]) + ".toml");
  refuse_output(given, output);
  Keys keys;
  auto options = options_of(given, keys);
  take_folder(options, keys, paths);
  auto found = [&] {
    try {
      return look_at(paths, options);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // an error of another library
      refuse(message(error));
    }
  }();
  put(keys, found.task);
  require_used(options, found);
  const auto text = checked_file(found, options, output);
  try {
    write_whole(output, text);
  } catch (const std::system_error& error) {
    std::cerr << "vernier: " << output << " cannot be written: " << error.code().message() << '\n';
    return 4;
  }
  for (const auto& line : found.lines) std::cout << line << '\n';
  print_next(found, output);
  return 0;
}

}  // namespace

// Exit status: 0 done, 2 wrong usage or data, 4 the file cannot be written.
int main(int argc, char** argv) {
  po::options_description options;
  options.add_options()("target", po::value<std::string>())("output", po::value<std::string>())(
      "set", po::value<std::vector<std::string>>())("force", "");
  return call_verb({"new", usage, options, run}, argc, argv);
}
