// llama: trains a published model of the Llama family on files of tokens or texts, from its weights or from random
// ones.
//
// folder                required: the folder of the model, with config.json
// data = []             needed: files of tokens, .bin or .npy (vernier/readers.h), or of texts: .txt and .jsonl
//                       (vernier/language_data.h); []: the model is only used, not trained
// weights = "folder"    "random": draws new ones by [run] seed, for which config.json is enough
// tokenizer = ""        folder of the tokenizer for texts; empty: the model's folder
// context = 256         tokens that a window or a row of texts predicts
// validation = []       held-out files of the same kind
// validation_share = 0.1  the share of windows held out if there are no such files, drawn by [run] seed; 0: none
// shares = []           how often each file is drawn from, relative to the others; []: each sample once in an epoch
// dropout = -1.0        replaces all dropouts of config.json; below 0: those
// sample_prompts = []   texts that each validation continues, in the log; they need a tokenizer
// sample_tokens = 50, temperature = 0.8, top_k = 0, top_p = 1.0  of these, as in vernier/generation.h
// Of files of tokens:
// token_type = "auto"   uint8, uint16, int16, uint32, int32, uint64 or int64; auto: what the file says, else uint16 if
//                       the vocabulary fits into it, else uint32
// stride = 0            tokens between the beginnings of two windows; 0: context
// validation_stride = 0 the same in `validation`, where each token is predicted once, with at least
//                       context - validation_stride tokens before it; 0: context
// Of texts:
// packing = true        several in one row, none of which sees another
// learn = "answers"     of prompts and chats only the answers; "all"
// chat = "chatml"       how messages of a chat are written; "llama3"
// batch_size = 8
// order = "shuffled", drop_last = false, workers = 1, prefetch = 2, recompute = "none"  see vernier/supervised_task.h
//
// Sources: Touvron et al. 2023, arXiv:2307.09288; for names and defaults LlamaConfig and modeling_llama.py of Hugging
// Face's transformers 5.
#include <vernier/sdk.h>

#include "../language/task.h"
#include "model.h"

namespace {

// The defaults are those of transformers' LlamaConfig.
llama::Shape shape_of(const language::Config& config, double dropout) {
  llama::Shape shape;
  shape.vocabulary = config.integer("vocab_size", 32000);
  shape.width = config.integer("hidden_size", 4096);
  shape.inner = config.integer("intermediate_size", 11008);
  shape.layers = config.integer("num_hidden_layers", 32);
  shape.heads = config.integer("num_attention_heads", 32);
  shape.key_heads = config.integer("num_key_value_heads", shape.heads);
  if (!config.has("head_dim") && shape.width % shape.heads != 0) {
    config.refuse("num_attention_heads", c10::str(", which does not divide hidden_size, ", shape.width));
  }
  shape.head_width = config.integer("head_dim", shape.width / shape.heads);
  if (shape.head_width % 2 != 0) config.refuse("head_dim", ": rotary positions need an even width of the heads");
  if (shape.heads % shape.key_heads != 0) {
    config.refuse("num_key_value_heads", c10::str(", which does not divide num_attention_heads, ", shape.heads));
  }
  shape.epsilon = config.number("rms_norm_eps", 1e-6, 0.0);
  shape.activation = language::activation_of(config, "hidden_act", "silu");
  shape.attention_bias = config.flag("attention_bias", false);
  shape.mlp_bias = config.flag("mlp_bias", false);
  shape.is_tied = config.flag("tie_word_embeddings", false);
  shape.dropout = dropout < 0 ? config.number("attention_dropout", 0.0, 0.0) : dropout;
  shape.deviation = config.number("initializer_range", 0.02, 0.0);
  return shape;
}

language::Family family() {
  language::Family family;
  family.layout = {.model_type = "llama", .prefix = "model.", .is_in_model = true, .embedding = "embed_tokens.weight"};
  family.make = [](const language::Config& config, double dropout, std::uint64_t seed) {
    const auto shape = shape_of(config, dropout);
    const llama::Rope rope(config, shape.head_width, config.integer("max_position_embeddings", 2048));
    return std::make_shared<llama::Network>(shape, rope, seed);
  };
  return family;
}

class Llama final : public language::PublishedTask {
 public:
  explicit Llama(vernier::Options& options) : PublishedTask(options, family()) {}
};

}  // namespace

VERNIER_PLUGIN(Llama, "llama", "1.0.0")
