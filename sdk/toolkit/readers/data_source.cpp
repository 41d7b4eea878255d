#include <vernier/data_source.h>

#include <ATen/ops/isfinite.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/csv.h>
#include <vernier/error.h>
#include <vernier/numpy.h>
#include <vernier/safetensors.h>
#include <vernier/transforms.h>

#include <filesystem>
#include <sstream>

#include "data/tensor_dataset.h"

namespace vernier {

namespace {

struct Name {
  std::string path, part;  // "x.npz", "images"
};

std::string ending_of(const std::string& path) {
  const auto ending = std::filesystem::path(path).extension().string();
  return ending == ".npy" || ending == ".npz" || ending == ".csv" || ending == ".safetensors" ? ending : "";
}

Name parse(const std::string& name) {
  for (auto colon = name.find(':'); colon != std::string::npos; colon = name.find(':', colon + 1)) {
    if (!ending_of(name.substr(0, colon)).empty()) return {name.substr(0, colon), name.substr(colon + 1)};
  }
  return {name, ""};
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

Tensors read_tensors(const std::string& path) {
  try {
    return load_safetensors(path);
  } catch (const Error& error) {
    refuse(error.what());
  }
}

torch::Tensor pick(const Tensors& tensors, const Name& name) {
  const auto found = tensors.find(name.part);
  if (found != tensors.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [key, tensor] : tensors) names.push_back(key);
  const auto has = names.empty() ? "nothing" : some_of(names);
  if (name.part.empty()) refuse("'" + name.path + "' has " + has + "; name one, as in \"" + name.path + ":NAME\"");
  refuse("'" + name.path + "' has no '" + name.part + "'; it has " + has);
}

void read_table(const Name& name, const std::vector<std::string>& words, Source& source) {
  CsvOptions options;
  options.columns = split_at_commas(name.part);
  options.sorted = true;  // codes do not depend on the order of the rows
  CsvSchema schema;
  if (!words.empty() && options.columns.size() == 1) {
    schema.columns = {{options.columns[0], CsvType::category, words, {}}};
  }
  const auto table = schema.columns.empty() ? read_csv(name.path, options) : read_csv(name.path, schema, options);
  for (const auto& column : table.schema.columns) source.columns.push_back(column.name);
  if (source.columns.size() == 1 && table.schema.columns[0].type == CsvType::category) {
    source.tensor = table.categories.select(1, 0);
    source.words = table.schema.columns[0].vocabulary;
    return;
  }
  for (const auto& column : table.schema.columns) {
    if (column.type == CsvType::category) {
      refuse("'" + name.path + "' has words in column '" + column.name + "'; name the columns of numbers, as in \"" +
             name.path + ":first,second\"");
    }
  }
  source.tensor = options.columns.size() == 1 ? table.numbers.select(1, 0) : table.numbers;
}

// LibTorch copies unsigned integers of more than 8 bits, but does not compute with them.
torch::Tensor without_unsigned(const std::string& name, const torch::Tensor& numbers) {
  const auto type = numbers.scalar_type();
  if (type != torch::kUInt16 && type != torch::kUInt32 && type != torch::kUInt64) return numbers;
  const auto wide = numbers.to(torch::kInt64);
  const auto bad = wide.reshape({wide.size(0), -1}).lt(0).any(1).nonzero();
  if (bad.numel() == 0) return wide;
  refuse(c10::str("'", name, "' has a number of 2^63 or more in row ", bad[0][0].item<std::int64_t>(),
                  ", which int64 cannot hold"));
}

class SourceDataset final : public TensorDataset {
 public:
  SourceDataset(std::vector<torch::Tensor> tensors, std::string name, std::string fingerprint)
      : TensorDataset(std::move(tensors)), name_(std::move(name)), fingerprint_(std::move(fingerprint)) {}
  std::string where(std::int64_t index) const override { return c10::str("'", name_, "' sample ", index); }
  std::string fingerprint() const override { return c10::str(size(), " samples, ", fingerprint_); }

 private:
  std::string name_, fingerprint_;
};

}  // namespace

Source read_source(const std::string& name, const std::vector<std::string>& words) {
  const auto parts = parse(name);
  const auto ending = ending_of(parts.path);
  Source source;
  source.name = name;
  if (ending == ".npy") {
    if (!parts.part.empty()) refuse("\"" + name + "\": a .npy file has one array; write \"" + parts.path + "\"");
    source.tensor = read_npy(parts.path);
  } else if (ending == ".npz") {
    source.tensor = parts.part.empty() ? pick(read_npz(parts.path), parts) : read_npz(parts.path, parts.part);
  } else if (ending == ".safetensors") {
    source.tensor = pick(read_tensors(parts.path), parts);
  } else if (ending == ".csv") {
    read_table(parts, words, source);
  } else {
    refuse("'" + name +
           "' is not a source of data; name a file that ends in .npy, .npz:NAME, .safetensors:NAME, .csv or "
           ".csv:COLUMN,COLUMN");
  }
  if (source.tensor.dim() == 0) refuse("'" + name + "' has one number and no dimension of samples");
  if (source.tensor.size(0) == 0) refuse("'" + name + "' has no samples");
  if (source.tensor.is_floating_point()) source.tensor = source.tensor.to(torch::kFloat32);
  source.tensor = without_unsigned(name, source.tensor);
  source.tensor = source.tensor.contiguous();
  return source;
}

std::string same_part(const std::string& name, const std::string& file) {
  const auto part = parse(name).part;
  if (part.empty() || !parse(file).part.empty() || ending_of(file) == ".npy") return file;
  return file + ":" + part;
}

void require_finite(const Source& source) {
  if (!source.tensor.is_floating_point()) return;
  const auto flat = source.tensor.reshape({source.tensor.size(0), -1});
  const auto bad = at::isfinite(flat).all(1).logical_not().nonzero();
  if (bad.numel() == 0) return;
  refuse(c10::str("'", source.name, "' has a NaN or infinite number in row ", bad[0][0].item<std::int64_t>(),
                  ", counted from 0, and in ", bad.size(0) - 1, " others; remove or fill them"));
}

torch::Tensor labels_of(const Source& source, std::int64_t classes) {
  if (source.tensor.dim() != 1) {
    refuse(c10::str("'", source.name, "' has the shape ", source.tensor.sizes(), "; labels have [samples]"));
  }
  require_finite(source);
  const auto labels = source.tensor.to(torch::kInt64).contiguous();
  const auto fractions = (labels != source.tensor).nonzero();
  if (fractions.numel() > 0) {
    const auto row = fractions[0][0].item<std::int64_t>();
    refuse(c10::str("'", source.name, "' has the label ", source.tensor[row].item<double>(), " in row ", row,
                    "; labels are the whole numbers from 0"));
  }
  const auto* label = labels.const_data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < labels.numel(); ++row) {
    if (label[row] < 0)
      refuse(c10::str("'", source.name, "' has the label ", label[row], " in row ", row,
                      "; labels are the whole numbers from 0"));
    if (classes > 0 && label[row] >= classes) {
      refuse(c10::str("'", source.name, "' has the label ", label[row], " in row ", row, "; with ", classes,
                      " classes the largest is ", classes - 1));
    }
  }
  return labels;
}

std::int64_t classes_of(const Source& source, const torch::Tensor& labels) {
  return source.words.empty() ? labels.max().item<std::int64_t>() + 1 : static_cast<std::int64_t>(source.words.size());
}

void require_fitting_metric(const std::string& name, Predicts what, std::int64_t classes) {
  const bool is_of_numbers = name == "mae" || name == "rmse" || name == "r2";
  const bool is_of_classes = name == "accuracy" || name == "f1" || name == "perplexity" || name.starts_with("top_");
  const auto unfit = [&](const std::string& reason) {
    refuse("`metrics` has \"" + name + "\", which is " + reason + "; leave it out");
  };
  if (is_of_numbers && what == Predicts::classes) unfit("for numbers, and the task predicts classes");
  if (is_of_classes && what != Predicts::classes) unfit("for classes, and the task predicts numbers");
  if (name == "auc" && what == Predicts::numbers) unfit("for two classes, and the task predicts numbers");
  if (name == "auc" && what == Predicts::classes && classes != 2) {
    unfit(c10::str("for two classes, and the task has ", classes));
  }
}

std::string fingerprint_of(const std::vector<torch::Tensor>& tensors) {
  return checksum_of_all(tensors);
}

DatasetPtr dataset_of(std::vector<torch::Tensor> tensors, std::string name, std::string fingerprint) {
  return std::make_shared<SourceDataset>(std::move(tensors), std::move(name), std::move(fingerprint));
}

DatasetPtr of_one_size(const DatasetPtr& images, std::int64_t size) {
  if (size > 0) return transform(images, {resize_shorter(size), center_crop(size, size)});
  Random none(0, 0, 0);
  const auto first = images->get(0, none).at(0).sizes().vec();
  return transform(images, {[first](const torch::Tensor& image, Random&) {
                     if (image.sizes() == first) return image;
                     refuse(c10::str("the image has the shape ", image.sizes(), ", and the first one ",
                                     c10::IntArrayRef(first), "; set `size`"));
                   }});
}

}  // namespace vernier
