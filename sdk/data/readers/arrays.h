// A dataset of tensors that lie in mapped files or in memory; dimension 0 of each is the sample.
#pragma once

#include <vernier/data/dataset.h>

#include <string>
#include <vector>

#include "mapped_file.h"

namespace vernier {

struct NamedArray {
  std::string name;  // for messages: "'x.npy'", "'x.npz' array 'images'"
  torch::Tensor tensor;
};

// `files` are those of the tensors. Without files, the fingerprint has a checksum of the tensors. Unsigned integers of
// more than 8 bits, with which LibTorch does not compute, become int64; get() refuses those of 2^63 or more.
DatasetPtr array_dataset(std::vector<NamedArray> arrays, std::vector<MappedFilePtr> files);

}  // namespace vernier
