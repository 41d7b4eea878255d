// Advice on numbers of 16 bits, from a step without its update.
#pragma once

#include <vernier/abi.h>
#include <vernier/memory_ledger.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace vernier {

// Inputs and outputs of an operator of the model, with all its calls for one layer together.
struct Seen {
  std::string op;
  std::string layer;  // the layer whose weight it used; "" for none
  std::string after;  // its layer, or the last layer before it
  // Dtypes; Undefined if there is no such tensor. The input is the model's, before autocast.
  torch::ScalarType input = torch::ScalarType::Undefined, output = input, weight = input;
  std::vector<std::int64_t> sizes;              // sizes of the input in the first call
  std::vector<std::int64_t> weight_sizes;       // [outputs, inputs] of a linear layer
  double largest = 0;                           // largest magnitude in its float16 outputs
  std::vector<std::int64_t> output_sizes = {};  // sizes of the output in the first call
};

struct DryRun {
  double loss = std::numeric_limits<double>::quiet_NaN();
  std::int64_t samples = 0, micro_batch_samples = 0;  // in the batch, and in its smallest micro-batch
  bool overflowed = false;                            // gradients are not finite: the update would be skipped
  bool is_random = false;                             // the model uses dropout
  bool is_low = false;                                // an output is in 16 bits
  bool on_gpu = false;
  MemoryUse memory;
  std::vector<Seen> operations;              // operations of the first micro-batch, in the order of their first calls
  std::vector<std::string> without_masters;  // parameters that the optimizer changes in 16 bits
  std::map<std::string, torch::Tensor> gradients;  // float32 on the CPU, by the parameters' names
};

VERNIER_API bool is_16_bit(torch::ScalarType dtype);

// Returns advice on layers that suffer from low precision, one line for each problem and remedy. in_float32: the dry
// run of the same configuration in float32, if that is another one.
VERNIER_API std::vector<std::string> advise(const DryRun& dry_run, const std::optional<DryRun>& in_float32);

}  // namespace vernier
