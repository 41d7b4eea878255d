// The rival of the startup benchmark: a LibTorch program that trains the 32-32-10 network for one step and ends.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>

#include "plain_loop.h"

int main() {
  const auto weight1 = torch::randn({32, 32}).requires_grad_(), bias1 = torch::zeros({32}).requires_grad_();
  const auto weight2 = torch::randn({10, 32}).requires_grad_(), bias2 = torch::zeros({10}).requires_grad_();
  const auto input = torch::randn({8, 32});
  const auto target = torch::randint(10, {8}, torch::kInt64);
  PlainLoop loop({weight1, bias1, weight2, bias2}, [&] {
    return at::cross_entropy_loss(at::linear(at::relu(at::linear(input, weight1, bias1)), weight2, bias2), target);
  });
  loop.step();
}
