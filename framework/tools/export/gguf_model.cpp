#include "gguf_model.h"

#include <ATen/ops/tensor.h>
#include <vernier/error.h>
#include <vernier/json_in.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>

namespace vernier::gguf {

namespace {

using Json = nlohmann::json;

// The configuration of the model.
class Config {
 public:
  explicit Config(const std::string& folder) : json_(json_of(folder, "config.json")) {}

  bool is_null(const char* key) const { return json_.contains(key) && json_[key].is_null(); }
  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  template <class Value>
  Value get(const char* key, const Value& fallback) const {
    return has(key) ? json_[key].get<Value>() : fallback;
  }
  template <class Value>
  Value get(const char* key) const {
    if (!has(key)) refuse(std::string("config.json has no ") + key + ", which a GGUF file needs; add it there");
    return json_[key].get<Value>();
  }
  std::uint32_t count(const char* key) const { return get<std::uint32_t>(key); }
  // Refuses any other value: llama.cpp always computes with this one.
  template <class Value>
  void require(const char* key, const Value& only) const {
    if (get(key, only) == only) return;
    refuse(std::string("config.json has ") + key + " = " + json_[key].dump() +
           ", which a GGUF file cannot say; --format huggingface keeps it");
  }
  Json part(const char* key) const { return has(key) ? json_[key] : Json::object(); }

 private:
  Json json_;
};

std::string replaced(std::string name, const std::vector<std::pair<std::string, std::string>>& words) {
  for (const auto& [from, to] : words) {
    if (const auto at = name.find(from); at != name.npos) name.replace(at, from.size(), to);
  }
  return name;
}

// Reorders the rows of a head: rotary positions pair neighbours in llama.cpp, and the two halves of a head in
// transformers.
torch::Tensor with_neighbours(const torch::Tensor& tensor, std::int64_t heads) {
  return tensor.unflatten(0, {heads, 2, -1}).transpose(1, 2).flatten(0, 2);
}

const std::vector<std::pair<std::string, std::string>> gpt2_names = {
    {"transformer.", ""},           {"wte.", "token_embd."}, {"wpe.", "position_embd."},
    {"ln_f.", "output_norm."},      {"lm_head.", "output."}, {"h.", "blk."},
    {"ln_1.", "attn_norm."},        {"ln_2.", "ffn_norm."},  {"attn.c_attn", "attn_qkv"},
    {"attn.c_proj", "attn_output"}, {"mlp.c_fc", "ffn_up"},  {"mlp.c_proj", "ffn_down"}};

const std::vector<std::pair<std::string, std::string>> llama_names = {{"model.embed_tokens.", "token_embd."},
                                                                      {"model.norm.", "output_norm."},
                                                                      {"lm_head.", "output."},
                                                                      {"model.layers.", "blk."},
                                                                      {"input_layernorm", "attn_norm"},
                                                                      {"post_attention_layernorm", "ffn_norm"},
                                                                      {"self_attn.q_proj", "attn_q"},
                                                                      {"self_attn.k_proj", "attn_k"},
                                                                      {"self_attn.v_proj", "attn_v"},
                                                                      {"self_attn.o_proj", "attn_output"},
                                                                      {"self_attn.q_norm", "attn_q_norm"},
                                                                      {"self_attn.k_norm", "attn_k_norm"},
                                                                      {"mlp.gate_proj", "ffn_gate"},
                                                                      {"mlp.up_proj", "ffn_up"},
                                                                      {"mlp.down_proj", "ffn_down"}};

// The factors that divide the frequencies of Llama 3.1, as transformers computes them (rope_type "llama3").
torch::Tensor llama3_factors(const Json& scaling, double base, std::int64_t width) {
  const double factor = scaling.at("factor"), low = scaling.at("low_freq_factor"),
               high = scaling.at("high_freq_factor"), context = scaling.at("original_max_position_embeddings");
  std::vector<float> factors;
  for (std::int64_t i = 0; i < width / 2; ++i) {
    const double wave =
        2 * std::numbers::pi * std::pow(base, 2.0 * static_cast<double>(i) / static_cast<double>(width));
    const double smooth = std::clamp((context / wave - low) / (high - low), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - smooth) / factor + smooth)));
  }
  return at::tensor(factors);
}

void set_rotary(File& file, const std::string& family, const Config& config, std::int64_t width) {
  const auto scaling = config.has("rope_parameters") ? config.part("rope_parameters") : config.part("rope_scaling");
  const double base = scaling.value("rope_theta", config.get("rope_theta", 10000.0));
  file.set(family + ".rope.dimension_count", static_cast<std::uint32_t>(width));
  file.set(family + ".rope.freq_base", static_cast<float>(base));
  const std::string type = scaling.value("rope_type", scaling.value("type", std::string("default")));
  if (type == "linear") {
    file.set(family + ".rope.scaling.type", std::string("linear"));
    file.set(family + ".rope.scaling.factor", scaling.at("factor").get<float>());
  } else if (type == "llama3") {
    file.add("rope_freqs.weight", llama3_factors(scaling, base, width), Type::f32);
  } else if (type != "default") {
    refuse("config.json has rope_type = \"" + type + "\"; GGUF is written for default, linear and llama3");
  }
}

