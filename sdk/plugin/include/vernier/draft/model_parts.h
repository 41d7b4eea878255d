// Draft: a model that several ranks hold together, each with tensors of its own (distributed/model_parallel).
// Headers in draft/ may change in any version, and are not part of VERNIER_ABI.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace vernier::draft {
inline namespace model_parts_1 {

// While one exists, each rank computes all samples of a batch, with its part of the model. A tensor of the model is
// either the same on all ranks, or each rank has a part of it. The gradient of the first kind is summed over the ranks.
// Main thread only.
class VERNIER_API ModelParts {
 public:
  // sum: replaces numbers, float32 or float64 on the CPU, by their sums over the ranks.
  ModelParts(std::int64_t rank, std::int64_t ranks, std::function<void(const torch::Tensor&)> sum);
  ~ModelParts();
  ModelParts(const ModelParts&) = delete;
  ModelParts& operator=(const ModelParts&) = delete;

  static ModelParts* current();                  // null: each rank has the whole model
  static bool is_part(const std::string& name);  // true: each rank has a part of the tensor of this name
  std::int64_t rank() const { return rank_; }
  std::int64_t ranks() const { return ranks_; }
  // Called by the task in prepare, with the names of the parameters and buffers of which this rank has a part.
  void set(std::set<std::string> names) { names_ = std::move(names); }
  const std::optional<std::set<std::string>>& names() const { return names_; }
  // Returns the numbers of all ranks, by rank, in the dtype of the given one: 0-dim. All ranks must call it at the same
  // moment.
  torch::Tensor of_all_ranks(const torch::Tensor& number) const;

 private:
  std::int64_t rank_, ranks_;
  std::function<void(const torch::Tensor&)> sum_;
  std::optional<std::set<std::string>> names_;
};

// A base class of an optimizer, beside its role. Another one is refused where parameters are in parts.
class VERNIER_API UpdatesElements {
 public:
  // True: an element changes by its own gradient and state alone, so that parts are updated as the whole is.
  virtual bool updates_each_element() const = 0;

 protected:
  virtual ~UpdatesElements();
};

}  // namespace model_parts_1
}  // namespace vernier::draft
