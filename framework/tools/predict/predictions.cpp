#include "predictions.h"

#include <ATen/ops/cat.h>
#include <torch/types.h>
#include <vernier/data/images.h>
#include <vernier/error.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "common/scratch_folder.h"
#include "common/text/quoting.h"
#include "files/json.h"

namespace vernier {

namespace {

using Columns = std::vector<Predictor::Column>;

// The numbers of a column on the CPU: float64 [rows, numbers in a row].
torch::Tensor matrix(const Predictor::Column& column) {
  const auto numbers = column.numbers.to(torch::kCPU, torch::kFloat64);
  return numbers.reshape({numbers.size(0), -1}).contiguous();
}

// A name for each number in a row of a column.
std::vector<std::string> names_of(const Predictor::Column& column, std::int64_t numbers) {
  if (numbers == 1) return {column.name};
  std::vector<std::string> names;
  for (std::int64_t k = 0; k < numbers; ++k) names.push_back(c10::str(column.name, "_", k));
  return names;
}

void refuse_duplicates(const std::vector<std::string>& names) {
  std::set<std::string> seen;
  for (const auto& name : names) {
    if (seen.insert(name).second) continue;
    refuse("the task predicts two columns named '" + name + "'; rename one in the data or in the task");
  }
}

const std::string& label_of(const Predictor::Column& column, double number) {
  const auto place = static_cast<std::size_t>(number);
  if (number >= 0 && place < column.labels.size()) return column.labels[place];
  throw Error(c10::str("the task predicts ", number, " in column ", column.name, ", which has ", column.labels.size(),
                       " labels"));
}

class File : public Predictions {
 public:
  File(const std::string& path, const std::string& name) : path_(name), file_(path, std::ios::binary) {
    if (!file_) refuse(path_ + ": cannot be written: " + std::strerror(errno));
  }
  void finish() override {
    file_.close();
    require_written();
  }

 protected:
  void write(const std::string& text) {
    file_.write(text.data(), static_cast<std::streamsize>(text.size()));
    require_written();
  }
  std::ofstream& file() { return file_; }
  void require_written() const {
    if (!file_) throw Error(path_ + ": cannot be written: " + std::strerror(errno));
  }

 private:
  std::string path_;
  std::ofstream file_;
};

// The shortest text that reads back as the same number. float32 has fewer digits than float64.
std::string text_of(double number, bool is_float64) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char text[64];
  const auto end = is_float64 ? std::to_chars(text, text + sizeof text, number).ptr
                              : std::to_chars(text, text + sizeof text, static_cast<float>(number)).ptr;
  return {text, end};
}

class Csv final : public File {
 public:
  using File::File;
  void write_rows(const Columns& columns) override {
    std::vector<torch::Tensor> all;
    for (const auto& column : columns) all.push_back(matrix(column));
    std::string text;
    if (!std::exchange(has_header_, true)) text = header(columns, all);
    for (std::int64_t row = 0; row < all.at(0).size(0); ++row) {
      for (std::size_t i = 0; i < columns.size(); ++i) {
        const auto* numbers = all[i].const_data_ptr<double>() + row * all[i].size(1);
        for (std::int64_t k = 0; k < all[i].size(1); ++k) {
          if (i + static_cast<std::size_t>(k) > 0) text += ',';
          text += columns[i].labels.empty() ? text_of(numbers[k], columns[i].numbers.scalar_type() == torch::kFloat64 ||
                                                                      !columns[i].numbers.is_floating_point())
                                            : quoted(label_of(columns[i], numbers[k]));
        }
      }
      text += '\n';
    }
    write(text);
  }

 private:
  static std::string header(const Columns& columns, const std::vector<torch::Tensor>& all) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      for (auto& name : names_of(columns[i], all[i].size(1))) names.push_back(std::move(name));
    }
    refuse_duplicates(names);
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "" : ",") + quoted(name);
    return text + '\n';
  }
  static std::string quoted(const std::string& word) {
    if (word.find_first_of(",\"\r\n") == std::string::npos) return word;
    return csv_quoted(word);
  }

  bool has_header_ = false;
};

