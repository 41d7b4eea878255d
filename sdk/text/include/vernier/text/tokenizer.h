// Text to tokens and back, with the tokenizer of a published model's folder.
//
//   const auto tokenizer = vernier::open_tokenizer("models/gpt2");
//   std::vector<vernier::TokenId> ids = tokenizer->encode("Hello, world");
//   std::string text = tokenizer->decode(ids);
//
// The ids are those of the package that a file is made for: Hugging Face's `tokenizers` 0.23
// (https://github.com/huggingface/tokenizers), `sentencepiece` 0.2.3 or `tiktoken` 0.14. docs/guides/tokenizer.md says
// which parts of a folder are read. Any thread may call the functions.
#pragma once

#include <vernier/abi.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vernier {

using TokenId = std::int32_t;

// It never changes. Several threads may call the functions of one object at the same time.
class VERNIER_API Tokenizer {
 public:
  virtual ~Tokenizer();

  // Returns the ids of a text in UTF-8. A special token that is written in the text, such as "<|endoftext|>", becomes
  // that token. special: also add what the folder adds around a text, such as Llama's token for its beginning. Chat
  // templates write these tokens themselves, so their texts are encoded without. Throws Error, which says at which
  // byte, if the text is not UTF-8.
  virtual std::vector<TokenId> encode(std::string_view text, bool special = true) const = 0;

  // The same for a text that a stranger wrote. Special tokens that are written in it stay ordinary text, and none are
  // added. is_behind_token: the text follows a special token, as in a chat, and does not begin a text.
  virtual std::vector<TokenId> encode_plain(std::string_view text, bool is_behind_token = false) const = 0;

  // Returns the text of the ids, in UTF-8. Special tokens are left out unless keep_special is true; ids that are not in
  // the vocabulary are left out. Bytes that are not UTF-8 become U+FFFD, so half a character at the end does, too: to
  // print tokens one by one, hold back a text that ends in U+FFFD.
  virtual std::string decode(std::span<const TokenId> ids, bool keep_special = false) const = 0;

  // Returns the bytes that a token adds to a text, of a part of a character too, and of a special token its text. None
  // where the decoder has steps that look at several tokens, and for an id that is not in the vocabulary.
  virtual std::optional<std::string> bytes(TokenId id) const = 0;

  // Returns one more than the largest id. Some ids below it may be unused.
  virtual std::int64_t vocabulary() const = 0;

  // Returns the id of a token by its text in the folder's files, such as "<|endoftext|>" or "Ġthe".
  virtual std::optional<TokenId> id(std::string_view token) const = 0;

  // True for a token that is cut out of a text before all else, such as "<|im_end|>": a special one, or another one of
  // `added_tokens`.
  virtual bool is_added(TokenId id) const = 0;

  // Returns the token that ends a text: `eos_token` of tokenizer_config.json. Without it, the first of
  // "<|endoftext|>", "<|end_of_text|>" and "</s>" that is a special token.
  virtual std::optional<TokenId> end_of_text() const = 0;

  // Returns the XXH3 of all tokens and their ids, which a note beside a file of tokens names.
  virtual std::string checksum() const = 0;
};

// Reads the first of these that a folder has: tokenizer.json, vocab.json and merges.txt as GPT-2 has them,
// tokenizer.model of SentencePiece or of Llama 3, tekken.json of Mistral, a file *.tiktoken, vocab.txt of BERT. Throws
// Error that names the file and the reason if a file is missing or damaged, or if it asks for something that Vernier
// does not have. Nothing of a file is ignored in silence but `truncation` and `padding`: encode()
// neither shortens nor pads.
VERNIER_API std::shared_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& folder);

// True if a folder has one of these files.
VERNIER_API bool has_tokenizer(const std::filesystem::path& folder);

}  // namespace vernier
