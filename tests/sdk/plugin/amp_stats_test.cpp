#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/amp_stats.h>
#include <vernier/error.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "temporary_folder.h"

namespace amp_stats_test {

using vernier::AmpStats;

namespace {

AmpStats example() {
  AmpStats stats;
  stats.set_scale(1, 64, 0);
  stats.add({.seconds = 1});
  stats.set_scale(2, 64, 1);
  stats.add({.overflowed = true});
  stats.add_seconds(3);
  stats.set_scale(3, 32, 0);
  stats.add({});
  stats.add({.is_amp = false});
  stats.set_scale(5, 32, 2);
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
  CHECK(amp_usage_ratio(stats) == 0.75);
  CHECK(stats.current_scale() == 32.0);
  CHECK(stats.growth_tracker() == 2);
  CHECK(stats.avg_memory_savings() == 2.0);
  CHECK(stats.underflow().value().mean == doctest::Approx(1.0 / 3));
  CHECK(stats.underflow().value().last == 0.0);
  CHECK(stats.underflow().value().count == 2);
  CHECK(stats.mean_step_seconds() == 2.0);
  REQUIRE(stats.history().size() == 2);
  CHECK(stats.history()[0].step == 1);
  CHECK(stats.history()[1].step == 3);
  CHECK(stats.history()[1].scale == 32);
  stats = {};
  CHECK(stats.total_steps() == 0);
  CHECK(overflow_ratio(stats) == 0);
  CHECK_FALSE(stats.underflow().has_value());
  CHECK_FALSE(stats.mean_step_seconds().has_value());
  CHECK(stats.history().empty());
}

TEST_CASE("amp_stats: a scale that nobody gives any more is none, and its history stays") {
  auto stats = example();
  stats.set_scale(5, std::nullopt);  // a swap
  CHECK_FALSE(stats.current_scale().has_value());
  CHECK_FALSE(stats.growth_tracker().has_value());
  CHECK(stats.history().size() == 2);
  stats.set_scale(6, 8);  // a static one
  CHECK(stats.current_scale() == 8.0);
  CHECK_FALSE(stats.growth_tracker().has_value());
  CHECK(stats.scaler_updates() == 2);
  stats.set_scale(6, 16, 0);  // another swap before the step
  CHECK(stats.history().size() == 3);
  CHECK(stats.history().back().scale == 16);
}

TEST_CASE("amp_stats: the history keeps the newest changes") {
  AmpStats stats;
  for (int step = 1; step <= 3000; ++step) stats.set_scale(step, step % 2 == 0 ? 2.0 : 4.0);
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
  CHECK(json["scaler_enabled"] == true);
  const auto nothing = nlohmann::json::parse(AmpStats().json());
  for (const char* name :
       {"current_scale", "growth_tracker", "underflow_count", "avg_memory_savings", "mean_step_seconds"}) {
    CAPTURE(name);
    REQUIRE(nothing.contains(name));
    CHECK(nothing[name].is_null());
  }
  CHECK(nothing["underflow"]["mean"].is_null());
  CHECK(nothing["scaler_enabled"] == false);
  CHECK_THROWS_AS(example().save(folder / "missing/amp.json"), vernier::Error);
}

TEST_CASE("amp_stats: goes on where its state was taken") {
  AmpStats loaded;
  loaded.load_state_dict(example().state_dict());
  auto whole = example();
  CHECK(loaded.current_scale() == 32.0);
  CHECK(loaded.growth_tracker() == 2);
  for (auto* stats : {&loaded, &whole}) {
    stats->add({.overflowed = true});
    stats->set_scale(6, 16, 0);
  }
  CHECK(loaded.overflow_count() == 2);
  CHECK(loaded.total_steps() == whole.total_steps());
  CHECK(loaded.underflow().value().count == 2);
  CHECK(loaded.growth_tracker() == 0);
  CHECK(loaded.avg_memory_savings() == 2.0);
  CHECK(loaded.history().size() == whole.history().size());
  CHECK(loaded.history().back().step == 6);
  CHECK(loaded.underflow().value().mean == whole.underflow().value().mean);
  CHECK(loaded.underflow().value().last == whole.underflow().value().last);
}

}  // namespace amp_stats_test
