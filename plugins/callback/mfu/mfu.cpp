// mfu: reports how many floating-point operations a second the model computes, and the share of the machine's peak that
// this is: the model FLOPs utilisation (MFU).
//   peak = 0.0   of this process's device, in operations a second; 0: measured in the first step by products of large
//                matrices in the type in which the model computes
// Metrics: model_flops, the operations of the step; model_flops_per_second; mfu. Counted are the products that the
// model calls: linear and recurrent layers, products of matrices, convolutions and attention, a multiplication and an
// addition as two. Backward counts as much as forward for each operand that needs a gradient: twice, usually. Not
// counted are what activation checkpointing computes again, products of a task's own kernels, and those that another
// plugin adds, such as lora. They are counted anew if the shapes of a micro-batch change. The time is that of the step;
// on a GPU, that since the last step. With several processes the numbers are those of this one. Source: Chowdhery et
// al., PaLM, arXiv:2204.02311, appendix B. docs/reference/metrics.md compares torch.utils.flop_counter of PyTorch.
#include <ATen/ops/linspace.h>
#include <ATen/ops/mm.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "flops.h"

namespace {

using vernier::Event;
using vernier::Run;
using Clock = std::chrono::steady_clock;

struct Peak {
  double flops = 0;  // a second
  std::int64_t side = 0;
};

// The best of products of growing matrices, until one takes 10 ms. The numbers are not random: a generator's state is
// the run's.
Peak measured_peak(torch::Device device, torch::ScalarType dtype) {
  constexpr double long_time = 0.01;
  constexpr int repeats = 3;
  const torch::NoGradGuard no_grad;
  const auto wait = [device] {
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  };
  Peak best;
  for (std::int64_t side = 256; side <= (device.is_cpu() ? 2048 : 8192); side *= 2) {
    const auto matrix =
        at::linspace(-1, 1, side * side, torch::dtype(torch::kFloat32).device(device)).to(dtype).reshape({side, side});
    at::mm(matrix, matrix);  // its threads and its plan are ready
    double shortest = INFINITY;
    for (int i = 0; i < repeats; ++i) {
      wait();
      const auto start = Clock::now();
      at::mm(matrix, matrix);
      wait();
      shortest = std::min(shortest, std::chrono::duration<double>(Clock::now() - start).count());
    }
    const double flops = 2 * std::pow(static_cast<double>(side), 3) / shortest;
    if (flops > best.flops) best = {flops, side};
    if (shortest > long_time) break;
  }
  return best;
}

class Mfu final : public vernier::Callback {
 public:
  explicit Mfu(vernier::Options& options)
      : peak_(options.get("peak", 0.0, "operations a second of the device; 0: measured", vernier::at_least(0))) {
    options.resumable("peak");
  }

  std::vector<vernier::MetricInfo> metrics() const override {
    return {{.name = "model_flops", .meaning = "floating-point operations of the model's products in the step"},
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
    bus.on(Event::StepBegin, [this](Run& run) { begin_step(run); });
    bus.on(Event::BatchReady, [this](Run& run) { begin_micro_batch(run); });
    bus.on(Event::LossReady, [this](Run&) { end_forward(); });
    bus.on(Event::GradientsReady, [this](Run&) { end_micro_batch(); });
    bus.on(Event::StepEnd, [this](Run& run) { report(run); });
    bus.on(Event::Validated, [this](Run&) { since_.reset(); });
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

  void begin_step(const Run& run) {
    flops_ = 0;
    is_pending_ = false;
    if (run.device.is_cpu()) since_ = Clock::now();  // elsewhere the host only starts the work
  }

  void begin_micro_batch(const Run& run) {
    end_micro_batch();
    auto shapes = shapes_of(run);
    if (shapes == counted_) return;
    counted_.reset();
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
    run.metrics.set("model_flops", flops_);
    if (!since) return;
    const double rate = flops_ / std::chrono::duration<double>(*since_ - *since).count();
    run.metrics.set("model_flops_per_second", rate);
    if (peak_ == 0) measure_peak(run);
    run.metrics.set("mfu", rate / peak_);
  }

  void measure_peak(const Run& run) {
    const auto peak = measured_peak(run.device, counter_.dtype());
    peak_ = peak.flops;
    info("the peak of this device is ", peak_ / 1e9, " GFLOP/s in ", c10::toString(counter_.dtype()),
         ", measured by products of ", peak.side, "x", peak.side, " matrices");
    since_ = Clock::now();
  }

  double peak_;
  vernier::Layers layers_;  // none: products count whatever they multiply
  vernier::FlopCounter counter_;
  std::optional<vernier::Intercept> intercept_;  // in the forward of a micro-batch that is counted
  Shapes counting_;                              // shapes of this micro-batch
  std::optional<Shapes> counted_;                // shapes of the last micro-batch, once its backward is done
  bool is_pending_ = false;                      // a micro-batch is in its backward
  double flops_ = 0;                             // operations of the step so far
  std::optional<Clock::time_point> since_;       // when the step began
};

}  // namespace

VERNIER_PLUGIN(Mfu, "mfu", "1.0.0")
