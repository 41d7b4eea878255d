// Stands between a program and the disk: counts the system calls that concern one folder, lets the k-th of them fail or
// end the process, and writes down what was done, for power_loss.h.
//
// Linked into a test, watch() controls it. Preloaded into a program (LD_PRELOAD=disk_faults.so), it is controlled by
// the environment: VERNIER_DISK="kill 17 /path/of/folder", or "kill 1 */name" for files of that name, as fnmatch()
// matches. Nothing is brought to the disk meanwhile (fsync returns at once): that a process ends loses nothing, and
// what a loss of power loses power_loss.h says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace disk {

enum class Fault {
  none,
  kill,        // SIGKILL before the call
  torn,        // like kill, after half of the bytes that the call writes
  eio,         // EIO once
  enospc,      // ENOSPC once
  broken,      // EIO from here on
  full,        // from here on ENOSPC for all that takes room
  shortened,   // half of the bytes are written, which the call reports
  interrupted  // EINTR once, where a call can have it
};
inline constexpr const char* fault_names[] = {"none",   "kill", "torn",      "eio",        "enospc",
                                              "broken", "full", "shortened", "interrupted"};

// A call that succeeded. file: what open returned. A name is a path, as it was given, made absolute.
struct Call {
  enum class Kind { open, write, truncate, sync, close, make_folder, remove, rename, exchange, link, mark };
  Kind kind = Kind::mark;
  int file = -1;
  std::string name, other;                  // other: where a rename goes, what a link points to, what a mark says
  std::uint64_t offset = 0;                 // the place of a write; the size of a truncate
  bool is_new = false, is_emptied = false;  // open
  std::string bytes;
};

// Counts anew from here on. folder: absolute; "": no more.
void watch(const std::string& folder, Fault fault = Fault::none, int at = 0);
void cannot_exchange(bool cannot);  // some file systems cannot exchange two folders (RENAME_EXCHANGE)
int calls();                        // counted since
std::string struck();  // the call that the fault struck, "fsync model.safetensors"; "" where it was not reached

// From here on what is done is kept; taken out by stop().
void record();
void mark(const std::string& text);  // a moment between the calls
std::vector<Call> stop();

}  // namespace disk
