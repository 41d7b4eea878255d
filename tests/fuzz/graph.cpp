// Whatever the bytes of a .pt2 file are, task/graph reads its program and tensors, or throws Error with one line.
#include <torch/types.h>
#include <vernier/error.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "fuzzer.h"
#include "task/graph/program.h"

// LibTorch's reader checks no sums of the records, so changes that move nothing reach the program.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  if (seed % 4 == 0 || size == 0) return LLVMFuzzerMutate(data, size, most);
  const auto begin = (seed / 4) % size, length = std::min<std::size_t>(size - begin, 16);
  std::vector<std::uint8_t> piece(data + begin, data + begin + length);
  LLVMFuzzerMutate(piece.data(), length, length);
  std::copy(piece.begin(), piece.end(), data + begin);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    auto bytes = torch::empty({static_cast<std::int64_t>(size)}, torch::kUInt8);
    if (size > 0) std::memcpy(bytes.mutable_data_ptr(), data, size);
    graph::Archive archive(std::move(bytes), "model.pt2");
    graph::program_of(archive, archive.program(), /*switches=*/true);
    if (const auto evaluation = archive.extra("evaluation"); !evaluation.is_null()) {
      graph::program_of(archive, evaluation, /*switches=*/false);
    }
    for (const char* folder : {"data/weights", "data/constants"}) {
      for (const auto& [name, tensor] : archive.tensors(folder)) {
        const auto reach = tensor.storage_offset() * static_cast<std::int64_t>(tensor.element_size());
        must(tensor.numel() == 0 || reach + static_cast<std::int64_t>(tensor.element_size()) <=
                                        static_cast<std::int64_t>(tensor.storage().nbytes()));
      }
    }
  } catch (const vernier::Error& error) {
    must(std::strchr(error.what(), '\n') == nullptr);
  }
  return 0;
}
