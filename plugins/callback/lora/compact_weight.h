// The weight of a frozen layer in 8 bits.
#pragma once

#include <torch/nn/module.h>

namespace lora {

// The stored form of an element. Each block of elements has a float32 scale.
enum class Form {
  int8,  // a whole number from -127 to 127, which is the largest of a block
  fp8    // float8_e4m3fn; relative errors are alike for large and small elements of a block
};

// Replaces the memory of a weight, a matrix without gradient. Its parameter becomes int8 or uint8, and
// "base_scale.weight" of its module has the scales. Blocks are 64 elements of a row; whole rows, if 64 does not divide
// them.
class CompactWeight {
 public:
  CompactWeight(torch::nn::Module& module, torch::Tensor weight, Form form);

  torch::Tensor as(torch::ScalarType dtype) const;  // a copy of the numbers that it stands for, rounded once
  void expand();  // makes the parameter float32 again, with these numbers, and removes the scales

 private:
  torch::nn::Module* module_;
  torch::Tensor weight_, scale_;  // scale: [rows, blocks of a row]
  Form form_;
};

}  // namespace lora
