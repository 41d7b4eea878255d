#include <c10/core/CPUAllocator.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/state.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace vernier {

namespace {

// Without the dispatcher, and without the allocator's alignment: the runner has plugins save before every step.
template <class Number>
torch::Tensor scalar_of(Number value) {
  void* memory = std::malloc(sizeof value);
  if (memory == nullptr) throw std::bad_alloc();
  std::memcpy(memory, &value, sizeof value);
  c10::Storage storage(c10::Storage::use_byte_size_t(), sizeof value,
                       at::DataPtr(memory, memory, &std::free, torch::kCPU), c10::GetCPUAllocator(),
                       /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         caffe2::TypeMeta::Make<Number>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({});
  return tensor;
}

// A number or text of the state; on whatever device it was put, it is read on the host.
torch::Tensor kept_as(const State& state, const std::string& name, torch::ScalarType dtype, std::int64_t dimensions) {
  const auto tensor = state.tensor(name);
  if (tensor.scalar_type() != dtype || tensor.dim() != dimensions) {
    throw Error("the saved state has '" + name + "' as " + tensor.toString() + ", which is not what is read");
  }
  return tensor.to(torch::kCPU).contiguous();
}

}  // namespace

// An undefined tensor is saved as an empty list of bools, so that a missing entry is always a mistake.
void State::put(const std::string& name, torch::Tensor value) {
  tensors[name] = value.defined() ? std::move(value) : torch::empty({0}, torch::kBool);
}

void State::put(const std::string& name, const at::Generator& value) {
  tensors[name] = value.get_state();
}

void State::put(const std::string& name, std::int64_t value) {
  tensors[name] = scalar_of(value);
}

void State::put(const std::string& name, double value) {
  tensors[name] = scalar_of(value);
}

void State::put(const std::string& name, const std::string& value) {
  auto bytes = torch::empty({static_cast<std::int64_t>(value.size())}, torch::kUInt8);
  if (!value.empty()) std::memcpy(bytes.data_ptr(), value.data(), value.size());
  tensors[name] = bytes;
}

// Moves the entries instead of copying them, because each training step saves plugins.
void State::put(const std::string& prefix, State part) {
  while (!part.tensors.empty()) {
    auto entry = part.tensors.extract(part.tensors.begin());
    if (!prefix.empty()) entry.key().insert(0, prefix + "/");
    if (!entry.mapped().defined()) {
      put(entry.key(), torch::Tensor());
    } else if (const auto done = tensors.insert(std::move(entry)); !done.inserted) {
      done.position->second = done.node.mapped();
    }
  }
}

torch::Tensor State::tensor(const std::string& name) const {
  const auto found = tensors.find(name);
  if (found == tensors.end()) {
    throw Error("the saved state has no '" + name + "': it was written by another version or another plugin");
  }
  return found->second;
}

std::int64_t State::integer(const std::string& name) const {
  return *kept_as(*this, name, torch::kInt64, 0).const_data_ptr<std::int64_t>();
}

void State::refuse_number(const std::string& name, std::int64_t value) {
  throw Error("the saved '" + name + "' is " + std::to_string(value) + ", which does not fit into the member");
}

double State::real(const std::string& name) const {
  return *kept_as(*this, name, torch::kFloat64, 0).const_data_ptr<double>();
}

std::string State::text(const std::string& name) const {
  const auto bytes = kept_as(*this, name, torch::kUInt8, 1);
  return {reinterpret_cast<const char*>(bytes.const_data_ptr<std::uint8_t>()), static_cast<std::size_t>(bytes.numel())};
}

void State::get(const std::string& name, torch::Tensor& member, torch::Device device) const {
  const auto saved = tensor(name);
  const bool is_undefined = saved.scalar_type() == torch::kBool && saved.dim() == 1 && saved.numel() == 0;
  if (is_undefined) {
    member.reset();
  } else if (member.defined()) {
    member = saved.to(member.device(), member.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  } else {
    member = saved.to(device, saved.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
}

void State::get(const std::string& name, at::Generator& member, torch::Device) const {
  member.set_state(tensor(name).to(torch::kCPU));
}

void State::get(const std::string& prefix, Tensors& member, torch::Device device) const {
  const auto before = std::exchange(member, {});
  const auto saved = part(prefix);
  for (const auto& [name, ignored] : saved.tensors) {
    const auto held = before.find(name);
    auto& own = member[name] = held == before.end() ? torch::Tensor() : held->second;
    saved.get(name, own, device);
  }
}

State State::part(const std::string& prefix) const {
  State part;
  const std::string start = prefix + "/";
  for (auto entry = tensors.lower_bound(start); entry != tensors.end() && entry->first.starts_with(start); ++entry) {
    part.tensors[entry->first.substr(start.size())] = entry->second;
  }
  return part;
}

}  // namespace vernier
