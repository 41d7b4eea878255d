// The sandbox of a job: with Landlock, the kernel refuses every file outside the folders that a job may use, and with
// seccomp the calls that Landlock leaves open, whatever its configuration, a link or the code of a model asks for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace serve {

// Folders and files; one that does not exist is left out.
struct SandboxPaths {
  std::vector<std::string> data;  // readable; no link is followed to them
  std::vector<std::string> readable, writable;
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
  void allow(const std::string& place, unsigned long long access, bool follows_links = true) const;
  int rules_ = -1;
};

// All that every program needs to read: the system's libraries, its devices, and /proc and /sys.
std::vector<std::string> places_of_system();
// The folders of a program, of the libraries that it loads, and of the plugins that it finds by itself. scratch: a file
// that may be written.
std::vector<std::string> places_of_program(const std::string& program, const std::filesystem::path& scratch);

}  // namespace serve
