// `vernier launch` with the real program: two ranks train one run, are killed, stopped, and go on.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "run_folder.h"
#include "thrown.h"

namespace launch_run_test {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

namespace {

// Its steps take a while, so that a test can come between two of them.
constexpr const char* small = R"([run]
steps = 60
device = "cpu"
output = "out"
[task]
use = "mlp"
samples = 256
[optimizer]
use = "adamw"
[checkpoint]
every = 10
[[callback]]
use = "inject"
what = "slow"
milliseconds = 20
at_step = 1
every = 1
[[monitor]]
use = "jsonl"
)";

// The process that `vernier launch` has started as a rank; 0: there is none.
pid_t process_of_rank(pid_t launcher, int rank) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto status = read_text(entry.path() / "status");
    const bool is_child = says(status, "PPid:\t" + std::to_string(launcher) + "\n");
    const auto environment = std::string(1, '\0') + read_text(entry.path() / "environ");
    const auto wanted = std::string(1, '\0') + "RANK=" + std::to_string(rank) + std::string(1, '\0');
    if (is_child && says(environment, wanted)) return std::stoi(name);
  }
  return 0;
}

std::size_t steps_in(const fs::path& history) {
  const auto text = read_text(history);
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

// The run that nothing stopped.
std::string undisturbed_digest() {
  static const std::string digest = [] {
    RunFolder place(small);
    REQUIRE(place.call({"launch", "-n", "2", "run.toml", "--quiet"}) == 0);
    return std::string(place.summary()["digest"]);
  }();
  return digest;
}

}  // namespace

TEST_CASE("launch: two ranks train one run, and rank 0 shows it") {
  RunFolder place(small);
  const Words mixed = {"precision.use=fp16", "scaler.use=dynamic", "scaler.init_scale=1024",
                       "scaler.growth_interval=5"};
  Words call = {"launch", "-n", "2", "run.toml", "--set", "run.steps=12"};
  for (const auto& set : mixed) call.insert(call.end(), {"--set", set});
  CHECK(place.call(call) == 0);
  CHECK(says(place.out, "done after 12 steps"));
  CHECK(says(place.err, "vernier: 2 ranks with "));
  CHECK_FALSE(says(place.err, "[rank 1]"));
  CHECK(place.summary()["steps"] == 12);
  const auto amp = place.summary()["amp"];
  CHECK(amp["amp_steps"] == 12);
  CHECK(amp["overflow_count"] == 0);
  CHECK(amp["current_scale"] == 4096);
  CHECK(amp["growth_tracker"] == 2);
  CHECK(place.summary()["configuration"]["distributed"]["use"] == "ddp");
  CHECK_FALSE(fs::exists(place.at("out-2")));
}

TEST_CASE("launch: two launchers that name each other are as one, and both start again after a rank was killed") {
  RunFolder place(small);
  const auto port = std::to_string(20000 + ::getpid() % 10000);
  const auto threads = std::max(1U, std::thread::hardware_concurrency() / 2);  // the share of a rank of one launcher
  const auto launch = [&](const std::string& node) {
    const Words words = {"launch",
                         "-n",
                         "1",
                         "--nodes",
                         "2",
                         "--node-rank",
                         node,
                         "--address",
                         "127.0.0.1:" + port,
                         "run.toml",
                         "--quiet",
                         "--restarts",
                         "2",
                         "--set",
                         "run.resume=auto",
                         "--set",
                         "run.threads=" + std::to_string(threads)};
    return std::make_unique<Program>(words, place.folder.path());
  };
  const auto second = launch("1"), first = launch("0");
  REQUIRE(first->wait_until([&] { return steps_in(place.at("out/losses.jsonl")) >= 15; }));
  const auto process = process_of_rank(second->pid(), 1);
  REQUIRE(process > 0);
  ::kill(process, SIGKILL);
  CHECK_MESSAGE(first->wait() == 0, first->err());
  CHECK_MESSAGE(second->wait() == 0, second->err());
  CHECK(says(second->err(), "vernier: rank 1 was killed by signal 9 (Killed)"));
  CHECK(says(first->err(), "vernier: attempt 2 of 3: 1 rank on this machine"));
  CHECK(place.summary()["steps"] == 60);
  CHECK(place.summary()["digest"] == undisturbed_digest());
}

TEST_CASE("launch: after kill -9 of a rank the run ends, named; --restarts goes on with the same bits") {
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    RunFolder place(small);
    Program program({"launch", "-n", "2", "run.toml", "--restarts", "2"}, place.folder.path());
    REQUIRE(program.wait_until([&] { return steps_in(place.at("out/losses.jsonl")) >= 15; }));
    const auto process = process_of_rank(program.pid(), rank);
    REQUIRE(process > 0);
    ::kill(process, SIGKILL);
    CHECK(program.wait() == 0);
    CHECK(says(program.err(), "vernier: rank " + std::to_string(rank) + " was killed by signal 9 (Killed)"));
    CHECK(says(program.err(), "vernier: attempt 2 of 3: 2 ranks with --resume=out\n"));
    CHECK(says(program.out(), "resumed after step "));
    CHECK(place.summary()["steps"] == 60);
    CHECK(place.summary()["digest"] == undisturbed_digest());
  }
}

TEST_CASE("launch: a signal stops all ranks after the same step, and the line to resume starts as many ranks") {
  for (const bool is_to_launcher : {true, false}) {
    CAPTURE(is_to_launcher);
    RunFolder place(small);
    Program program({"launch", "-n", "2", "run.toml", "--restarts", "2"}, place.folder.path());
    REQUIRE(program.wait_until([&] { return steps_in(place.at("out/losses.jsonl")) >= 15; }));
    ::kill(is_to_launcher ? program.pid() : process_of_rank(program.pid(), 1), SIGTERM);
    CHECK(program.wait() == 143);
    CHECK(place.summary()["ended_by"] == "signal 15");
    CHECK_FALSE(says(program.err(), "attempt 2"));
    const auto line = "resume with:  vernier launch -n 2 run.toml --set distributed.use=ddp --resume=out\n";
    CHECK(says(program.out(), line));
    Words words = {"launch", "-n", "2", "run.toml", "--set", "distributed.use=ddp", "--resume=out"};
    if (is_to_launcher) words.erase(words.begin() + 3, words.end() - 1);  // the run's own configuration has them
    CHECK_MESSAGE(place.call(words) == 0, place.err);
    CHECK(place.summary()["digest"] == undisturbed_digest());
  }
}

TEST_CASE("launch: what the configuration lacks is refused by every rank, and not tried again") {
  RunFolder place(small);
  CHECK(place.call({"launch", "-n", "2", "run.toml", "--set", "task.no_such=1", "--restarts", "5"}) == 2);
  CHECK(says(place.err, "no_such"));
  CHECK(says(place.err, "the ranks are not started again, since exit code 2"));
  CHECK_FALSE(fs::exists(place.at("out")));
}

}  // namespace launch_run_test
