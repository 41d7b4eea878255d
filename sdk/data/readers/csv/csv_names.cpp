#include <vernier/data/csv.h>

#include <algorithm>
#include <initializer_list>

namespace vernier {

namespace {

// The words of a name in lower case, without digits: of "PassengerId2" passenger and id.
std::vector<std::string> words_of_name(const std::string& name) {
  std::vector<std::string> words;
  char before = '_';
  for (const char c : name) {
    const bool is_lower = c >= 'a' && c <= 'z', is_upper = c >= 'A' && c <= 'Z';
    if ((is_lower || is_upper) && (before == '_' || (is_upper && before >= 'a' && before <= 'z'))) words.emplace_back();
    if (is_lower || is_upper) words.back() += static_cast<char>(c | 0x20);
    before = is_lower || is_upper ? c : '_';
  }
  return words;
}

bool is_one_of(const std::string& word, std::initializer_list<const char*> words) {
  return std::ranges::find(words, word) != words.end();
}

bool says_id(const std::string& word) {
  return is_one_of(word, {"id", "ids", "idx", "uid", "pid", "sid", "uuid", "rowid", "userid", "caseid", "seqno"});
}

bool says_row(const std::string& word) {
  return says_id(word) ||
         is_one_of(word, {"row", "rows", "rowname", "rownames", "rownum", "obs", "observation", "record", "respondent",
                          "participant", "patient", "subject", "person", "individual", "household"});
}

bool says_number(const std::string& word) {
  return says_row(word) ||
         is_one_of(word, {"index", "names", "number", "no", "nr", "num", "serial", "s", "sl", "sr", "case", "sample"});
}

bool says_time(const std::string& word) {
  return is_one_of(word, {"year",     "years",  "yr",    "time",  "date",    "day",    "days",   "month",
                          "months",   "week",   "weeks", "hour",  "hours",   "minute", "second", "quarter",
                          "semester", "period", "wave",  "visit", "session", "round"});
}

bool says_order(const std::string& word) {
  return is_one_of(word, {"age", "rank", "t", "x", "y", "min", "sec", "epoch", "trend", "step", "depth", "lag", "level",
                          "dose", "position"});
}

}  // namespace

CsvName meaning_of(const std::string& column) {
  if (column.empty() || column.starts_with("Unnamed:") || column.starts_with("...")) return CsvName::none;
  if (column == "X" || column.starts_with("X.")) return CsvName::number;  // R calls a column without a name X
  const auto words = words_of_name(column);
  if (words.empty()) return CsvName::other;
  if (says_id(words.front()) || says_id(words.back())) return CsvName::row;
  if (std::ranges::any_of(words, says_time)) return CsvName::time;
  if (std::ranges::any_of(words, says_order)) return CsvName::order;
  if (!std::ranges::all_of(words, says_number)) return CsvName::other;
  return std::ranges::any_of(words, says_row) ? CsvName::row : CsvName::number;
}

}  // namespace vernier
