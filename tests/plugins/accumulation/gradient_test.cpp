// The gradient of any split is the whole batch's.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <doctest/doctest.h>

#include <random>

#include "thrown.h"
#include "toy_run.h"

namespace gradient_test {

using toy::Toy;
using vernier::Accumulation;
using vernier::Batch;
using vernier::Table;

namespace {

constexpr std::int64_t padding = -100, words = 11, width = 7;

class Words final : public torch::nn::Module {
 public:
  explicit Words(torch::ScalarType dtype) {
    torch::manual_seed(5);
    table = register_parameter("table", torch::randn({words, width}, dtype));
    weight = register_parameter("weight", torch::randn({words, width}, dtype));
  }
  torch::Tensor table, weight;
};

// Sentences of random lengths, filled up with padding. Its loss is the mean over the words that are there.
class Sentences final : public vernier::Task {
 public:
  Sentences(torch::ScalarType dtype, std::int64_t samples, std::uint32_t seed, bool has_empty) : dtype_(dtype) {
    set_id("task/sentences");
    std::mt19937 random(seed);
    constexpr std::int64_t longest = 9;
    auto from = torch::zeros({samples, longest}, torch::kInt64), to = torch::full({samples, longest}, padding);
    for (std::int64_t i = 0; i < samples; ++i) {
      const auto length = static_cast<std::int64_t>(random() % longest) + (has_empty ? 0 : 1);
      for (auto k = i * longest; k < i * longest + length; ++k) {
        from.data_ptr<std::int64_t>()[k] = static_cast<std::int64_t>(random() % words);
        to.data_ptr<std::int64_t>()[k] = static_cast<std::int64_t>(random() % words);
      }
    }
    batch_ = {{from, to}, samples, 0};
  }
  void prepare(vernier::Run& run) override { run.set_model(model_ = std::make_shared<Words>(dtype_)); }
  Batch next() override { return batch_; }
  std::int64_t batches_per_epoch() const override { return 1; }
  torch::Tensor loss(const Batch& micro_batch) override {
    const auto scores = at::linear(at::tanh(at::embedding(model_->table, micro_batch.tensors[0])), model_->weight);
    return at::cross_entropy_loss(scores.flatten(0, 1), micro_batch.tensors[1].flatten(), {}, at::Reduction::Mean,
                                  padding);
  }

 private:
  torch::ScalarType dtype_;
  std::shared_ptr<Words> model_;
  Batch batch_;
};

// A mean over samples.
class Points final : public vernier::Task {
 public:
  Points(torch::ScalarType dtype, std::int64_t samples) : dtype_(dtype) {
    set_id("task/points");
    torch::manual_seed(samples);
    batch_ = {{torch::randn({samples, 3}, dtype), torch::randn({samples, 2}, dtype)}, samples, 0};
  }
  void prepare(vernier::Run& run) override {
    run.set_model(model_ = std::make_shared<toy::Model>());
    model_->to(dtype_);
  }
  Batch next() override { return batch_; }
  std::int64_t batches_per_epoch() const override { return 1; }
  torch::Tensor loss(const Batch& micro_batch) override {
    return at::mse_loss(model_->forward(micro_batch.tensors[0]), micro_batch.tensors[1]);
  }

 private:
  torch::ScalarType dtype_;
  std::shared_ptr<toy::Model> model_;
  Batch batch_;
};

// The trainer's own sum, before anything uses it.
std::vector<torch::Tensor> gradients(std::unique_ptr<vernier::Task> task, std::unique_ptr<Accumulation> accumulation) {
  Toy toy;
  toy.wiring.task = std::move(task);
  toy.wiring.accumulation = std::move(accumulation);
  toy.prepare().step().step(toy.run, vernier::Step::Until::gradients);
  return toy.run.gradients();
}

Table table(std::initializer_list<std::pair<const char*, std::int64_t>> numbers, bool by_tokens) {
  Table all;
  for (const auto& [key, number] : numbers) all[key] = {number, ""};
  if (by_tokens) all["weight"] = {std::string("tokens"), ""};
  return all;
}

// Relative to the gradient as a whole.
double difference(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  double difference = 0, size = 0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]).to(torch::kFloat64).square().sum().item<double>();
    size += b[i].to(torch::kFloat64).square().sum().item<double>();
  }
  return std::sqrt(difference / size);
}

}  // namespace

