#include <vernier/copy.h>

#include <c10/core/CPUAllocator.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/parts.h"
#include "huge_pages.h"

namespace vernier {

namespace {

bool is_dense(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == torch::kStrided && !tensor.is_meta();
}

// True if the tensor's bytes are its values in order.
bool is_plain(const torch::Tensor& tensor) {
  return tensor.is_cpu() && is_dense(tensor) && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

bool are_alike(const torch::Tensor& a, const torch::Tensor& b) {
  return is_plain(a) && is_plain(b) && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

bool has_memory_of_its_own(const torch::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes();
}

// Memory from elsewhere, such as an array of the caller in torch::from_blob, must stay where it is.
bool is_of_libtorch(const at::DataPtr& data) {
  // Vernier's allocator, which counts, is one of two: it lets LibTorch's make tensors that are not counted.
  const auto deleter = data.get_deleter();
  return deleter == c10::GetCPUAllocator()->raw_deleter() || deleter == c10::GetDefaultCPUAllocator()->raw_deleter() ||
         HugePages::holds(data);
}

bool can_change_hands(const torch::Tensor& live, const torch::Tensor& saved) {
  return are_alike(live, saved) && saved.nbytes() >= HugePages::smallest && saved.use_count() == 1 &&
         saved.storage().use_count() == 1 && has_memory_of_its_own(live) && has_memory_of_its_own(saved) &&
         HugePages::holds(saved.storage().data_ptr()) && is_of_libtorch(live.storage().data_ptr());
}

void exchange_memory(const torch::Tensor& live, const torch::Tensor& saved) {
  auto taken = saved.storage().set_data_ptr(at::DataPtr());
  saved.storage().set_data_ptr(live.storage().set_data_ptr(std::move(taken)));
  live.unsafeGetTensorImpl()->bump_version();
}

// Non-temporal stores go past the caches.
void copy_bytes(char* to, const char* from, std::size_t count) {
#if defined(__SSE2__)
  constexpr std::size_t line = 64, ahead = 16 * line;
  const auto first = std::min((line - reinterpret_cast<std::uintptr_t>(to) % line) % line, count);
  std::memcpy(to, from, first);
  std::size_t done = first;
  for (; done + line <= count; done += line) {
    _mm_prefetch(from + done + ahead, _MM_HINT_NTA);  // does nothing past the end of the memory
    for (std::size_t i = 0; i < line; i += sizeof(__m128i)) {
      const auto bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done + i));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + done + i), bytes);
    }
  }
  std::memcpy(to + done, from + done, count - done);
  _mm_sfence();  // completes the stores before another thread may look
#else
  std::memcpy(to, from, count);
#endif
}

}  // namespace

Tensors empty_on_cpu(const Tensors& like) {
  std::vector<std::uint64_t> sizes;
  for (const auto& [name, tensor] : like) {
    if (is_dense(tensor)) sizes.push_back(tensor.nbytes());
  }
  const HugePages memory(sizes);
  Tensors made;
  for (const auto& [name, tensor] : like) {
    if (is_dense(tensor)) made[name] = memory.tensor(made.size(), tensor.sizes(), tensor.scalar_type());
  }
  return made;
}

void copy_non_temporal(const std::vector<Copied>& all, std::optional<int> threads) {
  const torch::NoGradGuard no_grad;
  constexpr std::size_t smallest = 1 << 16;
  std::vector<const Copied*> large;
  std::size_t bytes = 0;
  for (const auto& one : all) {
    if (!are_alike(one.to, one.from) || one.to.nbytes() < smallest) {
      one.to.copy_(one.from);
      continue;
    }
    large.push_back(&one);
    bytes += one.to.nbytes();
    one.to.unsafeGetTensorImpl()->bump_version();
  }
  constexpr std::size_t worth_a_thread = 1 << 22;
  const auto most = static_cast<std::size_t>(threads.value_or(at::get_num_threads()));
  const auto copy = [&](std::size_t i) {
    const auto& [to, from] = *large[i];
    copy_bytes(static_cast<char*>(to.mutable_data_ptr()), static_cast<const char*>(from.const_data_ptr()), to.nbytes());
  };
  for_each_part(large.size(), copy, std::min(most, bytes / worth_a_thread));
}

State clone_of(State state) {
  for (auto& [name, tensor] : state.tensors) tensor = tensor.detach().clone();
  return state;
}

void move_into(const Tensors& live, Tensors saved) {
  const torch::NoGradGuard no_grad;
  std::vector<Copied> copied;
  std::set<const c10::StorageImpl*> in_it;  // a storage with several names gets the value of the last one
  for (const auto& [name, tensor] : live) {
    const auto value = saved.find(name);
    if (value == saved.end()) throw Error("the saved tensors have no '" + name + "'");
    if (can_change_hands(tensor, value->second)) {
      exchange_memory(tensor, value->second);
    } else {
      if (!in_it.insert(tensor.storage().unsafeGetStorageImpl()).second) copy_non_temporal(std::exchange(copied, {}));
      copied.push_back({tensor, value->second});
    }
  }
  copy_non_temporal(copied);
}

}  // namespace vernier
