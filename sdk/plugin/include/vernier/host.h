// For programs that host plugins: the trainer, and tests that call a plugin themselves. sdk.h does not include it.
#pragma once

#include <vernier/event.h>
#include <vernier/options.h>
#include <vernier/plugin.h>
#include <vernier/run.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vernier {

struct Counters {
  std::int64_t step = 0, updates = 0, epoch = 0, samples = 0, tokens = 0, batches_drawn = 0;
  UpdateResult last_update = UpdateResult::none;
  AmpStats amp;
};

// The values that Run shows to plugins as constants: see there.
struct RunFacts : Counters {
  // When gradients() and gradient_norm() are valid: any where no trainer says.
  enum class Moment { any, gradients, other };
  Moment moment = Moment::any;
  std::string name, output, replayed_from, replay_command = "vernier replay";
  torch::Device device{torch::kCPU};
  bool quiet = false, validates = false, results_are_late = false;
  std::uint64_t seed = 1;
  std::int64_t steps = 0;
  std::shared_ptr<torch::nn::Module> model;
  std::vector<Parameter> parameters;
  std::optional<std::vector<MetricInfo>> measures;
  MetricInfos metric_infos;
  std::int64_t validations = 0;
  std::string emulated;
  Control* control = nullptr;
  const std::atomic<int>* stop = nullptr;  // not 0: the run is asked to end
};

// A run as its owner has it: all that plugins only read can be changed.
struct TrainerRun : RunFacts, Run {
  TrainerRun() : Run(static_cast<RunFacts&>(*this)) {}
  using Counters::amp, Counters::batches_drawn, Counters::epoch, Counters::last_update, Counters::samples;
  using Counters::step, Counters::tokens, Counters::updates;
  using RunFacts::control, RunFacts::device, RunFacts::emulated, RunFacts::measures, RunFacts::metric_infos;
  using RunFacts::model, RunFacts::name, RunFacts::output, RunFacts::parameters, RunFacts::quiet;
  using RunFacts::replay_command, RunFacts::replayed_from, RunFacts::results_are_late, RunFacts::seed, RunFacts::steps;
  using RunFacts::validates, RunFacts::validations;
};

// All that only a host may do with plugins, their options, the bus and metrics. Main thread only.
struct VERNIER_API HostApi {
  using LessMemory = Options::LessMemory;  // see Options::saves_memory

  static void set_id(Plugin& plugin, std::string id) { plugin.id_ = std::move(id); }
  static void set_version(Plugin& plugin, std::string version) { plugin.version_ = std::move(version); }

  static void prepare(Plugin& plugin, Run& run) {
    plugin.device_ = run.device;
    plugin.prepare(run);
  }

  // Lets the plugin listen. A monitor is called after all others and can be detached.
  static void attach(Bus& bus, Plugin& plugin, bool monitor);
  // Between two events: `next` listens in the place of a role's plugin, which is not called again.
  static void replace(Bus& bus, Plugin& plugin, Plugin& next);
  // While muted, monitors are not called, because a step is rerun on the side.
  static void mute_monitors(Bus& bus, bool muted) { bus.is_muted_ = muted; }
  // Calls the listeners. Without one it costs a comparison.
  static void emit(Bus& bus, Event event, Run& run) {
    if (!bus.listeners_[static_cast<std::size_t>(event)].empty()) bus.tell(event, run);
  }

  static const std::vector<OptionInfo>& declared(const Options& options) { return options.declared_; }
  static const std::vector<LessMemory>& less_memory(const Options& options) { return options.less_memory_; }
  static void refuse_unread(const Options& options) { options.refuse_unread(); }  // keys that no plugin has read
  static void only_describe(Options& options) { options.describing_ = true; }     // required keys read as empty

  // The metric's entry of this step, or null; unlike Metrics::value() no host sync.
  static const Metrics::Entry* find(const Metrics& metrics, std::string_view name);
  static void clear(Metrics& metrics) { metrics.clear(); }  // at the start of a step
  // Adds declarations. The first one of a name counts, and its source names all who declare it.
  static void declare(MetricInfos& known, std::vector<MetricInfo> more, const std::string& source);
};

}  // namespace vernier
