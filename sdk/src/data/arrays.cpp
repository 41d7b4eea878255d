#include "arrays.h"

#include <ATen/ops/index_select.h>
#include <c10/util/StringUtil.h>
#include <vernier/checksum.h>
#include <vernier/error.h>

namespace vernier {

namespace {

class ArrayDataset final : public Dataset {
 public:
  ArrayDataset(std::vector<NamedArray> arrays, std::vector<MappedFilePtr> files)
      : arrays_(std::move(arrays)), files_(std::move(files)) {
    if (arrays_.empty()) refuse("a dataset needs at least one array");
    for (const auto& [name, tensor] : arrays_) {
      if (tensor.dim() == 0) refuse(name + " is a single number; the first dimension of an array is the sample");
      if (tensor.size(0) == size()) continue;
      refuse(c10::str(name, " has ", tensor.size(0), " samples, ", arrays_[0].name, " has ", size()));
    }
  }
  std::int64_t size() const override { return arrays_[0].tensor.size(0); }
  Sample get(std::int64_t index, Random&) const override {
    Sample sample;
    for (const auto& file : files_) file->require_unchanged();
    for (const auto& array : arrays_) sample.push_back(array.tensor[index].clone(at::MemoryFormat::Contiguous));
    return sample;
  }
  std::optional<Sample> get_batch(const torch::Tensor& indices) const override {
    Sample batch;
    for (const auto& file : files_) file->require_unchanged();
    for (const auto& array : arrays_) batch.push_back(array.tensor.index_select(0, indices));
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
  std::vector<NamedArray> arrays_;
  std::vector<MappedFilePtr> files_;
};

}  // namespace

DatasetPtr array_dataset(std::vector<NamedArray> arrays, std::vector<MappedFilePtr> files) {
  return std::make_shared<ArrayDataset>(std::move(arrays), std::move(files));
}

}  // namespace vernier
