// `vernier evaluate`: prints the metrics of a trained run's model on its validation data.
#include <vernier/error.h>

#include <algorithm>
#include <iostream>

#include "cli/command.h"
#include "cli/program.h"
#include "tools/common/model/trained_run.h"
#include "tools/common/text/numbers.h"

namespace vernier {

namespace {

constexpr const char* usage = R"(usage: vernier evaluate RUN [--set KEY=VALUE]… [--plugin-path FOLDER]…

Prints the metrics of a run's newest checkpoint, or of the checkpoint RUN, on its validation data.

  --set KEY=VALUE        changes the run's configuration, such as --set task.validation=other.csv
  --plugin-path FOLDER   looks for plugins there first
)";

bool sets_task(const std::vector<std::string>& sets) {
  return std::ranges::any_of(sets, [](const auto& each) { return each.starts_with("task."); });
}

int evaluate(const boost::program_options::variables_map& given) {
  const auto call = run_of(given, "vernier evaluate runs/NAME");
  const auto prepared = load_run(call, given, sets_task(call.sets) ? Use::other_data : Use::evaluation);
  Run& run = prepared->run;
  run.metrics.clear();
  const auto loss = prepared->trainer.validation().evaluate(run, [&] { return prepared->wiring->task->validate(run); });
  if (const int signal = cli::stop_signal(); signal != 0) {
    std::cout << "stopped; nothing was written\n";
    return 128 + signal;
  }
  if (!loss.defined()) {
    refuse(call.path + ": " + prepared->wiring->task->id() +
           " has no data to validate on; name some, as in --set task.validation=new.csv, or hold out a share of the "
           "training data: --set task.validation_share=0.1");
  }
  run.metrics.set("validation_loss", loss);
  std::cout << printable(call.path) << " after step " << run.step << '\n';
  for (const auto* metric : run.metrics.set_now()) {
    std::cout << "  " << printable(metric->name) << ' '
              << std::string(std::max<std::size_t>(24, metric->name.size()) - metric->name.size(), ' ')
              << print_number("%.6g", metric->value()) << '\n';
  }
  return 0;
}

}  // namespace

}  // namespace vernier

int main(int argc, char** argv) {
  return vernier::call_run_verb({"evaluate", vernier::usage, vernier::run_options(), vernier::evaluate}, argc, argv);
}
