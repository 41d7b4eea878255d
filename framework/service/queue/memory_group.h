// A control group of Linux (cgroup v2) that limits the memory of an attempt: the kernel ends all of its processes when
// they have more.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace serve {

class MemoryGroup {
 public:
  // Below a folder for which trouble_with_groups() is "". Throws std::runtime_error.
  MemoryGroup(const std::filesystem::path& parent, const std::string& name, std::int64_t limit);
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;
  ~MemoryGroup();  // ends what is left in it

  bool join() const;  // this process, and all that it starts
  bool was_exceeded() const;

 private:
  std::filesystem::path folder_;
};

// Why groups with a limit of memory cannot be made below a folder; "" if they can.
std::string trouble_with_groups(const std::filesystem::path& parent);
// Removes those that attempts left behind which were killed.
void remove_empty_groups(const std::filesystem::path& parent);

}  // namespace serve
