#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <vernier/error.h>
#include <vernier/layer_decay.h>
#include <vernier/rule_optimizer.h>
#include <vernier/run.h>

#include <algorithm>

namespace vernier {

namespace {
constexpr const char *rate_key = "learning_rate", *step_key = "step";
}

torch::Tensor& RuleOptimizer::Update::slot(const std::string& key, std::optional<torch::ScalarType> dtype) {
  const auto wanted = dtype.value_or(weight.scalar_type());
  auto& own = (*slots_)[key];
  if (old_.contains(key)) return own;
  if (own.defined() && own.sizes() != weight.sizes()) {
    throw Error(c10::str("'", *name, "/", key, "' has the shape ", own.sizes(), ", and the weights have ",
                         weight.sizes(), ": give slot() a function that makes a tensor of another shape"));
  }
  if (own.defined()) own = own.to(wanted);
  return slot(key, [&] { return at::zeros_like(weight, weight.options().dtype(wanted)); });
}

torch::Tensor& RuleOptimizer::Update::slot(const std::string& key, const std::function<torch::Tensor()>& first) {
  auto& own = (*slots_)[key];
  if (old_.contains(key)) return own;
  if (!own.defined()) own = first().clone();
  old_[key] = {own.scalar_type(), keeps_ ? own.clone() : torch::Tensor()};
  return own;
}

torch::Tensor RuleOptimizer::Update::step() {
  auto& count = slot(step_key, [&] { return at::zeros({}, weight.options().dtype(torch::kFloat)); });
  return std::exchange(counts_, true) ? count : count.add_(1);
}

void RuleOptimizer::Update::finish(const torch::Tensor& master, const torch::Tensor& skips) {
  for (const auto& [key, old] : old_) {
    auto& own = (*slots_)[key];
    own = own.detach().to(old.dtype);
    if (keeps_) own = at::where(skips, old.value, own);
  }
  if (keeps_) {
    master.copy_(at::where(skips, master, weight.to(master.scalar_type())));
  } else if (!weight.is_same(master)) {
    master.copy_(weight);
  }
}

RuleOptimizer::RuleOptimizer(Options& options, double learning_rate, std::vector<Number> numbers)
    : numbers_(std::move(numbers)),
      settings_{read(options, {{rate_key, learning_rate}}, numbers_)},
      groups_(options, [this](Options& group) { settings_.push_back(read(group, settings_.front(), numbers_)); }),
      layer_decay_(options.get("layer_decay", 1.0,
                               "factor of the last layer's learning rate; each layer below it has it once more",
                               between(1e-6, 1))) {}

RuleOptimizer::~RuleOptimizer() = default;

RuleOptimizer::Numbers RuleOptimizer::read(Options& options, const Numbers& fallbacks,
                                           const std::vector<Number>& numbers) {
  Numbers read{{rate_key, options.get(rate_key, fallbacks.at(rate_key), "step size, before schedules", at_least(0))}};
  for (const auto& [key, fallback, meaning, range] : numbers) {
    const auto before = fallbacks.find(key);
    read[key] = options.get(key, before == fallbacks.end() ? fallback : before->second, meaning, range);
  }
  return read;
}

void RuleOptimizer::prepare(Run& run) {
  run_ = &run;
  group_of_ = groups_.assign(run, id());
  rate_of_ = layer_rates(run, layer_decay_, id());
  slots_.assign(run.parameters.size(), {});
}

void RuleOptimizer::step(Run& run) {
  const torch::NoGradGuard no_grad;
  run.metrics.set(rate_key, settings_.front().at(rate_key) * run.learning_rate_factor);
  const auto& flag = run.skip_update;
  const bool is_on_host = !flag.defined() || flag.is_cpu();
  if (flag.defined() && is_on_host && flag.item<double>() != 0) return;
  for (std::size_t i = 0; i < run.parameters.size(); ++i) {
    const auto& [name, model, master, frozen, owned] = run.parameters[i];
    if (group_of_[i] == ParameterGroups::frozen || !master.grad().defined()) continue;
    const auto& options = settings_[group_of_[i]];
    Update one;
    one.keeps_ = !is_on_host;
    one.weight = one.keeps_ ? master.detach().clone() : master.detach();
    one.grad = master.grad();
    one.lr = options.at(rate_key) * rate_of_[i] * run.learning_rate_factor;
    one.name = &name;
    one.options_ = &options;
    one.slots_ = &slots_[i];
    update(one);
    one.finish(master.detach(), one.keeps_ ? flag.ne(0).to(master.device()) : torch::Tensor());
  }
}

bool RuleOptimizer::updates_each_alone() const {
  return true;
}

std::vector<MetricInfo> RuleOptimizer::metrics() const {
  return {{.name = rate_key, .meaning = "learning rate of the first parameter group, schedules included"}};
}

State RuleOptimizer::save() const {
  auto state = Optimizer::save();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].empty()) state.put(run_->parameters[i].name, State(slots_[i]));
  }
  return state;
}

void RuleOptimizer::load(const State& state) {
  Optimizer::load(state);
  const auto remembered = Optimizer::save();
  slots_.assign(slots_.size(), {});
  for (const auto& [key, tensor] : state.tensors) {
    if (remembered.has(key)) continue;
    const auto slash = key.rfind('/');
    const auto name = key.substr(0, slash);
    const auto found = std::ranges::find(run_->parameters, name, &Parameter::name);
    if (slash == std::string::npos || found == run_->parameters.end()) {
      throw Error("the saved state has '" + key + "', and the model has no parameter " + name);
    }
    const auto i = static_cast<std::size_t>(found - run_->parameters.begin());
    if (group_of_[i] == ParameterGroups::frozen || !found->owned) continue;
    slots_[i][key.substr(slash + 1)] = tensor.to(found->master.device(), tensor.scalar_type(), false, /*copy=*/true);
  }
}

}  // namespace vernier
