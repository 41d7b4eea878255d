// One row for each family. Names and defaults are those of Hugging Face's transformers 5: configuration_NAME.py and
// modeling_NAME.py.
#include "families.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "model.h"

namespace llama {

namespace {

using language::Config;

enum class Biases : std::uint8_t { none, of_option, of_queries };  // of_option: attention_bias, of q, k, v and o
enum class Windows : std::uint8_t { none, all, by_layer };
enum class Positions : std::uint8_t { plain, some_layers, by_kind };

struct Sizes {
  std::int64_t vocabulary, width, inner, layers, heads;
  std::int64_t key_heads = 0, head_width = 0;  // 0: as many as heads; the width of the heads together is the model's
};

struct Family {
  const char* model_type;
  Sizes sizes;
  std::int64_t longest = 2048;  // max_position_embeddings
  std::int64_t padding = -1;    // pad_token_id; -1: null
  const char* epsilon_key = "rms_norm_eps";
  double epsilon = 1e-6, theta = 10000;
  double local_theta = 10000;  // with Positions::by_kind, the base of layers with a window
  double partial = 0;          // partial_rotary_factor; 0: heads turn whole
  bool is_paired = false;      // neighbours turn, and not halves
  bool is_tied = false;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  Biases biases = Biases::of_option;
  const char* query_bias_key = nullptr;  // key for Biases::of_queries; null: these are always there
  bool has_query_bias = false;
  bool has_mlp_bias = false;
  Norms norms = Norms::before;
  HeadNorms head_norms = HeadNorms::none;
  bool is_fused = false, is_mlp_fused = false;
  bool has_means = false, has_norm_bias = false;  // norms are LayerNorm
  const char* parallel_key = nullptr;             // key of a flag that asks for Norms::parallel
  const char* unknown_key = nullptr;              // key of a flag that must be false
  bool is_gemma = false;  // norms multiply by 1 + weight, and embeddings are scaled by the root of the width
  Windows windows = Windows::none;
  double window = 0;             // sliding_window; 0: null
  bool asks_for_window = false;  // use_sliding_window
  int pattern = 0;               // each such layer has no window; 0: those from max_window_layers on have one
  Positions positions = Positions::plain;
  bool has_query_scalar = false;        // query_pre_attn_scalar
  double score_cap = 0, logit_cap = 0;  // attn_logit_softcapping, final_logit_softcapping
  bool has_score_cap = false;
  bool has_multipliers = false;  // Granite's
  double logit_scale = 0;        // logit_scale; 0: there is none
};

constexpr Family families[] = {
    {.model_type = "llama", .sizes = {32000, 4096, 11008, 32, 32}, .has_mlp_bias = true},
    {.model_type = "mistral",
     .sizes = {32000, 4096, 14336, 32, 32, 8},
     .longest = 131072,
     .biases = Biases::none,
     .windows = Windows::all,
     .window = 4096},
    {.model_type = "qwen2",
     .sizes = {151936, 4096, 22016, 32, 32, 32},
     .longest = 32768,
     .biases = Biases::of_queries,
     .windows = Windows::by_layer,
     .window = 4096,
     .asks_for_window = true},
    {.model_type = "qwen3",
     .sizes = {151936, 4096, 22016, 32, 32, 32, 128},
     .longest = 32768,
     .head_norms = HeadNorms::each,
     .windows = Windows::by_layer,
     .window = 4096,
     .asks_for_window = true},
    {.model_type = "phi3",
     .sizes = {32064, 3072, 8192, 32, 32},
     .longest = 4096,
     .padding = 32000,
     .epsilon = 1e-5,
     .partial = 1,
     .biases = Biases::none,
     .is_fused = true,
     .is_mlp_fused = true,
     .windows = Windows::all},
    {.model_type = "gemma",
     .sizes = {256000, 3072, 24576, 28, 16, 16, 256},
     .longest = 8192,
     .padding = 0,
     .is_tied = true,
     .activation = "gelu_pytorch_tanh",
     .is_gemma = true},
    {.model_type = "gemma2",
     .sizes = {256000, 2304, 9216, 26, 8, 4, 256},
     .longest = 8192,
     .padding = 0,
     .is_tied = true,
     .activation_key = "hidden_activation",
     .activation = "gelu_pytorch_tanh",
     .norms = Norms::around,
     .is_gemma = true,
     .windows = Windows::by_layer,
     .window = 4096,
     .pattern = 2,
     .has_query_scalar = true,
     .score_cap = 50,
     .logit_cap = 30,
     .has_score_cap = true},
    {.model_type = "gemma3_text",
     .sizes = {262208, 2304, 9216, 26, 8, 4, 256},
     .longest = 131072,
     .padding = 0,
     .theta = 1e6,
     .is_tied = true,
     .activation_key = "hidden_activation",
     .activation = "gelu_pytorch_tanh",
     .norms = Norms::around,
     .head_norms = HeadNorms::each,
     .is_gemma = true,
     .windows = Windows::by_layer,
     .window = 4096,
     .pattern = 6,
     .positions = Positions::by_kind,
     .has_query_scalar = true},
    {.model_type = "olmo2",
     .sizes = {50304, 4096, 11008, 32, 32},
     .padding = 1,
     .epsilon = 1e-5,
     .norms = Norms::after,
     .head_norms = HeadNorms::all},
    {.model_type = "olmo3",
     .sizes = {50304, 4096, 11008, 32, 32},
     .padding = 1,
     .epsilon = 1e-5,
     .theta = 500000,
     .local_theta = 500000,
     .norms = Norms::after,
     .head_norms = HeadNorms::all,
     .windows = Windows::by_layer,
     .window = 4096,
     .pattern = 4,
     .positions = Positions::by_kind},
    {.model_type = "smollm3",
     .sizes = {128256, 2048, 11008, 36, 16, 4},
     .longest = 32768,
     .padding = 128004,
     .theta = 2e6,
     .is_tied = true,
     .has_mlp_bias = true,
     .windows = Windows::by_layer,
     .asks_for_window = true,
     .positions = Positions::some_layers},
    {.model_type = "glm",
     .sizes = {151552, 4096, 13696, 40, 32, 2, 128},
     .longest = 131072,
     .padding = 151329,
     .epsilon = 1.5625e-7,
     .partial = 0.5,
     .is_paired = true,
     .biases = Biases::of_queries,
     .query_bias_key = "attention_bias",
     .has_query_bias = true,
     .is_mlp_fused = true},
    {.model_type = "stablelm",
     .sizes = {50304, 2560, 6912, 32, 32, 32},
     .longest = 4096,
     .epsilon_key = "layer_norm_eps",
     .epsilon = 1e-5,
     .partial = 0.25,
     .biases = Biases::of_queries,
     .query_bias_key = "use_qkv_bias",
     .has_means = true,
     .has_norm_bias = true,
     .parallel_key = "use_parallel_residual",
     .unknown_key = "qk_layernorm"},
    {.model_type = "cohere",
     .sizes = {256000, 8192, 22528, 40, 64},
     .longest = 8192,
     .padding = 0,
     .epsilon_key = "layer_norm_eps",
     .epsilon = 1e-5,
     .theta = 500000,
     .is_paired = true,
     .is_tied = true,
     .norms = Norms::parallel,
     .has_means = true,
     .unknown_key = "use_qk_norm",
     .logit_scale = 0.0625},
    {.model_type = "granite", .sizes = {32000, 4096, 11008, 32, 32}, .has_mlp_bias = true, .has_multipliers = true},
};

const Family& family_of(const Config& config) {
  const auto type = config.text("model_type", "");
  return *std::ranges::find(families, type, [](const Family& family) { return std::string(family.model_type); });
}

void read_sizes(const Config& config, const Family& family, Shape& shape) {
  shape.vocabulary = config.integer("vocab_size", family.sizes.vocabulary);
  shape.width = config.integer("hidden_size", family.sizes.width);
  shape.inner = config.integer("intermediate_size", family.sizes.inner);
  shape.layers = config.integer("num_hidden_layers", family.sizes.layers);
  shape.heads = config.integer("num_attention_heads", family.sizes.heads);
  // Null means as many as heads, in families whose default is another number as well.
  const auto of_keys = config.number_or_null("num_key_value_heads", static_cast<double>(family.sizes.key_heads), 1);
  shape.key_heads =
      of_keys.value_or(0) > 0 ? config.integer("num_key_value_heads", family.sizes.key_heads) : shape.heads;
  if (!config.has("head_dim") && family.sizes.head_width == 0 && shape.width % shape.heads != 0) {
    config.refuse("num_attention_heads", c10::str(", which does not divide hidden_size, ", shape.width));
  }
  shape.head_width =
      config.integer("head_dim", family.sizes.head_width > 0 ? family.sizes.head_width : shape.width / shape.heads);
  if (shape.head_width % 2 != 0) config.refuse("head_dim", ": rotary positions need an even width of the heads");
  if (shape.heads % shape.key_heads != 0) {
    config.refuse("num_key_value_heads", c10::str(", which does not divide num_attention_heads, ", shape.heads));
  }
}

language::Activation read_activation(const Config& config, const Family& family) {
  // Gemma's first folders say "gelu" and mean the one by tanh.
  const bool is_old = std::string(family.model_type) == "gemma" && config.text("hidden_act", "") == "gelu";
  return language::activation_of(config, is_old ? "hidden_activation" : family.activation_key, family.activation);
}

void read_parts(const Config& config, const Family& family, double dropout, Shape& shape) {
  const auto dropout_of = [&](const char* key) { return dropout < 0 ? config.number(key, 0.0, 0.0) : dropout; };
  if (family.unknown_key != nullptr && config.flag(family.unknown_key, false)) {
    config.refuse(family.unknown_key, ", and norms of queries and keys of this family are not known to this task");
  }
  if (family.has_norm_bias && dropout < 0 && config.number("hidden_dropout", 0.0, 0.0) > 0) {
    config.refuse("hidden_dropout", ", and dropout of the MLP alone is not known to this task; set [task] dropout");
  }
  const bool is_parallel = family.parallel_key != nullptr && config.flag(family.parallel_key, false);
  shape.norms = is_parallel ? Norms::parallel : family.norms;
  shape.has_means = family.has_means;
  shape.norm_bias = family.has_norm_bias;
  shape.head_norms = family.head_norms;
  shape.is_fused = family.is_fused;
  shape.is_mlp_fused = family.is_mlp_fused;
  shape.is_paired = family.is_paired;
  shape.epsilon = config.number(family.epsilon_key, family.epsilon, 0.0);
  shape.activation = read_activation(config, family);
  const bool has_bias = family.biases == Biases::of_option && config.flag("attention_bias", false);
  const bool is_asked = family.query_bias_key == nullptr || config.flag(family.query_bias_key, family.has_query_bias);
  shape.query_bias = has_bias || (family.biases == Biases::of_queries && is_asked);
  shape.output_bias = has_bias;
  shape.mlp_bias = family.has_mlp_bias && config.flag("mlp_bias", false);
  shape.is_tied = config.flag("tie_word_embeddings", family.is_tied);
  shape.dropout = dropout_of("attention_dropout");
  if (family.is_fused) shape.half_dropout = dropout_of("resid_pdrop");
  shape.deviation = config.number("initializer_range", 0.02, 0.0);
}

void read_padding(const Config& config, const Family& family, Shape& shape) {
  const auto fallback = family.padding < 0 ? std::nullopt : std::optional(static_cast<double>(family.padding));
  shape.padding = static_cast<std::int64_t>(config.number_or_null("pad_token_id", fallback, -1).value_or(-1));
  if (shape.padding < shape.vocabulary) return;
  if (config.has("pad_token_id")) config.refuse("pad_token_id", c10::str(", and must be below ", shape.vocabulary));
  shape.padding = -1;
}

// Factors and bounds of numbers.
void read_scales(const Config& config, const Family& family, Shape& shape) {
  if (family.is_gemma) {
    if (config.flag("use_bidirectional_attention", false)) {
      config.refuse("use_bidirectional_attention", ", and a causal model sees the tokens before it alone");
    }
    shape.adds_one = true;
    shape.embedding_scale = std::sqrt(static_cast<float>(shape.width));  // float32 as in transformers
  }
  if (family.has_query_scalar) shape.attention_scale = 1 / std::sqrt(config.number("query_pre_attn_scalar", 256, 1e-9));
  if (family.has_query_scalar) {
    const auto of = [&](const char* key, double cap) {
      return config.number_or_null(key, cap > 0 ? std::optional(cap) : std::nullopt, 1e-9).value_or(0);
    };
    if (family.has_score_cap) shape.score_cap = of("attn_logit_softcapping", family.score_cap);
    shape.logit_cap = of("final_logit_softcapping", family.logit_cap);
  }
  if (family.logit_scale > 0) shape.logit_divisor = 1 / config.number("logit_scale", family.logit_scale, 1e-9);
  if (!family.has_multipliers) return;
  shape.embedding_scale = config.number("embedding_multiplier", 1.0, 0.0);
  shape.half_scale = config.number("residual_multiplier", 1.0, 0.0);
  shape.attention_scale = config.number("attention_multiplier", 1.0, 0.0);
  shape.logit_divisor = config.number("logits_scaling", 1.0, 1e-9);
}

// For each layer, true if it has a window.
std::vector<bool> windowed(const Config& config, const Family& family, const Shape& shape, bool has_window,
                           const std::vector<bool>& turns) {
  const auto layers = static_cast<std::size_t>(shape.layers);
  std::vector<bool> all(layers, family.windows == Windows::all && has_window);
  if (family.windows != Windows::by_layer) return all;
  const auto types = config.texts("layer_types");
  if (!types.empty() && types.size() != layers) {
    config.refuse("layer_types", c10::str(", and must name the type of each of ", layers, " layers"));
  }
  const auto from = config.integer("max_window_layers", 28, 0);
  const auto pattern = family.pattern == 6 ? config.integer("sliding_window_pattern", 6) : family.pattern;
  for (std::size_t i = 0; i < layers; ++i) {
    const auto number = static_cast<std::int64_t>(i);
    if (!types.empty()) {
      all[i] = types[i] == "sliding_attention";
      if (!all[i] && types[i] != "full_attention") {
        config.refuse("layer_types", ", and this task has full_attention and sliding_attention");
      }
      if (all[i] && !has_window) config.refuse("layer_types", ", and sliding_window gives no window");
    } else if (family.pattern > 0) {
      all[i] = has_window && (number + 1) % pattern != 0;
    } else if (family.positions == Positions::some_layers) {
      all[i] = has_window && !turns[i];
    } else {
      all[i] = has_window && number >= from;
    }
  }
  return all;
}

// For each layer, true if it turns queries and keys by their positions.
std::vector<bool> turned_layers(const Config& config, const Family& family, const Shape& shape) {
  const auto layers = static_cast<std::size_t>(shape.layers);
  std::vector<bool> all(layers, true);
  if (family.positions != Positions::some_layers) return all;
  const auto listed = config.numbers("no_rope_layers");
  const auto every = config.integer("no_rope_layer_interval", 4);
  if (!listed.empty() && listed.size() < layers) {
    config.refuse("no_rope_layers", c10::str(", and must have a number for each of ", layers, " layers"));
  }
  for (std::size_t i = 0; i < layers; ++i) {
    all[i] = listed.empty() ? (static_cast<std::int64_t>(i) + 1) % every != 0 : listed[i] != 0;
  }
  return all;
}

void read_kinds(const Config& config, const Family& family, Shape& shape) {
  if (family.windows == Windows::none && config.has("sliding_window")) {  // transformers' cache would forget by it
    config.refuse("sliding_window", c10::str(", and ", family.model_type, " has no windows; remove it"));
  }
  std::optional<double> window;
  if (family.windows != Windows::none && (!family.asks_for_window || config.flag("use_sliding_window", false))) {
    window =
        config.number_or_null("sliding_window", family.window > 0 ? std::optional(family.window) : std::nullopt, 1);
  }
  const auto turns = turned_layers(config, family, shape);
  const auto windows = windowed(config, family, shape, window.has_value(), turns);
  for (std::size_t i = 0; i < windows.size(); ++i) {
    LayerKind kind;
    if (windows[i]) kind.window = static_cast<std::int64_t>(*window);
    // With positions by kind, the first are those of full attention.
    if (turns[i]) kind.rope = family.positions == Positions::by_kind && windows[i] ? 1 : 0;
    shape.kinds.push_back(kind);
  }
}

// The positions of Gemma 3 and Olmo 3, in the spelling of transformers 5 and of 4.
std::vector<Rope> ropes_by_kind(const Config& config, RopeOptions options, double local_theta) {
  const auto both = config.part("rope_parameters");
  if (both.has("rope_type") || both.has("rope_theta")) {
    config.refuse("rope_parameters", ", and must have full_attention and sliding_attention here");
  }
  auto sliding = options;
  sliding.theta = config.number("rope_local_base_freq", local_theta, 1.0);
  options.theta = config.number("rope_theta", options.theta, 1.0);
  const auto full = both.has("full_attention") ? both.part("full_attention") : config.part("rope_scaling");
  return {Rope(full, options), Rope(both.part("sliding_attention"), sliding)};
}

std::vector<Rope> ropes_of(const Config& config, const Family& family, const Shape& shape) {
  RopeOptions options;
  options.width = shape.head_width;
  options.longest = config.integer("max_position_embeddings", family.longest);
  options.theta = family.theta;
  if (family.positions == Positions::by_kind) return ropes_by_kind(config, options, family.local_theta);
  const auto part = config.part(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  options.theta = config.number("rope_theta", options.theta, 1.0);
  // The number at the top wins.
  options.original = config.number("original_max_position_embeddings", family.is_fused ? 4096.0 : 0.0, 0.0);
  options.is_phi = family.is_fused;
  options.turns_in_part = family.partial > 0;
  if (options.turns_in_part) options.partial = config.number("partial_rotary_factor", family.partial, 0.0);
  return {Rope(part, options)};
}

std::shared_ptr<language::Network> make(const Config& config, double dropout, std::uint64_t seed) {
  const auto& family = family_of(config);
  Shape shape;
  read_sizes(config, family, shape);
  read_parts(config, family, dropout, shape);
  read_padding(config, family, shape);
  read_scales(config, family, shape);
  read_kinds(config, family, shape);
  return std::make_shared<Network>(shape, ropes_of(config, family, shape), seed);
}

}  // namespace

language::Family family() {
  language::Family family;
  family.layout = {.model_types = {}, .prefix = "model.", .is_in_model = true, .embedding = "embed_tokens.weight"};
  for (const auto& each : families) family.layout.model_types.emplace_back(each.model_type);
  family.make = make;
  return family;
}

}  // namespace llama
