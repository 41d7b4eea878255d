#include "snapshot_ring.h"

#include <torch/types.h>
#include <algorithm>

namespace vernier {

void SnapshotRing::keep(std::int64_t every, std::int64_t number) {
  every_ = every_ == 0 ? every : std::min(every_, every);
  number_ = std::max(number_, static_cast<std::size_t>(number));
}

bool SnapshotRing::is_due(std::int64_t step) const {
  if (every_ == 0 || (!kept_.empty() && kept_.back().step == step)) return false;
  return kept_.empty() || step % every_ == 0;
}

void SnapshotRing::add(std::int64_t step, const State& snapshot) {
  State copy;
  for (const auto& [name, tensor] : snapshot.tensors) copy.put(name, tensor.detach().clone());
  kept_.push_back({step, std::move(copy)});
  while (kept_.size() > number_) kept_.pop_front();
}

State SnapshotRing::back_to(std::int64_t step) {
  while (kept_.size() > 1 && kept_.back().step > step) kept_.pop_back();
  return kept_.back().snapshot;
}

void SnapshotRing::drop(std::int64_t last, std::int64_t count) {
  for (auto batch = last; batch >= 0 && count > 0; --batch) {
    if (dropped_.insert(batch).second) count -= 1;
  }
}

State SnapshotRing::save() const {
  State state;
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    state.put("kept/" + std::to_string(i) + "/step", kept_[i].step);
    state.put("kept/" + std::to_string(i) + "/snapshot", kept_[i].snapshot);
  }
  if (!dropped_.empty()) {
    const std::vector<std::int64_t> dropped(dropped_.begin(), dropped_.end());
    state.put("dropped", torch::tensor(dropped, torch::kInt64));
  }
  return state;
}

void SnapshotRing::load(const State& state) {
  kept_.clear();
  for (std::size_t i = 0; state.has("kept/" + std::to_string(i) + "/step"); ++i) {
    const auto kept = state.part("kept/" + std::to_string(i));
    kept_.push_back({kept.integer("step"), kept.part("snapshot")});
  }
  while (kept_.size() > number_) kept_.pop_front();
  dropped_.clear();
  if (!state.has("dropped")) return;
  const auto dropped = state.tensor("dropped").to(torch::kCPU).contiguous();
  dropped_.insert(dropped.const_data_ptr<std::int64_t>(), dropped.const_data_ptr<std::int64_t>() + dropped.numel());
}

}  // namespace vernier
