#include "running_variance.h"

#include <cmath>

namespace vernier {

void RunningVariance::add(const torch::Tensor& tensor, std::optional<torch::ScalarType> dtype) {
  const auto numbers = tensor.detach().to(torch::kFloat64, /*non_blocking=*/false, /*copy=*/true);
  dtype_ = dtype.value_or(tensor.scalar_type());
  if (count_++ == 0) {
    mean_ = torch::zeros_like(numbers);
    squares_ = torch::zeros_like(numbers);
  }
  const auto difference = numbers - mean_;
  mean_ += difference / static_cast<double>(count_);
  squares_ += difference * (numbers - mean_);
}

std::optional<NumbersDigits> joint_digits(const std::vector<const RunningVariance*>& of_tensors) {
  std::vector<torch::Tensor> means, variances;
  for (const auto* each : of_tensors) {
    if (!each->is_known()) continue;
    means.push_back(each->mean());
    variances.push_back(each->variance());
  }
  if (means.empty()) return std::nullopt;
  const auto dtype = of_tensors.front()->dtype();
  const auto mean = torch::cat(means), variance = torch::cat(variances);
  const double squares = mean.square().mean().item<double>(), mean_variance = variance.mean().item<double>();
  NumbersDigits numbers;
  numbers.digits = significant_digits(squares, mean_variance, dtype);
  numbers.deviation = std::sqrt(mean_variance);
  numbers.rms = std::sqrt(squares);
  const double most = vernier::digits_of(dtype);
  const auto single = (mean.square() / variance).log10().mul(0.5).nan_to_num(most, most, 0).clamp(0, most);
  numbers.median = single.median().item<double>();
  return numbers;
}

}  // namespace vernier
