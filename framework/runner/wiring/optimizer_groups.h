// [[optimizer.group]] tables with `use`: an optimizer of its own for the parameters that they name.
#pragma once

#include <functional>

#include "wiring.h"

namespace vernier {

// Makes the plugin of an [optimizer] table; where groups have `use`, an optimizer that gives each its own parameters.
Made make_optimizer(const Value& table, const std::function<Made(const Value&)>& make_one);

}  // namespace vernier
