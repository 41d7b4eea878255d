#include "tokenizer_model.h"

#include <vernier/error.h>

#include <algorithm>
#include <unordered_set>

namespace vernier {

namespace {

void read_merges(const JsonPart& merges, TokenizerFile& file) {
  const auto count = merges.size();
  file.merges.reserve(count);
  const bool is_text = count > 0 && merges.json()[0].is_string();
  for (std::size_t i = 0; i < count; ++i) {
    const auto& merge = merges.json()[i];
    const auto where = "model.merges[" + std::to_string(i) + "]";
    if (is_text && merge.is_string()) {
      const std::string_view text = merge.get_ref<const std::string&>();
      if (!add_merge(file, where, text)) merges[i].refuse("is not two tokens with a space between them");
    } else {
      if (is_text || merges[i].size() != 2) merges[i].refuse("is not a pair of tokens like those before it");
      add_merge(file, where, merges[i][0].text(), merges[i][1].text());
    }
  }
}

void read_unknown(const JsonPart& unknown, TokenizerFile& file) {
  if (unknown.is_null()) return;
  const auto found = file.vocabulary.find(unknown.text());
  if (found == file.vocabulary.end()) unknown.refuse("is not in the vocabulary");
  file.unknown = found->second;
}

void read_bpe(const JsonPart& model, TokenizerFile& file) {
  model.require_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                      "byte_fallback", "ignore_merges", "vocab", "merges"});
  const auto dropout = model.member("dropout");
  if (!dropout.is_null() && dropout.json() != 0.0) dropout.refuse("drops merges at random; set it to null");
  const auto prefix = model.member("continuing_subword_prefix"), suffix = model.member("end_of_word_suffix");
  if (!prefix.is_null() && !prefix.text().empty()) prefix.refuse("is not empty, and Vernier does not have it");
  if (!suffix.is_null()) file.suffix = suffix.text();
  file.ignore_merges = model.flag("ignore_merges", false);
  file.byte_fallback = model.flag("byte_fallback", false);
  file.fuse_unknown = model.flag("fuse_unk", false);
  read_vocabulary(model.member("vocab"), file);
  read_merges(model.member("merges"), file);
  read_unknown(model.member("unk_token"), file);
}

void read_words(const JsonPart& model, bool is_whole, TokenizerFile& file) {
  if (is_whole) {
    model.require_only({"type", "unk_token", "vocab"});
    file.model = TokenizerFile::Model::word_level;
  } else {
    model.require_only({"type", "unk_token", "vocab", "continuing_subword_prefix", "max_input_chars_per_word"});
    file.model = TokenizerFile::Model::word_piece;
    const auto prefix = model.member("continuing_subword_prefix"), most = model.member("max_input_chars_per_word");
    file.prefix = prefix.is_null() ? "##" : prefix.text();
    file.most_characters = most.is_null() ? 100 : static_cast<std::size_t>(std::max<std::int64_t>(0, most.number()));
  }
  read_vocabulary(model.member("vocab"), file);
  read_unknown(model.member("unk_token"), file);
  if (!file.unknown) model.refuse("has no `unk_token` for words that tokens do not cover");
}

// `vocab` is a list of tokens and their scores.
void read_unigram(const JsonPart& model, TokenizerFile& file) {
  constexpr double penalty = 10;  // kUnkPenalty of `tokenizers` and `sentencepiece`
  model.require_only({"type", "unk_id", "vocab", "byte_fallback"});
  file.model = TokenizerFile::Model::unigram;
  file.byte_fallback = model.flag("byte_fallback", false);
  const auto vocab = model.member("vocab");
  if (vocab.size() == 0 || vocab.size() > most_tokens) vocab.refuse("has not between 1 and 16777216 tokens");
  for (std::size_t i = 0; i < vocab.size(); ++i) {
    const auto token = vocab[i];
    const auto score = token[1].json();
    if (!score.is_number()) token[1].refuse("is not a number");
    file.scores.push_back(score.get<double>());
    const auto [other, is_new] = file.vocabulary.emplace(token[0].text(), static_cast<TokenId>(i));
    if (!is_new)
      token.refuse("is the token " + in_quotes(other->first) + ", which has the id " + std::to_string(other->second) +
                   " already");
  }
  file.unknown_score = *std::ranges::min_element(file.scores) - penalty;
  const auto unknown = model.member("unk_id");
  if (unknown.is_null()) model.refuse("has no `unk_id` for characters that are not tokens");
  file.unknown = token_id(unknown);
  if (static_cast<std::size_t>(*file.unknown) >= vocab.size()) unknown.refuse("is not the id of a token");
}

}  // namespace

