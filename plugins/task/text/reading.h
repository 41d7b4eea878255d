// The data of task/text: texts and what is predicted of them, from CSV or JSON Lines, and their tokens.
#pragma once

#include <ATen/ops/tensor.h>
#include <vernier/data/csv.h>
#include <vernier/data/data_source.h>
#include <vernier/data/dataset.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace text {

// The fields of a file that are read, and how.
struct Form {
  std::vector<std::string> fields;  // columns of CSV or fields of JSON Lines; several are joined by a line end
  std::string target;
  std::string kind;   // "auto", "classification", "regression", "ranking"
  std::string group;  // ranking: texts with the same value are compared with each other
  vernier::CsvOptions csv;
};

struct Texts {
  std::vector<std::string> texts;
  vernier::Source target;            // target of each text; its tensor is undefined if the file is read without targets
  std::vector<std::int64_t> groups;  // group of each text, numbered as they first come; empty: there are none
  std::function<std::string(std::int64_t text)> where;  // "'ads.csv' line 17"

  std::vector<std::string> some(const torch::Tensor& rows) const;
  // int64 [texts], or undefined.
  torch::Tensor group_numbers() const { return groups.empty() ? torch::Tensor() : at::tensor(groups); }
};

bool is_json_lines(const std::string& path);

// Throws Error, which names file and line, for a text or target that is missing or of another type.
Texts read_texts(const std::string& path, const Form& form, bool with_target);

// Samples of texts: their tokens, int32 [texts, length], and their targets, which may be undefined.
struct Samples {
  torch::Tensor tokens, targets;
  std::int64_t padding;  // the token
  std::function<std::string(std::int64_t text)> where;
};

// Sample: {int64 tokens [length], target}. A batch ends with the last token of its longest text.
vernier::DatasetPtr text_dataset(Samples samples);

// Sample: the texts of a group, {int64 tokens [texts, length], float64 targets [texts]}. The batch is as wide as its
// largest group. Where a group has no more texts the targets are NaN, and the tokens are padding alone.
vernier::DatasetPtr group_dataset(Samples samples, const std::vector<std::int64_t>& groups);

}  // namespace text
