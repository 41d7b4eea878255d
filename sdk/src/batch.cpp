#include <vernier/batch.h>

namespace vernier {

Batch Batch::narrow(std::int64_t first, std::int64_t count) const {
  Batch piece;
  piece.tensors.reserve(tensors.size());
  for (const auto& tensor : tensors) piece.tensors.push_back(tensor.narrow(0, first, count));
  piece.samples = count;
  // Rounded at both ends the same way, so that the pieces' tokens add up to the batch's.
  piece.tokens = samples == 0 ? 0 : tokens * (first + count) / samples - tokens * first / samples;
  return piece;
}

Batch Batch::to(torch::Device device) const {
  Batch moved = *this;
  for (auto& tensor : moved.tensors) {
    if (tensor.device() != device) tensor = tensor.to(device, /*non_blocking=*/!device.is_cpu());
  }
  return moved;
}

}  // namespace vernier
