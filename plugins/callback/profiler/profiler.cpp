// profiler: records some steps with LibTorch's profiler (Kineto). Writes a trace for https://ui.perfetto.dev or
// chrome://tracing, and a table of the costliest parts, operations, layers and, on a GPU, kernels.
//   first_step = 10           the first step that is recorded, from 1; the steps before it warm up
//   steps = 3                 how many are recorded
//   trace = "profile.json"    name in the run's output folder
//   table = "profile.txt"     name in the run's output folder
//   rows = 20                 of each list in the table
//   shapes = false            the trace has the shapes of the inputs of each operation
//   memory = false            the trace has each allocation
//   nvtx = false              instead of a trace and a table: NVTX ranges, for Nsight Systems; needs a GPU
// The trace has a range for each part of the step, for each listener of a plugin ("callback/clip_norm at
// GradientsReady") and for each operation of a layer ("layer h.0.mlp.c_fc"). Recording makes a step slower, small
// operations most. The numbers of the run stay the same.
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/nn/module.h>
#include <vernier/layers.h>
#include <vernier/sdk.h>

#include <ATen/record_function.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "tables.h"

namespace {

namespace kineto = torch::autograd::profiler;
namespace fs = std::filesystem;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerState;
using vernier::Event;
using vernier::Run;

// Gives each operation that uses a layer's weight a range with the layer's name.
struct NameLayers final : vernier::Interceptor {
  vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
    if (operation.layer().empty()) return operation.proceed(std::move(arguments));
    at::RecordFunction range(at::RecordScope::USER_SCOPE);
    if (range.isActive()) range.before(profiler::layer_prefix + std::string(operation.layer()));
    return operation.proceed(std::move(arguments));
  }
};

class Profiler final : public vernier::Callback {
 public:
  explicit Profiler(vernier::Options& options)
      : first_(options.get("first_step", 10, "the first step that is recorded, from 1", vernier::at_least(1))),
        steps_(options.get("steps", 3, "how many are recorded", vernier::between(1, 1000))),
        trace_(options.get("trace", "profile.json", "name in the run's output folder")),
        table_(options.get("table", "profile.txt", "name in the run's output folder")),
        rows_(options.get("rows", 20, "of each list in the table", vernier::at_least(1))),
        shapes_(options.get("shapes", false, "the trace has the shapes of inputs")),
        memory_(options.get("memory", false, "the trace has each allocation")),
        nvtx_(options.get("nvtx", false, "NVTX ranges instead of a trace and a table; needs a GPU")) {
    if (trace_.empty()) options.refuse("trace", "must be the name of a file");
    if (table_.empty()) options.refuse("table", "must be the name of a file");
  }
  ~Profiler() override {
    if (is_recording_) stop();
  }

  void prepare(Run& run) override {
    if (nvtx_ && !run.device.is_cuda()) throw vernier::Error("nvtx = true needs a GPU, and the run is on the CPU");
    layers_ = vernier::Layers(*run.model);
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::StepBegin, [this](Run& run) {
      if (run.step + 1 == first_ && !is_recording_) start(run);
    });
    bus.on(Event::BatchReady, [this](Run&) {
      if (is_recording_) intercept_.emplace(layers_, names_);
    });
    bus.on(Event::LossReady, [this](Run&) { intercept_.reset(); });
    bus.on(Event::StepEnd, [this](Run& run) {
      if (is_recording_ && run.step + 1 >= first_ + steps_ - 1) finish(run, run.step + 1);
    });
    for (const auto event : {Event::RunEnd, Event::RunFailed}) {
      bus.on(event, [this](Run& run) {
        if (is_recording_) finish(run, run.step);
      });
    }
  }

 private:
  void start(const Run& run) {
    if (torch::profiler::impl::profilerEnabled()) throw vernier::Error("another profiler of LibTorch is recording");
    if (!run.device.is_cuda()) ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);  // "no GPU" is not an error here
    std::set<ActivityType> activities{ActivityType::CPU};
    if (run.device.is_cuda()) activities.insert(ActivityType::CUDA);
    const torch::profiler::impl::ProfilerConfig config(nvtx_ ? ProfilerState::NVTX : ProfilerState::KINETO, shapes_,
                                                       memory_);
    if (!nvtx_) kineto::prepareProfiler(config, activities);
    kineto::enableProfiler(config, activities);
    vernier::name_listeners(true);
    is_recording_ = true;
  }

  std::unique_ptr<kineto::ProfilerResult> stop() {
    intercept_.reset();
    vernier::name_listeners(false);
    is_recording_ = false;
    return kineto::disableProfiler();
  }

  // last: the last step that was recorded.
  void finish(const Run& run, std::int64_t last) {
    const auto result = stop();
    if (nvtx_) return;
    const auto trace = fs::path(run.output) / trace_, table = fs::path(run.output) / table_;
    result->save(trace.string());
    std::ofstream out(table);
    out << profiler::tables_of(result->events(), first_, last, static_cast<std::size_t>(rows_));
    out.flush();
    if (!out) throw vernier::Error(table.string() + ": cannot be written; the disk may be full");
    std::error_code none;
    if (const auto size = fs::file_size(trace, none); none || size == 0) {  // Kineto reports no failure
      fs::remove(trace.string() + ".tmp", none);
      throw vernier::Error(trace.string() + ": cannot be written; the disk may be full");
    }
    info("recorded steps ", first_, " to ", last, ": ", table.string(), ", and ", trace.string(),
         " for https://ui.perfetto.dev");
  }

  std::int64_t first_, steps_;
  std::string trace_, table_;
  std::int64_t rows_;
  bool shapes_, memory_, nvtx_;
  bool is_recording_ = false;
  vernier::Layers layers_;
  NameLayers names_;
  std::optional<vernier::Intercept> intercept_;
};

}  // namespace

VERNIER_PLUGIN(Profiler, "profiler", "1.0.0")
