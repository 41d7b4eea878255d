// `vernier new toml`: looks at data, and writes a run that trains on them.
#include <vernier/error.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <system_error>

#include "common/config/config.h"
#include "common/text/quoting.h"
#include "common/verb.h"
#include "run_file.h"
#include "wiring/wiring.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using namespace vernier;

constexpr const char* usage = R"(usage: vernier new toml DATA [--target NAME] [--output FILE] [--set task.KEY=VALUE]…

Looks at a CSV file, a .npy file or a folder of images, prints what it found, and writes a TOML file that trains on it
at once: NAME.toml for DATA NAME.csv. A folder of images has a folder for each class, or the folders train and val.

  --target NAME   the column that is predicted; by default the one named target, label, class, species or y, or else the
                  last. For x.npy the file of the targets, y.npy
  --output FILE   the file to write
  --set task.KEY=VALUE
                  an option of the task, by which the data are read and which the file gets: task.decimal=","
)";

std::string name_of(const std::string& data) {
  auto path = fs::path(data);
  if (!path.has_filename()) path = path.parent_path();  // images/ is images
  auto name = path.filename();
  if (name.extension() == ".gz") name = name.stem();
  name = name.stem();
  return name.empty() || name == "." || name == ".." ? "run" : name.string();
}

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
    if (name == "use" || name == "data" || name == "target" || name == "targets") {
      refuse("--set " + key + ": name the data themselves, and what is predicted by --target");
    }
    const auto text = set.substr(equals + 1);
    const auto value = parse_value(text, "--set " + key);
    const auto* word = std::get_if<std::string>(&value.data);
    std::erase_if(keys, [&](const auto& each) { return each.first == name; });
    keys.emplace_back(name, word == nullptr ? text : toml_value(*word));
  }
  GivenData given{word_or(words, "target", ""), {}};
  if (merged.contains("task")) given.task = std::get<Table>(merged.at("task").data);
  return given;
}

// Puts the options that are given in the place of those that were found.
void put(const Keys& keys, Keys& task) {
  for (const auto& [key, value] : keys) {
    const auto found = std::ranges::find(task, key, &Keys::value_type::first);
    found == task.end() ? void(task.emplace_back(key, value)) : void(found->second = value);
  }
}

int run(const po::variables_map& given) {
  const auto words = words_of(given);
  if (words.size() < 2) refuse("name the data, as in `vernier new toml iris.csv`");
  if (words.size() > 2) refuse("new toml takes one file or folder, and " + words[2] + " is a second");
  const auto output = word_or(given, "output", name_of(words[1]) + ".toml");
  std::error_code none;
  if (fs::exists(output, none)) refuse(output + " is there already; name another file by --output");
  Keys keys;
  const auto options = options_of(given, keys);
  auto found = [&] {
    try {
      return look_at(words[1], options);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // an error of another library
      refuse(message(error));
    }
  }();
  put(keys, found.task);
  for (const auto& line : found.lines) std::cout << line << '\n';
  try {
    write_whole(output, run_file(found));
  } catch (const std::system_error& error) {
    std::cerr << "vernier: " << output << " cannot be written: " << error.code().message() << '\n';
    return 4;
  }
  const auto file = shell_quoted(output);
  std::cout << "wrote " << output << "\n\nnext\n  vernier check " << file << "\n  vernier train " << file << '\n';
  return 0;
}

}  // namespace

// Exit status: 0 done, 2 wrong usage or data, 4 the file cannot be written.
int main(int argc, char** argv) {
  po::options_description options;
  options.add_options()("target", po::value<std::string>())("output", po::value<std::string>())(
      "set", po::value<std::vector<std::string>>());
  return call_verb({"new", usage, options, run}, argc, argv);
}
