// The largest number in each window of an image.
#pragma once

#include <cstdint>

namespace vernier {

// A window along one side of an image. `most`: the number of windows.
struct PoolSide {
  std::int64_t size, kernel, stride, padding, most;
};

struct PoolKernels {
  // Writes the largest number of each window, a NaN if there is one, and its place in the image: the first of equals.
  void (*max_pool)(const PoolSide& height, const PoolSide& width, const float* image, float* out, std::int64_t* places);
};

}  // namespace vernier
