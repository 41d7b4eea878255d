// callback/control: who may ask for what, what each command does and after which step, and that the bits of a run are
// those of its commands alone.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <vernier/error.h>

#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "plugin_library.h"
#include "raw_http.h"
#include "run_folder.h"
#include "small_run.h"
#include "thrown.h"
#include "trained.h"

namespace control_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using vernier::Event;

constexpr const char* base = R"([run]
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
constexpr const char* with_control = "[[callback]]\nuse = 'clip_norm'\n[[callback]]\nuse = 'control'\n";

struct Quiet {
  Quiet() {
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  }
  ~Quiet() { vernier::set_log_sink(nullptr); }
};

// Between two questions, so that the rate limit does not answer.
void nap() {
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
    run.on(Event::StepEnd, [this](vernier::Run& now) { send(now, now.step + 1); });
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

Trained unsteered(const std::string& more = "") {
  const TemporaryFolder folder;
  SmallRun run(from_toml({base, more}), folder.path().string());
  run.train();
  return result_of(run);
}

constexpr const char* halve = R"({"command": "scale_learning_rate", "factor": 0.5})";
constexpr const char* to_bf16 = R"({"command": "swap", "roles": {"precision": {"use": "bf16"}}})";

}  // namespace

TEST_CASE("control: a run that nobody steers has the same bits as without it") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder);
  std::string seen;
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step == 9) seen = Client(now.output).get("/v1/run");
  });
  steered.train();
  CHECK(status_of(seen) == 200);
  CHECK(result_of(steered.run) == unsteered());
  CHECK_FALSE(fs::exists(folder / "control.url"));
}

TEST_CASE("control: every route refuses without a token, with a wrong one, and with too small a scope") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder);
  int tried = 0, open = 0;
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step != 3) return;
    const Client client(now.output);
    const auto document = json::parse(body_of(ask(client.port, request_of(client.port, "GET", "/v1/openapi.json"))));
    CHECK(document.at("openapi") == "3.1.0");
    for (const auto& [path, methods] : document.at("paths").items()) {
      for (const auto& [method, operation] : methods.items()) {
        CAPTURE(path);
        CAPTURE(method);
        const auto verb = method == "get" ? "GET" : "POST";
        const auto target = path.substr(0, path.find('{')) + (path.find('{') == path.npos ? "" : "1");
        const auto status = [&](const Fields& fields) {
          return status_of(ask(client.port, request_of(client.port, verb, target, fields)));
        };
        const auto bearer = [](const std::string& token) { return std::pair("Authorization", "Bearer " + token); };
        const auto host = "127.0.0.1:" + std::to_string(client.port);
        tried += 1;
        // Of another site, whatever the token.
        for (const auto& scope : {"read", "control"}) {
          const auto token = bearer(client.tokens.at(scope));
          CHECK(status({token, {"Host", "evil.example"}}) == 403);
          CHECK(status({token, {"Host", "evil.example:" + std::to_string(client.port)}}) == 403);
          CHECK(status({token, {"Host", "127.0.0.1:1"}}) == 403);
          CHECK(status({token, {"Origin", "http://evil.example"}}) == 403);
          CHECK(status({token, {"Origin", "null"}}) == 403);
          CHECK(status({token, {"Sec-Fetch-Site", "cross-site"}}) == 403);
        }
        if (operation.contains("x-scope")) {
          const auto is_refused = [&](const Fields& fields) {  // 429 after some of them
            const int answered = status(fields);
            return answered == 401 || (tried > 1 && answered == 429);
          };
          CHECK(status({}) == 401);
          CHECK(is_refused({bearer("")}));
          CHECK(is_refused({{"Authorization", client.tokens.at("control")}}));
          CHECK(is_refused({{"Authorization", "Basic " + client.tokens.at("control")}}));
          CHECK(is_refused({bearer(client.tokens.at("read") + "x")}));
          if (operation.at("x-scope") == "control") CHECK(status({bearer(client.tokens.at("read"))}) == 403);
        } else {
          open += 1;
          CHECK(status({{"Origin", "http://" + host}, {"Host", host}}) == 200);
        }
        for (const auto* other : {"PUT", "DELETE", "TRACE", "OPTIONS"}) {
          CHECK(status_of(ask(client.port, request_of(client.port, other, target))) == 405);
        }
      }
    }
    CHECK(status_of(ask(client.port, request_of(client.port, "GET", "/other"))) == 404);
    const auto page = ask(client.port, request_of(client.port, "GET", "/"));
    CHECK(page.find("Content-Security-Policy: default-src 'none'; script-src 'self'") != page.npos);
    // Wrong tokens are answered with 429 in the end, and a good one passes all the same.
    std::string last;
    for (int i = 0; i < 50; ++i)
      last = ask(client.port, request_of(client.port, "GET", "/v1/run", {{"Authorization", "Bearer x"}}));
    CHECK(status_of(last) == 429);
    CHECK(last.find("\r\nRetry-After: ") != last.npos);
    CHECK(status_of(client.get("/v1/run")) == 200);
  });
  steered.train();
  CHECK(tried == 14);
  CHECK(open == 4);
}

