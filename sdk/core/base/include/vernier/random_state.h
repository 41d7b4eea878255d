// The state of LibTorch's default generators, as a cheap copy.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>
#include <vernier/abi.h>

#include <optional>

namespace vernier {

// Main thread only.
class VERNIER_API RandomState {
 public:
  void take(c10::Device device);  // takes the CPU's state and, if it is another device, the device's
  void restore(c10::Device device) const;

 private:
  at::mt19937 cpu_engine_;
  std::optional<float> cpu_float_;
  std::optional<double> cpu_double_;
  torch::Tensor device_state_;
};

}  // namespace vernier
