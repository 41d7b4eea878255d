#include "tokenizer_config_files.h"

#include <vernier/data_file.h>
#include <vernier/error.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "tokenizer_model.h"

namespace vernier {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t most_bytes_of_part = 1'000'000'000;
constexpr std::size_t deepest_part = 16;

// A file of the folder; null without one.
class FolderFile {
 public:
  FolderFile(const fs::path& folder, const char* name, const char* what) : path_((folder / name).string()) {
    std::error_code none;
    if (!fs::exists(path_, none)) return;
    json_.emplace(read_tokenizer_part(path_, what));
    if (!json_->value.is_object()) refuse("'" + path_ + "' is not a JSON object");
  }
  explicit operator bool() const { return json_.has_value(); }
  JsonPart part() const { return {path_, json_ ? json_->value : nothing()}; }
  JsonPart member(const char* name) const { return part().member(name); }
  const std::string& path() const { return path_; }

 private:
  static const Json& nothing() {
    static const Json empty = Json::object();
    return empty;
  }
  std::string path_;
  std::optional<ParsedJson> json_;
};

class FilesBeside {
 public:
  FilesBeside(const fs::path& folder, TokenizerFile& file)
      : file_(file),
        config_(folder, "tokenizer_config.json", "configuration"),
        map_(folder, "special_tokens_map.json", "map of special tokens"),
        added_(folder, "added_tokens.json", "list of added tokens"),
        adder_(file) {}

  void read() {
    if (config_.part().flag("split_special_tokens", false)) {
      config_.member("split_special_tokens").refuse("is true, and Vernier does not have it");
    }
    read_case();
    const auto next = next_id();
    read_decoder();
    read_added();
    refuse_gaps(next);
    read_special();
    read_around();
  }

 private:
  static bool is_one_of(const std::string& text, std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, text) != names.end();
  }

  // transformers changes the normalizer of tokenizer.json by these flags.
  void read_case() const {
    const auto has = [&](NormalStep::Kind kind) {
      return std::ranges::find(file_.normalizer, kind, &NormalStep::kind) != file_.normalizer.end();
    };
    const auto require = [&](const char* key, bool is_there) {
      const auto flag = config_.member(key);
      if (flag.is_null() || config_.part().flag(key, false) == is_there) return;
      flag.refuse("is not what the normalizer of the tokenizer does; make them equal");
    };
    const bool lowers = has(NormalStep::Kind::lower_case);
    const bool is_bert = has(NormalStep::Kind::clean);
    if (lowers || is_bert || config_.part().flag("do_lower_case", false)) require("do_lower_case", lowers);
    if (!is_bert) return;
    require("strip_accents", has(NormalStep::Kind::strip_accents));
    require("tokenize_chinese_chars", has(NormalStep::Kind::space_chinese));
  }

  bool adds_space() const {
    return std::ranges::find(file_.pieces, PieceStep::Kind::add_space, &PieceStep::kind) != file_.pieces.end();
  }

  TokenId next_id() const {
    TokenId last = -1;
    for (const auto& [text, id] : file_.vocabulary) last = std::max(last, id);
    for (const auto& token : file_.added) last = std::max(last, token.id);
    return last + 1;
  }

