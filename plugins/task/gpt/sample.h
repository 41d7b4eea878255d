// Samples from the network, byte by byte.
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

// The continuation of the prompt; the network sees the last `context` bytes. All random numbers come from the
// generator, which is on the CPU. Where the network's logits are not finite it ends early, and the text says so.
std::string continuation(Network& network, const Sampling& sampling, std::int64_t context, torch::Device device,
                         at::Generator generator);

}  // namespace gpt
