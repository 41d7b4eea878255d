#include "leased_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

namespace vernier {

namespace {

// Where all writers are processes of this host.
bool is_local(int descriptor) {
  constexpr std::array<std::uint32_t, 5> local = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, TMPFS_MAGIC,
                                                  OVERLAYFS_SUPER_MAGIC};
  struct statfs status = {};
  return ::fstatfs(descriptor, &status) == 0 &&
         std::ranges::find(local, static_cast<std::uint32_t>(status.f_type)) != local.end();
}

// False where an access would be a signal: the disk failed, or the kernel is older than 5.14 and cannot tell.
bool provide([[maybe_unused]] char* bytes, [[maybe_unused]] std::uint64_t offset,
             [[maybe_unused]] std::uint64_t count) {
#ifdef MADV_POPULATE_READ
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto first = offset / page * page;
  return ::madvise(bytes + first, offset - first + count, MADV_POPULATE_READ) == 0;
#else
  return false;
#endif
}

}  // namespace

// A waiting writer is announced by a signal, by default one that ends the process. SIGURG is ignored unless the program
// asks for it.
std::unique_ptr<const LeasedFile> LeasedFile::of(const File& file, std::uint64_t size) {
  const int descriptor = file.descriptor();
  if (size == 0 || !is_local(descriptor) || ::fcntl(descriptor, F_SETSIG, SIGURG) != 0 ||
      ::fcntl(descriptor, F_SETLEASE, F_RDLCK) != 0) {
    return nullptr;
  }
  void* bytes = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  if (bytes == MAP_FAILED) {
    ::fcntl(descriptor, F_SETLEASE, F_UNLCK);
    return nullptr;
  }
  std::unique_ptr<const LeasedFile> leased(new LeasedFile(file, static_cast<char*>(bytes), size));
  const bool is_of_size = file.size() == size;  // now that nobody can cut it short
  return is_of_size && leased->at(0, 1) != nullptr ? std::move(leased) : nullptr;
}

LeasedFile::~LeasedFile() {
  ::munmap(bytes_, size_);
  ::fcntl(file_.descriptor(), F_SETLEASE, F_UNLCK);
}

bool LeasedFile::is_leased() const {
  return ::fcntl(file_.descriptor(), F_GETLEASE) == F_RDLCK;
}

const char* LeasedFile::at(std::uint64_t offset, std::uint64_t count) const {
  const bool is_in_it = offset <= size_ && count <= size_ - offset;
  return is_in_it && is_leased() && provide(bytes_, offset, count) ? bytes_ + offset : nullptr;
}

}  // namespace vernier
