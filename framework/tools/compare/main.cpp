// `vernier compare`: trains configurations with the same seeds, in turn, and says which differences that shows.
#include <vernier/json_text.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <toml++/toml.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>

#include "common/comparison.h"
#include "common/page/comparison_view.h"
#include "common/page/report_page.h"
#include "common/text/quoting.h"
#include "common/toml_depth.h"
#include "common/toml_text.h"
#include "common/trials.h"
#include "common/verb.h"
#include "tools/compare/layer_search.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using namespace vernier;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

constexpr const char* usage = R"(usage: vernier compare FILE... [--sweep KEY=VALUES]... [--precision] [OPTION]...
       vernier compare RUN... [--json]

Trains each TOML file with the same seeds, one run at a time and in turn, and prints speed, memory and losses with their
spread. A difference from the first candidate is claimed only where the seeds show it. Of folders of runs that are there
it trains nothing. After Ctrl-C it prints what is done, and the same command goes on.

  --sweep KEY=VALUES   a candidate for each value: precision=fp32,bf16, optimizer.learning_rate=1e-3,3e-3; a plugin's
                       name needs no .use; may be repeated, for every combination; at most 32 candidates
  --precision          six candidates: fp32, fp16 unscaled, fp16 mixed, bf16, fp16 mixed in 4 micro-batches, fp8
  --formats NAMES      float32, and number formats or files of recipes: nvfp4,mxfp8,mine.toml; ordered by the loss; where
                       the seeds show that one costs loss, the layers that do not bear it are searched, and the rules
                       that keep them out are printed
  --base FILE          is merged before each FILE, so that these may be overlays; may be repeated
  --set KEY=VALUE      sets one value in all candidates; may be repeated
  --metric NAME        says which candidate is best by a metric of the validations: accuracy, validation_loss
  --tolerance LOSS     claims no smaller difference of the losses: that of rounding alone, from vernier digits --steps
  --seeds NUMBER       runs of each candidate, with run.seed from 1 on; 3, if not given; a verdict needs 3
  --folds NUMBER       cross-validation in the place of seeds: each run holds out another part of the data of [task]
  --steps NUMBER       run.steps of all candidates
  --output FOLDER      runs/compare, if not given; gets compare.json, compare.csv, compare.html, and the runs
  --plugin-path FOLDER as of vernier train
  --json               prints compare.json instead of the table
  --quiet              prints no line for each run
)";

constexpr int nothing_trained = 4;

struct Plan {
  std::vector<Candidate> candidates;
  Common common;
  std::filesystem::path folder;  // has <candidate>/seed-<n>, or fold-<n>-of-<m>
  int seeds = 0;                 // or folds
  bool has_folds = false;
  double tolerance = 0;
  bool is_quiet = false;
};

// The option --tolerance, a difference of losses.
double tolerance_in(const po::variables_map& given) {
  const auto text = word_or(given, "tolerance", "0");
  double tolerance = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tolerance);
  if (error == std::errc() && end == text.data() + text.size() && tolerance >= 0 && std::isfinite(tolerance)) {
    return tolerance;
  }
  throw Refused("--tolerance " + text +
                ": give a difference of losses, 0 or more, as `vernier digits --steps` prints it");
}

