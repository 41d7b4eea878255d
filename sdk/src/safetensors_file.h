// The parts of reading and writing safetensors that a checkpoint needs one by one.
#pragma once

#include <vernier/checkpoint_folder.h>
#include <vernier/safetensors.h>

#include <functional>
#include <string>
#include <vector>

#include "checksum.h"
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
  // Into a contiguous tensor of its dtype and shape on the CPU. checksum: where given, that of the tensor's bytes is
  // left in it. Any thread.
  void read(const Entry& entry, const torch::Tensor& into, Checksum* checksum = nullptr) const;

 private:
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
