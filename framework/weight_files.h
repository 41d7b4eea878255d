// Weights outside of a run: out of a checkpoint, into other dtypes, Python and back, from GPT-2's published files.
#pragma once

#include <vernier/checkpoint_folder.h>

#include <optional>
#include <string>
#include <vector>

namespace vernier {

// The model's tensors, each with the best value that the checkpoint has: its float32 master where the precision kept
// one, the weight plus its compensation where it kept that.
Tensors best_weights(const StoredCheckpoint& stored);

// The same with the first callback/ema's average in the place of what it averages; buffers are as they are. Refuses,
// naming path, a checkpoint without one.
Tensors averaged_weights(const std::string& path, const StoredCheckpoint& stored);

// Floating-point tensors in another dtype. Refuses, naming path and tensor, what has no finite value there.
Tensors cast_weights(const std::string& path, const Tensors& tensors, torch::ScalarType dtype);

// A module of Python that loads the file `weights`, which stands beside it, by safetensors, checks names, dtypes and
// shapes, and has a torch.nn.Module of them. from: where the weights are from, a line for its reader. heads: where the
// tensors have GPT-2's names and shapes, the module gets its forward with so many.
std::string python_module(const std::string& weights, const std::string& from, const Tensors& tensors,
                          std::optional<std::int64_t> heads = std::nullopt);

// GPT-2's published tensors under the names and in the shapes that task/gpt has. Takes names with "transformer." before
// them, weights as Conv1D or transposed as Linear, causal masks and a head that is the token embedding. told: a line on
// what was changed or left out. Refuses what else is missing, unexpected or of another shape, naming path and tensor.
Tensors from_gpt2(const std::string& path, const Tensors& published, std::vector<std::string>& told);

}  // namespace vernier
