// How the folder cuts a text: which of the known styles normalizer, pre_tokenizer and decoder are together.
#include "tokenizer_model.h"

#include <vernier/error.h>

#include <cctype>
#include <utility>

namespace vernier {

namespace {

[[noreturn]] void refuse_type(const JsonPart& part, const std::string& known) {
  part.refuse("is of the type '" + shortened(part.type()) + "' here; Vernier has " + known);
}

// The members of a Sequence; one that is none is alone; null has none.
std::vector<JsonPart> steps(const JsonPart& part, const char* name) {
  if (part.is_null()) return {};
  if (part.type() != "Sequence") return {part};
  std::vector<JsonPart> all;
  const auto list = part.member(name);
  for (std::size_t i = 0; i < list.size(); ++i) all.push_back(list[i]);
  return all;
}

// The types of the steps: "Prepend Replace".
std::string types(const std::vector<JsonPart>& steps) {
  std::string text;
  for (const auto& step : steps) text += (text.empty() ? "" : " ") + step.type();
  return shortened(text);
}

void require_text(const JsonPart& part, std::string_view wanted) {
  if (part.text() != wanted) {
    part.refuse("is '" + shortened(part.text()) + "', and Vernier has '" + std::string(wanted) + "' only");
  }
}

void read_byte_level_normalizer(const JsonPart& normalizer, TokenizerFile& file) {
  for (const auto& step : steps(normalizer, "normalizers")) {
    if (step.type() != "NFC") refuse_type(step, "NFC with ByteLevel");
    file.is_nfc = true;
  }
}

SplitBehavior behavior_of(const JsonPart& name) {
  constexpr std::pair<std::string_view, SplitBehavior> all[] = {
      {"Isolated", SplitBehavior::isolated},
      {"Removed", SplitBehavior::removed},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  for (const auto& [text, behavior] : all) {
    if (name.text() == text) return behavior;
  }
  name.refuse("is '" + shortened(name.text()) + "', and must be one of `tokenizers`, such as Isolated");
}

std::shared_ptr<const Regex> compiled(const JsonPart& place, const std::string& expression) {
  try {
    return std::make_shared<const Regex>(expression);
  } catch (const Error& error) {
    place.refuse("is a regular expression that " + message(error));
  }
}

// An expression for a text itself.
std::string literal(const std::string& text) {
  std::string expression;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c)) != 0) expression += '\\';
    expression += c;
  }
  return expression;
}