Plan read_plan(const po::variables_map& given) {
  Plan plan;
  plan.candidates = candidates_of({.files = words_of(given),
                                   .bases = words_in(given, "base"),
                                   .sweeps = words_in(given, "sweep"),
                                   .precisions = given.count("precision") != 0,
                                   .formats = word_or(given, "formats", "")});
  if (given.count("formats") != 0 &&
      (given.count("sweep") != 0 || given.count("precision") != 0 || words_of(given).size() > 1)) {
    throw Refused("--formats is for one file, without --sweep and --precision; name what all have in common by --set");
  }
  plan.common.sets = words_in(given, "set");
  if (given.count("steps") != 0) {
    const auto steps = number_in(given, "steps", 1, 1'000'000'000);
    plan.common.sets.insert(plan.common.sets.end(), {"run.steps=" + std::to_string(steps), "run.epochs=0"});
  }
  for (const auto& candidate : plan.candidates) {
    Words all = plan.common.sets;
    all.insert(all.end(), candidate.sets.begin(), candidate.sets.end());
    for (const char* own : {given.count("folds") != 0 ? "task.fold" : "run.seed", "run.output"}) {
      const auto sets_own = [&](const auto& set) { return set.substr(0, set.find_first_of(" =")) == own; };
      if (std::ranges::any_of(all, sets_own)) {
        throw Refused(std::string(own) + " is set by compare itself; see --seeds and --output");
      }
    }
    // A whole table, as in --set 'precision={use="bf16"}', would replace what the candidate sets in it.
    for (const auto& set : plan.common.sets) {
      const auto key = set.substr(0, set.find_first_of(" ="));
      const auto is_below = [&](const auto& own) { return own.starts_with(key + ".") || own.starts_with(key + "="); };
      if (std::ranges::any_of(candidate.sets, is_below)) {
        throw Refused("--set " + key +
                      " holds for every candidate, and --sweep or --precision sets it too; leave one " +
                      "of them out, or set single keys of the table");
      }
    }
  }
  plan.common.plugin_paths = words_in(given, "plugin-path");
  plan.folder = given["output"].as<std::string>();
  plan.has_folds = given.count("folds") != 0;
  if (plan.has_folds && (!given["seeds"].defaulted() || given.count("formats") != 0)) {
    throw Refused("--folds takes the place of --seeds, and is not for --formats; leave one of them out");
  }
  plan.seeds = plan.has_folds ? number_in(given, "folds", 2, 100) : number_in(given, "seeds", 1, 100);
  plan.tolerance = tolerance_in(given);
  plan.is_quiet = given.count("quiet") != 0;
  return plan;
}

// One comparison at a time writes a folder. The lock lasts until this process ends.
void lock(const fs::path& folder) {
  std::error_code trouble;
  fs::create_directories(folder, trouble);
  const auto path = folder / ".compare.lock";
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) throw Refused(path.string() + ": " + std::strerror(errno) + "; choose another --output");
  if (::flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  throw Refused(folder.string() + ": another `vernier compare` writes it; wait for it, or choose another --output");
}

// The results of another comparison, or files that none wrote, would be written over.
void refuse_folder_of_another(const Plan& plan) {
  const bool is_new = !is_comparison(plan.folder);
  Words names = is_new ? Words{"compare.json", "compare.csv", "compare.html"} : Words();
  for (const auto& candidate : plan.candidates) {
    if (!fs::exists(plan.folder / candidate.name / "candidate.toml")) names.push_back(candidate.name);
  }
  for (const auto& name : names) {
    if (!fs::exists(plan.folder / name)) continue;
    throw Refused((plan.folder / name).string() +
                  ": is there already, and no comparison wrote it; name another folder with --output");
  }
  if (is_new) return;
  const auto before = [&] {
    try {
      return read_comparison(plan.folder);
    } catch (const Refused& damaged) {
      throw Refused((plan.folder / "compare.json").string() +
                    ": is of no comparison, or damaged; name another folder with --output");
    }
  }();
  for (const auto& candidate : before.at("candidates")) {
    const std::string name = candidate.at("name");
    if (std::ranges::find(plan.candidates, name, &Candidate::name) != plan.candidates.end()) continue;
    throw Refused(plan.folder.string() + ": another comparison is there, with the candidate " + name +
                  "; name another folder with --output");
  }
}

bool write_files(const Json& comparison, const fs::path& folder) {
  return write_or_complain(folder / "compare.json", json_text(comparison, 2) + "\n") &&
         write_or_complain(folder / "compare.csv", csv_of(comparison)) &&
         write_or_complain(folder / "compare.html", report_page(runs_of(comparison, folder), {comparison}));
}

void print(const Json& comparison, bool as_json) {
  std::cout << (as_json ? json_text(comparison, 2) + "\n" : text_of(view_of(comparison))) << std::flush;
}

// Called if every candidate was refused. The folders have nothing but the configurations.
void remove_untrained(const Plan& plan) {
  std::error_code none;
  for (const auto& candidate : plan.candidates) {
    const auto folder = plan.folder / candidate.name;
    fs::remove(folder / "candidate.toml", none);
    fs::remove(folder, none);
  }
  fs::remove(plan.folder / ".compare.lock", none);
  fs::remove(plan.folder, none);
}

bool has_a_result(const Json& comparison) {
  return std::ranges::any_of(comparison["candidates"],
                             [](const Json& each) { return !each["measures"]["samples_per_second"].is_null(); });
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

fs::path folder_of(const Plan& plan, const Candidate& candidate, int seed) {
  const auto number = std::to_string(seed);
  return plan.folder / candidate.name /
         (plan.has_folds ? "fold-" + number + "-of-" + std::to_string(plan.seeds) : "seed-" + number);
}

void report_progress(const Plan& plan, const std::string& name, const Trial& trial, const char* what) {
  if (plan.is_quiet) return;
  const auto result = result_of(trial, plan.folder);
  std::cerr << name << (plan.has_folds ? ", fold " : ", seed ") << trial.seed << " of " << plan.seeds << ": " << what
            << result["state"].get<std::string>();
  const auto number = [&](const char* key, const char* unit) {
    const auto value = result.value(key, nlohmann::ordered_json());
    if (value.is_number()) std::cerr << ", " << unit << text_of(std::optional(value.get<double>()));
  };
  number("samples_per_second", "samples/s ");
  number("validation_loss", "validation loss ");
  if (result.contains("error")) std::cerr << ": " << result["error"].get<std::string>();
  std::cerr << '\n';
}

bool is_running(const fs::path& folder) {
  try {
    return is_run(folder) && read_run(folder).state == "running";
  } catch (const Refused&) {  // it is damaged
    return false;
  }
}

// The words of `vernier VERB` for one run of a candidate.
Words call_of(const char* verb, const Plan& plan, const Candidate& candidate, const Trial& trial) {
  auto words = command_of(verb, plan.common, candidate);
  const auto number = std::to_string(trial.seed);
  const auto own =
      plan.has_folds ? "task.fold=\"" + number + "/" + std::to_string(plan.seeds) + "\"" : "run.seed=" + number;
  words.insert(words.end(),
               {"--quiet", "--set=" + own, "--set=run.output=" + toml_quoted(fs::absolute(trial.folder).string())});
  return words;
}

void train(const Plan& plan, const Candidate& candidate, Trial& trial, Children& children) {
  if (is_running(trial.folder)) {
    throw Refused(trial.folder.string() + ": another process trains this run; wait for it, or stop it first");
  }
  fs::remove_all(trial.folder);
  const auto ended = children.run(call_of("train", plan, candidate, trial));
  if (is_refusal(ended)) {
    trial.refusal = reason_of(ended);
  } else if (!is_whole(ended) && children.stopped_by() == 0) {
    trial.error = reason_of(ended);
  }
}

std::vector<Row> planned(const Plan& plan) {
  std::vector<Row> rows;
  for (const auto& candidate : plan.candidates) {
    Row row{candidate.name, {}};
    for (int seed = 1; seed <= plan.seeds; ++seed)
      row.trials.push_back({seed, folder_of(plan, candidate, seed), "", ""});
    rows.push_back(std::move(row));
  }
  return rows;
}

bool has_checkpoint(const Trial& trial) {
  return fs::exists(trial.folder / "checkpoints");
}

// Refuses runs that are there if the data, or a file that they began with, have changed since. It asks for the first
// run of each candidate that has a checkpoint, as on resume.
void check_data(const Plan& plan, Children& children) {
  const auto rows = planned(plan);
  for (std::size_t i = 0; i < rows.size() && children.stopped_by() == 0; ++i) {
    const auto first = std::ranges::find_if(
        rows[i].trials, [](const Trial& each) { return is_complete(each.folder) && has_checkpoint(each); });
    if (first == rows[i].trials.end()) continue;
    auto words = call_of("check", plan, plan.candidates[i], *first);
    words.emplace_back("--resume");
    const auto ended = children.run(words);
    if (ended.status == 0 || children.stopped_by() != 0) continue;
    const auto reason = reason_of(ended);
    throw Refused(reason.substr(0, reason.rfind("; ")) + "; choose another --output, or remove " +
                  shell_quoted(plan.folder.string()));
  }
}

// Merges the configuration of each candidate and keeps it as <candidate>/candidate.toml, by which a later call knows
// the candidate again. Throws Refused before anything is trained: where files cannot be merged, where tasks differ, and
// where the folder has runs of another configuration.
void check_configurations(const Plan& plan, Children& children) {
  std::string first_task;
  std::vector<std::string> texts;
  for (const auto& candidate : plan.candidates) {
    const auto configuration = merged_configuration(plan.common, candidate, children);
    if (children.stopped_by() != 0) return;
    const auto table = toml::parse(configuration);
    const auto task = table["task"]["use"].value_or(std::string());
    if (texts.empty()) first_task = task;
    if (task != first_task) {
      throw Refused(candidate.name + " trains task/" + task + ", and " + plan.candidates[0].name + " task/" +
                    first_task + ": their losses cannot be compared; name configurations of one task");
    }
    texts.push_back(toml_text(table));  // without the comments about places, which depend on the folder
    const auto kept = plan.folder / candidate.name / "candidate.toml";
    if (!fs::exists(kept) || read_text(kept) == texts.back()) continue;
    throw Refused(kept.string() +
                  ": the folder has runs of another configuration; choose another --output, or remove " +
                  kept.parent_path().string());
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto folder = plan.folder / plan.candidates[i].name;
    fs::create_directories(folder);
    std::ofstream file(folder / "candidate.toml", std::ios::binary);
    if (!(file << texts[i] << std::flush)) throw Refused(folder.string() + ": candidate.toml cannot be written");
  }
}

// Trains seed 1 of every candidate, then seed 2 in reversed order, and so on: what slows a machine down for a while
// hits all candidates alike. Runs that are complete stay; others are trained from their start. Ends early if a signal
// came.
std::vector<Row> train_rounds(const Plan& plan, Children& children) {
  auto rows = planned(plan);
  for (std::size_t round = 0; round < static_cast<std::size_t>(plan.seeds); ++round) {
    for (std::size_t place = 0; place < rows.size(); ++place) {
      if (children.stopped_by() != 0) return rows;
      const auto index = round % 2 == 0 ? place : rows.size() - 1 - place;
      auto& trial = rows[index].trials[round];
      const auto& first = rows[index].trials[0];
      if (!first.refusal.empty()) {  // no seed changes that
        trial.refusal = first.refusal;
      } else if (is_complete(trial.folder)) {
        report_progress(
            plan, rows[index].name, trial,
            has_checkpoint(trial) ? "is there, " : "is there (it has no checkpoint, so its data cannot be compared), ");
      } else {
        train(plan, plan.candidates[index], trial, children);
        report_progress(plan, rows[index].name, trial, "");
      }
    }
  }
  return rows;
}

// Returns the number format of a candidate of --formats. The candidate may have another name, such as nvfp4-2.
std::string format_of(const Candidate& candidate) {
  constexpr std::string_view key = "precision.forward=";
  const auto set = std::ranges::find_if(candidate.sets, [&](const auto& each) { return each.starts_with(key); });
  return set == candidate.sets.end() ? candidate.name : set->substr(key.size());
}

// Searches the layers of each format that costs loss, prints the answer, and writes it as an overlay.
void search_formats(const Plan& plan, const std::vector<Row>& rows, Children& children) {
  constexpr int fewest_seeds = 3;  // seeds that a verdict needs
  if (plan.seeds < fewest_seeds) {
    std::cout << "which formats survive is said with --seeds 3 or more\n";
    return;
  }
  if (!has_a_result(comparison_of({rows[0]}, plan.folder))) {
    std::cout << "float32 has no result, so which formats survive cannot be said\n";
    return;
  }
  const auto train_row = [&](const Candidate& candidate, int seeds) -> std::optional<Row> {
    Row row{candidate.name, {}};
    for (int seed = 1; seed <= seeds; ++seed) {
      Trial trial{seed, folder_of(plan, candidate, seed), "", ""};
      const bool is_there = is_complete(trial.folder);
      if (!is_there) train(plan, candidate, trial, children);
      if (children.stopped_by() != 0) return std::nullopt;
      report_progress(plan, candidate.name, trial, is_there ? "is there, " : "");
      row.trials.push_back(trial);
    }
    return row;
  };
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const auto& candidate = plan.candidates[i];
    const auto& first = rows[i].trials.front();
    if (!first.refusal.empty() || !fs::exists(first.folder / "formats.toml")) continue;
    const auto [acceptable, gap] = loss_gap(rows[0], rows[i], plan.tolerance);
    if (acceptable == Acceptable::yes) {
      std::cout << candidate.name << " survives: the seeds show no loss that is worse than float32's\n";
      continue;
    }
    if (acceptable == Acceptable::undecided) {
      std::cout << candidate.name << " is undecided: the median loss is worse by " << gap << ", and " << plan.seeds
                << " seeds do not show it; with more --seeds the same command goes on\n";
      continue;
    }
    if (toml::parse(shallow_toml(plan.folder / candidate.name / "candidate.toml"))["precision"]["rule"].is_array()) {
      std::cout << candidate.name
                << " costs loss; its layers are not searched, as the file has [[precision.rule]] tables\n";
      continue;
    }
    const auto kept =
        search_layers({candidate, rows[0], layers_in(first.folder), plan.seeds, plan.tolerance}, train_row);
    if (!kept) return;
    if (!kept->is_shown) {
      std::cout << candidate.name << " does not survive, whichever layers stay in float32\n";
      continue;
    }
    const auto overlay = plan.folder / candidate.name / "overlay.toml";
    const bool is_recipe = candidate.sets.empty();  // float32 and formats have some
    const auto rules = rules_of(kept->layers);
    const auto chosen = "[precision]\nuse = \"format\"\nforward = " + toml_quoted(format_of(candidate)) + "\n";
    const auto text = is_recipe ? "# Merge it after " + candidate.files.back() + ".\n" + rules
                                : chosen + rules + "\n[scaler]\nuse = \"none\"\n";
    std::cout << candidate.name << " survives where these layers stay in float32 (" << overlay.string() << "):\n"
              << text;
    write_or_complain(overlay, text);
  }
}

// By --metric, where it is given, and formats by the loss.
bool judge(Json& comparison, const po::variables_map& given) {
  if (given.count("metric") == 0 && given.count("formats") == 0) return false;
  judge_by(comparison, word_or(given, "metric", loss_of(comparison)));
  return true;
}

int train_and_compare(const po::variables_map& given) {
  const auto plan = read_plan(given);
  lock(plan.folder);
  refuse_folder_of_another(plan);
  Children children(program_beside_this());
  check_configurations(plan, children);
  check_data(plan, children);
  if (plan.candidates.size() == 1 && !plan.is_quiet) {
    std::cerr << "vernier: there is one candidate, and nothing to compare it with; name a second file, or add --sweep "
                 "KEY=VALUE,VALUE\n";
  }
  const auto rows = train_rounds(plan, children);
  auto comparison = comparison_of(rows, plan.folder, plan.tolerance, plan.has_folds ? plan.seeds : 0);
  const bool as_json = given.count("json") != 0;
  const auto is_refused = [](const Row& row) { return !row.trials[0].refusal.empty(); };
  if (std::ranges::all_of(rows, is_refused)) {
    remove_untrained(plan);
    print(comparison, as_json);
    return nothing_trained;
  }
  bool is_written = write_files(comparison, plan.folder);
  if (judge(comparison, given)) is_written = write_files(comparison, plan.folder);
  print(comparison, as_json);
  if (!is_written) return nothing_trained;
  if (!as_json)
    std::cout << "\nwrote compare.json, compare.csv and compare.html in " << plan.folder.string() << std::endl;
  if (given.count("formats") != 0 && children.stopped_by() == 0 && !as_json) search_formats(plan, rows, children);
  if (const int signal = children.stopped_by(); signal != 0) {
    std::cerr << "vernier: stopped; the same command goes on with what is missing\n";
    return 128 + signal;
  }
  return has_a_result(comparison) ? 0 : nothing_trained;
}

int compare_runs(const po::variables_map& given) {
  for (const char* option :
       {"sweep", "precision", "formats", "base", "set", "seeds", "folds", "steps", "output", "plugin-path"}) {
    if (given.count(option) == 0 || given[option].defaulted()) continue;
    throw Refused(std::string("--") + option + " is for TOML files; runs that are there are not trained again");
  }
  const auto words = words_of(given);
  const bool as_json = given.count("json") != 0;
  if (words.size() == 1 && is_comparison(words[0])) {
    if (given.count("tolerance") != 0) {
      throw Refused("--tolerance: " + words[0] +
                    " has its verdicts; repeat the call that trained it with --tolerance, which trains nothing again");
    }
    auto comparison = read_comparison(words[0]);
    judge(comparison, given);
    print(comparison, as_json);
    return 0;
  }
  std::vector<Row> rows;
  for (const auto& word : words) {
    const auto summary = read_run(word).summary;  // null, where the run was killed
    const auto seed = summary.is_object() ? summary.value("seed", Json()) : Json();
    rows.push_back({word, {{seed.is_number_integer() ? seed.get<std::int64_t>() : 0, word, "", ""}}});
  }
  auto comparison = comparison_of(rows, "", tolerance_in(given));
  judge(comparison, given);
  print(comparison, as_json);
  return 0;
}

int compare(const po::variables_map& given) {
  const auto words = words_of(given);
  if (words.empty())
    throw Refused("name TOML files, as in `vernier compare a.toml b.toml`; see vernier compare --help");
  const auto is_folder = [](const std::string& word) { return fs::is_directory(word); };
  const auto folders = std::ranges::count_if(words, is_folder);
  if (folders == 0) return train_and_compare(given);
  if (folders == std::ssize(words)) return compare_runs(given);
  throw Refused(*std::ranges::find_if(words, is_folder) +
                " is a folder, and others are files: name TOML files to train, or folders of runs that are there");
}

}  // namespace

int main(int argc, char** argv) {
  const auto words = [] { return po::value<Words>()->composing(); };
  po::options_description known;
  known.add_options()("sweep", words(), "")("precision", "")("formats", po::value<std::string>())("base", words(), "")(
      "set", words(), "")("metric", po::value<std::string>())("tolerance", po::value<std::string>())(
      "seeds", po::value<int>()->default_value(3))("folds", po::value<int>())("steps", po::value<int>())(
      "output", po::value<std::string>()->default_value("runs/compare"))("plugin-path", words(), "")("json", "")(
      "quiet", "");
  return call_verb({"compare", usage, known, compare}, argc, argv);
}
