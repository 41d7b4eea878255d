#include "text_reader.h"

#include <vernier/error.h>
#include <vernier/json_in.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/unicode/unicode.h"

namespace vernier {

namespace {

constexpr std::size_t part_bytes = 1 << 20;
constexpr std::size_t most_bytes = 1 << 28;  // the longest line, or text without a place to cut

bool is_json_lines(const std::string& path, const TextFormat& format) {
  return format.field.has_value() || path.ends_with(".jsonl") || path.ends_with(".jsonl.gz");
}

nlohmann::json parsed(const std::string& where, const std::string& line) {
  try {
    if (const auto trouble = trouble_with_json(line, /*deepest=*/64, INFINITY); !trouble.empty())
      refuse(where + " " + trouble);
    return nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    refuse(where + " is not JSON at byte " + std::to_string(error.byte));
  }
}

}  // namespace

TextReader::TextReader(std::vector<std::string> paths, TextFormat format, Cut cut)
    : paths_(paths.begin(), paths.end()), format_(std::move(format)), cut_(std::move(cut)) {}

void TextReader::open() {
  path_ = paths_.front();
  paths_.pop_front();
  file_.emplace(path_);
  is_lines_ = is_json_lines(path_, format_);
  is_at_end_ = false;
  is_first_ = true;
  line_ = 1;
  offset_ = 0;
}

// Reads that many bytes, or those up to the end of the file.
void TextReader::fill(std::size_t more) {
  const auto before = rest_.size();
  rest_.resize(before + more);
  const auto count = file_->read(rest_.data() + before, more);
  rest_.resize(before + count);
  is_at_end_ = count < more;
  take_in();
}

// Moves what is complete from rest_ to text_. JSON's parser checks lines by itself.
void TextReader::take_in() {
  const auto kept = is_lines_ || is_at_end_ ? 0 : unfinished_utf8(rest_);
  const auto whole = std::string_view(rest_).substr(0, rest_.size() - kept);
  constexpr std::string_view mark = "\xEF\xBB\xBF";  // byte order mark
  const auto text = offset_ == 0 && !is_lines_ && whole.starts_with(mark) ? whole.substr(mark.size()) : whole;
  if (is_lines_) {
    text_ += whole;
  } else if (const auto nul = whole.find('\0'); nul != std::string_view::npos && !format_.replaces_invalid) {
    file_->refuse("is not a text in UTF-8: byte " + std::to_string(offset_ + nul) +
                  " is 0; convert UTF-16 by iconv -f UTF-16 -t UTF-8, or give --invalid replace to keep it");
  } else if (const auto good = valid_utf8(whole); good == whole.size()) {
    text_ += text;
  } else if (format_.replaces_invalid) {
    text_ += with_replacements(text);
  } else {
    file_->refuse("is not UTF-8 at byte " + std::to_string(offset_ + good) + "; mend it, or give --invalid replace");
  }
  offset_ += whole.size();
  rest_.erase(0, whole.size());
}

// The end of what can be given out of text_; 0: more must be read.
std::size_t TextReader::end_of_part() {
  if (is_at_end_) return text_.size();
  if (is_lines_) return text_.rfind('\n') + 1;  // npos + 1 is 0
  return cut_(text_);
}

TextPart TextReader::take(std::size_t size) {
  TextPart part;
  part.path = path_;
  part.bytes = text_.substr(0, size);
  text_.erase(0, size);
  part.is_first = is_first_;
  part.is_last = is_at_end_;
  is_first_ = false;
  if (is_lines_) {
    part.first_line = line_;
    line_ += std::ranges::count(part.bytes, '\n');
  }
  return part;
}

std::optional<TextPart> TextReader::next() {
  while (true) {
    if (!file_) {
      if (paths_.empty()) return std::nullopt;
      open();
    }
    fill(std::max(part_bytes, text_.size()));  // twice as much if there is no place to cut
    const auto end = end_of_part();
    if (end == 0 && text_.size() > most_bytes) {
      file_->refuse(is_lines_ ? "has a line of more than 268435456 bytes from line " + std::to_string(line_) +
                                    "; divide it into several"
                              : "has more than 268435456 bytes before byte " + std::to_string(offset_) +
                                    " without a place to cut; is it text?");
    }
    const bool is_done = is_at_end_;
    std::optional<TextPart> part;
    // A file without text is not a text; a last part without text still ends one.
    if (end > 0 || (is_done && !is_first_)) part = take(end);
    if (is_done) file_.reset();
    if (part) return part;
  }
}

void for_each_text(const TextPart& part, const TextFormat& format,
                   const std::function<void(const std::string& text)>& body) {
  if (part.first_line == 0) return body(part.bytes);
  const auto name = format.field.value_or("text");
  auto number = part.first_line;
  for (std::size_t at = 0; at < part.bytes.size(); ++number) {
    const auto end = std::min(part.bytes.find('\n', at), part.bytes.size());
    auto line = std::string_view(part.bytes).substr(at, end - at);
    at = end + 1;
    if (number == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto where = "'" + part.path + "' line " + std::to_string(number);
    const auto json = parsed(where, format.replaces_invalid ? with_replacements(line) : std::string(line));
    const auto found = json.is_object() ? json.find(name) : json.end();
    if (found == json.end() || !found->is_string()) {
      refuse(where + ": the field '" + shortened(name) + "' is missing or no text; name another with --field");
    }
    body(found->get_ref<const std::string&>());
  }
}

}  // namespace vernier
