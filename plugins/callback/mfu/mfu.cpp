// mfu: reports how many floating-point operations a second the model computes, and the share of the machine's peak that
// this is: the model FLOPs utilisation (MFU).
//   peak = 0.0              of this process's device, in operations a second; 0: that of the machine's floor, or else
//                           measured in the first step by products of large matrices in the type in which the model
//                           computes
//   measure_floor = false   measures the floor of this machine before the first step, as `vernier profile --floor` does
// Metrics: sol; model_flops, the operations of the step; model_flops_per_second; mfu. sol ("speed of light") is there
// on a CPU whose floor was measured, where one process trains: the time that the operations and the states need at the
// rates of the floor, as a share of the time of the steps of this process. The states are weights, gradients and what
// the optimizer saves; each is read and written once. Counted are the products that the
// model calls: linear and recurrent layers, products of matrices, convolutions and attention, a multiplication and an
// addition as two. Backward counts as much as forward for each operand that needs a gradient: twice, usually. Not
// counted are what activation checkpointing computes again, products of a task's own kernels, and those that another
// plugin adds, such as lora. They are counted anew if the shapes of a micro-batch change. The time is that of the step;
// on a GPU, that since the last step. With several processes the numbers are those of this one. Source: Chowdhery et
// al., PaLM, arXiv:2204.02311, appendix B. docs/reference/metrics.md compares torch.utils.flop_counter of PyTorch.
#include <ATen/Parallel.h>
#include <torch/types.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "floor.h"
#include "flops.h"

namespace {

using vernier::Event;
using vernier::Run;
using Clock = std::chrono::steady_clock;

class Mfu final : public vernier::Callback {
 public:
  explicit Mfu(vernier::Options& options)
      : peak_(options.get("peak", 0.0, "operations a second of the device; 0: measured", vernier::at_least(0))),
        measures_(options.get("measure_floor", false, "measures the floor of this machine first, and keeps it")) {
    for (const char* key : {"peak", "measure_floor"}) options.resumable(key);
  }

