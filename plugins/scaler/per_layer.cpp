// per_layer: scales the loss, and the gradients inside each layer by a further factor of that layer. An operation with
// a layer's weight multiplies the gradient of its output by the factor, and divides the gradients of its inputs and
// weights by it. So everything outside the layer, such as residual sums and tied weights, has the scale of the loss
// alone, while the layer's own products use the whole range of float16. Factors are powers of two, so gradients that
// are finite and not too small keep their bits. An overflow that began in a layer lowers the factor of that layer; any
// other overflow lowers the scale of the loss. Source: R. Zhao et al., Adaptive Loss Scaling for Mixed Precision
// Training, 2019 (arXiv 1910.12385), and FairScale's LayerwiseGradientScaler, which have one scale for each layer.
// Factors within one backward pass are our own.
//   init_scale = 65536        of the loss, which follows PyTorch's rule
//   growth_interval = 2000    steps without an overflow of its own until a layer's factor, or the scale of the loss,
//                             doubles; the layers start at different points of it, so they double in turn
//   max_factor = 256          a power of two; a layer's factor starts at 1 and stays between 1/max_factor and this
//   group = []                patterns of layers that share a factor, * for any text: ["h.*.mlp.*"]; each other layer
//                             has a factor of its own
//   min_scale = 6.103515625e-05   of the loss
//   overflows_in_a_row = 200, warn_below = 1, warn_above = 1099511627776, measure_every = 100   see scale_watch.h
// Weights must be float32 (precision level O1): 16-bit weight gradients would lose again what the factors save.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/nn/module.h>
#include <vernier/autograd_node.h>
#include <vernier/layers.h>
#include <vernier/loss_scale.h>
#include <vernier/name_pattern.h>

#include <algorithm>
#include <cmath>

#include "scale_watch.h"

namespace {

using vernier::Event;
using vernier::Values;

// In which layers the overflows of a step began: a flag for each factor.
struct Culprits {
  std::vector<torch::Tensor> flags;  // 0-dim bool, undefined for none
  void add(std::size_t unit, const torch::Tensor& flag) {
    flags[unit] = flags[unit].defined() ? flags[unit].logical_or(flag) : flag;
  }
};

// One call of an operation.
struct Call {
  std::shared_ptr<Culprits> culprits;
  std::size_t unit;
  torch::Tensor arrived;  // whether the gradient of its output was finite
};

torch::Tensor is_finite(const torch::Tensor& gradient) {
  const auto values = gradient.is_sparse() ? gradient._values() : gradient;
  return values.sum(torch::kFloat32).isfinite();  // inf and nan spread; finite 16-bit numbers cannot overflow
}

// The identity in forward; multiplies the gradient in backward.
class Multiply final : public torch::autograd::Node {
 public:
  Multiply(std::shared_ptr<Call> call, torch::Tensor factor, bool is_output)
      : call_(std::move(call)), factor_(std::move(factor)), is_output_(is_output) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const torch::NoGradGuard no_grad;
    const auto& gradient = gradients[0];
    if (!gradient.defined()) return {gradient};
    const auto finite = is_finite(gradient);
    if (is_output_) {
      call_->arrived = finite;
    } else if (call_->arrived.defined()) {
      call_->culprits->add(call_->unit, call_->arrived.logical_and(finite.logical_not()));
    }
    return {gradient * factor_};
  }
  std::string name() const override { return "VernierLayerScale"; }

 private:
  std::shared_ptr<Call> call_;
  torch::Tensor factor_;
  bool is_output_;
};

torch::Tensor multiplied(const torch::Tensor& tensor, const std::shared_ptr<Call>& call, const torch::Tensor& factor,
                         bool is_output) {
  if (!tensor.defined() || !tensor.requires_grad()) return tensor;
  const auto node = vernier::make_node<Multiply>(call, factor, is_output);
  node->set_next_edges(torch::autograd::collect_next_edges(tensor));
  auto same = tensor.detach();
  torch::autograd::set_history(same, node);
  return same;
}

