#include "stored.h"

#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/control.h>
#include <vernier/roles.h>

namespace formats {

using torch::Tensor;
using vernier::Draw;
using vernier::Rounding;
using vernier::ScaleBlock;
using vernier::TensorFormat;

namespace {

constexpr const char* option = "optimizer_state";

// Names of a state's entries are those of plugins and parameters: "plugin/optimizer/adamw/layers.0.weight/exp_avg".
vernier::Tensors averages_in(const vernier::State& snapshot) {
  const std::string prefix = "plugin/optimizer/";
  vernier::Tensors found;
  for (auto at = snapshot.tensors.lower_bound(prefix); at != snapshot.tensors.end(); ++at) {
    if (!at->first.starts_with(prefix)) break;
    if (at->second.dim() > 0) found.emplace(at->first.substr(at->first.find('/', prefix.size()) + 1), at->second);
  }
  return found;
}

}  // namespace

std::uint64_t drawn_seed() {
  return static_cast<std::uint64_t>(at::empty({}, at::kLong).random_().item<std::int64_t>());
}

Draw drawn(Draw draw) {
  if (draw.rounding != Rounding::stochastic) return draw;
  draw.seed = drawn_seed();
  return draw;
}

bool is_float(const Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return dtype == torch::kFloat32 || dtype == torch::kBFloat16 || dtype == torch::kFloat16;
}

void round_stored(Tensor tensor, const TensorFormat& format, const Draw& draw) {
  if (tensor.numel() == 0) return;
  const auto block = format.block > 0 ? ScaleBlock{1, format.block} : vernier::per_tensor;
  const auto rows = tensor.dim() < 2 ? 1 : tensor.size(0);
  tensor.copy_(vernier::round_to(tensor.reshape({rows, -1}), format, block, draw).view(tensor.sizes()));
}

vernier::Contradiction StoredAverages::contradicts(const vernier::Plugin& other) const {
  const auto* optimizer = dynamic_cast<const vernier::Optimizer*>(&other);
  if (optimizer == nullptr || optimizer->updates_each_alone()) return {};
  return {option, "is for optimizers that keep averages of each parameter, as adamw does, and " + other.id() +
                      " does not; leave it out"};
}

void StoredAverages::round(vernier::Run& run, const Draw& draw,
                           const std::function<bool(const std::string&)>& wanted) const {
  if (run.control == nullptr) options_.refuse(option, "needs a trainer, and there is none");
  const torch::NoGradGuard no_grad;
  const auto averages = averages_in(run.control->snapshot());
  if (averages.empty()) {
    options_.refuse(option, "has nothing to round, because the optimizer keeps no averages; leave it out");
  }
  auto seeded = drawn(draw);
  const auto seed = seeded.seed;
  for (std::size_t i = 0; i < run.parameters.size(); ++i) {
    const auto prefix = run.parameters[i].name + "/";
    std::uint64_t place = i * 64;
    for (auto at = averages.lower_bound(prefix); at != averages.end() && at->first.starts_with(prefix); ++at) {
      if (at->second.scalar_type() != torch::kFloat32) {
        options_.refuse(option, c10::str("rounds averages in float32, and the optimizer keeps '", at->first, "' in ",
                                         at->second.scalar_type(), "; write state = \"float32\" in [optimizer]"));
      }
      seeded.seed = seed + place++;
      if (wanted(run.parameters[i].name)) round_stored(at->second, format_, seeded);
    }
  }
}

}  // namespace formats
