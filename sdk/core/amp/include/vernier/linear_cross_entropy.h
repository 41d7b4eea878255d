// Cross entropy of a linear layer over many classes, such as the head of a language model, without all its logits at
// once.
//
//   const auto loss = vernier::linear_cross_entropy(features, head, tokens);  // features [..., width], head [words,
//   width] loss.backward();
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>

namespace vernier {

struct LinearCrossEntropyOptions {
  torch::Tensor bias;           // [classes], of the layer; undefined: none
  torch::Tensor class_weight;   // [classes]: `weight` of cross_entropy_loss; undefined: all are 1
  torch::Tensor sample_weight;  // [targets]: factors of the single losses; undefined: all are 1
  bool sums = false;            // the sum of the losses; false: their mean, by both weights
  std::int64_t ignore_index = -100;
  double label_smoothing = 0.0;
  std::int64_t chunk_rows = 0;  // rows whose logits are computed at once; 0: see below
};

// Computes cross_entropy_loss(linear(input, weight, bias), target), and as autocast would have it on this thread.
//   input [..., width], weight [classes, width], target int64 [...]: the number of a class, or ignore_index
// Returns a 0-dim tensor in float32, or in float64 if the input has it. Throws c10::Error for wrong shapes and, on a
// CPU, for targets that are not a class.
//
// With chunk_rows, or where the logits of all rows would take more than about 50 MB, they are computed for some rows
// after another. Then forward computes the gradients too, with each chunk's logits at hand, and keeps them until
// backward scales them. Besides one chunk's logits, this needs the memory of the gradients, in float32. Rows with
// ignore_index are left out. An interceptor that changes the layer's product (vernier/layers.h) has all logits computed
// at once, and so have derivatives of gradients.
VERNIER_API torch::Tensor linear_cross_entropy(const torch::Tensor& input, const torch::Tensor& weight,
                                               const torch::Tensor& target,
                                               const LinearCrossEntropyOptions& options = {});

}  // namespace vernier
