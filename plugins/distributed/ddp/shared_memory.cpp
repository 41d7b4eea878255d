#include "shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/error.h>

#include <random>
#include <utility>

#include "rendezvous.h"

namespace ddp {

using vernier::Error;

SharedMemory::SharedMemory(std::size_t bytes)
    : file_(::memfd_create("vernier", MFD_CLOEXEC)), size_(page_size() + bytes) {
  std::random_device random;
  const auto mark = std::uint64_t{random()} << 32 | random();
  name_ = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_) + " " + std::to_string(mark) + " " +
          machine();
  if (file_ >= 0 && (::ftruncate(file_, static_cast<off_t>(size_)) != 0 ||
                     ::pwrite(file_, &mark, sizeof mark, 0) != static_cast<ssize_t>(sizeof mark))) {
    ::close(std::exchange(file_, -1));
  }
  map(mark, /*keeps_writes=*/false);
}

SharedMemory::SharedMemory(const std::string& name, bool keeps_writes) : name_(name) {
  const auto first = name.find(' '), second = name.find(' ', first + 1);
  if (second == std::string::npos || name.substr(second + 1) != machine()) throw Error("another machine");
  file_ = ::open(name.substr(0, first).c_str(), O_RDWR | O_CLOEXEC);
  struct stat facts {};
  if (file_ >= 0 && ::fstat(file_, &facts) == 0) size_ = static_cast<std::size_t>(facts.st_size);
  map(std::stoull(name.substr(first + 1)), keeps_writes);
  ::close(std::exchange(file_, -1));
}

void SharedMemory::map(std::uint64_t mark, bool keeps_writes) {
  const int kind = keeps_writes ? MAP_PRIVATE : MAP_SHARED;
  void* memory = MAP_FAILED;
  if (file_ >= 0 && size_ >= page_size()) memory = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, kind, file_, 0);
  std::uint64_t found = 0;
  if (memory != MAP_FAILED && ::pread(file_, &found, sizeof found, 0) == sizeof found && found == mark) {
    memory_ = static_cast<std::byte*>(memory);
    return;
  }
  if (memory != MAP_FAILED) ::munmap(memory, size_);
  if (file_ >= 0) ::close(file_);
  throw Error("no memory to share");
}

SharedMemory::~SharedMemory() {
  ::munmap(memory_, size_);
  if (file_ >= 0) ::close(file_);
}

std::size_t SharedMemory::page_size() {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

void SharedMemory::forget(std::byte* from, std::size_t size) {
  ::madvise(from, size, MADV_DONTNEED);
}

void SharedMemory::free(std::byte* from, std::size_t size) {
  ::madvise(from, size, MADV_REMOVE);
}

}  // namespace ddp
