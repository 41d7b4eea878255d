#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/draft/model_parts.h>
#include <vernier/error.h>
#include <vernier/grad_norm.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/kernels.h"
#include "base/parallel.h"
#include "gpu_optimizers.h"
#include "grad_norm_operators.h"
#include "optim/kernels/square_kernel.h"
#include "tensor_lists.h"

namespace vernier {

namespace {

// By kind, without empty tensors: they add nothing and have no maximum.
std::vector<TensorVector> sort(const TensorVector& gradients) {
  TensorVector kept;
  kept.reserve(gradients.size());
  for (const auto& gradient : gradients) {
    if (gradient.layout() != torch::kStrided) throw Error("the norm of a sparse gradient is not supported");
    if (gradient.numel() != 0) kept.push_back(gradient);
  }
  return by_device_and_dtype(kept);
}

// Those whose values this rank has.
TensorVector here(TensorVector tensors) {
  std::erase_if(tensors, draft::is_elsewhere);
  return tensors;
}

// One 0-dim norm a tensor, in float32 or wider: in float16 the squares of a large gradient overflow.
TensorVector norms(const TensorVector& tensors, double p) {
  const auto dtype = tensors.front().scalar_type();
  const bool is_half = dtype == torch::kHalf || dtype == torch::kBFloat16;
  const auto out = is_half ? torch::kFloat32 : dtype;
  const auto norms_of = [&](const TensorVector& some) {
    return is_half ? at::_foreach_norm(some, p, torch::kFloat32) : at::_foreach_norm(some, p);
  };
  if (!draft::GradientParts::exist() || draft::ModelParts::current() != nullptr) {
    const auto own = here(tensors);
    return own.empty() ? TensorVector{at::zeros({}, tensors.front().options().dtype(out))} : norms_of(own);
  }
  const auto all = at::zeros({std::ssize(tensors)}, tensors.front().options().dtype(out));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!draft::is_elsewhere(tensors[i])) all[static_cast<std::int64_t>(i)].copy_(norms_of({tensors[i]}).front());
  }
  draft::GradientParts::sum(all);
  return all.unbind();
}

torch::Tensor total_norm(const std::vector<TensorVector>& kinds, double p) {
  if (!(p > 0)) throw Error(c10::str("the order of a norm must be positive, not ", p), Error::Kind::configuration);
  const auto* parts = draft::ModelParts::current();
  if (kinds.empty() && parts == nullptr) return torch::zeros({}, torch::kFloat32);
  auto all = kinds.empty() ? TensorVector{at::zeros({}, torch::kFloat32)} : norms(kinds.front(), p);
  for (std::size_t i = 1; i < kinds.size(); ++i) {
    for (const auto& norm : norms(kinds[i], p)) all.push_back(moved(norm, all.front().device()));
  }
  const auto total = at::linalg_vector_norm(at::stack(all), p);  // stack promotes to the widest dtype
  // A gradient may have a part on each rank, of any dtype or empty, and p need not be 2.
  return parts == nullptr ? total : at::linalg_vector_norm(parts->of_all_ranks(total.to(torch::kFloat64)), p);
}

// Computes on the host what the operators of the other branch below compute, in the dtype of the norm; nan stays nan.
template <class Real>
double clip_factor(Real norm, double max_norm) {
  return std::min(Real(1) / (norm + Real(1e-6)) * static_cast<Real>(max_norm), Real(1));
}

constexpr std::int64_t part_size = 16384;  // elements: one sum

double sum_on_host(const TensorVector& gradients) {
  const auto sum = best_kernels<SquareKernels>()->sum;
  std::vector<SquarePart> parts;
  TensorVector kept;
  for (const auto& each : gradients) {
    const auto gradient = each.is_non_overlapping_and_dense() ? each : kept.emplace_back(each.contiguous());
    if (gradient._is_zerotensor()) continue;  // it has no memory
    const bool is_here = !draft::is_elsewhere(gradient);
    const auto* data = is_here ? gradient.const_data_ptr<float>() : nullptr;
    for (std::int64_t i = 0; i < gradient.numel(); i += part_size) {
      parts.push_back({is_here ? data + i : nullptr, std::min(part_size, gradient.numel() - i)});
    }
  }
  const auto of_parts = at::zeros({std::ssize(parts)}, torch::kFloat64);
  auto* sums = of_parts.mutable_data_ptr<double>();
  for_each_chunk(parts.size(), /*chunks_a_thread=*/8, [&](std::size_t i) {
    const auto k = parts.size() - 1 - i;  // from the end: what is in the cache then is what the optimizer begins with
    auto part = parts[k];
    if (part.first == nullptr) return;
    part.next = parts[k > 0 ? k - 1 : 0].first;
    sums[k] = sum(part);
  });
  const auto* model_parts = draft::ModelParts::current();  // each rank may have another number of elements
  if (model_parts == nullptr) draft::GradientParts::sum(of_parts);
  double total = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) total += sums[i];
  return model_parts == nullptr
             ? total
             : model_parts->of_all_ranks(at::scalar_tensor(total, torch::kFloat64)).sum().item<double>();
}

}  // namespace

