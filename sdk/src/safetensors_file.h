// The parts of reading and writing safetensors that a checkpoint needs one by one.
#pragma once

#include <vernier/checkpoint_folder.h>
#include <vernier/checksum.h>
#include <vernier/safetensors.h>

#include <functional>
#include <string>
#include <vector>

#include "file.h"

namespace vernier {

class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    torch::ScalarType type = torch::kUInt8;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;
  };

  // Reads the header and checks it as a whole, with the size of the file. flags: O_NOFOLLOW.
  explicit SafetensorsFile(const std::string& path, int flags = 0);
  const std::string& path() const { return file_.path(); }
  const std::vector<Entry>& entries() const { return entries_; }  // in the order of their bytes
  const Metadata& metadata() const { return metadata_; }
  CheckpointManifest::File description() const;  // without the tensors' checksums

  // Is given each tensor's name and the checksum of its bytes, on any thread; what it throws refuses the tensor.
  using Seen = std::function<void(const std::string& name, const Checksum&)>;
  // Reads every tensor, several at a time; the first in the file that is refused is told.
  Tensors read_all(const Seen& seen = {}) const;
  void look_at_all(const Seen& seen) const;  // the same in the memory of one tensor a thread

 private:
  void read(const Entry& entry, const torch::Tensor& into, Checksum* checksum) const;
  void read_each(const std::function<torch::Tensor(std::size_t)>& make, const Seen& seen) const;

  File file_;
  std::uint64_t size_;
  std::string head_;  // the length and the header
  Metadata metadata_;
  std::vector<Entry> entries_;
};

// progress: is told after each piece how many bytes it had. Does not finish() the file.
CheckpointManifest::File write_safetensors(File& file, const Tensors& tensors, const Metadata& metadata,
                                           const std::function<void(std::uint64_t)>& progress = {});

}  // namespace vernier
