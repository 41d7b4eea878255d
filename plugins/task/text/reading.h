// The data of task/text: texts and what is predicted of them, from CSV or JSON Lines, and their tokens.
#pragma once

#include <vernier/csv.h>
#include <vernier/data_source.h>
#include <vernier/dataset.h>
#include <vernier/tokenizer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace text {

// The fields of a file that are read, and how.
struct Form {
  std::vector<std::string> fields;  // columns of CSV or fields of JSON Lines; several are joined by a line end
  std::string target;
  std::string kind;  // "auto", "classification", "regression"
  vernier::CsvOptions csv;
};

struct Texts {
  std::vector<std::string> texts;
  vernier::Source target;  // of each text; its tensor is undefined where the file is read without targets
  std::function<std::string(std::int64_t text)> where;  // "'ads.csv' line 17"

  std::int64_t size() const { return static_cast<std::int64_t>(texts.size()); }
};

bool is_json_lines(const std::string& path);

// Throws Error, which names file and line, for a text or target that is missing or of another type.
Texts read_texts(const std::string& path, const Form& form, bool with_target);

// Tokens of texts as the network takes them: `begin`, then the tokenizer's ids, each plus `first_id`, then `padding`.
constexpr std::int64_t begin = 0, padding = 1, first_id = 2;

struct Encoded {
  torch::Tensor tokens;        // int32 [texts, length]
  std::int64_t longest = 0;    // tokens of the longest text, `begin` included
  std::int64_t shortened = 0;  // texts of which the end is left out
};

// length: the most tokens of a text; what is behind them is left out. Special tokens that are written in a text stay
// ordinary text. fits: the tensor is as long as the longest text where that is shorter than `length`.
Encoded encode(const vernier::Tokenizer& tokenizer, const std::vector<std::string>& texts, std::int64_t length,
               bool fits);

// Sample: {int64 tokens [length], target}. A batch ends with the last token of its longest text.
vernier::DatasetPtr text_dataset(torch::Tensor tokens, torch::Tensor targets,
                                 std::function<std::string(std::int64_t text)> where);

}  // namespace text
