#include "csv_parser.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>

#include "base/parts.h"

namespace vernier {

namespace {

// Counts of a block of the file, if it begins outside quotes [0] and if it begins within [1]. A doubled quote ends and
// begins the quotes, so counting is enough.
struct BlockCount {
  std::int64_t quotes = 0, lines = 0;
  std::int64_t records[2] = {};          // line ends outside quotes
  std::size_t end[2] = {};               // behind the last of them
  std::int64_t lines_until_end[2] = {};  // line ends up to there
};

BlockCount count_block(std::string_view text, std::size_t from, std::size_t to) {
  BlockCount count;
  for (auto i = from; i < to; ++i) {
    if (text[i] == '"') ++count.quotes;
    if (text[i] != '\n') continue;
    const auto state = static_cast<std::size_t>(count.quotes & 1);
    ++count.lines;
    ++count.records[state];
    count.end[state] = i + 1;
    count.lines_until_end[state] = count.lines;
  }
  return count;
}

bool is_blank(char c, char separator) {
  return c == ' ' || (c == '\t' && separator != '\t');
}

}  // namespace

std::string_view CsvField::text() const {
  if (!has_quotes) return raw;
  thread_local std::string single;
  single.clear();
  for (std::size_t i = 0; i < raw.size(); ++i) {
    single += raw[i];
    if (raw[i] == '"') ++i;  // the second one of a doubled quote
  }
  return single;
}

void CsvRecords::refuse(const std::string& reason) const {
  file_.refuse(c10::str("line ", line_, " ", reason));
}

bool CsvRecords::next(std::vector<CsvField>& fields) {
  if (at_ == end_) return false;
  fields.clear();
  first_line_ = line_;
  for (;;) {
    while (at_ != end_ && is_blank(*at_, separator_)) ++at_;
    fields.push_back(at_ != end_ && *at_ == '"' ? quoted() : plain());
    last_line_ = line_;
    if (at_ == end_) return true;
    if (*at_++ == separator_ && !ends_in_blanks()) continue;
    ++line_;
    return true;
  }
}

// Several blanks between two fields are one separator, and those at the end of a line none.
bool CsvRecords::ends_in_blanks() {
  if (separator_ != ' ') return false;
  while (at_ != end_ && *at_ == ' ') ++at_;
  if (at_ != end_ && *at_ == '\r' && (at_ + 1 == end_ || at_[1] == '\n')) ++at_;
  if (at_ == end_) return true;
  if (*at_ != '\n') return false;
  ++at_;
  return true;
}

CsvField CsvRecords::plain() {
  const auto* begin = at_;
  while (at_ != end_ && *at_ != separator_ && *at_ != '\n') {
    if (*at_ == '"') {
      refuse("has a quote within a field without quotes; put the field in quotes and double those in it");
    }
    ++at_;
  }
  const auto* end = at_;
  if ((at_ == end_ || *at_ == '\n') && end != begin && end[-1] == '\r') --end;
  while (end != begin && is_blank(end[-1], separator_)) --end;
  return {{begin, static_cast<std::size_t>(end - begin)}};
}

CsvField CsvRecords::quoted() {
  const auto* begin = ++at_;
  CsvField field;
  for (;; at_ += 2) {
    const auto* quote = static_cast<const char*>(std::memchr(at_, '"', static_cast<std::size_t>(end_ - at_)));
    if (quote == nullptr) refuse("has an opening quote that is never closed");
    at_ = quote;
    if (quote + 1 == end_ || quote[1] != '"') break;
    field.has_quotes = true;
  }
  field.raw = {begin, static_cast<std::size_t>(at_ - begin)};
  line_ += std::count(begin, at_, '\n');
  ++at_;
  while (at_ != end_ && *at_ != separator_ && is_blank(*at_, separator_)) ++at_;
  if (at_ != end_ && *at_ == '\r' && (at_ + 1 == end_ || at_[1] == '\n')) ++at_;
  if (at_ != end_ && *at_ != separator_ && *at_ != '\n') {
    refuse("has text behind a closing quote; a quote within quotes is written twice");
  }
  return field;
}

std::vector<CsvPart> divide_csv(const MappedFile& file, std::string_view text, std::int64_t line, std::size_t bytes) {
  std::vector<BlockCount> counts((text.size() + bytes - 1) / bytes);
  for_each_part(counts.size(), [&](std::size_t i) {
    counts[i] = count_block(text, i * bytes, std::min(text.size(), (i + 1) * bytes));
    file.forget(text.substr(i * bytes, bytes));
  });
  std::vector<CsvPart> parts;
  std::size_t begin = 0;
  std::int64_t row = 0, lines_before = 0, quotes = 0, begin_line = line;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto& count = counts[i];
    const auto state = static_cast<std::size_t>(quotes & 1);
    const bool is_last = i + 1 == counts.size();
    const auto rows = count.records[state] + (is_last ? 1 : 0);
    if (rows > 0) {
      const auto end = is_last ? text.size() : count.end[state];
      parts.push_back({text.substr(begin, end - begin), begin_line, row, rows});
      begin = end;
      begin_line = line + lines_before + count.lines_until_end[state];
    }
    row += rows;
    quotes += count.quotes;
    lines_before += count.lines;
  }
  return parts;
}

}  // namespace vernier
