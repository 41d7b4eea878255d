// The largest number in each window of an image.
#pragma once

#include <cstdint>

namespace vernier {

// A window along one side of an image. `most`: the number of windows.
struct PoolSide {
  std::int64_t size, kernel, stride, padding, most;
};

inline bool is_pair(const PoolSide& side) {
  return side.kernel == 2 && side.stride == 2 && side.padding == 0 && 2 * side.most <= side.size;
}

struct PoolKernels {
  // Writes the largest number of each window, a NaN if there is one, and its place in the image: the first of equals.
  void (*max_pool)(const PoolSide& height, const PoolSide& width, const float* image, float* out, std::int64_t* places);
  // For windows of which both sides are pairs: writes the gradient of each number of the image. Returns false if a
  // place is not in its window.
  bool (*pairs_backward)(const PoolSide& height, const PoolSide& width, const float* dy, const std::int64_t* places,
                         float* dx);
};

}  // namespace vernier
