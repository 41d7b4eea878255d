#include "reading.h"

#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/readers.h>
#include <vernier/error.h>
#include <vernier/text/token_data.h>

#include <algorithm>
#include <cstring>
#include <limits>
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

// Numbers the values as they first come.
template <class Value>
class Numbering {
 public:
  std::int64_t of(const Value& value) { return numbers_.try_emplace(value, std::ssize(numbers_)).first->second; }

 private:
  std::map<Value, std::int64_t> numbers_;
};

Texts read_csv_texts(const std::string& path, const Form& form, bool with_target) {
  auto options = form.csv;
  options.columns = form.fields;
  const bool with_group = with_target && !form.group.empty();
  if (with_group && std::ranges::count(form.fields, form.group) == 0) options.columns.push_back(form.group);
  options.target = with_target ? form.target : "";
  options.classes = form.kind == "auto";
  for (const auto& column : options.columns) options.types[column] = CsvType::category;
  if (with_target && form.kind == "classification") options.types[form.target] = CsvType::category;
  if (with_target && (form.kind == "regression" || with_group)) options.types[form.target] = CsvType::number;
  if (!with_target) options.types.erase(form.target);
  const auto table = std::make_shared<const vernier::CsvTable>(vernier::read_csv(path, options));
  Texts all;
  const auto count = table->rows.numel();
  all.texts.resize(static_cast<std::size_t>(count));
  const auto codes = table->categories.index_select(0, table->rows);
  const auto code_of = [&](std::int64_t row, std::size_t column) {
    return codes.const_data_ptr<std::int64_t>()[row * codes.size(1) + static_cast<std::int64_t>(column)];
  };
  const auto group = static_cast<std::size_t>(std::ranges::find(options.columns, form.group) - options.columns.begin());
  Numbering<std::int64_t> groups;
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::size_t field = 0; field < form.fields.size(); ++field) {
      const auto& words = table->schema.columns.at(field).vocabulary;
      append(all.texts[static_cast<std::size_t>(i)], words.at(static_cast<std::size_t>(code_of(i, field))), field == 0);
    }
    if (with_group) all.groups.push_back(groups.of(code_of(i, group)));
  }
  if (with_target) {
    all.target = {path + ":" + form.target, table->target.index_select(0, table->rows), {}, {}};
    if (table->schema.target->type == CsvType::category) all.target.words = table->schema.target->vocabulary;
  }
  all.where = [table, rows = table->rows](std::int64_t i) { return table->where(rows[i].item<std::int64_t>()); };
  return all;
}

