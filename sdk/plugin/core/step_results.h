// For the host: what plugins give to a step. Each function throws Error, with a remedy, for what cannot be used; the
// caller names the plugin. On the happy path they compare a few pointers and numbers, and wait for no device.
#pragma once

#include <vernier/event.h>
#include <vernier/run.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace vernier {

// Refuses a loss that is not one number, or from which no gradient can be computed on the device. validation: the
// result of Task::validate or Plugin::evaluate, which needs no gradient.
enum class LossFrom { task, precision, listener, scaler, validation };
VERNIER_API void refuse_wrong_loss(const torch::Tensor& loss, const torch::Device& device, LossFrom from);

// Refuses a batch of the task that has another number of samples than it says: another count would weigh the samples
// wrongly, or leave some out, without a word.
VERNIER_API void refuse_other_samples(const Batch& batch);

// After Scaler::unscale: refuses a found_inf that is not a flag, and a grad_scale that gradients cannot be divided by.
// The values are read on a CPU alone.
VERNIER_API void refuse_wrong_scale(const Run& run);

// Returns the first gradient that is not like its parameter, `model` or `master`: dense, and of its shape, dtype and
// device.
struct WrongGradient {
  std::string text;
  bool is_dense;  // no backward pass makes it so: somebody has assigned it
};
VERNIER_API std::optional<WrongGradient> wrong_gradient(const std::vector<Parameter>& parameters,
                                                        torch::Tensor Parameter::*of);

// The numbers of a step that a listener may replace, as they were before it was called.
class VERNIER_API StepNumbers {
 public:
  explicit StepNumbers(const StepState& state);
  void refuse_wrong(Event event, const Run& run) const;  // refuses numbers that were replaced since

 private:
  static constexpr torch::Tensor StepState::*all[] = {&StepState::micro_batch_loss, &StepState::loss,
                                                      &StepState::found_inf, &StepState::skip_update,
                                                      &StepState::grad_scale};
  std::array<const c10::TensorImpl*, std::size(all)> before_;
  double factor_;
  bool has_graph_;
};

}  // namespace vernier
