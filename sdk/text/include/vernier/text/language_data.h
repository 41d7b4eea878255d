// Texts for training language models: rows of tokens, packed so that no text sees another.
//
//   const auto tokenizer = vernier::open_tokenizer("models/llama");
//   const auto chats = vernier::read_language_data(*tokenizer, "chats.jsonl", {.length = 2048});
//   vernier::DataLoader loader(chats.dataset, {.batch_size = 8});
//
// Any thread may call the functions. All errors are of Error::Kind::configuration and name the file and the line.
#pragma once

#include <vernier/data/dataset.h>
#include <vernier/text/tokenizer.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace vernier {

// How the messages of a chat are written. The tokens must be in the tokenizer's vocabulary.
enum class ChatStyle {
  chatml,  // <|im_start|>ROLE\nTEXT<|im_end|>\n
  // <|begin_of_text|>, then <|start_header_id|>ROLE<|end_header_id|>\n\nTEXT<|eot_id|>, without white space around TEXT
  llama3
};

struct LanguageDataOptions {
  std::int64_t length = 1024;  // tokens of a row
  bool packs = true;           // several texts in one row; false: one text in each
  bool learns_all = false;     // the loss is on prompts and questions too, not only on completions and answers
  ChatStyle chat = ChatStyle::chatml;
  // The folder whose chat template writes messages instead, as transformers does, but without the day's date:
  // chat_template.jinja, or tokenizer_config.json. "": they are written by `chat`.
  std::string template_folder{};
  // Instruction, input and output become messages of a chat; false: the prompt of Stanford's Alpaca and its completion.
  bool instructions_as_chat = false;
  // The names that the files have for the fields below, such as {"prompt", "question"}. If it names any field of a
  // line, and not only role and content of a message, the other fields of a line are not read.
  std::map<std::string, std::string> fields{};
  // The meaning of the roles in the files, such as {"bot", "assistant"}. "human" is "user", and "gpt" is "assistant".
  std::map<std::string, std::string> roles{};
};

// clang-format off
// Sample: {inputs, targets, positions, segments}, each int64 [length].
//   inputs     tokens; 0 where the row is filled up
//   targets    the token after each input in its text; -100, which cross_entropy_loss() ignores, if there is none
//   positions  the place of each input in its text, from 0
//   segments   the number of the text in its row, from 1; 0 where the row is filled up. Attention stays in a segment.
// clang-format on
struct LanguageData {
  DatasetPtr dataset;
  std::int64_t texts = 0;     // in the rows
  std::int64_t tokens = 0;    // inputs in the rows, without those that fill them up
  std::int64_t learned = 0;   // targets that are learned
  std::int64_t chats = 0;     // texts in the file that are messages
  std::int64_t prompts = 0;   // texts that are a prompt and a completion
  std::int64_t left_out = 0;  // texts without a token to learn in the first `length`
  std::int64_t cut = 0;       // prompts and chats that are longer than a row, and lose tokens to learn
};

// Reads a file and keeps its tokens in memory: 4 bytes each. For more than memory holds, make a file of tokens with
// `vernier tokenize`, and read it with token_dataset(). A file that ends in .jsonl has a JSON object in each line, one
// that ends in .json those or an array of them, and gzip may have packed it:
//
//   {"text": "…"}                                              all of it is learned
//   {"prompt": "…", "completion": "…"}                         the completion is learned
//   {"messages": [{"role": "user", "content": "…"}, …]}        what the role "assistant" says is learned
//   {"prompt": [{"role": …}, …], "completion": [{"role": …}]}  what it says in the completion
//   {"conversations": [{"from": "human", "value": "…"}, …]}    what "gpt" says; ShareGPT's form
//   {"instruction": "…", "input": "…", "output": "…"}          the output is learned; Alpaca's form
//
// A message with "weight": 0 is not learned. A "system" beside messages or conversations is their first message. Calls
// of tools, and contents of several parts, are refused.
//
// Any other file is one text. A token that ends a text is put behind the text or completion unless it ends so; prompt
// and completion are encoded together. Special tokens that are written in a message stay ordinary text, unless a
// folder's template writes the chats. A text that is longer than a row goes on in the next; of a prompt or chat the
// rest is left out. Rows are packed by best fit, the longest texts first (Johnson, 1974), so they depend on file,
// tokenizer and options alone.
VERNIER_API LanguageData read_language_data(const Tokenizer& tokenizer, const std::string& path,
                                            const LanguageDataOptions& options = {});

// Sample: {inputs, targets}, each int64 [2, length]: row 0 has the chosen answer behind the prompt, row 1 the rejected
// one. They are as in LanguageData, with the answers alone as targets.
struct PreferenceData {
  DatasetPtr dataset;
  std::int64_t chats = 0;     // pairs that are messages
  std::int64_t left_out = 0;  // pairs that have an answer without a token in the first `length`
};

// Reads pairs of answers to one prompt, of which people preferred the first, in the forms of TRL:
//
//   {"prompt": "…", "chosen": "…", "rejected": "…"}
//   {"prompt": [{"role": …}, …], "chosen": [{"role": …}], "rejected": [{"role": …}]}
//   {"chosen": [{"role": …}, …], "rejected": [{"role": …}, …]}   the messages that both begin with are the prompt
//
// As read_language_data(), but for `packs` and `learns_all`, which have no meaning here. The rest of a longer text is
// left out.
VERNIER_API PreferenceData read_preference_data(const Tokenizer& tokenizer, const std::string& path,
                                                const LanguageDataOptions& options = {});

// Returns the chat template of a tokenizer's folder, as it stands in chat_template.jinja or tokenizer_config.json; ""
// if there is none.
VERNIER_API std::string chat_template_of(const std::string& folder);

// Returns a chat in which a user asks the question, up to where its answer begins. style: its template, in Jinja; "":
// that of the tokenizer's folder.
VERNIER_API std::string text_of_question(const std::string& question, const std::string& style,
                                         const std::string& folder);

// Returns the added token that ends an answer of a chat, such as "<|im_end|>"; "" if the template has none.
VERNIER_API std::string end_of_answer(const Tokenizer& tokenizer, const LanguageDataOptions& options);

// True if the name is that of a file of texts: it ends in .txt, .jsonl or .json, or in these and .gz.
VERNIER_API bool has_texts(const std::string& path);

// Weights for DataLoaderOptions::weights, to train on concat(datasets): a sample comes from dataset i with probability
// shares[i] / sum of shares, whatever the sizes. Throws Error if a share is negative or missing, or draws from a
// dataset without samples.
VERNIER_API torch::Tensor mixture_weights(const std::vector<DatasetPtr>& datasets, const std::vector<double>& shares);

}  // namespace vernier
