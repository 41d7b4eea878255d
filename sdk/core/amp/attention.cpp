#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/types.h>
#include <vernier/attention.h>

#include <cmath>
#include <limits>

namespace vernier {

torch::Tensor attention_by_matmul(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                                  const torch::Tensor& mask, double dropout, bool is_causal,
                                  std::optional<double> scale) {
  constexpr double nothing = -std::numeric_limits<double>::infinity();
  const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
  auto scores = at::matmul(query * factor, key.transpose(-2, -1));
  if (is_causal) {
    // Row i looks at the columns up to i.
    scores = scores + at::full({query.size(-2), key.size(-2)}, nothing, scores.options()).triu(1);
  }
  if (mask.defined()) {
    scores = scores + (mask.scalar_type() == torch::kBool ? at::zeros({}, scores.options()).where(mask, nothing)
                                                          : mask.to(scores.scalar_type()));
  }
  // A mask may leave a row nothing to look at, which is then 0, as in PyTorch.
  auto weights = mask.defined() ? at::_safe_softmax(scores, -1) : at::softmax(scores, -1);
  if (dropout > 0) weights = at::dropout(weights, dropout, true);
  return at::matmul(weights, value);
}

}  // namespace vernier
