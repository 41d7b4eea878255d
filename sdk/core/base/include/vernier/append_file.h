// A file to which whole units are appended: lines, or records of bytes. A full disk loses units, and never half of one.
#pragma once

#include <vernier/abi.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>

namespace vernier {

// One thread at a time.
class VERNIER_API AppendFile {
 public:
  using Warn = std::function<void(const std::string&)>;
  // Makes the file if there is none; throws std::system_error if that fails. units: their name in warnings,
  // "lines".
  AppendFile(std::filesystem::path path, std::string units, Warn warn);
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  // A unit waits for at most a second, until the next one, or until 16 kB wait. If it cannot be written, it waits until
  // it can be. False if it is lost: 1 MB waits already.
  bool append(std::string_view unit);
  // Writes what waits.
  void flush();
  // The number of units until now that are not in the file.
  std::int64_t missing() const { return lost_ + static_cast<std::int64_t>(sizes_.size()); }
  void warn_of_missing() const;  // at the end

 private:
  std::size_t cut_half_a_unit(std::size_t done);
  void warn_of(int trouble);

  std::filesystem::path path_;
  std::string units_;
  Warn warn_;
  int descriptor_ = -1;
  std::string waiting_;
  std::deque<std::size_t> sizes_;  // sizes of the waiting units
  std::int64_t lost_ = 0;          // since the last write that went well
  bool is_failing_ = false;
  std::int64_t flushed_ = 0;  // nanoseconds of the steady clock
};

// True for an error that may pass: the disk is full.
VERNIER_API bool is_full(const std::error_code& trouble);

// Cuts a file of lines off before the first line that `keep` refuses; it gets the line, without its end, and the number
// of lines before it. A last line without its end is cut off too, and so is a line with a zero byte, which a loss of
// power may leave. Returns how many lines are left, 0 if the path is not a regular file.
VERNIER_API std::int64_t keep_lines(const std::filesystem::path& path,
                                    const std::function<bool(std::string_view line, std::int64_t number)>& keep);

// For lines of JSON that begin with {"step":7, in a run that is resumed after last_step: cuts off all that a process
// wrote after the checkpoint, and all lines that are not of the run. A rewind leaves two lines for some steps, so only
// the number of lines says where to cut. lines: that number; -1: unknown. A loss of power may leave half of a line.
VERNIER_API std::int64_t keep_lines_of_run(const std::filesystem::path& path, std::int64_t last_step,
                                           std::int64_t lines);

}  // namespace vernier
