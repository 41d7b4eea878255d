// Counts the steps, and looks at the loss.
#include <ATen/ops/rand.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <cstdio>
#include <thread>

#include "mutant.h"

namespace {

using vernier::Event;
using vernier::Run;

class Monitor final : public vernier::Monitor {
 public:
  explicit Monitor(vernier::Options& options) : mutant_(options) {}
  void attach(vernier::Bus& bus) override {
    bus.on(Event::BatchReady, [this](const Run& run) {
      if (mutant_.is("edits_batch")) run.micro_batch.tensors[0].mul_(1.01);
    });
    bus.on(Event::GradientsReady, [this](const Run& run) {
      const torch::NoGradGuard no_grad;
      if (mutant_.is("touches_gradients")) run.parameters[0].master.grad().mul_(0.5);
      if (mutant_.is("reads_gradients")) const_cast<Run&>(run).gradients()[0].clamp_(-1e-3, 1e-3);
    });
    bus.on(Event::StepEnd, [this](const Run& run) { end(run); });
  }
  torch::Tensor evaluate(Run& run, const std::function<torch::Tensor()>& body) override {
    auto loss = body();
    return mutant_.is("evaluates_nothing") ? torch::Tensor()
           : mutant_.is("evaluates_twice") ? (run.model->train(), body())
                                           : loss;
  }
  vernier::State save() const override {
    vernier::State state;
    if (!mutant_.is("forgets")) state.put("steps", steps_);
    if (mutant_.is("forgets")) state.put("since", steps_);
    return state;
  }
  void load(const vernier::State& state) override {
    if (state.has("steps")) steps_ = state.integer("steps");
  }

 private:
  void end(const Run& run) {
    const torch::NoGradGuard no_grad;
    steps_ += 1;
    if (mutant_.is("draws")) (void)torch::rand({});
    if (mutant_.is("draws_in_thread")) std::thread([] { (void)torch::rand({}); }).join();
    if (mutant_.is("draws_last") && run.step == run.steps) (void)torch::rand({});
    if (mutant_.is("writes_loss")) run.loss.zero_();
    if (mutant_.is("evals")) run.model->eval();
    if (mutant_.is("evals_in_thread")) std::thread([&] { run.model->eval(); }).join();
    if (mutant_.is("touches_weights")) run.parameters[0].model.mul_(0.999);
    if (mutant_.is("touches_buffer")) run.model->buffers()[0].add_(1);
    if (mutant_.is("seeds")) torch::manual_seed(1);
    if (mutant_.is("drops_gradients")) run.model->zero_grad();
    if (mutant_.is("throws")) throw std::runtime_error("boom");
    if (mutant_.is("prints")) std::puts("looked");
  }
  Mutant mutant_;
  std::int64_t steps_ = 0;
};

}  // namespace

VERNIER_PLUGIN(Monitor, "mutant", "1.0.0")
