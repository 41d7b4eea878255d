#include <ATen/ops/where.h>
#include <vernier/inner_plugin.h>
#include <vernier/run.h>

namespace vernier {

namespace {
thread_local PluginMaker maker;  // two programs may make their plugins on two threads
}

void set_plugin_maker(PluginMaker next) {
  maker = std::move(next);
}

OuterOptimizer::~OuterOptimizer() = default;

void OuterOptimizer::put(const Run& run, const torch::Tensor& tensor, const torch::Tensor& value) {
  const auto& skips = run.skip_update;
  tensor.copy_(skips.defined() ? at::where(skips.to(tensor.device()).ne(0), tensor, value) : value);
}

std::unique_ptr<Plugin> make_inner_plugin(Options& options, const std::string& role, const char* key,
                                          const std::string& use, const char* meaning) {
  auto table = options.get(key, Table{{"use", Value{use, ""}}}, meaning);
  if (!maker) return nullptr;
  const auto make = maker;  // the inner plugin's own inner ones set it anew
  return make(role, {std::move(table), options.owner() + ": `" + key + "`"});
}

}  // namespace vernier