// The values that transformers takes where a config.json leaves keys out.
struct Defaults {
  const char* model;
  std::uint32_t context, key_value_heads, head;  // 0: as many as heads; hidden_size / heads
};
constexpr Defaults defaults[] = {
    {"llama", 2048, 0, 0}, {"mistral", 131072, 8, 0}, {"qwen2", 32768, 32, 0}, {"qwen3", 32768, 32, 128}};

// Writes the keys of a model of this family. Returns how many heads the attention keys have.
std::uint32_t set_llama(File& file, const std::string& model, const std::string& family, const Config& config) {
  config.require("hidden_act", std::string("silu"));
  config.require("partial_rotary_factor", 1.0);
  const auto heads = config.count("num_attention_heads"), width = config.count("hidden_size");
  const auto& missing = *std::ranges::find(defaults, model, [](const auto& each) { return std::string(each.model); });
  const auto context = config.get("max_position_embeddings", missing.context);
  // llama.cpp has no sliding window for these models. Up to its length a window changes nothing.
  const bool has_window =
      model == "mistral" ? !config.is_null("sliding_window") : config.get("use_sliding_window", false);
  const auto window = has_window ? config.get("sliding_window", std::uint32_t{4096}) : context;
  file.set(family + ".context_length", std::min(context, window));
  file.set(family + ".embedding_length", width);
  file.set(family + ".feed_forward_length", config.count("intermediate_size"));
  file.set(family + ".attention.head_count", heads);
  const bool has_all = missing.key_value_heads == 0 || config.is_null("num_key_value_heads");
  const auto of_keys = config.get("num_key_value_heads", has_all ? heads : missing.key_value_heads);
  file.set(family + ".attention.head_count_kv", of_keys);
  file.set(family + ".attention.layer_norm_rms_epsilon", config.get("rms_norm_eps", 1e-6F));
  const auto head = config.get("head_dim", missing.head == 0 ? width / heads : missing.head);
  file.set(family + ".attention.key_length", head);
  file.set(family + ".attention.value_length", head);
  set_rotary(file, family, config, head);
  return of_keys;
}

void set_gpt2(File& file, const Config& config) {
  const auto activation = config.get<std::string>("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh")
    config.require("activation_function", std::string("gelu_new"));
  config.require("scale_attn_weights", true);
  config.require("scale_attn_by_inverse_layer_idx", false);
  const auto width = config.count("n_embd");
  file.set("gpt2.context_length", config.count("n_positions"));
  file.set("gpt2.embedding_length", width);
  file.set("gpt2.feed_forward_length", config.get("n_inner", 4 * width));
  file.set("gpt2.attention.head_count", config.count("n_head"));
  file.set("gpt2.attention.layer_norm_epsilon", config.get("layer_norm_epsilon", 1e-5F));
}

Tensors weights_of(const std::string& folder) {
  Tensors all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") all.merge(load_safetensors(entry.path().string()));
  }
  return all;
}

}  // namespace

nlohmann::json json_of(const std::string& folder, const char* name) {
  std::ifstream file(std::filesystem::path(folder) / name, std::ios::binary);
  auto json = file ? json_in<Json>(file) : Json::object();
  if (!json.is_object()) refuse(folder + "/" + name + ": is not a JSON object, or nests values too deeply");
  return json;
}

void write_model(const std::string& folder, const std::string& path, Type type) {
  const Config config(folder);
  const auto model = config.get<std::string>("model_type");
  const bool is_gpt2 = model == "gpt2";
  if (!is_gpt2 && model != "llama" && model != "mistral" && model != "qwen2" && model != "qwen3") {
    refuse("GGUF is written for models of type gpt2, llama, mistral, qwen2 and qwen3, and this is " + model +
           "; --format huggingface writes it for llama.cpp's own converter");
  }
  const std::string family = model == "mistral" ? "llama" : model;
  File file;
  file.set("general.architecture", family);
  file.set("general.type", std::string("model"));
  const std::uint32_t llama_ftype = type == Type::f32 ? 0 : type == Type::f16 ? 1 : type == Type::q8_0 ? 7 : 32;
  file.set("general.file_type", llama_ftype);
  file.set("general.quantization_version", std::uint32_t{2});
  file.set(family + ".block_count", config.count(is_gpt2 ? "n_layer" : "num_hidden_layers"));
  std::int64_t of_keys = 0;
  is_gpt2 ? set_gpt2(file, config) : void(of_keys = set_llama(file, model, family, config));
  const auto heads = config.get<std::int64_t>(is_gpt2 ? "n_head" : "num_attention_heads");
  std::int64_t tokens = 0;
  for (auto& [name, weight] : weights_of(folder)) {
    auto value = weight;
    if (is_gpt2 && name.find(".c_") != name.npos && value.dim() == 2) value = value.t();  // Conv1D
    if (family == "llama" && name.find(".q_proj.") != name.npos) value = with_neighbours(value, heads);
    if (family == "llama" && name.find(".k_proj.") != name.npos) value = with_neighbours(value, of_keys);
    const auto there = replaced(name, is_gpt2 ? gpt2_names : llama_names);
    if (there == "token_embd.weight") tokens = value.size(0);
    file.add(there, value, value.dim() < 2 || there == "position_embd.weight" ? Type::f32 : type);
  }
  add_vocabulary(file, folder, tokens);
  file.write(path);
}

}  // namespace vernier::gguf