torch::Tensor grad_norm(const TensorVector& gradients, double p) {
  const torch::NoGradGuard no_grad;
  return total_norm(sort(gradients), p);
}

torch::Tensor clip_grad_norm_(const TensorVector& gradients, double max_norm, double p) {
  const torch::NoGradGuard no_grad;
  const auto kinds = sort(gradients);
  auto norm = total_norm(kinds, p);
  if (norm.is_cpu()) {
    const double factor = norm.scalar_type() == torch::kFloat64 ? clip_factor(norm.item<double>(), max_norm)
                                                                : clip_factor(norm.item<float>(), max_norm);
    if (factor == 1) return norm;  // the usual case
    for (const auto& kind : kinds) {
      if (const auto own = here(kind); !own.empty()) at::_foreach_mul_(own, factor);
    }
  } else {
    const auto factor = ((norm + 1e-6).reciprocal() * max_norm).clamp_max(1.0);  // the division that Python computes
    for (const auto& kind : kinds) at::_foreach_mul_(kind, moved(factor, kind.front().device()));
  }
  return norm;
}

bool can_inspect(const TensorVector& gradients) {
  return std::all_of(gradients.begin(), gradients.end(), [&](const torch::Tensor& gradient) {
    return gradient.layout() == torch::kStrided && gradient.scalar_type() == torch::kFloat32 &&
           gradient.device() == gradients.front().device();
  });
}

Inspected inspect_gradients(const TensorVector& gradients) {
  const torch::NoGradGuard no_grad;
  if (!can_inspect(gradients)) throw Error("the gradients are not all dense, float32 and on one device");
  if (!gradients.empty() && !gradients.front().is_cpu()) {
    const auto* const library = gpu_library(gradients.front().device());
    return library != nullptr ? inspect_on_gpu(*library, gradients) : inspect_by_operators(gradients);
  }
  const double sum = sum_on_host(gradients);
  return {torch::scalar_tensor(std::isfinite(sum) ? 0.0 : 1.0, torch::kFloat32),
          torch::scalar_tensor(std::sqrt(sum), torch::kFloat64),
          {}};
}

Inspected inspect_by_operators(const TensorVector& gradients) {
  const torch::NoGradGuard no_grad;
  const auto kinds = sort(gradients);
  if (kinds.empty()) {
    const auto zero = torch::zeros({}, gradients.front().options());
    return {zero, zero.to(torch::kFloat64), {}};
  }
  auto norms = at::stack(at::_foreach_norm(kinds.front(), 2, torch::kFloat64));
  auto norm = at::linalg_vector_norm(norms, 2);
  auto found_inf = norm.isfinite().logical_not().to(torch::kFloat32);
  return {std::move(found_inf), std::move(norm), std::move(norms)};
}

Clipped clip_scale(const torch::Tensor& norm, double max_norm, const torch::Tensor& grad_scale) {
  const torch::NoGradGuard no_grad;
  if (!norm.is_cpu()) {
    const auto before = (grad_scale.defined() ? norm / grad_scale : norm).to(torch::kFloat32);
    const auto factor = ((before + 1e-6).reciprocal() * max_norm).clamp_max(1.0);
    return {before, grad_scale.defined() ? grad_scale / factor : factor.reciprocal()};
  }
  const float scale = grad_scale.defined() ? *grad_scale.const_data_ptr<float>() : 1.0F;
  const auto before = static_cast<float>(*norm.const_data_ptr<double>() / scale);
  const double factor = clip_factor(before, max_norm), product = scale / factor;
  const double divisor = std::isfinite(product) ? std::min<double>(product, FLT_MAX) : product;
  return {torch::scalar_tensor(before, torch::kFloat32),
          factor == 1 ? grad_scale : torch::scalar_tensor(divisor, torch::kFloat32)};
}

}  // namespace vernier
