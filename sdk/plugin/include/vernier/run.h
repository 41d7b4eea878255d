// The state of a training run that every plugin can see. The runner owns it; it changes on the main thread only.
#pragma once

#include <vernier/amp_stats.h>
#include <vernier/batch.h>
#include <vernier/control.h>
#include <vernier/metrics.h>
#include <vernier/parameter.h>
#include <vernier/tensor.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

namespace vernier {

// The outcome of an update. found_inf: the scaler skipped it. vetoed: skip_update was set. none: not known yet.
enum class UpdateResult { none, applied, found_inf, vetoed };
inline bool is_skipped(UpdateResult result) {
  return result == UpdateResult::found_inf || result == UpdateResult::vetoed;
}

// The fields that one step writes. The trainer copies them as a whole, so that a step can be undone or rerun.
struct VERNIER_API StepState {
  Batch batch;                        // from BatchReady: all that the update trains on, on the host
  std::int64_t batches = 1;           // from BatchReady: how many of the task's batches are in `batch`
  Batch micro_batch;                  // from BatchReady: the part that is computed now, on the device
  std::int64_t micro_batches = 1;     // from BatchReady: how many parts the batch has
  torch::Tensor micro_batch_loss;     // at LossReady: mean over the micro-batch, differentiable; may be replaced
  torch::Tensor loss;                 // from GradientsReady: mean over the batch, on the device, float32 0-dim
  torch::Tensor found_inf;            // from GradientsReady: by the scaler, float32 0-dim; undefined: no scaler
  torch::Tensor skip_update;          // from GradientsReady: not 0 skips the update, float32 0-dim; or undefined
  torch::Tensor grad_scale;           // from GradientsReady to the optimizer's step: see gradients(); float32 0-dim
  torch::Tensor scaled_norm;          // 2-norm of the gradients before that division, float64 0-dim; may be undefined
  torch::Tensor scaled_norms;         // the same of each gradient that is not empty, 1-D; may be undefined
  torch::Tensor grad_norm;            // from GradientsReady: norm before clipping, if a callback has computed it
  double learning_rate_factor = 1.0;  // from StepBegin: callbacks multiply theirs in until GradientsReady
  Metrics metrics;                    // of this step; at Validated those of the validation alone
  std::vector<Notice> notices;        // complete for monitors at StepEnd, and at RunEnd for the last ones
  std::vector<std::string> swapped;   // from StepBegin: roles that got another plugin since the last step
  bool non_finite_reported = false;   // from GradientsReady: a callback has written the notice `non_finite`
};

// Counts of a run. Restored on resume. Within a step, `step` is the number of updates before it: 0 in the first.
struct VERNIER_API Counters {
  std::int64_t step = 0;
  std::int64_t updates = 0;                         // updates that were applied; one step late where results_are_late
  std::int64_t epoch = 0, samples = 0, tokens = 0;  // epoch: 0 in the first
  std::int64_t batches_drawn = 0;  // batches taken from the task before this step, those that a rewind drops included
  UpdateResult last_update = UpdateResult::none;  // from StepEnd: of the update that is known since then
  AmpStats amp;  // includes this step from StepEnd on; its overflow when `updates` does
};

struct VERNIER_API Run : StepState, Counters {  // the rest is valid from Plugin::prepare on
  std::string name, output, replayed_from;      // folders, final from RunBegin: of its files; of a run that is replayed
  torch::Device device{torch::kCPU};
  std::string replay_command = "vernier replay";  // from RunBegin: for messages, before the path of a capsule
  bool quiet = false;                             // monitors print nothing to the terminal
  bool validates = false;                         // at StepEnd: a validation comes after this step
  bool results_are_late = false;  // the result of an update reaches the host one step late: on a GPU; tests may set it
  std::uint64_t seed = 1;
  std::int64_t steps = 0;                    // updates planned
  std::shared_ptr<torch::nn::Module> model;  // set by Task::prepare
  std::vector<Parameter> parameters;         // `master` is final after Precision::prepare, until a swap
  // From Plugin::check on. What validations measure, by task and callbacks; nothing: the task does not say.
  std::optional<std::vector<Measure>> measures;
  std::int64_t validations = 0;  // how many are planned, the last included; 0: no data is held out
  std::string emulated;          // after Precision::prepare: what this machine only emulates ("fp8")
  Control* control = nullptr;    // what a plugin may ask of the trainer; null where there is no trainer

  // True once a signal asks the run to end. Task::validate returns early then, and is repeated on resume.
  bool is_stopping() const { return stop != nullptr && *stop != 0; }
  const std::atomic<int>* stop = nullptr;  // set by the trainer

  // Adds a notice to this step's: something out of the ordinary, by name and details, and a sentence for people.
  void notice(const char* name, Notice::Details details = {}, std::string sentence = "");

  // From Plugin::check on: which values of a metric of the validations are better. Throws Error, with the names that
  // there are, for one that no validation measures.
  Better better(const std::string& metric) const;

  // Until the optimizer's step: the gradients in the order of `parameters`, those without one left out. Divides them by
  // grad_scale first where that is defined, so get them here alone.
  std::vector<torch::Tensor> gradients();
  std::vector<std::string> non_finite_gradients() const;  // names of the parameters; a host sync
};

}  // namespace vernier
