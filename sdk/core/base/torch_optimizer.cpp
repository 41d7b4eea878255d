#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <vernier/error.h>
#include <vernier/torch_optimizer.h>

#include <utility>

namespace vernier {

TorchOptimizer::TorchOptimizer(Make make) : make_(std::move(make)) {
  set_id("optimizer/torch");
}

TorchOptimizer::~TorchOptimizer() = default;

void TorchOptimizer::prepare(Run& run) {
  std::vector<torch::Tensor> weights;
  for (const auto& parameter : run.parameters) weights.push_back(parameter.master);
  optimizer_ = make_(weights);
  if (optimizer_ == nullptr) throw Error("the function that makes it returned null", Error::Kind::plugin);
  std::size_t count = 0;
  rates_.clear();
  for (const auto& group : optimizer_->param_groups()) {
    count += group.params().size();
    rates_.push_back(group.options().get_lr());
  }
  if (count == weights.size()) return;
  throw Error(c10::str("it has ", count, " of the ", weights.size(), " parameters in its groups; give it all of them"),
              Error::Kind::plugin);
}

void TorchOptimizer::step(Run& run) {
  if (run.skip_update.defined() && run.skip_update.item<double>() != 0) return;
  for (std::size_t i = 0; i < rates_.size(); ++i) {
    optimizer_->param_groups()[i].options().set_lr(rates_[i] * run.learning_rate_factor);
  }
  const bool asks_again = dynamic_cast<const torch::optim::LBFGS*>(optimizer_.get()) != nullptr;
  asks_again ? optimizer_->step([&run] { return run.control->recompute(); }) : optimizer_->step();
}

State TorchOptimizer::save() const {
  return state_dict(*optimizer_);
}

void TorchOptimizer::load(const State& state) {
  load_state_dict(*optimizer_, state);
  for (std::size_t i = 0; i < rates_.size(); ++i) optimizer_->param_groups()[i].options().set_lr(rates_[i]);
}

}  // namespace vernier
