#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/grad_norm.h>

#include <algorithm>

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

// One 0-dim norm a tensor, in float32 or wider: in float16 the squares of a large gradient overflow.
TensorVector norms(const TensorVector& tensors, double p) {
  const auto dtype = tensors.front().scalar_type();
  if (dtype == torch::kHalf || dtype == torch::kBFloat16) return at::_foreach_norm(tensors, p, torch::kFloat32);
  return at::_foreach_norm(tensors, p);
}

torch::Tensor total_norm(const std::vector<TensorVector>& kinds, double p) {
  if (!(p > 0)) throw Error(c10::str("the order of a norm must be positive, not ", p), Error::Kind::configuration);
  if (kinds.empty()) return torch::zeros({}, torch::kFloat32);
  auto all = norms(kinds.front(), p);
  for (std::size_t i = 1; i < kinds.size(); ++i) {
    for (const auto& norm : norms(kinds[i], p)) all.push_back(moved(norm, all.front().device()));
  }
  return at::linalg_vector_norm(at::stack(all), p);  // stack promotes to the widest dtype
}

// What the operators of the other branch below compute, on the host, in the dtype of the norm; nan stays nan.
template <class Real>
double clip_factor(Real norm, double max_norm) {
  return std::min(Real(1) / (norm + Real(1e-6)) * static_cast<Real>(max_norm), Real(1));
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
    if (factor == 1) return norm;  // as most often
    for (const auto& kind : kinds) at::_foreach_mul_(kind, factor);
  } else {
    const auto factor = ((norm + 1e-6).reciprocal() * max_norm).clamp_max(1.0);  // as Python divides
    for (const auto& kind : kinds) at::_foreach_mul_(kind, moved(factor, kind.front().device()));
  }
  return norm;
}

}  // namespace vernier
