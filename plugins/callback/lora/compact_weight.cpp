#include "compact_weight.h"

#include <ATen/ops/bucketize.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>

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

// The numbers one after the other as [blocks, 64]. Zeros fill the last block.
torch::Tensor in_blocks(const torch::Tensor& matrix) {
  const auto flat = matrix.flatten();
  const auto missing = (block - flat.numel() % block) % block;
  return (missing == 0 ? flat : at::constant_pad_nd(flat, {0, missing})).view({-1, block});
}

// The numbers of NF4: Dettmers et al. 2023, arXiv:2305.14314, appendix E.
torch::Tensor nf4_numbers() {
  return torch::tensor({-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F, -0.28444138169288635F,
                        -0.18477343022823334F, -0.09105003625154495F, 0.0F, 0.07958029955625534F, 0.16093020141124725F,
                        0.24611230194568634F, 0.33791524171829224F, 0.44070982933044434F, 0.5626170039176941F,
                        0.7229568362236023F, 1.0F});
}

// Two numbers to a byte. A number takes the nearest of the 16.
torch::Tensor nf4_bytes(const torch::Tensor& numbers) {
  const auto of = nf4_numbers();
  const auto middles = (of.slice(0, 0, 15) + of.slice(0, 1)) / 2;
  const auto codes = at::bucketize(numbers, middles.to(numbers.device()), /*out_int32=*/true).to(torch::kUInt8);
  const auto pairs = codes.view({-1, 2});
  return pairs.select(1, 0) * 16 + pairs.select(1, 1);
}

// The two numbers of each byte, as 8 bytes: int64 [256].
torch::Tensor nf4_pairs() {
  const auto of = nf4_numbers();
  const auto all = torch::arange(256, torch::kInt64);
  const auto pairs = at::stack({of.index_select(0, all.floor_divide(16)), of.index_select(0, all.remainder(16))}, 1);
  return pairs.view(torch::kInt64).flatten();
}

}  // namespace

Form form_of(const std::string& base) {
  return base == "int8" ? Form::int8 : base == "fp8" ? Form::fp8 : Form::nf4;
}

CompactWeight::CompactWeight(torch::nn::Module& module, torch::Tensor weight, Form form)
    : module_(&module), weight_(std::move(weight)), sizes_(weight_.sizes().vec()), form_(form) {
  if (form == Form::nf4 && sizes_[1] % 2 == 1) {
    vernier::refuse(c10::str("a byte has two numbers of a row, and the rows have ", sizes_[1]));
  }
  const torch::NoGradGuard no_grad;
  const auto blocks = in_blocks(weight_.detach().to(torch::kFloat32).contiguous());
  const double largest = form == Form::int8 ? largest_int8 : form == Form::fp8 ? largest_fp8 : 1;
  const auto scales = blocks.abs().amax(-1) / largest;
  const auto scale = at::where(scales > 0, scales, 1.0);
  const auto steps = blocks / scale.unsqueeze(-1);
  const auto stored = form == Form::int8  ? steps.round().to(torch::kInt8)
                      : form == Form::fp8 ? steps.to(torch::kFloat8_e4m3fn).view(torch::kUInt8)
                                          : nf4_bytes(steps);
  scale_ = module.register_module("base_scale", std::make_shared<Scales>(scale))->weight;
  weight_.set_requires_grad(false);
  const auto bytes = weight_.numel() / (form == Form::nf4 ? 2 : 1);
  weight_.set_data(stored.flatten().narrow(0, 0, bytes).view({sizes_[0], -1}).contiguous());
}

torch::Tensor CompactWeight::as(torch::ScalarType dtype) const {
  const torch::NoGradGuard no_grad;
  const auto stored = weight_.detach();
  const auto numbers = form_ == Form::int8  ? stored.to(torch::kFloat32)
                       : form_ == Form::fp8 ? stored.view(torch::kFloat8_e4m3fn).to(torch::kFloat32)
                                            : nf4_of(stored);
  return in_blocks(numbers).mul_(scale_.unsqueeze(-1)).to(dtype).flatten().narrow(0, 0, numbers.numel()).view(sizes_);
}

// The table is copied to a device once, because a copy waits for it.
torch::Tensor CompactWeight::nf4_of(const torch::Tensor& bytes) const {
  if (!nf4_pairs_.defined() || nf4_pairs_.device() != bytes.device()) nf4_pairs_ = nf4_pairs().to(bytes.device());
  return nf4_pairs_.index_select(0, bytes.flatten().to(torch::kInt32)).view(torch::kFloat32).view(sizes_);
}

torch::Tensor CompactWeight::like(const torch::Tensor& view, torch::ScalarType dtype) const {
  const auto numbers = as(dtype);
  const bool is_same = view.sizes() == weight_.sizes() && view.strides() == weight_.strides();
  return is_same ? numbers : numbers.t();
}

void CompactWeight::expand() {
  weight_.set_data(as(torch::kFloat32));
  module_->unregister_module("base_scale");
}

}  // namespace lora
