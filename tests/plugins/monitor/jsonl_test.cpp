#include <doctest/doctest.h>
#include <sys/resource.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "log_lines.h"
#include "plugin_library.h"
#include "temporary_folder.h"

namespace jsonl_test {

using vernier::Event;
using vernier::Monitor;
using Json = nlohmann::ordered_json;

namespace {

vernier::Table table(const std::string& file, std::int64_t every) {
  return {{"file", {file, "test.toml:2"}}, {"every", {every, "test.toml:3"}}};
}

// Acts as the trainer, with given losses.
struct Fixture {
  explicit Fixture(const TemporaryFolder& folder, vernier::Table options = {}, std::int64_t first_step = 0,
                   const vernier::State* saved = nullptr)
      : path(folder / "losses.jsonl"), plugin(make_plugin<Monitor>("monitor/jsonl", std::move(options))) {
    vernier::HostApi::attach(bus, *plugin, true);
    if (saved != nullptr) plugin->load(*saved);
    run.output = folder.path().string();
    run.steps = 1000;
    run.step = run.updates = first_step;
    vernier::HostApi::emit(bus, Event::RunBegin, run);
  }

  void step(double loss = 0.5) {
    run.loss = torch::full({}, loss, torch::kFloat32);
    run.updates += 1;
    run.step += 1;
    vernier::HostApi::emit(bus, Event::StepEnd, run);
    run.notices.clear();
  }

  void validate(double loss, double bits = 0.5) {
    vernier::HostApi::clear(run.metrics);
    run.metrics.set("bits_per_byte", bits);
    run.metrics.set("validation_loss", loss);
    vernier::HostApi::emit(bus, Event::Validated, run);
    vernier::HostApi::clear(run.metrics);
  }

  std::string text() const { return read_text(path); }

