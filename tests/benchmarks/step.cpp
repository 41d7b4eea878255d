// The time that Vernier adds to a step where only overhead counts: a 32-32-10 network, batches of 8, float32, one
// thread. Bars: the whole step with the default plugins takes no longer than the plain LibTorch loop with LibTorch's
// kernels; four micro-batches take no longer than PyTorch's plain loop (rivals.py).
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <torch/utils.h>
#include <vernier/fused_kernels.h>

#include "compare.h"
#include "plain_loop.h"
#include "vernier_loop.h"

namespace {

// The same work as task/mlp: a shuffled batch by two index_selects, two linear maps, cross-entropy.
PlainLoop plain_loop(int micro_batches = 1) {
  const auto weight1 = torch::randn({32, 32}).mul_(0.1).requires_grad_(), bias1 = torch::zeros({32}).requires_grad_();
  const auto weight2 = torch::randn({10, 32}).mul_(0.1).requires_grad_(), bias2 = torch::zeros({10}).requires_grad_();
  const auto points = torch::randn({1024, 32});
  const auto labels = torch::randint(10, {1024}, torch::kInt64);
  auto order = std::make_shared<torch::Tensor>(torch::randperm(1024));
  auto position = std::make_shared<std::int64_t>(0);
  return PlainLoop(
      {weight1, bias1, weight2, bias2},
      [=] {
        if (*position == 1024) {
          *order = torch::randperm(1024);
          *position = 0;
        }
        const auto numbers = order->narrow(0, *position, 8);
        *position += 8;
        const auto input = points.index_select(0, numbers), target = labels.index_select(0, numbers);
        return at::cross_entropy_loss(at::linear(at::relu(at::linear(input, weight1, bias1)), weight2, bias2), target);
      },
      micro_batches);
}

const std::vector<std::string> mlp = {"task.use=mlp", "task.samples=1024", "task.validation=0.0",
                                      "optimizer.use=adamw"};

std::vector<std::string> with(std::vector<std::string> sets, const std::vector<std::string>& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

// One step with Vernier's kernels, as the runner has them by default, or with LibTorch's.
std::function<void()> with_kernels(bool fused, auto& loop) {
  return [fused, &loop] {
    vernier::use_fused_kernels(fused);
    loop.step();
  };
}

}  // namespace

int main() {
  at::set_num_threads(1);
  torch::manual_seed(1);
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  auto plain = plain_loop();
  VernierLoop bare(mlp);
  VernierLoop usual(with(mlp, {"monitor.progress.every=1000000000"}));
  VernierLoop sure(with(mlp, {"monitor.progress.every=1000000000"}), /*undo_failed_steps=*/false);
  VernierLoop clipped(with(
      mlp, {"callback.clip_norm.max_norm=1.0", "callback.schedule.kind=cosine", "monitor.progress.every=1000000000"}));
  VernierLoop scaled(with(mlp, {"precision.use=fp16", "scaler.use=dynamic"}));
  compare("32-32-10 network, batch 8, float32, one thread",
          {{"plain LibTorch loop, _fused_adamw_", with_kernels(false, plain)},
           {"the same with Vernier's kernels", with_kernels(true, plain)},
           {"Vernier, default roles", with_kernels(true, bare)},
           {"Vernier, default roles, monitor/progress", with_kernels(true, usual)},
           {"the same, fused = false", with_kernels(false, usual)},
           {"the same, undo_failed_steps = false", with_kernels(true, sure)},
           {"Vernier, clip_norm and schedule too", with_kernels(true, clipped)},
           {"Vernier, fp16 and scaler/dynamic", with_kernels(true, scaled)}},
          /*rounds=*/60, /*steps_a_round=*/500);

  auto four = plain_loop(4);
  VernierLoop fixed(with(mlp, {"task.batch_size=32", "accumulation.micro_batches=4"}));
  VernierLoop target(with(mlp, {"accumulation.use=target", "accumulation.target_effective_batch_size=32"}));
  VernierLoop fit(with(mlp, {"task.batch_size=32", "accumulation.use=fit", "accumulation.largest=8"}));
  compare("the same, updates of 4 micro-batches of 8",
          {{"plain LibTorch loop, 4 batches, _fused_adamw_", with_kernels(false, four)},
           {"Vernier, accumulation/fixed", with_kernels(true, fixed)},
           {"Vernier, accumulation/target", with_kernels(true, target)},
           {"Vernier, accumulation/fit", with_kernels(true, fit)}},
          /*rounds=*/60, /*steps_a_round=*/150);
}
