#include "delayed.h"

#include <ATen/ATen.h>

namespace formats {

DelayedScales::Past& DelayedScales::past_of(const std::string& operand) {
  return pasts_.try_emplace(operand, Past{vernier::AmaxHistory(updates_, 1, most_recent_)}).first->second;
}

vernier::TensorFormat DelayedScales::of(const std::string& operand, const vernier::TensorFormat& format,
                                        const torch::Tensor& x, bool records) {
  auto& past = past_of(operand);
  if (records) past.history.record(0, vernier::float8_amax(x).cpu());
  auto scaled = format;
  scaled.amax = static_cast<float>(past.amax > 0 ? past.amax : format.element.largest());
  return scaled;
}

void DelayedScales::end_update() {
  for (auto& [operand, past] : pasts_) {
    const auto [largest, makes_scale] = past.history.end_update();
    if (makes_scale.item<bool>()) past.amax = largest.item<double>();
  }
}

vernier::State DelayedScales::save() const {
  vernier::State state;
  for (const auto& [operand, past] : pasts_) {
    state.put(operand + "/amax_history", past.history.tensor());
    state.put(operand + "/amax", past.amax);
  }
  return state;
}

void DelayedScales::load(const vernier::State& state) {
  pasts_.clear();
  for (const auto& [name, tensor] : state.tensors) {
    const auto operand = name.substr(0, name.rfind('/'));
    auto& past = past_of(operand);
    if (name.ends_with("/amax_history")) past.history.load(tensor);
    if (name.ends_with("/amax")) past.amax = state.real(name);
  }
}

}  // namespace formats