TEST_CASE("control: what it shows of a run") {
  const Quiet quiet;
  const TemporaryFolder folder;
  folder.write("config.toml", "[task]\nuse = 'mlp'\n");
  Steered steered(folder);
  std::map<std::string, json> seen;
  std::string events;
  std::unique_ptr<Connection> stream;
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    const Client client(now.output);
    if (now.step == 2) {
      stream = std::make_unique<Connection>(client.port);
      stream->send(request_of(client.port, "GET", "/v1/events",
                              {{"Authorization", "Bearer " + client.tokens.at("read")}, {"Last-Event-ID", "0"}}));
      events = stream->read("retry: 2000\n\n");
    }
    if (now.step != 15) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // records are taken in batches
    for (const char* each :
         {"run", "metrics", "history?metric=loss&points=4", "notices?limit=2", "configuration", "memory", "commands"}) {
      const auto answer = client.get(std::string("/v1/") + each);
      CAPTURE(answer);
      CHECK(status_of(answer) == 200);
      seen[std::string(each).substr(0, std::string(each).find('?'))] = json::parse(body_of(answer));
    }
    const std::pair<const char*, int> refused[] = {{"history?metric=nothing", 404},
                                                   {"history", 422},
                                                   {"history?metric=loss&points=1", 422},
                                                   {"history?metric=loss&points=x", 422},
                                                   {"notices?limit=0", 422},
                                                   {"notices?limit=2&limit=2", 422},
                                                   {"notices?other=2", 422},
                                                   {"commands/7", 404},
                                                   {"commands/x", 422},
                                                   {"commands/", 404}};
    for (const auto& [target, status] : refused) {
      CAPTURE(target);
      const auto answer = client.get(std::string("/v1/") + target);
      CHECK(status_of(answer) == status);
      CHECK(answer.find("application/problem+json") != answer.npos);
      CHECK(json::parse(body_of(answer)).at("status") == status);
    }
  });
  steered.train();
  CHECK(seen["run"].at("state") == "running");
  CHECK(seen["run"].at("step") == 15);  // steps that are over
  CHECK(seen["run"].at("steps") == 20);
  const auto& metrics = seen["metrics"].at("metrics");
  const auto loss =
      std::find_if(metrics.begin(), metrics.end(), [](const json& each) { return each["name"] == "loss"; });
  REQUIRE(loss != metrics.end());
  CHECK(loss->at("step") == 16);
  const auto& points = seen["history"].at("points");
  CHECK(points.size() <= 4);
  CHECK(points.at(0).at(0) == 1);
  CHECK(points.at(0).at(2).get<double>() >= points.back().at(1).get<double>());
  CHECK(seen["notices"].at("notices").size() == 2);
  CHECK(seen["configuration"].at("toml") == "[task]\nuse = 'mlp'\n");
  CHECK(seen["memory"].at("process").at("now").get<std::int64_t>() > 1'000'000);
  CHECK(seen["commands"].at("commands").empty());
  steered.run.wiring->callbacks.clear();  // ends the stream
  events += stream->read();
  CHECK(events.find("Content-Type: text/event-stream\r\n") != events.npos);
  CHECK(events.find("event: step\ndata: {\"step\":") != events.npos);
  CHECK(events.find("event: validation\ndata: {\"step\":10,") != events.npos);
  CHECK(events.find("\"state\":\"ended\"") != events.npos);
}

