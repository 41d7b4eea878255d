// The base class of all plugins. A plugin's calls come in this order: constructor (it reads only its Options), attach,
// prepare, check, load (if the run is resumed). Then come the functions of its role, its listeners, and save at each
// checkpoint; at last the destructor. All calls are on the main thread, the one that made the trainer. An exception
// ends the run with an error that names the plugin; one in a monitor's listener only detaches the monitor.
#pragma once

#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/event.h>
#include <vernier/metrics.h>
#include <vernier/options.h>
#include <vernier/state.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

enum class Level { debug, info, warning, error };
// Receives the log lines. The runner sets its own sink; the default one writes warnings and errors to stderr.
using LogSink = void (*)(Level level, const std::string& who, const std::string& text);
VERNIER_API void set_log_sink(LogSink sink);
VERNIER_API void log(Level level, const std::string& who, const std::string& text);  // any thread

class VERNIER_API Plugin {
 public:
  Plugin() = default;
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;
  virtual ~Plugin();

  // Called once, before prepare. Registers listeners: bus.on(Event::StepEnd, [this](Run& run) { … }).
  virtual void attach(Bus& bus);
  // Called after attach for each other plugin, and again after a swap. Names an option of this plugin with which the
  // two cannot train together, and why; the runner refuses it. `bus` knows what the other listens to.
  virtual Contradiction contradicts(const Plugin& other, const Bus& bus) const;
  // Called once, in the order distributed, task, precision, scaler, accumulation, optimizer, checkpoint, callbacks,
  // monitors. Throw Error here if the plugin does not support this machine or model.
  virtual void prepare(Run& run);
  // Called once, after every plugin is prepared: before the first step, by `vernier check`, and after a swap. Throw
  // Error here if the plugin could never act in this run, or not as its options say: see Run::measures and validations.
  virtual void check(const Run& run);
  // Returns all that the next steps depend on: a fresh plugin that loads it computes the same next steps, bit for bit.
  // Called for each checkpoint. It is also called before each step, so that a failed step can be undone. This applies
  // to roles except optimizer and checkpoint, and to callbacks that listen to an event before the update. So it must
  // return within microseconds. Return large tensors without copying; the caller copies.
  virtual State save() const;
  // Restores what save() returned. Called after prepare() if the run is resumed, and when a step is undone or rerun.
  // Tensors may be on the CPU, whatever device save() had them on. Copy them, because the caller may go on using them.
  // Throw Error if an entry is missing or does not fit. The defaults of both keep what remember() names.
  virtual void load(const State& state);
  // Called around each evaluation of the model: validations, `vernier evaluate`, `export`, `generate`, `predict`. The
  // model is in evaluation mode, without gradients. body evaluates and returns the loss, which may be undefined. Put
  // other weights in for that time, such as an average of them (with_weights.h), or look at more than the loss. The
  // last callback in the TOML is the outermost of the callbacks, and the other roles are around them.
  virtual torch::Tensor evaluate(Run& run, const std::function<torch::Tensor()>& body);
  // Called once for each role that the TOML leaves out: a plugin that fills two roles returns the object for the
  // second, which may refer to this plugin and is destroyed before it. Null: the role has its default. For "callback":
  // one more.
  virtual std::unique_ptr<Plugin> fill(const std::string& role);
  // Called once, after every plugin is prepared, and after a swap. Declares the metrics that this plugin sets, as its
  // constructor declares its options. Those that measures() of a task or callback returns are declared thereby.
  virtual std::vector<MetricInfo> metrics() const;
  // Called when a micro-batch does not fit into memory: of the accumulation if it has several samples, of the task if
  // it has one. Returns what the user can change, as the end of a sentence; "" if nothing.
  virtual std::string memory_remedy() const;

  const std::string& id() const { return id_; }            // "scaler/dynamic"; set by the host after construction
  const std::string& version() const { return version_; }  // from VERNIER_PLUGIN; set by the host

 protected:
  // Called in the constructor: names a member on which the next steps depend. The default save() and load() keep it
  // under this name, so do not override them. Numbers, bools and texts are kept exactly. A tensor is loaded
  // in the dtype and onto the device that the member has after prepare(); if it is undefined then, onto the run's
  // device. A tensor that was undefined is loaded as undefined. A map of tensors has its keys below "name/". So has a
  // part with save() and load(), or with state_dict() and load_state_dict(); the name "" puts its entries beside the
  // others. A part may be an optional or a pointer that prepare() fills. An entry that is missing throws Error with its
  // name.
  template <class Member>
  void remember(const std::string& name, Member& member) {
    const auto held = [&member]() -> auto& {
      if constexpr (requires { *member; }) {
        return *member;
      } else {
        return member;
      }
    };
    remember([name, held](State& state) { state.put(name, std::as_const(held())); },
             [this, name, held](const State& state) { state.get(name, held(), device_); });
  }
  // The same for anything else: put adds entries to what is saved, get reads them.
  void remember(std::function<void(State&)> put, std::function<void(const State&)> get);
  void set_id(std::string id) { id_ = std::move(id); }  // names an object that a program makes itself
  template <class... Parts>
  void info(const Parts&... parts) const {
    log(Level::info, id_, c10::str(parts...));
  }
  template <class... Parts>
  void warn(const Parts&... parts) const {
    log(Level::warning, id_, c10::str(parts...));
  }

 private:
  friend struct HostApi;
  struct Memory {
    std::function<void(State&)> put;
    std::function<void(const State&)> get;
  };

  std::vector<Memory> memory_;
  torch::Device device_{torch::kCPU};  // device of the run, from prepare() on
  std::string id_, version_;
};

}  // namespace vernier
