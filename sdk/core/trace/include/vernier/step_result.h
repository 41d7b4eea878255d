// The results of a rerun of a step, which can take the place of those of the step itself.
//
//   vernier::StepResult repeated;
//   run.control->rerun([] {}, [&] { repeated.take(run); });
//   repeated.put(run);  // the update is made from the repeat
#pragma once

#include <vernier/run.h>

#include <memory>
#include <utility>
#include <vector>

namespace vernier {

// Main thread only. The tensors are held until put(), clear() or the next take().
class VERNIER_API StepResult {
 public:
  StepResult();
  ~StepResult();

  // Called in `end` of Control::rerun: remembers gradients and loss, and copies the model's buffers.
  void take(const Run& run);
  // Called at GradientsReady after that rerun: replaces loss, gradients, their norms and flags, batch and buffers.
  // Vetoes of the gradients that are replaced do not count any more. Metrics and notices of the step stay.
  void put(Run& run) const;
  bool is_taken() const { return kept_ != nullptr; }
  void clear();

 private:
  struct Kept;
  std::unique_ptr<Kept> kept_;
};

}  // namespace vernier