TEST_CASE("control: each command acts between two steps, and is answered with what happened and after which step") {
  const Quiet quiet;
  const auto without = unsteered();
  struct Case {
    const char* command;
    const char* state;
    const char* answer;  // a part of it
    bool is_same;        // as a run that nobody steers
  };
  const Case cases[] = {
      {R"({"command": "save"})", "done", "checkpoint/rolling has got the run as it is after step 7", true},
      {R"({"command": "validate"})", "done", "the validation loss is ", true},
      {R"({"command": "resume"})", "done", "the run goes on after step 7", true},
      {halve, "done", "the learning rate is 0.5 times that of its schedule", false},
      {to_bf16, "done", "precision/bf16 takes over", false},
      {R"({"command": "swap", "roles": {"accumulation": {"use": "fixed", "micro_batches": 2}}})", "done",
       "accumulation/fixed takes over", false},
      {R"({"command": "swap", "roles": {"scaler": {"use": "none"}, "precision": {"use": "fp16"}}})", "refused",
       "needs a loss scaler", true},
      {R"({"command": "swap", "roles": {"precision": {"use": "bf16", "typo": 1}}})", "refused", "typo", true},
      {R"({"command": "swap", "roles": {"precision": {"use": "none_such"}}})", "refused", "no precision is called",
       true}};
  for (const auto& each : cases) {
    CAPTURE(each.command);
    const TemporaryFolder folder;
    Steered steered(folder, {{7, each.command}});
    std::vector<double> rates;
    std::vector<std::int64_t> validated, swapped;
    steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
      rates.push_back(now.metrics.value("learning_rate").value_or(0));
      if (!now.swapped.empty()) swapped.push_back(now.step + 1);
    });
    steered.run.on(Event::Validated, [&](vernier::Run& now) { validated.push_back(now.step); });
    const auto answers = steered.train();
    REQUIRE(answers.size() == 1);
    CHECK(answers[0].at("state") == each.state);
    CHECK(answers[0].at("step") == 7);
    CHECK(answers[0].at("id") == 1);
    CHECK(answers[0].at("who") == "control");
    CHECK(answers[0].at("answer").get<std::string>().find(each.answer) != std::string::npos);
    const std::string name = answers[0].at("command").at("command");
    const bool is_done = answers[0].at("state") == "done";
    CHECK(fs::exists(folder.path() / "checkpoints/step-00000007") == (name == "save"));
    CHECK(validated == (name == "validate" ? std::vector<std::int64_t>{7, 10, 20} : std::vector<std::int64_t>{10, 20}));
    CHECK(swapped == (name == "swap" && is_done ? std::vector<std::int64_t>{8} : std::vector<std::int64_t>{}));
    CHECK(rates.at(6) == rates.at(0));
    CHECK(rates.at(7) == rates.at(0) * (name == "scale_learning_rate" ? 0.5 : 1));
    CHECK((steered.run.digest() == without.digest) == each.is_same);
    std::vector<json> lines;
    std::istringstream file(read_text(folder / "commands.jsonl"));
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    REQUIRE(lines.size() == 2);
    CHECK(lines[0].at("command") == json::parse(each.command));
    CHECK(lines[0].at("step") == 7);
    CHECK(lines[1].at("state") == each.state);
    struct stat status {};
    ::stat((folder / "commands.jsonl").c_str(), &status);
    CHECK((status.st_mode & 0777) == 0600);
  }
}

TEST_CASE("control: stop ends the run with a validation and a checkpoint; a longer run goes on from there") {
  const Quiet quiet;
  const TemporaryFolder folder;
  {
    Steered steered(folder, {{7, R"({"command": "stop"})"}});
    const auto answers = steered.train();
    CHECK(steered.run.run.step == 7);
    CHECK(steered.outcome.finished == "callback/control: command 1 stopped it");
    CHECK(steered.outcome.validation_loss.has_value());
    CHECK(answers.at(0).at("answer").get<std::string>().starts_with("the run ends; the validation loss is "));
    CHECK(fs::exists(folder.path() / "checkpoints/step-00000007"));
  }
  SmallRun same(from_toml({base, with_control}), folder.path().string());
  REQUIRE(same.resume());
  CHECK(same.trainer->is_finished(same.run));
  SmallRun longer(from_toml({base, with_control, "[run]\nsteps = 25\n"}), folder.path().string());
  REQUIRE(longer.resume());
  longer.train();
  CHECK(longer.run.step == 25);  // the command is in the checkpoint, and is not repeated
}

