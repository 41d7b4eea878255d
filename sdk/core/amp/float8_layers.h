// The linear layers of a model that compute in fp8, by name. The first and the last layer of the model may be spared.
#pragma once

#include <c10/util/StringUtil.h>
#include <vernier/float8_linear.h>
#include <vernier/linear_call.h>

#include <map>
#include <optional>
#include <string>

namespace vernier {

class Float8Layers {
 public:
  Float8Layers(Float8Recipe recipe, bool spares_ends) : recipe_(std::move(recipe)), spares_ends_(spares_ends) {}

  // Returns the output, or nothing if the layer does not compute in fp8. Then its shape does not fit, or it is spared
  // as first or last layer and no rule selects it. by_rule: a rule selects it.
  std::optional<torch::Tensor> forward(const std::string& name, const LinearCall& call, torch::ScalarType output,
                                       bool by_rule) {
    if (!by_rule && is_spared(name)) return std::nullopt;
    if (call.weight.size(0) % multiple != 0 || call.weight.size(1) % multiple != 0) {
      unfit_.try_emplace(name, c10::str(call.weight.size(1), " to ", call.weight.size(0)));
      return std::nullopt;
    }
    return layers_.try_emplace(name, recipe_, output).first->second.forward(call.input, call.weight, call.bias);
  }

  // The forward of the first update calls meet() for each linear layer, so that the first and the last one are known.
  // They apply after that update, since a recomputation in backward must equal its forward.
  bool knows_ends() const { return knows_ends_ || !spares_ends_; }
  void meet(const std::string& name) {
    if (first_.empty()) first_ = name;
    last_ = name;
  }
  void end_update() {
    knows_ends_ = knows_ends_ || !first_.empty();
    for (auto& [name, layer] : layers_) layer.update();
  }

  State state_dict() const {
    State state;
    if (!first_.empty()) {
      state.put("first", first_);
      state.put("last", last_);
    }
    if (!first_.empty() && !knows_ends_) state.put("in_first_update", std::int64_t{1});
    for (const auto& [name, layer] : layers_) state.put("layers/" + name, layer.state_dict());
    return state;
  }

  void load_state_dict(const State& state, torch::ScalarType output) {
    first_ = state.has("first") ? state.text("first") : "";
    last_ = state.has("last") ? state.text("last") : "";
    knows_ends_ = !first_.empty() && !state.has("in_first_update");
    layers_.clear();
    for (const auto& [name, tensor] : state.part("layers").tensors) {
      const auto layer = name.substr(0, name.rfind('/'));  // each layer has several tensors
      const auto [entry, is_new] = layers_.try_emplace(layer, recipe_, output);
      if (is_new) entry->second.load_state_dict(state.part("layers/" + layer));
    }
  }

  // Returns whether a layer stays out of fp8 as an end of the model. A rule for it comes before that.
  bool is_spared(const std::string& name) const {
    return spares_ends_ && (!knows_ends_ || name == first_ || name == last_);
  }

  bool empty() const { return layers_.empty(); }
  // Returns "delayed fp8 in 10 layers; in bf16 stay a (the first), b (the last), c (30 to 10, not multiples of 16)".
  std::string summary(const std::string& otherwise) const {
    std::string spared;
    const auto add = [&](const std::string& name, const std::string& reason) {
      spared += (spared.empty() ? "; in " + otherwise + " stay " : ", ") + name + " (" + reason + ")";
    };
    if (knows_ends_ && first_ == last_) add(first_, "the only one");
    if (knows_ends_ && first_ != last_) {
      add(first_, "the first");
      add(last_, "the last");
    }
    for (const auto& [name, shape] : unfit_) add(name, shape + ", not multiples of " + std::to_string(multiple));
    return c10::str(recipe_.name, " fp8 in ", layers_.size(), layers_.size() == 1 ? " layer" : " layers", spared);
  }

 private:
  static constexpr std::int64_t multiple = 16;  // required by at::_scaled_mm, and kept where it is emulated

  Float8Recipe recipe_;
  bool spares_ends_;  // the first and the last layer that the model calls stay out of fp8
  bool knows_ends_ = false;
  std::string first_, last_;
  std::map<std::string, Float8Linear> layers_;
  std::map<std::string, std::string> unfit_;
};

}  // namespace vernier
