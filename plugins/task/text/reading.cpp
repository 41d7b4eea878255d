#include "reading.h"

#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/readers.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

namespace text {

namespace {

using vernier::CsvType;
using vernier::DatasetPtr;

// Texts of several fields are one text.
void append(std::string& text, const std::string& part, bool is_first) {
  if (!is_first) text += '\n';
  text += part;
}

Texts read_csv_texts(const std::string& path, const Form& form, bool with_target) {
  auto options = form.csv;
  options.columns = form.fields;
  options.target = with_target ? form.target : "";
  options.classes = form.kind == "auto";
  for (const auto& field : form.fields) options.types[field] = CsvType::category;
  if (with_target && form.kind == "classification") options.types[form.target] = CsvType::category;
  if (with_target && form.kind == "regression") options.types[form.target] = CsvType::number;
  if (!with_target) options.types.erase(form.target);
  const auto table = std::make_shared<const vernier::CsvTable>(vernier::read_csv(path, options));
  Texts all;
  const auto count = table->rows.numel();
  all.texts.resize(static_cast<std::size_t>(count));
  const auto codes = table->categories.index_select(0, table->rows);
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::size_t field = 0; field < form.fields.size(); ++field) {
      const auto code = codes.const_data_ptr<std::int64_t>()[i * codes.size(1) + static_cast<std::int64_t>(field)];
      const auto& words = table->schema.columns.at(field).vocabulary;
      append(all.texts[static_cast<std::size_t>(i)], words.at(static_cast<std::size_t>(code)), field == 0);
    }
  }
  if (with_target) {
    all.target = {path + ":" + form.target, table->target.index_select(0, table->rows), {}, {}};
    if (table->schema.target->type == CsvType::category) all.target.words = table->schema.target->vocabulary;
  }
  all.where = [table, rows = table->rows](std::int64_t i) { return table->where(rows[i].item<std::int64_t>()); };
  return all;
}

