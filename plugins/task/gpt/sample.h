// What the network writes, byte by byte, and how to show it.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <string>

#include "model.h"

namespace gpt {

struct Sampling {
  std::int64_t bytes = 200;  // 0: none
  std::string prompt = "The ";
  double temperature = 0.8;  // 0: always the likeliest byte
  std::int64_t top_k = 0;    // draws among the k likeliest bytes; 0: among all
};

// The continuation of the prompt, at most `context` bytes at a time in view. Draws from the generator (CPU) alone. Ends
// early, and says so in the text, where the network's logits are not finite.
std::string continuation(Network& network, const Sampling& sampling, std::int64_t context, torch::Device device,
                         at::Generator generator);

// Safe for a terminal: valid UTF-8, newlines and tabs stay, every other byte and control character becomes \xNN.
std::string printable(const std::string& bytes);

}  // namespace gpt
