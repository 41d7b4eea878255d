// `vernier evaluate`: prints the metrics of a trained run's model on its validation data.
#include <ATen/ATen.h>
#include <vernier/data/evaluation.h>
#include <vernier/error.h>
#include <vernier/json_text.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>

#include "class_table.h"
#include "cli/command.h"
#include "cli/program.h"
#include "common/text/numbers.h"
#include "common/text/text_table.h"
#include "files/json.h"
#include "folds.h"
#include "tools/model/trained_run.h"
#include "worst_samples.h"

namespace vernier {

namespace {

constexpr const char* usage = R"(usage: vernier evaluate RUN [--worst NUMBER] [--set KEY=VALUE]… [--plugin-path FOLDER]…
       vernier evaluate FILE --folds NUMBER [--set KEY=VALUE]… [--output FOLDER] [--plugin-path FOLDER]…

Prints the metrics of a run's newest checkpoint, or of the checkpoint RUN, on its validation data, beside those of
models that have learned nothing. Classes and labels are listed one by one, with what they are taken for and what their
probabilities are worth. The run's folder gets evaluation.json, which `vernier report RUN` draws.
With --folds, trains the TOML file as often, each time with another part of its data held out, and prints each metric's
mean and spread over the parts.

  --worst NUMBER         also the samples with the largest loss, with their places, for the page too
  --folds NUMBER         cross-validation; rows of a group stay together where [task] splits by group
  --output FOLDER        of --folds: runs/NAME-folds, if not given; the same command goes on there after Ctrl-C
  --set KEY=VALUE        changes the configuration, such as --set task.validation=other.csv; a file that the model was
                         not trained on is taken whole
  --weights average|model
                         average: of callback/ema and the like, if the run has one (the default); model: without
  --trust                runs code of a run that others made, and remembers the run as yours
  --plugin-path FOLDER   looks for plugins there first
)";

bool sets_task(const std::vector<std::string>& sets) {
  return std::ranges::any_of(sets, [](const auto& each) { return each.starts_with("task."); });
}

struct Column {
  std::string head;
  std::vector<std::pair<std::string, double>> values;  // by metric
};

// Validates the model by `body`. Empty values: there is nothing to validate on, or a signal came.
Column column_of(Prepared& prepared, const std::string& head, const std::function<torch::Tensor()>& body) {
  TrainerRun& run = prepared.run;
  HostApi::clear(run.metrics);
  Column column{head, {}};
  const auto loss = prepared.trainer.validation().evaluate(run, body);
  if (cli::stop_signal() != 0 || !loss.defined()) return column;
  run.metrics.set("validation_loss", loss);
  for (const auto* metric : run.metrics.set_now()) column.values.emplace_back(metric->name, metric->value());
  return column;
}

void print_metrics(const std::vector<Column>& columns) {
  constexpr std::size_t widest = 23;
  TextRows rows = {{std::string(widest, ' ')}};
  for (const auto& column : columns) rows[0].push_back(column.head);
  for (const auto& [name, value] : columns[0].values) {
    rows.push_back({printable(name)});
    for (const auto& column : columns) {
      const auto found = std::ranges::find(column.values, name, &std::pair<std::string, double>::first);
      rows.back().push_back(found == column.values.end() ? "" : print_number("%.6g", found->second));
    }
  }
  if (columns.size() == 1) rows[0].resize(1);
  std::string lines = aligned(rows);
  if (columns.size() == 1) lines.erase(0, lines.find('\n') + 1);
  std::cout << indented(lines);
}

// The findings about a validation set beside its metrics.
struct Findings {
  Findings(std::int64_t labels_of_sample, std::size_t most) : labels(labels_of_sample), worst(most) {}

  void update(const Targets& targets, const SupervisedTask::Seen& seen) {
    using Kind = Targets::Kind;
    samples += seen.batch.samples;
    worst.update(seen);
    if (targets.kind == Kind::classes) classes.update(seen.output, seen.target);
    if (targets.kind == Kind::labels) labels.update(seen.output, seen.target);
    if (targets.kind != Kind::labels || targets.count != 1) return;
    // One label is the classes 0 and 1. The table keeps the probabilities of samples, and not those of pixels.
    const bool is_by_pixel = seen.target.numel() > seen.batch.samples;
    const auto target = is_by_pixel ? seen.target.reshape({-1, 1}) : seen.target.flatten();
    const auto logit = seen.output.reshape(target.sizes());
    classes.update(at::stack({at::zeros_like(logit), logit}, 1), at::where(target.isnan(), -1, target > 0.5));
  }
  std::string text(const std::vector<std::string>& names) const {
    if (!classes.empty()) return classes.text(names);
    return labels.empty() ? "" : labels.text(names);
  }

