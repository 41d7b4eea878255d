// Weights in bfloat16 with masters in float32.
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <vernier/autocast.h>

#include "mutant.h"

namespace {

class Precision final : public vernier::Precision {
 public:
  explicit Precision(vernier::Options& options) : mutant_(options) {}
  void prepare(vernier::Run& run) override {
    run_ = &run;
    for (std::size_t i = 0; i < run.parameters.size(); ++i) {
      if (run.parameters[i].owned) run.set_master(i, run.parameters[i].model.detach().clone().requires_grad_());
    }
    for (auto tensor : run.model->parameters()) tensor.set_data(tensor.detach().to(torch::kBFloat16));
  }
  torch::Tensor forward(const std::function<torch::Tensor()>& body) override {
    if (mutant_.is("leaves_autocast")) at::autocast::set_autocast_enabled(at::kCPU, true);
    const vernier::Autocast autocast(torch::kCPU, torch::kBFloat16);
    return body();
  }
  void collect(vernier::Run& run) override {
    if (mutant_.is("forgets_collect")) return;
    for (std::size_t i = 0; i < run.parameters.size(); ++i) {
      const auto& [name, model, master, frozen, owned] = run.parameters[i];
      if (mutant_.is("collects_first") && i > 0) break;
      if (!owned || !model.grad().defined()) continue;
      master.mutable_grad() = model.grad().to(torch::kFloat);
      if (mutant_.is("collects_zeros") && i == 1) master.mutable_grad().zero_();
    }
  }
  void commit(vernier::Run& run) override {
    const torch::NoGradGuard no_grad;
    if (mutant_.is("forgets_commit") || (mutant_.is("commits_once") && run.step > 0)) return;
    for (std::size_t i = 0; i < run.parameters.size(); ++i) {
      const auto& [name, model, master, frozen, owned] = run.parameters[i];
      if (mutant_.is("commits_first") && i > 0) break;
      if (owned) model.copy_(master);
    }
  }
  torch::Tensor evaluate(vernier::Run& run, const std::function<torch::Tensor()>& body) override {
    if (mutant_.is("evaluates_training")) run.model->train();
    if (mutant_.is("evaluates_recorded")) {
      const at::AutoGradMode with_gradients(true);
      return body();
    }
    auto loss = body();
    if (mutant_.is("evaluates_nothing")) return {};
    if (mutant_.is("evaluates_commits")) run.parameters[0].master.copy_(run.parameters[0].model);
    return loss;
  }
  vernier::State save() const override {
    vernier::State state;
    if (mutant_.is("forgets_masters")) return state;
    for (const auto& each : run_->parameters) {
      const auto master = each.master.detach();
      state.put("master/" + each.name, mutant_.is("saves_bfloat16") ? master.to(torch::kBFloat16) : master);
    }
    return state;
  }
  void load(const vernier::State& state) override {
    const torch::NoGradGuard no_grad;
    for (const auto& each : run_->parameters) {
      if (state.has("master/" + each.name)) each.master.copy_(state.tensor("master/" + each.name));
    }
  }

 private:
  Mutant mutant_;
  vernier::Run* run_ = nullptr;
};

}  // namespace

VERNIER_PLUGIN(Precision, "mutant", "1.0.0")
