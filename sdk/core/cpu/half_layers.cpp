// Convolutions and LSTM layers in 16 bits, where LibTorch has slow kernels for them or none.
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/_convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/mkldnn_rnn_layer_backward_cpu_dispatch.h>
#include <ATen/ops/mkldnn_rnn_layer_cpu_dispatch.h>
#include <vernier/fused_kernels.h>
#include <vernier/matmul.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "base/processor.h"
#include "cpu/one_thread.h"
#include "cpu/tasks.h"
#include "half_products.h"
#include "rows.h"

namespace vernier {

namespace {

struct Window {
  at::IntArrayRef stride, padding, dilation;
  bool is_transposed;
  at::IntArrayRef output_padding;
  std::int64_t groups;
};

// True where LibTorch would take a kernel that multiplies by its products, one image after another, or one of oneDNN
// that is slower than that of float32.
bool is_slow(const at::Tensor& x, const at::Tensor& weight, const Window& window) {
  const auto dtype = x.scalar_type();
  if ((dtype != at::kHalf && dtype != at::kBFloat16) || weight.scalar_type() != dtype || !fused_kernels() ||
      keeps_plain_products() || x.dim() < 3 || weight.dim() != x.dim() || x.numel() == 0 || weight.numel() == 0) {
    return false;
  }
  static const bool has_fast_half = cpu_has("amx_fp16");
  const auto symbolic = [](at::IntArrayRef all) { return c10::fromIntArrayRefSlow(all); };
  using at::native::ConvBackend;
  switch (at::native::select_conv_backend(x, weight, std::nullopt, symbolic(window.stride), symbolic(window.padding),
                                          symbolic(window.dilation), window.is_transposed,
                                          symbolic(window.output_padding), window.groups, std::nullopt)) {
    case ConvBackend::Slow2d:
    case ConvBackend::Slow3d:
    case ConvBackend::SlowDilated2d:
    case ConvBackend::SlowDilated3d:
    case ConvBackend::SlowTranspose2d:
    case ConvBackend::SlowTranspose3d:
      return true;
    case ConvBackend::Mkldnn:
    case ConvBackend::MkldnnTranspose:  // oneDNN's for float16 are a loop over single numbers without AMX-FP16
      return dtype == at::kHalf ? !has_fast_half : !gains_by_bfloat16();
    default:
      return false;
  }
}

// Parts of a batch, each of which one thread computes: the sums of oneDNN depend on the number of threads. Each part
// reads the weights, so there are few where these are large.
std::int64_t parts_of(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight) {
  const auto work = (x.numel() + y.numel()) / weight.numel();
  return std::min(x.size(0), std::clamp<std::int64_t>(work, 4, 16));
}

// Calls body(part, its first image, their number).
template <class Body>
void for_each_part(std::int64_t images, std::int64_t parts, const Body& body) {
  const auto size = (images + parts - 1) / parts;
  in_tasks((images + size - 1) / size, 0, [&](std::int64_t part, std::uintptr_t) {
    const OneThreadOfMkl one;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // the same as in the calling thread
    body(part, part * size, std::min(size, images - part * size));
  });
}

at::Tensor widened(const at::Tensor& x) {
  return x.to(at::kFloat);
}

// True for a convolution over three dimensions in bfloat16 whose filter reaches from one side beyond the other. oneDNN,
// as of LibTorch 2.11, computes the gradient of such a filter, and with AMX its result too, from memory that is not its
// own: they are wrong, or the program dies. So they are computed in float32.
bool is_faulty(const at::Tensor& x, const at::Tensor& weight, const Window& window) {
  return x.dim() == 5 && weight.dim() == 5 && x.scalar_type() == at::kBFloat16 &&
         weight.scalar_type() == at::kBFloat16 && !window.is_transposed && x.numel() > 0 && weight.numel() > 0 &&
         window.padding.front() > 0 && x.size(2) < (weight.size(2) - 1) * window.dilation.front() + 1;
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const Parameter& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool is_transposed,
                       at::IntArrayRef output_padding, std::int64_t groups, bool benchmark, bool deterministic,
                       bool cudnn, bool tf32) {
  const auto compute = [&](const at::Tensor& input, const at::Tensor& factor, const Parameter& term) {
    return at::compositeexplicitautograd::_convolution(input, factor, term, stride, padding, dilation, is_transposed,
                                                       output_padding, groups, benchmark, deterministic, cudnn, tf32);
  };
  const Window window{stride, padding, dilation, is_transposed, output_padding, groups};
  if ((bias && bias->defined() && bias->scalar_type() != x.scalar_type()) ||
      !(is_faulty(x, weight, window) || is_slow(x, weight, window))) {
    return compute(x, weight, bias);
  }
  const auto factor = widened(weight);
  const auto term = bias && bias->defined() ? Parameter(widened(*bias)) : bias;
  const auto parts = parts_of(x, x, weight);
  std::vector<at::Tensor> all(static_cast<std::size_t>(parts));
  for_each_part(x.size(0), parts, [&](auto part, auto first, auto count) {
    const auto y = compute(widened(x.narrow(0, first, count)), factor, term);
    all[static_cast<std::size_t>(part)] = y.to(x.scalar_type());
  });
  std::erase_if(all, [](const auto& y) { return !y.defined(); });
  return all.size() == 1 ? all.front() : at::cat(all);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, at::OptionalIntArrayRef bias_sizes,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool is_transposed,
    at::IntArrayRef output_padding, std::int64_t groups, std::array<bool, 3> wanted) {
  const auto compute = [&](const at::Tensor& above, const at::Tensor& input, const at::Tensor& factor) {
    return at::compositeexplicitautograd::convolution_backward(above, input, factor, bias_sizes, stride, padding,
                                                               dilation, is_transposed, output_padding, groups, wanted);
  };
  const Window window{stride, padding, dilation, is_transposed, output_padding, groups};
  if (dy.scalar_type() != x.scalar_type() || !(is_faulty(x, weight, window) || is_slow(x, weight, window))) {
    return compute(dy, x, weight);
  }
  const auto factor = widened(weight);
  const auto parts = parts_of(x, dy, weight);
  std::vector<std::array<at::Tensor, 3>> all(static_cast<std::size_t>(parts));
  for_each_part(x.size(0), parts, [&](auto part, auto first, auto count) {
    auto [dx, dw, db] = compute(widened(dy.narrow(0, first, count)), widened(x.narrow(0, first, count)), factor);
    if (wanted[0]) dx = dx.to(x.scalar_type());
    all[static_cast<std::size_t>(part)] = {dx, dw, db};
  });
  std::vector<at::Tensor> dx;
  std::array<at::Tensor, 3> sums;
  for (const auto& part : all) {
    if (part[0].defined()) dx.push_back(part[0]);
    for (const std::size_t i : {1, 2}) {
      if (part[i].defined()) sums[i] = sums[i].defined() ? sums[i].add_(part[i]) : part[i];
    }
  }
  const auto rounded = [&](const at::Tensor& sum) { return sum.defined() ? sum.to(weight.scalar_type()) : sum; };
  return {wanted[0] ? at::cat(dx) : at::Tensor(), rounded(sums[1]), rounded(sums[2])};
}

// A kernel that gets its tensors of `dtype` in float32, and whose results in float32 are rounded to it.
template <auto kernel>
struct InFloats;
template <class... Results, class... Arguments, std::tuple<Results...> (*kernel)(Arguments...)>
struct InFloats<kernel> {
  static std::tuple<Results...> call(Arguments... arguments) {
    const auto dtype = std::get<0>(std::tie(arguments...)).scalar_type();
    const bool has_kernel = dtype != at::kHalf && !lacks_fast_products(dtype);  // oneDNN trains none in float16
    if (has_kernel || !fused_kernels() || keeps_plain_products()) {
      return kernel(std::forward<Arguments>(arguments)...);
    }
    return std::apply([&](const auto&... y) { return std::tuple<Results...>(back(y, dtype)...); },
                      kernel(widened(arguments, dtype)...));
  }

