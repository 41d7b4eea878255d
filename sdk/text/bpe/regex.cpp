#include "regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <vernier/error.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "text/unicode/unicode.h"

namespace vernier {

namespace {

// Writes an expression anew: each class of characters by its ranges, so that the version of PCRE2 does not matter.
class Translation {
 public:
  explicit Translation(std::string_view expression) : from_(expression) {
    while (at_ < from_.size()) {
      if (from_[at_] == '\\') {
        escape(false);
      } else if (from_[at_] == '[') {
        set();
      } else {
        refuse_doubtful();
        follow_group();
        to_ += from_[at_++];
      }
    }
  }
  const std::string& result() const { return to_; }

 private:
  [[noreturn]] static void doubtful(const std::string& what) {
    refuse("has " + what + ", which Vernier does not have");
  }

  static constexpr auto npos = std::string_view::npos;

  char next(std::size_t ahead = 0) const { return at_ + ahead < from_.size() ? from_[at_ + ahead] : '\0'; }

  // Quantifiers such as "{1,3}+", groups such as "(?m:" and options such as "(?i)" inside an expression mean another
  // thing in Oniguruma.
  void refuse_doubtful() const {
    const auto rest = from_.substr(at_);
    for (const std::string_view text : {"}+", "}?", "{,", "(?~", "(*", "(?#", "(?P", "(?(", "(?|", "(?R", "(?&"}) {
      if (rest.starts_with(text)) doubtful("'" + std::string(text) + "'");
    }
    if (!rest.starts_with("(?")) return;
    const auto end = rest.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", 2);
    const auto options = rest.substr(2, end - 2);
    const bool is_known = options.empty() || ((options == "i" || options == "-i") && (rest[end] == ':' || at_ == 0));
    if (end == std::string_view::npos || !is_known) doubtful("'(?" + std::string(options) + "'");
  }

  // Keeps caseless_ right: options of a group hold for the groups in it.
  void follow_group() {
    const auto rest = from_.substr(at_);
    if (rest.starts_with("(?i)")) caseless_.back() = true;
    if (rest.starts_with("("))
      caseless_.push_back(rest.starts_with("(?i:") || (caseless_.back() && !rest.starts_with("(?-i:")));
    if (rest.starts_with(")") && caseless_.size() > 1) caseless_.pop_back();
  }

  // The larger ranges come first, because PCRE2 tries them one by one.
  void put_ranges(CodeRanges ranges) {
    std::ranges::stable_sort(ranges, std::ranges::greater(),
                             [](const auto& range) { return range.second - range.first; });
    for (const auto& [first, last] : ranges) {
      char text[40];
      std::snprintf(text, sizeof text, "\\x{%X}-\\x{%X}", static_cast<unsigned>(first), static_cast<unsigned>(last));
      to_ += text;
    }
  }

  void put_class(std::string_view name, bool is_negated, bool is_in_set) {
    const auto ranges = ranges_of(name);
    if (!ranges) doubtful("the property '" + std::string(name) + "'");
    const bool is_of_case = name == "Lu" || name == "Ll" || name == "Lt";  // stays itself in Oniguruma
    if (is_of_case && caseless_.back()) doubtful("the property '" + std::string(name) + "' behind (?i");
    if (is_in_set) return put_ranges(is_negated ? all_but(*ranges) : *ranges);
    to_ += is_negated ? "[^" : "[";
    put_ranges(*ranges);
    to_ += ']';
  }

  // "\p{Lu}", "\p{^Lu}" or "\P{Lu}".
  void property(bool is_negated, bool is_in_set) {
    const auto end = from_.find('}', at_);
    if (next() != '{' || end == std::string_view::npos) doubtful("a property without braces");
    auto name = from_.substr(at_ + 1, end - at_ - 1);
    if (name.starts_with('^')) {
      is_negated = !is_negated;
      name.remove_prefix(1);
    }
    at_ = end + 1;
    put_class(name, is_negated, is_in_set);
  }