SplitStep split_step(const JsonPart& part) {
  SplitStep step;
  if (part.type() == "Digits") {
    step.regex = compiled(part, part.flag("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    return step;
  }
  if (part.type() != "Split") refuse_type(part, "Split, Digits and ByteLevel");
  step.behavior = behavior_of(part.member("behavior"));
  step.is_inverted = part.flag("invert", false);
  const auto text = part.member("pattern").member("String"), regex = part.member("pattern").member("Regex");
  if (!text.is_null()) {
    if (text.text().empty()) text.refuse("is empty");
    step.regex = compiled(text, literal(text.text()));
    return step;
  }
  if (step.behavior == SplitBehavior::isolated && !step.is_inverted) step.rule = rule_of_regex(regex.text());
  if (!step.rule) step.regex = compiled(regex, regex.text());
  return step;
}

void read_byte_level_pieces(const JsonPart& pre_tokenizer, TokenizerFile& file) {
  const auto parts = steps(pre_tokenizer, "pretokenizers");
  const auto& last = parts.back();
  const bool has_regex = last.flag("use_regex", true);
  file.adds_space = last.flag("add_prefix_space", true);
  if (parts.size() == 1 && !has_regex) last.refuse("has `use_regex` false, and no Split before it cuts the text");
  if (parts.size() > 1 && file.adds_space) last.refuse("has `add_prefix_space` behind a Split, which Vernier does not");
  file.splits.clear();
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) file.splits.push_back(split_step(parts[i]));
  if (has_regex) file.splits.push_back({PieceRule::gpt2});
}

void read_replace(const JsonPart& replace, std::string_view from, std::string_view to) {
  require_text(replace.member("pattern").member("String"), from);
  require_text(replace.member("content"), to);
}

void read_metaspace(const JsonPart& metaspace, TokenizerFile& file) {
  require_text(metaspace.member("replacement"), space_mark);
  const auto scheme = metaspace.member("prepend_scheme");
  const bool adds = metaspace.flag("add_prefix_space", true);  // before tokenizers 0.15
  const auto name = scheme.is_null() ? std::string(adds ? "always" : "never") : scheme.text();
  using Space = TokenizerFile::Space;
  if (name != "always" && name != "first" && name != "never") scheme.refuse("is not always, first or never");
  file.space = name == "always" ? Space::each_once : name == "first" ? Space::first_once : Space::never;
  file.splits_at_space = metaspace.flag("split", true);
  file.is_metaspace = true;
}

// True if nothing cuts a text without spaces: no step, or Gemma's Split at spaces, which the normalizer has replaced.
bool is_whole(const std::vector<JsonPart>& pieces) {
  if (pieces.empty()) return true;
  if (pieces.size() > 1 || pieces[0].type() != "Split" || pieces[0].flag("invert", false)) return false;
  const auto text = pieces[0].member("pattern").member("String");
  return !text.is_null() && text.text() == " ";
}

// As SentencePiece has it.
void read_characters(const JsonPart& root, TokenizerFile& file) {
  const auto normalizer = root.member("normalizer"), pre_tokenizer = root.member("pre_tokenizer");
  const auto normal = steps(normalizer, "normalizers");
  const auto pieces = steps(pre_tokenizer, "pretokenizers");
  if (types(normal).empty() && types(pieces) == "Metaspace") {
    read_metaspace(pieces[0], file);
  } else if (is_whole(pieces) && (types(normal) == "Prepend Replace" || types(normal) == "Replace")) {
    read_replace(normal.back(), " ", space_mark);
    const bool prepends = normal.size() == 2;
    if (prepends) require_text(normal[0].member("prepend"), space_mark);
    file.space = prepends ? TokenizerFile::Space::each : TokenizerFile::Space::never;
  } else {
    root.refuse("has the normalizer '" + types(normal) + "' and the pre_tokenizer '" + types(pieces) +
                "'; Vernier has ByteLevel, and those of Llama 2 and Gemma");
  }
  const auto decoder = steps(root.member("decoder"), "decoders");
  const auto kinds = types(decoder);
  if (kinds != "Replace ByteFallback Fuse" && kinds != "Replace ByteFallback Fuse Strip") {
    root.member("decoder").refuse("is '" + kinds + "', and Vernier has 'Replace ByteFallback Fuse Strip' here");
  }
  read_replace(decoder[0], space_mark, " ");
  file.strips_space = decoder.size() == 4;
  if (!file.strips_space) return;
  require_text(decoder[3].member("content"), " ");
  const bool is_one = decoder[3].member("start").number() == 1 && decoder[3].member("stop").number() == 0;
  if (!is_one) decoder[3].refuse("strips more than one space at the beginning");
}

void require_known_characters(const JsonPart& root, const TokenizerFile& file) {
  if (!file.byte_fallback) {
    if (!file.unknown) root.member("model").refuse("has neither `byte_fallback` nor `unk_token` for other characters");
    return;
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto name = byte_token(byte);
    if (!file.vocabulary.contains(name)) root.member("model").member("vocab").refuse("lacks the byte " + name);
  }
}

}  // namespace

void require_bytes(const JsonPart& vocab, const TokenizerFile& file) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto& name = byte_characters()[byte];
    if (file.vocabulary.contains(name)) continue;
    vocab.refuse("lacks the byte " + std::to_string(byte) + ", '" + name + "'; all 256 are needed");
  }
}

void read_style(const JsonPart& root, TokenizerFile& file) {
  const auto pre_tokenizer = root.member("pre_tokenizer");
  const auto pieces = steps(pre_tokenizer, "pretokenizers");
  file.is_byte_level = !pieces.empty() && pieces.back().type() == "ByteLevel";
  if (!file.is_byte_level) {
    read_characters(root, file);
    require_known_characters(root, file);
    return;
  }
  read_byte_level_normalizer(root.member("normalizer"), file);
  read_byte_level_pieces(pre_tokenizer, file);
  const auto decoder = root.member("decoder");
  if (decoder.is_null()) decoder.refuse("is missing; ByteLevel is needed");
  if (decoder.type() != "ByteLevel") refuse_type(decoder, "ByteLevel");
  require_bytes(root.member("model").member("vocab"), file);
}

}  // namespace vernier
