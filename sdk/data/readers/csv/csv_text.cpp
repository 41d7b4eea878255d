#include "csv_text.h"

#include <c10/util/StringUtil.h>
#include <vernier/data/csv.h>
#include <vernier/data/readers.h>
#include <vernier/error.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "csv_parser.h"
#include "data/readers/gunzip.h"

namespace vernier {

namespace {

constexpr std::size_t records_to_divide = 50;

// Windows-1252 has other characters than Latin-1 from 0x80 to 0x9f. Programs call both by the name of the latter.
constexpr std::uint16_t windows_1252[32] = {0x20ac, 0x81,   0x201a, 0x0192, 0x201e, 0x2026, 0x2020, 0x2021,
                                            0x02c6, 0x2030, 0x0160, 0x2039, 0x0152, 0x8d,   0x017d, 0x8f,
                                            0x90,   0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014,
                                            0x02dc, 0x2122, 0x0161, 0x203a, 0x0153, 0x9d,   0x017e, 0x0178};

void append_utf8(std::string& text, std::uint16_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xc0 | code >> 6);
    text += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    text += static_cast<char>(0xe0 | code >> 12);
    text += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    text += static_cast<char>(0x80 | (code & 0x3f));
  }
}

// The length of the character of UTF-8 at `at`; 0: there is none.
std::size_t length_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xc0U) == 0x80U; };
  const auto first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const bool is_short = first == 0xe0 && byte(1) < 0xa0;
    const bool is_half = first == 0xed && byte(1) > 0x9f;
    return follows(1) && follows(2) && !is_short && !is_half ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const bool is_short = first == 0xf0 && byte(1) < 0x90;
    const bool is_beyond = first == 0xf4 && byte(1) > 0x8f;
    return follows(1) && follows(2) && follows(3) && !is_short && !is_beyond ? 4 : 0;
  }
  return 0;
}