void multiply(c10::IValue& value, const std::shared_ptr<Call>& call, const torch::Tensor& factor, bool is_output) {
  if (value.isTensor()) {
    value = multiplied(value.toTensor(), call, factor, is_output);
  } else if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (auto& tensor : tensors) tensor = multiplied(tensor, call, factor, is_output);
    value = tensors;
  }
}

class ScaledLayers final : public vernier::Interceptor {
 public:
  Values call(const vernier::Operation& operation, Values arguments) override {
    const auto layer = operation.layer_index();
    if (layer < 0 || !torch::GradMode::is_enabled()) return operation.proceed(std::move(arguments));
    const auto unit = units[static_cast<std::size_t>(layer)];
    const auto made = std::make_shared<Call>(Call{culprits, unit, {}});
    const auto at = static_cast<std::int64_t>(unit);
    for (auto& argument : arguments) multiply(argument, made, inverses[at], false);
    auto results = operation.proceed(std::move(arguments));
    for (auto& result : results) multiply(result, made, factors[at], true);
    return results;
  }

  std::vector<std::size_t> units;  // index of the factor, by layer
  torch::Tensor factors, inverses;
  std::shared_ptr<Culprits> culprits = std::make_shared<Culprits>();
};

}  // namespace

class PerLayerScaler final : public WatchedScaler {
 public:
  explicit PerLayerScaler(vernier::Options& options) : WatchedScaler(options) {
    using namespace vernier;
    law_.init_scale = options.get("init_scale", law_.init_scale, "scale of the loss in the first step", above(0));
    law_.growth_interval = options.get("growth_interval", law_.growth_interval,
                                       "steps without an overflow until it grows", between(1, 1'000'000'000));
    law_.min_scale = options.get("min_scale", 0x1p-14, "of the loss", above(0));
    most_ = options.get("max_factor", 256.0, "of a layer, a power of two", between(2, 0x1p24));
    groups_ = options.get("group", std::vector<std::string>{}, "patterns of layers that share a factor");
    int exponent = 0;
    if (std::frexp(most_, &exponent) != 0.5)
      options.refuse("max_factor", "must be a power of two, so that it is exact");
    if (const auto [option, reason] = contradiction(law_); !option.empty()) options.refuse(option.c_str(), reason);
    remember("", scale_);
    remember([this](State& state) { state.put("factors", scaled_.factors); },
             [this](const State& state) { load_factors(state); });
    remember("good", good_);
  }

  // The guard lives from BatchReady to scale(). Guards of later listeners are made after it and destroyed before it.
  void attach(vernier::Bus& bus) override {
    WatchedScaler::attach(bus);
    bus.on(Event::BatchReady, [this](vernier::Run&) {
      guard_.reset();
      guard_.emplace(layers_, scaled_);
    });
    bus.on(Event::RunFailed, [this](vernier::Run&) { guard_.reset(); });
  }

  void prepare(vernier::Run& run) override {
    if (run.control != nullptr && run.control->ranks() > 1) {
      vernier::refuse(
          "scaler/per_layer cannot train on several ranks: only the rank in which a layer overflows knows which one it "
          "was; use scaler/dynamic",
          id());
    }
    for (const auto& parameter : run.parameters) {
      const auto dtype = parameter.model.scalar_type();
      if (dtype != torch::kFloat16 && dtype != torch::kBFloat16) continue;
      vernier::refuse(c10::str("scaler/per_layer: ", parameter.name, " is ", dtype,
                               ", where what a layer's factor saves is lost again: use precision level O1"),
                      id());
    }
    scale_.emplace(run.device, law_);
    layers_ = vernier::Layers(*run.model);
    assign_units();
    scaled_.factors = torch::ones({count_}, torch::dtype(torch::kFloat32).device(run.device));
    scaled_.inverses = scaled_.factors.clone();
    // They double in turn. If all doubled in one step, as many layers could overflow one after the other.
    std::vector<std::int64_t> turns;
    for (std::int64_t i = 0; i < count_; ++i) turns.push_back(i * law_.growth_interval / count_);
    good_ = torch::tensor(turns, torch::kInt64).to(run.device, torch::kInt32);
    scaled_.culprits->flags.assign(static_cast<std::size_t>(count_), {});
    watch(run, scale_->value(), law_.min_scale);
  }

  torch::Tensor scale(const torch::Tensor& loss) override {
    guard_.reset();
    return loss * scale_->tensor();
  }

  // PyTorch's rule for each factor: an overflow that began there halves it, a row of good steps doubles it.
  void update(vernier::Run& run) override {
    const torch::NoGradGuard no_grad;
    auto none = torch::zeros({}, good_.options().dtype(torch::kBool));
    std::vector<torch::Tensor> flags;
    for (auto& flag : scaled_.culprits->flags) {
      flags.push_back(flag.defined() ? flag : none);
      flag.reset();
    }
    const auto bad = flags.empty() ? torch::zeros({0}, none.options()) : torch::stack(flags);
    const auto overflow = run.found_inf.ne(0);
    const auto began = bad.logical_and(overflow);  // no update is skipped for an inf that a cast has made 0 again
    const auto& factors = scaled_.factors;
    const auto at_the_end = began.logical_and(factors.le(1 / most_));
    const auto lowered = torch::where(began, (factors * 0.5).clamp_min(1 / most_), factors);
    good_ = torch::where(began, torch::zeros_like(good_), good_ + (1 - overflow.to(torch::kInt32)));
    const auto grows = good_.ge(law_.growth_interval);
    good_.masked_fill_(grows, 0);
    scaled_.factors = torch::where(grows, (lowered * 2).clamp_max(most_), lowered);
    scaled_.inverses = scaled_.factors.reciprocal();
    // The scale of the loss falls where no factor can. A step that a layer's overflow voided does not count for it.
    const auto is_of_loss = overflow.logical_and(began.any().logical_not().logical_or(at_the_end.any()));
    scale_->update(is_of_loss.to(torch::kFloat32), /*passed_over=*/overflow.logical_and(is_of_loss.logical_not()));
  }

  Current current() const override { return {scale_->tensor(), scale_->growth_tracker()}; }

 private:
  double next() override { return scale_->value(); }

  void load_factors(const vernier::State& state) {
    const auto factors = state.tensor("factors");
    if (factors.numel() != count_ || state.tensor("good").numel() != count_) {
      throw vernier::Error(
          c10::str("the saved factors are of ", factors.numel(), " layers or groups, and here are ", count_));
    }
    scaled_.factors = factors.to(good_.device(), torch::kFloat32).clamp(1 / most_, most_);
    scaled_.inverses = scaled_.factors.reciprocal();
  }
  void assign_units() {
    const auto groups = static_cast<std::int64_t>(groups_.size());
    std::vector<bool> used(groups_.size(), false);
    count_ = groups;
    scaled_.units.clear();
    for (const auto& name : layers_.names()) {
      const auto group =
          std::ranges::find_if(groups_, [&](const auto& pattern) { return vernier::matches(pattern, name); });
      const auto index = group - groups_.begin();
      if (group != groups_.end()) used[static_cast<std::size_t>(index)] = true;
      scaled_.units.push_back(static_cast<std::size_t>(group != groups_.end() ? index : count_++));
    }
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (used[i]) continue;
      const auto is_layer = [&](const auto& name) { return vernier::matches(groups_[i], name); };
      if (std::ranges::any_of(layers_.names(), is_layer)) {
        vernier::refuse("scaler/per_layer: `group` has \"" + groups_[i] +
                            "\", and all its layers belong to patterns that stand before it; put it first",
                        id());
      }
      const auto example = layers_.names().empty() ? "" : ", such as " + layers_.names().front();
      vernier::refuse("scaler/per_layer: `group` has \"" + groups_[i] + "\", which is the name of no layer" + example,
                      id());
    }
  }

  vernier::LossScaleOptions law_;
  double most_ = 256;
  std::vector<std::string> groups_;
  std::optional<vernier::LossScale> scale_;
  vernier::Layers layers_;
  ScaledLayers scaled_;
  std::int64_t count_ = 0;  // number of factors
  torch::Tensor good_;      // int32 [count]: steps in a row without an overflow of its own
  std::optional<vernier::Intercept> guard_;
};

VERNIER_PLUGIN(PerLayerScaler, "per_layer", "1.0.0")
