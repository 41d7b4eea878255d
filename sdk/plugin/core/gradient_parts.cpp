#include <ATen/core/Tensor.h>
#include <vernier/draft/gradient_parts.h>

#include <utility>

namespace vernier::draft {
inline namespace gradient_parts_1 {

namespace {
const GradientParts* parts = nullptr;
}

bool is_elsewhere(const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || !tensor.has_storage() || tensor.numel() == 0) return false;
  const auto& storage = tensor.storage();
  return storage.data() == nullptr && storage.nbytes() > 0 && !tensor._is_zerotensor();
}

void leave_elsewhere(const torch::Tensor& tensor) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
}

TakesParts::~TakesParts() = default;

GradientParts::GradientParts(std::function<void(const torch::Tensor&)> sum) : sum_(std::move(sum)) {
  parts = this;
}

GradientParts::~GradientParts() {
  if (parts == this) parts = nullptr;
}

bool GradientParts::exist() {
  return parts != nullptr;
}

void GradientParts::sum(const torch::Tensor& numbers) {
  if (parts != nullptr) parts->sum_(numbers);
}

}  // namespace gradient_parts_1
}  // namespace vernier::draft
