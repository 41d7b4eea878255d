// The sandbox of a job: with Landlock, the kernel refuses every file outside the folders that a job may use, and with
// seccomp the calls that Landlock leaves open, whatever its configuration, a link or the code of a model asks for.
#pragma once

#include <string>
#include <vector>

namespace serve {

// Folders and files without links; one that does not exist, or that a link has replaced, is left out.
struct SandboxPaths {
  std::vector<std::string> data, readable, writable;
};

class Sandbox {
 public:
  // Prepares it. Where the kernel has no Landlock, there is none. Throws std::runtime_error where it cannot be made.
  explicit Sandbox(const SandboxPaths& paths);
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;
  ~Sandbox();

  static bool is_possible();  // with this kernel
  // Puts this process and all that it starts inside, for ever. Called in a child before its program begins. Returns
  // false, with errno, if it cannot.
  bool enter() const;

 private:
  void allow(const std::string& place, unsigned long long access) const;
  int rules_ = -1;
};

}  // namespace serve
