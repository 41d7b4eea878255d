#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <vernier/error.h>
#include <vernier/optim.h>

#include <algorithm>
#include <set>
#include <utility>

#include "optim_bucket.h"

namespace vernier {

struct FusedGroup {
  TensorVector parameters;
  double lr;
  std::function<UpdateRule(const torch::Tensor& parameter)> rule_for;
};

// Shared by the hooks of an optimizer.
struct BackwardPass {
  bool is_on = false;
  std::vector<char> done;  // by the parameter's number; bytes, for a hook runs on its device's thread
};

namespace {

// The kernels walk over raw memory of these dtypes.
void require_optimizable(const torch::Tensor& parameter, std::size_t index) {
  const auto no = [&](const char* why) { refuse(c10::str("parameter ", index, " cannot be optimized: it is ", why)); };
  if (!parameter.defined()) no("undefined");
  if (!parameter.is_leaf()) no("not a leaf of the graph");
  if (parameter.layout() != torch::kStrided) no("sparse");
  const auto dtype = parameter.scalar_type();
  if (dtype != torch::kFloat32 && dtype != torch::kFloat64 && dtype != torch::kBFloat16 && dtype != torch::kFloat16) {
    no(c10::str("of dtype ", dtype).c_str());
  }
  if (!parameter.is_non_overlapping_and_dense()) no("a view with gaps or overlaps");
}

template <class Options>
std::vector<FusedGroup> fused(const std::vector<ParameterGroup<Options>>& groups) {
  std::vector<FusedGroup> all;
  all.reserve(groups.size());
  for (const auto& group : groups) {
    require_in_range(group.options);
    all.push_back({group.parameters, group.options.lr,
                   [options = group.options](const torch::Tensor& parameter) { return rule_of(options, parameter); }});
  }
  return all;
}

FusedBucket& bucket_for(std::vector<FusedBucket>& buckets, std::size_t group, UpdateRule rule,
                        const torch::Tensor& parameter) {
  for (auto& bucket : buckets) {
    if (bucket.takes(group, rule, parameter)) return bucket;
  }
  return buckets.emplace_back(group, std::move(rule), parameter);
}

class StepOnGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  StepOnGradient(std::shared_ptr<BackwardPass> pass, FusedBucket& bucket, std::size_t member, const double& lr)
      : pass_(std::move(pass)), bucket_(bucket), member_(member), lr_(lr) {}

  void operator()(const torch::Tensor& parameter) override {
    if (!pass_->is_on) return;
    const auto number = bucket_.numbers[member_];
    if (pass_->done[number] != 0) {
      throw Error(c10::str("parameter ", number,
                           " was updated in this backward pass already, and gets another gradient: ",
                           "call step_in_backward() before each pass; where parts that are computed again share a "
                           "parameter, call step() after it"));
    }
    pass_->done[number] = 1;
    const torch::NoGradGuard no_grad;
    bucket_.step_one(member_, lr_);
    parameter.mutable_grad().reset();
  }
  const BackwardPass* pass() const { return pass_.get(); }

 private:
  std::shared_ptr<BackwardPass> pass_;
  FusedBucket& bucket_;
  std::size_t member_;
  const double& lr_;
};

// Returns the pass of an optimizer's hook, and null for another hook.
const BackwardPass* pass_of(const torch::autograd::PostAccumulateGradHook* hook) {
  const auto* of_optimizer = dynamic_cast<const StepOnGradient*>(hook);
  return of_optimizer == nullptr ? nullptr : of_optimizer->pass();
}

std::string rate_entry(std::size_t group) {
  return c10::str("param_groups/", group, "/lr");
}

}  // namespace

FusedOptimizer::FusedOptimizer(const std::vector<FusedGroup>& groups) {
  const torch::NoGradGuard no_grad;
  std::set<const void*> seen;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    lr_.push_back(groups[i].lr);
    for (const auto& parameter : groups[i].parameters) {
      require_optimizable(parameter, parameters_.size());
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) {
        refuse(c10::str("parameter ", parameters_.size(), " is given to the optimizer twice"));
      }
      bucket_for(buckets_, i, groups[i].rule_for(parameter), parameter).add(parameters_.size(), parameter);
      parameters_.push_back(parameter);
    }
  }
  if (parameters_.empty()) refuse("the optimizer is given no parameters");
  for (auto& bucket : buckets_) bucket.close();
}

