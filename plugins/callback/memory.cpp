// memory: measures the bytes of some steps by purpose. As metrics that monitors write: memory_weights, memory_masters,
// memory_gradients, memory_optimizer, memory_weight_copies, memory_activations, memory_batch, memory_buffers,
// memory_other and memory_peak. vernier/memory_ledger.h describes each. The log gets a table of one step, in which the
// activations are listed by layer. The file gets the same in lines of name, tab, bytes; names are "weights",
// "activations/h.0.mlp" and "peak".
//   every = 100          steps between measurements; the first step is measured too
//   step = 2             the step of the table, from 1; if it cannot be measured or is before a resumed run, the next
//   file = "memory.tsv"  in the run's output folder
// The optimizer's bytes are those that its first step allocates, so a resumed run does not report them. Measured steps
// are slower. A step that a profiler follows is left out.
#include <vernier/memory_ledger.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

using vernier::Event;
using vernier::MemoryLedger;
using vernier::MemoryUse;
using vernier::Run;

class Memory final : public vernier::Callback {
 public:
  explicit Memory(vernier::Options& options)
      : every_(options.get("every", 100, "steps between measurements; the first step too", vernier::at_least(1))),
        step_(options.get("step", 2, "the step of the table, from 1", vernier::at_least(1))),
        file_(options.get("file", "memory.tsv", "name in the run's output folder")) {
    if (file_.empty()) options.refuse("file", "must be the name of a file");
  }

  bool needs_gradients() const override { return false; }

  std::vector<vernier::MetricInfo> metrics() const override {
    const auto part = [](const char* name, const char* meaning) {
      return vernier::MetricInfo{.name = name, .unit = "bytes", .meaning = meaning, .varies = true};
    };
    return {part("memory_peak", "most bytes of tensors at one moment of the step"),
            part("memory_weights", "bytes of the model's parameters"),
            part("memory_buffers", "bytes of the model's buffers"),
            part("memory_masters", "bytes of the weights that the optimizer changes, where these are others"),
            part("memory_gradients", "bytes of the gradients"),
            part("memory_optimizer", "bytes of the optimizer's state"),
            part("memory_weight_copies", "bytes of the casts of weights that are kept until backward"),
            part("memory_activations", "bytes that are kept from forward for backward"),
            part("memory_batch", "bytes of the micro-batch"),
            part("memory_other", "bytes of what else is left when the step ends")};
  }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](const Run& run) { step_ = std::max(step_, run.step + 1); });
    bus.on(Event::BatchReady, [this](const Run& run) {
      if (is_due(run.step + 1) && !updates_ && open(run)) ledger_->begin_forward();
    });
    bus.on(Event::LossReady, [this](const Run&) {
      if (ledger_ && !updates_) ledger_->begin_backward();
    });
    bus.on(Event::GradientsReady, [this](const Run& run) {
      if (!is_due(run.step + 1) || !open(run)) return;
      ledger_->begin_update();
      updates_ = true;  // an optimizer may run the micro-batches once more: that is its memory
    });
    bus.on(Event::UpdateDone, [this](Run& run) { report(run, run.step + 1); });
    bus.on(Event::RunFailed, [this](const Run&) { ledger_.reset(); });
  }

 private:
  // step: from 1.
  bool has_metrics(std::int64_t step) const { return step == 1 || step % every_ == 0; }
  bool is_due(std::int64_t step) const { return has_metrics(step) || step == step_; }

  bool open(const Run& run) {
    if (ledger_) return true;
    if (!MemoryLedger::can_follow()) return false;
    std::vector<torch::Tensor> masters;
    for (const auto& parameter : run.parameters) masters.push_back(parameter.master);
    ledger_.emplace(*run.model, std::move(masters));
    ledger_->hold("batch", run.micro_batch.tensors);
    ledger_->hold("optimizer", optimizer_);
    return true;
  }

  void report(Run& run, std::int64_t step) {
    if (!ledger_) {
      if (step == step_) ++step_;
      return;
    }
    const auto use = ledger_->stop();
    ledger_.reset();
    updates_ = false;
    optimizer_ = use.bytes("optimizer");
    if (has_metrics(step)) set_metrics(run, use);
    if (step != step_) return;
    info("step ", step, "\n", vernier::memory_table({{"bytes", use}}));
    write(use, (std::filesystem::path(run.output) / file_).string());
  }

  static void set_metrics(Run& run, const MemoryUse& use) {
    const auto set = [&run](const std::string& part, std::int64_t bytes) {
      auto name = "memory_" + part;
      std::ranges::replace(name, ' ', '_');
      run.metrics.set(name.c_str(), static_cast<double>(bytes));
    };
    for (const auto& [part, bytes] : use.parts) set(part, bytes);
    set("peak", use.peak);
  }

  void write(const MemoryUse& use, const std::string& path) const {
    std::ofstream out(path);
    for (const auto& [name, bytes] : use.parts) out << name << '\t' << bytes << '\n';
    for (const auto& [layer, bytes] : use.layers) out << "activations/" << layer << '\t' << bytes << '\n';
    out << "peak\t" << use.peak << '\n';
    if (!out.flush()) warn(path, ": cannot be written");
  }

  std::int64_t every_, step_;
  std::string file_;
  std::optional<MemoryLedger> ledger_;  // ledger of the step that is being measured
  std::int64_t optimizer_ = 0;          // bytes that the optimizer's first step left
  bool updates_ = false;                // the gradients of the measured step are ready
};

VERNIER_PLUGIN(Memory, "memory", "1.0.0")
