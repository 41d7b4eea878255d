// `vernier evaluate`: prints the metrics of a trained run's model on its validation data.
#include <vernier/data/evaluation.h>
#include <vernier/error.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>

#include "class_table.h"
#include "cli/command.h"
#include "cli/program.h"
#include "common/text/numbers.h"
#include "common/text/text_table.h"
#include "tools/model/trained_run.h"

namespace vernier {

namespace {

constexpr const char* usage = R"(usage: vernier evaluate RUN [--set KEY=VALUE]… [--plugin-path FOLDER]…

Prints the metrics of a run's newest checkpoint, or of the checkpoint RUN, on its validation data, beside those of
models that have learned nothing. Classes are listed one by one, with what they are taken for, and so are labels.

  --set KEY=VALUE        changes the run's configuration, such as --set task.validation=other.csv
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
  for (std::size_t begin = 0; begin < lines.size();) {
    const auto end = lines.find('\n', begin);
    std::cout << "  " << lines.substr(begin, end - begin) << '\n';
    begin = end + 1;
  }
}

int evaluate(const boost::program_options::variables_map& given) {
  const auto call = run_of(given, "vernier evaluate runs/NAME");
  const auto prepared = load_run(call, given, sets_task(call.sets) ? Use::other_data : Use::evaluation);
  TrainerRun& run = prepared->run;
  auto* task = dynamic_cast<SupervisedTask*>(prepared->wiring->task.get());
  const auto baselines = task != nullptr ? baselines_of(task->learned().part("targets")) : std::vector<Baseline>();
  const auto targets = task != nullptr ? task->targets() : Targets();
  std::map<std::string, ClassTable> classes;  // by the name of the validation set
  std::map<std::string, LabelTable> labels;   // the same
  std::vector<Column> columns = {column_of(*prepared, "model", [&] {
    const bool is_plain = baselines.empty() && targets.kind == Targets::Kind::unknown;
    if (is_plain) return prepared->wiring->task->validate(run);  // maybe an own way to validate
    classes.clear(), labels.clear();                             // callback/ema may validate other weights first
    return task->validate_with(
        run, [&](const Batch& batch) { return task->forward(batch); },
        [&](const auto& set, const auto& output, const auto& target) {
          if (targets.kind == Targets::Kind::classes) classes[set].update(output, target);
          if (targets.kind == Targets::Kind::labels)
            labels.try_emplace(set, targets.count).first->second.update(output, target);
        });
  })};
  if (columns[0].values.empty() && cli::stop_signal() == 0) {
    refuse(call.path + ": " + prepared->wiring->task->id() +
           " has no data to validate on; name some, as in --set task.validation=new.csv, or hold out a share of the "
           "training data: --set task.validation_share=0.1");
  }
  for (const auto& baseline : baselines) {
    if (cli::stop_signal() != 0) break;
    columns.push_back(column_of(*prepared, baseline.name, [&] { return task->validate_with(run, baseline.forward); }));
  }
  if (const int signal = cli::stop_signal(); signal != 0) {
    std::cout << "stopped; nothing was written\n";
    return 128 + signal;
  }
  std::cout << printable(call.path) << " after step " << run.step << weights_in(*prepared, call.path) << '\n';
  print_metrics(columns);
  const auto print = [&](const std::string& set, const auto& table) {
    std::cout << '\n' << (set.empty() ? "" : printable(set) + '\n') << table.text(targets.names);
  };
  for (const auto& [set, table] : classes) {
    if (!table.empty()) print(set, table);
  }
  for (const auto& [set, table] : labels) print(set, table);
  return 0;
}

}  // namespace

}  // namespace vernier

int main(int argc, char** argv) {
  auto options = vernier::run_options();
  options.add_options()("weights", boost::program_options::value<std::string>());
  return vernier::call_run_verb({"evaluate", vernier::usage, options, vernier::evaluate}, argc, argv);
}