TEST_CASE("control: commands that wait while the run is paused act at once, and the pause changes no bit") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder, {{7, R"({"command": "pause"})"}});
  std::vector<std::string> answers;
  std::string state;
  std::thread person([&] {
    while (!fs::exists(folder.path() / "checkpoints/step-00000005")) nap();
    const Client client(folder.path());
    while (client.get_json("/v1/run").at("state") != "paused") nap();
    state = client.get("/v1/run");
    for (const char* name : {"save", "save", "resume"})
      answers.push_back(client.post(std::string(R"({"command": ")") + name + "\"}"));
  });
  steered.train();
  person.join();
  CHECK(json::parse(body_of(state)).at("step") == 7);
  for (const auto& answer : answers) {
    CHECK(status_of(answer) == 200);
    CHECK(json::parse(body_of(answer)).at("step") == 7);
    CHECK(json::parse(body_of(answer)).at("state") == "done");
  }
  CHECK(fs::exists(folder.path() / "checkpoints/step-00000007"));
  CHECK(steered.run.digest() == unsteered().digest);
}

TEST_CASE("control: a signal ends a paused run") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder, {{7, R"({"command": "pause"})"}});
  steered.run.stop_after(7);
  steered.train();
  CHECK(steered.run.run.step == 7);
}

// As after kill -9: the newest checkpoint lacks the commands that came after it.
TEST_CASE("control: a steered run that is resumed from before its commands repeats them, and equals itself") {
  const Quiet quiet;
  const TemporaryFolder folder;
  const Steered::Commands commands = {{0, halve},
                                      {5, halve},
                                      {6, to_bf16},
                                      {6, halve},
                                      {7, R"({"command": "pause"})"},
                                      {7, R"({"command": "resume"})"},
                                      {8, R"({"command": "validate"})"},
                                      {9, R"({"command": "swap", "roles": {"scaler": {"use": "static"}}})"},
                                      {12, R"({"command": "save"})"},
                                      {12, halve}};
  Steered steered(folder, commands);
  const auto answers = steered.train();
  for (const auto& answer : answers) {
    CAPTURE(answer.dump());
    CHECK(answer.at("state") == "done");
  }
  const auto whole = result_of(steered.run);
  CHECK(whole.digest != unsteered().digest);
  for (const std::int64_t from : {5, 10, 12, 15}) {
    CAPTURE(from);
    const TemporaryFolder copy;
    fs::copy(folder.path(), copy.path(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    char name[32];
    std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(from));
    SmallRun resumed(from_toml({base, with_control}), copy.path().string());
    REQUIRE(resumed.resume(copy.path() / "checkpoints" / name));
    REQUIRE(resumed.run.step == from);
    resumed.train();
    CHECK(resumed.digest() == whole.digest);
  }
}

TEST_CASE("control: a rewind does not undo commands, and a resumed run repeats them in the same pass over the steps") {
  const Quiet quiet;
  const TemporaryFolder folder;
  // In the second pass over step 7, which the rewind begins, another command comes than in the first.
  constexpr const char* trouble = R"([[callback]]
use = "inject"
where = "loss"
at_batch = 9
[[callback]]
use = "recovery"
non_finite = ["rewind"]
rewind_back = 4
snapshot_every = 2
snapshots = 4
[[callback]]
use = "control"
)";
  const auto without_clip = [&] { return from_toml({base, trouble}); };
  SmallRun run(without_clip(), folder.path().string());
  std::vector<std::unique_ptr<Connection>> connections;
  std::int64_t passes = 0;
  run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step + 1 != 7) return;
    passes += 1;
    const Client client(now.output);
    connections.push_back(std::make_unique<Connection>(client.port));
    connections.back()->send(client.post_of(passes == 1 ? halve : to_bf16));
    while (std::ssize(client.get_json("/v1/commands").at("commands")) < passes) nap();
  });
  std::vector<double> rates;
  run.on(Event::StepEnd, [&](vernier::Run& now) { rates.push_back(now.metrics.value("learning_rate").value_or(0)); });
  run.train();
  CHECK(passes == 2);
  CHECK(rates.back() == rates.front() / 2);
  SmallRun again(without_clip(), folder.path().string());
  REQUIRE(again.resume(folder.path() / "checkpoints/step-00000005"));
  std::vector<std::string> swapped;
  again.on(Event::StepEnd, [&](vernier::Run& now) {
    for (const auto& role : now.swapped) swapped.push_back(role + std::to_string(now.step + 1));
  });
  again.train();
  CHECK(swapped == std::vector<std::string>{"precision8"});
  CHECK(again.digest() == run.digest());
}

