#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/plugin.h>
#include <vernier/random_state.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>

#include "base/gradients_of_operators.h"
#include "gelu_mlp_by.h"
#include "trace/interception.h"

namespace vernier {

namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t scratch_bytes = 32 << 20;  // LibTorch gives cuBLASLt as much on Hopper
constexpr std::size_t most_shapes = 8;

Tensor by_operators(const Tensor& x, const Tensor& weight_in, const Tensor& bias_in, const Tensor& weight_out,
                    const Tensor& bias_out) {
  return at::linear(at::gelu(at::linear(x, weight_in.t(), bias_in), "tanh"), weight_out.t(), bias_out);
}

// Returns the tensor as a contiguous matrix at a multiple of 256, as LibTorch's allocator gives.
Tensor matrix_of(const Tensor& tensor) {
  const auto matrix = tensor.detach().reshape({-1, tensor.size(-1)}).contiguous();
  return reinterpret_cast<std::uintptr_t>(matrix.const_data_ptr()) % 256 == 0 ? matrix : matrix.clone();
}

// A matrix that is stored turned.
struct Turned {
  const Tensor& stored;
};

// Multiplies a [rows, inner] by b [inner, columns]. `how` names the bias, GELU or sums that the same call computes.
class Multiply {
 public:
  explicit Multiply(const gpu::Library& library) : library_(library) {}
  Tensor operator()(const Tensor& a, const Tensor& b, gpu::Product how = {}) const {
    how.rows = a.size(0);
    how.inner = a.size(1);
    how.columns = b.size(1);
    return compute(a, b, how);
  }
  Tensor operator()(const Tensor& a, Turned b, gpu::Product how = {}) const {
    how.rows = a.size(0);
    how.inner = a.size(1);
    how.columns = b.stored.size(0);
    how.is_b_turned = true;
    return compute(a, b.stored, how);
  }
  Tensor operator()(Turned a, const Tensor& b, gpu::Product how = {}) const {
    how.rows = a.stored.size(1);
    how.inner = a.stored.size(0);
    how.columns = b.size(1);
    how.is_a_turned = true;
    return compute(a.stored, b, how);
  }

 private:
  Tensor compute(const Tensor& a, const Tensor& b, gpu::Product how) const {
    const auto to = at::empty({how.rows, how.columns}, a.options());
    const auto scratch = at::empty({scratch_bytes}, a.options().dtype(torch::kByte));
    how.kind = kind_of(a.scalar_type());
    how.a = a.const_data_ptr();
    how.b = b.const_data_ptr();
    how.to = to.mutable_data_ptr();
    how.scratch = scratch.mutable_data_ptr();
    how.scratch_bytes = scratch_bytes;
    require_launched(library_.multiply(how, stream_of(a.device())), "multiply");
    return to;
  }