 private:
  static at::Tensor back(const at::Tensor& y, at::ScalarType dtype) {
    return y.defined() && y.scalar_type() == at::kFloat ? y.to(dtype) : y;
  }
  static at::Tensor widened(const at::Tensor& x, at::ScalarType dtype) {
    return x.defined() && x.scalar_type() == dtype ? x.to(at::kFloat) : x;
  }
  static Parameter widened(const Parameter& x, at::ScalarType dtype) { return x ? Parameter(widened(*x, dtype)) : x; }
  template <class Other>
  static const Other& widened(const Other& x, at::ScalarType) {
    return x;
  }
};

// Casts what `lower_precision_fp` casts, where fused kernels are in use.
struct Cast {
  template <class... Arguments>
  static at::Tensor call(const at::Tensor& x, const at::Tensor& weight, const Parameter& bias, Arguments... arguments) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
    if (!fused_kernels() || keeps_plain_products()) {
      return at::_convolution(x, weight, bias, std::forward<Arguments>(arguments)...);
    }
    const auto cast = [dtype = at::autocast::get_autocast_dtype(at::kCPU)](const auto& tensor) {
      return at::autocast::cached_cast(dtype, tensor, at::kCPU);
    };
    return at::_convolution(cast(x), cast(weight), cast(bias), std::forward<Arguments>(arguments)...);
  }
};

}  // namespace

void register_half_layers(torch::Library& library) {
  library.impl("_convolution", &convolution);
  library.impl("convolution_backward", &convolution_backward);
  // Traced models call _convolution, which LibTorch's list for autocast on a CPU lacks: it would be in float32.
  static auto* casts =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastCPU, __FILE__, __LINE__);
  casts->impl("_convolution", &Cast::call<at::IntArrayRef, at::IntArrayRef, at::IntArrayRef, bool, at::IntArrayRef,
                                          std::int64_t, bool, bool, bool, bool>);
  library.impl("mkldnn_rnn_layer", &InFloats<&at::cpu::mkldnn_rnn_layer>::call);
  library.impl("mkldnn_rnn_layer_backward", &InFloats<&at::cpu::mkldnn_rnn_layer_backward>::call);
}

}  // namespace vernier
