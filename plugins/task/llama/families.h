// The families of models that differ from Llama in parts: what a config.json of each means.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../language/config.h"
#include "model.h"

namespace llama {

// The values of model_type that make() knows.
std::vector<std::string> model_types();

// Builds the network that a config.json describes, with names and defaults of transformers. dropout: in the place of
// those of the config; below 0: those.
std::shared_ptr<Network> make(const language::Config& config, double dropout, std::uint64_t seed);

}  // namespace llama
