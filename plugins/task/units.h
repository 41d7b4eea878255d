// Numbers that a network gives back in the units of the data.
#pragma once

#include <torch/types.h>

// Predictions in float64, as float32 where its steps are small beside the deviation: they are shorter to read.
inline torch::Tensor in_units(const torch::Tensor& numbers, const torch::Tensor& mean, const torch::Tensor& deviation) {
  constexpr double few = 256;  // deviations in the mean
  return (mean.abs() > deviation * few).any().item<bool>() ? numbers : numbers.to(torch::kFloat32);
}
