#include "tools/check/find_lr.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "run_folder.h"
#include "small_run.h"
#include "thrown.h"

namespace find_lr_test {

using vernier::RateTest;

namespace {

constexpr const char* mlp = R"([run]
steps = 50
device = "cpu"
threads = 1
output = "out"
[task]
use = "mlp"
samples = 256
[optimizer]
use = "sgd"
learning_rate = 0.01
[[callback]]
use = "schedule"
warmup_steps = 30
)";

// 40 points, a decade every five.
std::vector<RateTest::Point> points_of(double (*loss)(double decade)) {
  std::vector<RateTest::Point> points;
  for (int i = 0; i < 40; ++i) points.push_back({std::pow(10, -6 + i / 5.0), loss(-6 + i / 5.0)});
  return points;
}

}  // namespace

TEST_CASE("find_lr: where the loss falls fastest, before its lowest value") {
  const struct {
    double (*loss)(double decade);
    std::optional<double> decade;
  } cases[] = {
      {[](double x) { return -std::tanh(x + 2); }, -2},                              // falls about 1e-2
      {[](double x) { return -std::tanh(x + 2) + (x > 0 ? 9 * x : 0); }, -2},        // and then diverges
      {[](double x) { return -std::tanh(x + 3) - 2 * std::tanh(2 * (x - 1)); }, 1},  // the steeper of two
      {[](double x) { return x; }, std::nullopt},                                    // rises
      {[](double) { return 1.0; }, std::nullopt},
  };
  for (const auto& [loss, decade] : cases) {
    const auto found = vernier::steepest(points_of(loss));
    REQUIRE(found.has_value() == decade.has_value());
    if (found) CHECK(std::abs(std::log10(*found) - *decade) < 0.11);
  }
  CHECK_FALSE(vernier::steepest({}));
  CHECK_FALSE(vernier::steepest({{0.1, 2.0}}));
}

TEST_CASE("find_lr: a rate is not found in noise, and noise hides none") {
  // Losses of 100 steps over 7 decades. Of heavy tails, as squared errors of prices are.
  const auto measured = [](std::uint64_t seed, double noise, double fall, bool has_lucky_batch) {
    std::mt19937_64 engine(seed);
    std::normal_distribution<double> normal;
    std::vector<RateTest::Point> points;
    for (int i = 0; i < 100; ++i) {
      const double decade = -6 + 7 * i / 99.0;
      const double mean = 1 - fall * (0.5 + 0.5 * std::tanh(2 * (decade + 2.5)));
      points.push_back({std::pow(10, decade), mean * std::exp(noise * normal(engine) - noise * noise / 2)});
    }
    if (has_lucky_batch) points[7].loss = 0.01;
    return points;
  };
  const struct {
    double noise, fall;
    bool has_lucky_batch, is_found;
  } cases[] = {{0.1, 0.7, false, true},  {0.1, 0.7, true, true},  {0.2, 0.8, false, true}, {0.2, 0.8, true, true},
               {0.1, 0.0, false, false}, {0.5, 0.0, true, false}, {1.0, 0.0, false, false}};
  for (const auto& [noise, fall, has_lucky_batch, is_found] : cases) {
    CAPTURE(noise);
    CAPTURE(fall);
    CAPTURE(has_lucky_batch);
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
      CAPTURE(seed);
      const auto found = vernier::steepest(measured(seed, noise, fall, has_lucky_batch));
      CHECK(found.has_value() == is_found);
      if (found) CHECK(std::abs(std::log10(*found) + 2.5) < 1);
    }
  }
}

TEST_CASE("find_lr: the plot has one mark, its axes the first and last rate, and the suggestion as a number") {
  RateTest test{points_of([](double x) { return 2 - std::tanh(x + 2); }), 0.01, false};
  test.suggestion = test.points.at(20).rate;
  const auto text = vernier::plot(test);
  CHECK(std::ranges::count(text.substr(0, text.find("1e-06")), 'O') == 1);
  CHECK(std::ranges::count(text, '*') >= 20);
  CHECK(says(text, "1e-06"));
  CHECK(says(text, "63.1\n"));
  CHECK(says(text, "learning_rate = 0.01\n"));
  test.suggestion.reset();
  CHECK(says(vernier::plot(test), "cannot tell: at none of these rates the loss falls by more than it scatters"));
  CHECK(says(vernier::plot({}), "not finite from the first step on"));
}

TEST_CASE("find_lr: a rate that learns, between rates that do not, whatever the schedule") {
  SmallRun run(from_toml({mlp, "[checkpoint]\nuse = 'none'\n"}));
  const auto test = vernier::test_rates(*run.trainer, *run.wiring, run.run);
  REQUIRE(test.points.size() > 50);
  CHECK(test.points.front().rate == doctest::Approx(1e-6));
  CHECK(std::ranges::is_sorted(test.points, {}, &RateTest::Point::rate));
  CHECK(test.has_diverged);
  REQUIRE(test.suggestion);
  CHECK(*test.suggestion > 1e-3);
  CHECK(*test.suggestion < 10);
}

TEST_CASE("find_lr: check prints it, and leaves nothing behind") {
  RunFolder place(mlp);
  CHECK(place.call({"check", "run.toml", "--find-lr"}) == 0);
  CHECK(place.err == "");
  CHECK(says(place.out, "the loss falls fastest at O: learning_rate = "));
  CHECK(says(place.out, "ready: nothing was trained or written\n"));
  CHECK(std::distance(std::filesystem::directory_iterator(place.folder.path()), {}) == 1);
  CHECK(place.call({"check", "run.toml", "--find-lr", "--set=optimizer.learning_rate=0.0"}) == 2);
  CHECK(says(place.err, "the optimizer's learning rate is 0, and the test multiplies it"));
  CHECK(place.call({"check", "run.toml", "--find-lr", "--resume"}) == 2);
  CHECK(place.err == "vernier: `vernier check --resume` does not read --find-lr; leave it out\n");
  CHECK(place.call({"check", "run.toml", "--find-lr", "--options"}) == 2);
  CHECK(place.err == "vernier: `vernier check --options` does not read --find-lr; leave it out\n");
  CHECK(place.train({"--find-lr"}) == 2);
  CHECK(says(place.err, "unrecognised option '--find-lr'"));
}

}  // namespace find_lr_test
