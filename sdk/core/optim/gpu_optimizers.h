// Calls the library of CUDA kernels for the lists of an optimizer, and for gradients. With a library that was compiled
// for the host, all of it works on CPU tensors. No host sync.
#pragma once

#include <vernier/grad_norm.h>

#include <string>

#include "gpu/gpu_library.h"
#include "optim/optim_rule.h"

namespace vernier {

// The kernels for a parameter, or nullptr.
inline const gpu::Library* gpu_kernels_for(const torch::Tensor& parameter) {
  return parameter.scalar_type() == torch::kFloat32 ? gpu_library(parameter.device()) : nullptr;
}

// Parameters are float32 on one device; the other arguments are those of UpdateRule::apply.
VERNIER_API void adam_on_gpu(const gpu::Library& library, const gpu::AdamOptions& options, AdamState kept_in,
                             std::uint64_t seed, const UpdateLists& lists, const MaybeTensor& grad_scale,
                             const MaybeTensor& found_inf);
VERNIER_API void lion_on_gpu(const gpu::Library& library, const gpu::LionOptions& options, const UpdateLists& lists,
                             const MaybeTensor& grad_scale, const MaybeTensor& found_inf);
VERNIER_API void sgd_on_gpu(const gpu::Library& library, const gpu::SGDOptions& options, const UpdateLists& lists,
                            const MaybeTensor& grad_scale, const MaybeTensor& found_inf);

// inspect_gradients() for gradients of which can_inspect() is true; not an empty list.
VERNIER_API Inspected inspect_on_gpu(const gpu::Library& library, const std::vector<torch::Tensor>& gradients);

// Rounds each master into its bfloat16 weight, in memory layouts that are the same. The chunks of the weights' random
// numbers follow each other. skip: undefined, or float32 0-dim; nothing changes unless it is 0.
struct HalfWeight {
  torch::Tensor master, weight;
  torch::Tensor compensation;  // bfloat16, for Kahan's rounding
  std::uint64_t first_chunk;   // first chunk of its random numbers (optim/stochastic_rounding.h)
};
VERNIER_API void round_with_kahan_on_gpu(const gpu::Library& library, const std::vector<HalfWeight>& weights,
                                         const torch::Tensor& skip);
VERNIER_API void round_at_random_on_gpu(const gpu::Library& library, const std::vector<HalfWeight>& weights,
                                        std::uint64_t seed, std::uint64_t draw);

VERNIER_API gpu::AdamOptions gpu_options(const AdamOptions& options, double lr);
VERNIER_API gpu::AdamOptions gpu_options(const AdamWOptions& options, double lr);
VERNIER_API gpu::LionOptions gpu_options(const LionOptions& options, double lr);
VERNIER_API gpu::SGDOptions gpu_options(const SGDOptions& options, double lr);

}  // namespace vernier
