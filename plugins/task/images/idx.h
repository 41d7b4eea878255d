// IDX, the file format of MNIST (LeCun, http://yann.lecun.com/exdb/mnist): bytes 0, 0, type, number of dimensions, then
// a big-endian 32-bit size for each dimension, then the elements, the last dimension running fastest.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

// The unsigned bytes of an IDX file with so many dimensions, packed by gzip or not. Throws Error naming the file where
// it is anything else: no regular file, another type, too few bytes or too many, a damaged gzip stream. Elements of
// more than max_bytes bytes are refused before they are read.
torch::Tensor read_idx(const std::string& path, std::int64_t dimensions, std::int64_t max_bytes);
