#include <vernier/error.h>
#include <vernier/text/tokenizer.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "gguf_model.h"

namespace vernier::gguf {

namespace {

using Json = nlohmann::json;

enum TokenType : std::int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// The names that llama.cpp has for regular expressions that cut texts.
struct PreTokenizer {
  const char *name, *regex;
};
constexpr PreTokenizer pre_tokenizers[] = {
    {"gpt-2", ""},
    {"llama-bpe", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                  R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"qwen2", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
              R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};

// The steps of a pre_tokenizer or a decoder, be they in a Sequence or alone.
std::vector<Json> steps_of(const Json& part, const char* list) {
  if (!part.is_object()) return {};
  if (part.value("type", "") != "Sequence") return {part};
  return part.at(list).get<std::vector<Json>>();
}

// The regular expression that cuts a text before byte-level BPE; "" for that of GPT-2. Several are joined by a space,
// so that they match none of the above.
std::string regex_of(const Json& tokenizer) {
  std::string regex;
  for (const auto& step : steps_of(tokenizer.value("pre_tokenizer", Json()), "pretokenizers")) {
    if (step.value("type", "") == "ByteLevel") continue;
    regex +=
        (regex.empty() ? "" : " ") + (step.contains("pattern") ? step["pattern"].value("Regex", "?") : step.dump());
  }
  return regex;
}

std::string merge_text(const Json& merge) {
  return merge.is_string() ? merge.get<std::string>()
                           : merge.at(0).get<std::string>() + ' ' + merge.at(1).get<std::string>();
}

// llama.cpp joins the pair whose token has the best score, and a merge has a rank: both are the same only where the
// tokens were numbered in the order of the merges.
void require_order_of_merges(const Json& model) {
  std::int64_t last = -1;
  for (const auto& merge : model.at("merges")) {
    auto token = merge_text(merge);
    token.erase(token.find(' ', 1), 1);
    const auto id = model.at("vocab").at(token).get<std::int64_t>();
    if (id < last) {
      refuse(
          "tokenizer.json numbers its tokens in another order than its merges, and GGUF has scores in their place; "
          "--format huggingface writes it for llama.cpp's own converter");
    }
    last = id;
  }
}

// The types of the steps: "Prepend Replace".
std::string types_of(const Json& part, const char* name) {
  std::string types;
  for (const auto& step : steps_of(part, name)) types += (types.empty() ? "" : " ") + step.value("type", "");
  return types;
}

// GGUF says of a tokenizer only whether it is GPT-2's or Llama 2's.
void require_style(const Json& tokenizer) {
  const auto& model = tokenizer.at("model");
  const auto normal = types_of(tokenizer.value("normalizer", Json()), "normalizers");
  const auto pieces = types_of(tokenizer.value("pre_tokenizer", Json()), "pretokenizers");
  const bool is_bpe = model.value("type", "BPE") == "BPE";
  const auto suffix = model.value("end_of_word_suffix", Json());
  const bool has_suffix = suffix.is_string() && !suffix.get<std::string>().empty();
  const bool is_llama = normal == "Prepend Replace" || normal == "Replace" || (normal.empty() && pieces == "Metaspace");
  const bool is_known = model.value("byte_fallback", false) ? is_llama : normal.empty() || normal == "NFC";
  if (is_bpe && !has_suffix && is_known) return;
  refuse("tokenizer.json has the model '" + model.value("type", "BPE") + "', the normalizer '" + shortened(normal) +
         "' and the pre_tokenizer '" + shortened(pieces) +
         "', and Vernier writes GGUF for the tokenizers of GPT-2 and Llama 2; --format huggingface writes it for "
         "llama.cpp's own converter");
}

bool is_byte(const std::string& token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

struct Tokens {
  std::vector<std::string> texts;
  std::vector<std::int32_t> types;

  void put(std::int64_t id, const std::string& text, std::int32_t type) {
    if (id < 0 || id >= std::ssize(texts))
      refuse("the tokenizer has the token " + std::to_string(id) + ", for which the embedding of the model has no row");
    texts[static_cast<std::size_t>(id)] = text;
    types[static_cast<std::size_t>(id)] = type;
  }
};

Tokens tokens_of(const Json& tokenizer, std::int64_t count) {
  Tokens tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.texts.push_back("[PAD" + std::to_string(i) + "]");
    tokens.types.push_back(unused);
  }
  const auto& model = tokenizer.at("model");
  const bool has_bytes = model.value("byte_fallback", false);
  for (const auto& [text, id] : model.at("vocab").items())
    tokens.put(id, text, has_bytes && is_byte(text) ? byte : normal);
  for (const auto& added : tokenizer.value("added_tokens", Json::array())) {
    tokens.put(added.at("id"), added.at("content"), added.value("special", false) ? control : user_defined);
  }
  const auto unk = model.value("unk_token", Json());
  if (unk.is_string() && model["vocab"].contains(unk)) tokens.put(model["vocab"][unk.get<std::string>()], unk, unknown);
  return tokens;
}

// The tokens that begin and end a text, and whether encoding adds them.
void set_special(File& file, const std::string& folder) {
  const auto tokenizer = open_tokenizer(folder);
  const auto config = json_of(folder, "tokenizer_config.json");
  const auto named = [&](const char* name) -> std::optional<TokenId> {
    auto token = config.value(name, Json());
    if (token.is_object()) token = token.value("content", Json());
    return token.is_string() ? tokenizer->id(token.get<std::string>()) : std::nullopt;
  };
  const auto set = [&](const char* key, std::optional<TokenId> id) {
    if (id) file.set(std::string("tokenizer.ggml.") + key, static_cast<std::uint32_t>(*id));
  };
  auto begin = named("bos_token"), end = named("eos_token");
  if (!end) end = tokenizer->end_of_text();
  const auto ids = tokenizer->encode("a"), plain = tokenizer->encode("a", /*special=*/false);
  const auto there = std::ranges::search(ids, plain);
  const auto before = there.begin() - ids.begin(), after = ids.end() - there.end();
  if (before == 1 && !begin) begin = ids.front();
  if (after == 1 && !end) end = ids.back();
  if (there.empty() || before > 1 || after > 1 || (before == 1 && ids.front() != begin) ||
      (after == 1 && ids.back() != end)) {
    refuse(
        "the tokenizer adds other tokens to a text than bos_token and eos_token of tokenizer_config.json, and GGUF "
        "cannot say that");
  }
  set("bos_token_id", begin);
  set("eos_token_id", end);
  set("unknown_token_id", named("unk_token"));
  set("padding_token_id", named("pad_token"));
  file.set("tokenizer.ggml.add_bos_token", before == 1);
  file.set("tokenizer.ggml.add_eos_token", after == 1);
}

std::string chat_template(const std::string& folder) {
  std::ifstream file(std::filesystem::path(folder) / "chat_template.jinja", std::ios::binary);
  if (file) return {std::istreambuf_iterator<char>(file), {}};
  const auto text = json_of(folder, "tokenizer_config.json").value("chat_template", Json());
  return text.is_string() ? text.get<std::string>() : "";
}

}  // namespace

void add_vocabulary(File& file, const std::string& folder, std::int64_t count) {
  const auto tokenizer = json_of(folder, "tokenizer.json");
  if (tokenizer.empty()) {
    refuse("the run has no tokenizer.json, and GGUF holds the tokenizer; set task.tokenizer to its folder");
  }
  require_style(tokenizer);
  const auto& model = tokenizer.at("model");
  const auto tokens = tokens_of(tokenizer, count);
  if (model.value("byte_fallback", false)) {  // a vocabulary in SentencePiece's form
    require_order_of_merges(model);
    std::vector<float> scores;
    for (std::int64_t id = 0; id < count; ++id) scores.push_back(-static_cast<float>(id));
    file.set("tokenizer.ggml.model", std::string("llama"));
    file.set("tokenizer.ggml.pre", std::string("default"));
    file.set("tokenizer.ggml.scores", scores);
  } else {
    const auto regex = regex_of(tokenizer);
    const auto* known = std::ranges::find(pre_tokenizers, regex, &PreTokenizer::regex);
    if (known == std::end(pre_tokenizers)) {
      refuse(
          "tokenizer.json cuts texts neither as GPT-2, nor as Llama 3, nor as Qwen 2, but by the regular expression " +
          shortened(regex) + "; --format huggingface writes it for llama.cpp's own converter");
    }
    std::vector<std::string> merges;
    for (const auto& merge : model.at("merges")) merges.push_back(merge_text(merge));
    file.set("tokenizer.ggml.model", std::string("gpt2"));
    file.set("tokenizer.ggml.pre", std::string(known->name));
    file.set("tokenizer.ggml.merges", merges);
  }
  file.set("tokenizer.ggml.tokens", tokens.texts);
  file.set("tokenizer.ggml.token_type", tokens.types);
  set_special(file, folder);
  if (const auto text = chat_template(folder); !text.empty()) file.set("tokenizer.chat_template", text);
}

}  // namespace vernier::gguf
