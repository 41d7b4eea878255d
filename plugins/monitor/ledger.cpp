// ledger: the bytes of one step by what they are for, measured: weights, masters, gradients, optimizer, copies of weights,
// and activations by layer (vernier/memory_ledger.h says what each is). Into the log as a table; into a file as lines of
// name, tab, bytes: "weights", "gradients", "activations/h.0.mlp.c_fc", "peak".
//   step = 1                the step that is measured, counted from 1; the optimizer's state is whole in the first only,
//                           where it is allocated
//   file = "memory.tsv"     in the run's output folder
// The step that is measured is slower, the others are not.
#include <vernier/memory_ledger.h>
#include <vernier/sdk.h>

#include <filesystem>
#include <fstream>
#include <optional>

namespace {

using vernier::Event;
using vernier::MemoryUse;
using vernier::Run;

class Ledger final : public vernier::Monitor {
 public:
  explicit Ledger(vernier::Options& options)
      : step_(options.get("step", 1, "that is measured, from 1", vernier::at_least(1))),
        file_(options.get("file", "memory.tsv", "name in the run's output folder")) {
    if (file_.empty()) options.refuse("file", "must be the name of a file");
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::BatchReady, [this](const Run& run) {
      if (run.step + 1 == step_ && !updates_) begin(run);
    });
    bus.on(Event::LossReady, [this](const Run&) {
      if (ledger_ && !updates_) ledger_->begin_backward();
    });
    bus.on(Event::GradientsReady, [this](const Run&) {
      if (!ledger_) return;
      ledger_->begin_update();
      updates_ = true;  // an optimizer may run the pieces once more: that is its memory
    });
    bus.on(Event::StepEnd, [this](const Run& run) { end(run); });
    bus.on(Event::RunFailed, [this](const Run&) { ledger_.reset(); });
  }

 private:
  void begin(const Run& run) {
    if (!ledger_) {
      std::vector<torch::Tensor> masters;
      for (const auto& parameter : run.parameters) masters.push_back(parameter.owned);
      ledger_.emplace(*run.model, std::move(masters));
      ledger_->hold("batch", run.piece.tensors);
    }
    ledger_->begin_forward();
  }

  void end(const Run& run) {
    if (!ledger_) return;
    const auto use = ledger_->stop();
    ledger_.reset();
    updates_ = false;
    info("step ", step_, "\n", vernier::memory_table({{"bytes", use}}));
    write(use, (std::filesystem::path(run.output) / file_).string());
  }

  static void write(const MemoryUse& use, const std::string& path) {
    std::ofstream out(path);
    for (const auto& [name, bytes] : use.parts) out << name << '\t' << bytes << '\n';
    for (const auto& [layer, bytes] : use.layers) out << "activations/" << layer << '\t' << bytes << '\n';
    out << "peak\t" << use.peak << '\n';
    if (!out.flush()) throw vernier::Error(path + ": cannot be written");
  }

  std::int64_t step_;
  std::string file_;
  std::optional<vernier::MemoryLedger> ledger_;
  bool updates_ = false;  // the gradients of the step that is measured are ready
};

}  // namespace

VERNIER_PLUGIN(Ledger, "ledger", "1.0.0")