OrderedJson value_of(const Predictor::Column& column, const torch::Tensor& matrix, std::int64_t row) {
  const auto number = [&](double each) -> OrderedJson {
    if (!column.labels.empty()) return label_of(column, each);
    if (!column.numbers.is_floating_point()) return static_cast<std::int64_t>(each);
    return each;  // NaN becomes null, which JSON has in its place
  };
  const auto* next = matrix.const_data_ptr<double>() + row * matrix.size(1);
  const std::function<OrderedJson(std::int64_t)> value_in = [&](std::int64_t dimension) {
    if (dimension == column.numbers.dim()) return number(*next++);
    OrderedJson list = OrderedJson::array();
    for (std::int64_t k = 0; k < column.numbers.size(dimension); ++k) list.push_back(value_in(dimension + 1));
    return list;
  };
  return value_in(1);
}

class JsonLines final : public File {
 public:
  using File::File;
  void write_rows(const Columns& columns) override {
    for (const auto& row : rows_of(columns, columns.at(0).numbers.size(0)))
      write(json_text(row) + '\n');  // words of any encoding
  }
};

// An array on the CPU in a dtype that NumPy has.
torch::Tensor array(const torch::Tensor& numbers) {
  const auto dtype = numbers.scalar_type();
  const bool is_kept =
      dtype == torch::kUInt8 || dtype == torch::kInt64 || dtype == torch::kFloat32 || dtype == torch::kFloat64;
  return numbers.to(torch::kCPU, is_kept                       ? dtype
                                 : numbers.is_floating_point() ? torch::kFloat32
                                                               : torch::kInt64)
      .contiguous();
}

// The header of rows of this form.
std::string header_of(const torch::Tensor& some, std::int64_t rows) {
  std::vector<std::size_t> shape(some.sizes().begin(), some.sizes().end());
  shape[0] = static_cast<std::size_t>(rows);
  const auto dtype = some.scalar_type();
  return npy_header(dtype == torch::kUInt8     ? "|u1"
                    : dtype == torch::kInt64   ? "<i8"
                    : dtype == torch::kFloat32 ? "<f4"
                                               : "<f8",
                    shape);
}

// Returns true for a column of words, such as the names of pictures.
bool is_of_names(const Predictor::Column& column) {
  return column.numbers.dim() == 1 && !column.labels.empty();
}

bool has_planes(const Predictor::Column& column) {
  return column.numbers.dim() > 2;
}

// Returns the labels as numbers, instead of their codes, which only the task understands.
torch::Tensor labels_of(const Predictor::Column& column) {
  const auto numbers = matrix(column).clone();
  auto* number = numbers.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    const auto& label = label_of(column, number[i]);
    const auto* end = label.data() + label.size();
    const auto [last, error] = std::from_chars(label.data(), end, number[i]);
    if (error == std::errc() && last == end && std::isfinite(number[i])) continue;
    refuse("column '" + column.name + "' has the word '" + label + "', and .npy holds numbers; write .csv or .jsonl");
  }
  return numbers;
}

// The number of rows is known at the end, so the header is written again.
class Npy final : public File {
 public:
  using File::File;
  void write_rows(const Columns& columns) override {
    const auto rows = std::ranges::any_of(columns, has_planes) ? planes(columns) : matrix_of(columns);
    if (rows_ == 0) {
      first_ = rows.narrow(0, 0, 1);
      write(header_of(first_, 0));
    }
    rows_ += rows.size(0);
    write({static_cast<const char*>(rows.const_data_ptr()), rows.nbytes()});
  }
  void finish() override {
    file().seekp(0);
    if (first_.defined()) write(header_of(first_, rows_));
    File::finish();
  }

 private:
  static torch::Tensor matrix_of(const Columns& columns) {
    std::vector<torch::Tensor> all;
    for (const auto& column : columns) all.push_back(column.labels.empty() ? matrix(column) : labels_of(column));
    return at::cat(all, 1).contiguous();
  }
  // The one column that is not the names of pictures, which have the order of the rows.
  static torch::Tensor planes(const Columns& columns) {
    const Predictor::Column* only = nullptr;
    for (const auto& column : columns) {
      if (is_of_names(column)) continue;
      if (only != nullptr) {
        refuse("the columns '" + only->name + "' and '" + column.name +
               "' have other shapes, and .npy has one array; write .npz");
      }
      only = &column;
    }
    if (only == nullptr) refuse("there are names alone, and .npy holds numbers; write .csv");
    return only->labels.empty() ? array(only->numbers) : labels_of(*only);
  }

