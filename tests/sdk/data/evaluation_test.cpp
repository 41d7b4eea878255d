#include <doctest/doctest.h>
#include <torch/torch.h>
#include <vernier/data/evaluation.h>
#include <vernier/error.h>

#include <cmath>
#include <functional>
#include <tuple>

#include "metric_row.h"
#include "temporary_folder.h"

namespace evaluation_test {

using vernier::Error;
using vernier::Metric;
using vernier::Targets;
using Kind = Targets::Kind;

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

// So many classes, of a task that does not say what its targets are.
Targets of(std::int64_t classes) {
  return {.count = classes};
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
  double sum = 0, occur = 0;
  for (std::int64_t c = 0; c < classes; ++c) {
    double hits = 0, said = 0, are = 0;
    for (std::int64_t i = 0; i < target.numel(); ++i) {
      const bool says = predicted[i].item<std::int64_t>() == c, is = target[i].item<std::int64_t>() == c;
      hits += says && is ? 1 : 0;
      said += says ? 1 : 0;
      are += is ? 1 : 0;
    }
    occur += said + are > 0 ? 1 : 0;
    if (hits > 0) sum += 2 / (said / hits + are / hits);  // the harmonic mean of precision and recall
  }
  return sum / occur;
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

TEST_CASE("metrics declare which values are better, and docs/reference/metrics.md has each declaration") {
  using vernier::Better;
  const auto page = read_text(VERNIER_SOURCE_DIR "/docs/reference/metrics.md");
  for (const auto& info : vernier::metric_infos()) {
    CHECK_MESSAGE(page.find('\n' + metric_row(info, "task")) != std::string::npos, metric_row(info, "task"));
  }
  const std::tuple<const char*, Better, double, double> judgements[] = {{"accuracy", Better::higher, 0, 1},
                                                                        {"top_1", Better::higher, 0, 1},
                                                                        {"top_50", Better::higher, 0, 1},
                                                                        {"f1", Better::higher, 0, 1},
                                                                        {"dice", Better::higher, 0, 1},
                                                                        {"iou", Better::higher, 0, 1},
                                                                        {"auc", Better::higher, 0, 1},
                                                                        {"r2", Better::higher, -HUGE_VAL, 1},
                                                                        {"perplexity", Better::lower, 1, HUGE_VAL},
                                                                        {"mae", Better::lower, 0, HUGE_VAL},
                                                                        {"rmse", Better::lower, 0, HUGE_VAL},
                                                                        {"ndcg_10", Better::higher, 0, 1}};
  for (const auto& [name, better, least, most] : judgements) {
    CAPTURE(name);
    const auto info = vernier::metric_by_name(name, {})->info();
    CHECK(info.name == name);
    CHECK(info.better == better);
    CHECK(info.least == least);
    CHECK(info.most == most);
    CHECK_FALSE(info.meaning.empty());
  }
  struct Own final : Metric {
    explicit Own(std::string name) : own(std::move(name)) {}
    std::string name() const override { return own; }
    void reset() override {}
    void update(const torch::Tensor&, const torch::Tensor&) override {}
    torch::Tensor value() const override { return {}; }
    std::string own;
  };
  CHECK(Own("accuracy").info().better == Better::higher);
  for (const char* name : {"top_", "top_x", "top_5_accuracy", "los", ""}) {
    CHECK(Own(name).info().better == Better::unknown);
    CHECK(Own(name).info().name == name);
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
    const auto whole = vernier::metric_by_name(name, of(4)), part = vernier::metric_by_name(name, of(4));
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

// Scores and relevances of groups of up to four items, and what scikit-learn 1.9 says: ndcg_score(y_true, y_score, k=2)
// of each group, which shares the places of equal scores. The last group has no relevant item.
TEST_CASE("metrics of rankings share the places of equal scores, and leave out places without one") {
  const double nan = std::nan("");
  const auto scores = torch::tensor({{0.9, 0.1, 0.5, 7.0}, {0.5, 0.5, 0.5, 0.5}, {1., 1., 0., 2.}, {1., 2., 3., 4.}});
  const auto relevance = torch::tensor({{0., 2., 1., nan}, {3., 0., 0., 1.}, {0., 5., nan, 1.}, {0., 0., nan, nan}});
  const double ndcg[] = {0.2398124665681314, 0.44917689524762666, 0.4577084951723926};
  for (const std::int64_t batch : {1, 3, 4}) {
    CHECK(value_of(*vernier::ndcg(2), scores, relevance, batch) ==
          doctest::Approx((ndcg[0] + ndcg[1] + ndcg[2]) / 3).epsilon(1e-12));
    // The first relevant item is second, third behind the two others of its score, and first.
    CHECK(value_of(*vernier::mean_reciprocal_rank(), scores, relevance, batch) ==
          doctest::Approx((1 / 2. + 1 / 3. + 1) / 3).epsilon(1e-12));
  }
  const auto broken = torch::tensor({{nan, 0.1, 0.5, 7.0}}, torch::kFloat64);
  CHECK(std::isnan(value_of(*vernier::ndcg(2), broken, relevance.narrow(0, 0, 1), 1)));
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

namespace {

torch::Tensor logits_of(const std::vector<std::int64_t>& predicted, std::int64_t classes) {
  return torch::nn::functional::one_hot(torch::tensor(predicted), classes).to(torch::kFloat64);
}
torch::Tensor rows(std::initializer_list<std::initializer_list<double>> numbers) {
  std::vector<torch::Tensor> all;
  for (const auto& row : numbers) all.push_back(torch::tensor(std::vector<double>(row), torch::kFloat64));
  return torch::stack(all);
}

}  // namespace

// Values by scikit-learn 1.5: f1_score(average="macro"), r2_score(force_finite=False), root_mean_squared_error.
TEST_CASE("metrics are those of scikit-learn where classes are missing, and of several outputs") {
  struct Case {
    const char* what;
    const char* metric;
    torch::Tensor output, target;
    double expected;
  };
  const auto none = torch::full({4, 3}, NAN, torch::kFloat64);
  const Case cases[] = {
      {"all right, one class of three absent", "f1", logits_of({0, 1, 0, 1}, 3), torch::tensor({0, 1, 0, 1}), 1},
      {"an absent class is predicted", "f1", logits_of({0, 2, 0, 1}, 3), torch::tensor({0, 1, 0, 1}), 5.0 / 9},
      {"a class is never predicted", "f1", logits_of({0, 0, 0, 0}, 3), torch::tensor({0, 1, 0, 1}), 1.0 / 3},
      {"one class alone", "f1", logits_of({2, 2}, 3), torch::tensor({2, 2}), 1},
      {"labels from 1", "f1", logits_of({1, 2, 3, 1}, 4), torch::tensor({1, 2, 3, 1}), 1},
      {"no target counts", "f1", logits_of({0, 1}, 3), torch::tensor({-100, -100}), NAN},
      {"two outputs of other spreads", "r2", rows({{2.5, 0}, {0, 20}, {2, 20}, {8, 60}}),
       rows({{3, 0}, {-0.5, 10}, {2, 20}, {7, 50}}), (0.9486081370449679 + 1 - 200.0 / 1400) / 2},
      {"a constant target", "r2", rows({{1}, {2}}), rows({{3}, {3}}), NAN},
      {"a constant target, all right", "r2", rows({{0.1}, {0.1}, {0.1}}), rows({{0.1}, {0.1}, {0.1}}), NAN},
      {"one of two targets is constant", "r2", rows({{1, 5}, {2, 6}, {3, 7}}), rows({{1, 4}, {2, 4}, {3, 4}}), 1},
      {"a target far from 0", "r2", rows({{1e14 + 1}, {1e14 - 1}}), rows({{1e14 + 1}, {1e14 - 1}}), 1},
      {"a target far from 0, both wrong by 1", "r2", rows({{1e14}, {1e14}}), rows({{1e14 + 1}, {1e14 - 1}}), 0},
      {"a target below 0 and far from it", "r2", rows({{-3e15}, {-3e15 + 2}}), rows({{-3e15}, {-3e15 + 2}}), 1},
      {"a constant target far from 0", "r2", rows({{1e14}, {1e14}, {1e14}}), rows({{1e14}, {1e14}, {1e14}}), NAN},
      {"a constant target in tenths", "r2", rows({{1}, {2}, {3}}), rows({{0.7}, {0.7}, {0.7}}), NAN},
      {"one sample", "r2", rows({{1, 2}}), rows({{1, 3}}), NAN},
      {"a wrong number that is not finite", "r2", rows({{1}, {std::nan("")}}), rows({{1}, {2}}), NAN},
      {"two outputs", "rmse", rows({{0, 0}, {0, 0}}), rows({{3, 1}, {3, 1}}), 2},
      {"two outputs", "mae", rows({{0, 0}, {0, 0}}), rows({{3, 1}, {3, 1}}), 2},
      {"one class alone", "auc", torch::tensor({0.1, 0.7}), torch::tensor({0, 0}), NAN},
      {"a score is not a number", "auc", torch::tensor({std::nan(""), 0.7, 0.2}), torch::tensor({1, 0, 1}), NAN},
      {"outputs are not numbers", "accuracy", none, torch::tensor({0, 1, 2, 0}), 0},
      {"outputs are not numbers", "top_2", none, torch::tensor({0, 1, 2, 0}), 0},
      {"outputs are not numbers", "f1", none, torch::tensor({0, 1, 2, 0}), 0},
      {"outputs are not numbers", "perplexity", none, torch::tensor({0, 1, 2, 0}), NAN}};
  for (const auto& [what, name, output, target, expected] : cases) {
    CAPTURE(name);
    CAPTURE(what);
    for (const std::int64_t batch : {1, 3, 100}) {
      const auto metric = vernier::metric_by_name(name, of(output.size(output.dim() - 1)));
      const double value = value_of(*metric, output, target, batch);
      CHECK((std::isnan(expected) ? std::isnan(value) : value == doctest::Approx(expected).epsilon(1e-12)));
    }
  }
}

TEST_CASE("f1 remembers three counts for each class, and adds those of another rank") {
  const std::int64_t classes = 20000;
  const auto here = vernier::f1(classes), there = vernier::f1(classes);
  const auto small = torch::zeros({2, 3}, torch::kFloat64);
  here->update(small, torch::tensor({0, 1}));
  there->update(small, torch::tensor({0, 19999}));
  std::int64_t remembered = 0;
  const auto state = *here->state_dict();
  for (const auto& [name, tensor] : state.tensors) remembered += tensor.numel();
  CHECK(remembered <= 4 * classes);
  here->add(*there->state_dict());
  CHECK(here->value().item<double>() == doctest::Approx(2.0 * 2 / (2 + 4) / 3));
}

TEST_CASE("metrics have names, and wrong ones get a hint") {
  for (const char* name :
       {"accuracy", "top_5", "f1", "dice", "iou", "perplexity", "auc", "mae", "rmse", "r2", "ndcg_10", "mrr"}) {
    const auto metric = vernier::metric_by_name(name, of(3));
    CHECK(metric->name() == name);
    CHECK(std::isnan(metric->value().item<double>()));
  }
  const std::pair<const char*, const char*> wrong[] = {
      {"acuracy", "; did you mean accuracy? There are"},
      {"acc", "; did you mean accuracy? There are"},
      {"roc_auc", "; did you mean auc? There are"},
      {"mse", "; did you mean rmse? There are"},
      {"r2_score", "; did you mean r2? There are"},
      {"f1_macro", "; did you mean f1? There are"},
      {"top5", "; did you mean top_5? There are"},
      {"val_loss", "; the validation loss is measured anyway; there are"},
      {"pixel_accuracy", "; did you mean accuracy? There are"},
      {"mean_iou", "; did you mean iou? There are"},
      {"dice_score", "; did you mean dice? There are"},
      {"hausdorff", "; there are"}};
  for (const auto& [name, hint] : wrong) {
    const auto text = std::string("there is no metric \"") + name + "\"" + hint +
                      " accuracy, subset_accuracy, top_5, f1, dice, iou, perplexity, auc, mae, rmse, r2, ndcg_10 and "
                      "mrr (top_ and ndcg_ with any number)";
    CHECK_THROWS_WITH_AS(vernier::metric_by_name(name, of(3)), text.c_str(), Error);
  }
  CHECK_THROWS_AS(value_of(*vernier::auc(), torch::rand({3}), torch::tensor({0, 1, 2}), 3), Error);
  CHECK_THROWS_AS(vernier::metric_by_name("top_0", of(3)), Error);
  CHECK_THROWS_AS(vernier::f1(1), Error);
  CHECK_THROWS_AS(vernier::accuracy()->update(torch::zeros({3}), torch::zeros({3})), Error);
  CHECK_THROWS_AS(vernier::mean_absolute_error()->update(torch::zeros({3, 2}), torch::zeros({3})), Error);
}

namespace {

// The numbers of sklearn_metrics.py: from -1 to 1, of so many different ones.
torch::Tensor numbers(std::int64_t rows, std::int64_t columns, std::int64_t seed, std::int64_t levels) {
  const auto mixed =
      (torch::arange(rows).unsqueeze(1) * 7919 + torch::arange(columns) * 104729 + seed * 1299709) % 100003;
  return (mixed * mixed % 100003 % levels).to(torch::kFloat64) / (static_cast<double>(levels - 1) / 2) - 1;
}

// Outputs and targets of a row of the table.
std::pair<torch::Tensor, torch::Tensor> samples(Kind kind, std::int64_t rows, std::int64_t columns, std::int64_t seed,
                                                bool is_missing) {
  if (kind == Kind::numbers) {
    const auto target = 3 * numbers(rows, columns, seed, 997) + torch::arange(columns);
    return {target + numbers(rows, columns, seed + 1, 997), target};
  }
  const auto drawn = numbers(rows, columns, seed + 1, 31);
  if (kind == Kind::classes) {
    const auto share = numbers(rows, 1, seed, 997).squeeze(1).abs();
    const auto target = (share * 0.999 * columns).to(torch::kInt64);
    return {drawn + 0.8 * torch::one_hot(target, columns).to(torch::kFloat64), target};
  }
  const auto rare = torch::linspace(0.8, -0.7, columns, torch::kFloat64);
  auto target = (numbers(rows, columns, seed, 997) < rare).to(torch::kFloat64);
  const auto logits = drawn + 0.6 * (2 * target - 1);
  if (is_missing) target.masked_fill_(numbers(rows, columns, seed + 2, 997) > 0.6, NAN);
  return {logits, target};
}

}  // namespace

// Values by scikit-learn 1.9: sklearn_metrics.py prints the table.
TEST_CASE("metrics are those of scikit-learn for labels, numbers and classes of many shapes") {
  struct Row {
    Kind kind;
    std::int64_t rows, columns, seed;
    bool is_missing;
    const char* metric;
    double expected;
  };
  const Row table[] = {{Kind::labels, 40, 1, 1, false, "accuracy", 0.75},
                       {Kind::labels, 40, 1, 1, false, "subset_accuracy", 0.75},
                       {Kind::labels, 40, 1, 1, false, "f1", 0.5098039215686274},
                       {Kind::labels, 40, 1, 1, false, "dice", 0.8529411764705882},
                       {Kind::labels, 40, 1, 1, false, "iou", 0.7435897435897436},
                       {Kind::labels, 40, 1, 1, false, "auc", 0.8157894736842105},
                       {Kind::labels, 40, 2, 2, false, "accuracy", 0.725},
                       {Kind::labels, 40, 2, 2, false, "subset_accuracy", 0.525},
                       {Kind::labels, 40, 2, 2, false, "f1", 0.6293103448275862},
                       {Kind::labels, 40, 2, 2, false, "dice", 0.6293103448275862},
                       {Kind::labels, 40, 2, 2, false, "iou", 0.4722222222222222},
                       {Kind::labels, 40, 2, 2, false, "auc", 0.9005753968253969},
                       {Kind::labels, 33, 3, 3, false, "accuracy", 0.7171717171717171},
                       {Kind::labels, 33, 3, 3, false, "subset_accuracy", 0.36363636363636365},
                       {Kind::labels, 33, 3, 3, false, "f1", 0.6277341705913134},
                       {Kind::labels, 33, 3, 3, false, "dice", 0.6277341705913134},
                       {Kind::labels, 33, 3, 3, false, "iou", 0.4939393939393939},
                       {Kind::labels, 33, 3, 3, false, "auc", 0.8962266778056253},
                       {Kind::labels, 64, 4, 4, false, "accuracy", 0.796875},
                       {Kind::labels, 64, 4, 4, false, "subset_accuracy", 0.375},
                       {Kind::labels, 64, 4, 4, false, "f1", 0.7564098502470538},
                       {Kind::labels, 64, 4, 4, false, "dice", 0.7564098502470538},
                       {Kind::labels, 64, 4, 4, false, "iou", 0.6166666666666667},
                       {Kind::labels, 64, 4, 4, false, "auc", 0.9499583234103359},
                       {Kind::labels, 25, 7, 5, false, "accuracy", 0.7314285714285714},
                       {Kind::labels, 25, 7, 5, false, "subset_accuracy", 0.04},
                       {Kind::labels, 25, 7, 5, false, "f1", 0.7288676236044658},
                       {Kind::labels, 25, 7, 5, false, "dice", 0.7288676236044658},
                       {Kind::labels, 25, 7, 5, false, "iou", 0.5825897864866771},
                       {Kind::labels, 25, 7, 5, false, "auc", 0.8964353433681164},
                       {Kind::labels, 90, 12, 6, false, "accuracy", 0.7935185185185185},
                       {Kind::labels, 90, 12, 6, false, "subset_accuracy", 0.06666666666666667},
                       {Kind::labels, 90, 12, 6, false, "f1", 0.763305833103268},
                       {Kind::labels, 90, 12, 6, false, "dice", 0.763305833103268},
                       {Kind::labels, 90, 12, 6, false, "iou", 0.6282784137519036},
                       {Kind::labels, 90, 12, 6, false, "auc", 0.9145296220398511},
                       {Kind::labels, 50, 1, 7, true, "accuracy", 0.813953488372093},
                       {Kind::labels, 50, 1, 7, true, "subset_accuracy", 0.813953488372093},
                       {Kind::labels, 50, 1, 7, true, "f1", 0.6928571428571428},
                       {Kind::labels, 50, 1, 7, true, "dice", 0.8857142857142857},
                       {Kind::labels, 50, 1, 7, true, "iou", 0.7948717948717948},
                       {Kind::labels, 50, 1, 7, true, "auc", 0.9615384615384616},
                       {Kind::labels, 50, 2, 8, true, "accuracy", 0.7764705882352941},
                       {Kind::labels, 50, 2, 8, true, "subset_accuracy", 0.625},
                       {Kind::labels, 50, 2, 8, true, "f1", 0.7349896480331263},
                       {Kind::labels, 50, 2, 8, true, "dice", 0.7349896480331263},
                       {Kind::labels, 50, 2, 8, true, "iou", 0.6078947368421053},
                       {Kind::labels, 50, 2, 8, true, "auc", 0.9704861111111112},
                       {Kind::labels, 80, 5, 9, true, "accuracy", 0.7701863354037267},
                       {Kind::labels, 80, 5, 9, true, "subset_accuracy", 0.3125},
                       {Kind::labels, 80, 5, 9, true, "f1", 0.67971987432857},
                       {Kind::labels, 80, 5, 9, true, "dice", 0.67971987432857},
                       {Kind::labels, 80, 5, 9, true, "iou", 0.5517227475613187},
                       {Kind::labels, 80, 5, 9, true, "auc", 0.8714939405889396},
                       {Kind::labels, 6, 4, 10, false, "accuracy", 0.7916666666666666},
                       {Kind::labels, 6, 4, 10, false, "subset_accuracy", 0.3333333333333333},
                       {Kind::labels, 6, 4, 10, false, "f1", 0.5666666666666667},
                       {Kind::labels, 6, 4, 10, false, "dice", 0.5666666666666667},
                       {Kind::labels, 6, 4, 10, false, "iou", 0.45833333333333326},
                       {Kind::labels, 6, 4, 10, false, "auc", NAN},
                       {Kind::numbers, 40, 1, 11, false, "mae", 0.49447791164658633},
                       {Kind::numbers, 40, 1, 11, false, "r2", 0.9039575746701295},
                       {Kind::numbers, 40, 1, 11, false, "rmse", 0.5641473260136037},
                       {Kind::numbers, 33, 2, 12, false, "mae", 0.4917548983814044},
                       {Kind::numbers, 33, 2, 12, false, "r2", 0.8936157645179151},
                       {Kind::numbers, 33, 2, 12, false, "rmse", 0.5708906022577245},
                       {Kind::numbers, 50, 3, 13, false, "mae", 0.48547523427041495},
                       {Kind::numbers, 50, 3, 13, false, "r2", 0.8944425487937586},
                       {Kind::numbers, 50, 3, 13, false, "rmse", 0.5734492754145973},
                       {Kind::numbers, 21, 6, 14, false, "mae", 0.4958405048766494},
                       {Kind::numbers, 21, 6, 14, false, "r2", 0.8640833746590237},
                       {Kind::numbers, 21, 6, 14, false, "rmse", 0.5606155906917053},
                       {Kind::classes, 40, 2, 15, false, "accuracy", 0.8},
                       {Kind::classes, 40, 2, 15, false, "f1", 0.7916666666666667},
                       {Kind::classes, 40, 2, 15, false, "dice", 0.7916666666666667},
                       {Kind::classes, 40, 2, 15, false, "iou", 0.6571428571428571},
                       {Kind::classes, 40, 2, 15, false, "auc", 0.8502747252747254},
                       {Kind::classes, 60, 3, 16, false, "accuracy", 0.6333333333333333},
                       {Kind::classes, 60, 3, 16, false, "f1", 0.6217830478700043},
                       {Kind::classes, 60, 3, 16, false, "dice", 0.6217830478700043},
                       {Kind::classes, 60, 3, 16, false, "iou", 0.4545454545454546},
                       {Kind::classes, 50, 6, 17, false, "accuracy", 0.54},
                       {Kind::classes, 50, 6, 17, false, "f1", 0.5437091503267973},
                       {Kind::classes, 50, 6, 17, false, "dice", 0.5437091503267973},
                       {Kind::classes, 50, 6, 17, false, "iou", 0.37902375402375404}};
  for (const auto& row : table) {
    CAPTURE(row.rows);
    CAPTURE(row.columns);
    CAPTURE(row.metric);
    const auto [output, target] = samples(row.kind, row.rows, row.columns, row.seed, row.is_missing);
    const Targets targets{row.kind, row.columns};
    const auto is_right = [&](double value) {
      return std::isnan(row.expected) ? std::isnan(value) : value == doctest::Approx(row.expected).epsilon(1e-12);
    };
    const auto metric = vernier::metric_by_name(row.metric, targets),
               other = vernier::metric_by_name(row.metric, targets);
    for (const std::int64_t batch : {1, 7, 100}) CHECK(is_right(value_of(*metric, output, target, batch)));
    // Two ranks, in float32 and in other forms of the same numbers.
    metric->reset();
    const auto half = row.rows / 2;
    metric->update(output.narrow(0, 0, half), target.narrow(0, 0, half));
    other->update(output.narrow(0, half, row.rows - half), target.narrow(0, half, row.rows - half));
    metric->add(*other->state_dict());
    CHECK(is_right(metric->value().item<double>()));
    if (row.columns == 1) CHECK(is_right(value_of(*metric, output, target.flatten(), 7)));
    if (row.columns == 1) CHECK(is_right(value_of(*metric, output.flatten(), target.flatten(), 7)));
    if (row.kind == Kind::numbers || row.rows % 2 != 0) continue;
    // Pixels of a sample count as samples do.
    const auto wide = [&](const torch::Tensor& all) { return all.view({row.rows / 2, 2, 1, -1}).movedim(-1, 1); };
    if (row.kind == Kind::labels) CHECK(is_right(value_of(*metric, wide(output), wide(target), 7)));
    if (row.kind == Kind::labels || row.metric == std::string("auc")) continue;
    auto left_out = torch::full({row.rows, 2}, -100, torch::kInt64);
    left_out.select(1, 0).copy_(target);
    const auto logits = torch::stack({output, torch::ones_like(output)}, 1).view({row.rows / 2, 4, 1, -1});
    CHECK(is_right(value_of(*metric, logits.movedim(-1, 1), left_out.view({row.rows / 2, 4, 1}), 7)));
  }
}

TEST_CASE("metrics fit what the targets are, or are refused by name") {
  const struct {
    Targets targets;
    std::vector<std::string> usual, refused;
  } cases[] = {{{Kind::classes, 2}, {"accuracy", "f1", "auc"}, {"mae", "ndcg_10", "subset_accuracy"}},
               {{Kind::classes, 3}, {"accuracy", "f1"}, {"auc", "r2"}},
               {{Kind::labels, 1}, {"accuracy", "subset_accuracy", "f1", "auc"}, {"top_5", "perplexity", "mae", "mrr"}},
               {{Kind::labels, 4}, {"accuracy", "subset_accuracy", "f1", "auc"}, {"top_5", "perplexity", "rmse"}},
               {{Kind::numbers, 2}, {"mae", "rmse", "r2"}, {"accuracy", "auc", "f1", "iou", "dice"}},
               {{Kind::ranks, 0}, {"ndcg_10", "mrr"}, {"accuracy", "auc", "mae", "top_1"}},
               {{}, {}, {}}};
  for (const auto& [targets, usual, refused] : cases) {
    std::vector<std::string> names;
    for (const auto& metric : vernier::metrics_by_name({}, targets)) names.push_back(metric->name());
    CHECK(names == usual);
    for (const auto& name : refused) {
      CAPTURE(name);
      CHECK_THROWS_AS(vernier::metric_by_name(name, targets), Error);
    }
  }
  // A metric of two classes does not take labels for classes, whose form is the same.
  for (const char* name : {"auc", "accuracy", "f1"}) {
    CHECK_THROWS_AS(vernier::metric_by_name(name, of(2))->update(torch::rand({4, 2}), torch::ones({4, 2})), Error);
  }
  CHECK_THROWS_AS(vernier::metric_by_name("auc", {Kind::labels, 2})->update(torch::rand({4, 3}), torch::ones({4, 3})),
                  Error);
}

}  // namespace evaluation_test
