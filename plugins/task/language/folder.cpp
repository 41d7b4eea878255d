#include "folder.h"

#include <vernier/data_file.h>
#include <vernier/error.h>
#include <vernier/json_in.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "config.h"
#include "model_files.h"

namespace language {

namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* head = "lm_head.weight";
constexpr std::uint64_t largest_index = 256'000'000;  // bytes

[[noreturn]] void refuse_tensor(const std::string& file, const std::string& name, const std::string& reason) {
  vernier::refuse(file + ": tensor '" + name + "': " + reason);
}

// True for the files of torch.save(), whole or in shards, which this program does not read.
bool has_pickled_weights(const std::string& folder) {
  std::error_code none;
  return fs::exists(folder + "/pytorch_model.bin", none) || fs::exists(folder + "/pytorch_model.bin.index.json", none);
}

// The files that have the weights, each once.
std::vector<std::string> weight_files(const std::string& folder) {
  const auto whole = folder + "/model.safetensors", index = whole + ".index.json";
  std::error_code none;
  if (fs::exists(whole, none)) return {whole};
  if (!fs::exists(index, none)) {
    vernier::refuse(folder + ": has neither model.safetensors nor model.safetensors.index.json. " +
                    (has_pickled_weights(folder)
                         ? "It has pytorch_model.bin: save it with safetensors in Python"
                         : "Download one of them. Set weights = \"random\" to begin task/gpt or task/llama "
                           "with random weights"));
  }
  const auto json = read_json(index, largest_index);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object() || map->empty()) {
    vernier::refuse(index + ": has no weight_map, an object with the file of each tensor");
  }
  std::set<std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    const auto name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos) {
      refuse_tensor(index, tensor,
                    "its file is " + vernier::json_text(file) + ", and must be the name of a file in this folder");
    }
    files.insert(folder + "/" + name);
  }
  return {files.begin(), files.end()};
}