  std::int64_t rows_ = 0;
  torch::Tensor first_;
};

// An array for each column, in a ZIP archive without compression (PKWARE's APPNOTE 6.3.10), but for the names of
// pictures, which have the order of the rows.
class Npz final : public File {
 public:
  using File::File;
  void write_rows(const Columns& columns) override {
    const bool has_names = std::ranges::any_of(columns, has_planes);
    std::vector<std::string> names;
    for (const auto& column : columns) names.push_back(column.name);
    refuse_duplicates(names);
    for (const auto& column : columns) {
      if (has_names && is_of_names(column)) continue;
      arrays_[column.name].push_back(column.labels.empty() ? array(column.numbers) : labels_of(column));
    }
  }
  void finish() override {
    std::string directory;
    std::uint64_t end = 0;
    for (const auto& [name, parts] : arrays_) {
      const auto file = name + ".npy";
      std::int64_t rows = 0;
      for (const auto& part : parts) rows += part.size(0);
      const auto header = header_of(parts[0], rows);
      const auto size = header.size() + parts[0].nbytes() / static_cast<std::size_t>(parts[0].size(0)) * rows;
      auto sum = crc32_z(0, reinterpret_cast<const Bytef*>(header.data()), header.size());
      for (const auto& part : parts)
        sum = crc32_z(sum, static_cast<const Bytef*>(part.const_data_ptr()), part.nbytes());
      // version 2.0, names in UTF-8, stored, no time; both sizes, lengths of the name and of what follows it
      const auto facts = number(20, 2) + number(0x800, 2) + number(0, 6) + number(sum, 4) + number(size, 4) +
                         number(size, 4) + number(file.size(), 2) + number(0, 2);
      directory += "PK\1\2" + number(20, 2) + facts + number(0, 10) + number(end, 4) + file;
      const auto local = "PK\3\4" + facts + file + header;
      end += local.size() - header.size() + size;
      if (end >> 32U != 0) refuse("the arrays have more than 4 GB, and .npz holds less; write .npy");
      write(local);
      for (const auto& part : parts) write({static_cast<const char*>(part.const_data_ptr()), part.nbytes()});
    }
    const auto count = number(arrays_.size(), 2);
    write(directory + "PK\5\6" + number(0, 4) + count + count + number(directory.size(), 4) + number(end, 4) +
          number(0, 2));
    File::finish();
  }

 private:
  static std::string number(std::uint64_t value, std::size_t bytes) {
    std::string text;
    for (std::size_t i = 0; i < bytes; ++i, value >>= 8U) text += static_cast<char>(value & 0xffU);
    return text;
  }

  std::map<std::string, std::vector<torch::Tensor>> arrays_;  // by column, those of each batch
};

// A picture for each mask of a sample, in a folder that appears when it is whole. A sample has the name of its picture,
// or its number.
class Pictures final : public Predictions {
 public:
  explicit Pictures(std::string folder) : folder_(std::move(folder)), scratch_(folder_) {}
  void write_rows(const Columns& columns) override {
    for (std::int64_t row = 0; row < columns.at(0).numbers.size(0); ++row) {
      char digits[32];
      std::snprintf(digits, sizeof digits, "%06ld", written_++);
      std::string name = digits;
      const auto named = std::ranges::find_if(columns, [](const auto& column) { return !column.labels.empty(); });
      if (named != columns.end()) {
        name = std::filesystem::path(label_of(*named, named->numbers[row].item<double>())).stem().string();
      }
      if (!names_.insert(name).second) refuse("two pictures are named '" + name + "'; rename one");
      for (const auto& column : columns) {
        if (column.labels.empty()) write_masks(column, row, scratch_.path() + "/" + name);
      }
    }
  }
  void finish() override {
    std::error_code trouble;
    std::filesystem::rename(scratch_.path(), folder_, trouble);
    if (trouble) throw Error(folder_ + ": cannot be written: " + trouble.message());
  }

