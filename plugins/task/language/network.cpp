#include "network.h"

#include <ATen/CPUGeneratorImpl.h>

namespace language {

void draw_weights(torch::nn::Module& model, std::uint64_t seed,
                  const std::function<double(const std::string& name)>& deviation) {
  const torch::NoGradGuard no_grad;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (auto& parameter : model.named_parameters()) {
    if (parameter.value().dim() != 2) continue;
    parameter.value().normal_(0.0, deviation(parameter.key()), generator);
  }
}

}  // namespace language
