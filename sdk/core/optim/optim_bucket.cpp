#include "optim_bucket.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>

#include <algorithm>
#include <ranges>
#include <set>
#include <utility>

#include "base/parallel.h"
#include "block_quantisation.h"

namespace vernier {

namespace {

std::string describe(const torch::Tensor& tensor) {
  return c10::str(tensor.toString(), " ", tensor.sizes(), " on ", tensor.device());
}

// On the host the value is read in place: item() goes through the dispatcher.
bool is_set(const torch::Tensor& flag) {
  if (flag.is_cpu() && flag.scalar_type() == torch::kFloat32) return *flag.const_data_ptr<float>() != 0;
  return flag.item<double>() != 0;
}

// A float32 scalar where a kernel reads it.
MaybeTensor on_device(const torch::Tensor& scalar, const torch::Device& device) {
  if (!scalar.defined()) return std::nullopt;
  if (scalar.device() == device && scalar.scalar_type() == torch::kFloat32) return scalar;
  return moved(scalar, device).to(torch::kFloat32);
}

// The entries of a parameter's state, each with a tensor of its shape and dtype.
std::vector<std::pair<std::string, torch::Tensor>> entries(const FusedBucket& bucket, std::size_t member) {
  std::vector<std::pair<std::string, torch::Tensor>> all;
  for (const auto& slot : bucket.rule.slots) {
    all.emplace_back(bucket.entry(member, slot.name), slot.like(bucket.parameters[member]));
  }
  if (bucket.rule.counts_steps) all.emplace_back(bucket.entry(member, "step"), bucket.step_views[member]);
  return all;
}

// One average of one parameter.
void convert(State& state, const std::string& name, const torch::Tensor& parameter, bool is_signed, bool wants_codes) {
  if (!state.has(name) || state.tensor(name).sizes() != parameter.sizes()) return;  // refused later, if it is wrong
  const auto& quantisation = BlockQuantisation::of(is_signed);
  const auto largest = name + "_absmax";
  const auto saved = state.tensor(name);
  if (wants_codes && saved.is_floating_point()) {
    const auto packed = quantisation.pack(saved.to(parameter.device(), torch::kFloat32).contiguous().view(-1));
    state.tensors[name] = packed.codes.view(saved.sizes());
    state.tensors[largest] = packed.largest;
  } else if (!wants_codes && saved.scalar_type() == torch::kByte && state.has(largest) &&
             state.tensor(largest).numel() == BlockQuantisation::blocks(parameter.numel())) {
    const auto numbers = quantisation.unpack(
        {saved.to(parameter.device()).contiguous().view(-1), state.tensor(largest).to(parameter.device())});
    state.tensors[name] = numbers.view(saved.sizes());
    state.tensors.erase(largest);
  }
}

}  // namespace

void FusedBucket::add(std::size_t number, const torch::Tensor& parameter) {
  numbers.push_back(number);
  parameters.push_back(parameter);
  layouts.push_back({at::DimVector(parameter.sizes()), at::DimVector(parameter.strides())});
}

void FusedBucket::close() {
  slots.assign(rule.slots.size(), TensorVector(parameters.size()));
  lists.slots.resize(slots.size());
  if (!rule.counts_steps) return;
  steps = torch::zeros({static_cast<std::int64_t>(parameters.size())}, torch::dtype(torch::kFloat32).device(device));
  step_views = steps.unbind();
}

std::string FusedBucket::entry(std::size_t member, std::string_view name) const {
  return c10::str(numbers[member], "/", name);
}

// set_data() and torch::load() may give a parameter other memory. The kernels walk over raw memory, so the slots must
// have the layout of the parameter.
bool FusedBucket::follow(std::size_t member) {
  const auto& parameter = parameters[member];
  auto& [sizes, strides] = layouts[member];
  if (parameter.strides() == strides && parameter.sizes() == sizes) return false;
  const auto is_same = [&](std::size_t i) {  // the stride of a dimension of one element means nothing
    return parameter.size(static_cast<std::int64_t>(i)) == sizes[i] &&
           (sizes[i] == 1 || parameter.stride(static_cast<std::int64_t>(i)) == strides[i]);
  };
  const auto dims = std::views::iota(std::size_t{0}, sizes.size());
  if (parameter.sizes().size() == sizes.size() && std::ranges::all_of(dims, is_same)) return false;
  const auto who = c10::str("parameter ", numbers[member]);
  if (parameter.sizes() != sizes) {
    throw Error(c10::str(who, " has the shape ", parameter.sizes(), " now, but had ", c10::IntArrayRef(sizes),
                         " when the optimizer was made; make a new optimizer"));
  }
  if (!parameter.is_non_overlapping_and_dense()) throw Error(who + " has become a view with gaps or overlaps");
  if (rule.kept_in == AdamState::eight_bit) {
    throw Error(who +
                " has other strides than when the optimizer was made, and averages in 8 bits cannot follow; make "
                "a new optimizer");
  }
  strides = parameter.strides();
  for (std::size_t k = 0; k < slots.size(); ++k) {
    auto& slot = slots[k][member];
    if (slot.defined()) slot = rule.slots[k].like(parameter).copy_(slot);
  }
  return true;
}

// Returns the gradient in its parameter's memory layout. It is compared with the bucket, not with the parameter, which
// may have been moved or cast since.
torch::Tensor FusedBucket::fit(const torch::Tensor& gradient, std::size_t member) const {
  const auto& parameter = parameters[member];
  if (gradient.layout() != torch::kStrided || gradient.scalar_type() != dtype || gradient.device() != device ||
      gradient.sizes() != parameter.sizes()) {
    refuse_gradient(gradient, member);
  }
  const bool is_plain = !gradient.is_neg() && !gradient._is_zerotensor();  // the kernels read its memory
  if (is_plain && gradient.strides() == parameter.strides()) return gradient;
  return at::empty_like(parameter).copy_(gradient);
}

void FusedBucket::refuse_gradient(const torch::Tensor& gradient, std::size_t member) const {
  const auto who = c10::str("the gradient of parameter ", numbers[member], " is ");
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
    if (follow(i)) same = false;
    same = same && gradients.size() < active.size() && active[gradients.size()] == i;
    gradients.push_back(fit(gradient, i));
  }
  if (!same || gradients.size() != active.size()) activate();
}

