#include "savepoint.h"

#include <unordered_set>

namespace vernier {

namespace {

// Returns true if only the State holds the memory, as after State::put; what from_blob made needs a copy.
bool is_of_nobody_else(const torch::Tensor& tensor) {
  if (tensor.use_count() != 1 || !tensor.has_storage() || tensor.storage().use_count() != 1) return false;
  const auto& memory = tensor.storage().data_ptr();
  return memory.get() == nullptr || memory.get_context() == memory.get();
}

const void* storage_of(const torch::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

void Savepoint::take(const TrainerRun& run, const Scope& scope) try {
  clear();
  scope_ = &scope;
  step_ = run;
  counters_ = run;
  random_.take(run.device);
  for (const auto& weight : scope.weights) leave(weight, /*is_copied=*/false);
  for (const auto& buffer : scope.buffers) {
    if (!leave(buffer, buffer.nbytes() <= scope.copy_up_to)) copies_.emplace_back(buffer, copy(buffer));
  }
  if (scope.keeps_gradients) parameters_ = run.parameters;
  for (const auto& parameter : parameters_) gradients_.emplace_back(parameter.model.grad(), parameter.master.grad());
  // Weights are watched by themselves: a plugin that saves them too needs no copy.
  std::unordered_set<const void*> weights;
  const auto is_weight = [&](const torch::Tensor& tensor) {
    if (weights.empty()) {
      for (const auto& parameter : run.parameters) {
        weights.insert({storage_of(parameter.model), storage_of(parameter.master)});
      }
    }
    return tensor.has_storage() && weights.contains(storage_of(tensor));
  };
  for (auto* plugin : scope.plugins) {
    auto& state = plugins_.emplace_back(plugin, plugin->save()).second;
    for (auto& [name, tensor] : state.tensors) {
      if (is_of_nobody_else(tensor) || is_weight(tensor)) continue;
      if (!leave(tensor, tensor.nbytes() <= scope.copy_up_to)) tensor = copy(tensor);
    }
  }
} catch (...) {
  clear();  // an incomplete copy must not be restored
  throw;
}

bool Savepoint::leave(const torch::Tensor& live, bool is_copied) {
  if (!is_copied) unwritten_.push_back(now(live));
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

Savepoint::Unwritten Savepoint::now(const torch::Tensor& tensor) {
  const bool has_memory = tensor.has_storage() && tensor.storage().nbytes() > 0;
  return {tensor, tensor._version(), has_memory ? tensor.storage() : c10::Storage()};
}

bool Savepoint::was_written(const Unwritten& each) {
  const auto* before = each.memory.unsafeGetStorageImpl();
  const bool has_other_memory = before != nullptr && each.tensor.storage().unsafeGetStorageImpl() != before;
  return has_other_memory || each.tensor._version() != each.version;
}

void Savepoint::accept(const std::vector<torch::Tensor>& put_back) {
  std::unordered_set<const void*> all;
  for (const auto& tensor : put_back) all.insert(tensor.unsafeGetTensorImpl());
  for (auto& each : unwritten_) {
    if (all.contains(each.tensor.unsafeGetTensorImpl())) each = now(each.tensor);
  }
}

void Savepoint::restore_copies() {
  const torch::NoGradGuard no_grad;
  for (auto& [live, kept] : copies_) live.copy_(kept);
}

void Savepoint::restore(TrainerRun& run) {
  for (const auto& each : unwritten_) {
    if (!was_written(each)) continue;
    throw Error(c10::str("a weight or large tensor, of shape ", each.tensor.sizes(),
                         ", was written or replaced before the update"));
  }
  const torch::NoGradGuard no_grad;
  memory_.clear();  // whoever loads the copies may keep them
  restore_copies();
  if (scope_->keeps_gradients) run.parameters = parameters_;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    run.parameters[i].model.mutable_grad() = gradients_[i].first;
    run.parameters[i].master.mutable_grad() = gradients_[i].second;
  }
  random_.restore(run.device);
  static_cast<StepState&>(run) = step_;
  static_cast<Counters&>(run) = counters_;
  for (const auto& [plugin, state] : plugins_) plugin->load(state);
}

void Savepoint::clear() {
  if (std::exchange(scope_, nullptr) == nullptr) return;  // nothing was copied
  step_ = {};
  copies_.clear();
  parameters_.clear();
  gradients_.clear();
  plugins_.clear();
  unwritten_.clear();
  next_ = 0;
}

}  // namespace vernier
