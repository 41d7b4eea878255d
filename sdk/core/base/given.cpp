#include "given.h"

#include <atomic>

namespace vernier {

namespace {

std::atomic<const Given*> innermost = nullptr;

}  // namespace

Given::Given(const LaunchPlace* place, const Tensors* arrays)
    : place_(place), arrays_(arrays), outer_(innermost.exchange(this)) {}

Given::~Given() {
  innermost = outer_;
}

const LaunchPlace* Given::place() {
  const auto* now = innermost.load();
  return now == nullptr ? nullptr : now->place_;
}

torch::Tensor Given::array(const std::string& file) {
  const auto* now = innermost.load();
  if (now == nullptr || now->arrays_ == nullptr) return {};
  const auto found = now->arrays_->find(file);
  return found == now->arrays_->end() ? torch::Tensor() : found->second;
}

}  // namespace vernier
