#include "bounds.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>

namespace vernier::compile {

namespace {

bool is_wide(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble;
}

constexpr double unit = 0x1p-24;     // a rounding to float32, of a number between 1 and 2
constexpr std::uint64_t others = 3;  // interpretations with other roundings

// True for logarithms of sums of exponentials. The sum is at least 1, so its rounding changes the logarithm by a
// rounding of 1, however small that is.
bool is_logarithm(const Tape::Call& call) {
  const auto& name = call.op.schema().name();
  return name == "vernier::cross_entropy" || name == "aten::_log_softmax" || name == "aten::logsumexp";
}

// The operators of a tape, on memory of their own: in float64, in float32, or in float32 with other roundings, if every
// result of an operator changes by up to one rounding. seed: of these changes; 0: none.
class Interpreter {
 public:
  explicit Interpreter(bool in_float64, std::uint64_t seed = 0) : in_float64_(in_float64) {
    if (seed != 0) random_ = at::make_generator<at::CPUGeneratorImpl>(seed);
  }

  void run(const Calls& calls) {
    const at::AutoDispatchBelowAutograd no_graph;
    const at::AutoGradMode keeps_workspaces(true);  // oneDNN's LSTM writes none without gradients
    const c10::impl::ExcludeDispatchKeyGuard no_interceptors(c10::DispatchKey::TESTING_ONLY_GenericMode);
    for (const auto& call : calls) {
      const auto stack = called(call);
      const double least = is_logarithm(call) ? unit : 0;
      for (std::size_t i = 0; i < stack.size(); ++i) take(stack[i], call.results[i], least);
    }
  }

  // False for tensors that no operator has used.
  bool has(const at::Tensor& tensor) const { return tensor.defined() && memory_.contains(memory_of(tensor)); }
  // Returns this interpretation's own copy of a tensor of the tape. The first use makes it.
  at::Tensor own(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
    auto& flat = memory_[memory_of(tensor)];
    if (!flat.defined()) {
      flat = made_for(tensor);
      const auto whole = tensor.as_strided(flat.sizes(), flat.strides(), 0);
      flat.copy_(whole);
    }
    return view(flat, tensor);
  }

 private:
  // Some operators compute in float32 alone, as oneDNN's do. The other interpretations still say how they err.
  Tape::Values called(const Tape::Call& call) {
    const auto& arguments = call.op.schema().arguments();
    Tape::Values stack;
    for (std::size_t i = 0; i < arguments.size(); ++i) stack.push_back(own(call.arguments[i], arguments[i]));
    const auto in_float32 = [](at::Tensor tensor) {
      return tensor.defined() && tensor.scalar_type() == at::kDouble ? tensor.to(at::kFloat) : tensor;
    };
    if (in_float64_ && is_recurrent(call)) return recurrent_in_float64(call, stack);
    auto narrow = stack;
    try {
      call.op.callBoxed(stack);
      return stack;
    } catch (const c10::Error&) {
      if (!in_float64_ || call.op.schema().is_mutable()) throw;
    }
    for (auto& value : narrow) {
      if (value.isTensor()) {
        value = in_float32(value.toTensor());
      } else if (value.isTensorList()) {
        auto all = value.toTensorVector();
        std::ranges::transform(all, all.begin(), in_float32);
        value = all;
      }
    }
    call.op.callBoxed(narrow);
    return narrow;
  }

  at::ScalarType dtype_of(at::ScalarType dtype) const { return in_float64_ && is_wide(dtype) ? at::kDouble : dtype; }
  at::Tensor made_for(const at::Tensor& tensor) const {
    const auto count = static_cast<std::int64_t>(tensor.storage().nbytes() / tensor.element_size());
    return at::zeros({count}, tensor.options().dtype(dtype_of(tensor.scalar_type())));
  }
  at::Tensor view(const at::Tensor& flat, const at::Tensor& tensor) const {
    if (flat.scalar_type() != dtype_of(tensor.scalar_type())) throw Error("one memory has numbers of two dtypes");
    return flat.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  }

