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

Instructions best_set() {
  const auto allowed = at::get_cpu_capability();
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0 || !has_f16c() ||
      allowed == "DEFAULT") {
    return Instructions::plain;
  }
  if (__builtin_cpu_supports("avx512f") == 0 || __builtin_cpu_supports("avx512bw") == 0 ||
      __builtin_cpu_supports("avx512cd") == 0 || __builtin_cpu_supports("avx512dq") == 0 ||
      __builtin_cpu_supports("avx512vl") == 0 || allowed != "AVX512") {
    return Instructions::avx2;
  }
  return __builtin_cpu_supports("avx512bf16") != 0 ? Instructions::avx512_bf16 : Instructions::avx512;
}

}  // namespace

bool has(Instructions set) {
  static const auto best = best_set();
  return set <= best;
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
