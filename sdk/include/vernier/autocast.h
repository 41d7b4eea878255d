// PyTorch's torch.autocast for C++: a guard.
//
//   torch::Tensor loss;
//   {
//     vernier::Autocast autocast(torch::kCPU, torch::kBFloat16);
//     loss = criterion(model->forward(input), target);
//   }
//   loss.backward();  // outside, as in Python
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <vernier/abi.h>

namespace vernier {

// Thread-local: a guard holds for the thread that made it, and guards nest. The cache keeps the 16-bit copies of
// weights until the outermost guard ends. With enabled = false the region runs in the tensors' own dtypes. Exceptions
// are safe.
class VERNIER_API Autocast {
 public:
  Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled = true, bool cache = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  c10::ScalarType dtype_before_;
  bool enabled_before_, cache_before_;
};

}  // namespace vernier
