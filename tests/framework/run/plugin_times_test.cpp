// Which plugins are said to make the steps slow.
#include "run/process/plugin_times.h"

#include <doctest/doctest.h>
#include <unistd.h>
#include <vernier/host.h>
#include <vernier/plugin.h>

#include <functional>
#include <string>
#include <utility>

namespace plugin_times_test {

using vernier::Bus;
using vernier::Event;
using vernier::Run;

namespace {

constexpr int enough = 8 + 3 * 17 + 1;  // steps, of which four are timed

void wait_a_little() {
  ::usleep(3000);
}

struct Listener final : vernier::Plugin {
  Listener(const std::string& id, std::function<void(Run&)> call) : call_(std::move(call)) { set_id(id); }
  void attach(Bus& bus) override {
    bus.on(Event::StepEnd, [this](Run& run) { call_(run); });
  }
  std::function<void(Run&)> call_;
};

// The slow plugins of a run whose steps are one StepEnd each. call: what callback/other does there.
std::map<std::string, double> slow_with(const std::function<void(Run&)>& call, int steps = enough) {
  Listener idle("callback/idle", [](Run&) {}), other("callback/other", call);
  Bus bus;
  vernier::HostApi::attach(bus, idle, false);
  vernier::HostApi::attach(bus, other, false);
  vernier::TrainerRun run;
  vernier::PluginTimes times;
  for (int step = 0; step < steps; ++step) {
    times.begin_step(step);
    vernier::HostApi::emit(bus, Event::StepEnd, run);
    times.end_step();
  }
  return times.slow();
}

}  // namespace

TEST_CASE("plugin times: a plugin that waits in each step is slow, with its share; one that does nothing is not") {
  const auto slow = slow_with([](Run&) { wait_a_little(); });
  REQUIRE(slow.size() == 1);
  CHECK(slow.at("callback/other") > 0.5);
  CHECK(slow.at("callback/other") <= 1.0);
  CHECK(slow_with([](Run&) {}).empty());
}

TEST_CASE("plugin times: nothing is said of a short run, or of a plugin that is slow in a single step") {
  CHECK(slow_with([](Run&) { wait_a_little(); }, enough - 1).empty());
  CHECK(slow_with([step = 0](Run&) mutable {
          if (step++ == 8) ::usleep(100000);
        }).empty());
}

TEST_CASE("plugin times: what the trainer computes for a plugin, and other plugins' listeners, are not its own time") {
  CHECK(slow_with([](Run&) {
          const vernier::NotOfListener computed;
          wait_a_little();
        }).empty());
  Listener inner("callback/inner", [](Run&) { wait_a_little(); });
  Bus bus;
  vernier::HostApi::attach(bus, inner, false);
  const auto slow = slow_with([&](Run& run) { vernier::HostApi::emit(bus, Event::StepEnd, run); });
  CHECK(slow.count("callback/inner") == 1);
  CHECK(slow.count("callback/other") == 0);
}

}  // namespace plugin_times_test
