#include <doctest/doctest.h>
#include <torch/torch.h>
#include <vernier/error.h>
#include <vernier/evaluation.h>

#include <cmath>
#include <functional>

namespace evaluation_test {

using vernier::Error;
using vernier::Metric;

namespace {

// The value over all samples, given in batches of this size.
double value_of(Metric& metric, const torch::Tensor& output, const torch::Tensor& target, std::int64_t batch) {
  metric.reset();
  for (std::int64_t first = 0; first < output.size(0); first += batch) {
    const auto count = std::min(batch, output.size(0) - first);
    metric.update(output.narrow(0, first, count), target.narrow(0, first, count));
  }
  return metric.value().item<double>();
}

// Plain loops over the definition.
double auc_by_pairs(const torch::Tensor& scores, const torch::Tensor& target) {
  double wins = 0, pairs = 0;
  for (std::int64_t i = 0; i < scores.numel(); ++i) {
    for (std::int64_t j = 0; j < scores.numel(); ++j) {
      if (target[i].item<double>() != 1 || target[j].item<double>() != 0) continue;
      const double a = scores[i].item<double>(), b = scores[j].item<double>();
      wins += a > b ? 1 : a == b ? 0.5 : 0;
      pairs += 1;
    }
  }
  return wins / pairs;
}

double f1_by_class(const torch::Tensor& predicted, const torch::Tensor& target, std::int64_t classes) {
  double sum = 0;
  for (std::int64_t c = 0; c < classes; ++c) {
    double hits = 0, said = 0, are = 0;
    for (std::int64_t i = 0; i < target.numel(); ++i) {
      const bool says = predicted[i].item<std::int64_t>() == c, is = target[i].item<std::int64_t>() == c;
      hits += says && is ? 1 : 0;
      said += says ? 1 : 0;
      are += is ? 1 : 0;
    }
    if (hits > 0) sum += 2 / (said / hits + are / hits);  // the harmonic mean of precision and recall
  }
  return sum / static_cast<double>(classes);
}

}  // namespace

TEST_CASE("metrics of classes are those of their definitions, in batches of any size") {
  torch::manual_seed(3);
  const auto logits = torch::randn({60, 5}, torch::kFloat64);
  const auto target = torch::randint(5, {60}, torch::kInt64);
  const auto sorted = std::get<1>(logits.sort(1, /*descending=*/true));
  const auto top_2 = (sorted.narrow(1, 0, 2) == target.unsqueeze(1)).any(1).to(torch::kFloat64).mean().item<double>();
  const auto entropy = torch::nn::functional::cross_entropy(logits, target).item<double>();
  for (const std::int64_t batch : {1, 7, 60}) {
    CAPTURE(batch);
    const auto check = [&](vernier::MetricPtr metric, double expected) {
      CAPTURE(metric->name());
      CHECK(value_of(*metric, logits, target, batch) == doctest::Approx(expected).epsilon(1e-12));
    };
    check(vernier::accuracy(), (logits.argmax(1) == target).to(torch::kFloat64).mean().item<double>());
    check(vernier::top_k(2), top_2);
    check(vernier::top_k(9), 1.0);
    check(vernier::f1(5), f1_by_class(logits.argmax(1), target, 5));
    check(vernier::perplexity(), std::exp(entropy));
  }
}

TEST_CASE("targets below 0 are left out, also of sequences") {
  torch::manual_seed(4);
  const auto logits = torch::randn({6, 4, 10}, torch::kFloat64);
  auto target = torch::randint(4, {6, 10}, torch::kInt64);
  target.narrow(1, 7, 3).fill_(-100);
  const auto kept = logits.narrow(2, 0, 7).transpose(1, 2).reshape({-1, 4});
  const auto kept_target = target.narrow(1, 0, 7).reshape({-1});
  for (const char* name : {"accuracy", "top_2", "f1", "perplexity"}) {
    CAPTURE(name);
    const auto whole = vernier::metric_by_name(name, 4), part = vernier::metric_by_name(name, 4);
    CHECK(value_of(*whole, logits, target, 2) == doctest::Approx(value_of(*part, kept, kept_target, 100)));
  }
}

TEST_CASE("f1 takes an output of no class as a miss") {
  const auto logits = torch::nn::functional::one_hot(torch::tensor({0, 4, 1, 3, 2, 4}), 5).to(torch::kFloat64);
  const auto target = torch::tensor({0, 1, 1, 2, 2, 2});
  const double expected = f1_by_class(logits.argmax(1), target, 3);
  CHECK(expected == doctest::Approx((1 + 2.0 / 3 + 0.5) / 3));
  CHECK(value_of(*vernier::f1(3), logits, target, 4) == doctest::Approx(expected));
}

TEST_CASE("auc counts pairs, equal scores half") {
  torch::manual_seed(5);
  const auto metric = vernier::auc();
  for (int round = 0; round < 10; ++round) {
    const auto scores = torch::randint(8, {40}, torch::kFloat64) / 8;
    const auto target = torch::randint(2, {40}, torch::kInt64);
    const auto expected = auc_by_pairs(scores, target);
    CHECK(value_of(*metric, scores, target, 9) == doctest::Approx(expected).epsilon(1e-12));
    const auto logits = torch::stack({-scores, scores}, 1);
    CHECK(value_of(*metric, logits, target, 40) == doctest::Approx(expected).epsilon(1e-12));
  }
  CHECK(std::isnan(value_of(*metric, torch::rand({4}), torch::ones({4}), 4)));
}

TEST_CASE("metrics of numbers are those of their definitions, also far from 0") {
  torch::manual_seed(6);
  for (const double offset : {0.0, 1e6}) {
    const auto target = torch::randn({50, 1}, torch::kFloat64) + offset;
    const auto output = target + torch::randn({50, 1}, torch::kFloat64) / 3;
    const auto error = output - target;
    const double mse = error.square().mean().item<double>();
    for (const std::int64_t batch : {1, 8, 50}) {
      CAPTURE(batch);
      CHECK(value_of(*vernier::mean_absolute_error(), output, target, batch) ==
            doctest::Approx(error.abs().mean().item<double>()));
      CHECK(value_of(*vernier::root_mean_squared_error(), output, target, batch) == doctest::Approx(std::sqrt(mse)));
      CHECK(value_of(*vernier::r_squared(), output, target, batch) ==
            doctest::Approx(1 - mse / target.var(/*unbiased=*/false).item<double>()).epsilon(1e-6));
    }
  }
}

TEST_CASE("metrics have names, and wrong ones get a hint") {
  for (const char* name : {"accuracy", "top_5", "f1", "perplexity", "auc", "mae", "rmse", "r2"}) {
    const auto metric = vernier::metric_by_name(name, 3);
    CHECK(metric->name() == name);
    CHECK(std::isnan(metric->value().item<double>()));
  }
  CHECK_THROWS_WITH_AS(vernier::metric_by_name("acuracy", 3), "there is no metric \"acuracy\"; did you mean accuracy?",
                       Error);
  CHECK_THROWS_AS(vernier::metric_by_name("top_0", 3), Error);
  CHECK_THROWS_AS(vernier::f1(1), Error);
  CHECK_THROWS_AS(vernier::accuracy()->update(torch::zeros({3}), torch::zeros({3})), Error);
  CHECK_THROWS_AS(vernier::mean_absolute_error()->update(torch::zeros({3, 2}), torch::zeros({3})), Error);
}

}  // namespace evaluation_test
