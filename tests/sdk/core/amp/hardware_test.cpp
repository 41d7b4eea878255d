#include <doctest/doctest.h>
#include <vernier/hardware.h>

#include <fstream>
#include <string>

namespace hardware_test {

using vernier::Hardware;

TEST_CASE("hardware: the dtype of a GPU follows from its compute capability") {
  struct Row {
    int major, minor;
    c10::ScalarType fastest;
    bool fp8;
  };
  const Row rows[] = {{6, 1, c10::kFloat, false},    {7, 0, c10::kHalf, false},     {7, 5, c10::kHalf, false},
                      {8, 0, c10::kBFloat16, false}, {8, 6, c10::kBFloat16, false}, {8, 9, c10::kBFloat16, true},
                      {9, 0, c10::kBFloat16, true},  {12, 0, c10::kBFloat16, true}};
  for (const auto& row : rows) {
    const auto gpu = vernier::hardware_of_gpu(row.major, row.minor);
    CAPTURE(gpu.name);
    CHECK((gpu.fastest() == row.fastest));
    CHECK(gpu.fp8 == row.fp8);
  }
  CHECK(vernier::hardware_of_gpu(9, 0).can() == "GPU of compute capability 9.0: bf16, fp16, fp8");
  CHECK(vernier::hardware_of_gpu(6, 1).can() == "GPU of compute capability 6.1: fp32 only");
}

TEST_CASE("hardware: the CPU is what the kernel says it is") {
  std::ifstream in("/proc/cpuinfo");
  std::string flags;
  for (std::string line; flags.empty() && std::getline(in, line);) {
    if (line.starts_with("flags")) flags = line + " ";
  }
  if (flags.empty()) {
    MESSAGE("this kernel does not say");
    return;
  }
  const auto has = [&](const std::string& flag) { return flags.find(" " + flag + " ") != std::string::npos; };
  const auto cpu = vernier::hardware_of(c10::kCPU);
  const bool is_intel = __builtin_cpu_is("intel") != 0;  // its AVX512-BF16 and AVX512-FP16 are no faster than float32
  CHECK(cpu.bf16 == (has("amx_bf16") || (has("avx512_bf16") && !is_intel)));
  CHECK(cpu.fp16 == has("amx_fp16"));
  CHECK_FALSE(cpu.fp8);
  CHECK((cpu.name.find("AMX-BF16") != std::string::npos) == has("amx_bf16"));
  CHECK((cpu.fastest() == (cpu.bf16 ? c10::kBFloat16 : cpu.fp16 ? c10::kHalf : c10::kFloat)));
  CHECK((vernier::opened_device() == c10::kCPU));
}

}  // namespace hardware_test
