// A GPT step in Vernier against the plain LibTorch loop over the same network. Bar: 1.01 times.
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/utils.h>
#include <vernier/autocast.h>

#include "compare.h"
#include "plain_loop.h"
#include "task/gpt/model.h"
#include "vernier_loop.h"

namespace {

gpt::Shape shape() {
  gpt::Shape shape;
  shape.layers = 4, shape.heads = 4, shape.width = 128, shape.context = 128;
  return shape;
}

// Windows as the task's: taken from bytes, then widened.
PlainLoop plain_loop(bool bf16) {
  auto network = std::make_shared<gpt::Network>(shape(), 1);
  const auto bytes = torch::randint(256, {200'000}, torch::kUInt8);
  auto optimized = network->parameters();
  return PlainLoop(optimized, [network, bytes, bf16] {
    const auto starts = torch::randint(bytes.numel() - 129, {8}, torch::kInt64);
    const auto windows = bytes.index({starts.unsqueeze(1) + torch::arange(129)}).to(torch::kInt64);
    const vernier::Autocast autocast(torch::kCPU, torch::kBFloat16, bf16);
    const auto logits = network->forward(windows.narrow(1, 0, 128));
    return at::cross_entropy_loss(logits.view({-1, 256}), windows.narrow(1, 1, 128).reshape(-1));
  });
}

}  // namespace

int main() {
  torch::manual_seed(1);
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  for (const bool bf16 : {false, true}) {
    auto plain = plain_loop(bf16);
    VernierLoop ours(gpt_configuration(4, 8, {bf16 ? "precision.use=bf16" : "precision.use=fp32"}));
    compare(bf16 ? "GPT, 4 layers of 128, 8 windows of 128, bf16" : "GPT, 4 layers of 128, 8 windows of 128, fp32",
            {{"plain LibTorch loop, _fused_adamw_", [&] { plain.step(); }}, {"Vernier", [&] { ours.step(); }}},
            /*rounds=*/30, /*steps_a_round=*/4);
  }
}
