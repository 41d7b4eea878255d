// Divides the gradients of a run by its loss scale, for plugins of the role `scaler`.
#pragma once

#include <vernier/run.h>

namespace vernier {

// For Scaler::unscale, by any rule. One pass reads the run's gradients and sets run.found_inf. If all gradients are
// float32, the optimizer divides them (run.grad_scale); else this divides them at once, as unscale_gradients_() does.
VERNIER_API void unscale(Run& run, const torch::Tensor& scale);

}  // namespace vernier
