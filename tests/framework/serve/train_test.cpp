// Jobs that train, given by the client as a person gives them.
#include <fstream>

#include "job_server.h"
#include "program.h"

namespace train_test {

using namespace job_server;

namespace {

constexpr const char* config = R"([run]
steps = 6000
validate_every = 2000
device = "cpu"
[task]
use = "mlp"
samples = 64
[optimizer]
use = "adamw"
[checkpoint]
every = 500
async = false
)";

// `vernier jobs`, with the server's folder.
struct Client {
  const JobServer& server;
  const TemporaryFolder& folder;

  int operator()(std::vector<std::string> words, std::string* out = nullptr) const {
    words.insert(words.begin(), "jobs");
    words.insert(words.end(), {"--folder", server.path().string()});
    Program program(words, folder.path());
    const int status = program.wait();
    if (out != nullptr) *out = program.out() + program.err();
    return status;
  }
  std::string text(const std::vector<std::string>& words) const {
    std::string out;
    (*this)(words, &out);
    return out;
  }
};

std::string digest_of(const fs::path& run) {
  return Json::parse(read_text(run / "summary.json")).at("digest").get<std::string>();
}

// Waits until the run of job 1 has done a step: before that, there is nothing to save or to resume.
bool waits_for_step(const JobServer& server) {
  return wait_until([&] {
    const auto answer = server.get("/v1/jobs/1/run");
    return answer.status == 200 && answer.body.at("step") > 0;
  });
}

// The digest of the same run without a server.
std::string plain_digest(const TemporaryFolder& folder) {
  Program program({"train", folder / "run.toml", "--quiet", "--set", "run.threads=1", "--set", "run.output=plain"},
                  folder.path());
  REQUIRE(program.wait() == 0);
  return digest_of(folder.path() / "plain");
}

bool has(const std::string& text, const std::string& part) {
  const bool is_there = text.find(part) != std::string::npos;
  if (!is_there) MESSAGE("no ", part, " in ", text);
  return is_there;
}

}  // namespace

TEST_CASE("jobs: submitted, paused, over a killed server, cancelled and tried again: the bits of a plain run") {
  const TemporaryFolder folder;
  folder.write("run.toml", config);
  JobServer server({"--cores", "2"}, /*with_script=*/false);
  const Client jobs{server, folder};
  REQUIRE(jobs.text({"submit", "run.toml"}) == "job 1 is queued\n");
  REQUIRE(waits_for_step(server));
  CHECK(has(jobs.text({"pause", "1"}), ": the run waits after step "));
  server.restart();
  CHECK(server.state(1) == "running");
  CHECK(has(jobs.text({"list"}), "1   run   control  running  1 "));
  CHECK(server.get("/v1/jobs/1/run").body.at("state") == "paused");
  CHECK(server.get("/v1/jobs/1/history?metric=loss&points=10").body.at("metric") == "loss");
  CHECK(server.get("/v1/jobs/1/history?metric=none").status == 404);
  CHECK(has(jobs.text({"show", "1"}), "\nloss "));
  CHECK(jobs.text({"cancel", "1"}) == "job 1 is ending\n");
  REQUIRE(server.waits_for(1, "cancelled"));
  CHECK(server.get("/v1/jobs/1/run").status == 409);
  CHECK(has(jobs.text({"logs", "1"}), "resume with:  vernier jobs retry 1\n"));
  // As a killed process leaves it.
  const auto run = server.path() / "jobs/1/run";
  std::ofstream(run / "control.url") << "http://127.0.0.1:1/\n";
  const auto tokens = read_text(run / "control.tokens");
  CHECK(jobs.text({"retry", "1"}) == "job 1 is queued\n");
  REQUIRE(server.waits_for(1, "done"));
  const auto log = jobs.text({"logs", "1"});
  CHECK(has(log, "resumed after step "));
  CHECK(has(log, "done after 6000 steps"));
  CHECK(log.find("try next") == std::string::npos);
  CHECK(log.find("server.toml") == std::string::npos);
  CHECK(read_text(run / "control.tokens") != tokens);
  CHECK(digest_of(server.path() / "jobs/1/run") == plain_digest(folder));
  CHECK(jobs.text({"remove", "1"}) == "job 1 is removed\n");
  CHECK(jobs.text({"list"}) == "there are no jobs\n");
}