  void escape(bool is_in_set) {
    const char kind = next(1);
    at_ += 2;
    if (kind == 'p' || kind == 'P') return property(kind == 'P', is_in_set);
    if (kind == 's' || kind == 'd' || kind == 'w') return put_class(std::string(1, kind), false, is_in_set);
    if (kind == 'S' || kind == 'D' || kind == 'W') {
      return put_class(std::string(1, static_cast<char>(kind - 'A' + 'a')), true, is_in_set);
    }
    const bool is_same = kind == 'n' || kind == 'r' || kind == 't' || kind == 'f' || kind == 'v' || kind == 'x';
    const bool is_word = (kind >= 'a' && kind <= 'z') || (kind >= 'A' && kind <= 'Z') || (kind >= '0' && kind <= '9');
    if (kind == 'u') return code_of_four();
    if (kind == 'x' && next() >= '8' && next() != '{') doubtful("bytes by '\\x'");
    if (kind == '\0' || (is_word && !is_same)) doubtful(std::string("'\\") + kind + "'");
    if (kind == 'v') {  // a line of PCRE2's own
      to_ += "\\x0B";
      return;
    }
    to_ += '\\';
    to_ += kind;
  }

  // "\u3040", which PCRE2 writes \x{3040}.
  void code_of_four() {
    const auto digits = from_.substr(at_, 4);
    const auto is_digit = [](char c) {
      return std::string_view("0123456789abcdefABCDEF").find(c) != std::string::npos;
    };
    if (digits.size() != 4 || !std::ranges::all_of(digits, is_digit)) doubtful("'\\u' without four digits");
    at_ += 4;
    to_ += "\\x{" + std::string(digits) + "}";
  }

  void set() {
    to_ += from_[at_++];
    if (next() == '^') to_ += from_[at_++];
    if (next() == ']') doubtful("a class that begins with ']'");
    const auto begin = at_;
    while (next() != ']') {
      if (at_ >= from_.size()) doubtful("a class without end");
      if (next() == '[') doubtful("a class in a class");
      if (next() == '&' && next(1) == '&') doubtful("'&&' in a class");
      const bool ends_range = next() == '-' && next(1) == '\\' && std::string_view("pPsSdDwW").find(next(2)) != npos;
      if (ends_range && at_ != begin) doubtful("a range that ends in a class of characters");
      if (next() == '\\') {
        escape(true);
      } else {
        to_ += from_[at_++];
      }
    }
    to_ += from_[at_++];
  }

  std::string_view from_;
  std::size_t at_ = 0;
  std::string to_;
  std::vector<bool> caseless_ = {false};  // one for each open group
};

// One for each thread: a match needs memory to be written.
struct MatchBuffers {
  MatchBuffers()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr)) {
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  MatchBuffers(const MatchBuffers&) = delete;
  MatchBuffers& operator=(const MatchBuffers&) = delete;
  ~MatchBuffers() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

std::string message_of(int error) {
  PCRE2_UCHAR text[200];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Regex::Regex(const std::string& expression) {
  const Translation translation(expression);
  const auto& text = translation.result();
  int error = 0;
  PCRE2_SIZE place = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  auto* const code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    PCRE2_UTF | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &place, context.get());
  if (code == nullptr) refuse("cannot be read: " + message_of(error));
  code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it, it is slower
}

std::optional<Regex::Match> Regex::find(std::string_view text, std::size_t from) const {
  thread_local const MatchBuffers buffers;
  const auto found = pcre2_match(static_cast<const pcre2_code*>(code_.get()), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                 text.size(), from, PCRE2_NO_UTF_CHECK, buffers.data, buffers.context);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) throw Error("a regular expression of the tokenizer cannot be matched: " + message_of(found));
  const auto* ends = pcre2_get_ovector_pointer(buffers.data);
  return Match{ends[0], ends[1]};
}

}  // namespace vernier
