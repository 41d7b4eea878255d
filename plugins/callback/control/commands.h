// The commands by which people steer a run, and where they wait for the trainer.
#pragma once

#include <vernier/options.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "service/http/http_service.h"

namespace control {

struct Command {
  std::string name;          // one of command_names()
  double factor = 1;         // argument of scale_learning_rate
  std::string monitor = {};  // argument of set_interval: "jsonl"
  std::int64_t every = 1;
  vernier::Json roles;    // argument of swap: {"precision": {"use": "bf16"}}
  vernier::Json body;     // the command as it was sent
  vernier::Table tables;  // `roles` in the form of Control::swap()

  // Commands that change the training are repeated when it is resumed or replayed.
  bool steers() const { return name != "pause" && name != "resume" && name != "save"; }
};

// Throws HttpRefused with 422 if the body is not a command.
Command command_of(const vernier::Json& body);
// JSON schema of command_of()'s argument. It refers to another schema, "Option".
vernier::Json command_schema();
vernier::Json option_schema();
// JSON schema of the value that Board::find() returns.
vernier::Json answered_schema();

// The outcome of a command.
struct Result {
  bool is_done = true;  // false: it was refused
  std::string text;     // a sentence for people
};

// Commands on their way from the server's thread to the training thread, and back. Any thread.
class Board {
 public:
  static constexpr std::size_t most_waiting = 32, most_kept = 1000;

  // changed: called after each change, on the thread that made it. first_id: of the next command.
  Board(std::int64_t first_id, std::function<void(const vernier::Json&)> changed)
      : next_id_(first_id), changed_(std::move(changed)) {}

  // Returns the id. Throws HttpRefused: 503 if too many wait, 409 if the board is closed.
  std::int64_t ask(Command command, const std::string& who);
  // A command with all that is known of it; nothing if it is not kept.
  std::optional<vernier::Json> find(std::int64_t id) const;
  vernier::Json list(std::int64_t after, std::int64_t limit) const;

  struct Asked {
    std::int64_t id;
    std::string who;
    Command command;
  };
  // The oldest that waits.
  std::optional<Asked> take();
  void answer(std::int64_t id, std::int64_t step, const Result& result);
  // Until a command waits, at most so long.
  void wait(std::chrono::milliseconds time);
  // Refuses what waits, and what comes.
  void close(const std::string& why, std::int64_t step);

 private:
  struct Entry {
    Asked asked;
    vernier::Json shown;
  };

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Entry> entries_;  // the oldest first
  std::size_t waiting_ = 0;    // the last of them
  std::int64_t next_id_;
  std::string closed_;
  std::function<void(const vernier::Json&)> changed_;
};

}  // namespace control
