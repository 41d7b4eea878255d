// Gradients of several micro-batches for one update, in a loop of your own:
//
//   vernier::Accumulator accumulator(4);
//   scaler.scale(accumulator.share(loss)).backward();
//   if (accumulator.should_update()) {
//     scaler.step(optimizer);
//     scaler.update();
//     optimizer.zero_grad();
//   }
#pragma once

#include <ATen/core/Tensor.h>
#include <vernier/error.h>
#include <vernier/state.h>

#include <cstdint>

namespace vernier {

// One thread. The gradients add up to those of the mean over all micro-batches, if each has as many samples.
class Accumulator {
 public:
  // micro_batches: of one update, at least 1. Throws Error for less.
  explicit Accumulator(std::int64_t micro_batches) : micro_batches_(micro_batches) {
    if (micro_batches < 1) refuse("Accumulator: an update needs at least 1 micro-batch");
  }

  // The loss divided by the number of micro-batches. loss: mean over a micro-batch, any dtype, 0-dim.
  at::Tensor share(const at::Tensor& loss) const { return micro_batches_ == 1 ? loss : loss / micro_batches_; }

  // Call it once after each backward(). Returns whether the optimizer is to step now.
  bool should_update() {
    done_ = (done_ + 1) % micro_batches_;
    return done_ == 0;
  }

  // In the middle of an update the gradients are not in it: save where should_update() has returned true.
  State state_dict() const {
    State state;
    state.put("done", done_);
    return state;
  }
  void load_state_dict(const State& state) { done_ = state.integer("done") % micro_batches_; }

 private:
  std::int64_t micro_batches_, done_ = 0;
};

}  // namespace vernier
