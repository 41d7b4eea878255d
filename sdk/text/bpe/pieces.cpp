#include "pieces.h"

#include <limits>

#include "text/unicode/unicode.h"

namespace vernier {

namespace {

constexpr std::string_view gpt2_regex = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view llama3_regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2_regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool is_line_end(char c) {
  return c == '\r' || c == '\n';
}

// A text and the classes of its characters.
class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_(text) {}

  std::size_t gpt2(std::size_t at) const {
    if (const auto end = suffix_end(at, false); end > at) return end;
    const auto from = text_[at] == ' ' && at + 1 < text_.size() ? at + 1 : at;
    const auto kind = look(from).kind;
    return kind == CharClass::white ? white_end(at) : run_end(from, kind);
  }

  std::size_t llama3(std::size_t at, std::size_t digits) const {
    if (const auto end = suffix_end(at, true); end > at) return end;
    const auto [kind, size] = look(at);
    if (kind == CharClass::letter) return run_end(at, kind);
    const auto next = at + size;
    if (kind == CharClass::number) return run_end(at, kind, digits);
    if (!is_line_end(text_[at]) && next < text_.size() && look(next).kind == CharClass::letter) {
      return run_end(next, CharClass::letter);
    }
    const auto from = text_[at] == ' ' && next < text_.size() ? next : at;
    if (look(from).kind == CharClass::other) {
      auto end = run_end(from, CharClass::other);
      while (end < text_.size() && is_line_end(text_[end])) ++end;
      return end;
    }
    const auto line_end = text_.substr(at, run_end(at, CharClass::white) - at).find_last_of("\r\n");
    return line_end != std::string_view::npos ? at + line_end + 1 : white_end(at);
  }

 private:
  struct Look {
    CharClass kind;
    std::size_t size;
  };
  Look look(std::size_t at) const {
    const auto [code, size] = character_at(text_, at);
    return {classes_[code], size};
  }
  std::size_t run_end(std::size_t at, CharClass kind,
                      std::size_t most = std::numeric_limits<std::size_t>::max()) const {
    for (; at < text_.size() && most > 0; --most) {
      const auto next = look(at);
      if (next.kind != kind) break;
      at += next.size;
    }
    return at;
  }
  // A run of white characters leaves its last one to the word after it.
  std::size_t white_end(std::size_t at) const {
    const auto end = run_end(at, CharClass::white);
    if (end == text_.size()) return end;
    const auto last = character_before(text_, end);
    return last > at ? last : end;
  }
  // The end of 's, 't, 're, 've, 'm, 'll or 'd; `at` if there is none.
  std::size_t suffix_end(std::size_t at, bool any_case) const {
    if (text_[at] != '\'') return at;
    const auto rest = text_.substr(at + 1, 2);
    if (any_case && rest == "\xC5\xBF") return at + 3;  // U+017F, which is a lower-case s
    const auto letter = [&](std::size_t i) {
      const char c = i < rest.size() ? rest[i] : '\0';
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    const char first = letter(0), second = letter(1);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    const bool is_two = ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
    return is_two ? at + 3 : at;
  }

  std::string_view text_;
  const CharClass* classes_ = char_classes().data();
};

}  // namespace

std::optional<PieceRule> rule_of_regex(std::string_view regex) {
  if (regex == gpt2_regex) return PieceRule::gpt2;
  if (regex == llama3_regex) return PieceRule::llama3;
  if (regex == qwen2_regex) return PieceRule::qwen2;
  return std::nullopt;
}

std::size_t piece_end(PieceRule rule, std::string_view text, std::size_t at) {
  const Matcher matcher(text);
  if (rule == PieceRule::gpt2) return matcher.gpt2(at);
  return matcher.llama3(at, rule == PieceRule::llama3 ? 3 : 1);
}

bool always_ends_piece(char32_t before, char32_t behind) {
  const auto& classes = char_classes();
  const auto is_of_run = [&](char32_t code) {
    return classes[code] == CharClass::letter || classes[code] == CharClass::number;
  };
  return is_of_run(before) && !is_of_run(behind);
}

}  // namespace vernier