  c10::IValue own(const c10::IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) return own(value.toTensor());
    if (value.isTensorList()) {
      auto all = value.toTensorVector();
      for (auto& tensor : all) tensor = own(tensor);
      return all;
    }
    if (value.isList() && argument.type()->str().find("Tensor") != std::string::npos) {
      throw Error("its list of optional tensors is not interpreted");
    }
    if (value.isInt() && argument.real_type()->str().find("ScalarType") != std::string::npos) {
      return static_cast<std::int64_t>(dtype_of(static_cast<at::ScalarType>(value.toInt())));
    }
    return value;
  }

  // Puts a result into the own memory of the recorded one. Views and results in place have it already. least: the least
  // rounding of a number.
  void take(const c10::IValue& now, const c10::IValue& recorded, double least) {
    if (now.isTensorList()) {
      const auto all = now.toTensorVector(), tape = recorded.toTensorVector();
      for (std::size_t i = 0; i < all.size(); ++i) take(all[i], tape[i], least);
    } else if (now.isTensor() && now.toTensor().defined()) {
      const auto tensor = recorded.toTensor();
      if (now.toTensor().numel() == 0) return;
      auto& flat = memory_[memory_of(tensor)];
      if (!flat.defined()) flat = made_for(tensor);
      const auto to = view(flat, tensor);
      const bool is_view = to.const_data_ptr() == now.toTensor().const_data_ptr();
      if (!is_view) to.copy_(now.toTensor());
      if (!is_view && random_.defined() && tensor.is_floating_point()) {
        to.mul_(at::rand(to.sizes(), random_, to.options()).mul_(2 * unit).add_(1 - unit));
        to.add_(at::rand(to.sizes(), random_, to.options()).mul_(2 * least).sub_(least));
      }
    }
  }

  bool in_float64_;
  at::Generator random_;
  std::map<const void*, at::Tensor> memory_;
};

// The summands of the longest sum: of a product, or where a result has fewer numbers than an argument.
double longest_sum(const Calls& calls) {
  double longest = 1;
  for (const auto& call : calls) {
    double arguments = 0, results = 1;
    each_tensor(call.arguments, [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.is_floating_point()) return;
      arguments = std::max(arguments, static_cast<double>(tensor.numel()));
      if (tensor.dim() > 1) longest = std::max(longest, static_cast<double>(tensor.size(-1)));
    });
    each_tensor(call.results, [&](const at::Tensor& tensor) {
      if (tensor.defined()) results = std::max(results, static_cast<double>(tensor.numel()));
    });
    longest = std::max(longest, arguments / results);
  }
  return longest;
}

}  // namespace

std::vector<double> bounds_of(const Calls& calls, const std::vector<at::Tensor>& results) {
  const at::NoGradGuard no_grad;
  Interpreter wide(true);
  wide.run(calls);
  const auto is_bounded = [&](const at::Tensor& result) {
    return wide.has(result) && result.is_floating_point() && result.numel() > 0;
  };
  const auto exact = [&](const at::Tensor& result) { return wide.own(result.detach()).to(at::kDouble); };
  const auto largest = [](const at::Tensor& x) { return x.abs().nan_to_num(0, 0, 0).max().item<double>(); };
  const double factor = 1 + std::sqrt(longest_sum(calls));
  std::vector<double> bounds(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (is_bounded(results[i])) bounds[i] = factor * unit * largest(exact(results[i]));
  }
  for (std::uint64_t seed = 0; seed <= others; ++seed) {  // one after the other: each has a copy of the weights
    Interpreter narrow(false, seed);
    narrow.run(calls);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!is_bounded(results[i])) continue;
      const auto close = narrow.own(results[i].detach()).to(at::kDouble);
      bounds[i] = std::max(bounds[i], factor * largest(close - exact(results[i])));
    }
  }
  return bounds;
}

}  // namespace vernier::compile
