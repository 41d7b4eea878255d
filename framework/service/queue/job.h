// A job of the server: what is to be trained, with what, and what became of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace serve {

// The request of a user.
struct JobRequest {
  std::string user, name, key;    // key: a request that comes again with the same one is the same job; "": none
  std::string config;             // TOML
  std::string texts_name, texts;  // a further file of the job's folder; "": there is none
  std::int64_t priority = 0, cores = 1, gpus = 0;
  std::int64_t time_limit = 0, memory_limit = 0;  // seconds and bytes of each attempt; 0: those of the server
  std::int64_t retries = 0;                       // after a failure, from the last checkpoint
};

enum class State { queued, running, done, failed, cancelled };
inline constexpr std::array state_names = {"queued", "running", "done", "failed", "cancelled"};  // State's order
inline const char* name_of(State state) {
  return state_names[static_cast<std::size_t>(state)];
}

struct Job {
  std::int64_t id = 0;
  std::string identity;  // random; the job's folder has the same, so that no other journal's job is taken for it
  JobRequest request;    // its config and texts are empty in lists
  State state = State::queued;
  std::int64_t attempt = 1;               // each is started at most once
  std::int64_t failures = 0, losses = 0;  // attempts that failed, and those that ended without a word
  bool is_cancelled = false;              // it is to end
  std::vector<int> gpus;                  // GPUs of the running attempt
  std::string slurm;                      // the attempt's number at Slurm; "": it is not handed over
  std::string created, started, ended;    // "2026-11-23T14:05:09.123Z"; "" before that
  std::string error;                      // why it failed, or why it still waits

  bool is_over() const { return state != State::queued && state != State::running; }
};

}  // namespace serve
