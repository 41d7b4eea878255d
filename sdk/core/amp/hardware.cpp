#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/util/StringUtil.h>
#include <dlfcn.h>
#include <torch/types.h>
#include <vernier/hardware.h>

#include <array>

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

// The current GPU's name and memory, "NVIDIA H100 80GB HBM3 with 85 GB, "; "" if its driver cannot be asked.
std::string name_of_gpu() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);  // LibTorch has opened it
  if (driver == nullptr) return "";
  const auto device_at = reinterpret_cast<int (*)(int* device, int index)>(dlsym(driver, "cuDeviceGet"));
  const auto name_of = reinterpret_cast<int (*)(char* name, int size, int device)>(dlsym(driver, "cuDeviceGetName"));
  const auto memory_of =
      reinterpret_cast<int (*)(std::size_t * bytes, int device)>(dlsym(driver, "cuDeviceTotalMem_v2"));
  dlclose(driver);
  int device = 0;
  std::size_t bytes = 0;
  std::array<char, 128> name{};
  const bool is_named = device_at != nullptr && name_of != nullptr && memory_of != nullptr &&
                        device_at(&device, at::accelerator::getDeviceIndex()) == 0 &&
                        name_of(name.data(), static_cast<int>(name.size()), device) == 0 &&
                        memory_of(&bytes, device) == 0;
  return is_named ? c10::str(name.data(), " with ", bytes / 1'000'000'000, " GB, ") : "";
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
    auto gpu = hardware_of_gpu(major, minor);
    gpu.name.insert(0, name_of_gpu());
    if (major > 0) return gpu;
  }
  return hardware_of_cpu();
}

c10::DeviceType opened_device() {
  return at::globalContext().hasCUDA() ? c10::kCUDA : c10::kCPU;
}

}  // namespace vernier
