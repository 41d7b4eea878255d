#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <vernier/fused_kernels.h>

#include <cmath>
#include <mutex>

#include "base/kernels.h"
#include "cpu/kernels/bernoulli_kernel.h"
#include "operators.h"

namespace vernier {

namespace {

template <class Bits>
void fill(at::mt19937_data_pod& data, double p, Bits one, const at::Tensor& tensor) {
  Twister twister{data.state_.data(), data.next_, data.left_};
  const auto threshold = static_cast<std::int64_t>(std::ceil(std::ldexp(p, 53)));
  best_kernels<RandomKernels<Bits>>()->draw_bernoulli(twister, threshold, one,
                                                      static_cast<Bits*>(tensor.mutable_data_ptr()), tensor.numel());
  data.next_ = static_cast<std::uint32_t>(twister.next);
  data.left_ = static_cast<int>(twister.left);
}

void fill(const at::Tensor& tensor, double p, at::CPUGeneratorImpl& generator) {
  const std::lock_guard lock(generator.mutex_);
  auto engine = generator.engine();
  auto data = engine.data();
  const auto dtype = tensor.scalar_type();
  if (dtype == at::kFloat) fill<std::uint32_t>(data, p, 0x3F800000U, tensor);
  if (dtype == at::kBFloat16) fill<std::uint16_t>(data, p, 0x3F80U, tensor);
  if (dtype == at::kHalf) fill<std::uint16_t>(data, p, 0x3C00U, tensor);
  if (dtype == at::kBool) fill<std::uint8_t>(data, p, 1U, tensor);
  engine.set_data(data);
  generator.set_engine(engine);
}

// True if LibTorch draws as is assumed here. A build of it may use MKL's generator.
bool draws_alike() {
  static const bool does = [] {
    constexpr double p = 0.3;
    auto mine = at::detail::createCPUGenerator(1), theirs = at::detail::createCPUGenerator(1);
    const auto a = at::empty({1000}, at::kFloat);
    auto b = at::empty({1000}, at::kFloat);
    fill(a, p, *at::check_generator<at::CPUGeneratorImpl>(mine));
    at::cpu::bernoulli_(b, p, theirs);
    return a.equal(b) && mine.get_state().equal(theirs.get_state());
  }();
  return does;
}

at::Tensor& bernoulli_(at::Tensor& tensor, double p, std::optional<at::Generator> generator) {
  const auto dtype = tensor.scalar_type();
  const bool is_known = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kBool;
  if (!fused_kernels() || !has(Instructions::avx2) || !is_known || !tensor.is_contiguous() || tensor.numel() == 0 ||
      !(p >= 0) || p > 1 || !draws_alike()) {
    return at::cpu::bernoulli_(tensor, p, std::move(generator));
  }
  fill(tensor, p, *at::get_generator_or_default<at::CPUGeneratorImpl>(generator, at::detail::getDefaultCPUGenerator()));
  return tensor;
}

}  // namespace

void register_bernoulli(torch::Library& library) {
  library.impl("bernoulli_.float",
               static_cast<at::Tensor& (*)(at::Tensor&, double, std::optional<at::Generator>)>(&bernoulli_));
}

}  // namespace vernier
