// Samples in memory, also those that are read from a file.
#pragma once

#include <vernier/data/dataset.h>

namespace vernier {

// The checksum of tensors on any device, with their shapes and types: "XXH3 0123…".
VERNIER_API std::string checksum_of_all(const std::vector<torch::Tensor>& tensors);

// Sample i has entry i of each tensor.
class VERNIER_API TensorDataset : public Dataset {
 public:
  explicit TensorDataset(std::vector<torch::Tensor> tensors);
  std::int64_t size() const override { return tensors_[0].size(0); }
  Sample get(std::int64_t index, Random&) const override;
  std::optional<Sample> get_batch(const torch::Tensor& indices) const override;
  std::string fingerprint() const override;

 protected:
  std::vector<torch::Tensor> tensors_;
};

}  // namespace vernier