TEST_CASE("accumulation: 1 to 64 micro-batches, even and uneven, by samples: the whole batch's gradient") {
  for (const auto& [dtype, most] : {std::pair{torch::kFloat64, 1e-12}, std::pair{torch::kFloat32, 1e-6}}) {
    for (const std::int64_t samples : {64, 77, 130}) {
      const auto task = [&, dtype = dtype] { return std::make_unique<Points>(dtype, samples); };
      const auto whole = gradients(task(), make_plugin<Accumulation>("accumulation/fixed"));
      for (std::int64_t micro_batches = 1; micro_batches <= 64; ++micro_batches) {
        CAPTURE(samples);
        CAPTURE(micro_batches);
        const auto split = gradients(
            task(), make_plugin<Accumulation>("accumulation/fixed", table({{"micro_batches", micro_batches}}, false)));
        CHECK(difference(split, whole) < most);
      }
      for (const std::int64_t size : {1, 3, 50, 63}) {
        CAPTURE(size);
        const auto split = gradients(
            task(), make_plugin<Accumulation>("accumulation/fixed", table({{"micro_batch_size", size}}, false)));
        CHECK(difference(split, whole) < most);
      }
    }
  }
}

TEST_CASE("accumulation: by tokens, padding not counted, empty samples and empty micro-batches among them") {
  for (const auto& [dtype, most] : {std::pair{torch::kFloat64, 1e-12}, std::pair{torch::kFloat32, 1e-6}}) {
    for (const std::int64_t samples : {64, 71}) {
      const auto task = [&, dtype = dtype] {
        return std::make_unique<Sentences>(dtype, samples, static_cast<std::uint32_t>(samples), true);
      };
      const auto whole = gradients(task(), make_plugin<Accumulation>("accumulation/fixed"));
      bool was_wrong_by_samples = false;
      for (std::int64_t micro_batches = 1; micro_batches <= 64; ++micro_batches) {
        CAPTURE(micro_batches);
        const auto split = gradients(
            task(), make_plugin<Accumulation>("accumulation/fixed", table({{"micro_batches", micro_batches}}, true)));
        CHECK(difference(split, whole) < most);
      }
      const auto by_samples =
          gradients(task(), make_plugin<Accumulation>("accumulation/fixed", table({{"micro_batches", 4}}, false)));
      was_wrong_by_samples = difference(by_samples, whole) > 1e-3;
      CHECK(was_wrong_by_samples);
    }
  }
}

TEST_CASE("accumulation: a column of the batch that does not exist, or has no token, is refused in one line") {
  const auto train = [](const Table& options, bool all_padding) {
    Toy toy;
    toy.wiring.task = std::make_unique<Sentences>(torch::kFloat32, 8, 3, all_padding);
    if (all_padding) {
      toy.on(vernier::Event::StepBegin, [&](vernier::Run&) { toy.wiring.task->next().tensors[1].fill_(padding); });
    }
    toy.wiring.accumulation = make_plugin<Accumulation>("accumulation/fixed", options);
    toy.prepare().train(toy.run);
  };
  CHECK(thrown_by([&] {
          train(table({{"weight_column", 2}}, true), false);
        }) ==
        configuration(
            "accumulation/fixed in step 1: weight_column = 2 does not exist: the task's batches have 2 tensors, 0 to 1 "
            "or -1 to -2"));
  CHECK(thrown_by([&] { train(table({}, true), true); }).text ==
        "accumulation/fixed in step 1: nothing in the batch has a weight: its samples are all padding");
  CHECK(thrown_by([&] {
          make_plugin<Accumulation>("accumulation/fixed", table({{"padding", 0}}, false));
        }).text == "accumulation/fixed: `padding` is for weight = \"tokens\"");
  const auto both = table({{"micro_batches", 2}, {"micro_batch_size", 2}}, false);
  CHECK(thrown_by([&] { make_plugin<Accumulation>("accumulation/fixed", both); }).text ==
        "accumulation/fixed: `micro_batch_size` and `micro_batches` say the same; give one");
}

}  // namespace gradient_test
