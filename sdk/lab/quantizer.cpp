#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <vernier/lab/quantizer.h>

namespace vernier {

const char* slot_name(Slot slot) {
  static constexpr const char* names[] = {"y.x", "y.w", "dx.g", "dx.w", "dw.x", "dw.g", "weight", "state", "message"};
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

UnitOperand Quantizer::rounded(Operand of) {
  const auto size = of.numbers.size(-1), missing = (multiple() - size % multiple()) % multiple();
  if (missing != 0) of.numbers = at::constant_pad_nd(of.numbers, {0, missing});
  const auto y = quantize(of);
  const auto &numbers = y.numbers, &x = of.numbers;
  if (!numbers.defined() || numbers.sizes() != x.sizes() || numbers.scalar_type() != at::kFloat) {
    const auto found = numbers.defined() ? c10::str(numbers.scalar_type(), " of shape ", numbers.sizes()) : "nothing";
    throw Error(c10::str(id(), ": quantize() must return float32 of shape ", x.sizes(), ", and returned ", found),
                Error::Kind::plugin);
  }
  return missing == 0 ? y : mapped(y, [&](const torch::Tensor& tensor) { return tensor.narrow(-1, 0, size); });
}

torch::Tensor Quantizer::message_of(const torch::Tensor& numbers, const std::string& key, std::uint64_t seed) {
  if (numbers.numel() == 0) return numbers;
  const auto rows = numbers.dim() < 2 ? 1 : numbers.size(0);
  const auto y = rounded({.numbers = numbers.reshape({rows, -1}),
                          .slot = Slot::message,
                          .key = key + "/" + slot_name(Slot::message),
                          .is_recorded = true,
                          .seed = seed,
                          .product_seed = seed});
  return value(y).view(numbers.sizes());
}

TensorFormat read_format(Options& options) {
  const auto name = options.get("format", "e4m3", "number format");
  try {
    auto format = tensor_format(name);
    if (format.element.kind != NumberFormat::Kind::power_of_two) return format;
  } catch (const Error& error) {
    options.refuse("format", std::string("is refused: ") + error.what());
  }
  options.refuse("format", "is a format of scales, which has neither sign nor zero; take e4m3");
}

torch::Tensor uniform_like(const torch::Tensor& x, std::uint64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  return at::rand(x.sizes(), generator, at::kFloat).to(x.device());
}

}  // namespace vernier
