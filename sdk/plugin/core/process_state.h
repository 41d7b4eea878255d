// For the host: what belongs to the whole process or to its main thread, which a plugin leaves as it was. Main thread.
#pragma once

#include <vernier/abi.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <locale>
#include <string>
#include <vector>

namespace vernier {

// The floating-point mode, signals, locale, umask, working directory, threads, LibTorch's allocator and its modes of
// the main thread.
class VERNIER_API ProcessState {
 public:
  static ProcessState now();  // takes microseconds
  // Returns the first that differs in `later`, by name, as in "the floating-point mode"; "" if all are equal.
  std::string changed_in(const ProcessState& later) const;
  // Makes all as they were.
  void restore() const;

 private:
  std::vector<std::int64_t> modes_;            // in the order of the table in process_state.cpp
  std::array<struct sigaction, 32> handlers_;  // by signal
  std::locale cpp_locale_;
  std::string c_locale_, folder_;
};

// A call of a plugin outside of the training: the opening of its library, its constructor, attach, prepare, …
//
// While it lives, a crash or exit() is said in the plugin's name. At its end, what the plugin has changed of the
// process is put back, with a warning.
class VERNIER_API PluginCall {
 public:
  PluginCall(std::string who, std::string doing);  // "callback/ema", "in its constructor"
  PluginCall(const PluginCall&) = delete;
  PluginCall& operator=(const PluginCall&) = delete;
  ~PluginCall();

  // Returns what such a warning said first in this process; "" if there was none.
  static const std::string& first_warning();
  static const PluginCall* now();  // the innermost, or null; a signal handler may ask too
  const std::string& who() const { return who_; }
  const std::string& doing() const { return doing_; }

 private:
  std::string who_, doing_;
  const PluginCall* outer_;
  ProcessState before_;
};

// After a library was opened: the code at this address, and all of its library, is the plugin's of this id.
VERNIER_API void note_opened(const void* in_library, const std::string& id);
// Returns the id of the plugin whose code this thread runs: the innermost on the stack. Null if there is none. A signal
// handler may ask too; the stack may be damaged: then the signal comes again, and the second call returns null.
VERNIER_API const char* running_plugin();

}  // namespace vernier
