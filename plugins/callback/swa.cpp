// swa: stochastic weight averaging. The average of the weights after steps from, from + every, from + 2 * every and so
// on, all counted alike, is what validations run with. Every checkpoint has it beside the trained weights. The training
// itself does not change. Combine it with a learning rate that stays high (callback/schedule, kind = "constant").
//   from                 required: the step after which the weights are first averaged, such as three quarters of all
//   every = 1            steps between two averaged weights, such as those of an epoch
// The average is float32, or float64 for float64 weights, and is taken of the master weights if there are some. It
// takes four bytes a weight, and a validation takes the memory of the weights once more. Buffers are not averaged:
// batch normalization keeps the statistics of the trained weights. Where it matters, compute them again for the
// average, as torch.optim.swa_utils.update_bn does. An update that was skipped counts too, with the weights as they
// were. Sources: Izmailov et al., UAI 2018; torch.optim.swa_utils.AveragedModel.
#include <ATen/ops/_foreach_lerp.h>
#include <vernier/sdk.h>
#include <vernier/with_weights.h>

#include "average.h"

using vernier::Event;
using vernier::Run;

class Swa final : public vernier::Callback {
 public:
  explicit Swa(vernier::Options& options)
      : from_(options.require<std::int64_t>("from", "step after which the weights are first averaged",
                                            vernier::at_least(1))),
        every_(options.get("every", 1, "steps between two averaged weights", vernier::at_least(1))) {
    remember("averaged", averaged_);
    remember([this](vernier::State& state) { save_average(state, *run_, average_); },
             [this](const vernier::State& state) {
               average_ = averaged_ > 0 ? load_average(state, *run_) : std::vector<torch::Tensor>();
             });
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::StepEnd, [this](Run& run) {
      const auto since = run.step - from_;
      if (since >= 0 && since % every_ == 0) add(run);
    });
  }
  void prepare(Run& run) override {
    refuse_masters_of_other_ranks(run, id());
    run_ = &run;
  }

  void check(const Run& run) override {
    if (run.steps == 0 || from_ <= run.steps) return;
    warn("it never averages: from = ", from_, ", and the run has ", run.steps, " steps");
  }

  torch::Tensor evaluate(Run& run, const std::function<torch::Tensor()>& body) override {
    return average_.empty() ? body() : vernier::with_weights(average_, run, body);
  }

 private:
  static torch::ScalarType dtype_of(const torch::Tensor& weight) {
    return weight.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  }

  // Uses PyTorch's operation to get its bits.
  void add(const Run& run) {
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> weights;
    for (const auto& parameter : run.parameters) {
      const auto weight = exact_weight(parameter, id());
      weights.push_back(weight.to(dtype_of(weight), false, /*copy=*/averaged_ == 0));
    }
    if (averaged_ == 0) {
      average_ = std::move(weights);
    } else if (!weights.empty()) {
      at::_foreach_lerp_(average_, weights, 1 / static_cast<double>(averaged_ + 1));
    }
    averaged_ += 1;
  }

  std::int64_t from_, every_;
  const Run* run_ = nullptr;
  std::vector<torch::Tensor> average_;  // in the order of run.parameters; empty before the first
  std::int64_t averaged_ = 0;
};

VERNIER_PLUGIN(Swa, "swa", "1.0.0")
