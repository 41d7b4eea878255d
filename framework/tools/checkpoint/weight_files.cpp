#include "weight_files.h"

#include <torch/types.h>
#include <vernier/error.h>

namespace vernier {

namespace {

// The entries "<plugin>…/<kind>/<name of the weight>" of the state.
Tensors kept_by(const std::string& plugin, const StoredCheckpoint& stored, const std::string& kind) {
  Tensors kept;
  for (const auto& [name, tensor] : stored.state.tensors) {
    const auto place = name.find("/" + kind + "/");
    if (name.starts_with(plugin) && place != std::string::npos) {
      kept[name.substr(place + kind.size() + 2)] = tensor;
    }
  }
  return kept;
}

// Puts in other values of weights by name. A tied weight is in the model under each of its names, and has one here.
void replace(Tensors& weights, const Tensors& values, const Tensors& model) {
  for (const auto& [name, value] : values) {
    const auto own = model.find(name);
    for (const auto& [other, tensor] : model) {
      const bool is_tied = own != model.end() && !values.contains(other) && tensor.dim() > 1 &&
                           tensor.scalar_type() == own->second.scalar_type() && tensor.equal(own->second);
      if (is_tied) weights[other] = value;
    }
    weights[name] = value;
  }
}

std::int64_t not_finite(const torch::Tensor& tensor) {
  return tensor.numel() - tensor.isfinite().sum().item<std::int64_t>();
}

}  // namespace

Tensors best_weights(const StoredCheckpoint& stored) {
  const auto masters = kept_by("plugin/precision/", stored, "master");
  const auto compensations = kept_by("plugin/precision/", stored, "compensation");
  const auto& model = stored.model.tensors;
  Tensors values, weights = model;
  for (const auto& [name, tensor] : model) {
    const auto master = masters.find(name), compensation = compensations.find(name);
    if (master != masters.end()) {
      values[name] = master->second;
    } else if (compensation != compensations.end()) {
      values[name] = tensor.to(torch::kFloat32).add_(compensation->second);
    }
  }
  replace(weights, values, model);
  return weights;
}

Tensors cast_weights(const std::string& path, const Tensors& tensors, torch::ScalarType dtype) {
  Tensors cast;
  for (const auto& [name, tensor] : tensors) {
    cast[name] = tensor.is_floating_point() ? tensor.to(dtype) : tensor;
    if (!tensor.is_floating_point()) continue;
    const auto lost = not_finite(cast[name]) - not_finite(tensor);
    if (lost > 0) {
      refuse(c10::str(path, ": tensor '", name, "': ", lost, " of its values are too large for ",
                      c10::getDtypeNames(dtype).first, "; take bfloat16 or float32"));
    }
  }
  return cast;
}

}  // namespace vernier
