#include "tokenizer_model.h"

#include <vernier/error.h>

#include <unordered_set>

namespace vernier {

namespace {

std::string in_quotes(std::string_view token) {
  return "'" + shortened(std::string(token)) + "'";
}

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

// Reads the template around a text. The ids of its tokens are in `special_tokens`.
void read_template(const JsonPart& processor, TokenizerFile& file) {
  const auto single = processor.member("single");
  const auto special = processor.member("special_tokens");
  bool has_text = false;
  for (std::size_t i = 0; i < single.size(); ++i) {
    if (!single[i].member("Sequence").is_null()) {
      if (has_text) single[i].refuse("is a second place for the text");
      has_text = true;
      continue;
    }
    const auto& name = single[i].member("SpecialToken").member("id").text();
    const auto token = special.member(name.c_str());
    if (token.is_null()) single[i].refuse("is the token " + in_quotes(name) + ", which `special_tokens` lacks");
    const auto ids = token.member("ids");
    for (std::size_t j = 0; j < ids.size(); ++j) (has_text ? file.after : file.before).push_back(token_id(ids[j]));
  }
  if (!has_text) single.refuse("has no place for the text");
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
  file.merges.push_back({id(left), id(right), id(left + right)});
}

bool add_merge(TokenizerFile& file, const std::string& where, std::string_view text) {
  const auto space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) return false;
  add_merge(file, where, std::string(text.substr(0, space)), std::string(text.substr(space + 1)));
  return true;
}

void read_model(const JsonPart& model, TokenizerFile& file) {
  const auto type = model.member("type");
  if (!type.is_null() && type.text() != "BPE") {
    type.refuse("is " + in_quotes(type.text()) + "; Vernier has tokenizers of the type 'BPE' only");
  }
  model.require_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                      "byte_fallback", "ignore_merges", "vocab", "merges"});
  const auto dropout = model.member("dropout");
  if (!dropout.is_null() && dropout.json() != 0.0) dropout.refuse("drops merges at random; set it to null");
  for (const auto* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = model.member(name);
    if (!affix.is_null() && !affix.text().empty()) affix.refuse("is not empty, and Vernier does not have it");
  }
  file.ignore_merges = model.flag("ignore_merges", false);
  file.byte_fallback = model.flag("byte_fallback", false);
  file.fuse_unknown = model.flag("fuse_unk", false);
  read_vocabulary(model.member("vocab"), file);
  read_merges(model.member("merges"), file);
  const auto unknown = model.member("unk_token");
  if (unknown.is_null()) return;
  const auto found = file.vocabulary.find(unknown.text());
  if (found == file.vocabulary.end()) unknown.refuse("is not in the vocabulary");
  file.unknown = found->second;
}

AddedToken added_token(const JsonPart& token, TokenId id) {
  AddedToken added;
  added.id = id;
  added.text = token.member("content").text();
  added.is_special = token.flag("special", false);
  added.strips_left = token.flag("lstrip", false);
  added.strips_right = token.flag("rstrip", false);
  added.is_normalized = token.flag("normalized", !added.is_special);
  if (token.flag("single_word", false)) token.refuse("has `single_word`, which Vernier does not have");
  return added;
}

TokenAdder::TokenAdder(TokenizerFile& file) : file_(file) {
  for (const auto& [text, id] : file.vocabulary) of_id_.emplace(id, text);
  for (const auto& token : file.added) {
    of_id_.emplace(token.id, token.text);
    added_.emplace(token.text, token.id);
  }
}

bool TokenAdder::add(const JsonPart& place, AddedToken token) {
  if (token.text.empty()) place.refuse("is an empty token");
  const auto id = id_of(token.text);
  if (id && *id != token.id) {
    place.refuse("has the id " + std::to_string(token.id) + ", and the same token in '" + file_.path + "' has " +
                 std::to_string(*id));
  }
  const auto [other, is_new] = of_id_.emplace(token.id, token.text);
  if (!is_new && other->second != token.text) place.refuse("has the id of the token " + in_quotes(other->second));
  if (!added_.emplace(token.text, token.id).second) return false;
  file_.added.push_back(std::move(token));
  return true;
}

std::optional<TokenId> TokenAdder::id_of(const std::string& text) const {
  if (const auto found = file_.vocabulary.find(text); found != file_.vocabulary.end()) return found->second;
  if (const auto found = added_.find(text); found != added_.end()) return found->second;
  return std::nullopt;
}

void read_added_tokens(const JsonPart& tokens, TokenizerFile& file) {
  TokenAdder adder(file);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto token = tokens[i];
    auto added = added_token(token, token_id(token.member("id")));
    const auto text = added.text;
    if (!adder.add(token, std::move(added))) token.refuse("is there twice: " + in_quotes(text));
  }
}

void read_post_processor(const JsonPart& post_processor, TokenizerFile& file) {
  if (post_processor.is_null()) return;
  const auto type = post_processor.type();
  if (type == "ByteLevel") return;  // changes only where in the text a token is said to be
  if (type == "Sequence") {
    const auto processors = post_processor.member("processors");
    for (std::size_t i = 0; i < processors.size(); ++i) read_post_processor(processors[i], file);
    return;
  }
  const bool is_pair = type == "RobertaProcessing" || type == "BertProcessing";
  if (!is_pair && type != "TemplateProcessing") {
    post_processor.refuse("is of the type " + in_quotes(type) +
                          "; Vernier has ByteLevel, Sequence, TemplateProcessing, RobertaProcessing, BertProcessing");
  }
  if (!file.before.empty() || !file.after.empty()) post_processor.refuse("is a second template");
  if (is_pair) {  // a token and its id each
    file.before = {token_id(post_processor.member("cls")[1])};
    file.after = {token_id(post_processor.member("sep")[1])};
    return;
  }
  read_template(post_processor, file);
}

}  // namespace vernier
