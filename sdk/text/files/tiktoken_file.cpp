// Files of tiktoken, and tekken.json of Mistral: byte-level BPE in which the rank of a token is the order of its merge.
#include <vernier/checksum.h>
#include <vernier/error.h>

#include <algorithm>
#include <charconv>

#include "base64.h"
#include "tokenizer_config_files.h"
#include "tokenizer_files.h"
#include "tokenizer_model.h"

namespace vernier {

namespace {

constexpr const char* gpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* cl100k =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* o200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* qwen = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                             R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* qwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Special tokens with ids one after another; a name with '#' stands for as many as `count` says, from `from` on.
struct Special {
  TokenId first;
  const char* names;  // with a space between two
  int count = 0, from = 0;
};

// A vocabulary whose other facts its publisher has in a program.
struct Known {
  const char* name;
  const char* checksum;  // checksum of all lines, each with a newline at its end
  const char* expression;
  bool is_form_c;
  std::vector<Special> special;
};

const std::vector<Known>& known_vocabularies() {
  static const std::vector<Known> all = {
      {"gpt2 (r50k_base)", "aa5ef69a716d8a563cb2fbe95939bd2d", gpt2, false, {{50256, "<|endoftext|>"}}},
      {"p50k_base", "1bfe2eadd49e9688f2d3fa62565e6e17", gpt2, false, {{50256, "<|endoftext|>"}}},
      {"cl100k_base",
       "7cdb781bb5d59657aa5d7bf38900641a",
       cl100k,
       false,
       {{100257, "<|endoftext|> <|fim_prefix|> <|fim_middle|> <|fim_suffix|>"}, {100276, "<|endofprompt|>"}}},
      {"o200k_base",
       "dee5d4ced09a2db672a095e82ca109d6",
       o200k,
       false,
       {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}}},
      {"Llama 3",
       "22e6ee98364f2a1fe7339703bb9e9d7b",
       cl100k,
       false,
       {{128000,
         "<|begin_of_text|> <|end_of_text|> <|reserved_special_token_0|> <|reserved_special_token_1|> "
         "<|finetune_right_pad_id|> <|step_id|> <|start_header_id|> <|end_header_id|> <|eom_id|> <|eot_id|> "
         "<|python_tag|> <|image|>"},
        {128012, "<|reserved_special_token_#|>", 244, 2}}},
      {"Llama 4",
       "fd1ec8f19c117ba2d2fc82dae9636e64",
       o200k,
       false,
       {{200000,
         "<|begin_of_text|> <|end_of_text|> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|header_start|> "
         "<|header_end|> <|eom|> <|eot|> <|step|>"},
        {200010, "<|text_post_train_reserved_special_token_#|>", 6, 0},
        {200016, "<|python_start|> <|python_end|> <|finetune_right_pad|>"},
        {200019, "<|text_post_train_reserved_special_token_#|>", 61, 8},
        {200080,
         "<|image_start|> <|image_end|> <|vision_reserved_special_token_0|> <|vision_reserved_special_token_1|> "
         "<|tile_x_separator|> <|tile_y_separator|>"},
        {200086, "<|vision_reserved_special_token_#|>", 4, 2},
        {200090, "<|image|> <|vision_reserved_special_token_6|> <|patch|>"},
        {200093, "<|vision_reserved_special_token_#|>", 1041, 7},
        {201134, "<|reasoning_reserved_special_token_#|>", 8, 0},
        {201142, "<|reasoning_thinking_start|> <|reasoning_thinking_end|>"},
        {201144, "<|reserved_special_token_#|>", 904, 0}}},
      {"Qwen",
       "d68162fbd6d3acb39f288efcb5368aab",
       qwen,
       true,
       {{151643, "<|endoftext|> <|im_start|> <|im_end|>"}, {151646, "<|extra_#|>", 205, 0}}},
      {"Qwen 3.5",
       "c5a27faf8898f9912a38d0d36c85cbae",
       qwen35,
       true,
       {{248044,
         "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
         "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
         "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
         "<tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> "
         "<tts_text_eod> <tts_text_bos_single> <|audio_pad|>"}}},
  };
  return all;
}

std::string with_characters(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += byte_characters()[static_cast<unsigned char>(c)];
  return text;
}

void add_token(TokenizerFile& file, std::string_view bytes, TokenId id) {
  const auto text = with_characters(bytes);
  if (bytes.size() > most_bytes_of_token) refuse("has a token of more than 4096 bytes");
  if (!file.vocabulary.emplace(text, id).second) refuse("has the token " + in_quotes(text) + " twice");
}

// The rest of byte-level BPE, once the vocabulary is there.
void finish(TokenizerFile& file, const std::string& expression, bool is_form_c) {
  std::unordered_map<std::string, std::uint32_t> ranks;
  std::unordered_map<TokenId, bool> taken;
  for (const auto& [token, id] : file.vocabulary) {
    ranks.emplace(token, static_cast<std::uint32_t>(id));
    if (!taken.emplace(id, true).second) refuse("gives the id " + std::to_string(id) + " to two tokens");
  }
  for (const auto& byte : byte_characters()) {
    if (!file.vocabulary.contains(byte)) refuse("lacks the byte '" + byte + "'; all 256 are needed");
  }
  add_merges_by_rank(file, ranks);
  file.is_byte_level = true;
  file.ignore_merges = true;
  if (is_form_c) file.normalizer.push_back({.kind = NormalStep::Kind::form_c});
  const auto rule = rule_of_regex(expression);
  PieceStep step{.kind = rule ? PieceStep::Kind::rule : PieceStep::Kind::regex};
  if (rule) step.rule = *rule;
  if (!rule) step.regex = std::make_shared<const Regex>(expression);
  file.pieces = {step};
  file.decoder = {{.kind = DecodeStep::Kind::byte_level}};
}

void add_special(TokenizerFile& file, const std::string& text, TokenId id, bool is_in_text = true) {
  file.added.push_back({.id = id, .text = text, .is_special = true, .is_in_text = is_in_text});
}

void add_special(TokenizerFile& file, const Special& special) {
  auto id = special.first;
  std::string_view names = special.names;
  for (int i = 0; i < special.count; ++i) {
    const auto at = names.find('#');
    add_special(file,
                std::string(names.substr(0, at)) + std::to_string(special.from + i) + std::string(names.substr(at + 1)),
                id++);
  }
  while (special.count == 0 && !names.empty()) {
    const auto end = std::min(names.find(' '), names.size());
    add_special(file, std::string(names.substr(0, end)), id++);
    names.remove_prefix(std::min(end + 1, names.size()));
  }
}

// Takes a line from the bytes.
std::string_view next_line(std::string_view& bytes) {
  const auto end = std::min(bytes.find('\n'), bytes.size());
  auto line = bytes.substr(0, end);
  bytes.remove_prefix(std::min(end + 1, bytes.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

struct Rank {
  std::string_view token;  // in base64
  TokenId rank = -1;
};

std::optional<Rank> rank_of(std::string_view line) {
  const auto space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  Rank rank{line.substr(0, space)};
  const auto* end = line.data() + line.size();
  const auto [last, error] = std::from_chars(line.data() + space + 1, end, rank.rank);
  const bool is_rank = error == std::errc() && last == end && rank.rank >= 0 && rank.rank < most_tokens;
  return is_rank ? std::optional(rank) : std::nullopt;
}

void read_ranks(std::string_view bytes, TokenizerFile& file) {
  std::string lines;
  for (std::size_t number = 1; !bytes.empty(); ++number) {
    const auto line = next_line(bytes);
    if (line.empty()) continue;
    const auto rank = rank_of(line);
    if (!rank) refuse("has in line " + std::to_string(number) + " no token in base64 and its rank");
    add_token(file, from_base64(rank->token), rank->rank);
    lines.append(line).append("\n");
  }
  const auto checksum = checksum_of(lines);
  for (const auto& known : known_vocabularies()) {
    if (checksum != known.checksum) continue;
    finish(file, known.expression, known.is_form_c);
    for (const auto& special : known.special) add_special(file, special);
    return;
  }
  std::string names;
  for (const auto& known : known_vocabularies()) names += (names.empty() ? "" : ", ") + std::string(known.name);
  refuse("lacks the expression that cuts a text, and is none of the vocabularies that Vernier knows: " + names +
         "; save the tokenizer by transformers, which writes tokenizer.json");
}

// The tokens behind the special ones, which have the first ids.
void read_tekken_tokens(const JsonPart& root, TokenizerFile& file) {
  const auto config = root.member("config"), vocab = root.member("vocab");
  const auto size = config.member("default_vocab_size").number();
  const auto special = config.member("default_num_special_tokens").number();
  const auto count = size - special;
  const bool is_right = special >= 0 && count > 0 && count <= std::ssize(vocab.json()) && size <= most_tokens;
  if (!is_right) config.refuse("has not as many tokens as `vocab`");
  for (std::int64_t i = 0; i < count; ++i) {
    const auto token = vocab[static_cast<std::size_t>(i)];
    if (token.member("rank").number() != i) token.refuse("has not the rank " + std::to_string(i));
    add_token(file, from_base64(token.member("token_bytes").text()), static_cast<TokenId>(i + special));
  }
  const auto named = root.member("special_tokens");
  constexpr const char* old[] = {"<unk>",
                                 "<s>",
                                 "</s>",
                                 "[INST]",
                                 "[/INST]",
                                 "[AVAILABLE_TOOLS]",
                                 "[/AVAILABLE_TOOLS]",
                                 "[TOOL_RESULTS]",
                                 "[/TOOL_RESULTS]",
                                 "[TOOL_CALLS]",
                                 "[IMG]",
                                 "<pad>",
                                 "[IMG_BREAK]",
                                 "[IMG_END]",
                                 "[PREFIX]",
                                 "[MIDDLE]",
                                 "[SUFFIX]",
                                 "[SYSTEM_PROMPT]",
                                 "[/SYSTEM_PROMPT]",
                                 "[TOOL_CONTENT]"};
  for (std::int64_t i = 0; i < special; ++i) {
    const auto place = static_cast<std::size_t>(i);
    auto text = "<SPECIAL_" + std::to_string(i) + ">";
    if (named.is_null() && place < std::size(old)) text = old[place];
    if (place < named.size()) text = named[place].member("token_str").text();
    add_special(file, text, static_cast<TokenId>(i), false);
  }
  file.end_of_text = "</s>";
}

}  // namespace

bool is_tiktoken(std::string_view bytes) {
  return rank_of(next_line(bytes)).has_value();
}

void read_tiktoken(std::string_view bytes, TokenizerFile& file) {
  try {
    read_ranks(bytes, file);
  } catch (const Error& error) {
    refuse("'" + file.path + "': it " + message(error));
  }
}

void read_tekken(TokenizerFile& file) {
  const auto json = read_tokenizer_part(file.path, "tokenizer");
  const JsonPart root(file.path, json.value);
  const auto expression = root.member("config").member("pattern");
  read_tekken_tokens(root, file);
  compiled(expression, expression.text());
  try {
    finish(file, expression.text(), false);
  } catch (const Error& error) {
    refuse("'" + file.path + "': it " + message(error));
  }
}

}  // namespace vernier
