// PyTorch's torch.autocast for C++, as a scope guard.
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

// A guard applies to the thread that made it. Guards may be nested; the destructor restores the settings from before.
// dtype: Half, BFloat16 or Float; the constructor throws Error for others. With enabled = false, operations run in the
// dtypes of their tensors. With cache = true, 16-bit copies of weights are reused until the outermost guard ends.
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
