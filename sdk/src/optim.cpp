#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/optim.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "tensor_lists.h"

// Of the OpenMP that LibTorch brings; weak, so that one without it only loses the guard below.
extern "C" __attribute__((weak)) void omp_set_num_threads(int threads);

namespace vernier {

namespace {

using List = std::vector<torch::Tensor>;
using MaybeTensor = std::optional<torch::Tensor>;

// What a kernel takes: the parameters that have a gradient, and what belongs to each.
struct Lists {
  List parameters, gradients, steps;
  std::vector<List> slots;  // in the order of Rule::slots
};

// What makes one optimizer differ from another.
struct Rule {
  std::vector<const char*> slots;  // state tensors of a parameter, of its shape and dtype
  bool counts_steps;
  std::function<void(const Lists&, double lr, const MaybeTensor& grad_scale, const MaybeTensor& found_inf)> apply;
};

[[noreturn]] void refuse(const std::string& what) {
  throw Error(what, Error::Kind::configuration);
}

void require(bool right, const char* option, double value, const char* range) {
  if (!right) refuse(c10::str("optimizer option ", option, " = ", value, " is out of range: it must be ", range));
}

template <class Options>
void require_adam(const Options& options) {
  require(options.lr >= 0, "lr", options.lr, "at least 0");
  require(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "at least 0 and below 1");
  require(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "at least 0 and below 1");
  require(options.eps >= 0, "eps", options.eps, "at least 0");
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay, "at least 0");
}

template <class Options, class Kernel>
Rule adam_rule(const Options& o, Kernel kernel) {
  require_adam(o);
  Rule rule{{"exp_avg", "exp_avg_sq"}, true, {}};
  if (o.amsgrad) rule.slots.push_back("max_exp_avg_sq");
  rule.apply = [o, kernel](const Lists& lists, double lr, const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
    kernel(lists.parameters, lists.gradients, lists.slots[0], lists.slots[1],
           o.amsgrad ? at::TensorList(lists.slots[2]) : at::TensorList(), lists.steps, lr, o.beta1, o.beta2,
           o.weight_decay, o.eps, o.amsgrad, o.maximize, grad_scale, found_inf);
  };
  return rule;
}

Rule rule_of(const AdamWOptions& options) {
  return adam_rule(options, [](auto&&... arguments) { at::_fused_adamw_(arguments...); });
}

Rule rule_of(const AdamOptions& options) {
  return adam_rule(options, [](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

// The first update of a parameter takes its gradient undampened, and on a GPU only the device knows which updates were
// skipped: hence the read.
std::pair<Lists, Lists> split_first(const Lists& lists) {
  const auto steps = at::stack(lists.steps).cpu();
  Lists first, later;
  first.slots.resize(1);
  later.slots.resize(1);
  for (std::size_t i = 0; i < lists.steps.size(); ++i) {
    auto& side = steps.const_data_ptr<float>()[i] > 1 ? later : first;
    side.parameters.push_back(lists.parameters[i]);
    side.gradients.push_back(lists.gradients[i]);
    side.slots[0].push_back(lists.slots[0][i]);
  }
  return {std::move(first), std::move(later)};
}

// LibTorch's CPU kernel leaves 16-bit weights alone where they fill a vector (pytorch/pytorch#191763). In float32,
// rounded when it is stored, as its GPU kernel and the mended one do.
bool is_passed_over(const torch::Tensor& parameter) {
  const auto dtype = parameter.scalar_type();
  return parameter.is_cpu() && (dtype == torch::kBFloat16 || dtype == torch::kFloat16);
}

void sgd(const SGDOptions& o, const Lists& lists, double lr, bool first, const MaybeTensor& grad_scale,
         const MaybeTensor& found_inf) {
  if (lists.parameters.empty()) return;
  if (is_passed_over(lists.parameters.front())) {
    const auto wide = [](const torch::Tensor& tensor) { return List{tensor.to(torch::kFloat32)}; };
    for (std::size_t i = 0; i < lists.parameters.size(); ++i) {
      Lists one{wide(lists.parameters[i]), wide(lists.gradients[i]), {}, {}};
      if (o.momentum != 0) one.slots.push_back(wide(lists.slots[0][i]));
      sgd(o, one, lr, first, grad_scale, found_inf);
      lists.parameters[i].copy_(one.parameters[0]);
      lists.gradients[i].copy_(one.gradients[0]);
      if (o.momentum != 0) lists.slots[0][i].copy_(one.slots[0][0]);
    }
    return;
  }
  at::_fused_sgd_(lists.parameters, lists.gradients,
                  o.momentum != 0 ? at::TensorList(lists.slots[0]) : at::TensorList(), o.weight_decay, o.momentum, lr,
                  o.dampening, o.nesterov, o.maximize, first, grad_scale, found_inf);
}

Rule rule_of(const SGDOptions& o) {
  require(o.lr >= 0, "lr", o.lr, "at least 0");
  require(o.momentum >= 0, "momentum", o.momentum, "at least 0");
  require(o.weight_decay >= 0, "weight_decay", o.weight_decay, "at least 0");
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0))
    refuse("Nesterov momentum needs a momentum and no dampening");
  const bool dampens = o.momentum != 0 && o.dampening != 0;
  Rule rule{{}, dampens, {}};
  if (o.momentum != 0) rule.slots.push_back("momentum_buffer");
  rule.apply = [o, dampens](const Lists& lists, double lr, const MaybeTensor& grad_scale,
                            const MaybeTensor& found_inf) {
    // Without dampening the first update needs no care: a buffer of zeros turns into the gradient.
    if (!dampens) return sgd(o, lists, lr, false, grad_scale, found_inf);
    const auto [first, later] = split_first(lists);
    sgd(o, first, lr, true, grad_scale, found_inf);
    sgd(o, later, lr, false, grad_scale, found_inf);
  };
  return rule;
}

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

std::string describe(const torch::Tensor& tensor) {
  return c10::str(tensor.toString(), " ", tensor.sizes(), " on ", tensor.device());
}

// On the host the value is read in place: item() goes through the dispatcher.
bool is_set(const torch::Tensor& flag) {
  if (flag.is_cpu() && flag.scalar_type() == torch::kFloat32) return *flag.const_data_ptr<float>() != 0;
  return flag.item<double>() != 0;
}

// LibTorch's CPU kernels wake all threads for a few elements, which takes longer than the work. Unlike
// at::set_num_threads(), OpenMP's own setting holds for this thread only and costs nothing.
class OneThread {
 public:
  explicit OneThread(bool wanted) : before_(wanted && omp_set_num_threads != nullptr ? at::get_num_threads() : 1) {
    if (before_ > 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ > 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// From about 8000 elements on a second thread pays.
bool is_small(const torch::Tensor& parameter) {
  return parameter.is_cpu() && parameter.numel() <= 8192;
}

// A float32 scalar where a kernel reads it.
MaybeTensor on_device(const torch::Tensor& scalar, const torch::Device& device) {
  if (!scalar.defined()) return std::nullopt;
  if (scalar.device() == device && scalar.scalar_type() == torch::kFloat32) return scalar;
  return moved(scalar, device).to(torch::kFloat32);
}

}  // namespace

struct FusedGroup {
  List parameters;
  double lr;
  Rule rule;
};

// The parameters of one group that share a device, a dtype and a way to run: one call of a kernel.
struct FusedBucket {
  FusedBucket(std::size_t group, Rule rule, const torch::Tensor& first)
      : group(group),
        rule(std::move(rule)),
        device(first.device()),
        dtype(first.scalar_type()),
        one_thread(is_small(first)) {}

  bool takes(std::size_t of_group, const torch::Tensor& parameter) const {
    return group == of_group && device == parameter.device() && dtype == parameter.scalar_type() &&
           one_thread == is_small(parameter);
  }

  void add(std::size_t index, const torch::Tensor& parameter);
  void close();     // after the last add
  void collect();   // the gradients, into lists
  void activate();  // makes the other lists fit the gradients that there are
  void step(double lr, const torch::Tensor& found_inf, const torch::Tensor& grad_scale);
  void advance(const MaybeTensor& skipped);
  void load(std::size_t member, const State& state);
  torch::Tensor fit(const torch::Tensor& gradient, std::size_t member) const;
  [[noreturn]] void refuse_gradient(const torch::Tensor& gradient, std::size_t member) const;
  std::string entry(std::size_t member, const char* name) const { return c10::str(indices[member], "/", name); }

  std::size_t group;
  Rule rule;
  torch::Device device;
  torch::ScalarType dtype;
  bool one_thread;
  List parameters;
  std::vector<std::size_t> indices;  // of the parameters, in the whole optimizer
  std::vector<List> slots;           // undefined until a parameter's first gradient
  torch::Tensor steps;               // 1-D: one count a parameter, so that one kernel advances them all
  List step_views;

  Lists lists;
  std::vector<std::size_t> active;  // the members that are in lists
  torch::Tensor advanced;           // on a GPU: 1 for each of them, 0 for the others
  torch::Tensor skip;               // on a GPU: found_inf as 0 or 1
};

void FusedBucket::add(std::size_t index, const torch::Tensor& parameter) {
  indices.push_back(index);
  parameters.push_back(parameter);
}

void FusedBucket::close() {
  slots.assign(rule.slots.size(), List(parameters.size()));
  lists.slots.resize(slots.size());
  if (!rule.counts_steps) return;
  steps = torch::zeros({static_cast<std::int64_t>(parameters.size())}, torch::dtype(torch::kFloat32).device(device));
  step_views = steps.unbind();
}

// The gradient in its parameter's memory layout. The bucket is compared with, not the parameter: that one may have been
// moved or cast since.
torch::Tensor FusedBucket::fit(const torch::Tensor& gradient, std::size_t member) const {
  const auto& parameter = parameters[member];
  if (gradient.layout() != torch::kStrided || gradient.scalar_type() != dtype || gradient.device() != device ||
      gradient.sizes() != parameter.sizes()) {
    refuse_gradient(gradient, member);
  }
  if (gradient.strides() == parameter.strides()) return gradient;
  return at::empty_like(parameter).copy_(gradient);
}

void FusedBucket::refuse_gradient(const torch::Tensor& gradient, std::size_t member) const {
  const auto who = c10::str("the gradient of parameter ", indices[member], " is ");
  if (gradient.layout() != torch::kStrided) throw Error(who + "sparse: fused optimizers take dense ones only");
  throw Error(c10::str(who, describe(gradient), ", but the optimizer was given the parameter as ", dtype, " ",
                       parameters[member].sizes(), " on ", device, ": the two must be alike"));
}

void FusedBucket::collect() {
  bool same = true;
  auto& gradients = lists.gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& gradient = parameters[i].grad();
    if (!gradient.defined()) continue;
    same = same && gradients.size() < active.size() && active[gradients.size()] == i;
    gradients.push_back(fit(gradient, i));
  }
  if (!same || gradients.size() != active.size()) activate();
}

void FusedBucket::activate() {
  active.clear();
  lists.parameters.clear();
  lists.steps.clear();
  for (auto& slot : lists.slots) slot.clear();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].grad().defined()) continue;
    active.push_back(i);
    lists.parameters.push_back(parameters[i]);
    if (rule.counts_steps) lists.steps.push_back(step_views[i]);
    for (std::size_t k = 0; k < slots.size(); ++k) {
      if (!slots[k][i].defined()) slots[k][i] = at::zeros_like(parameters[i]);
      lists.slots[k].push_back(slots[k][i]);
    }
  }
  if (!rule.counts_steps || device.is_cpu()) return;
  auto mask = torch::zeros({static_cast<std::int64_t>(parameters.size())}, torch::kFloat32);
  for (const auto member : active) mask.data_ptr<float>()[member] = 1;
  advanced = mask.to(device);
}

