// The process of one attempt of a job: it starts the training, ends it where a limit is passed or the server says so,
// and writes down how it ended. It outlives the server.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace serve {

// The orders of the process: the file N.json of an attempt.
struct Work {
  std::vector<std::string> words;               // the program, and its arguments
  std::vector<std::string> environment;         // "NAME=VALUE", beside the server's
  std::int64_t time_limit = 0;                  // seconds; 0 for no limit, as all below
  std::int64_t memory_limit = 0;                // bytes in memory
  std::int64_t open_files = 0, file_size = 0;   // RLIMIT_NOFILE, RLIMIT_FSIZE
  std::int64_t processes = 0;                   // RLIMIT_NPROC: of the user, threads included
  std::int64_t grace = 30;                      // seconds between SIGINT and SIGKILL
  std::vector<std::string> data;                // folders of which the configuration may name files
  std::vector<std::string> readable, writable;  // paths that the kernel lets it use: see sandbox.h
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Work, words, environment, time_limit, memory_limit, open_files, file_size, processes,
                                   grace, data, readable, writable)

// Returns why a configuration with these data folders is refused; "" if it is not.
using Check = std::function<std::string(const std::string& config, const std::vector<std::string>& data)>;

// The whole life of the process; folder: that of the job. Returns its exit status: 75 where the attempt belongs to
// another process.
int run_attempt(const std::filesystem::path& folder, std::int64_t number, const Check& check);

// Becomes the program of the orders in work.json of this folder, in its folder `work`, within the limits and the
// sandbox of a job. Returns an exit status if it cannot.
int run_confined(const std::filesystem::path& folder);

}  // namespace serve
