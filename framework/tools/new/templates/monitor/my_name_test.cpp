// Tests the lines of monitor/my_name without a run.
#include "my_name.cpp"

#include <ATen/ops/full.h>
#include <vernier/host.h>

#include <sstream>
// doctest comes last, because LibTorch has a CHECK of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

namespace {

// Returns the output of the monitor in four steps. Options are written as the TOML has them; "test" is their place.
std::string printed(bool quiet) {
  vernier::Options options("monitor/my_name", {{"every", {std::int64_t{2}, "test"}}}, "test");
  MyName plugin(options);
  vernier::Bus bus;
  vernier::HostApi::attach(bus, plugin, /*monitor=*/true);
  vernier::TrainerRun run;
  run.steps = 4;
  run.quiet = quiet;
  run.loss = at::full({}, 0.5);
  std::ostringstream text;
  auto* terminal = std::cout.rdbuf(text.rdbuf());
  for (run.step = 1; run.step <= run.steps; ++run.step) {
    if (run.step == 4) run.metrics.set("learning_rate", 0.25);
    vernier::HostApi::emit(bus, vernier::Event::StepEnd, run);
  }
  std::cout.rdbuf(terminal);
  return text.str();
}

}  // namespace

TEST_CASE("every second step has a line") {
  CHECK(printed(false) == "step 2 of 4: loss 0.5\nstep 4 of 4: loss 0.5, learning rate 0.25\n");
}

TEST_CASE("--quiet prints nothing") {
  CHECK(printed(true).empty());
}
