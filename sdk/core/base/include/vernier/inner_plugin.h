// A plugin inside of another, made from an option: inner = {use = "adamw", learning_rate = 0.001}. It is found, checked
// and has its options read as a plugin of a table of its own. An optimizer around another one:
//
//   class Twice final : public vernier::OuterOptimizer {
//    public:
//     explicit Twice(vernier::Options& options) : OuterOptimizer(options, "sgd") {}
//     void step(vernier::Run& run) override {
//       for (int i = 0; i < 2; ++i) inner->step(run);
//     }
//   };
#pragma once

#include <vernier/host.h>
#include <vernier/roles.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

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

// An optimizer around the one of its option `inner`. What it does not override goes to the inner one, but for
// divides_gradients(), updates_each_alone(), memory_remedy() and fill(). An override of
// attach(), contradicts(), prepare(), check(), metrics() or evaluate() calls that of this class too.
class VERNIER_API OuterOptimizer : public Optimizer {
 public:
  // use: the plugin where the option is not given.
  explicit OuterOptimizer(Options& options, const std::string& use = "adamw")
      : inner(options, "inner", use, "the optimizer that makes the steps") {
    remember("inner", inner);
  }
  ~OuterOptimizer() override;
  void attach(Bus& bus) override { inner->attach(bus); }
  Contradiction contradicts(const Plugin& other, const Bus& bus) const override {
    return inner->contradicts(other, bus);
  }
  void prepare(Run& run) override { inner.prepare(run); }
  void check(const Run& run) override { inner->check(run); }
  void step(Run& run) override { inner->step(run); }
  bool steps_in_backward() const override { return inner->steps_in_backward(); }
  std::vector<MetricInfo> metrics() const override { return inner->metrics(); }
  torch::Tensor evaluate(Run& run, const std::function<torch::Tensor()>& body) override {
    return inner->evaluate(run, body);
  }

 protected:
  // Called in step(), without gradient mode: copies a value into a tensor, unless the update is skipped. No host sync.
  static void put(const Run& run, const torch::Tensor& tensor, const torch::Tensor& value);

  InnerPlugin<Optimizer> inner;
};

}  // namespace vernier
