// Models without weights: what they answer, and of a series which season they repeat.
#include <doctest/doctest.h>
#include <torch/torch.h>
#include <vernier/data/baselines.h>

#include <cmath>

namespace baselines_test {

using vernier::Batch;
using Kind = vernier::Targets::Kind;

namespace {

const vernier::Targets numbers{.kind = Kind::numbers};
vernier::Targets classes(std::int64_t count) {
  return {.kind = Kind::classes, .count = count};
}

std::vector<std::string> names_of(const vernier::State& facts) {
  std::vector<std::string> names;
  for (const auto& baseline : vernier::baselines_of(facts)) names.push_back(baseline.name);
  return names;
}

Batch batch_of(torch::Tensor inputs) {
  const auto samples = inputs.size(0);
  return {{std::move(inputs)}, samples};
}

}  // namespace

TEST_CASE("baselines: none where nothing is known, and of targets what they are") {
  using Names = std::vector<std::string>;
  CHECK(names_of({}).empty());
  CHECK(names_of(vernier::target_facts(torch::zeros({0, 2}), numbers)).empty());
  CHECK(names_of(vernier::target_facts(torch::tensor({0, 1, 1}), classes(3))) == Names{"most frequent class"});
  CHECK(names_of(vernier::target_facts(torch::tensor({0.5, 1.5}), numbers)) == Names{"mean", "median"});
  CHECK(names_of(vernier::target_facts(torch::tensor({{0., 1.}}), {Kind::labels, 2})) == Names{"shares of the labels"});
  CHECK(names_of(vernier::target_facts(torch::tensor({{0., 1.}}), {Kind::ranks})) == Names{"any order"});
}

TEST_CASE("baselines: how often each label occurs among those that are known") {
  const double nan = NAN;
  const auto targets = torch::tensor({{0.0, 1.0, nan}, {1.0, 1.0, nan}, {0.0, nan, nan}, {0.0, 0.0, nan}});
  const auto logits = vernier::baselines_of(vernier::target_facts(targets, {Kind::labels, 3}))[0].forward(
      batch_of(torch::zeros({5, 7})));
  CHECK(logits.sigmoid().allclose(torch::tensor({0.25F, 2.0F / 3, 0.5F}).expand({5, 3})));
}

TEST_CASE("baselines: the most frequent class, and shares of all") {
  const auto facts = vernier::target_facts(torch::tensor({2, 0, 2, -100, 2}), classes(4));
  const auto logits = vernier::baselines_of(facts)[0].forward(batch_of(torch::zeros({3, 7})));
  CHECK(logits.sizes() == torch::IntArrayRef({3, 4}));
  CHECK(logits.argmax(1).eq(2).all().item<bool>());
  CHECK(logits.softmax(1)[0].allclose(torch::tensor({0.25, 0.0, 0.75, 0.0}), 1e-6, 1e-6));
}

TEST_CASE("baselines: mean and median of each output") {
  const auto targets = torch::tensor({{1.0, 10.0}, {2.0, 10.0}, {9.0, 40.0}, {4.0, 20.0}});
  const auto all = vernier::baselines_of(vernier::target_facts(targets, numbers));
  const auto batch = batch_of(torch::zeros({5, 1}));
  CHECK(all[0].forward(batch).equal(torch::tensor({{4.0F, 20.0F}}).expand({5, 2})));
  CHECK(all[1].forward(batch).equal(torch::tensor({{3.0F, 15.0F}}).expand({5, 2})));
  const auto of_one = vernier::baselines_of(vernier::target_facts(torch::tensor({1.0, 2.0, 9.0}), numbers));
  CHECK(of_one[1].forward(batch).equal(torch::full({5}, 2.0F)));
}

TEST_CASE("baselines: a forecast is the mean, or repeats the last value or the season that fits best") {
  const auto hours = torch::arange(480, torch::kFloat64);
  const auto daily = (hours * (2 * M_PI / 24)).sin() + 0.1 * (hours * hours * 0.37).sin();
  const auto series = torch::stack({hours, daily}, 1);
  const auto facts = vernier::forecast_facts(series, {1}, 48, 12);
  CHECK(facts.integer("season") == 24);
  const auto all = vernier::baselines_of(facts);
  CHECK(names_of(facts) == std::vector<std::string>{"mean", "last value", "24 steps before"});
  const auto seen = series.narrow(0, 100, 48).unsqueeze(0);
  CHECK(all[0].forward(batch_of(seen)).equal(daily.mean().expand({1, 12, 1})));
  const auto last = all[1].forward(batch_of(seen)), season = all[2].forward(batch_of(seen));
  CHECK(last.sizes() == torch::IntArrayRef({1, 12, 1}));
  CHECK(last.eq(daily[147]).all().item<bool>());
  CHECK(season.squeeze().equal(daily.narrow(0, 148 - 24, 12)));
  // A season shorter than the horizon is repeated; a walk has none.
  const auto short_season = vernier::forecast_facts((hours * (2 * M_PI / 5)).sin().unsqueeze(1), {0}, 8, 12);
  CHECK(short_season.integer("season") == 5);
  const auto repeated = vernier::baselines_of(short_season)[2].forward(batch_of(seen.narrow(2, 1, 1).narrow(1, 0, 8)));
  CHECK(repeated[0][7].equal(repeated[0][2]));
  CHECK(names_of(vernier::forecast_facts(hours.unsqueeze(1), {0}, 8, 1)) ==
        std::vector<std::string>{"mean", "last value"});
}

}  // namespace baselines_test
