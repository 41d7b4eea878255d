// Whatever a manifest.json says, parse_manifest gives a manifest that is in order or throws Error.
#include <vernier/checkpoint_folder.h>
#include <vernier/checksum.h>
#include <vernier/error.h>

#include <cstring>

#include "fuzzer.h"

namespace {

// The manifest's last 48 bytes: its checksum, of all that is before. Any change would end right there.
void mend_checksum(std::uint8_t* data, std::size_t size) {
  constexpr std::size_t tail = 48;
  if (size < tail) return;
  vernier::Checksum checksum;
  checksum.add(data, size - tail);
  const std::string text = ",\"checksum\":\"" + checksum.digits() + "\"}\n";
  std::memcpy(data + size - tail, text.data(), tail);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, most);
  if (seed % 16 != 0) mend_checksum(data, size);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  vernier::CheckpointManifest manifest;
  try {
    manifest = vernier::parse_manifest("manifest.json", text);
  } catch (const vernier::Error&) {
    return 0;
  }
  must(manifest.version == vernier::checkpoint_format_version && manifest.step >= 0);
  must(manifest.files.size() == 2);
  for (const auto& [name, file] : manifest.files) {
    must(file.header_checksum.size() == 32);
    for (const auto& [tensor, described] : file.tensors) {
      must(described.checksum.size() == 32);
      for (const auto length : described.shape) must(length >= 0);
    }
  }
  return 0;
}
