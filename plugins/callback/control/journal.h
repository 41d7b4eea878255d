// commands.jsonl: the commands of a run, each with the moment at which it took effect.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "commands.h"

namespace control {

// A command that steered the run, as the file has it.
struct Recorded {
  std::int64_t id = 0;
  std::int64_t moment = 0;  // steps that the run had trained, those that a rewind gave up included
  Command command;
};

// Returns the commands in the file, in the order of its lines, or none if there is no file. A last line without its end
// is left out because its command had no effect. next_id: of the next command. Throws Error for any other line.
std::vector<Recorded> read_journal(const std::filesystem::path& file, std::int64_t& next_id);

// Appends lines, each of which is on the disk when a function returns. Training thread.
class Journal {
 public:
  // Cuts off a last line without its end. Throws Error where the file cannot be written.
  explicit Journal(std::filesystem::path file);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();

  // Before the command takes effect. Throws Error where the line cannot be written.
  void asked(const Board::Asked& asked, std::int64_t step, std::int64_t moment);
  void answered(std::int64_t id, const Result& result);

 private:
  void write(const vernier::Json& line);

  std::filesystem::path file_;
  int descriptor_ = -1;
};

}  // namespace control
