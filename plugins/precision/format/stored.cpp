#include "stored.h"

#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/control.h>
#include <vernier/roles.h>

#include <algorithm>

#include "rounding.h"

namespace formats {

using torch::Tensor;

namespace {

constexpr const char* option = "operands";

// An entry of a state is named by plugin, parameter and value: "plugin/optimizer/adamw/layers.0.weight/exp_avg". An
// optimizer of a group has a number before the parameter: "plugin/optimizer/adamw/1/layers.0.weight/exp_avg".
vernier::Tensors averages_in(const vernier::State& snapshot) {
  const std::string prefix = "plugin/optimizer/";
  vernier::Tensors found;
  for (auto at = snapshot.tensors.lower_bound(prefix); at != snapshot.tensors.end(); ++at) {
    if (!at->first.starts_with(prefix)) break;
    if (at->second.dim() == 0) continue;
    const auto name = at->first.substr(at->first.find('/', prefix.size()) + 1);
    const auto digits = name.find_first_not_of("0123456789");
    found.emplace(digits != 0 && digits < name.size() && name[digits] == '/' ? name.substr(digits + 1) : name,
                  at->second);
  }
  return found;
}

}  // namespace

std::uint64_t drawn_seed() {
  return static_cast<std::uint64_t>(at::empty({}, at::kLong).random_().item<std::int64_t>());
}

bool is_float(const Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return dtype == torch::kFloat32 || dtype == torch::kBFloat16 || dtype == torch::kFloat16;
}

void round_stored(Tensor tensor, Slot slot, const std::string& parameter, vernier::Quantizer& quantizer,
                  std::uint64_t seed) {
  if (tensor.numel() == 0) return;
  const auto rows = tensor.dim() < 2 ? 1 : tensor.size(0);
  const auto y = quantizer.rounded({.numbers = tensor.reshape({rows, -1}).to(torch::kFloat32),
                                    .slot = slot,
                                    .key = parameter + "/" + vernier::slot_name(slot),
                                    .is_weight = slot == Slot::weight,
                                    .is_recorded = true,
                                    .seed = seed,
                                    .product_seed = seed});
  tensor.copy_(value(y).view(tensor.sizes()));
}

vernier::Contradiction StoredAverages::contradicts(const vernier::Plugin& other) {
  const auto* optimizer = dynamic_cast<const vernier::Optimizer*>(&other);
  if (optimizer == nullptr || optimizer->updates_each_alone()) return {};
  return {option, "has `state`, for optimizers that keep averages of each parameter, as adamw does, and " + other.id() +
                      " does not; leave it out"};
}

void StoredAverages::round(vernier::Run& run, const std::function<vernier::Quantizer*(const std::string&)>& of) const {
  if (run.control == nullptr) options_.refuse(option, "has `state`, which needs a trainer, and there is none");
  const torch::NoGradGuard no_grad;
  const auto averages = averages_in(run.control->snapshot());
  std::uint64_t seed = 0;
  const auto& parameters = run.parameters;
  const bool draws = std::ranges::any_of(parameters, [&](const auto& each) {
    const auto* const quantizer = of(each.name);
    return quantizer != nullptr && quantizer->draws();
  });
  if (draws) seed = drawn_seed();
  bool is_known = false;  // an average is that of a parameter
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto prefix = parameters[i].name + "/";
    auto* const quantizer = of(parameters[i].name);
    std::uint64_t place = i * 64;
    for (auto at = averages.lower_bound(prefix); at != averages.end() && at->first.starts_with(prefix); ++at) {
      is_known = true;
      if (at->second.scalar_type() != torch::kFloat32) {
        options_.refuse(option,
                        c10::str("has `state`, which rounds averages in float32, and the optimizer keeps '", at->first,
                                 "' in ", at->second.scalar_type(), "; write state = \"float32\" in [optimizer]"));
      }
      if (quantizer != nullptr) round_stored(at->second, Slot::state, at->first, *quantizer, seed + place);
      ++place;
    }
  }
  if (!is_known) {
    options_.refuse(option, "has `state`, and nothing to round, because the optimizer keeps no averages; leave it out");
  }
}

}  // namespace formats
