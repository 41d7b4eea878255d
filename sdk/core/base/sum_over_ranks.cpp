#include <torch/types.h>
#include <vernier/sum_over_ranks.h>

namespace vernier {

torch::Tensor sum_over_ranks(const Run& run, const torch::Tensor& of_this_rank) {
  const torch::NoGradGuard no_grad;
  if (run.control == nullptr) return of_this_rank.clone();
  State own;
  own.put("sum", of_this_rank);
  auto sum = at::zeros_like(of_this_rank, torch::kCPU);
  for (const auto& state : run.control->gather(own)) sum += state.tensor("sum").to(torch::kCPU);
  return sum.to(of_this_rank.device());
}

}  // namespace vernier
