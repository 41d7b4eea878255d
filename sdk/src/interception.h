// The guards of a thread, to be put up once more in backward: activation checkpointing.
#pragma once

#include <vernier/layers.h>

#include <vector>

namespace vernier {

struct Link {
  const Layers* layers;
  Interceptor* interceptor;
};

// Of this thread, in the order in which they are asked; empty inside of an interceptor's own calls.
std::vector<Link> intercepting();

// While it lives, these are asked, and no others. They must still be there.
class InterceptAgain {
 public:
  explicit InterceptAgain(std::vector<Link> links);
  ~InterceptAgain();
  InterceptAgain(const InterceptAgain&) = delete;
  InterceptAgain& operator=(const InterceptAgain&) = delete;

 private:
  std::vector<Link> before_;
  bool included_before_;
};

// Whether backward will be asked for what is computed now: gradients are recorded, or will be by a second forward.
bool is_training_forward();
// Whether this is that second forward.
bool is_recomputing();

// Set by activation checkpointing.
enum class Pass { plain, first, second };
class PassGuard {
 public:
  explicit PassGuard(Pass pass);
  ~PassGuard();
  PassGuard(const PassGuard&) = delete;
  PassGuard& operator=(const PassGuard&) = delete;

 private:
  Pass before_;
};

}  // namespace vernier
