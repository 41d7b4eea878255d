#include "processor.h"

#include <ATen/Version.h>
#include <ATen/core/ivalue.h>
#include <ATen/cpu/Utils.h>

namespace vernier {

namespace {

// Clang 16 does not know the name; every processor with AVX2 has these conversions.
bool has_f16c() {
#ifdef __clang__
  return true;
#else
  return __builtin_cpu_supports("f16c") != 0;
#endif
}

}  // namespace

bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                          __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                          __builtin_cpu_supports("fma") != 0 && at::get_cpu_capability() == "AVX512";
  return has;
}
bool multiplies_bfloat16() {
  static const bool does = has_avx512() && __builtin_cpu_supports("avx512bf16") != 0;
  return does;
}
bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c() &&
                          at::get_cpu_capability() != "DEFAULT";
  return has;
}

bool gains_by_bfloat16() {
  static const bool gains = cpu_has("amx_bf16") || (cpu_has("avx512_bf16") && __builtin_cpu_is("intel") == 0);
  return gains;
}

bool cpu_has(const char* capability) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto found = capabilities.find(capability);
  return found != capabilities.end() && found->second.isBool() && found->second.toBool();
}

}  // namespace vernier
