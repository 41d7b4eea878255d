// A `vernier serve` of its own for each test. Most jobs need no training: a copy of the server finds a small script in
// the place of `vernier`.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <ios>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "patience.h"
#include "raw_http.h"
#include "temporary_folder.h"

namespace job_server {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Writes what it is given to the file `ledger`, and does what its configuration says:
//   seconds = 0.1     how long it takes; then it prints "trained" and exits
//   exit = 3          its exit code
//   stubborn = true   it does not end at SIGINT
//   until = "go"      it waits for this file beside the ledger
//   memory = 100      it has so many bytes in memory for a moment
//   bytes = 100       it writes a file of this size, or exits with 9
// A signal interrupts `wait` at once. While a shell starts or waits for a program in the foreground, its trap waits
// too.
inline constexpr const char* script = R"SCRIPT(#!/bin/sh
[ "$1" = train ] || exit 0
config=$2 here=${0%/*}
get() { sed -n "s/^$1 = //p" "$config" | tr -d "\"'"; }
job=${config%.toml} seconds=$(get seconds)
[ "$(get stubborn)" = true ] && trap '' INT || trap 'echo "$job end 130" >>"$here/ledger"; exit 130' INT
echo "$job begin threads=$OMP_NUM_THREADS gpus=$CUDA_VISIBLE_DEVICES" >>"$here/ledger"
echo "this is $job"
sleep "$seconds" & wait $!
while [ -n "$(get until)" ] && ! [ -e "$here/$(get until)" ]; do sleep 0.02; done
[ -z "$(get memory)" ] || head -c "$(get memory)" /dev/zero | tail >/dev/null
[ -z "$(get bytes)" ] || head -c "$(get bytes)" /dev/zero >large || exit 9
echo trained
status=$(get exit)
echo "$job end ${status:-0}" >>"$here/ledger"
exit "${status:-0}"
)SCRIPT";

using patience::wait_until;

// Sends a signal to each process for which condition(words, folder) holds: its command line, each word with a NUL
// behind it, and its working folder. One that ends meanwhile is left out. Returns how many have got the signal.
template <class Condition>
int signal_processes(int signal, const Condition& condition) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    std::error_code none;
    std::string words;
    try {
      words = read_text(entry.path() / "cmdline");
    } catch (const std::ios_base::failure&) {
      continue;
    }
    if (!condition(words, fs::read_symlink(entry.path() / "cwd", none).string())) continue;
    count += ::kill(std::stoi(name), signal) == 0 ? 1 : 0;
  }
  return count;
}

struct Answer {
  int status = 0;
  Json body = nullptr;
  std::string text = {};  // with the header
};

class JobServer {
 public:
  // with_script: jobs are those of the script, and not trainings.
  explicit JobServer(std::vector<std::string> options = {}, bool with_script = true) : options_(std::move(options)) {
    program_ = VERNIER_BINARY_DIR "/vernier-serve";
    if (with_script) {
      bin_.write("vernier", script);
      fs::permissions(bin_ / "vernier", fs::perms::owner_all);
      fs::copy_file(program_, bin_ / "vernier-serve");
      program_ = bin_ / "vernier-serve";
    }
    start();
  }
  JobServer(const JobServer&) = delete;
  JobServer& operator=(const JobServer&) = delete;
  // No job outlives a test.
  ~JobServer() {
    kill();
    signal_processes(SIGKILL, [here = path().string()](const std::string& words, const std::string& folder) {
      return words.find(here) != words.npos || folder.starts_with(here);
    });
  }

  void start() {
    fs::remove(path() / "server.url");
    std::vector<std::string> words = {program_, path().string()};
    if (program_.starts_with(bin_.path().string())) {  // the script writes beside itself
      words.insert(words.end(), {"--output-data", bin_.path().string()});
    }
    words.insert(words.end(), options_.begin(), options_.end());
    if (std::find(options_.begin(), options_.end(), "--requests-per-second") == options_.end()) {
      words.insert(words.end(), {"--requests-per-second", "100000"});
    }
    if (std::find(options_.begin(), options_.end(), "--listen") == options_.end()) {
      words.insert(words.end(), {"--listen", "127.0.0.1:0"});
    }
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const auto log = bin_ / "server.log";
    process_ = ::fork();
    REQUIRE(process_ >= 0);
    if (process_ == 0) {
      const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      ::dup2(out, 1);
      ::dup2(out, 2);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    INFO(read_text(log));
    REQUIRE(wait_until([&] {
      return read_text(path() / "server.url").ends_with('\n') || ::waitpid(process_, nullptr, WNOHANG) != 0;
    }));
    REQUIRE(fs::exists(path() / "server.url"));
    const auto url = read_text(path() / "server.url");
    port = std::stoi(url.substr(url.rfind(':') + 1));
    std::istringstream lines(read_text(path() / "tokens"));
    for (std::string line, scope; std::getline(lines, line);) {
      if (line.starts_with('#')) continue;
      std::istringstream(line) >> scope >> tokens[scope];
    }
  }
  // kill -9
  void kill() {
    if (process_ > 0) ::kill(process_, SIGKILL);
    if (process_ > 0) ::waitpid(std::exchange(process_, 0), nullptr, 0);
  }
  // Ctrl-C. Returns the exit status.
  int stop() {
    int status = 0;
    ::kill(process_, SIGINT);
    ::waitpid(std::exchange(process_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void restart() {
    kill();
    start();
  }

  Answer ask_as(const std::string& scope, const std::string& method, const std::string& target,
                const std::string& body = "") const {
    Fields fields = {{"Authorization", "Bearer " + (tokens.contains(scope) ? tokens.at(scope) : scope)}};
    if (!body.empty()) fields.emplace_back("Content-Type", "application/json");
    const auto text = ::ask(port, request_of(port, method, target, fields, body));
    return {status_of(text), Json::parse(body_of(text), nullptr, false), text};
  }
  Answer get(const std::string& target) const { return ask_as("read", "GET", target); }
  Answer post(const std::string& target, const std::string& body = "") const {
    return ask_as("control", "POST", target, body);
  }
  // Returns the id.
  std::int64_t submit(const std::string& config, Json more = Json::object()) const {
    more["config"] = config;
    const auto answer = post("/v1/jobs", more.dump());
    INFO(answer.text);
    REQUIRE(answer.status == 201);
    return answer.body.at("id").get<std::int64_t>();
  }
  Json job(std::int64_t id) const { return get("/v1/jobs/" + std::to_string(id)).body; }
  std::string state(std::int64_t id) const { return job(id).at("state").get<std::string>(); }
  bool waits_for(std::int64_t id, const std::string& wanted) const {
    const bool is_there = wait_until([&] { return state(id) == wanted; });
    if (!is_there) MESSAGE(job(id).dump(), read_text(bin_ / "server.log"));
    return is_there;
  }
  std::string log(std::int64_t id) const {
    return get("/v1/jobs/" + std::to_string(id) + "/log").body.at("text").get<std::string>();
  }

  const fs::path& path() const { return folder_.path(); }
  std::string ledger() const { return read_text(bin_ / "ledger"); }
  std::string server_log() const { return read_text(bin_ / "server.log"); }
  bool has_begun(std::int64_t id) const {
    return wait_until([&] { return ledger().find("job-" + std::to_string(id) + " begin") != std::string::npos; });
  }
  // Bytes of the server in memory.
  std::int64_t memory() const {
    std::int64_t all = 0, here = 0;
    std::istringstream(read_text("/proc/" + std::to_string(process_) + "/statm")) >> all >> here;
    return here * ::sysconf(_SC_PAGESIZE);
  }
  // Returns the child processes that the server has not waited for.
  std::string children() const {
    const auto process = std::to_string(process_);
    return read_text("/proc/" + process + "/task/" + process + "/children");
  }
  void go(const std::string& name = "go") const { bin_.write(name, ""); }

  int port = 0;
  std::map<std::string, std::string> tokens;

 private:
  TemporaryFolder bin_, folder_;
  std::vector<std::string> options_;
  std::string program_;
  pid_t process_ = 0;
};

inline constexpr const char* forever = "3600";  // longer than any test

inline std::string takes(const char* seconds, const std::string& more = "") {
  return "[script]\nseconds = " + std::string(seconds) + "\n" + more;
}

}  // namespace job_server
