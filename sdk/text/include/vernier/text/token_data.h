// Datasets of files of tokens and of texts: windows of a fixed length.
//
//   vernier::WindowOptions options;
//   options.length = 1024;
//   auto tokens = vernier::token_dataset("train.bin", options);
//
// Any thread may call the functions. The datasets map their files into memory, and throw Error if a file has changed
// since it was opened. The fingerprint is as that of vernier/data/readers.h.
#pragma once

#include <vernier/abi.h>
#include <vernier/data/dataset.h>

#include <cstdint>
#include <string>

namespace vernier {

struct WindowOptions {
  std::int64_t length = 1024;   // tokens that a sample predicts
  std::int64_t stride = 0;      // between the beginnings of two windows; 0: length, so each token is predicted once
  std::int64_t vocabulary = 0;  // a token that is not below it is refused: see tokens_looked_at; 0: all are allowed
  // The type of a token: "uint8", "uint16", "uint32", "uint64", or such a type with a sign. "": what the file says of
  // itself, or else uint16 if the vocabulary fits into it, or else uint32.
  std::string type = {};
  std::string tokenizer = {};  // Tokenizer::checksum() that a note must have; "": any
};

// read_tokens() checks all tokens of a file with no more than these. Of a larger file it checks so many, in 1024 parts
// that are evenly spaced, and the dataset checks each window when it is read. Both refuse a wrong one with its place.
constexpr std::int64_t tokens_looked_at = 1 << 26;

struct TokenData {
  DatasetPtr dataset;
  std::int64_t tokens = 0, largest = 0;  // largest: of the tokens that read_tokens() has checked
  std::string type, known_by;            // "uint16", "as its header says"; known_by: empty if options gave the type
};

// Windows of a file of tokens, little-endian, without a header, as nanoGPT and many others write it. A file may say the
// type of its tokens: .npy, llm.c's header, Megatron's .idx beside it, or the note of `vernier tokenize`, FILE.json. It
// may be larger than the memory. Sample i is {inputs, targets}, both int64 [length], of the tokens from i * stride; the
// target of each token is the one after it. Tokens behind the last whole window are left out. Throws Error if the file
// has no window, ends within a token, contradicts what says its type, or is a file of another kind. A type that is not
// known is refused if the bytes do not look like it.
VERNIER_API TokenData read_tokens(const std::string& path, const WindowOptions& options = {});
VERNIER_API DatasetPtr token_dataset(const std::string& path, const WindowOptions& options = {});

// The same of the bytes of any file: a token is a byte.
VERNIER_API DatasetPtr text_dataset(const std::string& path, const WindowOptions& options = {});

}  // namespace vernier
