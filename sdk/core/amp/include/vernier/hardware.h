// Abilities of a device in 16-bit and 8-bit floats, for policies that depend on it.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <string>

namespace vernier {

struct VERNIER_API Hardware {
  std::string name;            // "CPU with AMX-BF16 and AVX512-BF16", "GPU of compute capability 9.0"
  bool bf16, fp16, fp8;        // true: the hardware multiplies matrices of this dtype faster than those of float32
  int compute_capability = 0;  // 89 for 8.9; 0 for a CPU

  // Returns bfloat16 if the hardware has it, because it needs no loss scaler; else float16, else float32.
  torch::ScalarType fastest() const;
  std::string can() const;  // "GPU of compute capability 9.0: bf16, fp16, fp8"
};

// Describes the CPU, by LibTorch's cpuinfo, or the current GPU. Call it for a GPU only after the runner has opened its
// device; if there is no GPU, it describes the CPU. Any thread.
VERNIER_API Hardware hardware_of(c10::DeviceType device);

// Describes an NVIDIA GPU by its compute capability: bf16 from 8.0 on, fp16 from 7.0, fp8 from 8.9. Source: CUDA C++
// Programming Guide, arithmetic instructions of tensor cores.
VERNIER_API Hardware hardware_of_gpu(int major, int minor);

// For code without a Run, such as a plugin's constructor. Returns CUDA if the runner has opened it, else CPU.
VERNIER_API c10::DeviceType opened_device();

}  // namespace vernier
