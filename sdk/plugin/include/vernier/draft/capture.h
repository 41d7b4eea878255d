// Draft: recording forward and backward, as a CUDA graph or as a program. Headers in draft/ may change in any version,
// and are not part of VERNIER_ABI. Each has an inline namespace that is renamed with every change of a class: the host
// then does not find an older plugin's base class, and does not call it.
#pragma once

#include <vernier/abi.h>

namespace vernier::draft {
inline namespace capture_1 {

// A base class of a plugin, beside its role: it says whether forward and backward may be recorded: a CUDA graph
// or a program repeats the operators and calls nobody. With an `engine` of `[run]` that records, the task, the
// precision and all listeners to BatchReady and LossReady need it.
class VERNIER_API Capturable {
 public:
  // Called after prepare. True: all that this plugin does there depends on the batch's tensors, weights and buffers
  // alone, and it changes them in place if at all. So it has no counters, schedules, host random numbers, metrics or
  // copies of weights that outlive a step there, and of a Batch it reads `tensors` and `samples`.
  virtual bool allows_capture() const { return true; }

 protected:
  ~Capturable() = default;
};

}  // namespace capture_1
}  // namespace vernier::draft
