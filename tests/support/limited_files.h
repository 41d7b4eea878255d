// A limit on the size of a process's files, which it meets as it would a full disk.
#pragma once

#include <sys/resource.h>
#include <vernier/abi.h>

#include <string_view>

// For Program's `before`.
template <rlim_t bytes>
void limit_files() {
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

// The thread sanitizer keeps its own memory in files, so a program that it watches does not survive the limit.
constexpr bool can_limit_files = std::string_view(VERNIER_SANITIZER) != " tsan";
