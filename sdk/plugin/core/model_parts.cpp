#include <ATen/ops/zeros.h>
#include <vernier/draft/model_parts.h>

namespace vernier::draft {
inline namespace model_parts_1 {

namespace {
ModelParts* current_parts = nullptr;
}

ModelParts::ModelParts(std::int64_t rank, std::int64_t ranks, std::function<void(const torch::Tensor&)> sum)
    : rank_(rank), ranks_(ranks), sum_(std::move(sum)) {
  current_parts = this;
}

ModelParts::~ModelParts() {
  if (current_parts == this) current_parts = nullptr;
}

ModelParts* ModelParts::current() {
  return current_parts;
}

bool ModelParts::is_part(const std::string& name) {
  return current_parts != nullptr && current_parts->names_ && current_parts->names_->contains(name);
}

torch::Tensor ModelParts::of_all_ranks(const torch::Tensor& number) const {
  const auto all = at::zeros({ranks_}, number.options());
  all[rank_].copy_(number);
  sum_(all);
  return all;
}

UpdatesElements::~UpdatesElements() = default;

}  // namespace model_parts_1
}  // namespace vernier::draft
