// `vernier serve --slurm`: what it asks of sbatch, squeue and scancel, and what it makes of their answers. Small
// scripts stand in their place; tests/cluster/slurm.sh has a real Slurm.
#include <cstdlib>

#include "job_server.h"

namespace slurm_test {

using namespace job_server;

namespace {

// Notes its call. A job begins when there is the file `start`; until it has ended, there is the file job-NUMBER. While
// there is the file hold-NAME, the call for the job of this name waits; then it makes the job's folder if that is gone.
constexpr const char* sbatch = R"SCRIPT(#!/bin/sh
here=${0%/*}
echo "sbatch $*" >>"$here/calls"
[ ! -e "$here/refuse" ] || { echo 'sbatch: error: invalid partition specified: none' >&2; exit 1; }
for word; do
  case $word in --job-name=*) name=${word#*=} ;; --output=*) out=${word#*=} ;; --chdir=*) folder=${word#*=} ;; *) script=$word ;; esac
done
[ ! -e "$here/hold-$name" ] || while [ -e "$here/hold-$name" ] || ! mkdir -p "$folder"; do sleep 0.02; done
number=$(($(cat "$here/count" 2>/dev/null) + 1))
echo $number >"$here/count"
: >"$here/job-$number"
(
  while ! [ -e "$here/start" ]; do sleep 0.02; [ -e "$here/job-$number" ] || exit; done
  [ -e "$here/job-$number" ] || exit
  cd "$folder" || exit
  CUDA_VISIBLE_DEVICES=7 sh "$script" >>"$out" 2>&1 &
  echo $! >"$here/job-$number"
  wait
  rm "$here/job-$number"
) </dev/null >/dev/null 2>&1 &
echo "sbatch: a warning" >&2
echo "$number;cluster"
)SCRIPT";
constexpr const char* squeue = R"SCRIPT(#!/bin/sh
for file in "${0%/*}"/job-*; do [ ! -e "$file" ] || echo "${file##*-}"; done
)SCRIPT";
constexpr const char* scancel = R"SCRIPT(#!/bin/sh
here=${0%/*}
echo "scancel $*" >>"$here/calls"
for word; do number=$word; done
case $* in *--signal=INT*) kill -INT "$(cat "$here/job-$number")" ;; *) rm "$here/job-$number" ;; esac
)SCRIPT";

// The three commands, found in PATH while this exists.
class FakeSlurm {
 public:
  FakeSlurm() : path_(std::getenv("PATH")) {
    for (const auto& [name, text] :
         {std::pair("sbatch", sbatch), std::pair("squeue", squeue), std::pair("scancel", scancel)}) {
      fs::permissions(folder_.write(name, text), fs::perms::owner_all);
    }
    ::setenv("PATH", (folder_.path().string() + ":" + path_).c_str(), 1);
  }
  FakeSlurm(const FakeSlurm&) = delete;
  FakeSlurm& operator=(const FakeSlurm&) = delete;
  ~FakeSlurm() { ::setenv("PATH", path_.c_str(), 1); }

  void start() const { folder_.write("start", ""); }
  void put(const char* name) const { folder_.write(name, ""); }
  void remove(const std::string& name) const {
    REQUIRE(wait_until([&] { return fs::remove(folder_.path() / name); }));
  }
  std::string calls() const { return read_text(folder_ / "calls"); }
  bool waits_for(const std::string& call) const {
    const bool is_there = wait_until([&] { return calls().find(call) != std::string::npos; });
    if (!is_there) MESSAGE(calls());
    return is_there;
  }

 private:
  TemporaryFolder folder_;
  std::string path_;
};

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

const std::string waits = takes("0", "until = \"go\"\n");

}  // namespace

TEST_CASE("serve: jobs are handed to Slurm with what they need, wait there, run and end") {
  const FakeSlurm slurm;
  JobServer server({"--cores", "4", "--gpus", "2", "--slurm", "--sbatch=--partition=main", "--grace", "20"});
  const auto first = server.submit(
      waits, {{"cores", 3}, {"gpus", 2}, {"priority", 5}, {"time_limit", 100}, {"memory_limit", 1 << 30}});
  const auto second = server.submit(takes("0", "exit = 3\n"), {{"cores", 4}});
  REQUIRE(slurm.waits_for("--job-name=vernier-2"));
  const auto folder = server.path().string() + "/jobs/1";
  CHECK(
      slurm.waits_for("sbatch --parsable --no-requeue --ntasks=1 --job-name=vernier-1 --cpus-per-task=3 --nice=95 "
                      "--chdir=" +
                      folder + " --open-mode=append --output=" + folder +
                      "/log --gpus=2 --time=4 --mem=1088M --partition=main " + folder + "/1.sbatch\n"));
  CHECK(server.state(first) == "queued");
  CHECK(server.get("/v1/server").body.at("cores_in_use") == 0);
  slurm.start();
  CHECK(server.waits_for(first, "running"));
  REQUIRE(server.waits_for(second, "failed"));
  CHECK(server.job(second).at("error") == "it ended with exit code 3: trained");
  server.go();
  REQUIRE(server.waits_for(first, "done"));
  CHECK(server.ledger().find("job-1 begin threads=3 gpus=7\n") != std::string::npos);
  CHECK(server.log(first) == "this is job-1\ntrained\n");
  CHECK(count_of(slurm.calls(), "sbatch --parsable") == 2);
  CHECK(slurm.calls().find("scancel") == std::string::npos);
}

TEST_CASE("serve: jobs are cancelled at Slurm, waiting and running") {
  const FakeSlurm slurm;
  JobServer server({"--cores", "1", "--slurm"});
  const auto waiting = server.submit(waits);
  REQUIRE(slurm.waits_for("vernier-1"));
  CHECK(server.post("/v1/jobs/1/cancel").body.at("state") == "cancelled");
  CHECK(slurm.waits_for("scancel 1\n"));
  slurm.start();
  const auto running = server.submit(waits);
  REQUIRE(server.waits_for(running, "running"));
  REQUIRE(server.has_begun(running));
  CHECK(server.post("/v1/jobs/2/cancel").body.at("is_ending") == true);
  CHECK(server.waits_for(running, "cancelled"));
  CHECK(slurm.waits_for("scancel --batch --signal=INT 2\n"));
  CHECK(server.ledger().find("job-2 end 130") != std::string::npos);
  CHECK(server.ledger().find("job-1 ") == std::string::npos);
  CHECK(server.post("/v1/jobs/1/retry").body.at("state") == "queued");
  server.go();
  CHECK(server.waits_for(waiting, "done"));
}

TEST_CASE("serve: a killed server finds its jobs at Slurm again, and those that Slurm has lost are handed over anew") {
  const FakeSlurm slurm;
  JobServer server({"--cores", "1", "--slurm"});
  const auto first = server.submit(waits), lost = server.submit(waits);
  REQUIRE(wait_until([&] { return server.job(lost).at("slurm") == "2"; }));
  server.kill();
  slurm.remove("job-2");
  slurm.start();
  REQUIRE(server.has_begun(first));
  server.start();
  CHECK(server.waits_for(first, "running"));
  CHECK(server.waits_for(lost, "running"));
  CHECK(server.job(first).at("attempt") == 1);
  CHECK(server.job(lost).at("attempt") == 2);
  // One that dies without a word.
  const auto job = server.path().string() + "/jobs/1";
  const int killed = signal_processes(SIGKILL, [&](const std::string& words, const std::string& here) {
    return (here == job || words.ends_with(job + '\0')) && words.find("sbatch") == words.npos;
  });
  CHECK(killed >= 1);
  CHECK(wait_until([&] { return server.job(first).at("attempt") == 2 && server.state(first) == "running"; }));
  server.go();
  CHECK(server.waits_for(first, "done"));
  CHECK(server.waits_for(lost, "done"));
  CHECK(count_of(server.ledger(), "begin") == 3);
}

TEST_CASE("serve: jobs that are removed while they are handed to Slurm leave the server and nothing behind") {
  const FakeSlurm slurm;
  slurm.put("hold-vernier-1");
  slurm.put("hold-vernier-2");
  JobServer server({"--cores", "1", "--slurm"});
  server.submit(waits);
  REQUIRE(slurm.waits_for("--job-name=vernier-1"));
  server.submit(waits), server.submit(waits);  // both are handed over after the first one, one by one
  slurm.remove("hold-vernier-1");
  REQUIRE(slurm.waits_for("--job-name=vernier-2"));
  for (const char* job : {"/v1/jobs/2", "/v1/jobs/3"}) {
    CHECK(server.post(job + std::string("/cancel")).body.at("state") == "cancelled");
    CHECK(server.ask_as("control", "DELETE", job).status == 200);
  }
  slurm.remove("hold-vernier-2");
  CHECK(slurm.waits_for("scancel 2\n"));
  CHECK(server.state(1) == "queued");
  for (const char* place : {"jobs/2", "jobs/3", "attempts/2", "attempts/3"}) CHECK(!fs::exists(server.path() / place));
  CHECK(slurm.calls().find("--job-name=vernier-3") == std::string::npos);
}

TEST_CASE("serve: a job that Slurm refuses waits, and says why") {
  const FakeSlurm slurm;
  slurm.start();
  slurm.put("refuse");
  JobServer server({"--cores", "1", "--slurm"});
  const auto id = server.submit(takes("0"));
  REQUIRE(wait_until([&] { return server.job(id).at("error") != ""; }));
  CHECK(server.job(id).at("error") == "sbatch: sbatch: error: invalid partition specified: none");
  CHECK(server.state(id) == "queued");
  slurm.remove("refuse");
  CHECK(server.waits_for(id, "done"));
  CHECK(server.job(id).at("error") == "");
}

}  // namespace slurm_test
