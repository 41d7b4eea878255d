// Warnings about columns that are probably not what the user meant.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace vernier {

struct CsvColumn;
struct CsvTable;
struct Remedies;
struct WrittenNumbers;

// Words that a schema lacks.
struct UnknownWords {
  std::int64_t count = 0;
  std::string example;  // the first one
  std::set<std::string, std::less<>> words;
  void add(std::string_view word) {
    if (count++ == 0) example = word;
    if (!words.contains(word)) words.emplace(word);
  }
  void add(const UnknownWords& more) {
    if (count == 0) example = more.example;
    count += more.count;
    words.insert(more.words.begin(), more.words.end());
  }
};

// Cells without a value.
struct MissingCells {
  std::int64_t count = 0;
  UnknownWords words;  // words in cells that are not empty
  void add(std::string_view text) {
    ++count;
    if (!text.empty()) words.add(text);
  }
  void add(const MissingCells& more) {
    count += more.count;
    words.add(more.words);
  }
};

// Adds a sentence where some numbers of a column have a sign, such as %, and others have another one or none.
void note_signs(const CsvColumn& column, const WrittenNumbers& written, std::vector<std::string>& odd);

// Adds sentences on numbers that may be names, dates or no value.
void note_written(const CsvColumn& column, const WrittenNumbers& written, const Remedies& remedies,
                  std::vector<std::string>& odd);

// Adds a sentence on the cells of a column that have no value, and on words that stand for none: they may be words
// after all. drops: their rows are not used.
void note_missing_cells(const CsvColumn& column, const MissingCells& cells, bool drops, std::int64_t rows,
                        const Remedies& remedies, std::vector<std::string>& odd);

// Adds sentences on the inputs: constant ones, row numbers, columns without a name, nearly a word a row.
// Fills CsvFound::row_names.
void note_odd_columns(CsvTable& table, std::vector<std::string>& odd);

// Adds a sentence if some of the whole numbers of a column become equal in float32 once their mean is taken off.
void note_merged(const std::string& column, std::vector<std::int64_t>& numbers, std::vector<std::string>& odd);

}  // namespace vernier
