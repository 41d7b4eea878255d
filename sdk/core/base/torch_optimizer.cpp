#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <vernier/error.h>
#include <vernier/torch_optimizer.h>

#include <algorithm>
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
  rates_.clear();
  std::vector<torch::Tensor> own;
  for (const auto& group : optimizer_->param_groups()) {
    own.insert(own.end(), group.params().begin(), group.params().end());
    rates_.push_back(group.options().get_lr());
  }
  const auto refuse = [](const std::string& what) {
    throw Error(what + "; give its groups the tensors that its function is called with, each once",
                Error::Kind::plugin);
  };
  for (const auto& parameter : run.parameters) {
    if (std::ranges::none_of(own, [&](const auto& each) { return each.is_same(parameter.master); })) {
      refuse("it leaves out the parameter '" + parameter.name + "'");
    }
  }
  if (own.size() == weights.size()) return;
  refuse(c10::str("it has ", own.size(), " parameters in its groups, and the model has ", weights.size()));
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
