// Records which plugin is called in which step, for the text of errors, warnings and crashes.
#pragma once

#include <set>

#include "wiring/wiring.h"

namespace vernier {

// Calls `done` at the end of its scope, unless an exception leaves the scope.
template <class Done>
class [[nodiscard]] OnSuccess {
 public:
  explicit OnSuccess(Done done) : done_(std::move(done)) {}
  OnSuccess(OnSuccess&&) = delete;
  ~OnSuccess() {
    if (std::uncaught_exceptions() == errors_) done_();
  }

 private:
  Done done_;
  int errors_ = std::uncaught_exceptions();
};

// Main thread only.
class Calls {
 public:
  explicit Calls(const Wiring& wiring) : wiring_(wiring) {}
  Calls(Calls&&) = delete;

  const Plugin* called() const { return called_; }  // null: the trainer itself
  const Plugin* running() const;                    // the same, or the plugin whose listener runs now
  bool is_in_step() const { return step_ > 0; }
  void note(const Plugin* plugin) { called_ = plugin; }  // it is called from now on

  // Runs body. Errors, LibTorch's warnings and crashes get the plugin that was called last, and the step. An error of
  // the configuration also gets the place of the plugin's table.
  void attributed(const Run& run, const std::function<void()>& body);
  // Runs a step, or a part of one, in the same way.
  void attributed_in_step(const Run& run, const std::function<void()>& body);

  // While the result lives, a plugin is called, and then its caller again. An error keeps the name of the plugin.
  auto as(const Plugin* plugin) {
    return OnSuccess([this, caller = std::exchange(called_, plugin)] { note(caller); });
  }
  // While the result lives, a step is under way. An error that leaves the scope is one in the step.
  auto in_step(const Run& run) {
    step_ = run.step + 1;
    called_ = nullptr;
    return OnSuccess([this] { step_ = 0; });
  }

 private:
  std::string moment(const Run& run) const;  // " in step 3", " after step 2" or ""

  const Wiring& wiring_;
  const Plugin* called_ = nullptr;
  std::int64_t step_ = 0;           // the current step, from 1; 0: no step is under way
  std::set<std::string> warnings_;  // LibTorch's warnings so far
};

// A plugin of a role. Each call notes the plugin: if something throws, it was the plugin that was called last.
template <class T>
class Role {
 public:
  Role(const std::unique_ptr<T>& plugin, Calls& calls) : plugin_(plugin), calls_(calls) {}
  T* operator->() const {
    calls_.note(plugin_.get());
    return plugin_.get();
  }

 protected:
  void note() const { calls_.note(plugin_.get()); }  // it is called again
  const T* get() const { return plugin_.get(); }

 private:
  const std::unique_ptr<T>& plugin_;  // the wiring's own pointer, which a swap changes
  Calls& calls_;
};

}  // namespace vernier
