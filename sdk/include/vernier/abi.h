// The door between the host and a plugin: one exported data symbol, `vernier_plugin`.
//
// Host and plugin share LibTorch's C++ ABI, so the host asks for equality of `abi` and `build`. It reads the descriptor
// from the file before it opens the library: a plugin that does not fit never runs. `abi` and `build` never move.
#pragma once

#include <torch/headeronly/version.h>

#include <cstddef>
#include <cstdint>

#define VERNIER_API __attribute__((visibility("default")))

// Counts the changes of the SDK's headers; tests/sdk/abi_test.cpp fails when they change and this does not.
#define VERNIER_ABI 3

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
#ifdef _GLIBCXX_DEBUG  // containers of another size
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

struct Descriptor {
  std::uint32_t abi = VERNIER_ABI;
  char build[60] = VERNIER_BUILD;
  char role[16] = {};
  char name[48] = {};
  char version[32] = {};
  Plugin* (*create)(Options&) = nullptr;  // called by the host, main thread; the host owns what it returns
};

// Fills a descriptor while compiling; a name that does not fit is a compile error.
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

// Makes Class, a subclass of one role, the plugin of this library. Once a library, at namespace scope.
//   VERNIER_PLUGIN(WarmBf16, "warm_bf16", "1.0.0")
#define VERNIER_PLUGIN(Class, name, version)                                                     \
  extern "C" VERNIER_API constinit const vernier::Descriptor vernier_plugin = vernier::describe( \
      Class::role, name, version, [](vernier::Options& options) -> vernier::Plugin* { return new Class(options); });
