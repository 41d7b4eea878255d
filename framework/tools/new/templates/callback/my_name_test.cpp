// Tests the rule of callback/my_name without a run.
#include "my_name.cpp"

#include <ATen/ops/full.h>
#include <vernier/host.h>
// doctest comes last, because LibTorch has a CHECK of its own.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

namespace {

// The metric after steps with these losses. Options are written as the TOML has them; "test" is their place.
double average_after(const std::vector<double>& losses, vernier::State* saved = nullptr, bool loads = false) {
  vernier::Options options("callback/my_name", {{"decay", {0.5, "test"}}}, "test");
  MyName plugin(options);
  vernier::Bus bus;
  vernier::HostApi::attach(bus, plugin, /*monitor=*/false);
  vernier::TrainerRun run;
  plugin.prepare(run);
  if (loads) plugin.load(*saved);
  for (const double loss : losses) {
    run.loss = at::full({}, loss);
    vernier::HostApi::emit(bus, vernier::Event::StepEnd, run);
  }
  if (saved != nullptr) *saved = plugin.save();
  return run.metrics.value("my_name").value();
}

}  // namespace

TEST_CASE("the average begins with the first loss and follows the next ones") {
  CHECK(average_after({4.0}) == 4.0);
  CHECK(average_after({4.0, 2.0}) == 3.0);
  CHECK(average_after({4.0, 2.0, 5.0}) == 4.0);
}

TEST_CASE("a plugin that loads what another one saved continues its average") {
  vernier::State saved;
  average_after({4.0, 2.0}, &saved);
  CHECK(average_after({5.0}, &saved, /*loads=*/true) == 4.0);
}
