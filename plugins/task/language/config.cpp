#include "config.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <c10/util/StringUtil.h>
#include <vernier/data_file.h>
#include <vernier/error.h>
#include <vernier/json_in.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

namespace language {

namespace {

constexpr std::uint64_t largest_config = 16'000'000;  // bytes; published ones have some thousand
constexpr double largest_integer = 1e15;

nlohmann::json read_object(const std::string& path) {
  auto json = read_json(path, largest_config);
  if (!json.is_object()) vernier::refuse(path + ": is not a JSON object, which a model's config.json is");
  return json;
}

std::string shown(const nlohmann::json& value) {
  return vernier::shortened(vernier::json_text(value));
}

}  // namespace

nlohmann::json read_json(const std::string& path, std::uint64_t most) {
  constexpr std::size_t deepest = 64;
  const auto text = vernier::read_data_file(path, most);
  if (const auto trouble = vernier::trouble_with_json(text, deepest, INFINITY); !trouble.empty())
    vernier::refuse(path + ": " + trouble);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    // "[json.exception.parse_error.101] parse error at line 3, column 1: syntax error …"
    const std::string what = error.what();
    const auto place = what.find("at line"), reason = what.find(": ", std::min(place, what.size()));
    vernier::refuse(path + ": is not JSON " +
                    (place == std::string::npos ? vernier::shortened(what)
                                                : what.substr(place, reason - place) + ": " +
                                                      vernier::printable(vernier::shortened(what.substr(reason + 2)))));
  }
}

Config::Config(const std::string& folder) : place_(folder + "/config.json: ") {
  std::error_code none;
  if (!std::filesystem::is_directory(folder, none)) {
    vernier::refuse("folder '" + folder +
                    "' is not a folder on this machine, and models are not downloaded; give the path of a model's "
                    "folder, as huggingface-cli download --local-dir writes it");
  }
  object_ = read_object(folder + "/config.json");
}

bool Config::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

void Config::refuse(const std::string& key, const std::string& reason) const {
  const auto found = object_.find(key);
  vernier::refuse(place_ + key + " is " + (found == object_.end() ? "missing" : shown(*found)) + reason);
}

std::int64_t Config::integer(const char* key, std::int64_t fallback, std::int64_t least) const {
  if (!has(key)) return fallback;
  const auto& value = object_.at(key);
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!(number >= static_cast<double>(least) && number <= largest_integer) || number != std::floor(number)) {
    refuse(key, ", and must be a whole number of at least " + std::to_string(least));
  }
  return static_cast<std::int64_t>(number);
}

double Config::number(const char* key, double fallback, double least) const {
  return has(key) ? require_number(key, least) : fallback;
}

double Config::require_number(const char* key, double least) const {
  if (!has(key)) refuse(key, ", and has no default");
  const auto& value = object_.at(key);
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!(number >= least) || !std::isfinite(number)) refuse(key, c10::str(", and must be a number of at least ", least));
  return number;
}

bool Config::flag(const char* key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!object_.at(key).is_boolean()) refuse(key, ", and must be true or false");
  return object_.at(key).get<bool>();
}

std::string Config::text(const char* key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  if (!object_.at(key).is_string()) refuse(key, ", and must be a text");
  return object_.at(key).get<std::string>();
}

Config Config::part(const char* key) const {
  if (!has(key)) return {place_ + key + ".", nlohmann::json::object()};
  if (!object_.at(key).is_object()) refuse(key, ", and must be an object");
  return {place_ + key + ".", object_.at(key)};
}

std::optional<double> Config::number_or_null(const char* key, std::optional<double> fallback, double least) const {
  if (!object_.contains(key)) return fallback;
  if (!has(key)) return std::nullopt;
  return require_number(key, least);
}

std::vector<double> Config::numbers(const char* key) const {
  if (!has(key)) return {};
  const auto& list = object_.at(key);
  const auto is_number = [](const auto& value) { return value.is_number(); };
  if (!list.is_array() || !std::ranges::all_of(list, is_number)) refuse(key, ", and must be a list of numbers");
  return list.get<std::vector<double>>();
}

std::vector<std::string> Config::texts(const char* key) const {
  if (!has(key)) return {};
  const auto& list = object_.at(key);
  const auto is_text = [](const auto& value) { return value.is_string(); };
  if (!list.is_array() || !std::ranges::all_of(list, is_text)) refuse(key, ", and must be a list of texts");
  return list.get<std::vector<std::string>>();
}

void require_model_type(const Config& config, const std::vector<std::string>& model_types, bool is_language_model) {
  if (std::ranges::find(model_types, config.text("model_type", "")) == model_types.end()) {
    std::string known;
    for (const auto& type : model_types) known += (known.empty() ? "\"" : ", \"") + type + '"';
    // The model itself shifts the labels and returns the loss.
    const std::string other =
        "; task/graph trains it after these lines of Python, beside plugins/task/graph/export.py, by inputs and "
        "target = one file of tokens, loss = \"output\" and output = \"loss\":\n"
        "  import torch, transformers, export\n"
        "  model = transformers.AutoModelForCausalLM.from_pretrained(\"" +
        config.folder() +
        "\", use_cache=False)\n"
        "  tokens = torch.randint(100, (4, 128))\n"
        "  export.save(model, [], \"model.pt2\", kwargs={\"input_ids\": tokens, \"labels\": tokens})";
    config.refuse("model_type", (model_types.size() == 1 ? ", and must be " : ", and must be one of ") + known +
                                    " for this task" + (is_language_model && config.has("model_type") ? other : ""));
  }
  if (config.has("quantization_config")) {
    config.refuse("quantization_config", ": its weights are quantised; give the folder of the weights before that");
  }
}

Activation activation_of(const Config& config, const char* key, const std::string& fallback) {
  // transformers has three programs for gelu by tanh, which differ in their last bits alone.
  static const Activation silu = [](const torch::Tensor& x) { return at::silu(x); };
  static const std::map<std::string, Activation> all = {
      {"gelu_new", gelu_by_tanh},
      {"gelu_pytorch_tanh", gelu_by_tanh},
      {"gelu_fast", gelu_by_tanh},
      {"gelu", [](const torch::Tensor& x) { return at::gelu(x); }},
      {"silu", silu},
      {"swish", silu},
      {"relu", [](const torch::Tensor& x) { return at::relu(x); }},
      {"quick_gelu", [](const torch::Tensor& x) { return x * at::sigmoid(1.702 * x); }},
      {"tanh", [](const torch::Tensor& x) { return at::tanh(x); }},
  };
  const auto found = all.find(config.text(key, fallback));
  if (found != all.end()) return found->second;
  std::string names;
  for (const auto& [name, function] : all) names += (names.empty() ? "" : ", ") + name;
  config.refuse(key, ", and must be one of " + names);
}

}  // namespace language
