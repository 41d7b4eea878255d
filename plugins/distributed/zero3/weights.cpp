#include "weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace zero3 {

using vernier::draft::is_elsewhere;
using vernier::draft::leave_elsewhere;

namespace {

constexpr std::int64_t nothing = -1, direct_reads = -2;  // instead of the number of a weight

Weights* active = nullptr;

void allocate(const torch::Tensor& weight) {
  auto* storage = weight.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::GetAllocator(c10::DeviceType::CPU)->allocate(storage->nbytes()));
}

// While it lives, operators are called as if the model had not called any: without interceptors, autocast and autograd.
class PlainOperators {
  torch::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard no_keys_{c10::autocast_dispatch_keyset |
                                              c10::DispatchKeySet(c10::DispatchKey::TESTING_ONLY_GenericMode)};
};

}  // namespace

// Exists while an operator runs that has waited for weights: they must stay.
class Weights::Readers final : public at::ObserverContext {
 public:
  Readers(Weights& all, std::vector<std::size_t> read) : all_(all), read_(std::move(read)) {
    for (const auto i : read_) all_.weights_[i].readers += 1;
  }
  ~Readers() override {
    for (const auto i : read_) {
      all_.weights_[i].readers -= 1;
      if (all_.failure_) all_.release(all_.weights_[i]);  // it has zeros
    }
  }

 private:
  Weights& all_;
  std::vector<std::size_t> read_;
};

Weights::Weights(const vernier::Run& run, ddp::Group& group, std::int64_t rank, std::int64_t ranks)
    : group_(group), rank_(rank), ranks_(ranks) {
  const PlainOperators plain;
  const auto owners = at::zeros({std::ssize(run.parameters)}, torch::kFloat64);
  auto* owner = owners.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < run.parameters.size(); ++i) {
    owner[i] = run.parameters[i].owned ? static_cast<double>(rank) : 0;
  }
  group_.sum({owners})();
  for (std::size_t i = 0; i < run.parameters.size(); ++i) {
    const auto& [name, model, master, frozen, owned] = run.parameters[i];
    auto& weight = weights_.emplace_back();
    weight.name = name;
    weight.tensor = model;
    weight.owner = static_cast<std::int64_t>(owner[i]);
    weight.is_in_parts = can_be_in_parts(model);
    if (!weight.is_in_parts) whole_.push_back(name);
  }
  has_memory_ = open_memory(weights_, group_, rank_, ranks_);
  active = this;
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(before_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  release();
}

Weights::~Weights() {
  at::removeCallback(callback_);
  if (active == this) active = nullptr;
}

std::string Weights::describe() const {
  std::int64_t all = 0, in_parts = 0;
  for (const auto& weight : weights_) {
    all += weight.tensor.numel();
    in_parts += weight.is_in_parts ? weight.tensor.numel() : 0;
  }
  return c10::str(in_parts, " of ", all, " weights are in parts", has_memory_ ? ", which the ranks read in place" : "",
                  whole_.empty() ? "" : "; small ones stay on all ranks: " + vernier::some_of(whole_));
}

std::unique_ptr<at::ObserverContext> Weights::before_operator(const at::RecordFunction& call) {
  return active == nullptr || active->is_busy_ ? nullptr : active->fetch_for(call);
}

void Weights::note_if_missing(const torch::Tensor& tensor, std::vector<std::size_t>& read, bool& is_missing) const {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const auto* storage = tensor.storage().unsafeGetStorageImpl();
  const auto found = std::ranges::find_if(
      weights_, [&](const Weight& weight) { return weight.tensor.storage().unsafeGetStorageImpl() == storage; });
  if (found == weights_.end() || !is_of_others(*found)) return;
  read.push_back(static_cast<std::size_t>(found - weights_.begin()));
  is_missing = is_missing || is_elsewhere(found->tensor);
}

// LibTorch swallows errors of a RecordFunction callback. So a fetch that fails leaves zeros, and throw_failure() ends
// the run.
std::unique_ptr<at::ObserverContext> Weights::fetch_for(const at::RecordFunction& call) {
  const auto inputs = call.inputs();
  const auto is_here = [](const c10::IValue& input) {
    if (input.isTensor()) return !is_elsewhere(input.toTensor());
    if (!input.isTensorList()) return true;
    for (const at::Tensor& tensor : input.toTensorList()) {
      if (is_elsewhere(tensor)) return false;
    }
    return true;
  };
  if (std::ranges::all_of(inputs, is_here)) return nullptr;
  is_busy_ = true;
  const auto schema = call.operator_schema();
  std::vector<std::size_t> read;
  bool is_missing = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto* alias = schema && i < schema->arguments().size() ? schema->arguments()[i].alias_info() : nullptr;
    if (alias != nullptr && !alias->isWrite()) continue;  // a view: it reads no values
    if (inputs[i].isTensor()) note_if_missing(inputs[i].toTensor(), read, is_missing);
    if (!inputs[i].isTensorList()) continue;
    for (const at::Tensor& tensor : inputs[i].toTensorList()) note_if_missing(tensor, read, is_missing);
  }
  std::unique_ptr<Readers> readers;
  if (is_missing) {
    readers = std::make_unique<Readers>(*this, read);
    for (const auto i : read) fetch(i);
  }
  is_busy_ = false;
  return readers;
}

