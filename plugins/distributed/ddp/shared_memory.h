// Memory that the processes of one machine share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ddp {

// Each process has the memory at an address of its own. A page takes no memory until it is written.
class SharedMemory {
 public:
  // Throws vernier::Error if the system has none.
  explicit SharedMemory(std::size_t bytes);
  // Maps the memory of another process; name: its name() in that process. keeps_writes: other processes do not see what
  // this one writes, and forget() drops it. Throws vernier::Error if it cannot be mapped, as on another machine.
  SharedMemory(const std::string& name, bool keeps_writes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  const std::string& name() const { return name_; }
  std::byte* data() const { return memory_ + page_size(); }  // at the begin of a page
  static std::size_t page_size();
  // Drops what this process wrote with keeps_writes. The system does not count the pages as memory of this process
  // until it reads them again. from: the begin of a page; `size` is rounded up to pages.
  static void forget(std::byte* from, std::size_t size);
  // Gives bytes of memory that is not private back to the system. They are zeros from then on, for all processes.
  static void free(std::byte* from, std::size_t size);

 private:
  void map(std::uint64_t mark, bool keeps_writes);

  std::string name_;
  int file_ = -1;
  std::size_t size_ = 0;
  std::byte* memory_ = nullptr;  // its first page begins with the mark, a random number that the name has, too
};

}  // namespace ddp
