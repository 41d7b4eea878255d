#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/util/StringUtil.h>
#include <dlfcn.h>
#include <torch/types.h>
#include <vernier/hardware.h>

#include "base/processor.h"

namespace vernier {

namespace {

Hardware hardware_of_cpu() {
  const bool amx = cpu_has("amx_bf16"), avx = cpu_has("avx512_bf16");
  Hardware cpu{"CPU", gains_by_bfloat16(), cpu_has("amx_fp16"), false};
  if (amx) cpu.name += " with AMX-BF16";
  if (avx) cpu.name += amx ? " and AVX512-BF16" : " with AVX512-BF16";
  if (!amx) cpu.name += avx ? " and without AMX" : " without AMX or AVX512-BF16";
  return cpu;
}

// A number of the CUDA runtime that LibTorch's library has brought; -1 where it has not. No header of CUDA is needed.
int cuda_attribute(int attribute) {
  using Get = int (*)(int* value, int attribute, int device);
  const auto get = reinterpret_cast<Get>(dlsym(RTLD_DEFAULT, "cudaDeviceGetAttribute"));
  int value = -1;
  const bool is_read = get != nullptr && get(&value, attribute, at::accelerator::getDeviceIndex()) == 0;
  return is_read ? value : -1;
}

}  // namespace

torch::ScalarType Hardware::fastest() const {
  return bf16 ? torch::kBFloat16 : fp16 ? torch::kFloat16 : torch::kFloat32;
}

std::string Hardware::can() const {
  std::string dtypes;
  for (const auto& [has, dtype] : {std::pair(bf16, "bf16"), std::pair(fp16, "fp16"), std::pair(fp8, "fp8")}) {
    if (has) dtypes += std::string(dtypes.empty() ? "" : ", ") + dtype;
  }
  return name + ": " + (dtypes.empty() ? "fp32 only" : dtypes);
}

Hardware hardware_of_gpu(int major, int minor) {
  const int sm = 10 * major + minor;
  return {c10::str("GPU of compute capability ", major, ".", minor), sm >= 80, sm >= 70, sm >= 89, sm};
}

Hardware hardware_of(c10::DeviceType device) {
  constexpr int capability_major = 75, capability_minor = 76;  // values of enum cudaDeviceAttr
  if (device == c10::kCUDA && at::globalContext().hasCUDA()) {
    const int major = cuda_attribute(capability_major), minor = cuda_attribute(capability_minor);
    if (major > 0) return hardware_of_gpu(major, minor);
  }
  return hardware_of_cpu();
}

c10::DeviceType opened_device() {
  return at::globalContext().hasCUDA() ? c10::kCUDA : c10::kCPU;
}

}  // namespace vernier
