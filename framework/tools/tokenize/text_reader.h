// Reads texts from files in parts of about a megabyte, so that files of any size take little memory. All errors are of
// Error::Kind::configuration and name the file.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/readers/gunzip.h"

namespace vernier {

struct TextPart {
  std::string path;
  std::string bytes;
  // Plain text: a part of the text of the whole file, valid UTF-8.
  bool is_first = true, is_last = true;  // the part is the text's first, or last
  // JSON Lines: whole lines, each with a text of its own. The first line is 1; 0: plain text.
  std::int64_t first_line = 0;
};

struct TextFormat {
  std::optional<std::string>
      field;  // JSON Lines: the field; without it files that end in .jsonl or .jsonl.gz have "text", others are plain
  bool replaces_invalid = false;  // invalid UTF-8 becomes U+FFFD; else it is refused
};

class TextReader {
 public:
  // cut: returns the last place at which a text may be cut, 0 if there is none. It is called for plain text.
  using Cut = std::function<std::size_t(std::string_view)>;
  TextReader(std::vector<std::string> paths, TextFormat format, Cut cut);

  std::optional<TextPart> next();  // in the order of the files; nothing at the end

 private:
  void open();
  void fill(std::size_t more);
  TextPart take(std::size_t size);
  std::size_t end_of_part();
  void take_in();

  std::deque<std::string> paths_;
  TextFormat format_;
  Cut cut_;
  std::optional<UnpackedFile> file_;  // empty: the next one is to be opened
  std::string path_;
  bool is_lines_ = false, is_at_end_ = false, is_first_ = true;
  std::int64_t line_ = 1;
  std::string text_;          // read, not yet given out
  std::string rest_;          // the beginning of a character, or bytes that are not yet checked
  std::uint64_t offset_ = 0;  // the offset of rest_ in the file
};

// The texts of a part: itself, or `field` of each line.
void for_each_text(const TextPart& part, const TextFormat& format,
                   const std::function<void(const std::string& text)>& body);

}  // namespace vernier
