// The weights of a published model folder: model.safetensors, or its shards with model.safetensors.index.json.
#pragma once

#include <vernier/state.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config.h"
#include "network.h"

namespace language {

// How a family of models names its tensors.
struct Layout {
  std::vector<std::string> model_types;  // "model_type" in config.json: "gpt2"
  std::string prefix;     // before all names but lm_head's: "transformer."; files without it are read too
  bool is_in_model;       // the parameters of the network have the prefix
  std::string embedding;  // the name without the prefix of what a tied head equals: "wte.weight"
};

struct Family {
  Layout layout;
  // Builds the network that a config.json describes. dropout: in the place of those of the config; below 0: those.
  std::function<std::shared_ptr<Network>(const Config& config, double dropout, std::uint64_t seed)> make;
};

// The name in a published file of a tensor or layer of the network.
std::string published_name(const Layout& layout, const std::string& name);

// Copies the weights of a folder into a new network. float64, float32, float16 and bfloat16 are read, whatever the
// config says. Masks and rotary tables, which some files have, are left out, and so is the head of a tied model if it
// equals the embedding. Throws Error with file and tensor for a tensor that is missing, unknown, there twice, or of
// another shape or dtype. A network whose head for tokens was taken away leaves out the heads of the files. grows: the
// token embedding and the head may have more rows than the files; a new one is the mean of those that are there.
void read_weights(const std::string& folder, Network& network, const Layout& layout, bool grows = false);

// Writes a folder that transformers' from_pretrained() reads: model.safetensors, and `files` (model_files.h), whose
// config.json gets the dtype of the weights. All parameters of the network are written, so an adapter must be merged
// before. more: tensors beside them, by their published names.
void write_folder(const std::string& to, const vernier::State& files, const Network& network, const Layout& layout,
                  const vernier::Tensors& more = {});

}  // namespace language
