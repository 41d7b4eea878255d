// JSON Lines: an object a line, parsed when it is needed.
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <vernier/data/readers.h>
#include <vernier/error.h>

#include <cmath>
#include <cstring>

#include "files/json.h"
#include "mapped_file.h"

namespace vernier {

namespace {

constexpr std::size_t deepest_line = 64;

// The elements of a number or of nested arrays, and their shape.
template <class Number>
class JsonArray {
 public:
  // Returns what is wrong, or "".
  std::string read(const Json& json) {
    find_shape(json);
    return add(json, 0);
  }
  torch::Tensor tensor(torch::ScalarType type) const {
    auto result = at::empty(shape_, type);
    if (!numbers_.empty()) std::memcpy(result.mutable_data_ptr(), numbers_.data(), numbers_.size() * sizeof(Number));
    return result;
  }

 private:
  // By the first element of each array; add() compares the others.
  void find_shape(const Json& json) {
    for (const auto* inner = &json; inner->is_array(); inner = &inner->front()) {
      shape_.push_back(static_cast<std::int64_t>(inner->size()));
      if (inner->empty()) return;
    }
  }
  std::string add(const Json& json, std::size_t depth) {
    if (depth == shape_.size()) return add_number(json);
    if (!json.is_array() || static_cast<std::int64_t>(json.size()) != shape_[depth]) {
      return "has arrays of different length in it";
    }
    for (const auto& inner : json) {
      if (const auto wrong = add(inner, depth + 1); !wrong.empty()) return wrong;
    }
    return "";
  }
  std::string add_number(const Json& json) {
    if (json.is_array()) return "has arrays of different length in it";
    if constexpr (std::is_same_v<Number, std::uint8_t>) {  // a bool
      if (!json.is_boolean()) return "is not true or false";
      numbers_.push_back(json.get<bool>() ? 1 : 0);
    } else if constexpr (std::is_same_v<Number, std::int64_t>) {
      const bool fits = !json.is_number_unsigned() || json.get<std::uint64_t>() <= INT64_MAX;
      if (!json.is_number_integer() || !fits) return "is not a whole number of 64 bits";
      numbers_.push_back(json.get<std::int64_t>());
    } else {
      if (!json.is_number()) return "is not a number";
      numbers_.push_back(static_cast<Number>(json.get<double>()));
      if (!std::isfinite(numbers_.back()))
        return std::is_same_v<Number, float> ? "is too large for float32" : "is too large for float64";
    }
    return "";
  }

  std::vector<std::int64_t> shape_;
  std::vector<Number> numbers_;
};

class JsonLinesDataset final : public Dataset {
 public:
  JsonLinesDataset(const std::string& path, std::vector<JsonField> fields)
      : file_(MappedFile::open(path)), fields_(std::move(fields)) {
    if (fields_.empty()) refuse("name at least one field of the lines of '" + path + "'");
    for (const auto& field : fields_) check_type(field);
    find_lines();
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(begins_.size()) - 1; }
  Sample get(std::int64_t index, Random&) const override {
    file_->require_unchanged();
    const auto i = static_cast<std::size_t>(index);
    const std::string text(file_->bytes().substr(begins_[i], begins_[i + 1] - begins_[i]));
    const auto line = parse(text, index);
    Sample sample;
    for (const auto& field : fields_) {
      const auto value = line.value.find(field.name);
      if (value == line.value.end() || value->is_null()) refuse_field(index, field, "is missing");
      sample.push_back(tensor_of(*value, field, index));
    }
    return sample;
  }
  std::string where(std::int64_t index) const override { return c10::str("'", file_->path(), "' line ", index + 1); }
  std::string fingerprint() const override { return c10::str(size(), " lines, ", file_->fingerprint()); }

 private:
  void check_type(const JsonField& field) const {
    for (const auto type : {torch::kFloat32, torch::kFloat64, torch::kInt64, torch::kBool, torch::kUInt8}) {
      if (field.type == type) return;
    }
    file_->refuse(c10::str("has no field of type ", field.type, ": '", field.name,
                           "' can be kFloat32, kFloat64, kInt64, kBool or kUInt8 (a text)"));
  }
  // begins_ has where each line begins, and the end of the last. A byte-order mark and blank lines at the end are left
  // out.
  void find_lines() {
    auto bytes = file_->bytes();
    if (bytes.empty()) file_->refuse("is empty");
    bytes = bytes.substr(0, bytes.find_last_not_of(" \t\r\n") + 1);
    const std::size_t mark = bytes.starts_with("\xef\xbb\xbf") ? 3 : 0;
    if (bytes.size() == mark) file_->refuse("has no lines but blank ones");
    for (std::size_t at = mark; at < bytes.size();) {
      begins_.push_back(at);
      const auto* end = static_cast<const char*>(std::memchr(bytes.data() + at, '\n', bytes.size() - at));
      at = end == nullptr ? bytes.size() : static_cast<std::size_t>(end - bytes.data()) + 1;
      file_->check_line(begins_.size(), at - begins_.back());
    }
    begins_.push_back(bytes.size());
  }
  ParsedJson parse(const std::string& text, std::int64_t index) const {
    try {
      auto parsed = parse_json(where(index), "line", text, deepest_line);
      if (parsed.value.is_object()) return parsed;
    } catch (const Error& error) {
      file_->require_unchanged();
      refuse(error.what());
    }
    refuse(where(index) + " is not a JSON object, such as {\"text\": \"abc\", \"label\": 3}");
  }
  [[noreturn]] void refuse_field(std::int64_t index, const JsonField& field, const std::string& reason) const {
    refuse(where(index) + ": the field '" + shortened(field.name) + "' " + reason);
  }
  template <class Number>
  torch::Tensor numbers_of(const Json& json, const JsonField& field, std::int64_t index) const {
    JsonArray<Number> array;
    if (const auto wrong = array.read(json); !wrong.empty()) refuse_field(index, field, wrong);
    return array.tensor(field.type);
  }
  torch::Tensor tensor_of(const Json& json, const JsonField& field, std::int64_t index) const {
    if (field.type == torch::kFloat32) return numbers_of<float>(json, field, index);
    if (field.type == torch::kFloat64) return numbers_of<double>(json, field, index);
    if (field.type == torch::kInt64) return numbers_of<std::int64_t>(json, field, index);
    if (field.type == torch::kBool) return numbers_of<std::uint8_t>(json, field, index);
    if (!json.is_string()) refuse_field(index, field, "is not a text");
    const auto& text = json.get_ref<const std::string&>();
    auto bytes = at::empty({static_cast<std::int64_t>(text.size())}, torch::kUInt8);
    if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
    return bytes;
  }

  MappedFilePtr file_;
  std::vector<JsonField> fields_;
  std::vector<std::uint64_t> begins_;
};

}  // namespace

DatasetPtr json_lines_dataset(const std::string& path, std::vector<JsonField> fields) {
  return std::make_shared<JsonLinesDataset>(path, std::move(fields));
}

}  // namespace vernier
