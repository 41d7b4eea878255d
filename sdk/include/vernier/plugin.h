// What all plugins share. The life of one: constructor (reads its Options, nothing else), attach, prepare, load where a
// run is resumed, then the calls of its role and of its listeners, save at each checkpoint, destructor.
// All on the main thread; exceptions are welcome and end the run with the plugin named.
#pragma once

#include <c10/util/StringUtil.h>
#include <vernier/event.h>
#include <vernier/options.h>
#include <vernier/state.h>

#include <string>

namespace vernier {

enum class Level { debug, info, warning, error };
// Where log lines go; the runner sets its own, the default writes warnings and errors to stderr.
using LogSink = void (*)(Level level, const std::string& who, const std::string& text);
VERNIER_API void set_log_sink(LogSink sink);
VERNIER_API void log(Level level, const std::string& who, const std::string& text);  // any thread

class VERNIER_API Plugin {
 public:
  Plugin() = default;
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;
  virtual ~Plugin();

  // Called once, before prepare: bus.on(Event::StepEnd, [this](Run& run) { … }).
  virtual void attach(Bus& bus);
  // Called once, in the order task, precision, scaler, accumulation, optimizer, checkpoint, distributed, callbacks,
  // monitors. The place to refuse what this machine or model cannot do.
  virtual void prepare(Run& run);
  // What the next steps depend on; save → load into a fresh plugin → the same next steps, bit for bit. Called for each
  // checkpoint; of roles but the optimizer, and of who listens to events before the update, also before each step, which
  // is undone where it fails: so in microseconds, with large tensors as they are (the caller copies).
  virtual State save() const;
  virtual void load(const State& state);

  const std::string& id() const { return id_; }  // "scaler/dynamic"; set by the host after construction
  void set_id(std::string id) { id_ = std::move(id); }
  const std::string& version() const { return version_; }  // as VERNIER_PLUGIN says it; set by the host
  void set_version(std::string version) { version_ = std::move(version); }

 protected:
  template <class... Parts>
  void info(const Parts&... parts) const { log(Level::info, id_, c10::str(parts...)); }
  template <class... Parts>
  void warn(const Parts&... parts) const { log(Level::warning, id_, c10::str(parts...)); }

 private:
  std::string id_, version_;
};

}  // namespace vernier
