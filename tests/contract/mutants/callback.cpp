// Divides the gradients by an average of the loss, in float64.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <fcntl.h>
#include <torch/nn/module.h>
#include <torch/utils.h>
#include <unistd.h>
#include <vernier/with_weights.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "mutant.h"

namespace {

using vernier::Event;
using vernier::Run;

class Callback final : public vernier::Callback {
 public:
  explicit Callback(vernier::Options& options) : mutant_(options) {}
  ~Callback() override {
    if (thread_.joinable()) mutant_.is("leaves_thread") ? thread_.detach() : thread_.join();
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::StepBegin, [this](Run& run) { begin(run); });
    bus.on(Event::BatchReady, [this](Run& run) {
      if (mutant_.is("edits_batch")) run.micro_batch.tensors[0].mul_(1.01);
      if (mutant_.is("edits_whole_batch")) run.batch.tensors[0].add_(0.01);
    });
    bus.on(Event::BackwardDone, [this](Run& run) {
      if (mutant_.is("writes_loss_early")) run.loss = torch::full({}, 1.0, torch::kFloat);
      if (!mutant_.is("clips_scaled")) return;
      for (const auto& each : run.parameters) each.model.mutable_grad().clamp_(-0.01, 0.01);
    });
    bus.on(Event::GradientsReady, [this](Run& run) { scale(run); });
    bus.on(Event::UpdateDone, [this](Run& run) {
      const torch::NoGradGuard no_grad;
      if (mutant_.is("restores_weights")) run.parameters[0].master.copy_(first_of(run));
    });
    bus.on(Event::StepEnd, [this](Run& run) { end(run); });
  }
  torch::Tensor evaluate(Run& run, const std::function<torch::Tensor()>& body) override {
    if (mutant_.is("evaluates_training")) run.model->train();
    if (mutant_.is("evaluates_other_weights")) run.parameters[0].model.mul_(0.5);
    if (mutant_.is("evaluates_drawing")) (void)torch::rand({});
    auto loss = body();
    if (mutant_.is("evaluates_nothing")) return {};
    if (mutant_.is("evaluates_dropping_gradients")) run.model->zero_grad();
    return loss;
  }
  vernier::State save() const override {
    vernier::State state;
    if (mutant_.is("saves_float32")) state.put("average", torch::full({}, average_, torch::kFloat));
    if (!mutant_.is("saves_float32") && !mutant_.is("forgets_average")) state.put("average", average_);
    return state;
  }
  void load(const vernier::State& state) override {
    if (state.has("average")) average_ = state.tensor("average").item<double>();
  }

 private:
  torch::Tensor first_of(const Run& run) {
    if (!first_.defined()) first_ = run.parameters[0].master.detach().clone();
    return first_;
  }
  void begin(Run& run) {
    if (mutant_.is("restores_weights")) (void)first_of(run);
    // A rule that is all that this one does, and that it forgets.
    const std::int64_t late = mutant_.is("late") ? 60 : mutant_.is("never") ? 1000 : 0;
    if (late > 0 && ++quiet_steps_ == late) run.learning_rate_factor = 0.5;
    if (mutant_.is("seeds")) torch::manual_seed(7);
    if (mutant_.is("looks_drawing")) (void)torch::rand({});
    if (mutant_.is("flushes_denormals")) at::globalContext().setFlushDenormal(true);
    if (mutant_.is("flushes_denormals_once") && run.step == 3) at::globalContext().setFlushDenormal(true);
  }
  void scale(Run& run) {
    const bool is_raw = mutant_.is("clips_in_memory");
    for (const auto& each : run.parameters) {
      auto& gradient = each.master.mutable_grad();
      if (is_raw && gradient.defined()) gradient.clamp_(-0.01, 0.01);
    }
    if (is_raw) return;
    if (!mutant_.is("reads_in_memory")) (void)run.gradients();
    for (std::size_t i = 0; i < run.parameters.size(); ++i) {
      auto& gradient = run.parameters[i].master.mutable_grad();
      if (!gradient.defined()) continue;
      if (mutant_.is("reads_in_memory")) gradient.div_(gradient.norm() + 1);
      if (mutant_.is("zeroes")) gradient.zero_();
      if (mutant_.is("zeroes_one") && i == 1) gradient.zero_();
      if (mutant_.is("negates")) gradient.neg_();
      if (mutant_.is("late") || mutant_.is("never")) continue;
      gradient.mul_(1 / (1 + average_));
    }
    if (mutant_.is("drops")) run.parameters[0].master.mutable_grad().reset();
    if (mutant_.is("drops_all")) {
      for (const auto& each : run.parameters) each.master.mutable_grad().reset();
    }
  }
  void end(Run& run) {
    average_ = 0.9 * average_ + 0.1 * run.loss.item<double>();
    if (mutant_.is("writes_loss")) run.loss = torch::full({}, average_, torch::kFloat);
    if (mutant_.is("writes_loss_in_place")) run.loss.mul_(2);
    if (mutant_.is("evals")) run.model->eval();
    if (mutant_.is("prints")) std::cout << "step " << run.step << '\n';
    if (mutant_.is("printfs")) std::printf("step %d\n", static_cast<int>(run.step));
    if (mutant_.is("sets_environment")) ::setenv("OMP_NUM_THREADS", "7", 1);
    if (mutant_.is("leaves_file")) (void)::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (mutant_.is("leaves_thread") && !thread_.joinable()) {
      thread_ = std::thread([] { std::this_thread::sleep_for(std::chrono::seconds(600)); });
    }
    if (mutant_.is("unlocks_gradients")) c10::GradMode::set_enabled(false);
  }

  Mutant mutant_;
  std::int64_t quiet_steps_ = 0;
  double average_ = 0;
  torch::Tensor first_;
  std::thread thread_;
};

}  // namespace

VERNIER_PLUGIN(Callback, "mutant", "1.0.0")
