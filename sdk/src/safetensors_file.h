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
  void look_at_all(const Seen& seen) const;  // the same in a buffer a thread
  // Looks at all, then puts the tensors that have one of their name in `live`, each of their dtype and shape, contiguous and
  // on the CPU, into that one. What is refused is so before the first is touched, unless the file changes meanwhile.
  void look_at_all_and_copy(const Seen& seen, const Tensors& live) const;

 private:
  void read(const Entry& entry, const torch::Tensor& into, Checksum* checksum) const;
  void look_at_all(const Seen& seen, const MappedFile* mapped) const;
  void for_each_piece(const Entry& entry, const MappedFile* mapped,
                      const std::function<void(const char* bytes, std::uint64_t count)>& body) const;
  void for_each_entry(const std::function<void(const Entry&, Checksum&)>& body) const;

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
