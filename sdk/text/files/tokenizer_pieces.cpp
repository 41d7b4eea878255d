// `pre_tokenizer` of tokenizer.json.
#include <vernier/error.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <utility>

#include "text/unicode/characters.h"
#include "tokenizer_model.h"

namespace vernier {

namespace {

using Cut = PieceStep::Kind;

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

// An expression for a text itself.
std::string literal(const std::string& text) {
  std::string expression;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c)) != 0) expression += '\\';
    expression += c;
  }
  return expression;
}

PieceStep regex_step(const JsonPart& part, const std::string& expression,
                     SplitBehavior behavior = SplitBehavior::isolated) {
  PieceStep step{.kind = Cut::regex};
  step.regex = compiled(part, expression);
  step.behavior = behavior;
  return step;
}

PieceStep split_step(const JsonPart& part) {
  const auto behavior = behavior_of(part.member("behavior"));
  const bool is_inverted = part.flag("invert", false);
  const auto text = part.member("pattern").member("String"), regex = part.member("pattern").member("Regex");
  if (!text.is_null() && text.text().empty()) text.refuse("is empty");
  if (text.is_null() && behavior == SplitBehavior::isolated && !is_inverted) {
    if (const auto rule = rule_of_regex(regex.text())) return {.kind = Cut::rule, .rule = *rule};
  }
  auto step =
      text.is_null() ? regex_step(regex, regex.text(), behavior) : regex_step(text, literal(text.text()), behavior);
  step.is_inverted = is_inverted;
  return step;
}

// A split at spaces, as Gemma has it, where the normalizer has replaced them.
bool finds_nothing(const JsonPart& split, const TokenizerFile& file) {
  const auto text = split.member("pattern").member("String");
  if (text.is_null() || text.text() != " " || split.flag("invert", false) || file.normalizer.empty()) return false;
  const auto& last = file.normalizer.back();
  return last.kind == NormalStep::Kind::replace && last.from == " " && last.to.find(' ') == std::string::npos &&
         file.pieces.empty();
}

// All characters of punctuation, as a class of an expression.
std::string punctuation() {
  std::string expression = "[";
  const auto& flags = char_flags();
  for (std::size_t code = 0; code < flags.size(); ++code) {
    if ((flags[code] & char_flag::punctuation) == 0) continue;
    const auto first = code;
    while ((flags[code + 1] & char_flag::punctuation) != 0) ++code;
    char text[40];
    std::snprintf(text, sizeof text, "\\x{%zX}-\\x{%zX}", first, code);
    expression += text;
  }
  return expression + "]";
}

// True if what stands first in a text is still first, whatever the steps before have done.
bool keeps_first(const TokenizerFile& file) {
  using Kind = NormalStep::Kind;
  const auto keeps = [](const NormalStep& step) {
    const bool is_form = step.kind == Kind::form_c || step.kind == Kind::form_d || step.kind == Kind::form_kc ||
                         step.kind == Kind::form_kd || step.kind == Kind::lower_case;
    return is_form || (step.kind == Kind::replace && !step.regex && !step.to.empty());
  };
  return file.pieces.empty() && std::ranges::all_of(file.normalizer, keeps);
}

PieceStep metaspace_step(const JsonPart& part, const TokenizerFile& file) {
  require_text(part.member("replacement"), space_mark);
  const auto name = metaspace_scheme(part);
  using Space = PieceStep::Space;
  PieceStep step{.kind = Cut::metaspace};
  step.space = name == "always" ? Space::always : name == "first" ? Space::first : Space::never;
  if (name == "first" && !keeps_first(file)) {
    part.member("prepend_scheme")
        .refuse(
            "is 'first' behind a step that may remove the beginning of a text, which "
            "Vernier does not have; see whether 'always' is meant");
  }
  step.splits = part.flag("split", true);
  return step;
}

void read_byte_level(const JsonPart& part, TokenizerFile& file) {
  if (file.is_byte_level) part.refuse("is a second ByteLevel");
  file.is_byte_level = true;
  if (part.flag("add_prefix_space", true)) file.pieces.push_back({.kind = Cut::add_space});
  if (part.flag("use_regex", true)) file.pieces.push_back({.kind = Cut::rule, .rule = PieceRule::gpt2});
}

void read_step(const JsonPart& part, TokenizerFile& file) {
  const auto type = part.type();
  auto& all = file.pieces;
  if (file.is_byte_level) part.refuse("stands behind ByteLevel, which must be the last one");
  if (type == "ByteLevel") return read_byte_level(part, file);
  if (type == "Split") {
    if (!finds_nothing(part, file)) all.push_back(split_step(part));
    return;
  }
  if (type == "Digits") {
    return all.push_back(regex_step(part, part.flag("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)"));
  }
  if (type == "Punctuation") {
    const auto behavior = part.member("behavior");
    return all.push_back(
        regex_step(part, punctuation(), behavior.is_null() ? SplitBehavior::isolated : behavior_of(behavior)));
  }
  if (type == "CharDelimiterSplit") {
    const auto delimiter = part.member("delimiter").text();
    return all.push_back(regex_step(part, literal(delimiter), SplitBehavior::removed));
  }
  if (type == "Whitespace") return all.push_back({.kind = Cut::words});
  if (type == "WhitespaceSplit") return all.push_back({.kind = Cut::white});
  if (type == "BertPreTokenizer") return all.push_back({.kind = Cut::bert});
  if (type == "Metaspace") return all.push_back(metaspace_step(part, file));
  refuse_type(part,
              "ByteLevel, Split, Digits, Punctuation, CharDelimiterSplit, Whitespace, WhitespaceSplit, "
              "BertPreTokenizer, Metaspace and Sequence");
}

}  // namespace

std::string metaspace_scheme(const JsonPart& part) {
  const auto scheme = part.member("prepend_scheme");
  if (scheme.is_null()) return part.flag("add_prefix_space", true) ? "always" : "never";  // before tokenizers 0.15
  constexpr std::string_view known[] = {"always", "first", "never"};
  if (std::ranges::find(known, scheme.text()) == std::end(known)) scheme.refuse("is not always, first or never");
  return scheme.text();
}

void require_text(const JsonPart& part, std::string_view wanted) {
  if (part.text() != wanted) {
    part.refuse("is '" + shortened(part.text()) + "', and Vernier has '" + std::string(wanted) + "' only");
  }
}

void read_pieces(const JsonPart& pre_tokenizer, TokenizerFile& file) {
  for (const auto& part : parts_of_sequence(pre_tokenizer, "pretokenizers")) read_step(part, file);
}

}  // namespace vernier
