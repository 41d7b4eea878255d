#include <vernier/recompute_budget.h>

#include <memory>
#include <unordered_map>
#include <utility>

#include "allocation_reports.h"

namespace vernier {

std::int64_t peak_activations(const ForwardBytes& bytes, std::int64_t count) {
  const auto after_forward = bytes.outside + count * bytes.recomputed + (bytes.blocks - count) * bytes.kept;
  return count < bytes.blocks ? after_forward : after_forward + bytes.kept;
}

std::optional<std::int64_t> blocks_to_recompute(const ForwardBytes& bytes, std::int64_t budget) {
  const auto too_much = peak_activations(bytes, 0) - budget;
  if (too_much <= 0) return 0;
  const auto saved = bytes.kept - bytes.recomputed;
  if (saved <= 0) return std::nullopt;
  const auto count = (too_much + saved - 1) / saved;
  return count < bytes.blocks ? std::optional(count) : std::nullopt;
}

// Counts the bytes allocated on a device since its construction and not freed.
class BudgetedBlocks::Meter final : public c10::MemoryReportingInfoBase {
 public:
  explicit Meter(torch::Device device) : device_(device) {}
  std::int64_t bytes() const { return bytes_; }

  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void* address, std::int64_t bytes, std::size_t allocated, std::size_t reserved,
                         c10::Device device) override {
    if (outer_ != nullptr && outer_->memoryProfilingEnabled()) {
      outer_->reportMemoryUsage(address, bytes, allocated, reserved, device);
    }
    if (device.type() != device_.type()) return;
    if (bytes > 0) {
      alive_[address] = bytes;
      bytes_ += bytes;
    } else if (const auto freed = alive_.extract(address); !freed.empty()) {  // else: older
      bytes_ -= freed.mapped();
    }
  }

 private:
  c10::MemoryReportingInfoBase* outer_ = AllocationReports::receiver();
  torch::Device device_;
  std::int64_t bytes_ = 0;
  std::unordered_map<const void*, std::int64_t> alive_;
};

BudgetedBlocks::BudgetedBlocks(std::int64_t blocks, Keep keep, Choose choose)
    : blocks_(blocks), count_(blocks - 1), keep_(keep), choose_(std::move(choose)) {}

torch::Tensor BudgetedBlocks::forward(std::int64_t size, torch::Device device,
                                      const std::function<torch::Tensor()>& body) {
  meter_.reset();
  if (!torch::GradMode::is_enabled() || size <= size_) return body();
  count_ = blocks_ - 1;
  bytes_ = {.blocks = blocks_};
  meter_ = std::make_shared<Meter>(device);
  torch::Tensor result;
  {
    const AllocationReports reports(meter_);
    result = body();
  }
  if (blocks_ == 1) bytes_.recomputed = bytes_.kept;
  bytes_.outside = meter_->bytes() - (blocks_ - 1) * bytes_.recomputed - bytes_.kept;
  meter_.reset();
  count_ = choose_(bytes_);
  size_ = size;
  return result;
}

torch::Tensor BudgetedBlocks::block(std::int64_t index, const Block& function, const torch::Tensor& input) {
  const auto before = meter_ != nullptr ? meter_->bytes() : 0;
  const bool again = index < count_;
  auto result = again ? checkpoint(keep_, function, input) : function(input);
  if (meter_ != nullptr) (again ? bytes_.recomputed : bytes_.kept) = meter_->bytes() - before;
  return result;
}

}  // namespace vernier