 private:
  static void write_masks(const Predictor::Column& column, std::int64_t row, const std::string& path) {
    const auto sample = column.numbers[row];
    if (sample.scalar_type() != torch::kUInt8 || sample.dim() < 2 || sample.dim() > 3) {
      refuse(c10::str("column '", column.name, "' has no masks, but ", sample.scalar_type(), " ", sample.sizes(),
                      " of each sample; write .npz"));
    }
    if (sample.dim() == 2) return write_mask(path + ".png", sample);
    for (std::int64_t k = 0; k < sample.size(0); ++k) write_mask(c10::str(path, "_", k, ".png"), sample[k]);
  }

  std::string folder_;
  ScratchFolder scratch_;
  std::set<std::string> names_;
  std::int64_t written_ = 0;
};

// Refuses columns of which one has not a row for each sample.
void require_rows(const Columns& columns, std::int64_t samples) {
  for (const auto& [name, numbers, labels, on_request] : columns) {
    if (numbers.dim() > 0 && numbers.size(0) == samples) continue;
    refuse(c10::str("the model returns ", numbers.sizes(), " in column '", name, "' for a batch of ", samples,
                    samples == 1 ? " sample" : " samples", "; dimension 0 must be the sample: squeeze() without a ",
                    "dimension drops that of a single sample"));
  }
}

}  // namespace

std::vector<OrderedJson> rows_of(const Columns& columns, std::int64_t samples) {
  require_rows(columns, samples);
  std::vector<torch::Tensor> all;
  std::vector<std::string> names;
  for (const auto& column : columns) {
    all.push_back(matrix(column));
    names.push_back(column.name);
  }
  refuse_duplicates(names);
  std::vector<OrderedJson> rows;
  for (std::int64_t row = 0; row < samples; ++row) {
    rows.push_back(OrderedJson::object());
    for (std::size_t i = 0; i < columns.size(); ++i) rows.back()[columns[i].name] = value_of(columns[i], all[i], row);
  }
  return rows;
}

void Predictions::add(const Columns& columns, std::int64_t samples) {
  require_rows(columns, samples);
  std::vector<std::string> forms;
  for (const auto& column : columns) {
    forms.push_back(c10::str("'", column.name, "' of ", column.numbers.sizes().slice(1)));
  }
  if (count_ == 0) forms_ = forms;
  if (forms != forms_) {
    refuse(c10::str("the model returns the columns ", some_of(forms), " for rows from ", count_ + 1, " on, and ",
                    some_of(forms_), " before; the form of an output may not depend on the batch"));
  }
  write_rows(columns);
  count_ += samples;
}

std::string npy_header(const char* type, const std::vector<std::size_t>& shape) {
  constexpr std::size_t whole = 256, magic = 10;
  auto text = std::string("{'descr': '") + type + "', 'fortran_order': False, 'shape': (";
  for (const auto size : shape) text += std::to_string(size) + ",";
  text += "), }";
  text.resize(whole - magic - 1, ' ');
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(whole - magic) + '\0' + text + '\n';
}

void refuse_unknown_format(const std::string& path) {
  const auto ending = std::filesystem::path(path).extension();
  if (!is_folder_of_pictures(path) && ending != ".csv" && ending != ".npy" && ending != ".npz" && ending != ".jsonl") {
    refuse(path + ": the ending says the format, and must be .csv, .npy, .npz or .jsonl, or / for a folder of masks");
  }
}

bool is_folder_of_pictures(const std::string& path) {
  return path.size() > 1 && path.ends_with('/');
}

std::unique_ptr<Predictions> write_predictions(const std::string& file, const std::string& name) {
  const auto ending = std::filesystem::path(name).extension();
  if (ending == ".csv") return std::make_unique<Csv>(file, name);
  if (ending == ".npy") return std::make_unique<Npy>(file, name);
  if (ending == ".npz") return std::make_unique<Npz>(file, name);
  if (is_folder_of_pictures(name)) return std::make_unique<Pictures>(file);
  return std::make_unique<JsonLines>(file, name);
}

}  // namespace vernier
