// The state of a training run that every plugin can see. It changes on the main thread only.
#pragma once

#include <vernier/amp_stats.h>
#include <vernier/batch.h>
#include <vernier/control.h>
#include <vernier/metrics.h>
#include <vernier/parameter.h>
#include <vernier/tensor.h>

#include <memory>
#include <optional>
#include <string_view>
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
  torch::Tensor loss;                 // from GradientsReady: mean over the batch, on the device, float32 or float64
  torch::Tensor found_inf;            // from GradientsReady: by the scaler, float32 0-dim; undefined: no scaler
  torch::Tensor skip_update;          // from GradientsReady: not 0 skips the update; see skip_when()
  torch::Tensor grad_scale;           // from GradientsReady to the optimizer's step: see gradients(); float32 0-dim
  GradientNorms norms;                // from GradientsReady: see gradient_norm()
  double learning_rate_factor = 1.0;  // from StepBegin: callbacks multiply theirs in until GradientsReady
  Metrics metrics;                    // metrics of this step; at Validated those of the validation alone
  std::vector<Notice> notices;        // complete for monitors at StepEnd, and at RunEnd for the last ones
  std::vector<std::string> swapped;   // from StepBegin: roles that got another plugin since the last step
  bool non_finite_reported = false;   // from GradientsReady: a callback has written the notice `non_finite`
};

struct RunFacts;
// All that the trainer owns is constant here. The fields below are valid from Plugin::prepare on.
class VERNIER_API Run : public StepState {
 public:
  Run(const Run&) = delete;

  // Counts of the whole run, restored on resume. An update is counted when it is done: from StepEnd on.
  const std::int64_t &step, &updates;            // all updates; those that were applied, late where results_are_late
  const std::int64_t &epoch, &samples, &tokens;  // epoch: 0 in the first
  const std::int64_t& batches_drawn;             // taken from the task, those that a rewind drops included
  const UpdateResult& last_update;               // from StepEnd: of the update that is known since then
  const AmpStats& amp;                           // its overflow comes when `updates` does

  const std::string &name, &output, &replayed_from;  // folders, final from RunBegin: of its files; of a replayed run
  const torch::Device& device;
  const std::string& replay_command;  // from RunBegin: for messages, before the path of a capsule
  const bool& quiet;                  // monitors print nothing to the terminal
  const bool& validates;              // at StepEnd: a validation comes after this step
  const bool& results_are_late;       // the result of an update reaches the host one step late: on a GPU
  const std::uint64_t& seed;
  const std::int64_t& steps;  // updates planned; they change where an accumulation adapts to the training
  const std::shared_ptr<torch::nn::Module>& model;
  const std::vector<Parameter>& parameters;  // from the end of Task::prepare on
  // From Plugin::check on. What validations measure, by task and callbacks; nothing: the task does not say.
  const std::optional<std::vector<MetricInfo>>& measures;
  const MetricInfos& metric_infos;  // from Plugin::check on: what the trainer and the plugins of this run declare
  const std::int64_t& validations;  // how many are planned, the last included; 0: no data is held out
  const std::string& emulated;      // after Precision::prepare: what this machine only emulates ("fp8")
  Control* const& control;          // requests to the trainer; null if there is no trainer

  bool is_stopping() const;  // true: a signal asks the run to end; Task::validate returns early, and resume repeats it
  void set_model(std::shared_ptr<torch::nn::Module> module);  // in Task::prepare, once
  // In Precision::prepare: the optimizer changes it in the place of parameters[i].model, whose shape it must have.
  void set_master(std::size_t i, torch::Tensor master);
  void freeze(std::size_t i, bool frozen = true);  // in Optimizer::prepare: it never updates parameters[i]

  // Adds a notice to this step's: something out of the ordinary, by name and details, and a sentence for people.
  void notice(const char* name, Notice::Details details = {}, std::string sentence = "");
  // At GradientsReady: skips the update if the flag, one number or bool on any device, is not 0. Vetoes add up.
  void skip_when(const torch::Tensor& flag);

  // From Plugin::check on: which values of a metric are better. Throws Error for one that no validation measures.
  Better better(const std::string& metric) const;
  // From Plugin::check on: the declaration of a metric, which lives as long as the run; null if nobody declares it.
  const MetricInfo* metric_info(std::string_view metric) const;

  // From Scaler::unscale to the optimizer's step, else Error: the gradients in the order of `parameters`, those without
  // one left out. Divides them by grad_scale first where that is defined, so get them here alone.
  std::vector<torch::Tensor> gradients();
  // At GradientsReady: the 2-norm of all gradients, float32 0-dim on the device, as it was before anybody clipped them.
  // Computed once a step, and without another pass where the scaler has read the gradients.
  torch::Tensor gradient_norm();
  std::vector<std::string> non_finite_gradients() const;  // names of the parameters; a host sync

 protected:
  explicit Run(RunFacts& facts);

 private:
  RunFacts& facts_;
};

}  // namespace vernier
