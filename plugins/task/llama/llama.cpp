// llama: trains a published model on files of tokens or texts, from its weights or from random ones. Its config.json
// may be of Llama, Mistral, Qwen 2 and 3, Phi-3, Gemma 1 to 3, OLMo 2, SmolLM 3 or Granite (families.cpp).
//
// folder                required: the folder of the model, with config.json
// data = []             needed: files of tokens, .bin or .npy (vernier/text/token_data.h), or of texts: .txt, .jsonl
//                       and .json, perhaps packed by gzip (vernier/text/language_data.h); []: the model is only used,
//                       not trained
// weights = "folder"    "random": draws new ones by [run] seed, for which config.json is enough
// tokenizer = ""        folder of the tokenizer for texts; empty: the model's folder
// new_tokens = []       special tokens that the tokenizer gets, unless it has them. Embedding and head of the model get
//                       rows for them, if they have too few, each the mean of the others
// context = 256         tokens that a window or a row of texts predicts
// validation = []       held-out files of the same kind
// validation_share = 0.1  the share of windows held out if there are no such files, drawn by [run] seed; 0: none
// shares = []           how often each file is drawn from, relative to the others; []: each sample once in an epoch
// dropout = -1.0        replaces all dropouts of config.json; below 0: those
// sample_prompts = []   texts that each validation continues, in the log; they need a tokenizer
// sample_tokens = 50, temperature = 0.8, top_k = 0, top_p = 1.0  of these, as in vernier/text/generation.h
// Of files of tokens:
// token_type = "auto"   uint8, uint16, int16, uint32, int32, uint64 or int64; auto: what the file says, else uint16 if
//                       the vocabulary fits into it, else uint32
// stride = 0            tokens between the beginnings of two windows; 0: context
// validation_stride = 0 the same in `validation`, where each token is predicted once, with at least
//                       context - validation_stride tokens before it; 0: context
// Of texts:
// packing = true        several in one row, none of which sees another
// learn = "answers"     of prompts and chats only the answers; "all"
// chat = "auto"         how messages of a chat are written: by the chat template of the tokenizer's folder, or else as
//                       ChatML; "chatml", "llama3"
// instructions = "alpaca"  instruction, input and output become Alpaca's prompt and a completion; "chat": a chat
// fields = {}           the files' names of fields, such as {text = "body"}; then only these are read
// roles = {}            what the files' roles are, such as {bot = "assistant"}
// batch_size = 8
// objective = "likelihood"  of texts; "dpo", "ipo" or "hinge": which of two answers is preferred (preferences.h)
// beta = 0.1            of these: how much the model is held to the one that training began with
// label_smoothing = 0.0 the share of the loss that goes to all tokens alike; of dpo, of pairs that are taken for the
//                       wrong way round
// order = "shuffled", drop_last = false, workers = 1, prefetch = 2, fold = "", recompute = "none"  see
// vernier/data/supervised_task.h
//
// Sources: Touvron et al. 2023, arXiv:2307.09288; for names and defaults of all families the configuration and modeling
// files of Hugging Face's transformers 5.
#include <vernier/sdk.h>

#include "../language/task.h"
#include "families.h"

namespace {

class Llama final : public language::PublishedTask {
 public:
  explicit Llama(vernier::Options& options) : PublishedTask(options, llama::family()) {}
};

}  // namespace

VERNIER_PLUGIN(Llama, "llama", "1.0.0")
