#include "savepoint.h"

#include <ATen/Context.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <algorithm>
#include <unordered_set>

namespace vernier {

namespace {

// Made by State::put, or by the plugin for the State alone: not over memory that something else owns (from_blob).
bool is_of_nobody_else(const torch::Tensor& tensor) {
  if (tensor.use_count() != 1 || !tensor.has_storage() || tensor.storage().use_count() != 1) return false;
  const auto& memory = tensor.storage().data_ptr();
  return memory.get() == nullptr || memory.get_context() == memory.get();
}

c10::Storage memory_of(const torch::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().nbytes() > 0 ? tensor.storage() : c10::Storage();
}

bool has_other_memory(const torch::Tensor& tensor, const c10::Storage& before) {
  return before && tensor.storage().unsafeGetStorageImpl() != before.unsafeGetStorageImpl();
}

at::CPUGeneratorImpl& cpu_generator() {
  static const auto generator = at::globalContext().defaultGenerator(torch::kCPU);
  return *at::check_generator<at::CPUGeneratorImpl>(generator);
}

}  // namespace

void Savepoint::take(const Run& run, const Scope& scope) try {
  clear();
  scope_ = &scope;
  step_ = run;
  counters_ = run;
  take_generators(run);
  for (const auto& weight : scope.weights) {
    if (!leave(weight, scope.copies_weights)) copies_.emplace_back(weight, copy(weight));
  }
  for (const auto& buffer : scope.buffers) {
    if (!leave(buffer, buffer.nbytes() <= scope.copy_up_to)) copies_.emplace_back(buffer, copy(buffer));
  }
  if (scope.gradients != Scope::Gradients::ignored) take_gradients(run);
  take_plugins(run);
} catch (...) {
  clear();  // half a copy is none
  throw;
}

void Savepoint::take_generators(const Run& run) {
  auto& cpu = cpu_generator();
  cpu_engine_ = cpu.engine();
  cpu_float_ = cpu.next_float_normal_sample();
  cpu_double_ = cpu.next_double_normal_sample();
  if (!run.device.is_cpu()) device_generator_ = at::globalContext().defaultGenerator(run.device).get_state();
}

void Savepoint::take_gradients(const Run& run) {
  parameters_ = run.parameters;
  for (const auto& parameter : parameters_) {
    const auto& gradient = parameter.master.grad();
    const bool is_copied = gradient.defined() && scope_->gradients == Scope::Gradients::copied;
    gradients_.emplace_back(parameter.model.grad(), Pair(gradient, is_copied ? copy(gradient) : torch::Tensor()));
  }
}

void Savepoint::take_plugins(const Run& run) {
  // Weights are copied, or watched, by themselves: a plugin that saves them too needs no second copy.
  std::unordered_set<const void*> weights;
  const auto is_weight = [&](const torch::Tensor& tensor) {
    const auto storage_of = [](const torch::Tensor& of) -> const void* {
      return of.has_storage() ? of.storage().unsafeGetStorageImpl() : nullptr;
    };
    for (std::size_t i = weights.empty() ? 0 : run.parameters.size(); i < run.parameters.size(); ++i) {
      weights.insert({storage_of(run.parameters[i].model), storage_of(run.parameters[i].master)});
    }
    return tensor.has_storage() && weights.contains(storage_of(tensor));
  };
  for (auto* plugin : scope_->plugins) {
    auto& state = plugins_.emplace_back(plugin, plugin->save()).second;
    for (auto& [name, tensor] : state.tensors) {
      if (is_of_nobody_else(tensor) || is_weight(tensor)) continue;
      if (!leave(tensor, tensor.nbytes() <= scope_->copy_up_to)) tensor = copy(tensor);
    }
  }
}

bool Savepoint::leave(const torch::Tensor& live, bool is_copied) {
  if (!is_copied) unwritten_.push_back({live, live._version(), memory_of(live)});
  return !is_copied;
}

torch::Tensor Savepoint::copy(const torch::Tensor& live) {
  const auto place = next_++;
  if (place >= memory_.size()) memory_.resize(place + 1);
  auto& kept = memory_[place];
  const bool fits = kept.defined() && kept.layout() == torch::kStrided && live.layout() == torch::kStrided &&
                    kept.scalar_type() == live.scalar_type() && kept.device() == live.device() &&
                    kept.sizes() == live.sizes() && kept.strides() == live.strides();
  if (!fits) return kept = live.detach().clone();
  const torch::NoGradGuard no_grad;
  return kept.copy_(live);
}

bool Savepoint::was_written(const Unwritten& each) {
  return each.tensor._version() != each.version || has_other_memory(each.tensor, each.memory);
}

bool Savepoint::is_unwritten() const {
  return std::ranges::none_of(unwritten_, was_written);
}

void Savepoint::accept(const std::vector<torch::Tensor>& put_back) {
  std::unordered_set<const void*> all;
  for (const auto& tensor : put_back) all.insert(tensor.unsafeGetTensorImpl());
  for (auto& [tensor, version, memory] : unwritten_) {
    if (!all.contains(tensor.unsafeGetTensorImpl())) continue;
    version = tensor._version();
    memory = memory_of(tensor);
  }
}

// A weight that has no memory between steps gets it back for this update.
void Savepoint::restore(Run& run) {
  for (const auto& each : unwritten_) {
    if (!was_written(each)) continue;
    throw Error(c10::str("a weight or large tensor, of shape ", each.tensor.sizes(),
                         ", was written or replaced before the update"));
  }
  const torch::NoGradGuard no_grad;
  memory_.clear();  // whoever loads the copies may keep them
  for (const auto& [live, kept] : copies_) {
    auto same = live;
    live.nbytes() > live.storage().nbytes() ? same.set_data(kept) : void(same.copy_(kept));
  }
  if (scope_->gradients != Scope::Gradients::ignored) restore_gradients(run);
  restore_generators(run);
  static_cast<StepState&>(run) = step_;
  static_cast<Counters&>(run) = counters_;
  for (const auto& [plugin, state] : plugins_) plugin->load(state);
}

void Savepoint::restore_gradients(Run& run) {
  run.parameters = parameters_;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    auto& [of_model, of_master] = gradients_[i];
    auto& [live, kept] = of_master;
    run.parameters[i].model.mutable_grad() = of_model;
    run.parameters[i].master.mutable_grad() = kept.defined() ? live.copy_(kept) : live;
  }
}

void Savepoint::restore_generators(const Run& run) const {
  auto& cpu = cpu_generator();
  cpu.set_engine(cpu_engine_);
  cpu.set_next_float_normal_sample(cpu_float_);
  cpu.set_next_double_normal_sample(cpu_double_);
  if (device_generator_.defined())
    at::Generator(at::globalContext().defaultGenerator(run.device)).set_state(device_generator_);
}

void Savepoint::clear() {
  scope_ = nullptr;
  step_ = {};
  copies_.clear();
  parameters_.clear();
  gradients_.clear();
  plugins_.clear();
  unwritten_.clear();
  next_ = 0;
}

}  // namespace vernier
