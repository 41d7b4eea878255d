// Whatever the bytes of tokenizer.json or tokenizer.model are, open_tokenizer throws Error or gives a tokenizer whose
// ids are in its vocabulary and which encodes and decodes any text.
#include <vernier/error.h>
#include <vernier/text/tokenizer.h>

#include <cstring>
#include <filesystem>

#include "fuzzer.h"
#include "input_file.h"

namespace {

namespace fs = std::filesystem;

constexpr const char* text =
    "The tokens of a text, don't they?  12345\n\n <s><|endoftext|> \u00E9\u4E2D\u6587 \U0001F642 x";

// A folder that has the input as its tokenizer.json or tokenizer.model.
class Folder {
 public:
  Folder(const InputFile& input, const char* name) {
    if (::mkdtemp(path_) == nullptr) std::abort();
    fs::create_symlink(input.path(), fs::path(path_) / name);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code none;
    fs::remove_all(path_, none);
  }
  fs::path path() const { return path_; }

 private:
  char path_[32] = "/tmp/vernier-fuzz-XXXXXX";
};

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned) {
  return LLVMFuzzerMutate(data, size, most);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const InputFile input;
  static const Folder json(input, "tokenizer.json"), model(input, "tokenizer.model");
  const auto& folder = size > 0 && data[0] == '{' ? json : model;
  input.fill(data, size);
  try {
    const auto tokenizer = vernier::open_tokenizer(folder.path());
    const auto ids = tokenizer->encode(text);
    for (const auto id : ids) must(id >= 0 && id < tokenizer->vocabulary());
    tokenizer->decode(ids);
    tokenizer->decode(tokenizer->encode_plain(text), true);
    if (const auto end = tokenizer->end_of_text()) must(*end >= 0 && *end < tokenizer->vocabulary());
  } catch (const vernier::Error& error) {
    must(std::strchr(error.what(), '\n') == nullptr);
  }
  return 0;
}
