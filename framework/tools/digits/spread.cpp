#include "spread.h"

#include <cmath>

namespace vernier {

void NumberSpread::add(const torch::Tensor& tensor) {
  const auto numbers = tensor.detach().to(torch::kFloat64, /*non_blocking=*/false, /*copy=*/true);
  dtype_ = tensor.scalar_type();
  if (count_++ == 0) {
    mean_ = torch::zeros_like(numbers);
    squares_ = torch::zeros_like(numbers);
  }
  const auto difference = numbers - mean_;
  mean_ += difference / static_cast<double>(count_);
  squares_ += difference * (numbers - mean_);
}

std::optional<NumbersDigits> joint_digits(const std::vector<const NumberSpread*>& spreads) {
  std::vector<torch::Tensor> means, variances;
  for (const auto* spread : spreads) {
    if (!spread->is_known()) continue;
    means.push_back(spread->mean());
    variances.push_back(spread->variance());
  }
  if (means.empty()) return std::nullopt;
  const auto dtype = spreads.front()->dtype();
  const auto mean = torch::cat(means), variance = torch::cat(variances);
  const double squares = mean.square().mean().item<double>(), spread = variance.mean().item<double>();
  NumbersDigits numbers;
  numbers.digits = significant_digits(squares, spread, dtype);
  numbers.deviation = std::sqrt(spread);
  numbers.rms = std::sqrt(squares);
  const double most = vernier::digits_of(dtype);
  const auto each = (mean.square() / variance).log10().mul(0.5).nan_to_num(most, most, 0).clamp(0, most);
  numbers.median = each.median().item<double>();
  return numbers;
}

}  // namespace vernier
