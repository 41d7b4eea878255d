// One step without its update, on the side: what `vernier check` knows of a run beyond its wiring.
#pragma once

#include <vernier/memory_ledger.h>

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer.h"

namespace vernier {

// What an operator of the model was given and gave, all its calls for one layer together.
struct Seen {
  std::string op;
  std::string layer;  // whose weight it used; "" for none
  std::string after;  // the layer seen last before it, or its own
  // Undefined where it had none; the input as the model gave it, before autocast.
  torch::ScalarType input = torch::ScalarType::Undefined, output = input, weight = input;
  std::vector<std::int64_t> sizes;         // of the input, in the first call
  std::vector<std::int64_t> weight_sizes;  // [outputs, inputs] of a linear layer
  double largest = 0;                      // magnitude in an output that is float16
};

struct Rehearsed {
  double loss = std::numeric_limits<double>::quiet_NaN();
  std::int64_t samples = 0, piece_samples = 0;  // of the batch, and of its smallest piece
  bool overflowed = false;                      // gradients that are not finite: the update would be skipped
  bool is_random = false;                       // dropout was met
  bool is_low = false;                          // something was not computed in float32
  bool on_gpu = false;
  MemoryUse memory;
  std::vector<Seen> operations;                    // of the first piece, in the order of the first calls
  std::vector<std::string> without_masters;        // parameters that the optimizer changes in 16 bits
  std::map<std::string, torch::Tensor> gradients;  // float32 on the CPU, by the parameters' names
};

// Computes the gradients of the next batch as a step does. The run must be prepared and is of no use for training after
// it. What throws is told as in a step.
Rehearsed rehearse(Trainer& trainer, Wiring& wiring, Run& run);

// What a look at the rehearsal says of layers that suffer, and what to do; in float32: the same run there, if that is
// another.
std::vector<std::string> advise(const Rehearsed& rehearsed, const std::optional<Rehearsed>& in_float32);

}  // namespace vernier
