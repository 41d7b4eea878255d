// Tensors by name in a file that every framework reads: https://huggingface.co/docs/safetensors.
#pragma once

#include <vernier/abi.h>
#include <vernier/state.h>

#include <map>
#include <string>

namespace vernier {

using Metadata = std::map<std::string, std::string>;

struct Safetensors {
  Tensors tensors;  // on the CPU, contiguous
  Metadata metadata;
};

// All three may be called on any thread. They throw Error, which names the path and, where it is one tensor's fault,
// the tensor; a system call that failed also adds the system's reason ("No space left on device").

// Reads a file whose origin need not be trusted: the header is checked as a whole before memory for a tensor is taken,
// and refused where it is not JSON, names a thing twice or a dtype that is unknown, or where the tensors do not fill
// the file exactly. The format has no checksum: a changed bit of a tensor is not seen.
VERNIER_API Safetensors read_safetensors(const std::string& path);

// The tensors alone.
VERNIER_API Tensors load_safetensors(const std::string& path);

// Creates or overwrites `path` and returns when the bytes are on the disk (fsync). Tensors of any device and stride;
// each is streamed, and only one that is not contiguous is copied first. The bytes are those that the format's own
// library writes, with metadata in the order of its keys. After an Error the file is not whole: who must never see half
// a file writes to another name and renames.
VERNIER_API void save_safetensors(const std::string& path, const Tensors& tensors, const Metadata& metadata = {});

}  // namespace vernier
