// Parts of 2, 3, 3 samples, and so on.
#include "mutant.h"

namespace {

using vernier::Batch;

class Accumulation final : public vernier::Accumulation {
 public:
  explicit Accumulation(vernier::Options& options) : mutant_(options) {}
  std::vector<Batch> split(const Batch& batch) override {
    calls_ += 1;
    std::vector<Batch> parts;
    std::int64_t size = mutant_.is("forgets_calls") && calls_ > 6 ? 1 : 2, first = 0;
    for (; first < batch.samples; first += size, size = 3) {
      parts.push_back(batch.narrow(first, std::min(size, batch.samples - first)));
      auto& weight = parts.back().weight;
      if (mutant_.is("weighs_one")) weight = 1;
      if (mutant_.is("weighs_first") && first == 0) weight = 2;
      if (mutant_.is("weighs_last") && first > 2) weight = 3;
      if (mutant_.is("leaves_out") && first > 2) weight = 0;
      if (mutant_.is("leaves_out") && first <= 2) weight = static_cast<double>(parts.back().samples);
      if (mutant_.is("weighs_squares")) weight = static_cast<double>(parts.back().samples * parts.back().samples);
    }
    if (mutant_.is("loses") && parts.size() > 1) parts.pop_back();
    if (mutant_.is("reorders") && parts.size() > 1) std::swap(parts.front(), parts.back());
    if (mutant_.is("repeats") && parts.size() > 2) parts[2] = parts[1];
    return parts;
  }
  vernier::State save() const override {
    vernier::State state;
    if (!mutant_.is("forgets_calls")) state.put("calls", calls_);
    return state;
  }
  void load(const vernier::State& state) override {
    if (state.has("calls")) calls_ = state.integer("calls");
  }

 private:
  Mutant mutant_;
  std::int64_t calls_ = 0;
};

}  // namespace

VERNIER_PLUGIN(Accumulation, "mutant", "1.0.0")
