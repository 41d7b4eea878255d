// Columns of CSV files and fields of JSON Lines, as `vernier new toml` looks at them before a task is chosen.
#pragma once

#include <vernier/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "findings.h"

namespace vernier {

struct Field {
  enum class Type { numbers, words, dates, others };
  std::string name;
  Type type = Type::numbers;
  // Numbers and dates, as days since 1970, are float64 [rows]. Words are int64 codes, as indices of `words`. A missing
  // number is NaN in JSON Lines and 0 in CSV.
  torch::Tensor values = {};
  std::vector<std::string> words = {};  // each different word once
  bool has_gaps = false;
  std::int64_t gap = 0;  // JSON: the first line without a value, from 1

  bool has_words() const { return type == Type::words; }
  // Returns the mean number of words of a different value.
  double words_of_a_value() const;
  // Returns true if each value is above the one before.
  bool rises() const;
  // Returns the difference of each value from the one before, if it is always the same and above 0.
  std::optional<double> even_step() const;
};

struct Records {
  std::string path;
  std::int64_t rows = 0;
  std::vector<Field> fields = {};
  bool is_csv = true, has_header = true;

  const Field* find(const std::string& name) const;
};

// Returns nothing for a CSV file that is not understood without options, which look_at_table() refuses with its reason.
std::optional<Records> records_of_csv(const std::string& path, const GivenData& given);
Records records_of_lines(const std::string& path);

// Findings of task/text, task/sequence and language models. They return nothing if the records do not look so and no
// option asks for it.
std::optional<Findings> look_at_texts(const Records& records, const GivenData& given, const std::string& folder = "");
std::optional<Findings> look_at_series(const Records& records, const GivenData& given);
// Findings of lines that a language model learns: chats, prompts, preferences or texts. folder: of the model.
std::optional<Findings> look_at_chats(const Records& records, const std::string& folder);

}  // namespace vernier
