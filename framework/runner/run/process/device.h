// The device of a run. CUDA arrives as a library that is opened here, so that a CPU machine needs none of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace vernier {

// wanted: "auto" (cuda if there is one, else cpu), "cpu", "cuda" or "cuda:1". Without a number, processes of one
// machine that a launcher started as ranks take the GPUs in turn. Must be called before anything asks LibTorch about
// CUDA. Throws Error::Kind::configuration whose text continues "`device` ": why it cannot be had.
c10::Device open_device(const std::string& wanted);

// The most bytes that this process has held: of its memory on a CPU, of LibTorch's allocator on a GPU.
std::int64_t peak_memory(c10::Device device);

// True if a flag (float32 0-dim) on the CPU is not 0.
bool is_set(const at::Tensor& flag);

// Waits until the device has finished its work. Does nothing on a CPU.
void synchronize(c10::Device device);

// Brings numbers from a device to the host one step late, so that the host never waits for the device.
class LateNumbers {
 public:
  void send(const at::Tensor& numbers);         // float32 1-D: starts the copy
  std::optional<std::vector<float>> receive();  // returns the last numbers, once; waits for that copy alone

 private:
  at::Tensor host_;
  std::optional<c10::Event> copied_;  // empty if the numbers were on the host
};

}  // namespace vernier
