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
#include <c10/util/ScopeExit.h>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>

namespace {

namespace kineto = torch::autograd::profiler;
namespace fs = std::filesystem;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerState;
using vernier::Event;
using vernier::Run;

constexpr std::string_view layer_prefix = "layer ";

struct Cost {
  std::int64_t calls = 0;
  double total = 0, self = 0;  // seconds
};
using Costs = std::map<std::string, Cost>;

// An event, and what it holds.
struct Timed {
  std::string name;
  std::uint64_t begin = 0, end = 0, thread = 0;
  std::int64_t sequence = -1;  // number of the autograd node that this operation made, or that it computes in backward
  bool is_range = false;       // a range of ours or of the user, not an operator
  bool is_backward = false;    // the computation of an autograd node
  bool is_same_call = false;   // repeats the event around its layer's range, which intercepts the call and passes it on
  std::string layer;           // the layer whose range is around it
  double inner = 0;            // seconds of the events right below it
  double seconds() const { return static_cast<double>(end - begin) * 1e-9; }
};

bool is_on_host(const kineto::KinetoEvent& event) {
  return event.deviceType() == c10::DeviceType::CPU;
}

std::vector<Timed> on_host(const std::vector<kineto::KinetoEvent>& events) {
  constexpr std::string_view backward = "autograd::engine::evaluate_function: ";
  std::vector<Timed> all;
  for (const auto& event : events) {
    if (!is_on_host(event) || event.durationNs() == 0) continue;
    const auto name = event.name();
    if (name == "[memory]") continue;
    all.push_back({name, event.startNs(), event.endNs(), event.startThreadId(), event.sequenceNr(),
                   event.scope() == static_cast<std::uint8_t>(at::RecordScope::USER_SCOPE), name.starts_with(backward),
                   false, "", 0});
  }
  std::ranges::stable_sort(all, [](const Timed& a, const Timed& b) {
    if (a.thread != b.thread) return a.thread < b.thread;
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  return all;
}

// Finds for each event the one around it, on the same thread.
void nest(std::vector<Timed>& events) {
  std::vector<Timed*> around;
  for (auto& event : events) {
    while (!around.empty() && (around.back()->thread != event.thread || around.back()->end <= event.begin)) {
      around.pop_back();
    }
    const bool is_layer = event.is_range && event.name.starts_with(layer_prefix);
    if (is_layer) event.layer = event.name.substr(layer_prefix.size());
    if (!around.empty()) {
      around.back()->inner += event.seconds();
      if (!is_layer) event.layer = around.back()->layer;
      event.is_same_call =
          !is_layer && around.size() > 1 && around.back()->is_range && around[around.size() - 2]->name == event.name;
    }
    around.push_back(&event);
  }
}

void add(Costs& costs, const std::string& name, const Timed& event) {
  auto& cost = costs[name];
  if (!event.is_same_call) {
    cost.calls += 1;
    cost.total += event.seconds();
  }
  cost.self += std::max(0.0, event.seconds() - event.inner);
}

std::string print(const char* format, double value) {
  std::array<char, 48> text;
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

struct Row {
  std::string name;
  std::vector<double> numbers;
};

// The rows with the largest first number, each as a share of `whole`.
std::string list(const std::string& title, const std::vector<std::string>& columns, std::vector<Row> rows,
                 std::size_t most, double whole) {
  if (rows.empty()) return "";
  std::ranges::stable_sort(rows, [](const Row& a, const Row& b) { return a.numbers.front() > b.numbers.front(); });
  const auto left_out = rows.size() > most ? rows.size() - most : 0;
  rows.resize(rows.size() - left_out);
  std::size_t width = title.size();
  for (const auto& row : rows) width = std::max(width, std::min<std::size_t>(row.name.size(), 80));
  const auto padded = [&](std::string text) {
    if (text.size() > width) text = text.substr(0, width - 3) + "...";
    return text + std::string(width - text.size(), ' ');
  };
  std::string text = padded(title);
  for (const auto& column : columns) text += std::string(14 - column.size(), ' ') + column;
  text += "   share\n";
  for (const auto& row : rows) {
    text += padded(row.name);
    for (const double number : row.numbers) text += print("  %12.3f", number);
    text += print("  %5.1f%%\n", whole > 0 ? 100 * row.numbers.front() / whole : 0);
  }
  if (left_out > 0) text += "and " + std::to_string(left_out) + " more\n";
  return text + '\n';
}

std::vector<Row> rows_of(const Costs& costs, double steps, bool has_self) {
  std::vector<Row> rows;
  for (const auto& [name, cost] : costs) {
    Row row{name, {}};
    if (has_self) row.numbers.push_back(1e3 * cost.self / steps);
    row.numbers.push_back(1e3 * cost.total / steps);
    row.numbers.push_back(static_cast<double>(cost.calls) / steps);
    rows.push_back(std::move(row));
  }
  return rows;
}

struct LayerCost {
  double forward = 0, backward = 0;
};

// Backward of a layer is that of the autograd nodes which its operations made in forward.
std::map<std::string, LayerCost> layers_in(const std::vector<Timed>& events) {
  std::map<std::int64_t, std::string> makers;
  std::map<std::string, LayerCost> layers;
  for (const auto& event : events) {
    if (event.layer.empty()) continue;
    if (event.is_range) layers[event.layer].forward += event.seconds();
    if (event.sequence >= 0) makers[event.sequence] = event.layer;
  }
  for (const auto& event : events) {
    const auto found = event.is_backward ? makers.find(event.sequence) : makers.end();
    if (found != makers.end()) layers[found->second].backward += event.seconds();
  }
  return layers;
}

std::vector<Row> rows_of(const std::map<std::string, LayerCost>& layers, double steps) {
  std::vector<Row> rows;
  for (const auto& [name, cost] : layers) {
    rows.push_back(
        {name,
         {1e3 * (cost.forward + cost.backward) / steps, 1e3 * cost.forward / steps, 1e3 * cost.backward / steps}});
  }
  return rows;
}

Costs kernels_in(const std::vector<kineto::KinetoEvent>& events) {
  Costs kernels;
  for (const auto& event : events) {
    if (is_on_host(event) || event.durationNs() == 0) continue;
    auto& cost = kernels[event.name()];
    cost.calls += 1;
    cost.total += static_cast<double>(event.durationNs()) * 1e-9;
  }
  return kernels;
}

// Steps `first` to `last` were recorded. rows: the most of each list.
std::string tables_of(const std::vector<kineto::KinetoEvent>& events, std::int64_t first, std::int64_t last,
                      std::size_t rows) {
  auto timed = on_host(events);
  nest(timed);
  Costs parts, operations;
  for (const auto& event : timed) {
    if (!event.is_range) {
      add(operations, event.name, event);
    } else if (!event.name.starts_with(layer_prefix) && !event.name.starts_with("callback/profiler at ")) {
      add(parts, event.name, event);
    }
  }
  const auto steps = static_cast<double>(last - first + 1);
  std::uint64_t begin = timed.empty() ? 0 : timed.front().begin, end = 0;
  for (const auto& event : timed) {
    begin = std::min(begin, event.begin);
    end = std::max(end, event.end);
  }
  const double whole = 1e3 * static_cast<double>(end - begin) * 1e-9 / steps;
  std::string text = "steps " + std::to_string(first) + " to " + std::to_string(last) + ": " + print("%.3f", whole) +
                     " ms a step while it is recorded; all times are in ms a step\n\n";
  text += list("part", {"total", "calls"}, rows_of(parts, steps, false), rows, whole);
  text += list("operation", {"self", "total", "calls"}, rows_of(operations, steps, true), rows, whole);
  text += list("layer", {"both", "forward", "backward"}, rows_of(layers_in(timed), steps), rows, whole);
  text += list("kernel on the GPU", {"total", "calls"}, rows_of(kernels_in(events), steps, false), rows, whole);
  return text;
}

// Gives each operation that uses a layer's weight a range with the layer's name.
struct NameLayers final : vernier::Interceptor {
  bool changes(std::string_view) const override { return false; }
  vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
    if (operation.layer().empty()) return operation.proceed(std::move(arguments));
    at::RecordFunction range(at::RecordScope::USER_SCOPE);
    if (range.isActive()) range.before(std::string(layer_prefix).append(operation.layer()));
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

  void check(const Run& run) override {
    if (run.steps > 0 && first_ > run.steps) {
      warn("it records nothing: first_step = ", first_, ", and the run has ", run.steps, " steps");
    }
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](Run& run) {
      if (run.step < first_ || fs::exists(fs::path(run.output) / table_)) return;
      warn("it records nothing: first_step = ", first_, ", and the run resumes after step ", run.step);
    });
    bus.on(Event::StepBegin, [this](Run& run) {
      if (run.step + 1 == first_ && !is_recording_) start(run);
    });
    bus.on(Event::BatchReady, [this](Run&) {
      if (is_recording_) intercept_.emplace(layers_, names_);
    });
    bus.on(Event::LossReady, [this](Run&) { intercept_.reset(); });
    bus.on(Event::StepEnd, [this](Run& run) {
      if (is_recording_ && run.step >= first_ + steps_ - 1) finish(run, run.step);
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
    constexpr const char* level = "KINETO_LOG_LEVEL";
    const bool hides = !run.device.is_cuda() && std::getenv(level) == nullptr;  // "no GPU" is not an error here
    if (hides) ::setenv(level, "5", /*overwrite=*/1);
    const auto restored = c10::make_scope_exit([&] {
      if (hides) ::unsetenv(level);
    });
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
    out << tables_of(result->events(), first_, last, static_cast<std::size_t>(rows_));
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
