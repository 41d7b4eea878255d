// Draft: see capture.h. Rounding of what a rank sends, for the option `message` of role distributed.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <string>

namespace vernier::draft {
inline namespace message_rounding_1 {

// A base class of plugins of role "quantizer".
class VERNIER_API MessageRounding {
 public:
  // Returns what others get of the numbers, in float32 and of their shape. key: the parameter whose gradient they are.
  virtual torch::Tensor message_of(const torch::Tensor& numbers, const std::string& key, std::uint64_t seed) = 0;
  virtual void end_update() = 0;  // after each update, on all ranks

 protected:
  ~MessageRounding() = default;
};

}  // namespace message_rounding_1
}  // namespace vernier::draft
