// Whatever the bytes of a file are, read_safetensors gives tensors that fill it exactly, or throws Error; and what it
// gives is written and read again as the same.
#include <vernier/error.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <cstring>

#include "fuzzer.h"
#include "input_file.h"

namespace {

using vernier::Safetensors;

void check_filled(const Safetensors& read, const std::uint8_t* data, std::size_t size) {
  std::uint64_t length = 0;
  std::memcpy(&length, data, sizeof length);
  for (const auto& [name, tensor] : read.tensors) length += tensor.nbytes();
  must(8 + length == size);
}

void check_same(const Safetensors& first, const Safetensors& second) {
  must(first.metadata == second.metadata && first.tensors.size() == second.tensors.size());
  for (const auto& [name, tensor] : first.tensors) {
    const auto found = second.tensors.find(name);
    must(found != second.tensors.end());
    const auto& other = found->second;
    must(tensor.scalar_type() == other.scalar_type() && tensor.sizes() == other.sizes());
    must(tensor.nbytes() == 0 || std::memcmp(tensor.const_data_ptr(), other.const_data_ptr(), tensor.nbytes()) == 0);
  }
}

// The length in front of the header: most changes of it end right there.
void mend_length(std::uint8_t* data, std::size_t size) {
  if (size < 8) return;
  const auto* end = std::find(std::reverse_iterator(data + size), std::reverse_iterator(data + 8), '}').base();
  const auto length = static_cast<std::uint64_t>(end - (data + 8));
  std::memcpy(data, &length, sizeof length);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, most);
  if (seed % 4 != 0) mend_length(data, size);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static InputFile input, again;
  input.fill(data, size);
  Safetensors read;
  try {
    read = vernier::read_safetensors(input.path());
  } catch (const vernier::Error&) {
    return 0;
  }
  check_filled(read, data, size);
  vernier::save_safetensors(again.path(), read.tensors, read.metadata);
  check_same(read, vernier::read_safetensors(again.path()));
  return 0;
}
