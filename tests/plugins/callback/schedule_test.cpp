#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include <cmath>

#include "plugin_library.h"
#include "thrown.h"

namespace schedule_test {

using vernier::Callback;

namespace {

struct Shape {
  std::string kind = "cosine";
  std::int64_t warmup = 0, decay = 0;
  double final_factor = 0;
};

std::unique_ptr<Callback> make(const Shape& shape) {
  vernier::Table table{{"kind", {shape.kind, "test.toml:2"}}, {"warmup_steps", {shape.warmup, "test.toml:3"}}};
  if (shape.kind != "constant") {
    table["decay_steps"] = {shape.decay, "test.toml:4"};
    table["final_factor"] = {shape.final_factor, "test.toml:5"};
  }
  return make_plugin<Callback>("callback/schedule", std::move(table));
}

// The factor after so many applied updates, of a run of so many steps.
struct Schedule {
  explicit Schedule(const Shape& shape, std::int64_t steps = 100) : plugin(make(shape)) {
    vernier::HostApi::attach(bus, *plugin, false);
    run.steps = steps;
  }
  double operator()(std::int64_t updates) {
    run.updates = updates;
    run.learning_rate_factor = 1.0;
    vernier::HostApi::emit(bus, vernier::Event::StepBegin, run);
    return run.learning_rate_factor;
  }
  std::unique_ptr<Callback> plugin;
  vernier::TrainerRun run;
  vernier::Bus bus;
};

}  // namespace

TEST_CASE("schedule: points of each kind") {
  struct Point {
    Shape shape;
    std::int64_t updates;
    double factor;
  };
  const std::vector<Point> points = {
      {{"constant", 0, 0, 0}, 0, 1.0},        {{"constant", 4, 0, 0}, 0, 0.2},       {{"constant", 4, 0, 0}, 3, 0.8},
      {{"constant", 4, 0, 0}, 4, 1.0},        {{"constant", 4, 0, 0}, 99, 1.0},      {{"linear", 0, 0, 0}, 0, 1.0},
      {{"linear", 0, 0, 0}, 25, 0.75},        {{"linear", 0, 0, 0}, 100, 0.0},       {{"linear", 20, 0, 0.5}, 60, 0.75},
      {{"linear", 20, 60, 0.5}, 40, 0.75},    {{"linear", 20, 60, 0.5}, 60, 0.5},    {{"linear", 20, 60, 0.5}, 90, 0.5},
      {{"cosine", 0, 0, 0}, 0, 1.0},          {{"cosine", 0, 0, 0}, 50, 0.5},        {{"cosine", 0, 0, 0}, 100, 0.0},
      {{"cosine", 0, 0, 0.1}, 50, 0.55},      {{"cosine", 10, 0, 0}, 9, 10.0 / 11},  {{"cosine", 10, 0, 0}, 10, 1.0},
      {{"cosine", 0, 0, 0}, 25, 0.853553391}, {{"cosine", 0, 0, 0}, 75, 0.146446609}};
  for (const auto& point : points) {
    CAPTURE(point.shape.kind);
    CAPTURE(point.updates);
    Schedule schedule(point.shape);
    CHECK(schedule(point.updates) == doctest::Approx(point.factor).epsilon(1e-8));
  }
}

TEST_CASE("schedule: rises through the warm-up, never rises after, without a jump, and ends at its last factor") {
  for (const std::string kind : {"constant", "linear", "cosine"}) {
    for (const std::int64_t warmup : {0, 1, 10, 99, 150}) {
      for (const double last : {0.0, 0.1, 1.0}) {
        CAPTURE(kind);
        CAPTURE(warmup);
        CAPTURE(last);
        Schedule schedule({kind, warmup, 0, last});
        const double largest_step =
            std::max(1.0 / static_cast<double>(warmup + 1), 1.6 / std::max(100.0 - static_cast<double>(warmup), 1.0));
        for (std::int64_t updates = 0; updates < 200; ++updates) {
          const double now = schedule(updates), next = schedule(updates + 1);
          CHECK(now > (updates < 100 ? 0.0 : -1e-12));
          CHECK(now <= 1.0);
          CHECK(std::abs(next - now) <= largest_step + 1e-12);
          CHECK((updates < warmup ? next > now : next <= now));
        }
        if (kind != "constant" && warmup < 100) CHECK(schedule(100) == doctest::Approx(last));
      }
    }
  }
}

TEST_CASE("schedule: counts updates, not steps, and leaves other factors in") {
  Schedule schedule({"linear"});
  schedule.run.step = 90;
  CHECK(schedule(50) == doctest::Approx(0.5));
  schedule.run.learning_rate_factor = 0.1;
  vernier::HostApi::emit(schedule.bus, vernier::Event::StepBegin, schedule.run);
  CHECK(schedule.run.learning_rate_factor == doctest::Approx(0.05));
}

TEST_CASE("schedule: what contradicts itself is refused") {
  CHECK_THROWS_AS(make({"cosine", 10, 10}), vernier::Error);
  CHECK_THROWS_AS(make({"cosine", 10, 5}), vernier::Error);
  CHECK_THROWS_AS(make({"cosine", 0, 0, 1.5}), vernier::Error);
  CHECK_THROWS_AS(make({"cosin"}), vernier::Error);
  CHECK_THROWS_AS(make({"linear", -1}), vernier::Error);
  const auto constant_with = [](const char* key, vernier::Value value) {
    return thrown_by([&] {
      make_plugin<Callback>("callback/schedule",
                            {{"kind", {std::string("constant"), "test.toml:2"}}, {key, std::move(value)}});
    });
  };
  CHECK(constant_with("decay_steps", {std::int64_t{9}, "test.toml:3"}) ==
        configuration(
            "test.toml:3: callback/schedule: `decay_steps` is for kind = \"linear\", \"cosine\", \"polynomial\", "
            "\"warmup_stable_decay\" or \"one_cycle\""));
  CHECK(says(constant_with("final_factor", {0.5, "test.toml:3"}).text, "`final_factor` is for kind ="));
}

}  // namespace schedule_test