TEST_CASE("control: a damaged record is refused, and half a line is cut off") {
  const Quiet quiet;
  const std::pair<const char*, const char*> cases[] = {
      {"nonsense\n", "commands.jsonl: line 1 is no command of a run"},
      {"{\"id\":1,\"command\":{\"command\":\"dance\"},\"moment\":1}\n", "line 1 is no command"},
      {"{\"id\":1,\"state\":\"done\"}\n{\"id\":2,\"command\":{\"command\":\"stop\"}}\n", "line 2 is no command"}};
  for (const auto& [text, message] : cases) {
    const TemporaryFolder folder;
    folder.write("commands.jsonl", text);
    Steered steered(folder);
    const auto thrown = thrown_by([&] { steered.train(); });
    CHECK(thrown.text.find(message) != std::string::npos);
  }
  const TemporaryFolder folder;
  folder.write("commands.jsonl", "{\"id\":4,\"state\":\"done\"}\n{\"id\":5,\"comm");
  Steered steered(folder, {{2, R"({"command": "save"})"}});
  const auto answers = steered.train();
  CHECK(answers.at(0).at("id") == 5);
  CHECK(read_text(folder / "commands.jsonl").find("comm{") == std::string::npos);
}

TEST_CASE("control: what is no command is refused, and changes nothing") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder);
  const std::pair<const char*, int> cases[] = {
      {"", 415},
      {"{", 400},
      {"[]", 422},
      {"{}", 422},
      {R"({"command": "dance"})", 422},
      {R"({"command": 1})", 422},
      {R"({"command": "pause", "more": 1})", 422},
      {R"({"command": "scale_learning_rate"})", 422},
      {R"({"command": "scale_learning_rate", "factor": "2"})", 422},
      {R"({"command": "scale_learning_rate", "factor": 0})", 422},
      {R"({"command": "scale_learning_rate", "factor": -1})", 422},
      {R"({"command": "scale_learning_rate", "factor": 1e300})", 422},
      {R"({"command": "swap"})", 422},
      {R"({"command": "swap", "roles": {}})", 422},
      {R"({"command": "swap", "roles": {"task": {"use": "mlp"}}})", 422},
      {R"({"command": "swap", "roles": {"optimizer": {"use": "sgd"}}})", 422},
      {R"({"command": "swap", "roles": {"precision": "bf16"}})", 422},
      {R"({"command": "swap", "roles": {"precision": {"use": "/tmp/evil.so"}}})", 422},
      {R"({"command": "swap", "roles": {"precision": {"use": "bf16", "x": null}}})", 422},
      {R"({"command": "swap", "roles": {"precision": {"use": "bf16", "x\u001b": 1}}})", 422},
      {R"({"command": "swap", "roles": {"precision": {"use": "bf16", "x": "\u009b2J"}}})", 422}};
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step != 3) return;
    const Client client(now.output);
    for (const auto& [body, status] : cases) {
      CAPTURE(body);
      const auto request = *body != 0 ? client.post_of(body)
                                      : request_of(client.port, "POST", "/v1/commands",
                                                   {{"Authorization", "Bearer " + client.tokens.at("control")}}, "x");
      CHECK(status_of(ask(client.port, request)) == status);
    }
    CHECK(status_of(client.post(std::string(R"({"command":)") + std::string(1000, '[') + "}")) == 422);
    CHECK(client.get_json("/v1/commands").at("commands").empty());
  });
  steered.train();
  CHECK(result_of(steered.run) == unsteered());
}