void FusedBucket::step(double lr, const torch::Tensor& found_inf, const torch::Tensor& grad_scale) {
  if (active.empty()) return;
  MaybeTensor skipped;
  if (found_inf.defined() && device.is_cpu()) {
    if (is_set(found_inf)) return;
  } else if (found_inf.defined()) {  // the kernels skip at exactly 1
    if (!skip.defined()) skip = torch::zeros({}, torch::dtype(torch::kFloat32).device(device));
    at::ne_out(skip, *on_device(found_inf, device), 0);
    skipped = skip;
  }
  if (rule.counts_steps) advance(skipped);
  const at::AutoDispatchBelowAutograd direct;  // the kernels have no derivative: saves a fifth of a small step
  const OneThread guard(one_thread);
  rule.apply(lists, lr, on_device(grad_scale, device), skipped);
  // The kernels leave the version counters alone, so a backward through the old weights would go unnoticed.
  for (const auto& parameter : lists.parameters) parameter.unsafeGetTensorImpl()->bump_version();
}

void FusedBucket::advance(const MaybeTensor& skipped) {
  if (device.is_cpu()) {
    auto* counts = steps.data_ptr<float>();
    for (const auto member : active) counts[member] += 1;
    return;
  }
  steps.add_(advanced);
  if (skipped) steps.addcmul_(advanced, *skipped, -1);
}