  std::vector<Json> lines() const {
    std::vector<Json> lines;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  std::string path;
  vernier::TrainerRun run;
  std::unique_ptr<Monitor> plugin;
  vernier::Bus bus;
};

// As a full disk: while it lives, this process makes no file longer than so many bytes.
class SizeLimit {
 public:
  explicit SizeLimit(std::size_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  SizeLimit(const SizeLimit&) = delete;
  SizeLimit& operator=(const SizeLimit&) = delete;
  ~SizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

std::vector<std::string> warnings;
void collect_warnings(vernier::Level, const std::string& who, const std::string& text) {
  warnings.push_back(who + ": " + text);
}

}  // namespace

TEST_CASE("jsonl: a line a step with every metric, and one a validation") {
  const TemporaryFolder folder;
  Fixture fixture(folder);
  fixture.run.metrics.set("learning_rate", 3e-4);
  fixture.run.metrics.set("scale", torch::full({}, 65536.0));
  fixture.step(0.25);
  fixture.validate(1.5);
  fixture.step(0.125);
  vernier::HostApi::emit(fixture.bus, Event::RunEnd, fixture.run);
  CHECK(fixture.text() ==
        "{\"step\":1,\"loss\":0.25,\"learning_rate\":0.0003,\"scale\":65536,\"updates\":1}\n"
        "{\"step\":1,\"validation_loss\":1.5,\"bits_per_byte\":0.5}\n"
        "{\"step\":2,\"loss\":0.125,\"updates\":2}\n");
}

TEST_CASE("jsonl: a metric that is not a number does not detach it") {
  const TemporaryFolder folder;
  Fixture fixture(folder);
  CHECK_THROWS_AS(fixture.run.metrics.set("three", torch::ones({3})), vernier::Error);
  fixture.run.metrics.set("one", 1.0);
  fixture.step(0.25);
  vernier::HostApi::emit(fixture.bus, Event::RunEnd, fixture.run);
  CHECK(fixture.text() == "{\"step\":1,\"loss\":0.25,\"one\":1,\"updates\":1}\n");
}

TEST_CASE("jsonl: overflows are counted from the first step that a scaler checked") {
  const TemporaryFolder folder;
  Fixture fixture(folder);
  fixture.run.amp.add({.is_amp = false});
  fixture.step();
  fixture.run.found_inf = torch::zeros({});  // a scaler has taken over
  for (const bool overflowed : {false, true, true, false}) {
    fixture.run.amp.add({.overflowed = overflowed});
    fixture.run.amp.set_scale(fixture.run.step + 2, 64);
    fixture.step();
  }
  fixture.run.found_inf.reset();  // and has left
  fixture.step();
  vernier::HostApi::emit(fixture.bus, Event::RunEnd, fixture.run);
  const auto lines = fixture.lines();
  REQUIRE(lines.size() == 6);
  CHECK_FALSE(lines[0].contains("overflows"));
  for (std::size_t i = 1; i < 6; ++i) CHECK(lines[i]["overflows"] == std::vector{0, 0, 1, 2, 2, 2}[i]);
  CHECK(lines[2].dump() == R"({"step":3,"loss":0.5,"updates":3,"overflows":1})");
}

TEST_CASE("jsonl: numbers read back exactly, and what JSON lacks is a word") {
  const TemporaryFolder folder;
  Fixture fixture(folder);
  const double third = 1.0 / 3, tiny = std::numeric_limits<double>::denorm_min();
  fixture.run.metrics.set("third", third);
  fixture.run.metrics.set("tiny", tiny);
  fixture.run.metrics.set("large", 1e300);
  fixture.run.metrics.set("whole", 0x1p53 - 1);
  fixture.run.metrics.set("minus_zero", -0.0);
  fixture.run.metrics.set("minus", -std::numeric_limits<double>::infinity());
  fixture.step(std::nan(""));
  vernier::HostApi::clear(fixture.run.metrics);
  fixture.step(std::numeric_limits<double>::infinity());
  fixture.step(0.1);
  vernier::HostApi::emit(fixture.bus, Event::RunEnd, fixture.run);
  const auto lines = fixture.lines();
  REQUIRE(lines.size() == 3);
  CHECK(lines[0]["loss"] == "nan");
  CHECK(lines[0]["third"] == third);
  CHECK(lines[0]["tiny"] == tiny);
  CHECK(lines[0]["large"] == 1e300);
  CHECK(lines[0]["whole"].dump() == "9007199254740991");
  CHECK(std::signbit(lines[0]["minus_zero"].get<double>()));
  CHECK(lines[0]["minus"] == "-inf");
  CHECK(lines[1]["loss"] == "inf");
  CHECK(static_cast<float>(lines[2]["loss"].get<double>()) == 0.1F);
}

TEST_CASE("jsonl: notices stand with their step, checkpoints are left out") {
  const TemporaryFolder folder;
  Fixture fixture(folder);
  fixture.run.notice("checkpoint_saved", {{"path", std::string("somewhere")}});
  fixture.step();
  fixture.run.notice("scale_changed", {{"from", 65536.0}, {"to", std::int64_t{32768}}});
  fixture.run.notice("recovered", {{"what", std::string("\"a\\b\"\n\x01ü")}});
  fixture.step();
  fixture.run.notice("out_of_memory");
  vernier::HostApi::emit(fixture.bus, Event::RunEnd, fixture.run);
  const auto lines = fixture.lines();
  REQUIRE(lines.size() == 3);
  CHECK_FALSE(lines[0].contains("notices"));
  CHECK(lines[1]["notices"][0] == Json{{"name", "scale_changed"}, {"from", 65536}, {"to", 32768}});
  CHECK(lines[1]["notices"][1]["what"] == "\"a\\b\"\n\x01ü");
  CHECK(lines[2].dump() == R"({"step":2,"notices":[{"name":"out_of_memory"}]})");
}

TEST_CASE("jsonl: every leaves steps out, but none with notices and not the last") {
  const TemporaryFolder folder;
  Fixture fixture(folder, table("losses.jsonl", 4));
  fixture.run.steps = 10;
  for (int i = 1; i <= 10; ++i) {
    if (i == 6) fixture.run.notice("step_skipped");
    fixture.step();
  }
  vernier::HostApi::emit(fixture.bus, Event::RunEnd, fixture.run);
  std::vector<int> steps;
  for (const auto& line : fixture.lines()) steps.push_back(line["step"]);
  CHECK(steps == std::vector<int>{4, 6, 8, 10});
}

TEST_CASE("jsonl: a resumed run's file is that of a run that was never stopped, byte for byte") {
  const auto train = [](Fixture& fixture, std::int64_t to) {
    while (fixture.run.step < to) {
      const auto step = fixture.run.step;
      fixture.run.metrics.set("learning_rate", 1.0 / static_cast<double>(step + 1));
      if (step % 7 == 3) fixture.run.notice("step_skipped", {{"step", step + 1}});
      fixture.step(std::sin(static_cast<double>(step)));
      if (fixture.run.step % 10 == 0) fixture.validate(std::cos(static_cast<double>(step)));
      vernier::HostApi::clear(fixture.run.metrics);
      if (fixture.run.step % 15 == 0) {
        fixture.plugin->save();
        fixture.run.notice("checkpoint_saved", {{"path", std::string("x")}});
      }
    }
  };
  const TemporaryFolder whole_folder;
  Fixture whole(whole_folder);
  train(whole, 50);
  vernier::HostApi::emit(whole.bus, Event::RunEnd, whole.run);

  for (const std::int64_t killed_at : {30, 31, 44}) {
    for (const std::string tail : {"", "{\"step\":45,\"lo", "{\"step\":31}\n{\"step\":32}\n"}) {
      CAPTURE(killed_at);
      CAPTURE(tail);
      const TemporaryFolder folder;
      {
        Fixture killed(folder);
        train(killed, killed_at);  // no RunEnd: lines since the last checkpoint may be lost
        CHECK(killed.text().find("{\"step\":30,\"validation_loss\"") != std::string::npos);
      }
      std::ofstream(folder / "losses.jsonl", std::ios::app) << tail;
      Fixture resumed(folder, {}, 30);
      train(resumed, 50);
      vernier::HostApi::emit(resumed.bus, Event::RunEnd, resumed.run);
      CHECK(resumed.text() == whole.text());
    }
  }
}

TEST_CASE("jsonl: whatever a loss of power took, lines before are whole, and all that come after are there") {
  static std::vector<std::string> warnings;
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) { warnings.push_back(text); });
  const TemporaryFolder whole_folder;
  Fixture whole(whole_folder);
  const auto train = [](Fixture& fixture, std::int64_t to) {
    while (fixture.run.step < to) fixture.step(std::sin(static_cast<double>(fixture.run.step)));
  };
  train(whole, 20);
  const auto state = whole.plugin->save();
  const auto before = whole.text();
  train(whole, 30);
  vernier::HostApi::emit(whole.bus, Event::RunEnd, whole.run);
  const auto after = whole.text().substr(before.size());

