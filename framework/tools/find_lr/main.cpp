// `vernier check FILE… --find-lr`: the check, then a learning-rate range test.
#include <vernier/error.h>

#include <iostream>

#include "cli/command.h"
#include "cli/program.h"
#include "find_lr.h"
#include "output/log.h"

namespace vernier {

using namespace cli;

namespace {

constexpr const char* usage = R"(usage: vernier check FILE… --find-lr [--set KEY=VALUE]…

Checks a run, then trains a copy of its model for 100 steps at ever higher learning rates, plots the loss, and suggests
a rate. The options of `vernier train`; see vernier train --help.
)";

// Changes a run to one that trains a few steps and leaves nothing.
void keep_nothing(Table& config) {
  config.erase(Monitor::role);
  config.insert_or_assign(Checkpoint::role, Value{Table{{"use", {std::string("none"), ""}}}, ""});
}

int find_learning_rate(const po::variables_map& given) {
  if (const int status = check(given); status != 0) return status;
  set_log_level(static_cast<int>(Level::error));  // all of it is logged already
  const auto prepared = prepare(given, keep_nothing);
  if (prepared->run.control->ranks() > 1) refuse("--find-lr trains a copy of the model in one process only");
  std::cout << plot(test_rates(prepared->trainer, *prepared->wiring, prepared->run));
  return 0;
}

}  // namespace

}  // namespace vernier

int main(int argc, char** argv) {
  auto options = vernier::configuration_options();
  options.add_options()("find-lr", "");
  return vernier::call_run_verb({"check", vernier::usage, options, vernier::find_learning_rate}, argc, argv);
}
