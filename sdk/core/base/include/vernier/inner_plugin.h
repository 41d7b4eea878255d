// A plugin inside of another, made from an option: inner = {use = "adamw", learning_rate = 0.001}. It is found, checked
// and has its options read as a plugin of a table of its own.
//
//   MyOptimizer(vernier::Options& options) : inner_(options, "inner", "sgd", "what makes the steps") {
//     remember("inner", inner_);
//   }
//   void prepare(vernier::Run& run) override { inner_.prepare(run); }
//   void step(vernier::Run& run) override { inner_->step(run); }
//
//   vernier::InnerPlugin<vernier::Optimizer> inner_;
#pragma once

#include <vernier/host.h>
#include <vernier/roles.h>

#include <functional>
#include <memory>
#include <string>

namespace vernier {

// Makes a plugin of a role from a table with `use`. Set by the program that hosts plugins.
using PluginMaker = std::function<std::unique_ptr<Plugin>(const std::string& role, const Value& table)>;
VERNIER_API void set_plugin_maker(PluginMaker maker);

// Returns null if no program hosts plugins, as where options are only listed.
VERNIER_API std::unique_ptr<Plugin> make_inner_plugin(Options& options, const std::string& role, const char* key,
                                                      const std::string& use, const char* meaning);

// The outer plugin passes its calls on: its attach(), prepare() and check() call those of the inner one, and its
// metrics() returns the inner one's too.
template <class Role>
class InnerPlugin {
 public:
  // use: the plugin where the option is not given.
  InnerPlugin(Options& options, const char* key, const std::string& use, const char* meaning)
      : plugin_(static_cast<Role*>(make_inner_plugin(options, Role::role, key, use, meaning).release())) {}

  void prepare(Run& run) { HostApi::prepare(*plugin_, run); }
  Role* operator->() const { return plugin_.get(); }
  Role& operator*() const { return *plugin_; }

 private:
  std::unique_ptr<Role> plugin_;
};

}  // namespace vernier
