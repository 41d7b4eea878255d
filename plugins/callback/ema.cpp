// ema: keeps an exponential moving average of the weights, for validations and checkpoints. After each update that was
// applied, average = decay * average + (1 - decay) * weights. The first average is the weights as they are. The average
// is in float32, whatever dtype the weights are trained in. It is taken of the master weights if there are some. A
// validation runs with the average in the model, and each checkpoint has it beside the trained weights. The training
// itself does not change.
//   decay = 0.999
//   warmup = false      a smaller decay at first, min(decay, (1 + n) / (10 + n)) after n updates, as in TensorFlow's
//                       ExponentialMovingAverage with num_updates: the weights of the beginning are forgotten sooner
//   every = 1           steps between updates of the average; one whose own update was skipped is passed over
//   start = 0           steps before the first
//   validate = "ema"    ema: validation_loss is the average's; both: the trained weights' too, as the metric
//                       trained_validation_loss, for twice the time; trained: theirs alone
// Buffers are not averaged: batch normalization keeps the statistics of the trained weights, as in PyTorch's default.
// Each update of the average costs a pass over the weights. The average takes four bytes a weight. A validation takes
// the memory of the weights once more.
// Sources: Polyak and Juditsky 1992; torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn.
#include <vernier/ema.h>
#include <vernier/sdk.h>
#include <vernier/with_weights.h>

#include "average.h"

using vernier::Event;
using vernier::Run;

class Ema final : public vernier::Callback {
 public:
  explicit Ema(vernier::Options& options)
      : options_{.decay =
                     options.get("decay", 0.999, "what is kept of the average in an update", vernier::between(0, 1)),
                 .warmup = options.get("warmup", false, "a smaller decay at first")},
        every_(options.get("every", 1, "steps between updates of the average", vernier::at_least(1))),
        start_(options.get("start", 0, "steps before the first", vernier::at_least(0))),
        validate_(options.choose("validate", "ema", {"ema", "both", "trained"}, "whose loss a validation reports")) {
    if (options_.decay == 1) options.refuse("decay", "must be below 1, or the average would never move");
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::StepEnd, [this](Run& run) {
      const auto steps = run.step - start_;
      if (steps > 0 && steps % every_ == 0) average_->update(weights(), run.skip_update);
    });
  }

  void check(const Run& run) override {
    if (run.steps == 0 || start_ + every_ <= run.steps) return;
    warn("it never averages: start = ", start_, " and every = ", every_, ", and the run has ", run.steps, " steps");
  }

  std::vector<vernier::MetricInfo> measures() const override {
    return validate_ == "both" ? metrics() : std::vector<vernier::MetricInfo>();
  }
  std::vector<vernier::MetricInfo> metrics() const override {
    return {{"trained_validation_loss", vernier::Better::lower, "",
             "validation loss of the weights that are not averaged"}};
  }
  torch::Tensor evaluate(Run& run, const std::function<torch::Tensor()>& body) override {
    if (validate_ == "trained") return body();
    torch::Tensor trained;
    if (validate_ == "both" || average_->is_empty()) trained = body();
    if (validate_ == "both" && trained.defined()) run.metrics.set("trained_validation_loss", trained);
    return average_->is_empty() ? trained : vernier::with_weights(average_->tensors(), run, body);
  }

  void prepare(Run& run) override {
    refuse_masters_of_other_ranks(run, id());
    run_ = &run;
    average_.emplace(options_);
  }

  vernier::State save() const override {
    vernier::State state;
    if (average_->tensors().empty()) return state;
    state.put("updates", average_->updates());
    save_average(state, *run_, average_->tensors());
    return state;
  }

  void load(const vernier::State& state) override {
    if (!state.has("updates")) return average_->load_state_dict({});
    vernier::State saved;
    saved.put("updates", state.tensor("updates"));
    const auto average = load_average(state, *run_);
    for (std::size_t i = 0; i < average.size(); ++i) saved.put(c10::str("average/", i), average[i]);
    average_->load_state_dict(saved);
  }

 private:
  std::vector<torch::Tensor> weights() const {
    std::vector<torch::Tensor> all;
    all.reserve(run_->parameters.size());
    for (const auto& parameter : run_->parameters) all.push_back(exact_weight(parameter, id()));
    return all;
  }

  vernier::EmaOptions options_;
  std::int64_t every_, start_;
  std::string validate_;
  const Run* run_ = nullptr;
  std::optional<vernier::Ema> average_;
};

VERNIER_PLUGIN(Ema, "ema", "1.0.0")
