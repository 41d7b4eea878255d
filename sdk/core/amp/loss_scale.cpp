#include <ATen/ATen.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/error.h>
#include <vernier/loss_scale.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "loss_scale_operators.h"
#include "optim/tensor_lists.h"

namespace vernier {

namespace {

constexpr double largest = std::numeric_limits<float>::max();
constexpr double smallest_normal = std::numeric_limits<float>::min();

torch::Tensor counter(std::int64_t value, torch::Device device) {
  return torch::full({}, value, torch::dtype(torch::kInt32).device(device));
}

std::int32_t& number_in(const torch::Tensor& tensor) {
  return *tensor.data_ptr<std::int32_t>();
}

// The tracker's value after an overflow: the good steps of the row so far.
std::int32_t row_start(const LossScaleOptions& options) {
  return options.counts_first ? 0 : -1;
}

double floor_of(const LossScaleOptions& options) {
  return options.min_scale > 0 ? options.min_scale : smallest_normal;
}
double ceiling_of(const LossScaleOptions& options) {
  return options.max_scale > 0 ? options.max_scale : largest;
}

}  // namespace

LossScaleOptions loss_scale_preset(const std::string& name) {
  LossScaleOptions options;
  if (name == "pytorch") return options;
  if (name == "deepspeed") {
    options.growth_interval = 1000;
    options.min_scale = 1;
    options.hysteresis = 2;
    options.counts_first = false;
    return options;
  }
  if (name == "megatron") {
    options.init_scale = 4294967296.0;
    options.growth_interval = 1000;
    options.min_scale = 1;
    options.hysteresis = 2;
    return options;
  }
  if (name == "apex") {
    options.max_scale = 16777216.0;
    return options;
  }
  throw Error("\"" + name + "\" is not a preset of a loss scale: pytorch, deepspeed, megatron or apex",
              Error::Kind::configuration);
}

Contradiction contradiction(const LossScaleOptions& o) {
  if (!(o.init_scale >= smallest_normal && o.init_scale <= largest)) {
    return {"init_scale", "must be a normal float32 number above 0"};
  }
  if (!(o.growth_factor > 1)) return {"growth_factor", "must be above 1, or the scale would not grow"};
  if (!(o.backoff_factor > 0 && o.backoff_factor < 1)) {
    return {"backoff_factor", "must be between 0 and 1, or the scale would not become smaller"};
  }
  if (o.growth_interval < 1) return {"growth_interval", "must be at least 1"};
  if (o.hysteresis < 1) return {"hysteresis", "must be at least 1: the overflow at which the scale is lowered"};
  if (!(o.min_scale == 0 || o.min_scale >= smallest_normal)) return {"min_scale", "must be a normal float32 number"};
  if (!(o.max_scale >= 0 && o.max_scale <= largest)) return {"max_scale", "must be a float32 number, or 0 for none"};
  if (o.min_scale > o.init_scale) {
    return {"min_scale", c10::str("is above init_scale = ", o.init_scale,
                                  ": the first step would break it; lower it, or raise init_scale")};
  }
  if (o.max_scale > 0 && o.max_scale < o.init_scale) {
    return {"max_scale", c10::str("is below init_scale = ", o.init_scale,
                                  ": the first step would break it; raise it, or lower init_scale")};
  }
  return {};
}

LossScale::LossScale(torch::Device device, LossScaleOptions options) : options_(options) {
  if (const auto [option, reason] = contradiction(options_); !option.empty()) {
    throw Error(option + " " + reason, Error::Kind::configuration);
  }
  scale_ = torch::full({}, options_.init_scale, torch::dtype(torch::kFloat32).device(device));
  tracker_ = counter(row_start(options_), device);
  left_ = counter(options_.hysteresis, device);
}

void LossScale::update(const torch::Tensor& found_inf, const torch::Tensor& passed_over) {
  const torch::NoGradGuard no_grad;
  if (!scale_.is_cpu()) {
    const auto& device = scale_.device();
    update_by_operators(options_, {scale_, tracker_, left_}, moved(found_inf, device),
                        passed_over.defined() ? moved(passed_over, device) : passed_over);
  } else if (!passed_over.defined() || !passed_over.item<bool>()) {
    update_on_host(found_inf.item<double>() != 0);
  }
}

void LossScale::update_on_host(bool overflow) {
  auto& scale = *scale_.data_ptr<float>();
  auto &tracker = number_in(tracker_), &left = number_in(left_);
  if (!overflow) {
    if (options_.refill == Refill::good_step) left = static_cast<std::int32_t>(options_.hysteresis);
    if (++tracker < options_.growth_interval) return;
    tracker = 0;
    left = static_cast<std::int32_t>(options_.hysteresis);
    const auto grown = static_cast<float>(scale * options_.growth_factor);
    if (std::isfinite(grown)) scale = std::min(grown, static_cast<float>(ceiling_of(options_)));
    return;
  }
  tracker = row_start(options_);
  if (left > 1) {
    --left;
    return;
  }
  const auto lower = static_cast<float>(scale * options_.backoff_factor);
  scale = std::max(lower, static_cast<float>(floor_of(options_)));
}

// _amp_update_scale_ is PyTorch's rule, and the rest adds the other rules to it.
void update_by_operators(const LossScaleOptions& options, const ScaleTensors& state, const torch::Tensor& found_inf,
                         const torch::Tensor& passed_over) {
  const auto& [scale, tracker, left] = state;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> kept;
  if (passed_over.defined()) {
    for (const auto& each : {scale, tracker, left}) kept.emplace_back(each, each.clone());
  }
  const auto bad = found_inf.ne(0);
  const auto absorbed = bad.logical_and(left.gt(1));
  const auto lowered = bad.logical_and(left.le(1));
  const auto grows = tracker.add(1).ge(options.growth_interval).logical_and(bad.logical_not());
  // An absorbed overflow looks like a good step to the kernel: one before the row's start becomes that.
  tracker.masked_fill_(absorbed, row_start(options) - 1);
  auto lowers = lowered.to(torch::kFloat32);
  auto scale_now = scale, tracker_now = tracker;
  at::_amp_update_scale_(scale_now, tracker_now, lowers, options.growth_factor, options.backoff_factor,
                         options.growth_interval);
  scale.clamp_(floor_of(options), ceiling_of(options));
  if (!options.counts_first) tracker.sub_(lowered.to(torch::kInt32));
  const auto refilled = options.refill == Refill::good_step ? bad.logical_not() : grows;
  left.sub_(absorbed.to(torch::kInt32)).masked_fill_(refilled, options.hysteresis);
  for (auto& [now, before] : kept) now.copy_(at::where(passed_over, before, now));
}

double LossScale::value() const {
  return scale_.item<double>();
}

State LossScale::state_dict() const {
  State state;
  state.put("scale", scale_.to(torch::kFloat64));
  state.put("_growth_tracker", tracker_.to(torch::kInt64));
  state.put("_hysteresis", left_.to(torch::kInt64));
  return state;
}

void LossScale::load_state_dict(const State& state) {
  const double scale = state.real("scale");
  if (!(scale > 0 && scale <= largest))
    throw Error(c10::str("the saved scale is ", scale, ": it must be above 0 and finite"));
  const auto tracker = state.integer("_growth_tracker");
  scale_.fill_(std::clamp(scale, floor_of(options_), ceiling_of(options_)));
  // A row may be longer than the current interval: then it ends with the next good step.
  tracker_.fill_(std::clamp<std::int64_t>(tracker, row_start(options_), options_.growth_interval - 1));
  left_.fill_(state.has("_hysteresis") ? std::min(state.integer("_hysteresis"), options_.hysteresis)
                                       : options_.hysteresis);
}

torch::Tensor underflow_share(const TensorVector& scaled_gradients) {
  constexpr std::int64_t rows = 64;
  constexpr double smallest = 0x1p-14;
  const torch::NoGradGuard no_grad;
  TensorVector rows_of;  // share times elements, and elements, of each
  for (const auto& gradient : scaled_gradients) {
    if (gradient.layout() != torch::kStrided || gradient.numel() == 0) continue;
    if (draft::is_elsewhere(gradient)) {
      rows_of.push_back(torch::zeros({2}, torch::kFloat32));
      continue;
    }
    auto matrix = gradient.dim() < 2 ? gradient.reshape({1, -1}) : gradient.flatten(0, -2);
    if (matrix.size(0) > rows) {
      const auto every = (matrix.size(0) + rows - 1) / rows;
      matrix = matrix.slice(0, 0, matrix.size(0), every);
    }
    const auto size = matrix.abs();
    const auto used = size.amax(1, /*keepdim=*/true).gt(0);
    const auto low = size.lt(smallest).logical_and(used).sum().to(torch::kFloat32);
    const auto all = used.sum().to(torch::kFloat32).mul_(static_cast<double>(size.size(1))).clamp_min_(1);
    const auto numel = used.any().to(torch::kFloat32).mul_(static_cast<double>(gradient.numel()));
    rows_of.push_back(torch::stack({low.div_(all).mul_(numel), numel}));
  }
  if (rows_of.empty()) return {};
  for (auto& row : rows_of) row = moved(row, rows_of.front().device());
  const auto of_each = torch::stack(rows_of);
  draft::GradientParts::sum(of_each);
  const auto sums = torch::zeros({2}, of_each.options());
  for (const auto& row : of_each.unbind()) sums.add_(row);
  return torch::where(sums[1] > 0, sums[0] / sums[1], torch::ones({}, sums.options()));
}

}  // namespace vernier