// Returns the place of the first byte that is not UTF-8. Meanwhile it releases the pages of the file that it has read.
std::size_t first_wrong(const MappedFile& file, std::string_view text) {
  constexpr std::size_t step = 4 << 20;
  std::size_t at = 0, known = 0;
  while (at < text.size()) {
    if (at - known >= step) {
      file.forget(text.substr(known, at - known));
      known = at;
    }
    std::uint64_t eight = 0;
    if (at + 8 <= text.size()) {
      std::memcpy(&eight, text.data() + at, 8);
      if ((eight & 0x8080808080808080U) == 0) {
        at += 8;
        continue;
      }
    }
    const auto length = length_at(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

// The number of fields if all of the first records have it; nothing if they differ.
std::optional<std::size_t> fields_of(const MappedFile& file, std::string_view text, char separator) {
  try {
    CsvRecords records(file, text, separator, 1);
    std::vector<CsvField> fields;
    std::size_t count = 0;
    for (std::size_t i = 0; i < records_to_divide && records.next(fields); ++i) {
      if (i > 0 && fields.size() != count) return {};
      count = fields.size();
    }
    return count;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

CsvText::CsvText(const MappedFile& file, const CsvOptions& options)
    : file_(file), options_(options), text_(file.bytes()) {
  if (text_.empty()) file_.refuse("is empty");
  if (Gunzip::is_packed(text_)) {
    own_ = gunzipped(file_);
    text_ = own_;
  }
  refuse_other_formats();
  if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);
  if (options.is_latin1) read_latin1();
  for (std::int64_t line = 0; line < options.skip_lines; ++line) {
    const auto end = text_.find('\n');
    if (end == std::string_view::npos) {
      file_.refuse(c10::str("has ", line + 1, " lines, and ", options.skip_lines, " are to be skipped"));
    }
    text_.remove_prefix(end + 1);
  }
  const auto last = text_.find_last_not_of("\r\n");
  text_ = text_.substr(0, last == std::string_view::npos ? 0 : last + 1);
  if (text_.empty()) file_.refuse("has no records: there are only line ends in it");
  const auto start = text_.substr(0, 65536);
  if (start.find('\n') == std::string_view::npos && std::ranges::count(start, '\r') > 1) {
    file_.refuse("ends its lines in CR alone, as old Macs did; convert it: tr '\\r' '\\n' < FILE > NEW");
  }
}

void CsvText::refuse_other_formats() const {
  const auto text = text_.substr(0, 4096);
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) file_.refuse("is UTF-16; save it as UTF-8");
  if (const auto format = other_format(text, file_.path(), ConvertTo::table)) {
    const bool is_unpacked = text_.data() == own_.data();
    const auto remedy =
        is_unpacked ? other_format(file_.bytes(), file_.path(), ConvertTo::table)->remedy : format->remedy;
    file_.refuse("is " + format->name + (is_unpacked ? ", packed by gzip" : "") + ", not a CSV file; " +
                 (remedy.empty() ? "save it as CSV in UTF-8" : remedy));
  }
  const auto zeros = std::ranges::count(text, '\0');
  // Nearly all zeros of UTF-16 stand at every second byte.
  std::int64_t even = 0;
  for (std::size_t i = 0; i < text.size(); i += 2) even += text[i] == 0 ? 1 : 0;
  const auto is_of_text = [](char c) { return c == 0 || static_cast<unsigned char>(c) >= '\t'; };
  if (zeros > std::ssize(text) / 4 && std::min<std::int64_t>(even, zeros - even) <= zeros / 16 &&
      std::ranges::all_of(text, is_of_text)) {
    file_.refuse("is UTF-16 without a mark; save it as UTF-8");
  }
  if (zeros > 0) file_.refuse("has a NUL byte, so it is not a text; save it as CSV in UTF-8");
  const auto first = text_.find_first_not_of(" \t\r\n"), last = text_.find_last_not_of(" \t\r\n");
  if (first == std::string_view::npos) return;
  const auto begins = text_.substr(first, 2);
  if ((begins.starts_with('{') || begins.starts_with("[{") || begins.starts_with("[[")) &&
      (text_[last] == '}' || text_[last] == ']')) {
    file_.refuse("is JSON, not a CSV file; save it as CSV");
  }
  const bool is_mark = begins == "<!" || begins == "<?" || std::isalpha(static_cast<unsigned char>(begins.back())) != 0;
  if (begins[0] == '<' && is_mark && text_[last] == '>') {  // <!doctype html>, <?xml, <h1>
    file_.refuse("is a page of the web or XML, not a CSV file; download the file itself");
  }
}

void CsvText::read_latin1() {
  std::string text;
  text.reserve(text_.size() + text_.size() / 16);
  for (const char c : text_) {
    const auto byte = static_cast<unsigned char>(c);
    append_utf8(text, byte >= 0x80 && byte < 0xa0 ? windows_1252[byte - 0x80] : byte);
  }
  own_ = std::move(text);
  text_ = own_;
}

void CsvText::require_utf8(char separator) const {
  const auto wrong = first_wrong(file_, text_);
  if (wrong == std::string_view::npos) return;
  const auto* at = text_.data() + wrong;
  CsvRecords records(file_, text_, separator, 1 + options_.skip_lines);
  std::vector<CsvField> fields;
  std::vector<std::string> names;
  const std::string remedy = "; set encoding = \"latin-1\", or save it as UTF-8";
  while (records.next(fields)) {
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (names.size() < fields.size()) names.push_back(std::to_string(i + 1));
      const auto& raw = fields[i].raw;
      if (at >= raw.data() && at < raw.data() + raw.size()) {
        file_.refuse(c10::str("line ", records.line(), ", column '", shortened(names[i]), "' is '",
                              shortened(std::string(raw)), "', which is not UTF-8", remedy));
      }
      if (options_.header && records.line() == 1 + options_.skip_lines) names[i] = fields[i].text();
    }
  }
  file_.refuse("is not UTF-8" + remedy);
}

char find_separator(const MappedFile& file, std::string_view text) {
  char best = ',';
  std::size_t most = 1;
  for (const char separator : {',', ';', '\t', '|', ' '}) {
    if (separator == ' ' && most > 1) break;
    const auto count = fields_of(file, text, separator).value_or(0);
    if (count > most) best = separator, most = count;
  }
  if (most > 1) return best;
  // Records of different length, which the reader refuses: that of the first line shows them best.
  const auto line = text.substr(0, text.find('\n'));
  const bool has_words = line.find("\" \"") != std::string_view::npos;  // R's header lacks the column of row names
  if (has_words && std::ranges::count(line, best) == 0) return ' ';
  for (const char separator : {',', ';', '\t', '|'}) {
    if (std::ranges::count(line, separator) > std::ranges::count(line, best)) best = separator;
  }
  return best;
}

}  // namespace vernier
