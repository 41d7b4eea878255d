#include "arrays.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/min.h>
#include <c10/util/StringUtil.h>
#include <vernier/checksum.h>
#include <vernier/error.h>

namespace vernier {

namespace {

// The type of as many bits with which LibTorch computes. It only copies unsigned integers of more than 8 bits.
torch::ScalarType usable(torch::ScalarType type) {
  if (type == torch::kUInt16) return torch::kInt16;
  if (type == torch::kUInt32) return torch::kInt32;
  return type == torch::kUInt64 ? torch::kInt64 : type;
}

class ArrayDataset final : public Dataset {
 public:
  ArrayDataset(std::vector<NamedArray> arrays, std::vector<MappedFilePtr> files)
      : arrays_(std::move(arrays)), files_(std::move(files)) {
    if (arrays_.empty()) refuse("a dataset needs at least one array");
    for (auto& [name, tensor] : arrays_) {
      if (tensor.dim() == 0) refuse(name + " is a single number; the first dimension of an array is the sample");
      if (tensor.size(0) != size()) {
        refuse(c10::str(name, " has ", tensor.size(0), " samples, ", arrays_[0].name, " has ", size()));
      }
      types_.push_back(tensor.scalar_type());
      tensor = tensor.view(usable(types_.back()));
    }
  }
  std::int64_t size() const override { return arrays_[0].tensor.size(0); }
  Sample get(std::int64_t index, Random&) const override {
    Sample sample;
    for (const auto& file : files_) file->require_unchanged();
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      sample.push_back(widened(arrays_[i].tensor[index].clone(at::MemoryFormat::Contiguous), i));
      if (is_too_large(sample[i], i)) {
        refuse(c10::str(arrays_[i].name, " sample ", index, " has a number of 2^63 or more, which int64 cannot hold"));
      }
    }
    return sample;
  }
  std::optional<Sample> get_batch(const torch::Tensor& indices) const override {
    Sample batch;
    for (const auto& file : files_) file->require_unchanged();
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      batch.push_back(widened(arrays_[i].tensor.index_select(0, indices), i));
      if (is_too_large(batch[i], i)) return {};  // get() names the sample
    }
    return batch;
  }
  std::string where(std::int64_t index) const override { return c10::str(arrays_[0].name, " sample ", index); }
  std::string fingerprint() const override {
    std::string all = c10::str(size(), " samples");
    for (const auto& file : files_) all += ", " + file->fingerprint();
    if (!files_.empty()) return all;
    Checksum sum;
    for (const auto& array : arrays_) {
      const auto tensor = array.tensor.contiguous();
      sum.add(tensor.const_data_ptr(), tensor.nbytes());
    }
    return all + ", XXH3 " + sum.digits();
  }

 private:
  // A part of array i; unsigned integers of more than 8 bits become int64.
  torch::Tensor widened(const torch::Tensor& part, std::size_t i) const {
    const bool is_signed = part.scalar_type() == types_[i];
    return is_signed ? part : part.view(types_[i]).to(torch::kInt64);
  }
  bool is_too_large(const torch::Tensor& wide, std::size_t i) const {
    return types_[i] == torch::kUInt64 && wide.numel() > 0 && wide.min().item<std::int64_t>() < 0;
  }

  std::vector<NamedArray> arrays_;        // unsigned integers as signed ones of the same bits
  std::vector<torch::ScalarType> types_;  // dtypes of the arrays
  std::vector<MappedFilePtr> files_;
};

}  // namespace

DatasetPtr array_dataset(std::vector<NamedArray> arrays, std::vector<MappedFilePtr> files) {
  return std::make_shared<ArrayDataset>(std::move(arrays), std::move(files));
}

}  // namespace vernier
