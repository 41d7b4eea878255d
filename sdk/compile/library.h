// Compiles programs, and keeps them in a folder of the user's cache.
#pragma once

#include <string>

namespace vernier::compile {

using Function = void (*)(char* arena, void* const* memory, void (*call)(void* program, long number), void* program);

struct Library {
  Function forward = nullptr, backward = nullptr;
  std::string id;  // a hash of the source, the flags, the compiler and the processor
};

// Returns the functions of a source: from $XDG_CACHE_HOME/vernier/compiled or ~/.cache/vernier/compiled, if it was
// compiled before; else $CXX, or c++, compiles it. The library is never closed. Throws Error with the reason.
Library opened(const std::string& source);

}  // namespace vernier::compile
