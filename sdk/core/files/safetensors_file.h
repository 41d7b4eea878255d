// The parts of reading and writing safetensors that checkpoint_folder.cpp uses one by one. All throw Error.
#pragma once

#include <torch/types.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/checksum.h>
#include <vernier/safetensors.h>

#include <functional>
#include <string>
#include <vector>

#include "file.h"

namespace vernier {

// The number of bytes of a tensor. Nothing if that overflows or a size is negative.
VERNIER_API std::optional<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, torch::ScalarType type);

// Returns why a tensor cannot be saved, as a sentence with a remedy; "" if it can.
VERNIER_API std::string why_not_saved(const torch::Tensor& tensor);

// An open file with a valid header. Any thread may call its functions.
class VERNIER_API SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    torch::ScalarType type = torch::kUInt8;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;  // bytes after the header
  };

  // Reads the header and checks it against the size of the file. flags: more flags of open(2), such as O_NOFOLLOW.
  explicit SafetensorsFile(const std::string& path, int flags = 0);
  const std::string& path() const { return file_.path(); }
  const std::optional<Metadata>& metadata() const { return metadata_; }
  const std::vector<Entry>& entries() const { return entries_; }  // in the order of their bytes
  std::uint64_t header_size() const { return head_.size(); }      // the entries' offsets count from here
  CheckpointManifest::File description() const;                   // without the checksums of the tensors

  // Receives the name of each tensor and the checksum of its bytes, on any thread. Throws to refuse the tensor.
  using Check = std::function<void(const std::string& name, const Checksum&)>;

  // Read every tensor, several at a time. Of several refused tensors, the error names the first in the file. A tensor
  // that `leaves_out` names is checked with a small buffer instead.
  Tensors read_all(const Check& check = {}, const std::function<bool(const Entry&)>& leaves_out = {}) const;
  void verify_all(const Check& check) const;  // with a small buffer for each thread

 private:
  void verify(const Entry& entry, const Check& check) const;
  void read(const Entry& entry, const torch::Tensor& into, Checksum* checksum) const;
  void for_each_entry(const std::function<void(const Entry&)>& body) const;

  File file_;
  std::uint64_t size_;
  std::string head_;  // the length and the header
  std::optional<Metadata> metadata_;
  std::vector<Entry> entries_;  // in the order of their bytes
};

// Writes a whole file with checksums. The caller calls file.finish(). `progress` receives the bytes of each chunk.
CheckpointManifest::File write_safetensors(File& file, const Tensors& tensors, const Metadata& metadata,
                                           const std::function<void(std::uint64_t)>& progress = {});

}  // namespace vernier
