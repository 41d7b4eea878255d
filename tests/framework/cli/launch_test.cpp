// `vernier launch`: what it starts, which failure it names, that no process outlives it, and how it starts again.
#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>
#include <vernier/launch_place.h>
#include <vernier/launchers.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "patience.h"
#include "run_folder.h"
#include "thrown.h"
#include "tools/launch/local_ranks.h"
#include "tools/launch/run_folder_watch.h"

namespace launch_test {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

namespace {

std::vector<vernier::ChildSettings> shells(const Words& scripts) {
  std::vector<vernier::ChildSettings> commands;
  for (const auto& script : scripts) commands.push_back({{"/bin/sh", "-c", script}, {}});
  return commands;
}

struct Small {  // ranks that have little time
  explicit Small(const fs::path& logs = {}, const std::string& line_begin = "")
      : ranks(out, {.log_folder = logs, .line_begin = line_begin, .grace = grace(), .kill_after = 400ms}) {}
  static std::chrono::milliseconds grace() { return std::chrono::milliseconds(std::lround(patience::limit(400))); }
  std::ostringstream out;
  vernier::LocalRanks ranks;
};

bool waits_for(const std::function<bool()>& condition) {
  return patience::wait_until(condition);
}

// A process that nobody has waited for yet is gone, too.
bool is_gone(const std::string& pid) {
  const auto status = read_text("/proc/" + pid + "/status");
  return status.empty() || says(status, "State:\tZ");
}

// The processes that have written their ids into files of the folder.
bool are_gone(const TemporaryFolder& folder, const Words& names) {
  return waits_for([&] {
    return std::ranges::all_of(names, [&](const auto& name) {
      std::string pid;
      std::ifstream(folder / name) >> pid;
      return !pid.empty() && is_gone(pid);
    });
  });
}

// True once the ranks have written all of these files.
bool are_there(const TemporaryFolder& folder, const Words& names) {
  return waits_for([&] {
    return std::ranges::all_of(names, [&](const auto& name) { return read_text(folder / name).ends_with('\n'); });
  });
}

// Signals come to the thread that runs the ranks, since other threads of a test do not block them.
void send_to(pthread_t thread, int signal) {
  ::pthread_kill(thread, signal);
}

}  // namespace

TEST_CASE("launch: the first rank that fails is named, and a rank that only lost it is not") {
  struct Case {
    Words scripts;
    std::string sentence;  // "": none of them ended with another status than 0
    int status;
    bool is_failure;
  };
  // The later rank ends after the launcher has collected the first one: until then the process id is taken.
  const std::string waits = "sleep 100", first = "echo $$ >first; ",
                    later =
                        "until [ -s first ]; do sleep 0.01; done; "
                        "while kill -0 $(cat first) 2>/dev/null; do sleep 0.01; done; ";
  const std::vector<Case> cases = {
      {{"exit 0", "exit 0"}, "", 0, false},
      {{waits, "exit 3", waits}, "rank 1 ended with exit code 3", 3, true},
      {{waits, waits, "kill -9 $$"}, "rank 2 was killed by signal 9 (Killed)", 137, true},
      {{later + "exit 4", first + "kill -11 $$"}, "rank 1 was killed by signal 11 (Segmentation fault)", 139, true},
      {{first + "exit 4", later + "kill -6 $$"}, "rank 1 was killed by signal 6 (Aborted)", 134, true},
      {{later + "exit 4", first + "exit 4"}, "rank 1 ended with exit code 4", 4, true},
      {{"exit 143", "exit 1"}, "rank 1 ended with exit code 1", 1, true},
      {{first + "exit 0", later + "exit 124"}, "rank 1 ended with exit code 124", 124, false},
      {{first + "exit 5", later + "sleep 0.6; exit 5"}, "rank 0 ended with exit code 5", 5, false},
      {{first + "exit 138", later + "sleep 0.6; exit 138"}, "rank 0 ended with exit code 138", 138, false}};
  for (const auto& each : cases) {
    CAPTURE(each.sentence);
    const TemporaryFolder folder;
    auto scripts = each.scripts;
    for (auto& script : scripts) script = "cd " + folder.path().string() + "; " + script;
    Small small;
    const auto end = small.ranks.run(shells(scripts));
    REQUIRE(end.has_value() == !each.sentence.empty());
    if (!end) continue;
    CHECK(vernier::sentence_of(*end) == each.sentence);
    CHECK(end->status == each.status);
    CHECK(vernier::is_failure(*end) == each.is_failure);
  }
}

TEST_CASE("launch: after a failure no rank goes on, and no child of one") {
  const Words others = {"sleep 100",                                   // does not notice
                        "trap '' TERM; while :; do sleep 0.05; done",  // ignores SIGTERM
                        "kill -STOP $$",                               // is stopped
                        "sleep 100 & echo $! >child; wait"};           // has a child
  for (const auto& other : others) {
    CAPTURE(other);
    const TemporaryFolder folder;
    Small small;
    const std::string begin = "cd " + folder.path().string() + "; ";
    const auto started = Clock::now();
    const auto end = small.ranks.run(shells(
        {begin + "echo $$ >other; " + other, begin + "until [ -e other ]; do sleep 0.01; done; sleep 0.1; exit 1"}));
    REQUIRE(end);
    CHECK(end->rank == 1);
    CHECK(Clock::now() - started < std::chrono::duration<double>(patience::limit(20)));
    CHECK(are_gone(folder, says(other, "child") ? Words{"other", "child"} : Words{"other"}));
  }
}

TEST_CASE("launch: ranks have their time to end by themselves") {
  const TemporaryFolder folder;
  Small small;
  const auto end = small.ranks.run(shells({"sleep 0.2; echo saved >" + folder / "saved" + "; exit 4", "exit 3"}));
  REQUIRE(end);
  CHECK(end->status == 3);
  CHECK(read_text(folder / "saved") == "saved\n");
}

TEST_CASE("launch: lines of other ranks than 0 have a prefix, and the last ones are kept for the failure") {
  struct Case {
    std::string script, out;
    Words last;
  };
  const std::vector<Case> cases = {
      {"echo one; echo two >&2; exit 1", "[rank 1] one\n[rank 1] two\n", {"one", "two"}},
      {"printf 'no end'; exit 1", "[rank 1] no end\n", {"no end"}},
      {"printf '\\n\\na\\n'; exit 1", "[rank 1] \n[rank 1] \n[rank 1] a\n", {"a"}},
      {"exit 1", "", {}},
      {"for i in 1 2 3 4 5 6 7; do echo $i; done; exit 1",
       "[rank 1] 1\n[rank 1] 2\n[rank 1] 3\n[rank 1] 4\n[rank 1] 5\n[rank 1] 6\n[rank 1] 7\n",
       {"3", "4", "5", "6", "7"}}};
  for (const auto& each : cases) {
    CAPTURE(each.script);
    Small small;
    const auto end = small.ranks.run(shells({"exit 0", each.script}));
    REQUIRE(end);
    CHECK(small.out.str() == each.out);
    CHECK(end->last_lines == each.last);
  }
  Small terminal({}, "\r\033[K");
  terminal.ranks.run(shells({"exit 0", "echo a"}));
  CHECK(terminal.out.str() == "\r\033[K[rank 1] a\n");
}

TEST_CASE("launch: with a log folder each rank has a file, to which another attempt adds") {
  const TemporaryFolder folder;
  Small small(folder.path());
  small.ranks.run(shells({"echo first of 0", "echo first of 1"}));
  const auto end = small.ranks.run(shells({"echo second of 0 >&2", "echo second of 1; exit 9"}));
  CHECK(read_text(folder / "rank-0.log") == "first of 0\nsecond of 0\n");
  CHECK(read_text(folder / "rank-1.log") == "first of 1\nsecond of 1\n");
  CHECK(small.out.str().empty());
  REQUIRE(end);
  CHECK(end->last_lines == Words{"second of 1"});
}

TEST_CASE("launch: the environment of a rank replaces that of the launcher") {
  ::setenv("VERNIER_TEST_A", "old", 1);
  ::setenv("VERNIER_TEST_AB", "kept", 1);
  const std::string script = "echo $VERNIER_TEST_A $VERNIER_TEST_AB; env | grep -c VERNIER_TEST_A=; read line; echo $?";
  Small small;
  small.ranks.run({{{"/bin/sh", "-c", "exit 0"}, {}}, {{"/bin/sh", "-c", script}, {"VERNIER_TEST_A=new"}}});
  ::unsetenv("VERNIER_TEST_A");
  ::unsetenv("VERNIER_TEST_AB");
  CHECK(small.out.str() == "[rank 1] new kept\n[rank 1] 1\n[rank 1] 1\n");  // and there is nothing to read
}

TEST_CASE("launch: a signal reaches all ranks once, and a second Ctrl-C kills them") {
  struct Case {
    int first, second;  // 0: there is none
    int status;
  };
  for (const auto& each : {Case{SIGTERM, 0, 143}, Case{SIGINT, 0, 130}, Case{SIGUSR1, 0, 138},
                           Case{SIGINT, SIGINT, 130}, Case{SIGUSR1, SIGINT, 130}, Case{SIGUSR1, SIGTERM, 138}}) {
    CAPTURE(each.first);
    CAPTURE(each.second);
    const TemporaryFolder folder;
    Small small;
    const bool is_killed = each.second == SIGINT;
    const std::string status = std::to_string(128 + each.first);
    const std::string at_signal = is_killed ? "echo >>got$N" : "echo >>got$N; sleep 0.3; exit " + status;
    const std::string script = "cd " + folder.path().string() + "; trap '" + at_signal +
                               "' TERM INT USR1; echo $$ >pid$N; while :; do sleep 0.02; done";
    const pthread_t self = ::pthread_self();
    std::jthread sender([&] {
      are_there(folder, {"pid0", "pid1"});
      send_to(self, each.first);
      are_there(folder, {"got0", "got1"});
      if (each.second != 0) send_to(self, each.second);
    });
    const auto end = small.ranks.run(shells({"N=0; " + script, "N=1; " + script}));
    REQUIRE(end);
    CHECK(end->status == each.status);
    CHECK_FALSE(vernier::is_failure(*end));
    CHECK(small.ranks.stopped_by() == each.first);
    CHECK(are_gone(folder, {"pid0", "pid1"}));
    for (const auto* got : {"got0", "got1"}) CHECK(read_text(folder / got) == "\n");
  }
}

TEST_CASE("launch: no rank outlives a launcher that is killed") {
  const TemporaryFolder folder;
  const pid_t launcher = ::fork();
  REQUIRE(launcher >= 0);
  if (launcher == 0) {
    Small small;
    const std::string begin = "cd " + folder.path().string() + "; ";
    small.ranks.run(shells({begin + "echo $$ >0; exec sleep 100", begin + "echo $$ >1; exec sleep 100"}));
    ::_exit(0);
  }
  CHECK(are_there(folder, {"0", "1"}));
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  CHECK(are_gone(folder, {"0", "1"}));
}

TEST_CASE("launch: the folder of a run is the one that its process has locked since the start") {
  const TemporaryFolder folder;
  const auto wanted = folder.path() / "out";
  folder.write("out/.lock", "17 on here\n");  // an earlier process had the same id
  folder.write("out-3/.lock", "9 on here\n");
  fs::last_write_time(wanted / ".lock", fs::file_time_type::clock::now() - 1h);
  const vernier::RunFolderWatch watch(wanted);
  CHECK(watch.locked_by(17).empty());
  folder.write("other/.lock", "17 on here\n");
  CHECK(watch.locked_by(17).empty());
  folder.write("out-2/.lock", "17 on here\n");
  CHECK(watch.locked_by(17) == folder.path() / "out-2");
  CHECK(watch.locked_by(1).empty());
  folder.write("out/.lock", "18 on here\n");
  CHECK(watch.locked_by(18) == wanted);
}

namespace {

// The launcher beside a script in the place of `vernier`. It does what the test says, as each rank in each attempt.
struct Scripted {
  explicit Scripted(const std::string& behaviour, const std::string& merged = "") {
    fs::copy_file(VERNIER_BINARY_DIR "/vernier-launch", folder / "vernier-launch");
    const auto program = folder.write("vernier", R"(#!/bin/sh
if [ "$1" = config ]; then
  echo "$*" >config.words
  cat merged.toml
  exit
fi
if [ "$1" = checkpoint ]; then
  echo "$*" >checkpoint.words
  [ -e "$3/checkpoints/step-00000005" ]
  exit
fi
attempt=$TORCHELASTIC_RESTART_COUNT
echo "$attempt $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR ${OMP_NUM_THREADS-none}: $*" >>calls.$RANK
echo "$MASTER_PORT" >port
. ./behaviour
)");
    fs::permissions(program, fs::perms::owner_all);
    folder.write("behaviour", behaviour);
    folder.write("merged.toml", merged);
    folder.write("run.toml", "");
  }
  int launch(const std::string& words, const std::string& environment = "env -u OMP_NUM_THREADS") const {
    const auto command =
        "cd " + folder.path().string() + " && " + environment + " ./vernier-launch " + words + " >printed 2>errors";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string err() const { return read_text(folder / "errors"); }
  Words calls(int rank) const {
    Words lines;
    std::ifstream file(folder / ("calls." + std::to_string(rank)));
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  TemporaryFolder folder;
};

const std::string dies = "if [ $RANK = 1 ]; then kill -9 $$; fi; exit 4";

// As the runner leaves a run that has saved a checkpoint.
const std::string saves = R"(if [ $RANK = 0 ]; then
  mkdir -p out/checkpoints/step-00000005
  echo "$$ on here" >out/.lock
fi
)";

}  // namespace

TEST_CASE("launch: ranks have torchrun's environment, the words of train, and their share of the cores") {
  const auto cores = std::max(1U, std::thread::hardware_concurrency());
  const auto share = std::to_string(std::max(1U, cores / 2));
  struct Case {
    std::string words, merged, environment;
    std::string called, says;
  };
  const std::string ours = "env -u OMP_NUM_THREADS";
  const std::vector<Case> cases = {
      {"-n 2 run.toml --grad_accum_steps=a_b", "", ours,
       share + ": train run.toml --grad-accum-steps=a_b --set distributed.use=ddp",
       "vernier: 2 ranks with " + share + " thread"},
      {"--set a.b=1 run.toml -n2", "[distributed]\nuse = \"zero1\"\n", ours, share + ": train --set a.b=1 run.toml",
       ""},
      {"--ranks=2 run.toml", "[run]\nthreads = 3\n", ours, "none: train run.toml --set distributed.use=ddp", ""},
      {"run.toml --ranks 2 --resume --quiet", "", "env OMP_NUM_THREADS=7",
       "7: train run.toml --resume --quiet --set distributed.use=ddp", ""}};
  for (const auto& each : cases) {
    CAPTURE(each.words);
    const Scripted place("exit 0", each.merged);
    CHECK(place.launch(each.words, each.environment) == 0);
    CHECK(place.calls(0) == Words{"0 0/2 0/2 127.0.0.1 " + each.called});
    CHECK(place.calls(1) == Words{"0 1/2 1/2 127.0.0.1 " + each.called});
    CHECK_MESSAGE(says(place.err(), each.says), place.err());
    CHECK(says(read_text(place.folder / "config.words"), "--resume") == says(each.words, "--resume"));
  }
}

TEST_CASE("launch: --restarts starts all ranks again from the newest checkpoint, as long as that may help") {
  struct Case {
    std::string words, behaviour;
    int status;
    std::size_t attempts;
    Words says;
  };
  const std::string until = "if [ $attempt = 2 ]; then exit 0; fi; ";
  const std::vector<Case> cases = {
      {"", dies, 137, 1, {"vernier: rank 1 was killed by signal 9 (Killed)\n"}},
      {"--restarts 2", until + dies, 0, 3, {"attempt 2 of 3: 2 ranks from the beginning: no checkpoint exists yet\n"}},
      {"--restarts 2",
       until + saves + dies,
       0,
       3,
       {"attempt 2 of 3: 2 ranks with --resume=out\n", "attempt 3 of 3: 2 ranks with --resume=out\n"}},
      {"--restarts 1", saves + dies, 137, 2, {"that was the last of 2 attempts\n"}},
      {"--restarts 3",
       "if [ $RANK = 1 ]; then echo oh >&2; exit 2; fi; exit 4",
       2,
       1,
       {"rank 1 ended with exit code 2; its last lines:\n  oh\n", "not started again, since exit code 2"}},
      {"--restarts 3", "if [ $RANK = 1 ]; then exit 3; fi; exit 4", 3, 1, {"not started again, since exit code 3"}},
      {"--restarts 3", "exit 5", 5, 1, {}},
      {"--restarts 3", "exit 124", 124, 1, {}},
      {"--restarts 3", "exit 143", 143, 1, {}}};
  for (const auto& each : cases) {
    CAPTURE(each.words);
    CAPTURE(each.behaviour);
    const Scripted place(each.behaviour, "[run]\noutput = 'out'\n");
    CHECK(place.launch("-n 2 run.toml --resume=elsewhere " + each.words) == each.status);
    const auto calls = place.calls(1);
    REQUIRE(calls.size() == each.attempts);
    CHECK(says(calls.front(), "--resume=elsewhere"));
    if (says(each.behaviour, "mkdir"))
      CHECK(calls.back().ends_with(": train run.toml --set distributed.use=ddp --resume=out"));
    CHECK(calls.back().starts_with(std::to_string(each.attempts - 1) + " 1/2"));
    for (const auto& part : each.says) CHECK_MESSAGE(says(place.err(), part), place.err());
  }
}

TEST_CASE("launch: each of several machines starts its share of the ranks, as options or a cluster's variables say") {
  struct Case {
    std::string environment, words;
    std::string first, last;  // the ranks of this launcher, as they are called
    std::string port, says;
  };
  const std::vector<Case> cases = {
      {"", "-n 2 --nodes 3 --node-rank 1 --address a:1234", "2/6 0/2 a", "3/6 1/2 a", "1234",
       "vernier: node 1 of 3: ranks 2 to 3 of 6, which meet at a, port 1234\n"},
      {"", "-n 1 --nodes=2 --node_rank=0 --address=10.0.0.4", "0/2 0/1 10.0.0.4", "0/2 0/1 10.0.0.4", "29500", ""},
      {"", "-n 1 --nodes 2 --node_rank 1 --address [fe80::1]:77", "1/2 0/1 fe80::1", "1/2 0/1 fe80::1", "77", ""},
      {"", "-n 1 --nodes 2 --node-rank 1 --address fe80::1", "1/2 0/1 fe80::1", "1/2 0/1 fe80::1", "29500", ""},
      {"", "-n 2 --nodes 1 --node-rank 0 --address a", "0/2 0/2 127.0.0.1", "1/2 1/2 127.0.0.1", "", ""},
      // Options come before what a cluster says.
      {"PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=b", "-n 1 --nodes 3 --node-rank 2 --address a", "2/3 0/1 a",
       "2/3 0/1 a", "29500", ""},
      // Kubeflow Trainer, with a number of processes and without.
      {"PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=2 PET_MASTER_ADDR=b PET_MASTER_PORT=29400", "", "2/4 0/2 b",
       "3/4 1/2 b", "29400", "vernier: node 1 of 2: ranks 2 to 3 of 4"},
      {"PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=2", "", "0/2 0/2 127.0.0.1", "1/2 1/2 127.0.0.1", "", ""},
      {"PET_NNODES=2 PET_NODE_RANK=0 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=b", "-n 1", "0/2 0/1 b", "0/2 0/1 b",
       "29500", ""},
      // Pods of PyTorchJob, SageMaker, AWS Batch, LeaderWorkerSet, Azure ML.
      {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=c MASTER_PORT=23456", "-n 2", "2/4 0/2 c", "3/4 1/2 c", "23456", ""},
      {R"(SM_HOSTS=["algo-1","algo-2"] SM_CURRENT_HOST=algo-2 SM_NUM_GPUS=2 MASTER_PORT=7777)", "", "2/4 0/2 algo-1",
       "3/4 1/2 algo-1", "7777", ""},
      {"AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=d", "-n 1",
       "0/2 0/1 d", "0/2 0/1 d", "29500", ""},
      {"LWS_GROUP_SIZE=3 LWS_WORKER_INDEX=2 LWS_LEADER_ADDRESS=e", "-n 1", "2/3 0/1 e", "2/3 0/1 e", "29500", ""},
      {"AZUREML_NODE_COUNT=2 AZ_BATCHAI_TASK_INDEX=1 AZ_BATCHAI_JOB_MASTER_NODE_IP=f", "-n 1", "1/2 0/1 f", "1/2 0/1 f",
       "29500", ""}};
  for (const auto& each : cases) {
    CAPTURE(each.environment);
    CAPTURE(each.words);
    const Scripted place("exit 0");
    std::string environment = "env -u OMP_NUM_THREADS";
    std::istringstream variables(each.environment);
    for (std::string variable; variables >> variable;) environment += " '" + variable + "'";
    CHECK_MESSAGE(place.launch(each.words + " run.toml --log-dir logs", environment) == 0, place.err());
    for (const auto& wanted : {each.first, each.last}) {
      const int rank = std::stoi(wanted);
      REQUIRE(place.calls(rank).size() == 1);
      CHECK(place.calls(rank).front().starts_with("0 " + wanted + " "));
      CHECK(fs::exists(place.folder / ("logs/rank-" + std::to_string(rank) + ".log")));
    }
    if (!each.port.empty()) CHECK(read_text(place.folder / "port") == each.port + "\n");
    CHECK_MESSAGE(says(place.err(), each.says), place.err());
  }
}

TEST_CASE("launch: a machine's launcher names ranks by their place in the whole run, and starts them again") {
  const Scripted place("if [ $attempt = 1 ]; then exit 0; fi; if [ $RANK = 3 ]; then echo oh; exit 1; fi; exit 4",
                       "[run]\nresume = 'auto'\n");
  CHECK(place.launch("-n 2 --nodes 2 --node-rank 1 --address a run.toml --restarts 1 --set run.resume=auto") == 0);
  CHECK(place.calls(2).size() == 2);
  CHECK(place.calls(2).back().starts_with("1 2/4 0/2 a "));
  CHECK(place.calls(2).back().ends_with(": train run.toml --set run.resume=auto --set distributed.use=ddp"));
  CHECK(says(place.err(), "[rank 3] oh\n"));
  CHECK(says(place.err(), "vernier: rank 3 ended with exit code 1; its last lines:\n  oh\n"));
  CHECK(says(place.err(), "vernier: attempt 2 of 2: 2 ranks on this machine, with [run] resume = \"auto\"\n"));
}

TEST_CASE("launch: --elastic restarts with one rank less, and with no fewer than it says") {
  const Scripted place("if [ $attempt = 3 ]; then exit 0; fi; if [ $RANK = 0 ]; then kill -9 $$; fi; exit 4");
  CHECK(place.launch("-n 3 run.toml --restarts 3 --elastic 2 --log-dir logs") == 0);
  std::string worlds;
  for (const auto& call : place.calls(0)) worlds += call.substr(0, call.find(' ', 2)) + ' ';
  CHECK(worlds == "0 0/3 1 0/2 2 0/2 3 0/2 ");
  const auto threads = std::regex_replace(place.calls(0).back(), std::regex(".*127.0.0.1 ([0-9]+): .*"), "$1");
  CHECK(threads == std::to_string(std::max(1U, std::thread::hardware_concurrency() / 3)));  // a resume needs the same
  CHECK(says(place.err(), "rank 0 was killed by signal 9 (Killed); see logs/rank-0.log\n"));
}

TEST_CASE("launch: one of several processes is known by its environment, and starts no ranks of its own") {
  const Scripted place("exit 0");
  std::ifstream cases(VERNIER_SOURCE_DIR "/tests/framework/cli/launchers.txt");
  std::set<std::string> names;
  for (std::string line; std::getline(cases, line);) {
    if (line.starts_with("#")) continue;
    CAPTURE(line);
    const auto bar = line.find(" | ");
    REQUIRE(bar != std::string::npos);
    const auto wanted = line.substr(bar + 3);
    std::istringstream words(line.substr(0, bar));
    std::string environment = "env";
    for (std::string word; words >> word;) {
      environment += " '" + word + "'";
      ::setenv(word.substr(0, word.find('=')).c_str(), word.substr(word.find('=') + 1).c_str(), 1);
      names.insert(word.substr(0, word.find('=')));
    }
    const auto started = vernier::started_as_one_of_several(), reason = vernier::several_of_launcher();
    for (const auto& name : names) ::unsetenv(name.c_str());
    CHECK((wanted == "alone" ? started.empty() : started == wanted));
    CHECK(reason.starts_with(started));
    CHECK(reason.empty() == started.empty());
    // Variables that name machines say how many launchers there are, if they also say where machine 0 is.
    const int status = place.launch("-n 1 run.toml", environment);
    const bool is_node = says(place.err(), "vernier: node ") || says(place.err(), "set MASTER_ADDR to the machine");
    CHECK(status == (wanted == "alone" || says(place.err(), "vernier: node ") ? 0 : 2));
    if (wanted != "alone" && !is_node)
      CHECK_MESSAGE(says(place.err(), "vernier: " + wanted + ", and each of them would"), place.err());
  }
  // Each row of the table is tried.
  for (const auto& launcher : vernier::launchers) {
    CHECK_MESSAGE(names.count(std::string(launcher.rank).substr(0, std::string(launcher.rank).find('|'))) == 1,
                  launcher.name);
  }
}

TEST_CASE("launch: -h is help, as --help is") {
  RunFolder place("");
  REQUIRE(place.call({"launch", "--help"}) == 0);
  const auto help = place.out;
  CHECK(place.call({"launch", "-h"}) == 0);
  CHECK(place.out == help);
}

TEST_CASE("launch: wrong calls end in one line") {
  RunFolder place("[run]\nsteps = 1\ndevice = 'cpu'\n[task]\nuse = 'mlp'\n[optimizer]\nuse = 'sgd'\n");
  place.folder.write("none.toml", "[distributed]\nuse = 'none'\n");
  struct Refused {
    Words arguments;
    std::string says;
  };
  const std::vector<Refused> refusals = {
      {{"run.toml"}, "say how many ranks, as in `vernier launch -n 2 run.toml`"},
      {{"-n", "0", "run.toml"}, "--ranks is 0, and must be from 1 to 1024"},
      {{"-n", "100000", "run.toml"}, "--ranks is 100000, and must be from 1 to 1024"},
      {{"-n", "-2", "run.toml"}, "--ranks is -2, and must be"},
      {{"-n", "two", "run.toml"}, "see vernier launch --help"},
      {{"run.toml", "-n"}, "see vernier launch --help"},
      {{"-n", "2"}, "name a TOML file"},
      {{"-n", "2", "nosuch.toml"}, "nosuch.toml: there is no such file"},
      {{"-n", "2", "run.toml", "--restart", "3"}, "'--restart'"},
      {{"-n", "2", "run.toml", "--restarts", "-1"}, "--restarts is -1, and must be"},
      {{"-n", "2", "run.toml", "--elastic", "1"}, "--elastic is for restarts; say --restarts NUMBER too"},
      {{"-n", "2", "run.toml", "--restarts", "1", "--elastic", "3"}, "--elastic is 3, and must be from 1 to 2"},
      {{"-n", "2", "run.toml", "--log-dir", "run.toml"}, "--log-dir run.toml cannot be made"},
      {{"-n", "2", "run.toml", "none.toml"},
       "none.toml:2: [distributed] use is \"none\", which trains with one process"},
      {{"-n", "2", "run.toml", "--set", "run.steps"}, "--set run.steps"},
      {{"-n", "2", "run.toml", "--nosuch"}, "'--nosuch'"},
      {{"-n", "2", "run.toml", "--nodes"}, "see vernier launch --help"},
      {{"-n", "2", "--nodes", "2", "run.toml"}, "say which machine this is: --node-rank 0 on the first"},
      {{"-n", "2", "--nodes", "2", "--node-rank", "1", "run.toml"}, "say where the ranks meet"},
      {{"-n", "2", "--nodes", "2", "--node-rank", "2", "run.toml"}, "--node-rank is 2, and must be from 0 to 1"},
      {{"-n", "2", "--nodes", "0", "run.toml"}, "--nodes is 0, and must be from 1 to 65536"},
      {{"-n", "2", "--node-rank", "1", "run.toml"}, "--node-rank and --address belong to --nodes NUMBER"},
      {{"-n", "2", "--address", "a", "run.toml"}, "--node-rank and --address belong to --nodes NUMBER"},
      {{"-n", "2", "--nodes", "2", "--node-rank", "0", "--address", "a:0", "run.toml"},
       "--address a:0: give a machine and a port from 1 to 65535"},
      {{"-n", "2", "--nodes", "2", "--node-rank", "0", "--address", "a:70000", "run.toml"}, "--address a:70000: give"},
      {{"-n", "2", "--nodes", "2", "--node-rank", "0", "--address", ":77", "run.toml"}, "--address :77: give"},
      {{"-n", "2", "--nodes", "2", "--node-rank", "0", "--address", "a:b", "run.toml"}, "--address a:b: give"},
      {{"-n", "2", "--nodes", "2", "--node-rank", "0", "--address", "a", "run.toml", "--restarts", "1"},
       "--restarts on several machines needs --set run.resume=auto"},
      {{"-n", "2", "--nodes", "2", "--node-rank", "0", "--address", "a", "run.toml", "--restarts", "1", "--elastic",
        "1"},
       "--elastic is for one machine"}};
  for (const auto& refused : refusals) {
    CAPTURE(refused.says);
    Words words = {"launch"};
    words.insert(words.end(), refused.arguments.begin(), refused.arguments.end());
    CHECK(place.call(words) == 2);
    CHECK_MESSAGE(is_one_line(place.err), place.err);
    CHECK_MESSAGE(says(place.err, refused.says), place.err);
  }
}

}  // namespace launch_test
