// The layers and operations of a model that mixed precision leaves in float32.
//
//   for (const auto& finding : vernier::check_amp_compatibility(*model, [&] { model->forward(input); })) {
//     std::cout << finding.layer << ": " << finding.why << '\n';  // ln: autocast computes layer_norm in float32
//   }
#pragma once

#include <c10/core/ScalarType.h>
#include <vernier/abi.h>

#include <functional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace vernier {

struct AmpFinding {
  std::string layer;  // its dotted name; "": an operation without weights, such as a loss
  std::string why;
  bool operator==(const AmpFinding&) const = default;
};

// Calls `forward` once, without gradients, under autocast in `dtype` on the device of the model's first parameter.
// Returns, each once:
//   - what autocast computes in float32 though its input has 16 bits, and layers whose output is as wide as their
//   weight;
//   - weights that stay wide at the levels O2 and O3 too: those of batch and instance norms, and float64.
// An empty result: all is in 16 bits. Throws Error for a dtype but bfloat16 and float16, and what `forward` throws.
VERNIER_API std::vector<AmpFinding> check_amp_compatibility(const torch::nn::Module& model,
                                                            const std::function<void()>& forward,
                                                            c10::ScalarType dtype = c10::kBFloat16);

}  // namespace vernier
