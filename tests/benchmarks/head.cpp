// The head of a language model over 128,000 words, forward and backward, one thread: all logits at once, as at::linear
// and at::cross_entropy_loss compute them, against vernier/linear_cross_entropy.h. Memory: the most at one moment
// beside features, weight and their gradients. Bars: memory at most 1/8, time at most 1.05.
//
//   head [--check] [tokens width]     --check: exits with 1 where a bar is missed; 512 and 512 by default
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/autocast.h>
#include <vernier/fused_kernels.h>
#include <vernier/linear_cross_entropy.h>
#include <vernier/matmul.h>
#include <vernier/memory.h>

#include <cstdlib>
#include <optional>
#include <string_view>

#include "compare.h"

namespace {

constexpr std::int64_t words = 128'000;
constexpr double memory_bar = 1.0 / 8, time_bar = 1.05;

struct Head {
  torch::Tensor features, weight, target;

  Head(std::int64_t tokens, std::int64_t width)
      : features(at::randn({tokens, width}).requires_grad_()),
        weight((at::randn({words, width}) * 0.02).requires_grad_()),
        target(at::randint(words, {tokens}, torch::kInt64)) {}

  void step(bool in_chunks, torch::ScalarType dtype) const {
    torch::Tensor loss;
    {
      const vernier::Autocast autocast(torch::kCPU, dtype, dtype != torch::kFloat32);
      loss = in_chunks ? vernier::linear_cross_entropy(features, weight, target)
                       : at::cross_entropy_loss(at::linear(features, weight).to(torch::kFloat32), target);
    }
    loss.backward();
    features.mutable_grad() = weight.mutable_grad() = torch::Tensor();
  }

  // The peak of a step. Without the weight's gradient, that of logits and what is made of them.
  double bytes(bool in_chunks, torch::ScalarType dtype, bool trains_weight) {
    weight.requires_grad_(trains_weight);
    const auto before = vernier::allocated_memory(torch::kCPU).now;
    vernier::reset_peak_memory(torch::kCPU);
    step(in_chunks, dtype);
    weight.requires_grad_(true);
    return static_cast<double>(vernier::allocated_memory(torch::kCPU).peak - before);
  }
};

bool is_met(const char* what, double value, double bar) {
  std::printf("  %s  %s: %.3f, at most %.3f\n", value <= bar ? "met   " : "MISSED", what, value, bar);
  return value <= bar;
}

}  // namespace

int main(int argc, char** argv) {
  const bool checks = argc > 1 && std::string_view(argv[1]) == "--check";
  const int first = checks ? 2 : 1;
  if (argc != first && argc != first + 2) {
    std::fprintf(stderr, "head [--check] [tokens width]\n");
    return 2;
  }
  vernier::use_matmul();
  vernier::use_fused_kernels();
  vernier::count_memory(torch::kCPU);
  at::set_num_threads(1);
  const auto number = [&](int i) { return argc == first ? 512 : std::atoll(argv[first + i]); };
  const auto tokens = number(0), width = number(1);
  Head head(tokens, width);
  bool is_missed = false;
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    const auto rival = [&](const char* name, bool in_chunks) {
      return Rival{name, [&head, in_chunks, dtype] { head.step(in_chunks, dtype); }};
    };
    const auto rivals =
        compare(c10::str(tokens, " tokens of ", width, ", ", dtype).c_str(),
                {rival("all logits", false), rival("in chunks", true)}, /*rounds=*/7, /*steps_a_round=*/1);
    const double whole = head.bytes(false, dtype, false), part = head.bytes(true, dtype, false);
    std::printf("  MB: %.1f and %.1f; with the weight's gradient %.1f and %.1f\n", whole / 1e6, part / 1e6,
                head.bytes(false, dtype, true) / 1e6, head.bytes(true, dtype, true) / 1e6);
    is_missed |= !is_met("memory", part / whole, memory_bar);
    is_missed |= !is_met("time", rivals[1].ratio(rivals[0]), time_bar);
  }
  return checks && is_missed ? 1 : 0;
}
