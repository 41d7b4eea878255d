// delayed: a number format with one scale for the tensor, from its largest magnitudes in earlier updates. In the first
// update the scale is 1. Larger numbers become the largest of the format.
//   format = "e4m3"           a name of `vernier formats`, without blocks
//   amax_history_len = 1024   updates in the history of magnitudes
//   amax_compute = "max"      the scale comes from the largest of them, or from the "most_recent"
// Source: DelayedScaling of Transformer Engine, as in precision/fp8.
#include <ATen/ATen.h>
#include <vernier/lab/quantizer.h>

#include <map>

using vernier::State;

class Delayed final : public vernier::Quantizer {
 public:
  explicit Delayed(vernier::Options& options)
      : format_(vernier::read_format(options)),
        updates_(options.get("amax_history_len", 1024, "updates that are looked back on", vernier::between(1, 65536))),
        is_most_recent_(options.choose("amax_compute", "max", {"max", "most_recent"},
                                       "which of the history's magnitudes makes the scale") == "most_recent") {
    if (format_.block != 0) options.refuse("format", "has scales of blocks; take one without, as e4m3");
    format_.block = -1;
    format_.element.saturate = true;
    const auto put = [this](State& state) {
      for (const auto& [key, past] : pasts_) {
        state.put(key + "/amax_history", past.history.tensor());
        state.put(key + "/amax", past.amax);
      }
    };
    remember(put, [this](const State& state) {
      pasts_.clear();
      for (const auto& [name, tensor] : state.tensors) {
        auto& past = of(name.substr(0, name.rfind('/')));
        name.ends_with("/amax") ? void(past.amax = state.real(name)) : past.history.load(tensor);
      }
    });
  }

  vernier::UnitOperand quantize(const vernier::Operand& operand) override {
    auto& past = of(operand.key);
    if (operand.is_recorded) past.history.record(0, vernier::float8_amax(operand.numbers).cpu());
    auto scaled = format_;
    scaled.amax = static_cast<float>(past.amax > 0 ? past.amax : format_.element.largest());
    if (operand.is_for_unit) return vernier::unit_operand(operand.numbers, scaled);
    return {vernier::round_to(operand.numbers, scaled)};
  }
  bool serves_both(bool) const override { return true; }
  bool draws() const override { return false; }
  void end_update() override {
    for (auto& [key, past] : pasts_) {
      const auto [largest, makes_scale] = past.history.end_update();
      if (makes_scale.item<bool>()) past.amax = largest.item<double>();
    }
  }

 private:
  struct Past {
    vernier::AmaxHistory history;
    double amax = 0;
  };
  Past& of(const std::string& key) {
    return pasts_.try_emplace(key, Past{vernier::AmaxHistory(updates_, 1, is_most_recent_)}).first->second;
  }

  vernier::TensorFormat format_;
  std::int64_t updates_;
  bool is_most_recent_;
  std::map<std::string, Past> pasts_;  // by operand
};

VERNIER_PLUGIN(Delayed, "delayed", "1.0.0")
