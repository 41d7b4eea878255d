// A configuration as one list of values, to compare it with another one.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace vernier {

// "task.use": "mlp". Callbacks and monitors go by their names: "callback.clip_norm.max_norm".
std::map<std::string, std::string> flat_configuration(const nlohmann::ordered_json& configuration);

}  // namespace vernier