// New tensors, for those that it has may be shared with a State.
void FusedBucket::load(std::size_t member, const State& state) {
  for (std::size_t k = 0; k < slots.size(); ++k) {
    const auto name = entry(member, rule.slots[k]);
    slots[k][member] = state.has(name) ? at::empty_like(parameters[member]).copy_(state.tensor(name)) : torch::Tensor();
  }
  if (rule.counts_steps) {
    const auto name = entry(member, "step");
    steps[static_cast<std::int64_t>(member)] = state.has(name) ? state.tensor(name).to(device) : torch::zeros({});
  }
}

namespace {

template <class Options>
std::vector<FusedGroup> fused(const std::vector<ParameterGroup<Options>>& groups) {
  std::vector<FusedGroup> all;
  all.reserve(groups.size());
  for (const auto& group : groups) all.push_back({group.parameters, group.options.lr, rule_of(group.options)});
  return all;
}

FusedBucket& bucket_for(std::vector<FusedBucket>& buckets, std::size_t group, const Rule& rule,
                        const torch::Tensor& parameter) {
  for (auto& bucket : buckets) {
    if (bucket.takes(group, parameter)) return bucket;
  }
  return buckets.emplace_back(group, rule, parameter);
}

// The entries of a parameter's state, each with a tensor of its shape and dtype.
std::vector<std::pair<std::string, torch::Tensor>> entries(const FusedBucket& bucket, std::size_t member) {
  std::vector<std::pair<std::string, torch::Tensor>> all;
  for (const auto* slot : bucket.rule.slots) all.emplace_back(bucket.entry(member, slot), bucket.parameters[member]);
  if (bucket.rule.counts_steps) all.emplace_back(bucket.entry(member, "step"), bucket.step_views[member]);
  return all;
}

// A parameter has all of its entries or none.
void require_loadable(const State& state, const std::vector<FusedBucket>& buckets) {
  std::set<std::string> known{"parameters"};
  for (const auto& bucket : buckets) {
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const auto expected = entries(bucket, i);
      const bool any = std::any_of(expected.begin(), expected.end(), [&](auto& e) { return state.has(e.first); });
      for (const auto& [name, like] : expected) {
        known.insert(name);
        if (!any) continue;
        const auto saved = state.tensor(name);
        const bool is_cast = saved.is_floating_point() && !name.ends_with("/step");  // a count is exact
        if (saved.sizes() == like.sizes() && (is_cast || saved.scalar_type() == like.scalar_type())) continue;
        throw Error("the saved state has '" + name + "' as " + describe(saved) + ", the optimizer as " +
                    describe(like));
      }
    }
  }
  for (const auto& [name, tensor] : state.tensors) {
    if (!known.count(name)) throw Error("the saved state has '" + name + "', which this optimizer does not keep");
  }
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
      bucket_for(buckets_, i, groups[i].rule, parameter).add(parameters_.size(), parameter);
      parameters_.push_back(parameter);
    }
  }
  if (parameters_.empty()) refuse("the optimizer is given no parameters");
  for (auto& bucket : buckets_) bucket.close();
}

