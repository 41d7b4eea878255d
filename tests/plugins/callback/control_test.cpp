// callback/control: what each command does and after which step, and that the bits of a run are those of its commands.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <vernier/error.h>

#include "run_folder.h"
#include "steered.h"
#include "thrown.h"

namespace control_test {

using namespace steered;

TEST_CASE("control: a run that nobody steers has the same bits as without it") {
  const Quiet quiet;
  const TemporaryFolder folder;
  folder.write("status.json", R"({"precision": "precision/fp32", "scaler": "scaler/dynamic", "scale": 1, "step": 1})");
  Steered steered(folder);
  std::string seen;
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step != 10) return;
    seen = Client(now.output).get("/v1/run");
    const auto status = json::parse(body_of(seen)).at("status");
    CHECK(status.at("precision") == "precision/fp32");
    CHECK(status.at("step") == 10);
    CHECK(status.at("scale") == now.amp.current_scale().value());
    CHECK(status.at("growth_tracker") == now.amp.growth_tracker().value());
  });
  steered.train();
  CHECK(status_of(seen) == 200);
  CHECK(result_of(steered.run) == unsteered());
  CHECK_FALSE(fs::exists(folder / "control.url"));
}

namespace {

struct Command {
  const char* command;
  const char* state;
  const char* answer;  // a part of it
  bool is_same;        // the run equals one that nobody steers
};

const Command commands[] = {
    {R"({"command": "save"})", "done", "checkpoint/rolling has got the run as it is after step 7", true},
    {R"({"command": "validate"})", "done", "the validation loss is ", true},
    {R"({"command": "resume"})", "done", "the run goes on after step 7", true},
    {halve, "done", "the learning rate is 0.5 times that of its schedule", false},
    {to_bf16, "done", "precision/bf16 takes over", false},
    {R"({"command": "swap", "roles": {"accumulation": {"use": "fixed", "micro_batches": 2}}})", "done",
     "accumulation/fixed takes over", false},
    {R"({"command": "set_interval", "monitor": "jsonl", "every": 5.0})", "done", "monitor/jsonl looks every 5 steps",
     true},
    {R"({"command": "set_interval", "monitor": "csv", "every": 5})", "refused", "the run has no monitor/csv", true},
    {R"({"command": "swap", "roles": {"scaler": {"use": "none"}, "precision": {"use": "fp16"}}})", "refused",
     "needs a loss scaler", true},
    {R"({"command": "swap", "roles": {"precision": {"use": "bf16", "typo": 1}}})", "refused", "typo", true},
    {R"({"command": "swap", "roles": {"precision": {"use": "none_such"}}})", "refused", "no precision is called",
     true}};

// Checks the file of the commands, which has the command and its answer.
void check_log(const std::string& path, const Command& each) {
  std::vector<json> lines;
  std::istringstream file(read_text(path));
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("command") == json::parse(each.command));
  CHECK(lines[0].at("step") == 7);
  CHECK(lines[1].at("state") == each.state);
  struct stat status {};
  ::stat(path.c_str(), &status);
  CHECK((status.st_mode & 0777) == 0600);
}

}  // namespace

TEST_CASE("control: each command acts between two steps, and is answered with what happened and after which step") {
  const Quiet quiet;
  const auto without = unsteered();
  for (const auto& each : commands) {
    CAPTURE(each.command);
    const TemporaryFolder folder;
    Steered steered(folder, {{7, each.command}});
    std::vector<double> rates;
    std::vector<std::int64_t> validated, swapped;
    steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
      rates.push_back(now.metrics.value("learning_rate").value_or(0));
      if (!now.swapped.empty()) swapped.push_back(now.step);
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
    check_log(folder / "commands.jsonl", each);
  }
}

TEST_CASE("control: stop ends the run with a validation and a checkpoint, a longer run goes on from there") {
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

TEST_CASE("control: a validation that is the best is saved, and early_stopping puts its weights back at a stop") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder, {{7, R"({"command": "validate"})"}, {12, R"({"command": "stop"})"}},
                  "[checkpoint]\nevery = 0\nkeep_best = 1\n[[callback]]\nuse = 'early_stopping'\nmin_delta = 1e9\n");
  std::string best;
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step == 7) best = steered.run.digest();
    if (now.step == 8) CHECK(fs::exists(folder.path() / "checkpoints/step-00000007"));
  });
  steered.train();
  CHECK(steered.run.run.step == 12);
  CHECK(steered.outcome.finished == "callback/control: command 2 stopped it");
  CHECK(steered.run.digest() == best);
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

TEST_CASE("control: a monitor's interval is changed, and stays so in a resumed run and where the command is repeated") {
  const Quiet quiet;
  const auto lines_of = [](const fs::path& run) {
    std::vector<std::int64_t> steps;
    std::istringstream file(read_text(run / "losses.jsonl"));
    for (std::string line; std::getline(file, line);) {
      const auto values = json::parse(line);
      if (values.contains("loss")) steps.push_back(values.at("step"));
    }
    return steps;
  };
  const TemporaryFolder folder;
  Steered steered(folder, {{7, R"({"command": "set_interval", "monitor": "jsonl", "every": 4})"}});
  CHECK(steered.train().at(0).at("state") == "done");
  // A step with a notice has a line, too: the scale grows after each third one.
  const std::vector<std::int64_t> lines = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 18, 20};
  CHECK(lines_of(folder.path()) == lines);
  CHECK(steered.run.digest() == unsteered().digest);
  for (const auto* from : {"step-00000005", "step-00000010"}) {
    CAPTURE(from);
    const TemporaryFolder copy;
    fs::copy(folder.path(), copy.path(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    SmallRun resumed(from_toml({base, with_control}), copy.path().string());
    REQUIRE(resumed.resume(copy.path() / "checkpoints" / from));
    resumed.train();
    CHECK(lines_of(copy.path()) == lines);
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
    if (now.step != 7) return;
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
    for (const auto& role : now.swapped) swapped.push_back(role + std::to_string(now.step));
  });
  again.train();
  CHECK(swapped == std::vector<std::string>{"precision8"});
  CHECK(again.digest() == run.digest());
}

TEST_CASE("control: a damaged record is refused, and half a line is cut off") {
  const Quiet quiet;
  const std::pair<const char*, const char*> cases[] = {
      {"nonsense\n", "commands.jsonl: line 1 is not a command of a run"},
      {"{\"id\":1,\"command\":{\"command\":\"dance\"},\"moment\":1}\n", "line 1 is not a command"},
      {"{\"id\":1,\"state\":\"done\"}\n{\"id\":2,\"command\":{\"command\":\"stop\"}}\n", "line 2 is not a command"}};
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

TEST_CASE("control: `vernier replay` repeats a steered run bit for bit" * doctest::test_suite("lab")) {
  RunFolder place(base + "[[callback]]\nuse = 'control'\n");
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
