// The weights of a model by name, and those that a new model takes from a file or a checkpoint.
#pragma once

#include <torch/nn/module.h>
#include <vernier/abi.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/state.h>

#include <string>
#include <vector>

namespace vernier {

// Parameters and buffers by their dotted names, a tied one under each of its names.
VERNIER_API Tensors model_tensors(const torch::nn::Module& model);

struct InitOptions {
  std::string from;                 // a safetensors file, or the folder of a checkpoint or a run; "": nothing is done
  std::vector<std::string> rename;  // "old -> new"; one * on each side stands for the same text; no new: left out
  bool strict = true;               // refuses names that are missing, or not in the model
};

// Copies the tensors into the model's parameters and buffers, and logs what is missing and what was not expected.
// Everything is checked before the model is touched; throws Error::Kind::configuration.
VERNIER_API void init_weights(torch::nn::Module& model, const InitOptions& options);

// The weights that an evaluation of the run has in the model, from its checkpoint alone: the average, if it has one.
struct ModelOfRun {
  Tensors tensors;
  std::string average, adapter;  // the plugins that gave them, "callback/ema" and "callback/lora", or ""
};
// Throws Error::Kind::configuration if the plugin with the average keeps it in a form of its own.
VERNIER_API ModelOfRun model_of_run(const std::string& checkpoint);
VERNIER_API ModelOfRun model_of_run(const std::string& checkpoint, StoredCheckpoint stored);  // the same, as read
// A text of the record of that model, "trainer/model" in a checkpoint: {"average": "callback/ema", "adapter": …,
// "weights": {"name in the model": "entry of the state"}}. "" if it is not there. own: the entries below "trainer".
VERNIER_API std::string recorded(const State& own, const std::string& key);

// Returns the checkpoint at a path, or the checkpoints of the run there, the newest first. Empty if there are none.
VERNIER_API std::vector<std::string> checkpoints_at(const std::string& path);

// Returns the name after the first rule that fits it: "" if that leaves it out, the name itself if none fits.
VERNIER_API std::string renamed(const std::string& name, const std::vector<std::string>& rules);

VERNIER_API bool same_bits(const torch::Tensor& a, const torch::Tensor& b);  // NaN equals NaN

}  // namespace vernier
