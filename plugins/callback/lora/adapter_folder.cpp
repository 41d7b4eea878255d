#include "adapter_folder.h"

#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data_file.h>
#include <vernier/error.h>
#include <vernier/json_in.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace lora {

namespace {

using Json = nlohmann::json;

constexpr std::uint64_t largest_config = 16'000'000;  // bytes
const std::string prefix = "base_model.model.", end = ".lora_A.weight";

// The keys that are read, or that change no number of a trained adapter.
constexpr std::array known = {"peft_type",
                              "r",
                              "lora_alpha",
                              "lora_dropout",
                              "target_modules",
                              "fan_in_fan_out",
                              "use_rslora",
                              "use_dora",
                              "bias",
                              "modules_to_save",
                              "ensure_weight_tying",
                              "init_lora_weights",
                              "inference_mode",
                              "task_type",
                              "revision",
                              "auto_mapping",
                              "peft_version",
                              "exclude_modules",
                              "layers_to_transform",
                              "layers_pattern",
                              "megatron_core",
                              "qalora_group_size",
                              "base_model_name_or_path",
                              "eva_config",
                              "runtime_config"};

bool is_nothing(const Json& value) {
  return value.is_null() || value == false ||
         ((value.is_array() || value.is_object() || value.is_string()) && value.empty());
}

Json read_config(const std::string& path) {
  auto config = vernier::json_in<Json>(vernier::read_data_file(path, largest_config));
  if (!config.is_object()) vernier::refuse(path + ": is not a JSON object, as PEFT writes it");
  return config;
}

void refuse_unknown(const std::string& path, const Json& config) {
  const auto refuse = [&](const char* key, const std::string& reason) {
    vernier::refuse(path + ": " + key + " is " + vernier::shortened(vernier::json_text(config[key])) + ", and " +
                    reason);
  };
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::find(known, key) != known.end() || is_nothing(value)) continue;
    refuse(key.c_str(), "callback/lora does not know it");
  }
  if (config.value("peft_type", Json()) != "LORA") {
    vernier::refuse(path + ": peft_type is not \"LORA\", the only kind of adapter that is read");
  }
  if (config.value("bias", Json("none")) != "none") refuse("bias", "biases stay frozen here; it must be \"none\"");
  const auto start = config.value("init_lora_weights", Json(true));
  for (const auto* other : {"pissa", "olora", "corda", "loftq"}) {
    if (start.is_string() && start.get<std::string>().starts_with(other)) {
      refuse("init_lora_weights", "that changes the model's own weights; convert the adapter with PEFT");
    }
  }
}

// One of both names may have a longer beginning, such as "transformer.wte" in a file and "wte" in the model.
bool is_layer(const std::string& own, const std::string& in_file) {
  return own == in_file || in_file.ends_with("." + own) || own.ends_with("." + in_file);
}

template <class T>
T value_of(const std::string& path, const Json& config, const char* key, bool (Json::*is_right)() const) {
  const auto found = config.find(key);
  if (found == config.end() || !((*found).*is_right)()) {
    vernier::refuse(path + ": " + key +
                    (found == config.end() ? " is missing" : " is of another type than PEFT writes"));
  }
  return found->get<T>();
}

}  // namespace

AdapterFolder::AdapterFolder(const std::string& path) : path_(path) {
  const auto file = path + "/adapter_config.json";
  auto config = read_config(file);
  refuse_unknown(file, config);
  for (const char* flag : {"use_rslora", "use_dora", "fan_in_fan_out"}) {
    if (!config.contains(flag) || config[flag].is_null()) config[flag] = false;
  }
  if (!config.contains("lora_dropout")) config["lora_dropout"] = 0.0;
  shape_.rank = value_of<std::int64_t>(file, config, "r", &Json::is_number_integer);
  shape_.alpha = value_of<double>(file, config, "lora_alpha", &Json::is_number);
  shape_.dropout = value_of<double>(file, config, "lora_dropout", &Json::is_number);
  shape_.rslora = value_of<bool>(file, config, "use_rslora", &Json::is_boolean);
  shape_.dora = value_of<bool>(file, config, "use_dora", &Json::is_boolean);
  shape_.fan_in_fan_out = value_of<bool>(file, config, "fan_in_fan_out", &Json::is_boolean);
  is_tied_ = config.value("ensure_weight_tying", Json()) == true;
  if (shape_.rank < 1) vernier::refuse(file + ": r is below 1");
  for (auto& [name, tensor] : vernier::load_safetensors(path + "/adapter_model.safetensors")) {
    if (!name.starts_with(prefix)) refuse("tensor '" + name + "' does not begin with " + prefix);
    tensors_[name.substr(prefix.size())] = tensor;
  }
}

void AdapterFolder::refuse(const std::string& reason) const {
  vernier::refuse(path_ + "/adapter_model.safetensors: " + reason);
}

const std::string& AdapterFolder::own_name(const std::vector<std::string>& layers, const std::string& name) const {
  const auto exact = std::ranges::find(layers, name);
  const auto is_it = [&](const std::string& own) { return is_layer(own, name); };
  const auto found = exact != layers.end() ? exact : std::ranges::find_if(layers, is_it);
  if (found == layers.end()) refuse("it adapts the layer '" + name + "', which the model does not have");
  return *found;
}

void AdapterFolder::find_layers(const std::vector<std::string>& layers) {
  const auto is_there = [&](const std::string& name) {
    const auto layer = name.substr(0, name.rfind('.'));
    return std::ranges::any_of(layers, [&](const auto& own) { return is_layer(own, layer); });
  };
  const auto is_tied = [&](const auto& entry) {  // such as the head that is the embedding in this model
    const auto& [name, tensor] = entry;
    return name.find(".lora_") == std::string::npos && !is_there(name) &&
           std::ranges::any_of(tensors_, [&](const auto& other) {
             return is_there(other.first) && other.second.scalar_type() == tensor.scalar_type() &&
                    other.second.equal(tensor);
           });
  };
  if (is_tied_) std::erase_if(tensors_, is_tied);
  for (const auto& [name, tensor] : tensors_) {
    const bool is_matrix = name.ends_with(end);
    if (!is_matrix && name.find(".lora_") != std::string::npos) continue;  // put() takes it, or nobody does
    const auto in_file = name.substr(0, is_matrix ? name.size() - end.size() : name.rfind('.'));
    const auto& own = own_name(layers, in_file);
    if (is_matrix) {
      matrices_[own] = in_file;
    } else if (names_of_whole_.emplace(own, in_file).second) {
      whole_.push_back(own);
    }
  }
  if (matrices_.empty()) refuse("it has no tensor that ends in " + end);
}

void AdapterFolder::put(const std::string& layer, const std::string& part, torch::Tensor into) {
  const auto in_file = matrices_.count(layer) > 0 ? matrices_.at(layer) : names_of_whole_.at(layer);
  const auto name = in_file + "." + part;
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) refuse("has no tensor '" + prefix + name + "'");
  if (found->second.sizes() != into.sizes()) {
    refuse(c10::str("tensor '", prefix, name, "' is ", found->second.sizes(), ", and must be ", into.sizes()));
  }
  const torch::NoGradGuard no_grad;
  into.copy_(found->second);
  tensors_.erase(found);
}

void AdapterFolder::refuse_unused() const {
  if (!tensors_.empty()) refuse("callback/lora does not know the tensor '" + prefix + tensors_.begin()->first + "'");
}

}  // namespace lora
