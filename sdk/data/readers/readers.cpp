// Tensors of a safetensors file as a dataset. windows.cpp, json_lines.cpp and idx.cpp have the others of readers.h.
#include <vernier/data/readers.h>
#include <vernier/error.h>

#include <algorithm>

#include "arrays.h"
#include "files/safetensors_file.h"
#include "mapped_file.h"

namespace vernier {

std::string file_fingerprint(const std::string& path) {
  return MappedFile::open(path)->fingerprint();
}

DatasetPtr safetensors_dataset(const std::string& path, const std::vector<std::string>& names) try {
  const auto mapped = MappedFile::open(path);
  const SafetensorsFile header(path);
  std::vector<NamedArray> arrays;
  for (const auto& name : names) {
    const auto found = std::ranges::find(header.entries(), name, &SafetensorsFile::Entry::name);
    if (found == header.entries().end()) {
      std::vector<std::string> there;
      for (const auto& entry : header.entries()) there.push_back(entry.name);
      mapped->refuse("has no tensor '" + shortened(name) + "'; it has " + shortened(some_of(there)));
    }
    const auto tensor = mapped->tensor(header.header_size() + found->begin, found->shape, found->type,
                                       "tensor '" + shortened(name) + "'");
    arrays.push_back({"'" + path + "' tensor '" + name + "'", tensor});
  }
  return array_dataset(std::move(arrays), {mapped});
} catch (const Error& error) {  // the header's reader is also that of checkpoints, and has their kind of error
  refuse(error.what());
}

}  // namespace vernier
