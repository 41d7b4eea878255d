// The weights of a checkpoint, for `vernier checkpoint export` and `import`.
#pragma once

#include <vernier/checkpoint_folder.h>

#include <string>

namespace vernier {

// The model's tensors, each with the most exact value in the checkpoint: the float32 master weight, or the weight plus
// its compensation, if the precision kept one.
Tensors best_weights(const StoredCheckpoint& stored);

// Converts floating-point tensors to another dtype. Throws Error, naming path and tensor, if a finite value becomes
// infinite.
Tensors cast_weights(const std::string& path, const Tensors& tensors, torch::ScalarType dtype);

}  // namespace vernier