void FusedBucket::activate() {
  active.clear();
  lists.parameters.clear();
  lists.steps.clear();
  lists.numbers.clear();
  for (auto& slot : lists.slots) slot.clear();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].grad().defined()) continue;
    active.push_back(i);
    put(i, lists);
  }
  if (!rule.counts_steps || device.is_cpu()) return;
  auto mask = torch::zeros({static_cast<std::int64_t>(parameters.size())}, torch::kFloat32);
  for (const auto member : active) mask.data_ptr<float>()[member] = 1;
  advanced = mask.to(device);
}

// All but its gradient.
void FusedBucket::put(std::size_t member, UpdateLists& into) {
  into.parameters.push_back(parameters[member]);
  into.numbers.push_back(numbers[member]);
  if (rule.counts_steps) into.steps.push_back(step_views[member]);
  into.slots.resize(slots.size());
  for (std::size_t k = 0; k < slots.size(); ++k) {
    if (!slots[k][member].defined()) slots[k][member] = rule.slots[k].like(parameters[member]);
    into.slots[k].push_back(slots[k][member]);
  }
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
  apply(lists, lr, on_device(grad_scale, device), skipped);
}

void FusedBucket::step_one(std::size_t member, double lr) {
  UpdateLists one;
  follow(member);
  one.gradients.push_back(fit(parameters[member].grad(), member));
  put(member, one);
  if (rule.counts_steps) step_views[member].add_(1);
  apply(one, lr, {}, {});
}

void FusedBucket::apply(const UpdateLists& to, double lr, const MaybeTensor& grad_scale,
                        const MaybeTensor& skipped) const {
  const at::AutoDispatchBelowAutograd direct;  // the kernels have no derivative: saves a fifth of a small step
  const OneThread guard(one_thread);
  rule.apply(to, lr, grad_scale, skipped);
  // The kernels leave the version counters alone, so a backward through the old weights would go unnoticed.
  for (const auto& parameter : to.parameters) parameter.unsafeGetTensorImpl()->bump_version();
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
  layouts[member].strides = parameters[member].strides();
  for (std::size_t k = 0; k < slots.size(); ++k) {
    const auto name = entry(member, rule.slots[k].name);
    slots[k][member] =
        state.has(name) ? rule.slots[k].like(parameters[member]).copy_(state.tensor(name)) : torch::Tensor();
  }
  if (rule.counts_steps) {
    const auto name = entry(member, "step");
    steps[static_cast<std::int64_t>(member)] = state.has(name) ? state.tensor(name).to(device) : torch::zeros({});
  }
}

void leave_out_unknown(State& state, const std::vector<FusedBucket>& buckets) {
  std::set<std::string> known{"parameters"};
  for (const auto& bucket : buckets) {
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      for (const auto& entry : entries(bucket, i)) known.insert(entry.first);
    }
  }
  std::erase_if(state.tensors, [&](const auto& entry) { return !known.contains(entry.first); });
}

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
        // A count is exact, and codes are not numbers.
        const bool is_cast = saved.is_floating_point() && like.is_floating_point() && !name.ends_with("/step");
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

State in_kinds_of(const std::vector<FusedBucket>& buckets, State state) {
  for (const auto& bucket : buckets) {
    const bool wants_codes = bucket.rule.kept_in == AdamState::eight_bit;
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      convert(state, bucket.entry(i, "exp_avg"), bucket.parameters[i], true, wants_codes);
      convert(state, bucket.entry(i, "exp_avg_sq"), bucket.parameters[i], false, wants_codes);
    }
  }
  return state;
}

}  // namespace vernier
