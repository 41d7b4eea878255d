// Scales of tensors from the largest magnitudes of earlier updates, as precision/fp8 has them.
#pragma once

#include <vernier/lab/tensor_format.h>
#include <vernier/state.h>

#include <map>
#include <string>

namespace formats {

class DelayedScales {
 public:
  DelayedScales(std::int64_t updates, bool most_recent) : updates_(updates), most_recent_(most_recent) {}

  // Returns the format with the scale that its past gives an operand: 1 before the first update ends. records: the
  // largest magnitude of x goes into the history.
  vernier::TensorFormat of(const std::string& operand, const vernier::TensorFormat& format, const torch::Tensor& x,
                           bool records);
  void end_update();
  vernier::State save() const;
  void load(const vernier::State& state);

 private:
  struct Past {
    vernier::AmaxHistory history;
    double amax = 0;
  };
  Past& past_of(const std::string& operand);
  std::int64_t updates_;
  bool most_recent_;
  std::map<std::string, Past> pasts_;
};

}  // namespace formats
