#include <doctest/doctest.h>
#include <torch/types.h>

#include <set>

#include "loaded_task.h"

namespace mlp_test {

using vernier::Batch;
using vernier::Table;

TEST_CASE("mlp: layers have the widths that the options give") {
  const LoadedTask mlp("mlp", {{"inputs", value(5)}, {"hidden", list<int>({7, 6})}, {"classes", value(3)}});
  CHECK(has_shape(mlp.parameter("layers.0.weight"), {7, 5}));
  CHECK(has_shape(mlp.parameter("layers.1.weight"), {6, 7}));
  CHECK(has_shape(mlp.parameter("layers.2.weight"), {3, 6}));
  CHECK(has_shape(mlp.parameter("layers.2.bias"), {3}));
  CHECK(mlp.run.parameters.size() == 6);
  const LoadedTask linear("mlp", {{"hidden", list<int>({})}});
  CHECK(linear.run.parameters.size() == 2);
}

TEST_CASE("mlp: with recompute the gradients have the same bits") {
  std::vector<torch::Tensor> gradients;
  for (const char* recompute : {"none", "full", "selective"}) {
    const LoadedTask mlp("mlp", {{"hidden", list<int>({16, 8})}, {"recompute", value(recompute)}});
    mlp->loss(mlp->next()).backward();
    for (const auto& parameter : mlp.run.parameters) gradients.push_back(parameter.model.grad());
  }
  REQUIRE(gradients.size() == 18);
  for (std::size_t i = 0; i < 18; ++i) CHECK(torch::equal(gradients[i], gradients[i % 6]));
}

TEST_CASE("mlp: an epoch holds each point once") {
  const LoadedTask mlp("mlp", {{"samples", value(100)}, {"validation", value(0.2)}});
  CHECK(mlp->batches_per_epoch() == 10);
  std::set<float> seen;
  std::int64_t samples = 0;
  for (int i = 0; i < 10; ++i) {
    const Batch batch = mlp->next();
    CHECK(has_shape(batch.tensors[0], {batch.samples, 32}));
    CHECK(has_shape(batch.tensors[1], {batch.samples}));
    samples += batch.samples;
    for (std::int64_t row = 0; row < batch.samples; ++row) seen.insert(batch.tensors[0][row][0].item<float>());
  }
  CHECK(samples == 80);
  CHECK(seen.size() == 80);
}

TEST_CASE("mlp: a seed gives one data set, one start and one order, save and load go on in it") {
  const LoadedTask first("mlp", {}, 3), second("mlp", {}, 3), other("mlp", {}, 4);
  CHECK(torch::equal(first.parameter("layers.0.weight"), second.parameter("layers.0.weight")));
  CHECK_FALSE(torch::equal(first.parameter("layers.0.weight"), other.parameter("layers.0.weight")));
  for (int i = 0; i < 200; ++i) {
    const Batch one = first->next(), two = second->next();
    REQUIRE(torch::equal(one.tensors[0], two.tensors[0]));
    REQUIRE(torch::equal(one.tensors[1], two.tensors[1]));
  }
  const LoadedTask resumed("mlp", {}, 3);
  resumed->load(first->save());
  for (int i = 0; i < 200; ++i) REQUIRE(torch::equal(first->next().tensors[0], resumed->next().tensors[0]));
}

TEST_CASE("mlp: plain gradient descent learns to tell the points apart") {
  LoadedTask mlp("mlp", {{"noise", value(0.5)}});
  const double before = mlp.validate();
  for (int step = 0; step < 400; ++step) mlp.descend(mlp->next(), 0.1);
  CHECK(mlp.validate() < before / 10);
  CHECK(*mlp.run.metrics.value("accuracy") > 0.95);
}

TEST_CASE("mlp: computes in the dtype of its weights") {
  const LoadedTask mlp("mlp");
  mlp.run.model->to(torch::kBFloat16);
  CHECK((mlp->loss(mlp->next()).scalar_type() == torch::kBFloat16));
}

TEST_CASE("mlp: without held-out points nothing is validated") {
  LoadedTask mlp("mlp", {{"validation", value(0)}});
  CHECK(mlp.validate() == -1.0);
}

TEST_CASE("mlp: refuses a batch that the points do not fill") {
  const auto reason = refusal([] { const LoadedTask mlp("mlp", {{"samples", value(10)}, {"batch_size", value(10)}}); });
  CHECK(contains(reason, "test.toml:2: task/mlp: `samples` leaves 9 to train on, less than a batch_size of 10"));
}

TEST_CASE("mlp: refuses sizes that no memory holds, at their place in the file") {
  for (const char* key : {"inputs", "classes", "samples", "batch_size"}) {
    const auto reason = refusal([&] {
      const LoadedTask mlp("mlp", {{key, value(std::int64_t{9000000000000000000})}});
    });
    CHECK(contains(reason, "test.toml:2: task/mlp: `" + std::string(key) + "` must be "));
  }
  const auto hidden = [](std::int64_t width) {
    return refusal([&] { const LoadedTask mlp("mlp", {{"hidden", list<std::int64_t>({8, width})}}); });
  };
  CHECK(hidden(8).empty());
  CHECK(contains(hidden(std::int64_t{1} << 40), "test.toml:2: task/mlp: `hidden` must be "));
}

}  // namespace mlp_test
