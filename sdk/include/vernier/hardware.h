// What a device can do with floats of 16 and 8 bits, for policies that choose by it.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <vernier/abi.h>

#include <string>

namespace vernier {

struct VERNIER_API Hardware {
  std::string name;      // "CPU with AMX-BF16 and AVX512-BF16", "GPU of compute capability 9.0"
  bool bf16, fp16, fp8;  // it multiplies matrices of them in hardware
  int compute_capability = 0;  // of a GPU: 89 for 8.9

  // bfloat16 where there is hardware for it, for it needs no scaler; else float16; else float32.
  torch::ScalarType fastest() const;
  std::string can() const;  // "GPU of compute capability 9.0: bf16, fp16, fp8"
};

// Of the CPU by LibTorch's cpuinfo, or of the GPU in use. Of a GPU only after the runner has opened its device; where
// there is none, its CPU's. Any thread.
VERNIER_API Hardware hardware_of(c10::DeviceType device);

// Of an NVIDIA GPU by its compute capability: bf16 from 8.0 on, fp16 from 7.0, fp8 from 8.9 (CUDA C++ Programming Guide,
// arithmetic instructions of tensor cores).
VERNIER_API Hardware hardware_of_gpu(int major, int minor);

// The device of the run where no run is at hand, as in a plugin's constructor: CUDA where the runner has opened it.
VERNIER_API c10::DeviceType opened_device();

}  // namespace vernier
