// memory: measures the bytes of some steps by purpose, as metrics that monitors write: memory_weights, memory_masters,
// memory_gradients, memory_optimizer, memory_weight_copies, memory_activations, memory_batch, memory_buffers,
// memory_other and memory_peak. vernier/memory_ledger.h describes each; monitor/ledger lists them by layer, too.
//   every = 100        steps between measurements; the first step is measured too
// The optimizer's bytes are those that its first step allocates, so a resumed run does not report them. Measured steps
// are slower. With an optimizer that steps in backward it is refused. A step that a profiler follows is left out.
#include <algorithm>

#include "shared/step_ledger.h"

namespace {

using vernier::Run;

class Memory final : public vernier::Callback {
 public:
  explicit Memory(vernier::Options& options)
      : every_(options.get("every", 100, "steps between measurements; the first step too", vernier::at_least(1))) {}

  void attach(vernier::Bus& bus) override {
    const auto is_due = [this](const Run& run) { return run.step == 0 || (run.step + 1) % every_ == 0; };
    ledger_.attach(bus, is_due);
    bus.on(vernier::Event::StepEnd, [this, is_due](Run& run) {
      const auto use = ledger_.end();
      if (!use || !is_due(run)) return;
      for (const auto& [name, bytes] : use->parts) set(run, name, bytes);
      set(run, "peak", use->peak);
    });
  }

 private:
  static void set(Run& run, const std::string& part, std::int64_t bytes) {
    auto name = "memory_" + part;
    std::ranges::replace(name, ' ', '_');
    run.metrics.set(name.c_str(), static_cast<double>(bytes));
  }

  std::int64_t every_;
  vernier::StepLedger ledger_;
};

}  // namespace

VERNIER_PLUGIN(Memory, "memory", "1.0.0")
