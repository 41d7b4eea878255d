// The types of columns, from what their first records have.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "csv_ambiguity.h"
#include "csv_parser.h"
#include "csv_values.h"

namespace vernier {

struct CsvColumn;
struct CsvOptions;

// Counts of the values of a column. Missing ones are in none.
struct SeenColumn {
  enum class Kind { word, notation, unit, unread_number, unread_date, date };
  struct First {
    std::string text;
    std::int64_t line = 0;
  };
  std::int64_t numbers = 0, texts = 0, dates = 0;
  std::int64_t notations[8] = {};      // number of texts, by OtherNotation
  std::map<Kind, std::int64_t> kinds;  // number of texts
  std::map<std::string, std::int64_t> units;
  std::int64_t fits[3] = {};  // number of dates, by DateForm::Order
  bool has_time = false, has_zone = false;
  bool has_name = false;  // one value is the column's name
  WrittenNumbers written;
  std::map<Kind, First> firsts;  // the first value of each kind
  First misfits[3];              // the first date that does not fit an order
  void add(std::string_view text, std::int64_t line, const Notation& notation);
  std::int64_t count(Kind kind) const;
  bool has_one_unit() const;  // or several that people mix, such as cm and m
};

// The ends of messages: what helps, as keys of a task in TOML.
struct Remedies {
  const CsvOptions& options;
  std::set<std::string> words = {};  // words that stand for no value in the first records

  // missing_words with one more or one less.
  std::string missing_words(const std::string& more, const std::string& less = "") const;
  // Advice on a text among numbers or dates.
  std::string of_text(const std::string& column, std::string_view text, bool is_target) const;
  // Advice on a number in a form that is not read: how to write it, or the key that reads it. "": it is not a number.
  std::string of_number(const std::string& column, std::string_view text) const;
};

// Gives a column its type and form. Throws Error through `refuse` for a column where they are unclear.
using RefuseAt = std::function<void(std::int64_t line, const CsvColumn& column, const std::string& reason)>;
void choose_type(CsvColumn& column, const SeenColumn& seen, const Remedies& remedies, const RefuseAt& refuse);

// "types = {a = \"category\"}"
std::string types_key(const std::string& column, const char* type);

}  // namespace vernier
