// Tensors by name in a file that every framework reads: https://huggingface.co/docs/safetensors.
#pragma once

#include <vernier/abi.h>
#include <vernier/state.h>

#include <map>
#include <optional>
#include <string>

namespace vernier {

using Metadata = std::map<std::string, std::string>;

struct Safetensors {
  Tensors tensors;                   // on the CPU, contiguous
  std::optional<Metadata> metadata;  // nullopt if the file has no "__metadata__"; it may be empty
};

// Any thread may call these functions. They throw Error, which names the path and, where one tensor is at fault, that
// tensor. A failed system call adds the system's reason ("No space left on device").

// Reads a file from any source. Checks the whole header before it allocates memory for a tensor. Throws if the header
// is not JSON, has a name twice or an unknown dtype, or if the tensors do not fill the file exactly. The format has no
// checksums, so a changed bit of a tensor is not detected.
VERNIER_API Safetensors read_safetensors(const std::string& path);

// The same without the metadata.
VERNIER_API Tensors load_safetensors(const std::string& path);

// Creates or overwrites `path`. Returns when the bytes are on the disk (fsync). Tensors may have any device and stride;
// only a tensor that is not contiguous is copied first. The bytes equal those of the format's own library, with the
// metadata sorted by key; empty metadata is written too. After an Error the file is incomplete. A caller whose readers
// must never see an incomplete file writes to another name and renames it.
VERNIER_API void save_safetensors(const std::string& path, const Tensors& tensors,
                                  const std::optional<Metadata>& metadata = std::nullopt);

}  // namespace vernier
