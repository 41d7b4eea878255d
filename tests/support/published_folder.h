// Published folders of the small models that tests/oracles/published_models.py recorded.
#pragma once

#include <vernier/safetensors.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "loaded_task.h"
#include "oracle.h"
#include "same_tensors.h"
#include "temporary_folder.h"

namespace published_folder {

inline std::string task_of(const std::string& variant) {
  return variant.starts_with("gpt2") ? "gpt" : "llama";
}

// "h.0.ln_1.weight 8", one for each tensor of the variant's file.
inline std::vector<std::string> lines_of(const Oracle& oracle, const std::string& variant) {
  std::istringstream text(bytes_of(oracle[variant + ".names"]));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

inline std::vector<std::string> variants_of(const Oracle& oracle) {
  const std::string end = ".config";
  std::vector<std::string> variants;
  for (const auto& [name, tensor] : oracle.tensors()) {
    if (name.ends_with(end)) variants.push_back(name.substr(0, name.size() - end.size()));
  }
  return variants;
}

inline vernier::Tensors weights_of(const Oracle& oracle, const std::string& variant) {
  vernier::Tensors weights;
  for (const auto& line : lines_of(oracle, variant)) weights[line.substr(0, line.find(' '))] = oracle["weight." + line];
  return weights;
}

// A folder with a variant's model, and its first window of tokens, for the options of a task.
struct PublishedFolder {
  explicit PublishedFolder(const std::string& name,
                           const std::function<void(nlohmann::json& config, vernier::Tensors& weights)>& change = {})
      : variant(name) {
    auto config = nlohmann::json::parse(bytes_of(oracle[variant + ".config"]));
    auto weights = weights_of(oracle, variant);
    if (change) change(config, weights);
    folder.write("model/config.json", config.dump());
    vernier::save_safetensors(folder / "model/model.safetensors", weights);
    folder.write("tokens.bin", bytes_of(oracle["tokens"].flatten().to(torch::kInt16)));
  }

  vernier::Table table(vernier::Table more = {}) const {
    vernier::Table table = {{"folder", value(folder / "model")},
                            {"data", list<std::string>({folder / "tokens.bin"})},
                            {"context", value(oracle["tokens"].size(1) - 1)},
                            {"stride", value(oracle["tokens"].size(1))},
                            {"batch_size", value(2)},
                            {"order", value("sequential")},
                            {"validation_share", value(0.0)},
                            {"dropout", value(0.0)}};
    for (auto& [key, entry] : more) table[key] = entry;
    return table;
  }
  LoadedTask load(vernier::Table more = {}) const { return LoadedTask(task_of(variant), table(std::move(more))); }
  std::string refusal_of(vernier::Table more = {}) const {
    return refusal([&] { load(std::move(more)); });
  }

  Oracle oracle{"published_models"};
  TemporaryFolder folder;
  std::string variant;
};

}  // namespace published_folder