  const gpu::Library& library_;
};

struct MlpFunction final : torch::autograd::Function<MlpFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight_in, const Tensor& bias_in,
                        const Tensor& weight_out, const Tensor& bias_out, const gpu::Library* library) {
    const c10::DeviceGuard guard(x.device());
    const Multiply multiply(*library);
    gpu::Product first{}, second{};
    const auto inputs = at::empty({x.size(0), weight_in.size(1)}, x.options());
    const auto terms_in = matrix_of(bias_in), terms_out = matrix_of(bias_out);
    first.bias = terms_in.const_data_ptr();
    first.inputs_of_gelu = inputs.mutable_data_ptr();
    second.bias = terms_out.const_data_ptr();
    const auto hidden = multiply(matrix_of(x), matrix_of(weight_in), first);
    auto y = multiply(hidden, matrix_of(weight_out), second);
    context->save_for_backward({x, weight_in, bias_in, weight_out, bias_out, inputs, hidden});
    context->saved_data["library"] = reinterpret_cast<std::int64_t>(library);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& slopes) {
    const auto saved = context->get_saved_variables();
    if (at::GradMode::is_enabled()) {
      const variable_list inputs(saved.begin(), saved.begin() + 5);
      auto gradients = gradients_of_operators(inputs, slopes, [](const variable_list& of) {
        return variable_list{by_operators(of[0], of[1], of[2], of[3], of[4])};
      });
      gradients.resize(6);
      return gradients;
    }
    const auto &x = saved[0], &weight_in = saved[1], &weight_out = saved[3], &inputs = saved[5], &hidden = saved[6];
    const c10::DeviceGuard guard(x.device());
    const Multiply multiply(*reinterpret_cast<const gpu::Library*>(context->saved_data["library"].toInt()));
    const auto of_y = matrix_of(slopes[0].to(x.scalar_type()));
    variable_list gradients(6);
    const auto wants = [&](std::size_t i) { return context->needs_input_grad(i); };
    if (wants(3) || wants(4)) {
      gpu::Product with_bias{};
      gradients[4] = at::empty_like(saved[4], at::MemoryFormat::Contiguous);
      with_bias.sums = gradients[4].mutable_data_ptr();
      gradients[3] = multiply(Turned{hidden}, of_y, with_bias);
    }
    if (!wants(0) && !wants(1) && !wants(2)) return gradients;
    gpu::Product through_gelu{};
    gradients[2] = at::empty_like(saved[2], at::MemoryFormat::Contiguous);
    through_gelu.slopes_of_gelu = inputs.const_data_ptr();
    through_gelu.sums = gradients[2].mutable_data_ptr();
    const auto of_hidden = multiply(of_y, Turned{matrix_of(weight_out)}, through_gelu);
    if (wants(1)) gradients[1] = multiply(Turned{matrix_of(x)}, of_hidden);
    if (wants(0)) gradients[0] = multiply(of_hidden, Turned{matrix_of(weight_in)});
    return gradients;
  }
};

// The shapes that were compared until now.
class Shapes {
 public:
  bool are_right(const gpu::Library& library, const Tensor& x, const GeluMlp& layers) {
    const std::array key{std::int64_t{x.get_device()},
                         static_cast<std::int64_t>(x.scalar_type()),
                         x.size(0),
                         x.size(1),
                         layers.weight_in.size(1),
                         layers.weight_out.size(1)};
    {
      const std::lock_guard guard(mutex_);
      const auto found = all_.find(key);
      if (found != all_.end()) return found->second;
      if (all_.size() >= most_shapes) return false;
    }
    const bool is_right = compare(library, x, layers);  // other threads may wait for the same device meanwhile
    const std::lock_guard guard(mutex_);
    return all_.emplace(key, is_right).first->second;
  }

 private:
  bool compare(const gpu::Library& library, const Tensor& x, const GeluMlp& layers) {
    std::string why = "its results differ from theirs";
    try {
      if (gelu_mlp_is_right(library, x, layers)) return true;
    } catch (const c10::Error& error) {  // such as too little memory for the comparison
      why = error.what_without_backtrace();
    } catch (const Error& error) {
      why = error.what();
    }
    if (!is_said_.exchange(true)) {
      log(Level::warning, "cuda",
          "LibTorch's operators compute the MLP, because cuBLASLt cannot be used for it: " + why);
    }
    return false;
  }

  std::mutex mutex_;
  std::map<std::array<std::int64_t, 6>, bool> all_;
  std::atomic<bool> is_said_ = false;
};

}  // namespace

Tensor gelu_mlp_by(const gpu::Library& library, const Tensor& x, const GeluMlp& layers) {
  return MlpFunction::apply(x, layers.weight_in, layers.bias_in, layers.weight_out, layers.bias_out, &library);
}

