#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/control.h>
#include <vernier/lab/learned_numbers.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace vernier {

constexpr const char* of_gradient = "/gradient";  // it is saved while a step is under way

void LearnedNumbers::attach(Bus& bus) {
  bus.on(Event::BatchReady, [this](Run& run) { is_new_pass_ = is_new_pass_ || !run.loss.defined(); });
  bus.on(Event::UpdateDone, [this](Run& run) { learn(run); });
}

double LearnedNumbers::of(const Operand& operand, const std::function<double()>& first) {
  if (const auto found = numbers_.find(operand.key); found != numbers_.end()) return found->second.value;
  const double value = first ? first() : 1;
  if (operand.is_recorded && value > 0 && std::isfinite(value)) numbers_[operand.key].value = value;
  return value;
}

void LearnedNumbers::add_gradient(const Operand& operand, const torch::Tensor& parts) {
  if (std::exchange(is_new_pass_, false)) {
    for (auto& [key, number] : numbers_) number.gradient = 0;
  }
  const auto found = numbers_.find(operand.key);
  if (found != numbers_.end()) found->second.gradient += parts.sum(at::kDouble).item<double>();
}

void LearnedNumbers::learn(const Run& run) {
  State own;
  for (auto& [key, number] : numbers_) {
    own.put(key, at::tensor({number.value, number.gradient}, at::kDouble));
    number.gradient = 0;
  }
  if (run.skip_update.defined() && run.skip_update.item<double>() != 0) return;
  std::map<std::string, std::vector<at::Tensor>> of_ranks;
  const bool is_alone = run.control == nullptr || run.control->ranks() == 1;
  for (const auto& state : is_alone ? std::vector{own} : run.control->gather(own)) {
    for (const auto& [key, number] : state.tensors) of_ranks[key].push_back(number);
  }
  for (const auto& [key, all] : of_ranks) {
    const auto sums = at::stack(all).sum(0);
    const double value = sums[0].item<double>() / static_cast<double>(all.size());
    const double slope = sums[1].item<double>() / run.amp.current_scale().value_or(1) + decay_ * value;
    const double next = value - rate_ * run.learning_rate_factor * slope;
    numbers_[key].value = std::isfinite(next) ? std::max(next, value / 2) : value;
  }
}

State LearnedNumbers::save() const {
  State state;
  for (const auto& [key, number] : numbers_) {
    state.put(key, number.value);
    if (number.gradient != 0) state.put(key + of_gradient, number.gradient);
  }
  return state;
}

void LearnedNumbers::load(const State& state) {
  numbers_.clear();
  for (const auto& [key, ignored] : state.tensors) {
    if (key.ends_with(of_gradient)) continue;
    numbers_[key] = {state.real(key), state.has(key + of_gradient) ? state.real(key + of_gradient) : 0};
  }
}

}  // namespace vernier