std::string without_prefix(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

// True for buffers that old programs wrote beside the weights; the model computes them itself.
bool is_computed(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

bool is_weight_type(torch::ScalarType type) {
  return type == torch::kFloat32 || type == torch::kBFloat16 || type == torch::kFloat16 || type == torch::kFloat64;
}

// Puts the tensors of one file after the other into the network.
class Reader {
 public:
  Reader(Network& network, const Layout& layout, bool grows)
      : layout_(layout), is_tied_(network.is_tied()), has_head_(network.has_head()), grows_(grows) {
    for (const auto& entry : network.named_parameters()) {
      missing_.insert(own_name(entry.key()));
      parameters_[own_name(entry.key())] = entry.value();
    }
  }

  void take(const std::string& file) {
    for (const auto& [published, tensor] : load(file)) {
      const auto name = without_prefix(published, layout_.prefix);
      if (is_computed(name) || is_other_head(name)) continue;
      if (name == head && is_tied_) {
        head_ = tensor, head_file_ = file;
        continue;
      }
      put(file, published, name, tensor);
    }
  }

  void finish(const std::string& folder) const {
    if (!missing_.empty()) {
      std::vector<std::string> names;
      for (const auto& name : missing_) names.push_back(name == head ? name : layout_.prefix + name);
      vernier::refuse(folder + ": its weights have no tensor " + vernier::some_of(names) +
                      ", which the model of its config.json has");
    }
    if (!head_.defined()) return;
    auto embedding = parameters_.at(layout_.embedding);
    if (grows_ && head_.dim() == 2) embedding = embedding.slice(0, 0, head_.size(0));
    if (head_.sizes() == embedding.sizes() && head_.to(torch::kFloat32).equal(embedding)) return;
    refuse_tensor(head_file_, head,
                  "differs from the token embedding, and tie_word_embeddings of config.json says that they are one; "
                  "set it to false there");
  }

 private:
  std::string own_name(const std::string& name) const {
    return layout_.is_in_model ? without_prefix(name, layout_.prefix) : name;
  }

  static vernier::Tensors load(const std::string& file) {
    try {
      return vernier::load_safetensors(file);
    } catch (const vernier::Error& error) {
      vernier::refuse(error.what());
    }
  }

  // Heads of a file that the network does not have: for tokens, or of a classification.
  bool is_other_head(const std::string& name) const { return !has_head_ && (name == head || name == "score.weight"); }

  void put(const std::string& file, const std::string& published, const std::string& name,
           const torch::Tensor& tensor) {
    const auto found = parameters_.find(name);
    if (found == parameters_.end()) {
      refuse_tensor(file, published, "is not one of the model that config.json describes");
    }
    auto& parameter = found->second;
    if (missing_.erase(name) == 0) refuse_tensor(file, published, "is there twice");
    if (grows(name, tensor, parameter)) return put_rows(file, published, tensor, parameter);
    if (tensor.sizes() != parameter.sizes()) {
      refuse_tensor(file, published,
                    c10::str("is ", tensor.sizes(), ", and must be ", parameter.sizes(), " by config.json"));
    }
    if (!is_weight_type(tensor.scalar_type())) {
      refuse_tensor(file, published, c10::str("has the dtype ", tensor.scalar_type(), ", which is none of weights"));
    }
    const torch::NoGradGuard no_grad;
    parameter.copy_(tensor);
    refuse_not_finite(file, published, parameter);
  }

  static void refuse_not_finite(const std::string& file, const std::string& published, const torch::Tensor& parameter) {
    if (!parameter.isfinite().all().item<bool>()) refuse_tensor(file, published, "has a number that is not finite");
  }

  // True for a token embedding or a head with fewer rows than the model's.
  bool grows(const std::string& name, const torch::Tensor& tensor, const torch::Tensor& parameter) const {
    return grows_ && (name == layout_.embedding || name == head) && tensor.dim() == 2 &&
           is_weight_type(tensor.scalar_type()) && tensor.size(1) == parameter.size(1) &&
           tensor.size(0) < parameter.size(0);
  }

  static void put_rows(const std::string& file, const std::string& published, const torch::Tensor& tensor,
                       torch::Tensor& parameter) {
    const torch::NoGradGuard no_grad;
    parameter.slice(0, 0, tensor.size(0)).copy_(tensor);
    parameter.slice(0, tensor.size(0)).copy_(tensor.to(torch::kFloat32).mean(0, /*keepdim=*/true));
    refuse_not_finite(file, published, parameter);
  }

  const Layout& layout_;
  bool is_tied_, has_head_, grows_;
  vernier::Tensors parameters_;
  std::set<std::string> missing_;
  torch::Tensor head_;
  std::string head_file_;
};

const char* name_of(torch::ScalarType type) {
  return type == torch::kBFloat16 ? "bfloat16" : type == torch::kFloat16 ? "float16" : "float32";
}

// float32 where some weights are kept in another dtype than the others.
torch::ScalarType common_type(const vernier::Tensors& tensors) {
  const auto first = tensors.begin()->second.scalar_type();
  const auto is_other = [first](const auto& named) { return named.second.scalar_type() != first; };
  return std::ranges::any_of(tensors, is_other) ? torch::kFloat32 : first;
}

void write_config(const std::string& to, const std::string& source, torch::ScalarType type) {
  auto config = vernier::json_in<OrderedJson>(source);
  for (const char* key : {"dtype", "torch_dtype"}) {  // keys of transformers 5 and 4
    if (config.contains(key) || std::string(key) == "dtype") config[key] = name_of(type);
  }
  std::ofstream file(to + "/config.json");
  if (!(file << vernier::json_text(config, 2) << '\n').flush())
    throw vernier::Error(to + "/config.json: cannot be written");
}

}  // namespace

std::string published_name(const Layout& layout, const std::string& name) {
  const bool is_of_head = name == "lm_head" || name.starts_with("lm_head.");
  if (is_of_head || name.starts_with(layout.prefix)) return name;
  return layout.prefix + name;
}

void read_weights(const std::string& folder, Network& network, const Layout& layout, bool grows) {
  Reader reader(network, layout, grows);
  for (const auto& file : weight_files(folder)) reader.take(file);
  reader.finish(folder);
}

void write_folder(const std::string& to, const vernier::State& files, const Network& network, const Layout& layout,
                  const vernier::Tensors& more) {
  vernier::Tensors tensors;
  for (const auto& [name, tensor] : more) tensors[name] = tensor.detach();
  for (const auto& entry : network.named_parameters()) {
    tensors[published_name(layout, entry.key())] = entry.value().detach();
  }
  const auto type = common_type(tensors);
  for (auto& [name, tensor] : tensors) tensor = tensor.to(type);
  fs::create_directories(to);
  vernier::save_safetensors(to + "/model.safetensors", tensors, vernier::Metadata{{"format", "pt"}});
  write_model_files(files, to);
  write_config(to, text_of(files, "config.json"), type);
}

}  // namespace language
