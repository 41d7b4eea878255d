#include "family.h"

#include <c10/util/StringUtil.h>

#include "model.h"

namespace gpt {

namespace {

// The defaults are those of transformers' GPT2Config. reorder_and_upcast_attn is the same formula.
Shape shape_of(const language::Config& config, double dropout) {
  if (config.flag("add_cross_attention", false)) {
    config.refuse("add_cross_attention", ", and this task has no encoder to attend to");
  }
  if (config.has("sliding_window")) config.refuse("sliding_window", ", and gpt2 has no windows; remove it");
  const auto dropout_of = [&](const char* key) { return dropout < 0 ? config.number(key, 0.1, 0.0) : dropout; };
  Shape shape;
  shape.vocabulary = config.integer("vocab_size", 50257);
  shape.context = config.integer("n_positions", 1024);
  shape.width = config.integer("n_embd", 768);
  shape.layers = config.integer("n_layer", 12);
  shape.heads = config.integer("n_head", 12);
  shape.inner = config.integer("n_inner", 0);
  shape.activation = language::activation_of(config, "activation_function", "gelu_new");
  shape.epsilon = config.number("layer_norm_epsilon", 1e-5, 0.0);
  shape.embedding_dropout = dropout_of("embd_pdrop");
  shape.attention_dropout = dropout_of("attn_pdrop");
  shape.dropout = dropout_of("resid_pdrop");
  shape.scales_attention = config.flag("scale_attn_weights", true);
  shape.scales_by_layer = config.flag("scale_attn_by_inverse_layer_idx", false);
  shape.is_tied = config.flag("tie_word_embeddings", true);
  shape.deviation = config.number("initializer_range", 0.02, 0.0);
  if (shape.width % shape.heads != 0)
    config.refuse("n_head", c10::str(", which does not divide n_embd, ", shape.width));
  return shape;
}

}  // namespace

language::Family family() {
  language::Family family;
  family.layout = {.model_types = {"gpt2"}, .prefix = "transformer.", .is_in_model = false, .embedding = "wte.weight"};
  family.make = [](const language::Config& config, double dropout, std::uint64_t seed) {
    return std::make_shared<Network>(shape_of(config, dropout), seed);
  };
  return family;
}

}  // namespace gpt
