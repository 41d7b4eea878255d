// vocab.txt of BERT: a token a line, whose number is its id. tokenizer_config.json beside it says how texts are
// changed, as transformers reads it.
#include <vernier/data_file.h>
#include <vernier/error.h>

#include <algorithm>

#include "text/unicode/unicode.h"
#include "tokenizer_config_files.h"
#include "tokenizer_files.h"
#include "tokenizer_model.h"

namespace vernier {

namespace {

constexpr std::uint64_t most_bytes_of_vocabulary = 1'000'000'000;

void read_lines(TokenizerFile& file) {
  const auto text = read_data_file(file.path, most_bytes_of_vocabulary);
  if (valid_utf8(text) != text.size()) refuse("'" + file.path + "' is not UTF-8");
  TokenId id = 0;
  for (std::size_t at = 0; at < text.size(); ++id) {
    const auto end = std::min(text.find('\n', at), text.size());
    auto line = text.substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (id >= most_tokens) refuse("'" + file.path + "' has more than 16777216 lines");
    if (!file.vocabulary.emplace(line, id).second) {
      refuse("'" + file.path + "': line " + std::to_string(id + 1) + " is a token that is there already");
    }
  }
}

TokenId special(TokenizerFile& file, const JsonPart& config, const char* key, const char* otherwise) {
  const auto given = config.member(key);
  const auto text = given.is_null() ? std::string(otherwise) : text_of_token(given);
  const auto found = file.vocabulary.find(text);
  if (found == file.vocabulary.end()) refuse("'" + file.path + "' lacks the token " + in_quotes(text));
  file.added.push_back({.id = found->second, .text = text, .is_special = true});
  return found->second;
}

void put_normalizer(const JsonPart& config, TokenizerFile& file) {
  using Kind = NormalStep::Kind;
  const bool lower = config.flag("do_lower_case", true);
  file.normalizer.push_back({.kind = Kind::clean});
  if (config.flag("tokenize_chinese_chars", true)) file.normalizer.push_back({.kind = Kind::space_chinese});
  if (config.flag("strip_accents", lower)) {
    file.normalizer.push_back({.kind = Kind::form_d});
    file.normalizer.push_back({.kind = Kind::strip_accents});
  }
  if (lower) file.normalizer.push_back({.kind = Kind::lower_case});
}

}  // namespace

void read_vocab_txt(const std::filesystem::path& folder, TokenizerFile& file) {
  read_lines(file);
  const auto path = (folder / "tokenizer_config.json").string();
  std::optional<ParsedJson> parsed;
  if (std::filesystem::exists(path)) parsed.emplace(read_tokenizer_part(path, "configuration"));
  const Json none = Json::object();
  const JsonPart config(path, parsed ? parsed->value : none);
  file.model = TokenizerFile::Model::word_piece;
  file.prefix = "##";
  file.most_characters = 100;
  file.unknown = special(file, config, "unk_token", "[UNK]");
  file.after = {special(file, config, "sep_token", "[SEP]")};
  special(file, config, "pad_token", "[PAD]");
  file.before = {special(file, config, "cls_token", "[CLS]")};
  special(file, config, "mask_token", "[MASK]");
  put_normalizer(config, file);
  file.pieces = {{.kind = PieceStep::Kind::bert}};
  file.decoder = {{.kind = DecodeStep::Kind::word_piece, .from = "##"}};
}

}  // namespace vernier