std::string word_of(const torch::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

// The dtype of a field by the first line: a text (kUInt8), true and false (kBool), or numbers.
torch::ScalarType type_of(const std::string& path, const std::string& field) {
  vernier::Random random(0, 0, 0);
  for (const auto type : {torch::kUInt8, torch::kBool}) {
    try {
      vernier::json_lines_dataset(path, {{field, type}})->get(0, random);
      return type;
    } catch (const vernier::Error&) {  // of another type, or wrong altogether, which reading it as a number says
    }
  }
  return torch::kFloat64;
}

// The words in order, so that codes do not depend on the order of the lines.
vernier::Source coded(const std::string& name, const std::vector<std::string>& words) {
  std::map<std::string, std::int64_t> codes;
  for (const auto& word : words) codes.emplace(word, 0);
  vernier::Source source;
  source.name = name;
  for (auto& [word, code] : codes) {
    code = std::ssize(source.words);
    source.words.push_back(word);
  }
  source.tensor = torch::empty({std::ssize(words)}, torch::kInt64);
  auto* code = source.tensor.mutable_data_ptr<std::int64_t>();
  for (const auto& word : words) *code++ = codes.at(word);
  return source;
}

Texts read_json_texts(const std::string& path, const Form& form, bool with_target) {
  std::vector<vernier::JsonField> fields;
  for (const auto& field : form.fields) fields.push_back({field, torch::kUInt8});
  if (with_target) fields.push_back({form.target, type_of(path, form.target)});
  const auto lines = vernier::json_lines_dataset(path, fields);
  const auto type = fields.back().type;
  const bool has_words = with_target && type != torch::kFloat64;
  Texts all;
  std::vector<std::string> words;
  std::vector<torch::Tensor> numbers;
  vernier::Random random(0, 0, 0);
  for (std::int64_t i = 0; i < lines->size(); ++i) {
    const auto sample = lines->get(i, random);
    std::string text;
    for (std::size_t field = 0; field < form.fields.size(); ++field) append(text, word_of(sample[field]), field == 0);
    all.texts.push_back(std::move(text));
    if (with_target && type != torch::kUInt8 && sample.back().dim() > 0) {
      vernier::refuse(lines->where(i) + ": the field '" + form.target + "' is an array");
    }
    if (has_words) {
      words.push_back(type == torch::kUInt8 ? word_of(sample.back()) : sample.back().item<bool>() ? "true" : "false");
    }
    if (with_target && !has_words) numbers.push_back(sample.back());
  }
  const auto name = path + ":" + form.target;
  if (has_words) all.target = coded(name, words);
  if (!numbers.empty()) all.target = {name, torch::stack(numbers), {}, {}};
  all.where = [lines](std::int64_t i) { return lines->where(i); };
  return all;
}

class TextDataset final : public vernier::Dataset {
 public:
  TextDataset(torch::Tensor tokens, torch::Tensor targets, std::function<std::string(std::int64_t)> where)
      : tokens_(std::move(tokens)), targets_(std::move(targets)), where_(std::move(where)) {
    fingerprint_ = vernier::fingerprint_of(tensors());
  }
  std::int64_t size() const override { return tokens_.size(0); }
  vernier::Sample get(std::int64_t index, vernier::Random&) const override {
    vernier::Sample sample{tokens_[index].to(torch::kInt64)};
    if (targets_.defined()) sample.push_back(targets_[index]);
    return sample;
  }
  std::optional<vernier::Sample> get_batch(const torch::Tensor& indices) const override {
    const auto rows = tokens_.index_select(0, indices);
    const auto longest = rows.ne(padding).sum(1).max().item<std::int64_t>();
    vernier::Sample batch{rows.narrow(1, 0, longest).to(torch::kInt64)};
    if (targets_.defined()) batch.push_back(targets_.index_select(0, indices));
    return batch;
  }
  std::string where(std::int64_t index) const override { return where_(index); }
  std::string fingerprint() const override { return c10::str(size(), " texts, ", fingerprint_); }

 private:
  std::vector<torch::Tensor> tensors() const {
    return targets_.defined() ? std::vector{tokens_, targets_} : std::vector{tokens_};
  }
  torch::Tensor tokens_, targets_;
  std::function<std::string(std::int64_t)> where_;
  std::string fingerprint_;
};

}  // namespace

bool is_json_lines(const std::string& path) {
  return path.ends_with(".jsonl");
}

Texts read_texts(const std::string& path, const Form& form, bool with_target) {
  return is_json_lines(path) ? read_json_texts(path, form, with_target) : read_csv_texts(path, form, with_target);
}

Encoded encode(const vernier::Tokenizer& tokenizer, const std::vector<std::string>& texts, std::int64_t length,
               bool fits) {
  Encoded all;
  std::vector<std::vector<vernier::TokenId>> ids;
  ids.reserve(texts.size());
  for (const auto& text : texts) {
    ids.push_back(tokenizer.encode_plain(text));
    const auto wanted = std::ssize(ids.back()) + 1;
    if (wanted > length) {
      ids.back().resize(static_cast<std::size_t>(length - 1));
      ++all.shortened;
    }
    all.longest = std::max<std::int64_t>(all.longest, std::ssize(ids.back()) + 1);
  }
  const auto columns = fits ? all.longest : length;
  all.tokens = at::full({std::ssize(texts), columns}, padding, torch::kInt32);
  auto* row = all.tokens.mutable_data_ptr<std::int32_t>();
  for (const auto& text : ids) {
    row[0] = begin;
    std::ranges::transform(text, row + 1, [](auto id) { return id + static_cast<std::int32_t>(first_id); });
    row += columns;
  }
  return all;
}

DatasetPtr text_dataset(torch::Tensor tokens, torch::Tensor targets, std::function<std::string(std::int64_t)> where) {
  return std::make_shared<TextDataset>(std::move(tokens), std::move(targets), std::move(where));
}

}  // namespace text
