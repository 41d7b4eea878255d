#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "source.h"

namespace vernier::compile {

namespace {

constexpr std::int64_t line = 64;  // bytes of a cache line

std::int64_t rounded(std::size_t bytes) {
  return (static_cast<std::int64_t>(bytes) + line - 1) / line * line;
}

}  // namespace

std::string type_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float";
    case at::kDouble:
      return "double";
    case at::kLong:
      return "long";
    case at::kInt:
      return "int";
    case at::kBool:
      return "bool";
    default:
      return "";
  }
}

Memory::Memory(const Calls& calls, const std::vector<at::Tensor>& results) {
  look(calls);
  for (const auto& result : results) {
    if (const auto found = blocks_.find(memory_of(result)); found != blocks_.end()) found->second.is_outside = true;
  }
  for (auto& [key, block] : blocks_) {
    const auto own = block.users + 1;  // and the block
    block.is_outside = block.is_outside || !block.is_made || block.storage.use_count() > own;
  }
  place();
}

void Memory::look(const Calls& calls) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto note = [&](const at::Tensor& tensor, bool is_result) {
      const auto* key = memory_of(tensor);
      if (key == nullptr) return;
      auto [entry, is_new] = blocks_.try_emplace(key);
      auto& block = entry->second;
      if (is_new) {
        block.storage = tensor.storage();
        block.first = i;
        block.number = blocks_.size();
        block.is_made = is_result;
      }
      block.last = i;
      block.users += 1;
    };
    each_tensor(calls[i].arguments, [&](const at::Tensor& tensor) { note(tensor, false); });
    each_tensor(calls[i].results, [&](const at::Tensor& tensor) { note(tensor, true); });
  }
}

// The largest first, each at the lowest place that no other one has at the same time.
void Memory::place() {
  std::vector<Block*> inside, placed;
  for (auto& [key, block] : blocks_) {
    if (!block.is_outside) inside.push_back(&block);
  }
  std::ranges::sort(inside, [](const Block* a, const Block* b) {
    return std::pair(b->storage.nbytes(), a->number) < std::pair(a->storage.nbytes(), b->number);
  });
  std::int64_t bytes = line;
  for (auto* block : inside) {
    block->place = 0;
    for (bool is_free = false; !is_free;) {
      is_free = true;
      for (const auto* other : placed) {
        const bool is_then = other->first <= block->last && block->first <= other->last;
        const auto end = other->place + rounded(other->storage.nbytes());
        const bool is_there = other->place < block->place + rounded(block->storage.nbytes()) && block->place < end;
        if (!is_then || !is_there) continue;
        block->place = end;
        is_free = false;
      }
    }
    placed.push_back(block);
    bytes = std::max(bytes, block->place + rounded(block->storage.nbytes()));
  }
  arena_ = at::empty({bytes}, at::kByte);
  std::vector<Block*> outside;  // in the order of their first use, which is the same in each process
  for (auto& [key, block] : blocks_) {
    if (block.is_outside) outside.push_back(&block);
  }
  std::ranges::sort(outside, {}, &Block::number);
  for (auto* block : outside) {
    block->place = std::ssize(outside_);
    outside_.push_back(block->storage.mutable_data());
  }
}

void Memory::take() const {
  for (const auto& [key, block] : blocks_) {
    if (block.is_outside) continue;
    block.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(arena() + block.place, at::kCPU));
  }
}

std::string Memory::address(const at::Tensor& tensor) const {
  const auto& block = blocks_.at(memory_of(tensor));
  const auto type = type_of(tensor.scalar_type());
  const auto offset = tensor.storage_offset();
  if (block.is_outside) return c10::str("outside<", type, ">(memory[", block.place, "], ", offset, ")");
  return c10::str("inside<", type, ">(arena + ", block.place, ", ", offset, ")");
}

bool Memory::is_read_after(std::size_t call, const at::Tensor& tensor) const {
  const auto& block = blocks_.at(memory_of(tensor));
  return block.is_outside || block.last > call;
}

}  // namespace vernier::compile
