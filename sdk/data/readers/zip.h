// Reads ZIP archives, with the extensions for large files (PKWARE's APPNOTE 6.3.10).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mapped_file.h"

namespace vernier {

struct ZipMember {
  std::string name;
  bool is_deflated = false;
  std::uint64_t begin = 0;  // offset of its bytes in the archive
  std::uint64_t packed = 0, unpacked = 0;
  std::uint32_t crc = 0;
};

// The members in the order of the central directory, all within the file. Throws Error for a damaged or encrypted
// archive and for other methods than storing and deflating.
std::vector<ZipMember> read_zip(const MappedFile& file);

// The bytes of a deflated member; throws Error unless they are whole.
std::string inflate(const MappedFile& file, const ZipMember& member);

// Throws Error unless the bytes have the member's checksum.
void check_crc(const MappedFile& file, const ZipMember& member, std::string_view bytes);

}  // namespace vernier
