// For the host: what plugins give to a step. Each function throws Error, with a remedy, for what cannot be used; the
// caller names the plugin. On the happy path they compare a few pointers and numbers, and wait for no device.
#pragma once

#include <vernier/event.h>
#include <vernier/run.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
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

// Called after each backward pass, because gradients are then added to, scaled and clipped in place. Autograd gives two
// parameters gradients with the same memory where it only views the gradient of their sum: one of them gets a copy.
VERNIER_API void separate_gradients(const std::vector<Parameter>& parameters);

// The numbers of a step that a plugin may replace, as they were before it was called. While it lives, the metrics that
// are set in the run are the plugin's. plugin: null for the listeners of an event.
class VERNIER_API StepNumbers {
 public:
  explicit StepNumbers(const Run& run, const Plugin* plugin = nullptr);
  StepNumbers(const StepNumbers&) = delete;
  StepNumbers& operator=(const StepNumbers&) = delete;
  ~StepNumbers();
  void refuse_wrong(Event event, const Run& run) const;  // refuses numbers that were replaced since
  // Called before a metric is set. Refuses a name that is another plugin's or the trainer's, whose number would be
  // replaced, and an event after which nobody reads it. is_set: it has a number in this step.
  static void refuse_metric(const Metrics& metrics, std::string_view name, bool is_set);

 private:
  static constexpr torch::Tensor StepState::*all[] = {&StepState::micro_batch_loss, &StepState::loss,
                                                      &StepState::found_inf, &StepState::skip_update,
                                                      &StepState::grad_scale};
  std::array<const c10::TensorImpl*, std::size(all)> before_;
  double factor_;
  bool has_graph_;
  const Run& run_;
  const Plugin* plugin_;
  const StepNumbers* outer_;
};

}  // namespace vernier