FusedOptimizer::~FusedOptimizer() = default;

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

List FusedOptimizer::gradients() const {
  List defined;
  defined.reserve(parameters_.size());
  for (const auto& parameter : parameters_) {
    if (parameter.grad().defined()) defined.push_back(parameter.grad());
  }
  return defined;
}

State FusedOptimizer::state() const {
  State state;
  state.put("parameters", static_cast<std::int64_t>(parameters_.size()));
  for (const auto& bucket : buckets_) {
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      if (bucket.slots.empty() || !bucket.slots[0][i].defined()) continue;
      for (std::size_t k = 0; k < bucket.slots.size(); ++k) {
        state.put(bucket.entry(i, bucket.rule.slots[k]), bucket.slots[k][i]);
      }
      if (bucket.rule.counts_steps) state.put(bucket.entry(i, "step"), bucket.step_views[i]);
    }
  }
  return state;
}

void FusedOptimizer::load(const State& state) {
  const auto parameters = state.integer("parameters");
  if (parameters != static_cast<std::int64_t>(parameters_.size())) {
    throw Error(c10::str("the saved state is of ", parameters, " parameters, the optimizer has ", parameters_.size()));
  }
  require_loadable(state, buckets_);
  const torch::NoGradGuard no_grad;
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

}  // namespace vernier
