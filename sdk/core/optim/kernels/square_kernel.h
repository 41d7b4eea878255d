// The sum of the squares of float32 numbers in float64, on one thread.
#pragma once

#include <cstdint>

namespace vernier {

struct SquarePart {
  const float* first;
  std::int64_t count;
  const float* next = nullptr;  // read after this part, or none
};

struct SquareKernels {
  double (*sum)(const SquarePart& part);
};

}  // namespace vernier
