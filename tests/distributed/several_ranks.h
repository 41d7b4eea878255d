// Several processes that train one model, as a launcher starts them: what the tests of this folder share.
#pragma once

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/error.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "patience.h"
#include "run_folder.h"
#include "thrown.h"

namespace several_ranks {

using Clock = std::chrono::steady_clock;

// Batches of 30 samples, the last one of an epoch has 10.
inline constexpr const char* mlp = R"([run]
steps = 12
seed = 7
device = "cpu"
threads = 1
output = "out"
validate_every = 5
[task]
use = "mlp"
samples = 100
batch_size = 30
[optimizer]
use = "adamw"
learning_rate = 0.01
[distributed]
use = "ddp"
timeout = 30
[checkpoint]
every = 4
[[monitor]]
use = "jsonl"
)";

// A port that nobody has now. It is below those that the system gives to connections by itself: such a one could be
// taken again before rank 0 listens, by another test that runs at the same time.
inline int free_port() {
  static std::mt19937 random(std::random_device{}());
  for (;;) {
    const int port = 10'000 + static_cast<int>(random() % 22'000);
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    const bool is_free = ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(socket);
    if (is_free) return port;
  }
}

using Environment = std::map<std::string, std::string>;

// Sets variables as long as it lives; programs that start then have them.
class Variables {
 public:
  explicit Variables(Environment variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : variables_) ::unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  Environment variables_;
};

// Calls body(rank) in processes that are the ranks of one run, without the time that a program takes to start. Returns
// what each gave, or the message of what it threw.
inline std::vector<std::string> texts_of(int ranks, const TemporaryFolder& folder,
                                         const std::function<std::string(int rank)>& body) {
  const auto port = std::to_string(free_port());
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto process = ::fork();
    REQUIRE(process >= 0);
    if (process > 0) {
      processes.push_back(process);
      continue;
    }
    const Variables variables({{"RANK", std::to_string(rank)},
                               {"WORLD_SIZE", std::to_string(ranks)},
                               {"MASTER_ADDR", "127.0.0.1"},
                               {"MASTER_PORT", port}});
    std::string text;
    try {
      text = body(rank);
    } catch (const std::exception& error) {
      text = vernier::message(error);
    }
    folder.write("text." + std::to_string(rank), text);
    ::_exit(0);
  }
  for (const auto process : processes) ::waitpid(process, nullptr, 0);
  std::vector<std::string> texts;
  for (int rank = 0; rank < ranks; ++rank) texts.push_back(read_text(folder / ("text." + std::to_string(rank))));
  return texts;
}

// `vernier train run.toml` on each of several ranks. more: further arguments of one rank. verb: in the place of
// `train`.
class Ranks {
 public:
  Ranks(const RunFolder& place, int ranks, const std::vector<std::string>& arguments = {},
        const std::function<std::vector<std::string>(int rank)>& more = {}, const Environment& other = {},
        const std::string& verb = "train") {
    const auto port = std::to_string(free_port());
    for (int rank = 0; rank < ranks; ++rank) {
      Environment environment = {{"RANK", std::to_string(rank)},
                                 {"WORLD_SIZE", std::to_string(ranks)},
                                 {"MASTER_ADDR", "127.0.0.1"},
                                 {"MASTER_PORT", port}};
      for (const auto& [name, value] : other) environment[name] = value;
      const Variables variables(environment);
      std::vector<std::string> all = {verb, "run.toml"};
      all.insert(all.end(), arguments.begin(), arguments.end());
      if (more) {
        const auto own = more(rank);
        all.insert(all.end(), own.begin(), own.end());
      }
      programs_.emplace_back(all, place.folder.path());
    }
  }
  std::vector<int> wait() {
    std::vector<int> status;
    for (auto& program : programs_) status.push_back(program.wait());
    return status;
  }
  Program& operator[](int rank) { return programs_[static_cast<std::size_t>(rank)]; }
  std::string errors() const {
    std::string all;
    for (const auto& program : programs_) all += program.err();
    return all;
  }

 private:
  std::deque<Program> programs_;
};

inline std::vector<int> all_of(int ranks, int status) {
  return std::vector<int>(static_cast<std::size_t>(ranks), status);
}

inline vernier::Tensors weights_of(const RunFolder& place, int step) {
  return vernier::read_checkpoint((place.at("out/checkpoints") / vernier::checkpoint_name(step)).string())
      .model.tensors;
}

inline double distance(const vernier::Tensors& a, const vernier::Tensors& b) {
  double most = a.size() == b.size() ? 0 : 1e9;
  for (const auto& [name, tensor] : a) {
    if (tensor.numel() > 0) most = std::max(most, (tensor - b.at(name)).abs().max().item<double>());
  }
  return most;
}

inline std::string digest_of(const RunFolder& place) {
  return place.summary()["digest"];
}

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The shortest timeout in which the ranks of a test find each other: the slowest may start so much later.
inline int seconds_to_meet() {
  return static_cast<int>(std::ceil(patience::limit(2)));
}

using Words = std::vector<std::string>;

inline Words sets_of(const Words& settings) {
  Words sets;
  for (const auto& setting : settings) sets.push_back("--set=" + setting);
  return sets;
}

inline Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline void train(const RunFolder& place, int ranks, const Words& sets) {
  Ranks programs(place, ranks, sets);
  REQUIRE_MESSAGE(programs.wait() == all_of(ranks, 0), programs.errors());
}

// The entries of a checkpoint's state whose names begin so.
inline vernier::Tensors state_of(const RunFolder& place, int step, const std::string& prefix) {
  auto tensors =
      vernier::read_checkpoint((place.at("out/checkpoints") / vernier::checkpoint_name(step)).string()).state.tensors;
  std::erase_if(tensors, [&](const auto& entry) { return !entry.first.starts_with(prefix); });
  return tensors;
}

// The state of optimizer and precision in the newest checkpoint.
inline vernier::Tensors state_of(const RunFolder& place, int step = 12) {
  auto tensors = state_of(place, step, "plugin/");
  std::erase_if(tensors, [](const auto& entry) {
    return !entry.first.starts_with("plugin/optimizer/") && !entry.first.starts_with("plugin/precision/");
  });
  return tensors;
}

inline std::set<std::string> different(const vernier::Tensors& a, const vernier::Tensors& b) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : a) {
    const auto found = b.find(name);
    if (found == b.end() || !at::equal(tensor, found->second)) names.insert(name);
  }
  for (const auto& [name, tensor] : b) {
    if (!a.contains(name)) names.insert(name);
  }
  return names;
}

}  // namespace several_ranks
