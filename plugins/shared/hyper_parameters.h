// The options of a run, for monitors that compare runs by them.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace vernier {

using HyperParameter = std::pair<std::string, std::variant<bool, double, std::string>>;

// Reads the options of config.toml, which the runner writes into a run's folder, but those of monitors:
// "optimizer.learning_rate", and "callback.clip_norm.max_norm" for one of several plugins. Lists are texts. Empty where
// there is no such file.
std::vector<HyperParameter> hyper_parameters(const std::string& output);

// The whole file; "" if there is none.
std::string text_in(const std::filesystem::path& file);

}  // namespace vernier
