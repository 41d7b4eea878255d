#include <doctest/doctest.h>
#include <vernier/amp_stats.h>
#include <vernier/error.h>
#include <vernier/loss_scale.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "temporary_folder.h"

namespace amp_stats_test {

using vernier::AmpStats;

namespace {

AmpStats example() {
  AmpStats stats;
  stats.add({.seconds = 1, .scale = 64});
  stats.add({.seconds = 3, .overflowed = true, .scale = 64});
  stats.add({.scale = 32});
  stats.add({.is_amp = false});
  stats.add_underflow(torch::scalar_tensor(0.25));
  stats.add_underflow(torch::scalar_tensor(0.75));
  stats.add_underflow(torch::scalar_tensor(0.0));
  stats.add_memory_savings(1.5);
  stats.add_memory_savings(2.5);
  return stats;
}

}  // namespace

TEST_CASE("amp_stats: counts steps, overflows, scales and time") {
  auto stats = example();
  CHECK(stats.total_steps() == 4);
  CHECK(stats.amp_steps() == 3);
  CHECK(stats.scaler_updates() == 1);
  CHECK(stats.overflow_count() == 1);
  CHECK(overflow_ratio(stats) == doctest::Approx(1.0 / 3));
  CHECK(stats.amp_usage_ratio() == 0.75);
  CHECK(stats.current_scale() == 32.0);
  CHECK(stats.growth_tracker() == 2);
  CHECK(stats.avg_memory_savings() == 2.0);
  CHECK(stats.underflow().value().mean == doctest::Approx(1.0 / 3));
  CHECK(stats.underflow().value().last == 0.0);
  CHECK(stats.underflow_count() == 2);
  REQUIRE(stats.history().size() == 2);
  CHECK(stats.history()[0].step == 1);
  CHECK(stats.history()[1].step == 3);
  CHECK(stats.history()[1].scale == 32);
  stats = {};
  CHECK(stats.total_steps() == 0);
  CHECK(overflow_ratio(stats) == 0);
  CHECK_FALSE(stats.underflow().has_value());
  CHECK(stats.history().empty());
}

// The tracker is that of the step, before the scale grew after it.
TEST_CASE("amp_stats: the growth tracker is GradScaler's") {
  AmpStats stats;
  CHECK_FALSE(stats.growth_tracker().has_value());
  stats.add({});
  CHECK_FALSE(stats.growth_tracker().has_value());  // no scale is known
  vernier::LossScale scale(torch::kCPU, {.init_scale = 64, .growth_interval = 5});
  std::int64_t grown = 0;
  for (int step = 0; step < 200; ++step) {
    const bool overflowed = step % 17 == 3 || step % 23 == 4;
    const auto before = scale.value();
    stats.add({.overflowed = overflowed, .scale = before});
    scale.update(torch::full({}, overflowed ? 1.0F : 0.0F));
    const bool has_grown = scale.value() > before;
    grown += has_grown ? 1 : 0;
    CHECK(stats.growth_tracker() == (has_grown ? 5 : scale.state_dict().integer("_growth_tracker")));
  }
  CHECK(grown > 10);
}

TEST_CASE("amp_stats: the history keeps the newest changes") {
  AmpStats stats;
  for (int i = 0; i < 3000; ++i) stats.add({.scale = i % 2 == 0 ? 2.0 : 4.0});
  CHECK(stats.scaler_updates() == 2999);
  CHECK(stats.history().size() == AmpStats::longest_history);
  CHECK(stats.history().back().step == 3000);
}

TEST_CASE("amp_stats: saves JSON that reads back, and refuses a path that is none") {
  const TemporaryFolder folder;
  const auto path = folder / "amp.json";
  example().save(path);
  std::ifstream in(path);
  const auto json = nlohmann::json::parse(in);
  CHECK(json["total_steps"] == 4);
  CHECK(json["overflow_count"] == 1);
  CHECK(json["scale_history"][1]["scale"] == 32.0);
  CHECK(json["underflow"]["last"] == 0.0);
  CHECK(json["underflow_count"] == 2);
  CHECK(json["current_scale"] == 32.0);
  CHECK(json["growth_tracker"] == 2);
  CHECK(json["mean_step_seconds"] == 2);
  CHECK(json["avg_memory_savings"] == 2.0);
  CHECK(nlohmann::json::parse(AmpStats().json())["growth_tracker"].is_null());
  CHECK(nlohmann::json::parse(AmpStats().json())["underflow"]["mean"].is_null());
  CHECK_THROWS_AS(example().save(folder / "missing/amp.json"), vernier::Error);
}

TEST_CASE("amp_stats: goes on where its state was taken") {
  AmpStats loaded;
  loaded.load_state_dict(example().state_dict());
  auto whole = example();
  for (auto* stats : {&loaded, &whole}) stats->add({.overflowed = true, .scale = 16});
  CHECK(loaded.overflow_count() == 2);
  CHECK(loaded.total_steps() == whole.total_steps());
  CHECK(loaded.underflow_count() == 2);
  CHECK(loaded.growth_tracker() == 0);  // by the overflow
  CHECK(loaded.avg_memory_savings() == 2.0);
  CHECK(loaded.history().size() == whole.history().size());
  CHECK(loaded.history().back().step == 5);
  CHECK(loaded.underflow().value().mean == whole.underflow().value().mean);
  CHECK(loaded.underflow().value().last == whole.underflow().value().last);
}

}  // namespace amp_stats_test