TEST_CASE("control: malformed requests end with 4xx or a closed connection, and the run's bits stay") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder);
  int tried = 0;
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step != 3) return;
    const Client client(now.output);
    const auto host = "Host: 127.0.0.1:" + std::to_string(client.port) + "\r\n";
    const auto token = "Authorization: Bearer " + client.tokens.at("control") + "\r\n";
    const auto json_type = std::string("Content-Type: application/json\r\n");
    const auto post = "POST /v1/commands HTTP/1.1\r\n" + host + token + json_type;
    const auto get = "GET /v1/run HTTP/1.1\r\n" + token;
    std::string many, zeros(4, '\0');
    for (int i = 0; i < 200; ++i) many += "a" + std::to_string(i) + ": b\r\n";
    const std::string requests[] = {
        "\r\n\r\n",
        "nonsense\r\n\r\n",
        zeros + "\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /v1/run\r\n\r\n",
        "GET /v1/run HTTP/0.9\r\n\r\n",
        "GET /v1/run HTTP/1.2\r\n" + host + token + "\r\n",
        "GET  /v1/run HTTP/1.1\r\n" + host + token + "\r\n",
        "get /v1/run HTTP/1.1\r\n" + host + token + "\r\n",
        "GET http://127.0.0.1/v1/run HTTP/1.1\r\n" + host + token + "\r\n",
        "GET * HTTP/1.1\r\n" + host + token + "\r\n",
        "GET /v1/r\xc3\xbcn HTTP/1.1\r\n" + host + token + "\r\n",
        std::string("GET /v1/r\0n HTTP/1.1\r\n", 22) + host + token + "\r\n",
        "CONNECT 127.0.0.1:80 HTTP/1.1\r\n" + host + token + "\r\n",
        get + "\r\n",                               // no Host
        get + host + host + "\r\n",                 // two
        get + "Host: evil.example\r\n\r\n",         // of another
        get + host + "Upgrade: websocket\r\n\r\n",  //
        get + host + "Expect: a miracle\r\n\r\n",   //
        get + host + token + "\r\n",                // two tokens
        get + host + "a b: c\r\n\r\n",              // a space in a name
        get + host + ": c\r\n\r\n",                 // no name
        get + host + "a : c\r\n\r\n",               // a space before the colon
        get + host + "a: b\rc: d\r\n\r\n",          // a bare CR
        get + host + "a: b" + zeros + "\r\n\r\n",   // NUL
        get + host + many + "\r\n",                 // many fields
        get + host + "a: " + std::string(100'000, 'x') + "\r\n\r\n",
        get + host + "Content-Length: 3\r\n\r\nabc",  // a body where there is none
        post + "Content-Length: -2\r\n\r\n{}",
        post + "Content-Length: +2\r\n\r\n{}",
        post + "Content-Length: 0x2\r\n\r\n{}",
        post + "Content-Length: 18446744073709551618\r\n\r\n{}",
        post + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        post + "Content-Length: 2, 2\r\n\r\n{}",
        post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        post + "Content-Length: 1000000000\r\n\r\n{}",
        post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        post + "Transfer-Encoding: xchunked\r\n\r\n{\"command\":\"stop\"}",
        post + "Transfer-Encoding: chunked, gzip\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        post + "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        post + "Transfer-Encoding: identity\r\n\r\n{}",
        post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        post + "Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
        post + "Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
        post + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n",
        post + "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n{}\r\n0\r\n\r\n",
        post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}more\r\n0\r\n\r\n",
        post + "Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n2\r\n{}\r\n0\r\na: b\r\n\r\n",
        post + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
        post + "Content-Length: 5\r\n\r\n" + zeros + "x",
        // Trailers come after the decision.
        "POST /v1/commands HTTP/1.1\r\n" + host + json_type +
            "Transfer-Encoding: chunked\r\n\r\n12\r\n{\"command\":\"stop\"}\r\n0\r\n" + token + "\r\n",
    };
    for (const auto& request : requests) {
      CAPTURE(request);
      const Connection connection(client.port);
      connection.send(request);
      connection.send_end();
      const auto answer = connection.read();
      const int status = status_of(answer);
      CHECK((answer.empty() || (status >= 400 && status < 500)));
      CHECK(answer.find("HTTP/1.1 2") == answer.npos);
      tried += 1;
    }
    // What is plain and unusual is taken.
    const auto whole =
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n12\r\n{\"command\":\"save\"}\r\n0\r\n\r\n";
    CHECK(status_of(ask(client.port, "GET /v1/run HTTP/1.0\r\n" + host + token + "\r\n")) == 200);
    CHECK(status_of(ask(client.port, get + host + "Connection: close\r\na: b\r\n c\r\n\r\n")) == 200);
    CHECK(client.get_json("/v1/commands").at("commands").empty());
    const Connection chunked(client.port);
    chunked.send(post + "Expect: 100-continue\r\n" + whole);
    CHECK(chunked.read("\r\n\r\n").starts_with("HTTP/1.1 100 Continue\r\n\r\n"));
    while (client.get_json("/v1/commands").at("commands").empty()) nap();
  });
  steered.train();
  CHECK(tried == 52);
  CHECK(result_of(steered.run).digest == unsteered().digest);
}

