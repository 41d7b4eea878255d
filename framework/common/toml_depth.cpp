#include "toml_depth.h"

#include <algorithm>
#include <fstream>
#include <string_view>
#include <vector>

#include "common/run_files.h"

namespace vernier {

namespace {

// The place behind the string that begins here: 'a', "a\"b", '''a''' or """a""".
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool is_long = text.substr(at, 3) == three;
  for (at += is_long ? 3 : 1; at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (is_long && text.substr(at, 3) == three) {
      at += 3;
      while (at < text.size() && text[at] == quote) ++at;  // up to two belong to the text
      return at;
    } else if (!is_long && (text[at] == quote || text[at] == '\n')) {
      return text[at] == quote ? at + 1 : at;
    }
  }
  return text.size();
}

// The depth at a place of the text. Every dot counts, also that of a number.
class Depth {
 public:
  int now() const { return now_; }
  void see(char c) {
    const bool is_first = at_start_ && c != ' ' && c != '\t' && c != '\r' && c != '\n';
    if (c == '.') {
      ++now_;
    } else if (c == '\n' && outer_.empty()) {
      if (in_header_) header_ = now_ + 1;
      in_header_ = false;
      now_ = header_;
    } else if (is_first && c == '[') {
      in_header_ = true;
      now_ = 0;
    } else if (!in_header_) {
      see_bracket(c);
    }
    at_start_ = outer_.empty() && (c == '\n' || (at_start_ && !is_first));
  }

 private:
  void see_bracket(char c) {
    if (c == '[' || c == '{') {
      outer_.push_back(now_++);
    } else if (!outer_.empty() && c == ',') {
      now_ = outer_.back() + 1;
    } else if (!outer_.empty() && (c == ']' || c == '}')) {
      now_ = outer_.back();
      outer_.pop_back();
    }
  }

  std::vector<int> outer_;  // the depths at the open brackets
  int now_ = 0, header_ = 0;
  bool at_start_ = true, in_header_ = false;  // at a line's start outside brackets; in [a.b.c]
};

}  // namespace

int line_too_deep(const std::string& text) {
  Depth depth;
  int line = 1;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    auto end = at + 1;
    if (c == '"' || c == '\'') end = end_of_string(text, at);
    if (c == '#') end = std::min(text.find('\n', at), text.size());
    depth.see(c);
    if (depth.now() >= deepest_toml) return line;
    line += static_cast<int>(std::count(text.begin() + static_cast<std::ptrdiff_t>(at),
                                        text.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at = end;
  }
  return 0;
}

std::string shallow_toml(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw Refused(path.string() + ": cannot be read");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (const int line = line_too_deep(text); line > 0) {
    throw Refused(path.string() + ":" + std::to_string(line) + ": nests tables more than " +
                  std::to_string(deepest_toml) + " deep");
  }
  return text;
}

}  // namespace vernier
