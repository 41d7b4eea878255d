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
  // Opens the memory of another process by the name() that it has there. keeps_writes: what this process writes stays
  // its own, until forget(). Throws vernier::Error where that is not possible, as on another machine.
  SharedMemory(const std::string& name, bool keeps_writes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  const std::string& name() const { return name_; }
  std::byte* data() const { return memory_ + page_size(); }  // at the begin of a page
  static std::size_t page_size();
  // Until they are read again, bytes that begin with a page do not count as memory of this process.
  static void forget(std::byte* from, std::size_t size);

 private:
  void map(std::uint64_t mark, bool keeps_writes);

  std::string name_;
  int file_ = -1;
  std::size_t size_ = 0;
  std::byte* memory_ = nullptr;  // its first page begins with the mark, a random number that the name has, too
};

}  // namespace ddp
