// The files by which a server and the process of an attempt agree on who runs it. They stand in attempts/ID beside
// jobs/ID, the job's folder, so that the job itself reaches none of them:
//   2.json    what the process is to do, written before it is started
//   2.lock    held by the process as long as it, or the training that it started, lives
//   2.claim   made once: by the process when it begins, or by a server that will not wait for it
//   2.cancel  made by the server when the attempt is to end
//   2.done    how it ended, written before the lock is given up
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <optional>
#include <string>

namespace serve {

// How an attempt ended.
struct End {
  int status = 0;      // the exit code, or 128 + n where signal n ended it
  std::string reason;  // why it was ended: "cancelled", "time_limit", "memory_limit"; "" where it ended by itself
  std::string text;    // the last line that it printed, if it failed
};

class Attempt {
 public:
  Attempt(std::filesystem::path folder, std::int64_t number) : folder_(std::move(folder)), number_(number) {}
  std::filesystem::path file(const char* ending) const {
    return files() / (std::to_string(number_) + "." + std::string(ending));
  }
  // The folder of these files.
  std::filesystem::path files() const { return folder_.parent_path().parent_path() / "attempts" / folder_.filename(); }

  // Called by the process. Takes the lock, then makes the claim. Returns false if another one has either of them. The
  // lock is open in children too, so that it lasts as long as the training does.
  bool begin() const;
  void end(const End& end) const;

  // Called by the server. Returns who has made the claim.
  enum class Claim { none, process, server };
  Claim claim() const;
  // Makes the claim so that no process begins any more. Returns false if there is one already.
  bool claim_for_server() const;
  bool is_locked() const;  // only after the claim: a process that begins must not find the lock taken by a look at it
  std::optional<End> how_it_ended() const;

 private:
  bool make_claim(const char* who) const;
  std::filesystem::path folder_;  // the job's folder
  std::int64_t number_;
};

// Writes a file beside the place and renames it, on the disk with its name. Throws std::system_error.
void write_durably(const std::filesystem::path& file, const std::string& text);
// Return "" if there is no such file, and for what a job could have put in its place or in that of a folder of its
// path: a link, a pipe, or, for the whole, more than `most` bytes. file: absolute, without links above the server's
// folder.
std::string read_whole(const std::filesystem::path& file, std::size_t most = 1 << 20);
// Returns at most so many bytes from a place on; from below 0, so many from the end.
std::string read_part(const std::filesystem::path& file, std::int64_t from, std::size_t most);
// The last line that has text, up to 1000 bytes of it, without control characters.
std::string last_line(std::istream& text);

}  // namespace serve