bool gelu_mlp_is_right(const gpu::Library& library, const Tensor& x, const GeluMlp& layers) {
  const at::AutoGradMode records(true);  // the first pass of activation checkpointing records none
  const auto generator = own_generator(1, x.device());
  const auto numbers = [&](const Tensor& like, double least) {
    const auto options = x.options().dtype(torch::kFloat32).requires_grad(false);
    return at::rand(like.sizes(), generator, options).add_(least).to(like.scalar_type());
  };
  const auto weight = [&](const Tensor& like) {
    return numbers(like, -0.5).div_(std::sqrt(static_cast<double>(like.size(0)))).requires_grad_();
  };
  const auto a = numbers(x, -0.5).requires_grad_();
  const GeluMlp b{weight(layers.weight_in), numbers(layers.bias_in, -0.5).requires_grad_(), weight(layers.weight_out),
                  numbers(layers.bias_out, -0.5).requires_grad_()};
  const variable_list leaves{a, b.weight_in, b.bias_in, b.weight_out, b.bias_out};
  const auto theirs = by_operators(a, b.weight_in, b.bias_in, b.weight_out, b.bias_out);
  // Slopes of one sign, because sums that cancel have no digits to compare. They are small, so that float16 holds sums.
  const auto slopes = numbers(theirs, 0).div_(64);
  const auto all_of = [&](const Tensor& y) {
    auto all = torch::autograd::grad({y}, leaves, {slopes});
    all.push_back(y.detach());
    return all;
  };
  const auto right = all_of(theirs);
  const auto ours = all_of(gelu_mlp_by(library, a, b)), again = all_of(gelu_mlp_by(library, a, b));
  const auto is_near = [](const Tensor& found, const Tensor& exact) {
    const auto wide = exact.to(torch::kFloat32);
    return (found.to(torch::kFloat32) - wide).norm().item<double>() <= 0.02 * wide.norm().item<double>();
  };
  return std::ranges::equal(ours, right, is_near) &&
         std::ranges::equal(ours, again, [](const Tensor& one, const Tensor& two) { return at::equal(one, two); });
}

Tensor gelu_mlp(const Tensor& x, const GeluMlp& layers) {
  const bool is_asked = x.is_cuda() && at::autocast::is_autocast_enabled(at::kCUDA) && is_training_forward();
  if (!is_asked || !intercepting().empty()) return {};
  const auto dtype = at::autocast::get_autocast_dtype(at::kCUDA);
  if (dtype != torch::kBFloat16 && dtype != torch::kHalf) return {};
  const auto is_taken = [&](const Tensor& tensor, std::int64_t dims) {
    const bool is_known = tensor.scalar_type() == torch::kFloat32 || tensor.scalar_type() == dtype;
    return is_known && tensor.device() == x.device() && (tensor.dim() == dims || dims == 0) && tensor.dim() > 0 &&
           tensor.size(-1) % 8 == 0 && tensor.numel() > 0 && !tensor._fw_grad(0).defined();
  };
  const auto& [weight_in, bias_in, weight_out, bias_out] = layers;
  if (!is_taken(x, 0) || !is_taken(weight_in, 2) || !is_taken(bias_in, 1) || !is_taken(weight_out, 2) ||
      !is_taken(bias_out, 1) || weight_in.size(0) != x.size(-1) || bias_in.size(0) != weight_in.size(1) ||
      weight_out.size(0) != weight_in.size(1) || bias_out.size(0) != weight_out.size(1)) {
    return {};
  }
  const auto* const library = gpu_library(x.device());
  if (library == nullptr) return {};
  // The operators see weights through a view, which autocast does not keep a copy of.
  const GeluMlp halves{weight_in.to(dtype), bias_in.to(dtype), weight_out.to(dtype), bias_out.to(dtype)};
  const auto rows = x.to(dtype).reshape({-1, x.size(-1)});
  static auto* const shapes = new Shapes();
  if (!shapes->are_right(*library, rows, halves)) return {};
  auto sizes = x.sizes().vec();
  sizes.back() = halves.bias_out.size(0);
  return gelu_mlp_by(*library, rows, halves).view(sizes);
}

}  // namespace vernier