  std::int64_t samples = 0;
  ClassTable classes;
  LabelTable labels;
  WorstSamples worst;
};

// Writes what `vernier report` draws. The run may be one that only its owner may write.
void keep(const Prepared& prepared, const RunCall& call, const std::vector<Column>& columns, OrderedJson sets) {
  OrderedJson metrics = OrderedJson::object();
  for (const auto& column : columns) {
    for (const auto& [name, value] : column.values) metrics[column.head][name] = value;
  }
  const OrderedJson all = {{"step", prepared.run.step},
                           {"set", call.sets},
                           {"metrics", std::move(metrics)},
                           {"validation", std::move(sets)}};
  const auto path = std::filesystem::path(folder_of_run(call.path)) / "evaluation.json";
  try {
    write_whole(path, json_text(all, 2) + '\n');
  } catch (const std::system_error& error) {
    log(Level::warning, "evaluate", path.string() + " cannot be written: " + error.code().message());
  }
}

// Returns the end of an error: the options of the run's task that name data to validate on. It offers no share of the
// run's own data, because the model has learned that.
std::string remedy(const Wiring& wiring) {
  std::string files;
  bool takes_all = false;
  for (const auto& option : HostApi::declared(wiring.origin_of(*wiring.task).options)) {
    using Type = OptionInfo::Type;
    if (!option.key.starts_with("validation")) continue;
    if (option.type == Type::strings && files.empty()) takes_all = true;  // a model of several inputs, and a target
    if (option.type == Type::strings) files += " --set 'task." + option.key + "=[\"FILE\"]'";
    if (option.type == Type::string && (files.empty() || takes_all)) files += " --set task." + option.key + "=FILE";
  }
  return files.empty() ? "" : "; name some, as in" + files;
}

// Returns ", on 120 samples", with those of each further validation set.
std::string samples_in(const std::map<std::string, Findings>& found) {
  std::string text;
  for (const auto& [set, findings] : found) {
    text += c10::str(text.empty() ? ", on " : " and ", findings.samples, findings.samples == 1 ? " sample" : " samples",
                     set.empty() ? "" : " of " + printable(set));
  }
  return text;
}

int evaluate(const boost::program_options::variables_map& given) {
  if (given.count("folds") != 0) return cross_validate(given);
  const auto most = static_cast<std::size_t>(given.count("worst") != 0 ? number_in(given, "worst", 1, 10'000) : 0);
  const auto call = run_of(given, "vernier evaluate runs/NAME");
  const auto prepared = load_run(call, given, sets_task(call.sets) ? Use::other_data : Use::evaluation);
  TrainerRun& run = prepared->run;
  auto* task = dynamic_cast<SupervisedTask*>(prepared->wiring->task.get());
  const auto baselines = task != nullptr ? baselines_of(task->learned().part("targets")) : std::vector<Baseline>();
  const auto targets = task != nullptr ? task->targets() : Targets();
  auto names = targets.names;
  if (targets.kind == Targets::Kind::labels && names.size() == 1) names.insert(names.begin(), "not " + names[0]);
  std::map<std::string, Findings> found;  // by the name of the validation set
  const auto watch = [&](const SupervisedTask::Seen& seen) {
    auto& findings = found.try_emplace(seen.set, targets.count, most).first->second;
    findings.update(targets, seen);
  };
  std::vector<Column> columns = {column_of(*prepared, "model", [&] {
    const bool is_plain = baselines.empty() && targets.kind == Targets::Kind::unknown && most == 0;
    if (is_plain) return prepared->wiring->task->validate(run);  // maybe an own way to validate
    found.clear();                                               // callback/ema may validate other weights first
    return supervised(*prepared, "evaluate --worst")
        .validate_with(
            run, [&](const Batch& batch) { return task->forward(batch); }, watch);
  })};
  if (columns[0].values.empty() && cli::stop_signal() == 0) {
    refuse(call.path + ": " + prepared->wiring->task->id() + " has no data to validate on" + remedy(*prepared->wiring));
  }
  for (const auto& baseline : baselines) {
    if (cli::stop_signal() != 0) break;
    columns.push_back(column_of(*prepared, baseline.name, [&] { return task->validate_with(run, baseline.forward); }));
  }
  if (const int signal = cli::stop_signal(); signal != 0) {
    std::cout << "stopped; nothing was written\n";
    return 128 + signal;
  }
  std::cout << printable(call.path) << " after step " << run.step << weights_in(*prepared, call.path)
            << samples_in(found) << '\n';
  print_metrics(columns);
  OrderedJson sets = OrderedJson::array();
  for (const auto& [set, findings] : found) {
    OrderedJson json = {{"name", set}, {"samples", findings.samples}, {"worst", findings.worst.json(names)}};
    if (!findings.classes.empty()) json.update(findings.classes.json(names));
    if (const auto table = findings.text(names); !table.empty()) {
      std::cout << '\n' << (set.empty() ? "" : printable(set) + '\n') << table;
    }
    if (!json["worst"].empty()) std::cout << '\n' << indented(worst_text(json["worst"]));
    sets.push_back(std::move(json));
  }
  keep(*prepared, call, columns, std::move(sets));
  return 0;
}

}  // namespace

}  // namespace vernier

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  auto options = vernier::run_options();
  options.add_options()("worst", po::value<int>())("folds", po::value<int>())("output", po::value<std::string>());
  options.add_options()("weights", po::value<std::string>());
  return vernier::call_run_verb({"evaluate", vernier::usage, options, vernier::evaluate}, argc, argv);
}