TEST_CASE("jobs: a run is steered through the server, and stopped") {
  const TemporaryFolder folder;
  folder.write("run.toml", config);
  folder.write("more.toml", "[run]\nname = \"steered\"\nsteps = 100000000\n");
  JobServer server({"--cores", "1"}, /*with_script=*/false);
  const Client jobs{server, folder};
  REQUIRE(jobs({"submit", "run.toml", "more.toml", "--set", "run.validate_every=0", "--name", "mine"}) == 0);
  REQUIRE(waits_for_step(server));
  REQUIRE(jobs({"pause", "1"}) == 0);
  CHECK(has(jobs.text({"swap", "1", "precision=bf16"}), ": precision/bf16 takes over\n"));
  CHECK(jobs({"swap", "1", "precision=none_such"}) == 1);
  std::ofstream(server.path() / "tokens", std::ios::app) << "admin " << std::string(64, 'a') << " grace\n";
  REQUIRE(wait_until([&] { return server.ask_as(std::string(64, 'a'), "GET", "/v1/jobs").status == 200; }));
  CHECK(server.ask_as(std::string(64, 'a'), "POST", "/v1/jobs/1/commands", R"({"command": "pause"})").status == 200);
  const auto commands = read_text(server.path() / "jobs/1/run/commands.jsonl");
  CHECK(has(commands, "\"who\":\"control\""));
  CHECK(has(commands, "\"who\":\"grace\""));
  CHECK(has(jobs.text({"swap", "1", "precision=/x/y"}), "a job names plugins, and not files"));
  CHECK(has(jobs.text({"interval", "1", "jsonl", "100"}), ": monitor/jsonl looks every 100 steps\n"));
  CHECK(has(jobs.text({"interval", "1", "jsonl"}), "say which monitor, and how often"));
  CHECK(has(jobs.text({"save", "1"}), "checkpoint/rolling"));
  CHECK(jobs({"resume", "1"}) == 0);
  CHECK(has(jobs.text({"stop", "1"}), "the run ends"));
  REQUIRE(server.waits_for(1, "done"));
  CHECK(has(jobs.text({"show", "1", "--json"}), "\"name\":\"mine\""));
  CHECK(has(jobs.text({"show", "1"}), "name = \"steered\""));
  CHECK(has(jobs.text({"pause", "1"}), "the job is done"));
}

TEST_CASE("jobs: the quickstart is a job, where the server may read its data") {
  const TemporaryFolder folder;
  const std::string source = VERNIER_SOURCE_DIR;
  JobServer closed({"--cores", "1"}, /*with_script=*/false);
  JobServer server({"--cores", "1", "--data", source}, /*with_script=*/false);
  const auto submit = [&](const JobServer& to, std::string& out) {
    Program program(
        {"jobs", "--folder", to.path().string(), "submit", "configs/quickstart.toml", "--set", "run.steps=2", "--set",
         "run.validate_every=0", "--set", "callback.schedule.warmup_steps=0", "--set", "task.layers=1", "--follow"},
        source);
    const int status = program.wait();
    out = program.out() + program.err();
    return status;
  };
  std::string out;
  CHECK(submit(closed, out) == 2);
  CHECK(has(out, source + "/README.md\": this path is not below a data folder of the server; its option --data"));
  CHECK(submit(server, out) == 0);
  CHECK(has(out, "task.data: README.md is " + source + "/README.md\n"));
  CHECK(has(out, "done after 2 steps"));
  // A text that names nothing here stays.
  CHECK(has(server.job(1).at("config").get<std::string>(), "use = \"gpt\""));
}

TEST_CASE("jobs: what is wrong is said in one line, and by the exit code") {
  const TemporaryFolder folder;
  folder.write("run.toml", config);
  folder.write("short.toml", std::string(config) + "[run.extra]\n");
  folder.write("open", "control " + std::string(40, 'x') + "\n");
  JobServer server({"--cores", "1"}, /*with_script=*/false);
  const Client jobs{server, folder};
  const struct {
    std::vector<std::string> words;
    int status;
    std::string text;
  } cases[] = {{{}, 2, "say what to do"},
               {{"dance"}, 2, "vernier jobs has no command dance"},
               {{"show"}, 2, "name a job by its number"},
               {{"show", "x"}, 2, "name a job by its number"},
               {{"show", "1"}, 2, "there is no such job"},
               {{"show", "1", "2"}, 2, "2 is too much"},
               {{"submit"}, 2, "name a TOML file"},
               {{"submit", "none.toml"}, 2, "none.toml: there is no such file"},
               {{"submit", "run.toml", "--cores", "2"}, 2, "cores must be a whole number from 1 to 1"},
               {{"submit", "run.toml", "--set", "task.data=/etc/passwd"}, 2, "not below a data folder"},
               {{"submit", "run.toml", "--set", "run.no_such=1", "--follow"}, 1, "no_such"},
               {{"submit", "run.toml", "--set", "run.steps=5", "--follow"}, 0, "done after 5 steps"},
               {{"list", "--server", "127.0.0.1"}, 2, "is not an address of a server"},
               {{"list", "--server", "http://127.0.0.1:1"}, 2, "127.0.0.1:1: "},
               {{"list", "--token-file", "none"}, 2, "none: the token cannot be read"},
               {{"list", "--token-file", "open"}, 2, "others may read the token"}};
  for (const auto& each : cases) {
    std::string out;
    CAPTURE(each.text);
    CHECK(jobs(each.words, &out) == each.status);
    CHECK(has(out, each.text));
  }
  CHECK(has(server.job(1).at("error").get<std::string>(), "it ended with exit code 2: "));
}

}  // namespace train_test
