// A pointer alone: the destructor is pure so that a class with such a member by value does not compile.
#pragma once
#include <chrono>

namespace gloo {
class Context {
 public:
  virtual ~Context() = 0;
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
