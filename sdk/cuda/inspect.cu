// The norms of gradients. Also compiled for the host (host_library.cpp).
#include "inspect.h"

#include "functions.h"

namespace vernier::gpu {

namespace {

std::int64_t chunks_of(const Numbers* tensors, std::int64_t count) {
  std::int64_t chunks = 0;
  for (std::int64_t i = 0; i < count; ++i) chunks += (tensors[i].count + NumberChunks::size - 1) / NumberChunks::size;
  return chunks;
}

}  // namespace

std::int64_t inspection_scratch(const Numbers* tensors, std::int64_t count) {
  return chunks_of(tensors, count) + count;
}

Trouble inspect(const Numbers* tensors, std::int64_t count, const Inspection& to, Stream stream) {
  double* const squares = to.scratch;  // one for each tensor, then one for each chunk
  double* parts = squares + count;
  const auto trouble =
      in_launches<Numbers, 128, NumberChunks::size>(tensors, count, [&](const auto& chunks, auto blocks, auto start) {
        if (const auto failed = launch(SquareSums{chunks, parts}, blocks, stream); failed != nullptr) return failed;
        const auto failed =
            launch(TensorSums{chunks, parts, squares + start, to.norms + start}, chunks.count, stream);
        parts += blocks;
        return failed;
      });
  if (trouble != nullptr) return trouble;
  return launch(Total{squares, count, to.norm, to.found_inf}, 1, stream);
}

}  // namespace vernier::gpu
