#include "token_layout.h"

#include <c10/util/StringUtil.h>
#include <vernier/data/numpy.h>
#include <vernier/data/readers.h>
#include <vernier/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "files/json.h"
#include "token_note.h"

namespace vernier {

namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

constexpr auto begin_of_npy = "\x93NUMPY"sv;

struct TokenType {
  std::string_view name;
  std::size_t width;
  torch::ScalarType type;
  int megatron;  // its number in Megatron's .idx
};
constexpr TokenType all_token_types[] = {
    {"uint8", 1, torch::kUInt8, 1},   {"int8", 1, torch::kInt8, 2},     {"uint16", 2, torch::kUInt16, 8},
    {"int16", 2, torch::kInt16, 3},   {"uint32", 4, torch::kUInt32, 0}, {"int32", 4, torch::kInt32, 4},
    {"uint64", 8, torch::kUInt64, 0}, {"int64", 8, torch::kInt64, 5},
};

template <class Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

void refuse_other_kinds(const MappedFile& file) {
  const auto bytes = file.bytes();
  if (bytes.starts_with("MMIDIDX\0\0"sv)) {
    file.refuse("is the index of Megatron; its tokens are in the .bin file of that name");
  }
  if (bytes.starts_with("TNTIDX\0\0"sv)) file.refuse("is an index of fairseq, whose .bin file has no fixed type");
  if (bytes.starts_with(begin_of_npy)) return;
  const auto format = other_format(bytes, file.path(), ConvertTo::tokens);
  if (!format) return;
  const auto* as_npy = "write its tokens as an array: numpy.save(\"tokens.npy\", tokens)";
  file.refuse("is " + format->name + "; " + (format->remedy.empty() ? as_npy : format->remedy));
}

// The known type, unless the user requests another.
TokenLayout known(const MappedFile& file, const WindowOptions& options, std::string_view type, std::string known_by) {
  if (!options.type.empty() && options.type != type) {
    file.refuse(c10::str("has tokens of ", type, ", ", known_by, ", and token_type says ", options.type,
                         "; leave token_type out"));
  }
  TokenLayout layout;
  layout.type = type;
  layout.known_by = std::move(known_by);
  return layout;
}

std::optional<TokenLayout> of_npy(const MappedFile& file, const WindowOptions& options) {
  if (!file.bytes().starts_with(begin_of_npy)) return std::nullopt;
  const auto array = read_npy(file.path());
  const auto* type = std::ranges::find(all_token_types, array.scalar_type(), &TokenType::type);
  if (type == std::end(all_token_types)) {
    file.refuse(c10::str("has an array of ", array.scalar_type(),
                         ", and tokens are whole numbers; save array.astype(\"<u4\")"));
  }
  if (array.dim() == 0 || !array.is_contiguous()) {
    file.refuse(c10::str("has an array of shape ", array.sizes(), array.dim() == 0 ? "" : " in Fortran order",
                         "; save array.ravel()"));
  }
  auto layout = known(file, options, type->name, "as its header says");
  layout.count = array.numel();
  layout.begin = file.bytes().size() - static_cast<std::size_t>(array.numel()) * type->width;
  return layout;
}

// 256 numbers of 32 bits: magic, version, count (https://github.com/karpathy/llm.c, dev/data/data_common.py).
std::optional<TokenLayout> of_llm_c(const MappedFile& file, const WindowOptions& options) {
  constexpr std::size_t header = 1024;
  const auto bytes = file.bytes();
  if (bytes.size() < header) return std::nullopt;
  const auto magic = number_at<std::int32_t>(bytes, 0), version = number_at<std::int32_t>(bytes, 4);
  if (magic != 20240520 && magic != 20240801) return std::nullopt;
  if (version != 1 && version != 7) {
    file.refuse(c10::str("has the header of llm.c, version ", version, "; read are 1 and 7"));
  }
  auto layout = known(file, options, version == 1 ? "uint16" : "uint32", "as its header of llm.c says");
  layout.begin = header;
  layout.count = number_at<std::int32_t>(bytes, 8);
  const auto there = bytes.size() - header;
  if (layout.count < 0 || static_cast<std::size_t>(layout.count) * width_of_token(layout.type) != there) {
    file.refuse(c10::str("is damaged: its header of llm.c says ", layout.count, " tokens of ", layout.type,
                         ", and behind it are ", there, " bytes"));
  }
  return layout;
}

// Megatron keeps the type of the tokens in tokens.bin in tokens.idx.
std::optional<TokenLayout> of_megatron(const MappedFile& file, const WindowOptions& options) {
  constexpr std::size_t type_at = 17;  // behind a magic of 9 bytes and a version of 8
  const auto path = fs::path(file.path()).replace_extension(".idx");
  std::error_code none;
  if (!file.path().ends_with(".bin") || !fs::is_regular_file(path, none)) return std::nullopt;
  const auto index = MappedFile::open(path.string());
  const auto bytes = index->bytes();
  if (bytes.size() <= type_at || !bytes.starts_with("MMIDIDX\0\0"sv)) return std::nullopt;
  const int number = static_cast<unsigned char>(bytes[type_at]);
  const auto* type = std::ranges::find(all_token_types, number, &TokenType::megatron);
  if (number == 0 || type == std::end(all_token_types)) {
    index->refuse(c10::str("is an index of Megatron that gives the tokens the type ", number, ", which is not whole"));
  }
  return known(file, options, type->name, "as '" + path.string() + "' says");
}

std::optional<TokenLayout> of_note(const MappedFile& file, const WindowOptions& options) {
  const auto note = read_token_note(file.path());
  if (!note) return std::nullopt;
  const auto path = note_path(file.path());
  auto layout = known(file, options, note->type, "as '" + path + "' says");
  const auto bytes = file.bytes().size();
  if (static_cast<std::uint64_t>(note->tokens) * width_of_token(note->type) != bytes) {
    file.refuse(c10::str("has ", bytes, " bytes, and '", path, "' says ", note->tokens, " tokens of ", note->type,
                         ", so one of them is another's; write both again with vernier tokenize"));
  }
  if (options.vocabulary > 0 && note->vocabulary > options.vocabulary) {
    file.refuse(c10::str("was made by a tokenizer of ", note->vocabulary, " tokens, as '", path,
                         "' says, and the model has ", options.vocabulary, "; use the model's own tokenizer"));
  }
  if (!options.tokenizer.empty() && note->tokenizer != options.tokenizer) {
    file.refuse("was made by another tokenizer than the model's, as '" + path +
                "' says; write it again with the model's, or remove that note if both give the same tokens");
  }
  return layout;
}

constexpr std::size_t looked_at = 4096;  // tokens of a guessed type

// The bytes of a text: no control characters, and valid UTF-8 as far as lead and continuation bytes go.
bool looks_like_text(std::string_view bytes) {
  constexpr std::size_t least = 64;
  if (bytes.size() < least) return false;
  int continuation = 0;
  for (const char each : bytes.substr(0, looked_at)) {
    const auto byte = static_cast<unsigned char>(each);
    if ((byte & 0xC0) == 0x80) {
      if (continuation-- == 0) return false;
      continue;
    }
    const bool is_control = (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7F;
    if (continuation != 0 || is_control || byte >= 0xF8) return false;
    continuation = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : byte >= 0xC0 ? 1 : 0;
  }
  return true;
}

// How many numbers of `width` bytes belong together: all but the first of each group are 0. 1: none do.
std::size_t zeros_in_groups(std::string_view bytes, std::size_t width) {
  constexpr std::size_t least = 32;
  const auto count = std::min(bytes.size() / width, looked_at);
  if (count < least) return 1;
  const auto is_zero = [&](std::size_t i) {
    return std::ranges::all_of(bytes.substr(i * width, width), [](char c) { return c == 0; });
  };
  const auto fits = [&](std::size_t group) {
    bool is_any = false;
    for (std::size_t i = 0; i < count; ++i) {
      if (i % group == 0) is_any = is_any || !is_zero(i);
      if (i % group != 0 && !is_zero(i)) return false;
    }
    return is_any;
  };
  return fits(8 / width) ? 8 / width : fits(2) ? 2 : 1;
}

// Tokens of 16 bits whose bytes are swapped, if all are below 256.
bool looks_big_endian(std::string_view bytes) {
  constexpr std::size_t least = 32;
  const auto count = std::min(bytes.size() / 2, looked_at);
  bool is_any = false;
  for (std::size_t i = 0; i < count; ++i) {
    if (bytes[2 * i] != 0) return false;
    is_any = is_any || bytes[2 * i + 1] != 0;
  }
  return count >= least && is_any;
}

void refuse_other_names(const MappedFile& file) {
  constexpr std::array<std::string_view, 14> known_names = {"",     ".bin",    ".npy",    ".tok",  ".tokens",
                                                            ".dat", ".raw",    ".u8",     ".u16",  ".u32",
                                                            ".ids", ".uint16", ".uint32", ".uint8"};
  const auto name = fs::path(file.path()).extension().string();
  if (std::ranges::find(known_names, name) != known_names.end()) return;
  file.refuse(
      "ends in " + shortened(name) +
      ": texts end in .txt, .jsonl or .json, files of tokens in .bin or .npy; rename it, or give the type of its "
      "tokens, token_type, if it has some");
}

TokenLayout guessed(const MappedFile& file, const WindowOptions& options) {
  constexpr std::int64_t most_in_16_bits = 65536;
  refuse_other_names(file);
  const auto bytes = file.bytes();
  if (looks_like_text(bytes)) {
    file.refuse("has text where tokens belong; name it .txt, or give token_type, \"uint8\" if each byte is a token");
  }
  TokenLayout layout;
  layout.type = options.vocabulary <= most_in_16_bits ? "uint16" : "uint32";
  layout.known_by = "by the size of the vocabulary";
  layout.is_guessed = true;
  const auto width = width_of_token(layout.type);
  if (const auto group = zeros_in_groups(bytes, width); group > 1) {
    const auto* type = group * width == 8 ? "int64" : "uint32";
    file.refuse(c10::str("looks like tokens of ", 8 * group * width, " bits: read as ", layout.type, ", ",
                         group == 2 ? "every second one is 0" : "three of four are 0", "; set token_type = \"", type,
                         "\", or token_type = \"", layout.type, "\" if it is right"));
  }
  if (width == 2 && looks_big_endian(bytes)) {
    file.refuse(
        "looks like big-endian tokens: each is a multiple of 256; write them little-endian, as "
        "tokens.astype(\"<u2\").tofile(\"tokens.bin\"), or set token_type = \"uint16\" if it is right");
  }
  return layout;
}

}  // namespace

std::size_t width_of_token(std::string_view type) {
  const auto* found = std::ranges::find(all_token_types, type, &TokenType::name);
  return found == std::end(all_token_types) ? 0 : found->width;
}

std::string token_types() {
  std::string names;
  for (const auto& type : all_token_types) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

TokenLayout token_layout_of(const MappedFile& file, const WindowOptions& options) {
  if (!options.type.empty() && width_of_token(options.type) == 0) {
    refuse("tokens of the type '" + options.type + "' are not read; there are " + token_types());
  }
  refuse_other_kinds(file);
  if (auto layout = of_npy(file, options)) return *layout;
  if (auto layout = of_llm_c(file, options)) return *layout;
  auto layout = of_note(file, options);
  if (!layout) layout = of_megatron(file, options);
  if (!layout && !options.type.empty()) {
    layout.emplace();
    layout->type = options.type;
  }
  if (!layout) layout = guessed(file, options);
  const auto width = width_of_token(layout->type), bytes = file.bytes().size();
  if (bytes % width != 0) {
    file.refuse(c10::str("ends within a token: it has ", bytes, " bytes, and a token of ", layout->type, " has ", width,
                         layout->is_guessed ? "; give their type with token_type" : ""));
  }
  layout->count = static_cast<std::int64_t>(bytes / width);
  return *layout;
}

TokenLayout bytes_layout_of(const MappedFile& file) {
  TokenLayout layout;
  layout.type = "uint8";
  layout.count = static_cast<std::int64_t>(file.bytes().size());
  return layout;
}

}  // namespace vernier
