#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <vernier/lab/quantizer.h>

namespace vernier {

const char* slot_name(Slot slot) {
  static constexpr const char* names[] = {"y.x", "y.w", "dx.g", "dx.w", "dw.x", "dw.g", "weight", "state"};
  return names[static_cast<int>(slot)];
}

Quantizer::~Quantizer() = default;

std::int64_t Quantizer::multiple() const {
  return 1;
}

bool Quantizer::has_gradient() const {
  return false;
}

torch::Tensor Quantizer::gradient(const Operand&, const torch::Tensor& of_result) {
  return of_result;
}

bool Quantizer::serves_both(bool) const {
  return false;
}

bool Quantizer::draws() const {
  return true;
}

bool Quantizer::is_unbiased() const {
  return false;
}

void Quantizer::end_update() {}

torch::Tensor uniform_like(const torch::Tensor& x, std::uint64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  return at::rand(x.sizes(), generator, at::kFloat).to(x.device());
}

}  // namespace vernier
