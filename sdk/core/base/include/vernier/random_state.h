// The state of LibTorch's default generators, as a cheap copy, and generators of a plugin's own.
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

// A generator of a plugin's own: what it draws changes neither dropout nor the order of the data. Called in prepare, as
// own_generator(run.seed, run.device). remember("generator", generator_) keeps it in checkpoints.
VERNIER_API at::Generator own_generator(std::uint64_t seed, c10::Device device = c10::kCPU);

}  // namespace vernier
