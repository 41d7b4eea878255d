// ledger: measures the bytes of one step and lists them by purpose. The purposes are weights, masters, gradients,
// optimizer, copies of weights, and activations by layer; vernier/memory_ledger.h describes each. The log gets a table.
// The file gets lines of name, tab, bytes; names are "weights", "gradients", "activations/h.0.mlp.c_fc", "peak".
//   step = 2                the step that is measured, counted from 1; in a run that begins behind it, the first.
//                           Where a profiler or callback/memory follows that step, it is the next
//   file = "memory.tsv"     in the run's output folder
// The optimizer's bytes are those that its first step allocates, so a resumed run does not know them. The first step
// and the measured step are slower; the others are not.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "shared/step_ledger.h"

namespace {

using vernier::Event;
using vernier::MemoryUse;
using vernier::Run;

class Ledger final : public vernier::Monitor {
 public:
  explicit Ledger(vernier::Options& options)
      : step_(options.get("step", 2, "that is measured, from 1", vernier::at_least(1))),
        file_(options.get("file", "memory.tsv", "name in the run's output folder")) {
    if (file_.empty()) options.refuse("file", "must be the name of a file");
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](const Run& run) { step_ = std::max(step_, run.step + 1); });
    const auto is_measured = [this](const Run& run) { return run.step + 1 == step_; };
    ledger_.attach(bus, is_measured);
    bus.on(Event::StepEnd, [this, is_measured](const Run& run) {
      const auto use = ledger_.end();
      if (!is_measured(run)) return;
      if (!use) {
        ++step_;
        return;
      }
      info("step ", step_, "\n", vernier::memory_table({{"bytes", *use}}));
      write(*use, (std::filesystem::path(run.output) / file_).string());
    });
  }

 private:
  static void write(const MemoryUse& use, const std::string& path) {
    std::ofstream out(path);
    for (const auto& [name, bytes] : use.parts) out << name << '\t' << bytes << '\n';
    for (const auto& [layer, bytes] : use.layers) out << "activations/" << layer << '\t' << bytes << '\n';
    out << "peak\t" << use.peak << '\n';
    if (!out.flush()) throw vernier::Error(path + ": cannot be written");
  }

  std::int64_t step_;
  std::string file_;
  vernier::StepLedger ledger_;
};

}  // namespace

VERNIER_PLUGIN(Ledger, "ledger", "1.0.0")