// A text, or the bytes of a number.
std::string word_of(const torch::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

// The dtype of a field by the first line: a text (kUInt8), true and false (kBool), or numbers.
torch::ScalarType type_of(const std::string& path, const std::string& field) {
  vernier::Random random(0, 0, 0);
  for (const auto type : {torch::kUInt8, torch::kBool}) {
    try {
      vernier::json_lines_dataset(path, {{field, type}})->get(0, random);
      return type;
    } catch (const vernier::Error&) {  // another type, or an error that reading it as a number reports
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
  const auto target = fields.size(), group = target + 1;
  const bool with_group = with_target && !form.group.empty();
  if (with_target) fields.push_back({form.target, with_group ? torch::kFloat64 : type_of(path, form.target)});
  if (with_group) fields.push_back({form.group, type_of(path, form.group)});
  const auto lines = vernier::json_lines_dataset(path, fields);
  const bool has_words = with_target && fields[target].type != torch::kFloat64;
  Texts all;
  std::vector<std::string> words;
  std::vector<torch::Tensor> numbers;
  Numbering<std::string> groups;
  vernier::Random random(0, 0, 0);
  const auto bytes_of = [&](const vernier::Sample& sample, std::size_t field, std::int64_t line) {
    if (fields[field].type != torch::kUInt8 && sample[field].dim() > 0) {
      vernier::refuse(lines->where(line) + ": the field '" + fields[field].name + "' is an array");
    }
    return fields[field].type == torch::kBool ? sample[field].item<bool>() ? "true" : "false" : word_of(sample[field]);
  };
  for (std::int64_t i = 0; i < lines->size(); ++i) {
    const auto sample = lines->get(i, random);
    std::string text;
    for (std::size_t field = 0; field < target; ++field) append(text, word_of(sample[field]), field == 0);
    all.texts.push_back(std::move(text));
    if (!with_target) continue;
    auto value = bytes_of(sample, target, i);
    if (has_words) words.push_back(std::move(value));
    if (!has_words) numbers.push_back(sample[target]);
    if (with_group) all.groups.push_back(groups.of(bytes_of(sample, group, i)));
  }
  const auto name = path + ":" + form.target;
  if (has_words) all.target = coded(name, words);
  if (!numbers.empty()) all.target = {name, torch::stack(numbers), {}, {}};
  all.where = [lines](std::int64_t i) { return lines->where(i); };
  return all;
}

// The part of rows of tokens up to the last one of the longest text, as int64.
torch::Tensor without_padding(const torch::Tensor& rows, std::int64_t padding) {
  const auto longest = rows.ne(padding).sum(-1).max().item<std::int64_t>();
  return rows.narrow(-1, 0, longest).to(torch::kInt64);
}

class TextDataset final : public vernier::Dataset {
 public:
  explicit TextDataset(Samples samples) : all_(std::move(samples)) {
    fingerprint_ = vernier::fingerprint_of(all_.targets.defined() ? std::vector{all_.tokens, all_.targets}
                                                                  : std::vector{all_.tokens});
  }
  std::int64_t size() const override { return all_.tokens.size(0); }
  vernier::Sample get(std::int64_t index, vernier::Random&) const override {
    vernier::Sample sample{all_.tokens[index].to(torch::kInt64)};
    if (all_.targets.defined()) sample.push_back(all_.targets[index]);
    return sample;
  }
  std::optional<vernier::Sample> get_batch(const torch::Tensor& indices) const override {
    vernier::Sample batch{without_padding(all_.tokens.index_select(0, indices), all_.padding)};
    if (all_.targets.defined()) batch.push_back(all_.targets.index_select(0, indices));
    return batch;
  }
  std::string where(std::int64_t index) const override { return all_.where(index); }
  std::string fingerprint() const override { return c10::str(size(), " texts, ", fingerprint_); }

 private:
  Samples all_;
  std::string fingerprint_;
};

class GroupDataset final : public vernier::Dataset {
 public:
  GroupDataset(Samples samples, const std::vector<std::int64_t>& groups) : all_(std::move(samples)) {
    const auto order = torch::tensor(groups).argsort(/*stable=*/true, 0, /*descending=*/false);
    counts_ = torch::tensor(groups).bincount();
    starts_ = counts_.cumsum(0) - counts_;
    order_ = order;
    fingerprint_ = vernier::fingerprint_of({all_.tokens, all_.targets, order_, counts_});
  }
  std::int64_t size() const override { return counts_.numel(); }
  vernier::Sample get(std::int64_t index, vernier::Random&) const override {
    const auto batch = groups_of(torch::tensor({index}), counts_.max().item<std::int64_t>());
    return {batch[0][0].to(torch::kInt64), batch[1][0]};
  }
  std::optional<vernier::Sample> get_batch(const torch::Tensor& indices) const override {
    auto batch = groups_of(indices, counts_.index_select(0, indices).max().item<std::int64_t>());
    batch[0] = without_padding(batch[0], all_.padding);
    return batch;
  }
  std::string where(std::int64_t index) const override {
    return all_.where(order_[starts_[index]].item<std::int64_t>());
  }
  std::string fingerprint() const override { return c10::str(size(), " groups, ", fingerprint_); }

 private:
  // Groups of `width` places each.
  vernier::Sample groups_of(const torch::Tensor& indices, std::int64_t width) const {
    const auto place = torch::arange(width).unsqueeze(0);
    const auto is_there = place < counts_.index_select(0, indices).unsqueeze(1);
    const auto rows = starts_.index_select(0, indices).unsqueeze(1) + place * is_there;
    const auto texts = order_.index_select(0, rows.flatten());
    const auto is_empty = is_there.logical_not();
    return {all_.tokens.index_select(0, texts)
                .view({rows.size(0), width, -1})
                .masked_fill(is_empty.unsqueeze(2), all_.padding),
            all_.targets.index_select(0, texts).view_as(rows).masked_fill(is_empty,
                                                                          std::numeric_limits<double>::quiet_NaN())};
  }

  Samples all_;
  torch::Tensor counts_, starts_, order_;  // by group: its texts, and its first place in order_
  std::string fingerprint_;
};

}  // namespace

std::vector<std::string> Texts::some(const torch::Tensor& rows) const {
  std::vector<std::string> chosen;
  const auto* row = rows.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows.numel(); ++i) chosen.push_back(texts.at(static_cast<std::size_t>(row[i])));
  return chosen;
}

bool is_json_lines(const std::string& path) {
  return path.ends_with(".jsonl");
}

Texts read_texts(const std::string& path, const Form& form, bool with_target) {
  try {
    return is_json_lines(path) ? read_json_texts(path, form, with_target) : read_csv_texts(path, form, with_target);
  } catch (const vernier::Error& error) {
    const std::string reason = error.what();
    for (const auto& field : form.fields) {
      const bool is_missing = reason.find("has no column '" + field + "'") != reason.npos ||
                              reason.find(" line 1: the field '" + field + "' is missing") != reason.npos;
      if (!is_missing) continue;
      vernier::refuse(reason + R"(; name the one with the text, as in text = ["review"])");
    }
    throw;
  }
}

DatasetPtr text_dataset(Samples samples) {
  return std::make_shared<TextDataset>(std::move(samples));
}

DatasetPtr group_dataset(Samples samples, const std::vector<std::int64_t>& groups) {
  return std::make_shared<GroupDataset>(std::move(samples), groups);
}

}  // namespace text