TokenId token_id(const JsonPart& number) {
  const auto id = number.number();
  if (id < 0 || id >= most_tokens) number.refuse("is not an id: ids are from 0 to 16777215");
  return static_cast<TokenId>(id);
}

void read_vocabulary(const JsonPart& vocab, TokenizerFile& file) {
  if (!vocab.json().is_object()) vocab.refuse("is not a JSON object of tokens and their ids");
  if (vocab.json().empty()) vocab.refuse("is empty");
  std::unordered_set<TokenId> taken;
  file.vocabulary.reserve(vocab.json().size());
  for (const auto& [token, number] : vocab.json().items()) {
    const bool is_id = number.is_number_unsigned() && number.get<std::uint64_t>() < most_tokens;
    if (!is_id) vocab.refuse("gives the token " + in_quotes(token) + " no id from 0 to 16777215");
    const auto id = number.get<TokenId>();
    if (!taken.insert(id).second) {
      vocab.refuse("gives the id " + std::to_string(id) + " to " + in_quotes(token) + " and to another token");
    }
    file.vocabulary.emplace(token, id);
  }
}

void add_merge(TokenizerFile& file, const std::string& where, const std::string& left, const std::string& right) {
  const auto id = [&](const std::string& token) {
    const auto found = file.vocabulary.find(token);
    if (found == file.vocabulary.end()) {
      refuse("'" + file.path + "': `" + where + "` has the token " + in_quotes(token) + ", which the vocabulary lacks");
    }
    return found->second;
  };
  file.merges.push_back({id(left), id(right), id(left + right), static_cast<std::uint32_t>(file.merges.size())});
}

bool add_merge(TokenizerFile& file, const std::string& where, std::string_view text) {
  const auto space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) return false;
  add_merge(file, where, std::string(text.substr(0, space)), std::string(text.substr(space + 1)));
  return true;
}

void add_merges_by_rank(TokenizerFile& file, const std::unordered_map<std::string, std::uint32_t>& ranks) {
  for (const auto& [token, id] : file.vocabulary) {
    const auto rank = ranks.find(token);
    if (rank == ranks.end()) continue;
    for (std::size_t at = 1; at < token.size(); ++at) {
      if ((static_cast<unsigned char>(token[at]) & 0xC0) == 0x80) continue;  // within a character
      const auto left = token.substr(0, at), right = token.substr(at);
      if (!ranks.contains(left) || !ranks.contains(right)) continue;
      file.merges.push_back({file.vocabulary.at(left), file.vocabulary.at(right), id, rank->second});
    }
  }
}

void read_model(const JsonPart& model, TokenizerFile& file) {
  const auto type = model.member("type");
  const auto name = type.is_null() ? std::string("BPE") : type.text();
  if (name == "BPE") {
    read_bpe(model, file);
  } else if (name == "WordPiece" || name == "WordLevel") {
    read_words(model, name == "WordLevel", file);
  } else if (name == "Unigram") {
    read_unigram(model, file);
  } else {
    type.refuse("is " + in_quotes(name) + "; Vernier has BPE, WordPiece, WordLevel and Unigram");
  }
}

void require_bytes(const JsonPart& vocab, const TokenizerFile& file) {
  for (const auto& suffix : {std::string(), file.suffix}) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      const auto name = byte_characters()[byte] + suffix;
      if (file.vocabulary.contains(name)) continue;
      vocab.refuse("lacks the byte " + std::to_string(byte) + ", '" + name + "'; all 256 are needed");
    }
  }
}

void require_all_characters(const JsonPart& root, const TokenizerFile& file) {
  const auto model = root.member("model");
  if (file.is_byte_level) {
    if (file.model != TokenizerFile::Model::bpe) {
      root.member("pre_tokenizer").refuse("has ByteLevel, which Vernier has with a model of the type 'BPE' only");
    }
    return require_bytes(model.member("vocab"), file);
  }
  if (!file.byte_fallback) {
    if (!file.unknown) model.refuse("has neither `byte_fallback` nor `unk_token` for other characters");
    return;
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto name = byte_token(byte);
    if (!file.vocabulary.contains(name)) model.member("vocab").refuse("lacks the byte " + name);
  }
}

}  // namespace vernier
