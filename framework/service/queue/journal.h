// The jobs of a server, in a database of SQLite that survives a kill of the server and a loss of power.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "service/queue/job.h"

struct sqlite3;

namespace serve {

// Each change is on the disk when the function returns. Throws std::runtime_error where the database cannot be used.
// One thread at a time. A database that is damaged is refused when it is opened.
class Journal {
 public:
  explicit Journal(const std::filesystem::path& file);

  // Returns the job. If the user has one with this key, it is that one, and is_new is false.
  Job add(const JobRequest& request, bool& is_new);
  std::optional<Job> find(std::int64_t id) const;  // the lists below leave out config and texts, which may be large
  // All but the request.
  void update(const Job& job);
  void remove(std::int64_t id);

  // The one of the highest priority first, then the oldest.
  std::vector<Job> queued(std::int64_t limit = -1) const;
  std::vector<Job> running() const;  // the oldest first
  std::vector<Job> ended_before(const std::string& time) const;
  struct Page {
    std::int64_t before = 0;  // ids below it; 0: from the newest
    std::int64_t limit = 100;
    std::string state, user;  // "": any
  };
  std::vector<Job> list(const Page& page) const;  // the newest first
  std::int64_t count(State state) const;
  void count_on_from(std::int64_t id);  // later jobs have larger ids

 private:
  void run(const std::string& statement) const;
  std::shared_ptr<sqlite3> database_;
};

}  // namespace serve
