// early_stopping: ends the run when a validation's metric has not improved for a while, and puts the best weights back
// into the model. Weights and buffers of the best validation are kept in memory and in each checkpoint.
//   metric = "validation_loss"   any metric of the task's validation
//   mode = "auto"                min | max: what is better; auto: as the metric has it, such as higher of accuracy
//   patience = 10                validations in a row without improvement, after which the run ends
//   min_delta = 0.0              least improvement that counts
//   restore_best = true          the run ends with the best weights, also at its last planned step, and where another
//                                callback has ended it: give that one before this one
// The last checkpoint then has the best weights, and the optimizer's state of the last step. A run that a signal or the
// time limit ends goes on with its own weights. Where a validation has an average of the weights in the model, such as
// that of callback/ema, that average is kept too and returns with the weights. A value that is not finite is never the
// best. Source: Prechelt, Early Stopping - But When?, 1998; the options are those of Keras and Lightning.
#include <torch/nn/module.h>
#include <vernier/sdk.h>
#include <vernier/with_weights.h>

#include "average.h"
#include "shared/judged_metric.h"

using vernier::Run;

class EarlyStopping final : public vernier::Callback {
 public:
  explicit EarlyStopping(vernier::Options& options)
      : metric_(options),
        patience_(options.get("patience", 10, "validations in a row without improvement, after which the run ends",
                              vernier::at_least(1))),
        min_delta_(options.get("min_delta", 0.0, "least improvement that counts", vernier::at_least(0))),
        restores_(options.get("restore_best", true, "the run ends with the best weights")),
        is_patience_given_(options.given("patience")) {
    remember("bad", bad_), remember("best", best_), remember("best_step", best_step_);
    remember("metrics", best_metrics_.tensors), remember("kept", kept_), remember("averages", averages_.tensors);
  }

  void attach(vernier::Bus& bus) override {
    bus.on(vernier::Event::Validated, [this](Run& run) { look(run); });
  }
  void prepare(Run& run) override {
    if (restores_) refuse_masters_of_other_ranks(run, id());
  }
  void check(const Run& run) override {
    metric_.check(run);
    // By the default patience, a short run just ends with its best weights.
    const bool is_for_weights = restores_ && !is_patience_given_;
    if (is_for_weights || run.validations == 0 || run.validations > patience_ + 1) return;
    warn("it cannot end this run early: ", run.validations,
         run.validations == 1 ? " validation is" : " validations are", " planned, and patience = ", patience_,
         " waits for ", patience_ + 1, " before the last; lower `patience` or [run] validate_every",
         restores_ && run.validations > 1 ? "; the best weights return at the end all the same" : "");
  }

 private:
  void look(Run& run) {
    const double value = metric_.value(run);
    if (metric_.is_better(value, best_step_ == 0 ? std::nullopt : std::optional(best_), min_delta_)) {
      best_ = value;
      best_step_ = run.step;
      bad_ = 0;
      best_metrics_ = {};
      for (const auto* metric : run.metrics.set_now()) {
        if (!metric->is_time) best_metrics_.put(metric->name, metric->value());
      }
      if (restores_) keep(run);
    } else {
      bad_ += 1;
    }
    const bool ends = bad_ >= patience_;
    if (ends) {
      const auto since = best_step_ == 0 ? c10::str("was never a number in ", bad_, " validations")
                                         : c10::str("has not improved on ", best_, " of step ", best_step_, " in ",
                                                    bad_, bad_ == 1 ? " validation" : " validations");
      bad_ = 0;  // a run that is trained on has its patience again
      run.control->finish(*this, metric_.name() + " " + since);
    }
    if ((run.control->finishes() || run.step == run.steps) && !kept_.empty() && best_step_ != run.step) restore(run);
  }

  void keep(const Run& run) {
    kept_.clear();
    for (const auto& parameter : run.parameters) kept_[parameter.name] = exact_weight(parameter, id()).clone();
    for (const auto& buffer : run.model->named_buffers()) kept_[buffer.key()] = buffer.value().detach().clone();
    if (auto* averages = vernier::averages_of(run)) averages_ = averages->keep(*this);
  }

  // The metrics of this validation become those of the weights that the model has now.
  void restore(Run& run) const {
    auto metrics = run.metrics;
    for (const auto& [name, value] : best_metrics_.tensors) metrics.set(name.c_str(), best_metrics_.real(name));
    run.metrics = std::move(metrics);
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : run.parameters) {
      parameter.best().detach().copy_(kept_.at(parameter.name));
      parameter.model.detach().copy_(kept_.at(parameter.name));
    }
    for (const auto& buffer : run.model->named_buffers()) buffer.value().detach().copy_(kept_.at(buffer.key()));
    if (auto* averages = vernier::averages_of(run)) averages->put_back(run, averages_, best_step_);
    info("the model has the weights of step ", best_step_, " again, where ", metric_.name(), " was ", best_);
  }

  JudgedMetric metric_;
  std::int64_t patience_;
  double min_delta_;
  bool restores_, is_patience_given_;
  double best_ = 0;
  std::int64_t best_step_ = 0;   // 0: none so far
  vernier::State best_metrics_;  // metrics of the best validation
  std::int64_t bad_ = 0;         // validations since then
  vernier::Tensors kept_;        // weights and buffers of the best validation, by name
  vernier::State averages_;      // averages of the weights at that time
};

VERNIER_PLUGIN(EarlyStopping, "early_stopping", "1.1.0")
