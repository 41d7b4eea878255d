#include <vernier/inner_plugin.h>

namespace vernier {

namespace {
PluginMaker maker;
}

void set_plugin_maker(PluginMaker next) {
  maker = std::move(next);
}

std::unique_ptr<Plugin> make_inner_plugin(Options& options, const std::string& role, const char* key,
                                          const std::string& use, const char* meaning) {
  auto table = options.get(key, Table{{"use", Value{use, ""}}}, meaning);
  if (!maker) return nullptr;
  const auto make = maker;  // the inner plugin's own inner ones set it anew
  return make(role, {std::move(table), options.owner() + ": `" + key + "`"});
}

}  // namespace vernier
