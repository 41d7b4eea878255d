// `added_tokens` and `post_processor` of tokenizer.json.
#include <vernier/error.h>

#include <algorithm>

#include "tokenizer_model.h"

namespace vernier {

namespace {

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

AddedToken added_token(const JsonPart& token, TokenId id) {
  AddedToken added;
  added.id = id;
  added.text = token.member("content").text();
  added.is_special = token.flag("special", false);
  added.strips_left = token.flag("lstrip", false);
  added.strips_right = token.flag("rstrip", false);
  added.is_normalized = token.flag("normalized", !added.is_special);
  added.is_word = token.flag("single_word", false);
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
  if (!added_.emplace(token.text, token.id).second) {
    // A token that programs put may be named as one that texts have.
    const auto there = std::ranges::find(file_.added, token.text, &AddedToken::text);
    if (there != file_.added.end() && !there->is_in_text) *there = std::move(token);
    return false;
  }
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
