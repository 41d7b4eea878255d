// Source of the rules: Lexer.tokeniter of Jinja 3.1 (jinja2/lexer.py).
#include "lexer.h"

#include <vernier/error.h>

#include <algorithm>
#include <string_view>

#include "values.h"

namespace vernier::jinja {

namespace {

using Kind = Token::Kind;

constexpr std::size_t most_words = 2000;  // words of a tag: an expression is computed by recursion

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

class Lexer {
 public:
  explicit Lexer(const std::string& source) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      const bool is_return = source[i] == '\r';
      if (is_return && i + 1 < source.size() && source[i + 1] == '\n') continue;
      text_ += is_return ? '\n' : source[i];
    }
    if (text_.ends_with('\n')) text_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const auto open = next_open();
      add_data(open);
      if (at_ < text_.size()) add_tag();
    }
    add(Kind::end, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(text_).substr(at_); }
  char peek(std::size_t more = 0) const { return at_ + more < text_.size() ? text_[at_ + more] : '\0'; }
  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  [[noreturn]] void fail(const std::string& what) const { refuse("line " + std::to_string(line_) + ": " + what); }
  void move(std::size_t size) {
    line_ += static_cast<std::size_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                                 text_.begin() + static_cast<std::ptrdiff_t>(at_ + size), '\n'));
    at_ += size;
  }

  std::size_t next_open() const {
    for (auto at = at_; at + 1 < text_.size(); ++at) {
      if (text_[at] == '{' && (text_[at + 1] == '{' || text_[at + 1] == '%' || text_[at + 1] == '#')) return at;
    }
    return text_.size();
  }

  // The text before a tag, without the white space that the tag takes.
  void add_data(std::size_t open) {
    auto data = text_.substr(at_, open - at_);
    const char kind = open < text_.size() ? text_[open + 1] : '\0',
               sign = open + 2 < text_.size() ? text_[open + 2] : '\0';
    if (kind != '\0' && sign == '-') {
      data = stripped(data, false, true);
    } else if ((kind == '%' || kind == '#') && sign != '+') {
      const auto line = data.rfind('\n') + 1;  // 0 if there is none
      const bool is_alone = line > 0 || begins_line_;
      if (is_alone && std::all_of(data.begin() + static_cast<std::ptrdiff_t>(line), data.end(), is_blank)) {
        data.resize(line);
      }
    }
    if (!data.empty()) add(Kind::data, data);
    move(open - at_);
  }

  void add_tag() {
    const char kind = peek(1);
    move(2);
    if (peek() == '-' || peek() == '+') move(1);
    if (kind == '#') {
      const auto end = text_.find("#}", at_);
      if (end == std::string::npos) fail("a comment has no end");
      const char sign = text_[end - 1];
      move(end + 2 - at_);
      return after_tag(sign, true);
    }
    const bool is_block = kind == '%';
    add(is_block ? Kind::begin_block : Kind::begin_output, "");
    std::size_t depth = 0, words = 0;
    while (true) {
      if (++words > most_words) fail("a tag is too long");
      while (at_ < text_.size() && is_blank(peek())) move(1);
      if (at_ >= text_.size()) fail("a tag has no end");
      const std::string_view close = is_block ? "%}" : "}}";
      const char sign = peek();
      const bool is_signed = (sign == '-' || sign == '+') && rest().substr(1).starts_with(close);
      if (depth == 0 && (is_signed || rest().starts_with(close))) {
        move(close.size() + (is_signed ? 1 : 0));
        add(is_block ? Kind::end_block : Kind::end_output, "");
        return after_tag(is_signed ? sign : '\0', is_block);
      }
      add_word();
      const auto& last = tokens_.back();
      if (last.kind != Kind::sign) continue;
      if (last.text == "{" || last.text == "(" || last.text == "[") ++depth;
      if ((last.text == "}" || last.text == ")" || last.text == "]") && depth > 0) --depth;
    }
  }

  void after_tag(char sign, bool trims) {
    const auto begin = at_;
    if (sign == '-') {
      while (at_ < text_.size() && is_blank(peek())) move(1);
    } else if (trims && sign != '+' && peek() == '\n') {
      move(1);
    }
    begins_line_ = at_ > begin && text_[at_ - 1] == '\n';
  }

  void add_word() {
    const auto begin = at_;
    const auto word = [&] { return text_.substr(begin, at_ - begin); };
    if (is_letter(peek())) {
      while (is_letter(peek()) || is_digit(peek())) move(1);
      return add(Kind::name, word());
    }
    if (is_digit(peek())) return add_number();
    if (peek() == '\'' || peek() == '"') return add_text();
    for (const std::string_view sign : {"//", "**", "==", "!=", "<=", ">="}) {
      if (!rest().starts_with(sign)) continue;
      move(2);
      return add(Kind::sign, std::string(sign));
    }
    constexpr std::string_view signs = "+-*/%~<>=|.,:()[]{}";
    if (signs.find(peek()) == std::string_view::npos)
      fail(std::string("the character '") + peek() + "' is not a part of Jinja");
    move(1);
    add(Kind::sign, word());
  }

  void add_number() {
    const auto begin = at_;
    bool is_real = false;
    while (is_digit(peek()) || peek() == '_') move(1);
    if (peek() == '.' && is_digit(peek(1))) {
      is_real = true;
      move(1);
      while (is_digit(peek())) move(1);
    }
    if ((peek() == 'e' || peek() == 'E') && (is_digit(peek(1)) || (peek(1) == '-' && is_digit(peek(2))))) {
      is_real = true;
      move(2);
      while (is_digit(peek())) move(1);
    }
    auto number = text_.substr(begin, at_ - begin);
    std::erase(number, '_');
    add(is_real ? Kind::real : Kind::whole, number);
  }

  void add_text() {
    const char quote = peek();
    std::string text;
    const auto line = line_;
    for (move(1); peek() != quote; move(1)) {
      if (at_ >= text_.size()) fail("a text has no closing quote");
      if (peek() != '\\') {
        text += peek();
        continue;
      }
      move(1);
      constexpr std::string_view from = "nrtbfav\\'\"\n", to = "\n\r\t\b\f\a\v\\'\"";
      const auto found = from.find(peek());
      if (found == std::string_view::npos) {
        constexpr std::string_view others = "xuUN01234567";
        if (others.find(peek()) != std::string_view::npos) fail("an escape in a text is not supported");
        text += std::string{'\\', peek()};
      } else if (found < to.size()) {
        text += to[found];
      }
    }
    move(1);
    tokens_.push_back({Kind::text, text, line});
  }

  std::string text_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0, line_ = 1;
  bool begins_line_ = true;
};

}  // namespace

std::vector<Token> tokens_of(const std::string& source) {
  return Lexer(source).run();
}

}  // namespace vernier::jinja