  std::vector<vernier::MetricInfo> metrics() const override {
    return {{.name = "sol",
             .unit = "ratio",
             .meaning = "the floor of this machine as a share of the time of the steps",
             .varies = true},
            {.name = "model_flops", .meaning = "floating-point operations of the model's products in the step"},
            {.name = "model_flops_per_second",
             .unit = "1/s",
             .meaning = "floating-point operations of the model's products a second",
             .varies = true},
            {.name = "mfu",
             .unit = "ratio",
             .meaning = "these as a share of the peak of this process's device",
             .varies = true}};
  }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](Run& run) { take_floor(run); });
    bus.on(Event::StepBegin, [this](Run& run) { begin_step(run); });
    bus.on(Event::BatchReady, [this](Run& run) { begin_micro_batch(run); });
    bus.on(Event::LossReady, [this](Run&) { end_forward(); });
    bus.on(Event::GradientsReady, [this](Run&) { end_micro_batch(); });
    bus.on(Event::UpdateDone, [this](Run& run) { report(run); });
    bus.on(Event::Validated, [this](Run&) { since_.reset(); });
    bus.on(Event::RunEnd, [this](Run& run) { keep_for_summary(run); });
    bus.on(Event::RunFailed, [this](Run&) { intercept_.reset(); });
  }

 private:
  // The number of operations depends on these alone.
  struct Shapes {
    std::vector<std::vector<std::int64_t>> of_tensors;
    std::int64_t trained = 0;  // parameters
    bool operator==(const Shapes&) const = default;
  };

  static Shapes shapes_of(const Run& run) {
    Shapes shapes;
    for (const auto& tensor : run.micro_batch.tensors) {
      shapes.of_tensors.push_back(tensor.defined() ? tensor.sizes().vec() : std::vector<std::int64_t>{});
    }
    shapes.trained = std::ranges::count_if(run.parameters, [](const auto& each) { return each.model.requires_grad(); });
    return shapes;
  }

  void take_floor(const Run& run) {
    if (run.control->ranks() > 1) return;
    const int threads = at::get_num_threads();
    for (const int each : measures_ ? std::set<int>{1, threads} : std::set<int>()) {
      at::set_num_threads(each);
      const auto floor = vernier::measure_floor(/*seconds=*/0.1);
      info("with ", each, each == 1 ? " thread" : " threads", " this machine\n", floor.table(), "kept in ",
           vernier::floor_file(each).string());
    }
    if (run.device.is_cpu()) floor_ = vernier::kept_floor(threads);
  }

  void begin_step(const Run& run) {
    flops_ = 0;
    is_pending_ = counts_now_ = false;
    if (run.device.is_cpu()) since_ = Clock::now();  // elsewhere the host only starts the work
  }

  void begin_micro_batch(const Run& run) {
    end_micro_batch();
    auto shapes = shapes_of(run);
    if (shapes == counted_) return;
    if (shapes.trained != counting_.trained) state_bytes_.reset();
    counted_.reset();
    counts_now_ = true;
    counting_ = std::move(shapes);
    counter_.begin_forward();
    intercept_.emplace(layers_, counter_);
  }

  void end_forward() {
    intercept_.reset();
    counter_.end_forward();
    is_pending_ = true;
  }

  // Backward is done: it may have computed parts of the model again. A micro-batch that failed has no end.
  void end_micro_batch() {
    if (!std::exchange(is_pending_, false)) return;
    flops_ += counter_.flops();
    if (!counted_) counted_ = counting_;
  }

  void report(Run& run) {
    const auto since = std::exchange(since_, Clock::now());
    end_micro_batch();  // gradients may be computed again after GradientsReady
    if (flops_ == 0) return;
    const double seconds = since ? std::chrono::duration<double>(*since_ - *since).count() : 0;
    if (floor_) compare_with_floor(run, seconds);
    run.metrics.set("model_flops", flops_);
    if (!since) return;
    const double rate = flops_ / seconds;
    run.metrics.set("model_flops_per_second", rate);
    if (peak_ == 0) measure_peak(run);
    run.metrics.set("mfu", rate / peak_);
  }

  // A step whose operations are counted takes longer for that: it does not count, unless there is no other yet.
  void compare_with_floor(Run& run, double seconds) {
    if (!state_bytes_) state_bytes_ = bytes_of_states(run);
    const auto least = floor_->seconds(flops_, counter_.dtype(), *state_bytes_);
    if (!least) return;
    if (!counts_now_) {
      least_ += *least;
      taken_ += seconds;
      multiplied_ += flops_;
    }
    run.metrics.set("sol", taken_ > 0 ? least_ / taken_ : *least / seconds);
  }

  // The last validation has removed the metrics of the step. These are means over the steps that were compared.
  void keep_for_summary(Run& run) const {
    auto metrics = run.metrics;
    if (taken_ > 0) {
      metrics.set("sol", least_ / taken_);
      metrics.set("model_flops_per_second", multiplied_ / taken_);
      metrics.set("mfu", multiplied_ / taken_ / peak_);
    }
    run.metrics = std::move(metrics);
  }

  static double bytes_of_states(const Run& run) {
    std::size_t bytes = 0;
    for (const auto& each : run.parameters) {
      if (each.frozen) continue;
      bytes += 2 * each.model.nbytes();  // weights and gradients
      if (!each.master.is_same(each.model) && each.has_memory()) bytes += each.master.nbytes();
    }
    for (const auto& [name, tensor] : run.control->snapshot().tensors) {
      if (name.starts_with("plugin/optimizer/")) bytes += tensor.nbytes();
    }
    return static_cast<double>(bytes);
  }

  void measure_peak(const Run& run) {
    if (floor_ && floor_->flops.contains(counter_.dtype())) {
      peak_ = floor_->flops.at(counter_.dtype());
      return;
    }
    const auto peak = vernier::measured_peak(run.device, counter_.dtype(), /*seconds=*/0);
    peak_ = peak.flops;
    info("the peak of this device is ", peak_ / 1e9, " GFLOP/s in ", c10::toString(counter_.dtype()),
         ", measured by products of ", peak.side, "x", peak.side, " matrices");
    since_ = Clock::now();
  }

  double peak_;
  bool measures_;
  std::optional<vernier::Floor> floor_;
  std::optional<double> state_bytes_;  // weights, gradients and the optimizer's state
  double least_ = 0, taken_ = 0;       // seconds of the steps that were compared: the floor's, and their own
  double multiplied_ = 0;              // floating-point operations of these steps
  vernier::Layers layers_;             // none: products count whatever they multiply
  vernier::FlopCounter counter_;
  std::optional<vernier::Intercept> intercept_;  // in the forward of a micro-batch that is counted
  Shapes counting_;                              // shapes of this micro-batch
  std::optional<Shapes> counted_;                // shapes of the last micro-batch, once its backward is done
  bool counts_now_ = false;                      // the operations of this step are counted
  bool is_pending_ = false;                      // a micro-batch is in its backward
  double flops_ = 0;                             // operations of the step so far
  std::optional<Clock::time_point> since_;       // when the step began
};

}  // namespace

VERNIER_PLUGIN(Mfu, "mfu", "1.0.0")
