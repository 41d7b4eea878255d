// The binary interface between the host and a plugin: one exported data symbol, `vernier_plugin`.
//
// Host and plugin share LibTorch's C++ ABI, so the host requires its own values of `abi` and `build`. It reads the
// descriptor from the ELF file before it opens the library, so an incompatible plugin never runs. `abi` and `build`
// keep their offsets in all versions.
#pragma once

#if __cplusplus < 202002L
#error "Vernier needs C++20: compile with -std=c++20, or in CMake target_compile_features(TARGET PRIVATE cxx_std_20)"
#include <vernier/needs_cxx20.h>  // there is no such file: the compiler stops at one error, and prints no others
#endif

#include <torch/headeronly/version.h>

#include <cstddef>
#include <cstdint>

#define VERNIER_API __attribute__((visibility("default")))

// A hash of the code of the contract's headers. `sh sdk/cmake/code_hash.sh --write` writes it after a change, and
// tests/sdk/plugin/abi_test.cpp fails until then.
#define VERNIER_ABI 0x09f2c18e

#ifdef __has_feature  // clang
#define VERNIER_HAS_FEATURE(x) __has_feature(x)
#else
#define VERNIER_HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || VERNIER_HAS_FEATURE(address_sanitizer)
#define VERNIER_SANITIZER " asan"
#elif defined(__SANITIZE_THREAD__) || VERNIER_HAS_FEATURE(thread_sanitizer)
#define VERNIER_SANITIZER " tsan"
#else
#define VERNIER_SANITIZER ""
#endif
#ifdef _GLIBCXX_DEBUG  // its containers have other sizes
#define VERNIER_CONTAINERS " debug"
#else
#define VERNIER_CONTAINERS ""
#endif
#define VERNIER_TEXT_(x) #x
#define VERNIER_TEXT(x) VERNIER_TEXT_(x)
#define VERNIER_BUILD \
  "torch " TORCH_VERSION " cxx11abi=" VERNIER_TEXT(_GLIBCXX_USE_CXX11_ABI) VERNIER_CONTAINERS VERNIER_SANITIZER

namespace vernier {

class Plugin;
class Options;

// The descriptor, which a plugin library exports. The texts end in 0.
struct Descriptor {
  std::uint32_t abi = VERNIER_ABI;
  char build[60] = VERNIER_BUILD;  // LibTorch's version, C++ ABI, debug containers and sanitizers
  char role[16] = {};
  char name[48] = {};
  char version[32] = {};                  // the plugin's version
  Plugin* (*create)(Options&) = nullptr;  // called by the host on the main thread; the host owns the result
};

// Fills a descriptor at compile time. A role, name or version that is too long is a compile error.
consteval Descriptor describe(const char* role, const char* name, const char* version, Plugin* (*create)(Options&)) {
  Descriptor descriptor;
  auto copy = [](const char* from, char* to, std::size_t room) {
    std::size_t i = 0;
    for (; from[i] != '\0'; ++i) {
      if (i + 1 >= room) throw "a plugin's role, name or version is too long";
      to[i] = from[i];
    }
    to[i] = '\0';
  };
  copy(role, descriptor.role, sizeof descriptor.role);
  copy(name, descriptor.name, sizeof descriptor.name);
  copy(version, descriptor.version, sizeof descriptor.version);
  descriptor.create = create;
  return descriptor;
}

}  // namespace vernier

// Declares Class, a subclass of one role, as the plugin of this library. Its constructor takes Options&. Use the macro
// once in a library, at namespace scope.
//   VERNIER_PLUGIN(WarmBf16, "warm_bf16", "1.0.0")
#define VERNIER_PLUGIN(Class, name, version)                                                     \
  extern "C" VERNIER_API constinit const vernier::Descriptor vernier_plugin = vernier::describe( \
      Class::role, name, version, [](vernier::Options& options) -> vernier::Plugin* { return new Class(options); });
