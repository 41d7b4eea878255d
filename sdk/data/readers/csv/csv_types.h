// The types of columns, from what their first records have.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
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
  bool has_fraction = false;
  std::set<double> different;   // some of the numbers
  std::set<std::string> names;  // some of the texts that are words, or codes such as 207a
  std::int64_t name_texts = 0;
  WrittenNumbers written;
  std::map<Kind, First> firsts;  // the first value of each kind
  First misfits[3];              // the first date that does not fit an order
  void add(std::string_view text, std::int64_t line, const Notation& notation);
  std::int64_t count(Kind kind) const;
  bool has_one_unit() const;  // or several that people mix, such as cm and m
  // Returns whether there are names among whole numbers: codes such as 207a, several names, or one among few numbers. A
  // single word among many numbers may stand for no value.
  bool are_names() const;
};

// A column whose meaning is not clear. It is thrown, so that all of a file are refused together.
struct Unclear : std::exception {
  Unclear(std::int64_t line, std::string column, std::string reason, std::string remedy)
      : line(line), column(std::move(column)), reason(std::move(reason)), remedy(std::move(remedy)) {}
  std::string text() const;         // "line 3, column 'a' is 'x', and other lines have numbers there"
  std::int64_t line;                // the first one
  std::string column, reason;       // reason: without a remedy
  std::string remedy;               // if no other column is unclear
  std::string key = {}, type = {};  // a key of the task, and a type in `types`, that also help
  std::string cell = {};            // a word among numbers, which may stand for no value
  std::string fill = {};            // CsvOptions::fill_remedy, if it helps and no other key does
};

// The ends of messages: what helps, as keys of a task in TOML.
struct Remedies {
  const CsvOptions& options;
  std::set<std::string> words = {};  // words that stand for no value in the first records

  // missing_words with some more or one less.
  std::string missing_words(const std::vector<std::string>& more, const std::string& less = "") const;
  // Returns a text among numbers or dates as unclear, with advice.
  Unclear of_text(std::int64_t line, const std::string& column, std::string_view text, const std::string& reason,
                  bool is_target) const;
  // The end of a message on columns that are not clear, which makes all of them clear.
  std::string of_all(const std::vector<Unclear>& columns) const;
};

// Gives a column its type and form. Throws Unclear where they are not clear.
void choose_type(CsvColumn& column, const SeenColumn& seen, const Remedies& remedies);

// "types = {a = \"category\"}"
std::string types_key(const std::string& column, const char* type);

}  // namespace vernier
