#include "compact_weight.h"

#include <ATen/ops/where.h>

#include <memory>

namespace lora {

namespace {

constexpr std::int64_t block = 64;
constexpr double largest_int8 = 127, largest_fp8 = 448;

class Scales final : public torch::nn::Module {
 public:
  explicit Scales(torch::Tensor value) : weight(register_buffer("weight", std::move(value))) {}
  torch::Tensor weight;
};

// [rows, blocks, elements of a block]
torch::Tensor in_blocks(const torch::Tensor& matrix) {
  const auto columns = matrix.size(1), size = columns % block == 0 ? block : columns;
  return matrix.view({matrix.size(0), columns / size, size});
}

}  // namespace

CompactWeight::CompactWeight(torch::nn::Module& module, torch::Tensor weight, Form form)
    : module_(&module), weight_(std::move(weight)), form_(form) {
  const torch::NoGradGuard no_grad;
  const auto blocks = in_blocks(weight_.detach().to(torch::kFloat32).contiguous());
  const auto largest = blocks.abs().amax(-1) / (form == Form::int8 ? largest_int8 : largest_fp8);
  const auto scale = at::where(largest > 0, largest, 1.0);
  const auto steps = blocks / scale.unsqueeze(-1);
  auto stored =
      form == Form::int8 ? steps.round().to(torch::kInt8) : steps.to(torch::kFloat8_e4m3fn).view(torch::kUInt8);
  scale_ = module.register_module("base_scale", std::make_shared<Scales>(scale))->weight;
  weight_.set_requires_grad(false);
  weight_.set_data(stored.view(weight_.sizes()));
}

torch::Tensor CompactWeight::as(torch::ScalarType dtype) const {
  const torch::NoGradGuard no_grad;
  const auto blocks = in_blocks(weight_.detach());
  const auto numbers = form_ == Form::int8 ? blocks : blocks.view(torch::kFloat8_e4m3fn).to(torch::kFloat32);
  return (numbers * scale_.unsqueeze(-1)).to(dtype).view(weight_.sizes());
}

void CompactWeight::expand() {
  weight_.set_data(as(torch::kFloat32));
  module_->unregister_module("base_scale");
}

}  // namespace lora