  // From ids to tokens.
  void read_decoder() {
    const auto decoder = config_.member("added_tokens_decoder");
    if (decoder.is_null()) return;
    if (!decoder.json().is_object()) decoder.refuse("is not an object of ids and tokens");
    for (const auto& [number, value] : decoder.json().items()) {
      const JsonPart token(config_.path(), value, "added_tokens_decoder." + number);
      TokenId id = -1;
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), id);
      const bool is_id = error == std::errc() && end == number.data() + number.size() && id >= 0 && id < most_tokens;
      if (!is_id) token.refuse("is not an id: ids are from 0 to 16777215");
      add(token, added_token(token, id));
    }
  }

  // Remembers tokens that tokenizer.json lacks.
  void add(const JsonPart& place, AddedToken token) {
    if (!adder_.id_of(token.text)) new_.emplace(token.id, place);
    adder_.add(place, std::move(token));
  }

  // transformers appends new tokens behind all others, whatever ids the files say.
  void refuse_gaps(TokenId next) const {
    for (const auto& [id, place] : new_) {
      if (id != next)
        place.refuse("has the id " + std::to_string(id) + ", and the next free one is " + std::to_string(next));
      ++next;
    }
  }

  // From tokens to ids. tokenizer_config.json has them all if it has some.
  void read_added() {
    const bool has_decoder = !config_.member("added_tokens_decoder").is_null();
    std::set<std::string> special;
    for_each_special([&](const JsonPart&, const std::string& text) { special.insert(text); });
    for (const auto& [text, value] : added_.part().json().items()) {
      const JsonPart token(added_.path(), value, shortened(text));
      if (has_decoder && !adder_.is_added(text))
        token.refuse("is not in added_tokens_decoder of tokenizer_config.json");
      AddedToken added;
      added.id = token_id(token);
      added.text = text;
      added.is_special = special.contains(text);
      added.is_normalized = !added.is_special;
      add(token, std::move(added));
    }
  }

  // A token by its name. As in transformers, special_tokens_map.json goes first, unless tokenizer_config.json has all
  // tokens.
  JsonPart named(const char* name) const {
    const bool counts = map_.part().json().contains(name) && config_.member("added_tokens_decoder").is_null();
    return counts ? map_.member(name) : config_.member(name);
  }

  template <class Use>
  void for_each_special(const Use& use) const {
    for (const auto* name : special_names) {
      if (const auto token = named(name); !token.is_null()) use(token, text_of_token(token));
    }
    for (const auto& [name, value] : config_.part().json().items()) {
      if (!is_model_token(name, value)) continue;
      const JsonPart token(config_.path(), value, name);
      use(token, text_of_token(token));
    }
    for (const auto* from : {&config_, &map_}) {
      for (const char* list : {"additional_special_tokens", "extra_special_tokens"}) {
        for (const auto& [name, value] : from->member(list).json().items()) {
          const JsonPart token(from->path(), value, list);
          use(token, text_of_token(token));
        }
      }
    }
  }

  // A special token is found in a text before all else, and has no text of its own.
  void read_special() {
    for_each_special([&](const JsonPart& token, const std::string& text) {
      const auto id = adder_.id_of(text);
      if (!id)
        token.refuse("is not in the vocabulary; take it out here, or add it to `added_tokens` of tokenizer.json");
      AddedToken added;
      added.id = *id;
      added.text = text;
      added.is_special = true;
      adder_.add(token, std::move(added));
    });
    if (const auto end = named("eos_token"); !end.is_null()) file_.end_of_text = text_of_token(end);
  }

  std::vector<TokenId> ids_of(const char* name, const char* flag) const {
    if (const auto token = named(name); !token.is_null()) return {*adder_.id_of(text_of_token(token))};
    config_.member(flag).refuse(std::string("is true, and no file names the token ") + name);
  }

  static bool is_form_c(const NormalStep& step) { return step.kind == NormalStep::Kind::form_c; }

  // The class decides how vocab.json is used, and GPT-2's puts a space before a text by a flag of its own.
  void read_class(const JsonPart& kind, bool is_json) {
    const auto name = kind.is_null() ? std::string("GPT2Tokenizer") : kind.text();
    const bool is_gpt2 = name == "GPT2Tokenizer" || name == "GPT2TokenizerFast";
    const bool is_qwen2 = name == "Qwen2Tokenizer" || name == "Qwen2TokenizerFast";
    const auto space = config_.member("add_prefix_space");
    if (is_json) {
      if (is_qwen2 && file_.is_byte_level && !(file_.normalizer.size() == 1 && is_form_c(file_.normalizer[0]))) {
        kind.refuse("is '" + name + "', whose normalizer is NFC in transformers 5, and that of tokenizer.json is " +
                    "another; name PreTrainedTokenizerFast here, which uses it, or write NFC there");
      }
      if (is_gpt2 && !kind.is_null() && file_.is_byte_level && !file_.normalizer.empty()) {
        kind.refuse("is '" + name + "', which has no normalizer in transformers 5, and tokenizer.json has one; name " +
                    "PreTrainedTokenizerFast here, which uses it, or take it out of tokenizer.json");
      }
      if (!is_gpt2 || !file_.is_byte_level || space.is_null()) return;
      if (config_.part().flag("add_prefix_space", false) == adds_space()) return;
      space.refuse("differs from `pre_tokenizer.add_prefix_space` of tokenizer.json; make them equal");
    }
    if (is_qwen2) {
      file_.pieces = {{.kind = PieceStep::Kind::rule, .rule = PieceRule::qwen2}};
      file_.normalizer = {{.kind = NormalStep::Kind::form_c}};
    } else if (!is_gpt2) {
      kind.refuse(
          "is '" + shortened(name) +
          "'; Vernier has GPT2Tokenizer and Qwen2Tokenizer for vocab.json and merges.txt; save the tokenizer by "
          "transformers, which writes tokenizer.json");
    }
  }

  // Classes whose ids are those of tokenizer.model; others number the tokens in another way.
  static void require_sentence_piece(const JsonPart& kind) {
    if (kind.is_null()) return;
    const bool is_known = is_one_of(kind.text(), {"LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer",
                                                  "GemmaTokenizerFast", "CodeLlamaTokenizer"});
    if (is_known) return;
    kind.refuse("is " + in_quotes(kind.text()) +
                "; Vernier has LlamaTokenizer and GemmaTokenizer for tokenizer.model; save the tokenizer by "
                "transformers, which writes tokenizer.json");
  }

  // tokenizer_config.json says what is put around a text for other files, and for Llama 2's tokenizer.json.
  void read_around() {
    const auto kind = config_.member("tokenizer_class");
    const auto name = fs::path(file_.path).filename().string();
    const bool is_json = name == "tokenizer.json", is_sentence_piece = name == "tokenizer.model";
    const bool has_class = !kind.is_null();
    if (is_json || name == "vocab.json") read_class(kind, is_json);
    if (is_sentence_piece && !file_.is_byte_level) require_sentence_piece(kind);
    if (is_json && (!has_class || !kind.text().starts_with("LlamaTokenizer"))) return;
    if (name == "vocab.json" && config_.part().flag("add_prefix_space", false)) {
      file_.pieces.insert(file_.pieces.begin(), {.kind = PieceStep::Kind::add_space});
    }
    const bool adds_begin = is_sentence_piece && !file_.is_byte_level && has_class;  // by default
    const auto put = [&](const char* flag, const char* token, bool otherwise, std::vector<TokenId>& around) {
      if (config_.member(flag).is_null() && !otherwise) return;
      around = config_.part().flag(flag, otherwise) ? ids_of(token, flag) : std::vector<TokenId>();
    };
    put("add_bos_token", "bos_token", adds_begin, file_.before);
    put("add_eos_token", "eos_token", false, file_.after);
  }

  TokenizerFile& file_;
  FolderFile config_, map_, added_;
  TokenAdder adder_;
  std::map<TokenId, JsonPart> new_;
};

}  // namespace

bool is_model_token(const std::string& name, const Json& value) {
  const bool is_token =
      value.is_string() ? value != "" : value.is_object() && value.value("__type", "") == "AddedToken";
  return is_token && name.ends_with("_token") && std::ranges::find(special_names, name) == std::end(special_names);
}

std::string text_of_token(const JsonPart& token) {
  return token.json().is_object() ? token.member("content").text() : token.text();
}

ParsedJson read_tokenizer_part(const std::string& path, const std::string& what) {
  const auto text = read_data_file(path, most_bytes_of_part);
  try {
    return parse_json("'" + path + "'", what, text, deepest_part);
  } catch (const Error& error) {
    refuse(message(error));
  }
}

void read_config_files(const fs::path& folder, TokenizerFile& file) {
  FilesBeside(folder, file).read();
}

}  // namespace vernier
