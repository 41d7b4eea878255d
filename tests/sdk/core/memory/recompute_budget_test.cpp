#include <ATen/ops/linear.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>
#include <vernier/memory_ledger.h>
#include <vernier/recompute_budget.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "thrown.h"

namespace recompute_budget_test {

using torch::Tensor;
using vernier::BudgetedBlocks;
using vernier::ForwardBytes;
using vernier::Keep;

namespace {

// Forward and backward block by block, with those computed again whose bit is set.
std::int64_t peak_by_hand(const ForwardBytes& bytes, unsigned chosen) {
  const auto left_by = [&](std::int64_t block) { return chosen >> block & 1 ? bytes.recomputed : bytes.kept; };
  std::int64_t now = bytes.outside, peak = 0;
  for (std::int64_t block = 0; block < bytes.blocks; ++block) now += left_by(block);
  peak = now;
  for (std::int64_t block = bytes.blocks - 1; block >= 0; --block) {
    if (chosen >> block & 1) peak = std::max(peak, now + bytes.kept);
    now -= left_by(block);
  }
  return peak;
}

// Blocks that keep what tanh returned, and a loss.
struct Net final : torch::nn::Module {
  Net(std::int64_t width, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      weights.push_back(register_parameter("w" + std::to_string(i), torch::randn({width, width})));
    }
  }
  Tensor block(std::size_t i, const Tensor& x) const {
    return at::linear(at::linear(x, weights[i]).tanh().cos(), weights[i]);
  }
  Tensor loss(const Tensor& input, BudgetedBlocks* blocks) const {
    const auto body = [&] {
      auto x = input;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const auto one = [this, i](const Tensor& y) { return block(i, y); };
        x = blocks != nullptr ? blocks->block(static_cast<std::int64_t>(i), one, x) : one(x);
      }
      return x.square().mean();
    };
    return blocks != nullptr ? blocks->forward(input.size(0), torch::kCPU, body) : body();
  }
  void forget_gradients() const {
    for (auto weight : weights) weight.mutable_grad().reset();
  }
  std::vector<Tensor> weights;
};

}  // namespace

TEST_CASE("recompute budget: as few blocks as any choice of them needs") {
  std::mt19937 random(5);
  const auto draw = [&random](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random);
  };
  int impossible = 0;
  for (int i = 0; i < 2000; ++i) {
    ForwardBytes bytes{.blocks = draw(1, 8), .kept = draw(1, 100), .recomputed = draw(1, 60), .outside = draw(0, 200)};
    const auto budget = draw(1, bytes.outside + (bytes.blocks + 1) * bytes.kept);
    CAPTURE(bytes.blocks);
    CAPTURE(bytes.kept);
    CAPTURE(bytes.recomputed);
    CAPTURE(bytes.outside);
    CAPTURE(budget);
    std::optional<std::int64_t> fewest;
    for (unsigned chosen = 0; chosen < 1U << bytes.blocks; ++chosen) {
      const auto count = static_cast<std::int64_t>(__builtin_popcount(chosen));
      if (peak_by_hand(bytes, chosen) <= budget && (!fewest || count < *fewest)) fewest = count;
    }
    CHECK(vernier::blocks_to_recompute(bytes, budget) == fewest);
    impossible += fewest ? 0 : 1;
    for (std::int64_t count = 0; count <= bytes.blocks; ++count) {
      CHECK(vernier::peak_activations(bytes, count) == peak_by_hand(bytes, (1U << count) - 1));
    }
  }
  CHECK(impossible > 100);
  CHECK(impossible < 1900);
}

TEST_CASE("recompute budget: a pass is measured while it is trained on, within a ledger too") {
  constexpr std::int64_t width = 16, rows = 32, matrix = rows * width * 4;
  torch::manual_seed(1);
  for (const std::size_t count : {1, 2, 5}) {
    const Net net(width, count);
    for (const auto keep : {Keep::inputs, Keep::matmuls}) {
      std::vector<ForwardBytes> measured;
      BudgetedBlocks blocks(static_cast<std::int64_t>(count), keep, [&](const ForwardBytes& bytes) {
        measured.push_back(bytes);
        return std::int64_t{0};
      });
      const auto input = torch::randn({rows, width});
      const auto gradients = [&](BudgetedBlocks* some) {
        net.loss(input, some).backward();
        std::vector<Tensor> all;
        for (const auto& weight : net.weights) all.push_back(weight.grad());
        net.forget_gradients();
        return all;
      };
      const auto same = [](const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
        return std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) { return x.equal(y); });
      };
      const auto plain = gradients(nullptr);
      vernier::MemoryLedger ledger(net);
      ledger.begin_forward();
      const auto loss = net.loss(input, &blocks);
      ledger.begin_backward();
      loss.backward();
      const auto use = ledger.stop();
      REQUIRE(measured.size() == 1);
      const auto& bytes = measured.front();
      CHECK(bytes.blocks == static_cast<std::int64_t>(count));
      // The product that goes into tanh is saved by nobody; its result and cos's are, and the block's output is there.
      CHECK(bytes.kept == 3 * matrix);
      if (count > 1) CHECK(bytes.recomputed == (keep == Keep::inputs ? matrix : 2 * matrix));
      CHECK(bytes.outside == 4);  // the loss; the last block's output is the block's
      CHECK(use.bytes("activations") + 4 == vernier::peak_activations(bytes, static_cast<std::int64_t>(count) - 1));
      net.forget_gradients();
      CHECK(same(gradients(&blocks), plain));
      CHECK(measured.size() == 1);  // the budget was measured for this size
    }
  }
}

TEST_CASE("recompute budget: a larger pass is measured again, a smaller one and one without gradients not") {
  const Net net(4, 3);
  std::vector<std::int64_t> sizes;
  BudgetedBlocks blocks(3, Keep::inputs, [&](const ForwardBytes& bytes) {
    sizes.push_back(bytes.kept / (3 * 4 * 4));
    return std::int64_t{1};
  });
  const auto pass = [&](std::int64_t rows) { net.loss(torch::randn({rows, 4}), &blocks).backward(); };
  for (const std::int64_t rows : {4, 2, 4, 8, 8, 1}) pass(rows);
  {
    const torch::NoGradGuard no_grad;
    net.loss(torch::randn({16, 4}), &blocks);
  }
  CHECK(sizes == std::vector<std::int64_t>{4, 8});
  blocks.forget();
  pass(2);
  CHECK(sizes.back() == 2);
}

TEST_CASE("recompute budget: what the choice or the network throws passes, and the next pass is measured") {
  const Net net(4, 3);
  bool refuses = true;
  int asked = 0;
  BudgetedBlocks blocks(3, Keep::inputs, [&](const ForwardBytes&) {
    ++asked;
    if (refuses) throw std::runtime_error("too little");
    return std::int64_t{0};
  });
  const auto pass = [&](std::int64_t width) { net.loss(torch::randn({2, width}), &blocks).backward(); };
  CHECK(says(thrown_by([&] { pass(4); }).text, "too little"));
  refuses = false;
  CHECK(thrown_by([&] { pass(5); }).kind != 0);  // a shape that does not fit
  CHECK(asked == 1);
  CHECK(thrown_by([&] { pass(4); }) == Thrown{});
  CHECK(asked == 2);
}

}  // namespace recompute_budget_test
