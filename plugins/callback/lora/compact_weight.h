// The weight of a frozen layer in 8 or 4 bits.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace lora {

// The stored form of an element. Each block of elements has a float32 scale.
enum class Form {
  int8,  // a whole number from -127 to 127, which is the largest of a block
  fp8,   // float8_e4m3fn; relative errors are alike for large and small elements of a block
  nf4    // one of 16 numbers, quantiles of the normal distribution; 1 is the largest of a block (QLoRA)
};

Form form_of(const std::string& base);  // "int8", "fp8" or "nf4"

// Replaces the memory of a weight, a matrix without gradient. Its parameter becomes int8 or uint8, and
// "base_scale.weight" of its module has the scales. Blocks are 64 elements, row after row, as in bitsandbytes: where 64
// does not divide the rows, a block goes on in the next row. In nf4 a byte has two elements of a row, the first in its
// high bits, so the parameter has half as many columns.
class CompactWeight {
 public:
  // Throws Error for nf4 if a row has an odd number of elements.
  CompactWeight(torch::nn::Module& module, torch::Tensor weight, Form form);

  torch::Tensor as(torch::ScalarType dtype) const;  // a copy of the numbers that it stands for, rounded once
  // The same for a view of the parameter, which may be transposed.
  torch::Tensor like(const torch::Tensor& view, torch::ScalarType dtype) const;
  void expand();  // makes the parameter float32 again, with these numbers, and removes the scales

 private:
  torch::Tensor nf4_of(const torch::Tensor& bytes) const;

  torch::nn::Module* module_;
  mutable torch::Tensor nf4_pairs_;  // the result of nf4_pairs() on the weight's device
  torch::Tensor weight_, scale_;     // scale: [blocks]
  std::vector<std::int64_t> sizes_;
  Form form_;
};

}  // namespace lora
