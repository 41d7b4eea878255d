// Weights from a file or a checkpoint for a model that starts anew.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace vernier {

struct InitOptions {
  std::string from;                 // a safetensors file, or the folder of a checkpoint or a run; "": nothing is done
  std::vector<std::string> rename;  // "old -> new"; one * on each side stands for the same text; no new: left out
  bool strict = true;               // refuses names that are missing, or not in the model
};

// Copies the tensors into the model's parameters and buffers, and reports what is missing and what was not expected.
// Everything is checked before the model is touched; throws Error::Kind::configuration.
void init_weights(torch::nn::Module& model, const InitOptions& options);

// Returns the checkpoint at a path, or the checkpoints of the run there, the newest first. Empty if there are none.
std::vector<std::string> checkpoints_at(const std::string& path);

// The name after the first rule that fits it, "" where that leaves it out, the name itself where none fits.
std::string renamed(const std::string& name, const std::vector<std::string>& rules);

}  // namespace vernier