TEST_CASE("control: tokens that others could read, and addresses that others could reach, are refused") {
  const Quiet quiet;
  const std::pair<const char*, const char*> addresses[] = {{"0.0.0.0:80", "is reached by other machines"},
                                                           {"192.168.0.1:80", "is reached by other machines"},
                                                           {"[::]:80", "is reached by other machines"},
                                                           {"localhost:80", "is no address with a port"},
                                                           {"127.0.0.1", "is no address with a port"}};
  for (const auto& [listen, message] : addresses) {
    const auto thrown = thrown_by([&] {
      make_plugin<vernier::Callback>("callback/control", {{"listen", {std::string(listen), "test.toml:2"}}});
    });
    CHECK(thrown.kind == 2);
    CHECK(thrown.text.find(message) != std::string::npos);
  }
  const auto token = std::string(32, 'x');
  struct Case {
    std::string text;
    mode_t mode;
    const char* message;
  };
  const Case files[] = {{"control " + token + "\n", 0644, "others than its owner may use these tokens"},
                        {"control " + token + "\n", 0660, "others than its owner may use these tokens"},
                        {"control short\n", 0600, "line 1 must be"},
                        {"# a comment\nadmin " + token + "\n", 0600, "line 2 must be"},
                        {"# nothing\n", 0600, "has no tokens"}};
  for (const auto& each : files) {
    CAPTURE(each.text);
    const TemporaryFolder folder;
    const auto file = folder.write("control.tokens", each.text);
    ::chmod(file.c_str(), each.mode);
    Steered steered(folder);
    const auto thrown = thrown_by([&] { steered.train(); });
    CHECK(thrown.text.find(each.message) != std::string::npos);
  }
  const TemporaryFolder folder;
  fs::create_symlink("/etc/passwd", folder.path() / "control.tokens");
  Steered steered(folder);
  CHECK(thrown_by([&] { steered.train(); }).text.find("its tokens cannot be read") != std::string::npos);
}

TEST_CASE("control: tokens are made with mode 0600, and a file that changes is read again") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder);
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step != 3) return;
    const Client before(now.output);
    CHECK(before.tokens.at("read") != before.tokens.at("control"));
    CHECK(before.tokens.at("control").size() == 64);
    struct stat status {};
    ::stat((folder / "control.tokens").c_str(), &status);
    CHECK((status.st_mode & 0777) == 0600);
    CHECK(status_of(before.get("/v1/run")) == 200);
    const auto file = folder.write("new", "read " + std::string(40, 'r') + "\ncontrol " + std::string(40, 'c') + "\n");
    ::chmod(file.c_str(), 0600);
    fs::rename(file, folder.path() / "control.tokens");
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    CHECK(status_of(before.get("/v1/run")) == 401);
    CHECK(status_of(Client(now.output).get("/v1/run")) == 200);
  });
  steered.train();
}

TEST_CASE("control: `vernier replay` repeats a steered run bit for bit") {
  RunFolder place(std::string(base) + "[[callback]]\nuse = 'control'\n");
  Program program(
      {"train", "run.toml", "--quiet", "--set=run.steps=100000", "--set=run.output=out",
       "--set=checkpoint.every=1000000", "--set=run.validate_every=0", "--set=optimizer.learning_rate=1e-6"},
      place.folder.path());
  REQUIRE(program.wait_for(place.at("out/control.url")));
  REQUIRE(program.wait_until([&] { return read_text(place.at("out/control.url")).ends_with("\n"); }));
  const Client client(place.at("out"));
  const auto steps = [&](const std::string& command) {
    const auto answer = client.post(command);
    CHECK(status_of(answer) == 200);
    return json::parse(body_of(answer)).at("step").get<std::int64_t>();
  };
  steps(halve);
  const auto swapped = steps(to_bf16);
  while (client.get_json("/v1/run").at("step") < swapped + 5) nap();
  const auto last = steps(R"({"command": "stop"})");
  CHECK(program.wait() == 0);
  CHECK(place.summary().at("finished_by") == "callback/control: command 3 stopped it");
  fs::remove_all(place.at("out/checkpoints"));  // from the first step on
  place.call({"replay", "out", "--step", std::to_string(last)});
  CHECK(place.out.find("same bits") != std::string::npos);
  fs::remove(place.at("out/commands.jsonl"));
  place.call({"replay", "out", "--step", std::to_string(last)});
  CHECK(place.out.find("same bits") == std::string::npos);
}

}  // namespace control_test