  std::mt19937 random(7);
  const auto below = [&](std::size_t end) { return std::size_t{random()} % end; };
  for (int i = 0; i < 300; ++i) {
    auto damaged = whole.text();  // on the disk there may be more than the checkpoint counts
    const auto begin = below(damaged.size());
    switch (i % 3) {
      case 0:  // the end is missing
        damaged.resize(begin);
        break;
      case 1: {  // room without its bytes, and whole lines after it
        const auto count = 1 + below(damaged.size() - begin);
        damaged.replace(begin, count, std::string(count, '\0'));
        break;
      }
      case 2:  // both
        damaged.resize(begin);
        damaged += std::string(below(100), '\0');
    }
    CAPTURE(damaged);
    const TemporaryFolder folder;
    folder.write("losses.jsonl", damaged);
    warnings.clear();
    Fixture resumed(folder, {}, 20, &state);
    train(resumed, 30);
    vernier::HostApi::emit(resumed.bus, Event::RunEnd, resumed.run);
    auto kept = resumed.text();
    REQUIRE(kept.ends_with(after));
    kept.resize(kept.size() - after.size());
    CHECK(before.starts_with(kept));
    CHECK((kept.empty() || kept.ends_with('\n')));
    const bool has_all = damaged.starts_with(before);
    CHECK((kept == before) == has_all);
    const auto lost = 20 - std::count(kept.begin(), kept.end(), '\n');
    CHECK(warnings.size() == (has_all ? 0 : 1));
    const auto text = resumed.path + ": has lost " + std::to_string(lost) + " of the 20 lines up to step 20";
    if (!has_all) CHECK(warnings.front().starts_with(text));
  }
  vernier::set_log_sink(nullptr);
}

TEST_CASE("jsonl: lines are on the disk when a checkpoint is written, and when the run fails") {
  const TemporaryFolder folder;
  Fixture fixture(folder);
  fixture.step();
  fixture.step();
  fixture.plugin->save();
  CHECK(fixture.lines().size() == 2);
  fixture.step();
  fixture.run.notice("out_of_memory");
  vernier::HostApi::emit(fixture.bus, Event::RunFailed, fixture.run);
  const auto lines = fixture.lines();
  REQUIRE(lines.size() == 4);
  CHECK(lines[3]["step"] == 4);
}

TEST_CASE("jsonl: a disk that stays full is reported once, and at the end how many lines are missing") {
  warnings.clear();
  vernier::set_log_sink(collect_warnings);
  const TemporaryFolder folder;
  Fixture fixture(folder, table("/dev/full", 1));
  fixture.step();
  fixture.plugin->save();  // must not throw: it would end the run
  fixture.step();
  vernier::HostApi::emit(fixture.bus, Event::RunEnd, fixture.run);
  CHECK(warnings == std::vector<std::string>{
                        "monitor/jsonl: /dev/full: cannot be written: No space left on device; lines wait in memory "
                        "until it can be, and those beyond 1 MB are lost",
                        "monitor/jsonl: /dev/full: lines that are missing at its end: 2"});
  vernier::set_log_sink(nullptr);
}

TEST_CASE("jsonl: when there is room again the lines that waited are written, and none is half") {
  warnings.clear();
  vernier::set_log_sink(collect_warnings);
  const TemporaryFolder folder;
  Fixture fixture(folder);
  fixture.step();
  const auto before = fixture.text();
  for (const std::size_t room : {0, 10}) {
    const SizeLimit limit(before.size() + room);
    fixture.step();
    fixture.plugin->save();
    CHECK(fixture.text() == before);
  }
  CHECK(warnings.size() == 1);
  fixture.step();
  vernier::HostApi::emit(fixture.bus, Event::RunEnd, fixture.run);
  CHECK(fixture.lines().size() == 4);
  CHECK(warnings == std::vector<std::string>{
                        "monitor/jsonl: " + fixture.path +
                            ": cannot be written: File too large; lines wait in memory until it can be, and "
                            "those beyond 1 MB are lost",
                        "monitor/jsonl: " + fixture.path + ": can be written again; lines that are missing: 0"});
  vernier::set_log_sink(nullptr);
}

TEST_CASE("jsonl: where too many lines wait the next ones are lost, counted, and no trouble when the run resumes") {
  warnings.clear();
  vernier::set_log_sink(collect_warnings);
  const TemporaryFolder folder;
  Fixture fixture(folder);
  fixture.step();
  constexpr int steps = 1500;
  {
    const SizeLimit limit(fixture.text().size() + 10);
    for (int i = 0; i < steps; ++i) {
      fixture.run.notice("recovered", {{"what", std::string(1000, 'x')}});
      fixture.step();
    }
  }
  fixture.step();
  const auto state = fixture.plugin->save();
  const auto lines = fixture.lines();
  const auto lost = steps + 2 - static_cast<int>(lines.size());
  CHECK(lost > 400);
  CHECK(lost < 600);
  CHECK(lines.back()["step"] == steps + 2);
  CHECK(state.integer("lines") == static_cast<std::int64_t>(lines.size()));
  REQUIRE(warnings.size() == 2);
  CHECK(warnings[1].ends_with(": can be written again; lines that are missing: " + std::to_string(lost)));
  const auto before = fixture.text();
  Fixture resumed(folder, {}, steps + 2, &state);
  CHECK(resumed.text() == before);
  CHECK(warnings.size() == 2);
  vernier::set_log_sink(nullptr);
}

TEST_CASE("jsonl: a file that cannot be made is reported with its path") {
  const NoLog no_log;
  const TemporaryFolder folder;
  Fixture fixture(folder, table("no/such/folder.jsonl", 1));
  fixture.step();
  vernier::HostApi::emit(fixture.bus, Event::RunEnd, fixture.run);
  CHECK_THROWS_AS(make_plugin<Monitor>("monitor/jsonl", table("", 1)), vernier::Error);
  CHECK_THROWS_AS(make_plugin<Monitor>("monitor/jsonl", table("x", 0)), vernier::Error);
}

}  // namespace jsonl_test
