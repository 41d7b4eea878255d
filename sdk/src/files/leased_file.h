// A file's bytes where the system has them, without a copy, while a lease keeps writers away (fcntl(2), F_SETLEASE).
#pragma once

#include <vernier/abi.h>

#include <cstdint>
#include <memory>

#include "core/file.h"

namespace vernier {

// Whoever opens the file for writing, or cuts it short, waits for up to 45 s (/proc/sys/fs/lease-break-time).
class VERNIER_API LeasedFile {
 public:
  // size: that the file should have. The file must outlive the result. Returns null where the system gives no lease (a
  // file of another user, or one that is open for writing) and where a lease would not bind other hosts.
  static std::unique_ptr<const LeasedFile> of(const File& file, std::uint64_t size);
  LeasedFile(const LeasedFile&) = delete;
  LeasedFile& operator=(const LeasedFile&) = delete;
  ~LeasedFile();

  bool is_leased() const;  // false from when a writer began to wait; any thread
  // The bytes, to be used within seconds. Returns null where they must be read instead: a writer waits, or the system
  // cannot provide them, which would be a signal here. Any thread.
  const char* at(std::uint64_t offset, std::uint64_t count) const;

 private:
  LeasedFile(const File& file, char* bytes, std::uint64_t size) : file_(file), bytes_(bytes), size_(size) {}

  const File& file_;
  char* bytes_;
  std::uint64_t size_;
};

}  // namespace vernier
