// A small run with callback/control, and what a person asks of it while it trains.
#pragma once

#include <vernier/plugin.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "raw_http.h"
#include "small_run.h"
#include "trained.h"

namespace steered {

namespace fs = std::filesystem;
using nlohmann::json;
using vernier::Event;

inline const std::string base = R"([run]
steps = 20
validate_every = 10
device = "cpu"
[task]
use = "mlp"
samples = 64
[scaler]
use = "dynamic"
growth_interval = 3
[optimizer]
use = "adamw"
[checkpoint]
every = 5
keep_last = 10
async = false
[[callback]]
use = "clip_norm"
[[monitor]]
use = "jsonl"
)";
inline constexpr const char* with_control =
    "[[callback]]\nuse = 'clip_norm'\n[[callback]]\nuse = 'control'\nrequests_per_second = 1e6\n";

struct Quiet {
  Quiet() {
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  }
  ~Quiet() { vernier::set_log_sink(nullptr); }
};

// Between two questions, so that the rate limit does not answer.
inline void nap() {
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
}

// The service of the run in a folder.
struct Client {
  explicit Client(const fs::path& run) {
    const auto url = read_text(run / "control.url");
    REQUIRE(url.starts_with("http://127.0.0.1:"));
    port = std::stoi(url.substr(17));
    std::istringstream lines(read_text(run / "control.tokens"));
    for (std::string scope, token; lines >> scope;) {
      lines >> token;
      tokens[scope] = token;
    }
  }

  std::string get(const std::string& target, const std::string& scope = "read") const {
    return ask(port, request_of(port, "GET", target, {{"Authorization", "Bearer " + tokens.at(scope)}}));
  }
  json get_json(const std::string& target) const { return json::parse(body_of(get(target))); }
  std::string post_of(const std::string& body, const std::string& scope = "control") const {
    return request_of(port, "POST", "/v1/commands",
                      {{"Authorization", "Bearer " + tokens.at(scope)}, {"Content-Type", "application/json"}}, body);
  }
  std::string post(const std::string& body, const std::string& scope = "control") const {
    return ask(port, post_of(body, scope));
  }

  int port = 0;
  std::map<std::string, std::string> tokens;
};

// Commands after some steps: sent while the step ends, so that they wait when the trainer looks. 0: before the first.
class Steered {
 public:
  using Commands = std::multimap<std::int64_t, std::string>;
  explicit Steered(const TemporaryFolder& folder, Commands commands = {}, const std::string& more = "")
      : run(from_toml({base, with_control, more}), folder.path().string()), commands_(std::move(commands)) {
    run.on(Event::RunBegin, [this](vernier::Run& now) {
      if (now.step == 0) send(now, 0);
    });
    run.on(Event::StepEnd, [this](vernier::Run& now) { send(now, now.step); });
  }

  // The answers, in the order of the commands.
  std::vector<json> train() {
    outcome = run.train();
    std::vector<json> all;
    for (const auto& connection : connections_) {
      const auto answer = connection->read();
      all.push_back(json::parse(body_of(answer)));
      CHECK(status_of(answer) == 200);
    }
    return all;
  }

  SmallRun run;
  vernier::Outcome outcome;

 private:
  void send(const vernier::Run& now, std::int64_t step) {
    const auto [begin, end] = commands_.equal_range(step);
    for (auto each = begin; each != end; ++each) {
      const Client client(now.output);
      const auto waiting = [&] { return client.get_json("/v1/commands").at("commands").size(); };
      const auto before = waiting();
      connections_.push_back(std::make_unique<Connection>(client.port));
      connections_.back()->send(client.post_of(each->second));
      while (waiting() == before) nap();
    }
  }

  Commands commands_;
  std::vector<std::unique_ptr<Connection>> connections_;
};

inline Trained unsteered(const std::string& more = "") {
  const TemporaryFolder folder;
  SmallRun run(from_toml({base, more}), folder.path().string());
  run.train();
  return result_of(run);
}

inline constexpr const char* halve = R"({"command": "scale_learning_rate", "factor": 0.5})";
inline constexpr const char* to_bf16 = R"({"command": "swap", "roles": {"precision": {"use": "bf16"}}})";

}  // namespace steered
