// Reinstates a thread's interceptors in backward, for activation checkpointing.
#pragma once

#include <vernier/layers.h>

#include <vector>

namespace vernier {

// One Intercept guard.
struct Link {
  const Layers* layers;
  Interceptor* interceptor;
};

// Returns this thread's guards in the order in which they are called. Empty within Interceptor::call.
VERNIER_API std::vector<Link> intercepting();

// Returns true if an interceptor of this thread changes the products with the weight.
bool is_changed(const torch::Tensor& weight);

// While it lives, only these guards' interceptors are called. They must still exist.
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

// Returns whether backward needs this computation: gradients are recorded now, or will be in a recomputation.
VERNIER_API bool is_training_forward();
// Returns whether this is such a recomputation.
bool is_recomputing();

// Set by activation checkpointing. first: forward without a graph. second: the recomputation in backward.
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
