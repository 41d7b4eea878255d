// rolling: copies of the state, beside the training; see rolling.cpp.
#include "copies.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <vernier/cores.h>

#include <future>
#include <utility>

namespace rolling {

using vernier::Copied;
using vernier::Tensors;

namespace {

constexpr const char* optimizer_prefix = "plugin/optimizer/";

bool can_be_saved(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == torch::kStrided;
}

// If training uses all cores, a copy beside it takes longer than a copy before it (tests/benchmarks/checkpoint).
bool is_a_core_free() {
  return at::get_num_threads() < vernier::available_cores();
}

// An event after everything that the stream has been given so far.
c10::Event now_on(c10::Stream stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

}  // namespace

Copy Copies::of(const Tensors& live, torch::Device device) {
  make_room(live);
  Copy copy;
  std::vector<Copied> on_host, later_on_host, soon_changed, by_update;
  const torch::NoGradGuard no_grad;
  const bool is_beside = device.is_cpu() && is_a_core_free();
  for (const auto& [name, tensor] : live) {
    if (!can_be_saved(tensor)) continue;
    const Copied one{copy.tensors[name] = room_for(name, tensor), tensor.detach()};
    const bool is_by_update = name.starts_with(optimizer_prefix);
    if (tensor.is_cpu()) {
      (is_by_update && is_beside ? later_on_host : on_host).push_back(one);
    } else if (tensor.device() != device) {
      one.to.copy_(one.from);
    } else {
      (is_by_update ? by_update : soon_changed).push_back(one);
    }
  }
  copies_ = copy.tensors;
  if (!device.is_cpu()) copy_from_device(soon_changed, by_update);
  vernier::copy_non_temporal(on_host);
  if (!later_on_host.empty()) {  // one thread: the others run the next forward pass
    copied_ = std::async(std::launch::async, [all = std::move(later_on_host)] { vernier::copy_non_temporal(all, 1); });
  }
  for (const auto& [name, tensor] : live)
    copy.tensors.try_emplace(name, tensor);  // the writer refuses the others by name
  copy.arrived = arrived_;
  copy.copied = copied_;
  return copy;
}

// Weights, buffers and the state of most plugins may change in the next step, so the training stream waits for their
// copies. The optimizer's memory, which is the largest part, changes only in the update. It is copied during the next
// forward and backward pass.
void Copies::copy_from_device(const std::vector<Copied>& soon_changed, const std::vector<Copied>& by_update) {
  if (soon_changed.empty() && by_update.empty()) return;
  const auto device = (soon_changed.empty() ? by_update : soon_changed).front().from.device();
  const c10::impl::VirtualGuardImpl implementation(device.type());
  const auto training = implementation.getStream(device);
  if (!stream_) stream_ = implementation.getStreamFromGlobalPool(device);
  const auto copy = [&](const std::vector<Copied>& all) {
    for (const auto& [to, from] : all) {
      to.copy_(from, /*non_blocking=*/true);
      // Memory that is freed meanwhile must not be reused before this copy has read it.
      implementation.recordDataPtrOnStream(from.storage().data_ptr(), *stream_);
    }
  };
  now_on(training).block(*stream_);
  const c10::StreamGuard on_stream(*stream_);
  copy(soon_changed);
  now_on(*stream_).block(training);
  copy(by_update);
  arrived_ = std::make_shared<const c10::Event>(now_on(*stream_));
}

void Copies::hold_update() {
  if (const auto copied = std::exchange(copied_, {}); copied.valid()) copied.wait();
  const auto arrived = std::exchange(arrived_, nullptr);
  if (arrived) arrived->block(c10::impl::VirtualGuardImpl(arrived->device_type()).getStream(arrived->device()));
}

// Allocates the large tensors in one block. Most of them are new only in the first copy.
void Copies::make_room(const Tensors& live) {
  constexpr std::size_t large = 1 << 16;
  Tensors wanted;
  for (const auto& [name, tensor] : live) {
    const bool is_large = can_be_saved(tensor) && tensor.is_cpu() && tensor.nbytes() >= large;
    if (is_large && !fits(name, tensor)) wanted[name] = tensor;
  }
  for (auto& [name, tensor] : vernier::empty_on_cpu(wanted)) copies_[name] = std::move(tensor);
}

torch::Tensor Copies::room_for(const std::string& name, const torch::Tensor& tensor) {
  if (fits(name, tensor)) return copies_[name];
  const auto options = torch::TensorOptions(tensor.scalar_type()).pinned_memory(!tensor.is_cpu());
  return torch::empty(tensor.sizes(), options);
}

bool Copies::fits(const std::string& name, const torch::Tensor& tensor) const {
  const auto kept = copies_.find(name);
  return kept != copies_.end() && kept->second.defined() && kept->second.scalar_type() == tensor.scalar_type() &&
         kept->second.sizes() == tensor.sizes();
}

}  // namespace rolling
