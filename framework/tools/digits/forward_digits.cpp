#include "forward_digits.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>

namespace vernier {

namespace {

bool has_digits(const torch::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return dtype == torch::kFloat32 || dtype == torch::kBFloat16 || dtype == torch::kFloat16;
}

const c10::StorageImpl* storage_of(const torch::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// The sum of the squares of what is finite.
double squares_of(const torch::Tensor& numbers) {
  const auto finite = torch::where(numbers.isfinite(), numbers, 0.0);
  return (finite * finite).sum().item<double>();
}

}  // namespace

std::string OperatorDigits::place() const {
  if (!layer.empty()) return name + " of the layer '" + layer + "'";
  return name + (after.empty() ? ", before the first layer" : ", after the layer '" + after + "'");
}

void ForwardDigits::begin() {
  is_on_ = true;
  passes_ += 1;
  next_ = 0;
  layer_ = after_ = "";
  made_by_.clear();
}

// Runs around the operators that called() sees, and gives them the name of the layer: with autocast these get copies of
// the weight.
Values ForwardDigits::call(const Operation& operation, Values arguments) {
  const auto outer = layer_;
  if (!operation.layer().empty()) layer_ = operation.layer();
  auto results = operation.proceed(std::move(arguments));
  if (!layer_.empty()) after_ = layer_;
  layer_ = outer;
  return results;
}

void ForwardDigits::called(const RoundedCall& call) {
  if (!is_on_ || call.outputs.empty()) return;
  const bool has_numbers = std::ranges::any_of(call.inputs, has_digits);
  const auto output = std::ranges::find_if(call.outputs, has_digits);
  if (!has_numbers || output == call.outputs.end()) {
    for (const auto& made : call.outputs) made_by_.erase(storage_of(made));
    return;
  }
  Seen seen{std::string(call.name), layer_, after_, output->scalar_type(), call.is_rounded, {}, {}, {}, 0, 0};
  for (const auto& input : call.inputs) {
    if (!has_digits(input)) continue;
    const auto found = made_by_.find(storage_of(input));
    seen.inputs.push_back(found == made_by_.end() ? -1 : found->second);
    seen.given.push_back(input.scalar_type());
  }
  record(std::move(seen), *output);
  for (const auto& made : call.outputs) made_by_[storage_of(made)] = static_cast<int>(next_) - 1;
}

void ForwardDigits::record(Seen seen, const torch::Tensor& output) {
  const auto index = next_++;
  const auto numbers = output.to(torch::kFloat64, /*non_blocking=*/false, /*copy=*/true);
  if (passes_ == 1) {
    seen_.push_back(std::move(seen));
  } else if (index >= seen_.size() || seen_[index].name != seen.name || seen_[index].last.sizes() != output.sizes()) {
    if (!other_way_) other_way_ = OperatorDigits{seen.name, seen.layer, seen.after}.place();
    is_on_ = false;
    seen_.resize(std::min(index, seen_.size()));
    std::erase_if(last_of_layer_, [&](const auto& each) { return each.second >= seen_.size(); });
    return;
  }
  auto& known = seen_[index];
  known.squares += squares_of(numbers);
  if (known.last.defined()) known.differences += squares_of(numbers - known.last.to(torch::kFloat64));
  known.last = output.clone();
  if (passes_ == 1 && !known.layer.empty()) last_of_layer_[known.layer] = index;
}

double ForwardDigits::digits_of(const Seen& seen) const {
  const double variance = seen.differences / 2 / static_cast<double>(passes_ - 1);
  return significant_digits(seen.squares / static_cast<double>(passes_), variance, seen.dtype);
}

std::vector<OperatorDigits> ForwardDigits::operators() const {
  std::vector<OperatorDigits> all;
  for (const auto& seen : seen_) {
    OperatorDigits digits{seen.name, seen.layer, seen.after, vernier::digits_of(seen.dtype), digits_of(seen)};
    for (std::size_t i = 0; i < seen.inputs.size(); ++i) {
      const auto maker = seen.inputs[i];
      const auto input = maker < 0 || static_cast<std::size_t>(maker) >= all.size()
                             ? vernier::digits_of(seen.given[i])
                             : all[static_cast<std::size_t>(maker)].output;
      digits.input = std::min(digits.input, input);
    }
    if (!seen.is_rounded) digits.input = digits.output;
    all.push_back(std::move(digits));
  }
  return all;
}

std::map<std::string, double> ForwardDigits::outputs() const {
  std::map<std::string, double> all;
  for (const auto& [layer, index] : last_of_layer_) all[layer] = digits_of(seen_[index]);
  return all;
}

}  // namespace vernier
