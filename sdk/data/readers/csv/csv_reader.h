// The reader of CSV files: csv_columns.cpp has its columns and their types, csv_reader.cpp its cells.
#pragma once

#include <vernier/data/csv.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "csv_parser.h"
#include "csv_text.h"
#include "csv_types.h"
#include "csv_values.h"
#include "csv_warnings.h"

namespace vernier {

// The codes of categories, in the order in which they were added.
class Vocabulary {
 public:
  std::int64_t add(std::string_view word) {
    const auto known = codes_.find(word);
    if (known != codes_.end()) return known->second;
    const auto added = codes_.emplace(word, static_cast<std::int64_t>(words_.size())).first;
    words_.push_back(&added->first);
    return added->second;
  }
  std::optional<std::int64_t> find(std::string_view word) const {
    const auto known = codes_.find(word);
    return known == codes_.end() ? std::nullopt : std::optional(known->second);
  }
  const std::vector<const std::string*>& words() const { return words_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> codes_;
  std::vector<const std::string*> words_;  // keys of codes_, whose nodes stay in place
};

// The destination of a column of the file: column `to` of a matrix whose rows are `stride` apart.
struct Destination {
  CsvColumn* column = nullptr;  // nullptr: the column is not read
  bool is_target = false, is_group = false;
  double* numbers = nullptr;
  std::int64_t* codes = nullptr;
  std::int64_t stride = 1;
  Notation notation;
  DateForm form;
};

// The results of a part of the file, by column of the file.
struct PartResult {
  std::vector<Vocabulary> vocabularies;
  std::vector<UnknownWords> unknown;
  std::vector<MissingCells> missing;
  std::vector<std::vector<std::int64_t>> wide;                   // whole numbers that float32 may round
  std::vector<std::string> rounded;                              // the first whole number that float64 rounds
  std::map<std::size_t, Unclear> unclear;                        // the first cell that is refused
  std::vector<std::pair<std::int64_t, std::int64_t>> long_rows;  // rows of several lines, and the lines added
};

class CsvReader {
 public:
  // paths: the files of one table, whose rows follow each other.
  CsvReader(const std::vector<std::string>& paths, const CsvOptions& options);
  void choose_columns();
  void use(const CsvSchema& schema);
  CsvTable read();

 private:
  void read_names();
  void number_as(const CsvSchema& schema);
  std::size_t place_of(const std::string& name, const char* key = "") const;
  void infer_types();
  void note_missing(const std::vector<PartResult>& results);
  void require_memory(std::int64_t rows, std::int64_t values) const;
  void make_tensors(std::int64_t rows);
  void read_part(const CsvPart& part, PartResult& result) const;
  void note_rounded(const Destination& to, std::string_view text, std::size_t place, std::int64_t line,
                    PartResult& result) const;
  void put_number(const Destination& to, std::string_view text, std::int64_t row, std::size_t place, std::int64_t line,
                  PartResult& result) const;
  void put_date(const Destination& to, std::string_view text, std::int64_t row, std::size_t place, std::int64_t line,
                PartResult& result) const;
  std::int64_t code_of(const Destination& to, std::string_view text, std::size_t place, std::int64_t line,
                       PartResult& result) const;
  void require_value(const Destination& to, std::string_view text, std::int64_t line, bool is_filled) const;
  void merge_vocabulary(std::size_t place, const std::vector<CsvPart>& parts, std::vector<PartResult>& results);
  void note_odd(const std::vector<PartResult>& results);
  void check_length(const std::vector<CsvField>& fields, std::int64_t line) const;
  void refuse_unclear(const std::vector<Unclear>& columns) const;
  std::vector<CsvColumn*> columns();

  MappedFilePtr file_;
  std::vector<std::unique_ptr<CsvReader>> more_;  // the other files
  const CsvOptions& options_;
  CsvText source_;
  MissingWords words_;
  Remedies remedies_;
  bool has_schema_ = false;
  std::string_view text_;                                // the records
  std::vector<std::string> names_;                       // names of the file's columns
  std::unordered_map<std::string, std::size_t> places_;  // indices in names_
  std::vector<Destination> destinations_;
  // The vocabularies of the schema, by column of the file. All files share them.
  std::shared_ptr<std::vector<Vocabulary>> given_ = std::make_shared<std::vector<Vocabulary>>();
  CsvColumn group_;
  CsvTable table_;
};

}  // namespace vernier