void FusedOptimizer::step_in_backward(bool on) {
  if (pass_ == nullptr) {
    if (!on) return;
    pass_ = std::make_shared<BackwardPass>();
  }
  for (std::size_t i = 0; on && i < parameters_.size(); ++i) {
    const auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameters_[i]);
    const auto* pass = pass_of(hook.get());
    if (hook == nullptr || pass == pass_.get() || (pass != nullptr && !pass->is_on)) continue;
    refuse(c10::str("parameter ", i, " cannot be updated in backward: ",
                    pass == nullptr ? "it has a hook of its own after its gradient; remove it, or call step()"
                                    : "another optimizer does it; call that one's step_in_backward(false) first"));
  }
  for (auto& bucket : buckets_) {
    for (std::size_t i = 0; on && i < bucket.parameters.size(); ++i) {
      if (pass_of(torch::autograd::impl::post_acc_grad_hooks(bucket.parameters[i]).get()) == pass_.get()) continue;
      torch::autograd::impl::set_post_acc_grad_hooks(
          bucket.parameters[i], std::make_unique<StepOnGradient>(pass_, bucket, i, lr_[bucket.group]));
    }
  }
  pass_->is_on = on;
  pass_->done.assign(parameters_.size(), 0);
}

// The hooks point into this object. Another optimizer may have put its own in their place.
FusedOptimizer::~FusedOptimizer() {
  if (pass_ == nullptr) return;
  for (const auto& parameter : parameters_) {
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameter);
    if (pass_of(hook.get()) == pass_.get()) hook.reset();
  }
}

void FusedOptimizer::step(const torch::Tensor& found_inf, const torch::Tensor& grad_scale) {
  const torch::NoGradGuard no_grad;
  struct Release {  // a gradient that we held on to would outlive zero_grad()
    std::vector<FusedBucket>& buckets;
    ~Release() {
      for (auto& bucket : buckets) bucket.lists.gradients.clear();
    }
  } const release{buckets_};
  for (auto& bucket : buckets_) bucket.collect();
  for (auto& bucket : buckets_) bucket.step(lr_[bucket.group], found_inf, grad_scale);
}

void FusedOptimizer::zero_grad(bool set_to_none) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : parameters_) {
    auto& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient.reset();
    } else {
      gradient.detach_().zero_();
    }
  }
}

void FusedOptimizer::set_lr(double lr) {
  lr_.assign(lr_.size(), lr);
}

TensorVector FusedOptimizer::gradients() const {
  TensorVector defined;
  defined.reserve(parameters_.size());
  for (const auto& parameter : parameters_) {
    if (parameter.grad().defined()) defined.push_back(parameter.grad());
  }
  return defined;
}

State FusedOptimizer::state_dict() const {
  State state;
  state.put("parameters", static_cast<std::int64_t>(parameters_.size()));
  for (std::size_t i = 0; i < lr_.size(); ++i) state.put(rate_entry(i), lr_[i]);
  for (const auto& bucket : buckets_) {
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      if (bucket.slots.empty() || !bucket.slots[0][i].defined()) continue;
      for (std::size_t k = 0; k < bucket.slots.size(); ++k) {
        state.put(bucket.entry(i, bucket.rule.slots[k].name), bucket.slots[k][i]);
      }
      if (bucket.rule.counts_steps) state.put(bucket.entry(i, "step"), bucket.step_views[i]);
    }
  }
  return state;
}

void FusedOptimizer::load_state_dict(const State& saved, bool strict) {
  const auto parameters = saved.integer("parameters");
  if (parameters != static_cast<std::int64_t>(parameters_.size())) {
    throw Error(c10::str("the saved state is of ", parameters, " parameters, the optimizer has ", parameters_.size()));
  }
  const torch::NoGradGuard no_grad;
  auto state = in_kinds_of(buckets_, saved);
  std::vector<double> rates;
  for (std::size_t i = 0; i < lr_.size(); ++i) {
    rates.push_back(state.real(rate_entry(i)));
    state.tensors.erase(rate_entry(i));
  }
  if (!strict) leave_out_unknown(state, buckets_);
  require_loadable(state, buckets_);
  std::ranges::copy(rates, lr_.begin());  // in place: hooks of step_in_backward() refer to its elements
  for (auto& bucket : buckets_) {
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) bucket.load(i, state);
    bucket.active.clear();  // its lists hold the tensors from before
  }
}

template <class Options>
Fused<Options>::Fused(std::vector<torch::Tensor> parameters, Options options)
    : Fused(std::vector<Group>{{std::move(parameters), options}}) {}

template <class Options>
Fused<Options>::Fused(const std::vector<Group>& groups) : FusedOptimizer(fused(groups)) {}

template class Fused<AdamWOptions>;
template class Fused<AdamOptions>;
template class Fused<SGDOptions>;
template class Fused<RMSpropOptions>;
template class Fused<AdagradOptions>;
template class Fused<LionOptions>;
template class Fused<LambOptions>;
template class Fused<AdafactorOptions>;
template class Fused<MuonOptions>;
template class Fused<AdadeltaOptions>;
template class Fused<NAdamOptions>;
template class Fused<RAdamOptions>;
template class Fused<AdamaxOptions>;
template class Fused<RpropOptions>;
template class Fused<ASGDOptions>;

}  // namespace vernier
