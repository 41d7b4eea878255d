#include <ATen/autocast_mode.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <vernier/add_norm.h>

#include <optional>

#include "gpu/gpu_norms.h"
#include "trace/interception.h"

namespace vernier {

AddedNorm add_norm(const torch::Tensor& x, const torch::Tensor& branch, const NormOptions& options) {
  if (x.is_cuda() && x.scalar_type() == at::kFloat && at::autocast::is_autocast_enabled(at::kCUDA) &&
      !is_changed(options.weight)) {
    const NormInput input{x,
                          options.weight,
                          options.bias,
                          x.size(-1),
                          options.eps,
                          options.is_rms,
                          at::autocast::get_autocast_dtype(at::kCUDA),
                          branch};
    if (const auto* const library = library_for(input); library != nullptr) {
      const auto normed = norm_with_gradients(*library, input);
      return {branch.defined() ? normed.sum : x, normed.y};
    }
  }
  const auto sum = branch.defined() ? x + branch : x;
  const auto given = [](const torch::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  if (options.is_rms) return {sum, at::rms_norm(sum, x.size(-1), given(options.weight), options.eps)};
  return {sum, at::layer_norm(sum, x.size(-1), given(options.weight), given(options.bias), options.eps)};
}

}  // namespace vernier
