// Shared by the fuzzers' entry points. LLVMFuzzerMutate is libFuzzer's, or that of mutate.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

inline void must(bool holds) {
  if (!holds) std::abort();  // the fuzzer reports it with the input
}
