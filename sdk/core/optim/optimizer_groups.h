// [[optimizer.group]] tables with `use`: an optimizer of its own for the parameters that they name.
#pragma once

#include <vernier/options.h>
#include <vernier/roles.h>

#include <functional>
#include <memory>

namespace vernier {

// A plugin with the options that it has read.
struct MadePlugin {
  std::unique_ptr<Plugin> plugin;
  Options options;
};

// Makes the plugin of an [optimizer] table; where groups have `use`, an optimizer that gives each its own parameters.
VERNIER_API MadePlugin make_optimizer(const Value& table, const std::function<MadePlugin(const Value&)>& make_one);

}  // namespace vernier
