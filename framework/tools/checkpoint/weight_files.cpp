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

std::int64_t not_finite(const torch::Tensor& tensor) {
  return tensor.numel() - tensor.isfinite().sum().item<std::int64_t>();
}

}  // namespace

Tensors best_weights(const StoredCheckpoint& stored) {
  const auto masters = kept_by("plugin/precision/", stored, "master");
  const auto compensations = kept_by("plugin/precision/", stored, "compensation");
  Tensors weights;
  for (const auto& [name, tensor] : stored.model.tensors) {
    const auto master = masters.find(name), compensation = compensations.find(name);
    if (master != masters.end()) {
      weights[name] = master->second;
    } else if (compensation != compensations.end()) {
      weights[name] = tensor.to(torch::kFloat32).add_(compensation->second);
    } else {
      weights[name] = tensor;
    }
  }
  return weights;
}

Tensors averaged_weights(const std::string& path, const StoredCheckpoint& stored) {
  auto averages = kept_by("plugin/callback/ema/", stored, "average");
  if (averages.empty()) averages = kept_by("plugin/callback/swa/", stored, "average");
  if (averages.empty()) {
    refuse(path +
           ": has no average of the weights; a run with [[callback]] use = \"ema\" or \"swa\" keeps one once it has "
           "begun");
  }
  auto weights = best_weights(stored);
  for (const auto& [name, average] : averages) weights[name] = average;
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
