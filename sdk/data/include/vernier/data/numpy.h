// NumPy's arrays: .npy and .npz files (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
//
//   auto training = vernier::numpy_dataset({"images.npy", "labels.npy"});   // np.save
//   auto held_out = vernier::npz_dataset("test.npz", {"images", "labels"});  // np.savez, np.savez_compressed
//
// Read are bool, signed and unsigned integers of 8 to 64 bits, and floating-point numbers of 16 to 64 bits, all
// little-endian. Arrays in Fortran order become tensors with such strides.
#pragma once

#include <vernier/abi.h>
#include <vernier/data/dataset.h>
#include <vernier/state.h>
#include <vernier/tensor.h>

#include <string>
#include <vector>

namespace vernier {

// Any thread may call the functions. They throw Error, which names the file and the array, for: a file that cannot be
// read, is cut short or too long; a damaged header, archive or checksum; other types, such as objects, texts, records
// and big-endian numbers; an encrypted archive.

// The array of a .npy file. The file is mapped into memory, so nothing is read before it is needed. Writing to the
// tensor does not change the file. If another process truncates the file while the tensor lives, reading it ends this
// process with SIGBUS; clone() the tensor if that may happen.
VERNIER_API torch::Tensor read_npy(const std::string& path);

// The arrays of a .npz file by their names without ".npy". An array that is stored without compression, at an address
// that fits its type, is mapped as above; others are unpacked into memory. The archive's checksums are verified.
VERNIER_API Tensors read_npz(const std::string& path);
// The array of this name alone. The others may be of types that are not read.
VERNIER_API torch::Tensor read_npz(const std::string& path, const std::string& name);

// Sample i has entry i of each array: {arrays[0][i], arrays[1][i], …}. get() and get_batch() copy the entries. They
// throw Error if a file has changed since it was opened. Unsigned integers of 16 to 64 bits become int64; one of 2^63
// or more is refused. Throws Error if the arrays differ in their first dimension.
VERNIER_API DatasetPtr numpy_dataset(const std::vector<std::string>& paths);
VERNIER_API DatasetPtr npz_dataset(const std::string& path, const std::vector<std::string>& names);

}  // namespace vernier
