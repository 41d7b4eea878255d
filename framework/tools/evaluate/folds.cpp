#include "folds.h"

#include <vernier/error.h>
#include <vernier/json_in.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>

#include "common/child.h"
#include "common/config/config.h"
#include "common/config/plugin_folders.h"
#include "common/config/shorthands.h"
#include "common/statistics.h"
#include "common/text/numbers.h"
#include "common/text/text_table.h"
#include "common/trials.h"
#include "common/verb.h"
#include "files/json.h"

namespace vernier {

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

constexpr double usual_confidence = 0.95;

// A row for each metric: over the folds its mean, deviation and interval, and then its value in each.
TextRows rows_of(const OrderedJson& comparison) {
  const auto& candidate = comparison["candidates"][0];
  const auto folds = comparison["folds"].get<double>();
  TextRows rows = {{"", "mean", "deviation", "low", "high"}};
  for (const auto& run : candidate["runs"]) rows[0].push_back("fold " + std::to_string(run["seed"].get<int>()));
  std::vector<std::string> names = {"validation_loss"};
  for (const auto& [name, better] : comparison["metrics"].items()) names.push_back(name);
  for (const auto& name : names) {
    std::vector<std::string> cells;
    std::vector<double> values;
    for (const auto& run : candidate["runs"]) {
      const auto value = run.value(name, OrderedJson());
      if (value.is_number()) values.push_back(value.get<double>());
      cells.push_back(value.is_number() ? print_number("%.5g", value.get<double>()) : run["state"].get<std::string>());
    }
    std::vector<std::string> row = {name, "", "", "", ""};
    if (values.size() > 1) {
      const auto [mean, deviation, low, high] = spread_of(values, 1 / (folds - 1), usual_confidence);
      row = {name, print_number("%.5g", mean), print_number("%.3g", deviation), print_number("%.5g", low),
             print_number("%.5g", high)};
    }
    row.insert(row.end(), cells.begin(), cells.end());
    rows.push_back(std::move(row));
  }
  return rows;
}

// The validation losses of models that have learned nothing, by their names, as `vernier evaluate` finds them.
using Losses = std::map<std::string, std::vector<double>>;

Losses losses_in(const std::vector<std::string>& runs, const std::vector<std::string>& words, Children& children) {
  Losses losses;
  for (const auto& run : runs) {
    auto all = words;
    all.insert(all.begin(), {"evaluate", run});
    if (const auto ended = children.run(all); ended.status != 0) refuse(last_line(ended.err));
    std::ifstream file(run + "/evaluation.json");
    const auto evaluation = json_in<OrderedJson>(file);
    if (!evaluation.is_object() || !evaluation.contains("metrics")) refuse(run + "/evaluation.json: it is damaged");
    for (const auto& [name, metrics] : evaluation["metrics"].items()) {
      losses[name].push_back(metrics.value("validation_loss", NAN));
    }
  }
  return losses;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Compares the model with the best of the models that have learned nothing.
std::string verdict_on(const Losses& losses) {
  const auto model = losses.find("model");
  auto best = losses.end();
  for (auto each = losses.begin(); each != losses.end(); ++each) {
    if (each == model || each->second.size() != model->second.size()) continue;
    if (best == losses.end() || mean_of(each->second) < mean_of(best->second)) best = each;
  }
  if (model == losses.end() || best == losses.end()) return "";
  const double own = mean_of(model->second), other = mean_of(best->second);
  return std::string("over the folds the model is ") + (own < other ? "better" : "not better") + " than no model: \"" +
         best->first + "\" has the validation loss " + print_number("%.5g", other) + ", and the model " +
         print_number("%.5g", own) + "\n";
}

// Returns true if the runs choose their weights by the validation that they are measured with.
bool chooses_by_validation(const std::string& folder, const OrderedJson& comparison) {
  std::ifstream file(folder + "/" + comparison["candidates"][0]["name"].get<std::string>() + "/candidate.toml");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.find("early_stopping") != std::string::npos;
}

}  // namespace

int cross_validate(const po::variables_map& given) {
  const auto files = words_of(given);
  if (files.size() != 1 || fs::is_directory(files[0])) {
    refuse("--folds trains a TOML file: name one, as in `vernier evaluate run.toml --folds 5`");
  }
  if (given.count("trust") != 0)
    refuse("--trust is for the files of a run, and --folds reads no run; leave --trust out");
  const auto folds = std::to_string(number_in(given, "folds", 2, 100));
  const auto folder = word_or(given, "output", "runs/" + fs::path(files[0]).stem().string() + "-folds");
  std::vector<std::string> words = {"compare", files[0], "--folds=" + folds, "--output=" + folder, "--json", "--quiet"};
  auto sets = words_in(given, "set");
  const bool has_scaler = merge_config(files, {}).contains("scaler");
  for (const auto& set : sets_of_shorthands(given, sets, has_scaler)) sets.push_back(set);
  for (const auto& set : sets) words.push_back("--set=" + set);
  std::vector<std::string> plugins;
  for (const auto& path : words_in(given, "plugin-path")) plugins.push_back("--plugin-path=" + path);
  const auto beside = plugin_folders_beside(files).front();
  if (fs::is_directory(beside)) plugins.push_back("--plugin-path=" + beside.string());
  words.insert(words.end(), plugins.begin(), plugins.end());
  std::cout << "trains " << folds << " runs in " << printable(folder) << ", each with another part held out"
            << std::endl;
  Children children(program_beside_this());
  const auto ended = children.run(words);
  if (const int signal = children.stopped_by(); signal != 0) {
    std::cout << "stopped; the same command goes on with what is missing\n";
    return 128 + signal;
  }
  const auto comparison = json_in<OrderedJson>(ended.out);
  if (!comparison.is_object()) refuse(reason_of(ended));
  for (const auto& run : comparison["candidates"][0]["runs"]) {
    if (run.contains("error")) refuse("fold " + json_text(run["seed"]) + ": " + run["error"].get<std::string>());
  }
  std::vector<std::string> runs;
  for (const auto& run : comparison["candidates"][0]["runs"]) {
    runs.push_back(folder + "/" + comparison["candidates"][0]["name"].get<std::string>() + "/fold-" +
                   json_text(run["seed"]) + "-of-" + folds);
  }
  const auto verdict = verdict_on(losses_in(runs, plugins, children));
  std::cout << aligned(rows_of(comparison), "lrrrr") << verdict;
  std::cout
      << "low and high: the interval of the mean at 95 %, widened because folds share most of their training data "
         "(Nadeau and Bengio, 2003)\n";
  if (chooses_by_validation(folder, comparison)) {
    std::cout << "callback/early_stopping chose the weights of each run by its own fold, so these values are "
                 "optimistic; leave it out, or trust them as an upper bound\n";
  }
  std::cout << "the report: vernier report " << printable(folder) << '\n';
  return ended.status;
}

}  // namespace vernier