void Weights::fetch(std::size_t number) {
  const auto& weight = weights_[number];
  if (!is_elsewhere(weight.tensor)) return;
  try {
    if (failure_) std::rethrow_exception(failure_);
    if (!keeps_) release();
    if (would_be_direct_) agree();
    if (is_direct_) {
      use_place(weight);
    } else {
      send_round(static_cast<std::int64_t>(number));
    }
  } catch (...) {
    failure_ = std::current_exception();
    if (is_elsewhere(weight.tensor)) allocate(weight.tensor);
    std::memset(weight.tensor.storage().mutable_data(), 0, weight.tensor.storage().nbytes());
  }
}

// All ranks learn which weight each of them wants. Then the owners send these weights.
Weights::Round Weights::send_round(std::int64_t wanted) {
  const PlainOperators plain;
  const auto wants = at::zeros({ranks_}, torch::kFloat64);
  auto* want = wants.mutable_data_ptr<double>();
  want[rank_] = static_cast<double>(wanted + 1);
  group_.sum({wants})();
  Round round;
  for (std::int64_t r = 0; r < ranks_; ++r) {
    if (want[r] > 0) round.wanted.insert(static_cast<std::size_t>(want[r]) - 1);
    if (want[r] == 0) round.idle += 1;
    if (want[r] < 0) round.direct += 1;
  }
  if (round.wanted.empty()) return round;
  std::vector<std::vector<torch::Tensor>> of_ranks(static_cast<std::size_t>(ranks_));
  for (const auto i : round.wanted) {
    const auto& tensor = weights_[i].tensor;
    const auto owner = weights_[i].owner;
    const bool is_read_here = static_cast<std::int64_t>(i) == wanted;
    if (is_read_here) allocate(tensor);
    const bool has_place = is_read_here || owner == rank_;
    // Without the version counter of the weight: autograd has saved it.
    of_ranks[static_cast<std::size_t>(owner)].push_back(has_place ? tensor.variable_data()
                                                                  : at::empty(tensor.sizes(), tensor.options()));
  }
  group_.broadcast(of_ranks, /*bucket_bytes=*/1);
  return round;
}

void Weights::meet() {
  throw_failure();
  const auto was_busy = std::exchange(is_busy_, true);
  const auto end = c10::make_scope_exit([&] { is_busy_ = was_busy; });
  if (!keeps_) release();
  would_be_direct_ = false;
  if (std::exchange(is_direct_, false)) refuse_written(weights_, rank_);
  while (send_round(nothing).idle < ranks_) {
  }
}

void Weights::meet_in_backward() {
  throw_failure();
  if (would_be_direct_) agree();
  if (!is_direct_) return meet();
  if (!keeps_) release();
}

void Weights::begin_gradients() {
  would_be_direct_ = !is_direct_ && has_memory_;
}

// Asks the other ranks to read in place until all want to. Stops if a rank asks for no weight, or if a weight of this
// rank does not fit at its place.
void Weights::agree() {
  const auto was_busy = std::exchange(is_busy_, true);
  const auto end = c10::make_scope_exit([&] { is_busy_ = was_busy; });
  while (std::exchange(would_be_direct_, false) && move_to_memory(weights_, rank_)) {
    const auto round = send_round(direct_reads);
    is_direct_ = round.direct == ranks_;
    would_be_direct_ = !is_direct_ && round.idle == 0;
  }
}

void Weights::keep(bool keeps) {
  keeps_ = keeps;
  if (!keeps) release();
}

void Weights::release() {
  for (const auto& weight : weights_) release(weight);
}

void Weights::release(const torch::Tensor& tensor) {
  for (const auto& weight : weights_) {
    if (weight.tensor.is_same(tensor)) release(weight);
  }
}

void Weights::release(const Weight& weight) const {
  if (!is_of_others(weight) || weight.readers > 0 || is_elsewhere(weight.tensor)) return;
  leave_elsewhere(weight.tensor);
}

// Autocast and the like find by the new version that their copy of the weight is old.
bool Weights::note_written(const torch::Tensor& tensor) const {
  const auto found =
      std::ranges::find_if(weights_, [&](const Weight& weight) { return weight.tensor.is_same(tensor); });
  if (found == weights_.end() || !found->is_in_parts) return false;
  if (is_of_others(*found)) tensor.unsafeGetTensorImpl()->bump_version();
  return true;
}

void Weights::stop() {
  if (!failure_)
    failure_ = std::make_exception_ptr(vernier::Error("the run has failed, and weights of other ranks do not come"));
}

void Weights::throw_failure() {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace zero3
