#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <regex>
#include <thread>

#include "plugin_library.h"
#include "pseudo_terminal.h"

namespace progress_test {

using vernier::Event;
using vernier::Monitor;
using vernier::Run;

namespace {

template <class T>
vernier::Table option(const char* key, T value) {
  return {{key, {value, "test.toml:2"}}};
}
vernier::Table every_step() {
  return option("interval", 0.0);
}

// Acts as the trainer around the monitor alone.
struct Fixture {
  explicit Fixture(int columns, vernier::Table options = {})
      : screen(columns), plugin(make_plugin<Monitor>("monitor/progress", std::move(options))) {
    ::setenv("LC_ALL", "C.UTF-8", 1);
    vernier::HostApi::attach(bus, *plugin, true);
    run.steps = 100;
  }
  ~Fixture() { ::unsetenv("LC_ALL"); }
  void begin() { vernier::HostApi::emit(bus, Event::RunBegin, run); }
  void step(double loss = 1.25, bool skipped = false) {
    run.updates += skipped ? 0 : 1;
    run.metrics.set("learning_rate", 3e-4);
    run.loss = torch::full({}, loss, torch::kFloat32);
    run.samples += 8;
    run.step += 1;
    vernier::HostApi::emit(bus, Event::StepEnd, run);
    run.notices.clear();
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  void validate() {
    vernier::HostApi::clear(run.metrics);
    run.metrics.set("bits_per_byte", 2.786);
    run.metrics.set("validation_loss", 1.9312);
    vernier::HostApi::emit(bus, Event::Validated, run);
    vernier::HostApi::clear(run.metrics);
  }
  void end() { vernier::HostApi::emit(bus, Event::RunEnd, run); }

  const std::vector<std::string>& seen() {
    screen.read();
    return screen.drawing.lines();
  }

  StandardError screen;
  vernier::TrainerRun run;
  std::unique_ptr<Monitor> plugin;
  vernier::Bus bus;
};

bool matches(const std::string& text, const char* pattern) {
  return std::regex_match(text, std::regex(pattern));
}

}  // namespace

TEST_CASE("progress: reports how many updates were skipped, and the underflow as it was measured last") {
  Fixture fixture(0, option("every", std::int64_t{10}));
  fixture.begin();
  fixture.steps(10);
  fixture.run.metrics.set("underflow", torch::scalar_tensor(0.0123));
  for (int i = 0; i < 10; ++i) {
    fixture.step(1.25, i < 2);
    vernier::HostApi::clear(fixture.run.metrics);
  }
  const auto& lines = fixture.seen();
  REQUIRE(lines.size() == 3);  // the cursor stands in an empty one
  CHECK(lines[0].find("skipped") == std::string::npos);
  CHECK(lines[1].find("skipped 2 (10%)  underflow 1.2%") != std::string::npos);
}

TEST_CASE("progress: reports how many steps overflowed, with their share of those that were checked") {
  Fixture fixture(0, option("every", std::int64_t{10}));
  fixture.begin();
  for (int i = 0; i < 30; ++i) {
    fixture.run.amp.add({.is_amp = i >= 5, .overflowed = i == 12 || i == 13 || i == 25});
    fixture.step(1.25, i == 12 || i == 13 || i == 20 || i == 25);
  }
  const auto& lines = fixture.seen();
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].find("overflows") == std::string::npos);
  CHECK(lines[1].find("skipped 2 (10%)  overflows 2 (13%)  ") != std::string::npos);
  CHECK(lines[2].find("skipped 4 (13%)  overflows 3 (12%)  ") != std::string::npos);
}

TEST_CASE("progress: [AMP Stats] has scale, growth tracker, overflows, underflow and the share in mixed precision") {
  Fixture fixture(0, option("amp_every", std::int64_t{10}));
  fixture.begin();
  for (int i = 0; i < 10; ++i) {
    const bool overflowed = i == 4;
    fixture.run.amp.add({.is_amp = i > 1, .overflowed = overflowed});
    fixture.run.amp.set_scale(i + 2, i >= 4 ? 512.0 : 1024.0, i % 5 + 1);
    if (i == 9) fixture.run.amp.add_underflow(torch::scalar_tensor(0.0123));
    fixture.step(1.25, overflowed);
  }
  CHECK(fixture.seen()[0] ==
        "[AMP Stats] scale 512, growth tracker 5, overflows 1 (12%), underflow in 1 measurement (1.2% of gradients), "
        "mixed precision in 80% of 10 steps");
  Fixture plain(0, option("amp_every", std::int64_t{1}));
  plain.begin();
  plain.run.amp.add({.is_amp = false});
  plain.step(1.25);
  CHECK(plain.seen().size() <= 1);  // neither mixed precision nor a scaler
}

TEST_CASE("progress: a share is a plain percentage, however large or small") {
  Fixture fixture(0, option("every", std::int64_t{5}));
  fixture.run.steps = 5;
  fixture.begin();
  for (int i = 0; i < 5; ++i) {
    fixture.run.metrics.set("underflow", 1e-9);
    fixture.step(1.25, true);
  }
  CHECK(fixture.seen()[0].find("  skipped 5 (100%)  underflow <0.001%  ") != std::string::npos);
}

TEST_CASE("progress: a loss has digits however small it is, and a NaN no sign") {
  const auto shown = [](double loss) {
    Fixture fixture(0, option("every", std::int64_t{1}));
    fixture.begin();
    fixture.run.metrics.set("own", loss);
    fixture.step(loss);
    const auto line = fixture.seen()[0];
    const auto first = line.find("loss "), rate = line.find(" steps/s");
    return line.substr(first, line.rfind("  ", rate) - first);
  };
  CHECK(shown(2.88184) == "loss 2.8818  lr 0.0003  own 2.882");
  CHECK(shown(1.2e-7) == "loss 1.2e-07  lr 0.0003  own 1.2e-07");
  CHECK(shown(0.0123456) == "loss 0.01235  lr 0.0003  own 0.01235");
  CHECK(shown(0) == "loss 0  lr 0.0003  own 0");
  CHECK(shown(1e30) == "loss 1e+30  lr 0.0003  own 1e+30");
  CHECK(shown(-std::nan("")) == "loss nan  lr 0.0003  own nan");
  CHECK(shown(-HUGE_VAL) == "loss -inf  lr 0.0003  own -inf");
}

TEST_CASE("progress: shows metrics of other plugins after its own, three at most in a line") {
  Fixture fixture(0, option("every", std::int64_t{10}));
  for (const char* name : {"micro_batches", "batch"}) fixture.run.metrics.set(name, 8.0);
  fixture.run.metrics.set("grad_norm", torch::scalar_tensor(0.5));
  fixture.run.metrics.set("loss_average", 1.23456);
  fixture.run.metrics.set("accuracy", 0.75);
  fixture.run.metrics.set("fourth", 4.0);
  fixture.begin();
  fixture.steps(10);
  vernier::HostApi::clear(fixture.run.metrics);
  fixture.run.metrics.set("accuracy", 0.5);
  fixture.steps(10);
  const auto& lines = fixture.seen();
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].find("  lr 0.0003  grad_norm 0.5  loss_average 1.235  accuracy 0.75  ") != std::string::npos);
  CHECK(lines[0].find("fourth") == std::string::npos);
  CHECK(lines[0].find("batch") == std::string::npos);
  CHECK(lines[1].find("  lr 0.0003  accuracy 0.5  ") != std::string::npos);
}

TEST_CASE("progress: at the end the bar shows no metric of the last validation" * needs_terminal) {
  Fixture fixture(160, every_step());
  fixture.run.metrics.set("grad_norm", 0.5);
  fixture.run.steps = 10;  // ten lines fit into the terminal's buffer
  fixture.begin();
  fixture.steps(10);
  fixture.validate();
  fixture.end();
  const auto& lines = fixture.seen();
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == "step 10  validation loss 1.9312, 2.786 bits per byte");
  CHECK(lines[1].find("  grad_norm 0.5  ") != std::string::npos);
  CHECK(lines[1].find("bits_per_byte") == std::string::npos);
}

TEST_CASE("progress: the bar shows as many metrics of other plugins as fit, before learning rate and memory" *
          needs_terminal) {
  const auto at = [](int columns) {
    Fixture fixture(columns, every_step());
    for (const char* name : {"grad_norm", "accuracy", "third", "fourth", "fifth"}) fixture.run.metrics.set(name, 0.5);
    fixture.begin();
    fixture.steps(3);
    return fixture.seen()[0];
  };
  CHECK(at(80).find("  loss 1.2500  grad_norm 0.5  ") != std::string::npos);
  CHECK(at(80).find("accuracy") == std::string::npos);
  CHECK(at(80).find("lr 0.0003") == std::string::npos);
  CHECK(at(100).find("  grad_norm 0.5  accuracy 0.5  ") != std::string::npos);
  CHECK(at(180).find("  lr 0.0003  grad_norm 0.5  accuracy 0.5  third 0.5  fourth 0.5  fifth 0.5  ") !=
        std::string::npos);
}

TEST_CASE("progress: while a validation runs, the bar says so" * needs_terminal) {
  Fixture fixture(120);
  fixture.begin();
  fixture.steps(3);  // the first alone is drawn within a tenth of a second
  fixture.run.validates = true;
  fixture.step();
  REQUIRE(fixture.seen().size() == 1);
  CHECK(fixture.seen()[0].find("  4/100  ") != std::string::npos);
  CHECK(fixture.seen()[0].ends_with("  validating"));
  fixture.validate();
  REQUIRE(fixture.seen().size() == 2);
  CHECK(fixture.seen()[0].starts_with("step 4  validation loss 1.9312"));
  CHECK(fixture.seen()[1].find("  4/100  ") != std::string::npos);
  CHECK(fixture.seen()[1].find("validating") == std::string::npos);
}

TEST_CASE("progress: the last bar of a run that failed shows the steps that were done" * needs_terminal) {
  Fixture fixture(120);
  fixture.begin();
  fixture.steps(20);  // the first alone is drawn within a tenth of a second
  fixture.run.notice("non_finite", {}, "the loss is not finite");
  vernier::HostApi::emit(fixture.bus, Event::RunFailed, fixture.run);
  const auto& lines = fixture.seen();
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == "step 21: the loss is not finite");
  CHECK(lines[1].starts_with("▕████▊"));
  CHECK(lines[1].ends_with("▏  20/100  took 0:00"));
  CHECK(lines[2].empty());
}

TEST_CASE("progress: a quiet run prints nothing") {
  for (const bool draws_bar : {false, true}) {
    Fixture fixture(0, {{"bar", {std::string(draws_bar ? "always" : "never"), ""}}, {"every", {std::int64_t{1}, ""}}});
    fixture.run.quiet = true;
    fixture.begin();
    fixture.run.notice("step_skipped");
    fixture.steps(3);
    fixture.validate();
    fixture.end();
    vernier::HostApi::emit(fixture.bus, Event::RunFailed, fixture.run);
    fixture.plugin.reset();
    CHECK(fixture.screen.read().empty());
  }
}

TEST_CASE("progress: plain lines where stderr is not a terminal") {
  Fixture fixture(0, option("every", std::int64_t{40}));
  fixture.begin();
  fixture.steps(100);
  fixture.end();
  const auto& lines = fixture.seen();
  REQUIRE(lines.size() == 4);
  const char* pattern = R"(step \d+/100  loss 1\.2500  lr 0\.0003  [0-9.]+[kM]? steps/s  [0-9.]+[MG]B  ETA 0:00)";
  for (int i = 0; i < 3; ++i) CHECK_MESSAGE(matches(lines[static_cast<std::size_t>(i)], pattern), lines[0]);
  CHECK(lines[0].starts_with("step 40/100  "));
  CHECK(lines[1].starts_with("step 80/100  "));
  CHECK(lines[2].starts_with("step 100/100  "));
  CHECK(lines[3].empty());
}

TEST_CASE("progress: a bar in one line of a terminal, with the cursor below it at the end" * needs_terminal) {
  Fixture fixture(120, every_step());
  fixture.begin();
  fixture.steps(50);
  REQUIRE(fixture.seen().size() == 1);
  CHECK(fixture.seen()[0].starts_with("▕████████████            ▏  50/100  loss 1.2500  lr 0.0003  "));
  fixture.steps(50);
  fixture.end();
  REQUIRE(fixture.seen().size() == 2);
  CHECK(fixture.seen()[0].starts_with("▕████████████████████████▏  100/100  loss 1.2500"));
  CHECK(fixture.seen()[0].ends_with("took 0:00"));
  CHECK(fixture.seen()[1].empty());
  CHECK(fixture.screen.drawing.column() == 0);
}

TEST_CASE("progress: each drawing is one write over the last, never the last column" * needs_terminal) {
  Fixture fixture(80, every_step());
  fixture.begin();
  fixture.step();
  const auto bytes = fixture.screen.read();
  CHECK(bytes.starts_with("\r▕"));
  CHECK(bytes.ends_with("\x1b[K"));
  CHECK(std::ranges::count(bytes, '\n') == 0);
  for (int columns = 1; columns < 140; ++columns) {
    CAPTURE(columns);
    Fixture narrow(columns, every_step());
    narrow.run.metrics.set("scale", 65536.0);
    narrow.run.steps = 100000;
    narrow.begin();
    narrow.steps(3);
    narrow.seen();
    CHECK(narrow.screen.drawing.widest() <= static_cast<std::size_t>(std::max(columns - 1, 0)));
  }
}

TEST_CASE("progress: a narrow terminal keeps what matters most" * needs_terminal) {
  const auto at = [](int columns) {
    Fixture fixture(columns, every_step());
    fixture.run.metrics.set("scale", 65536.0);
    fixture.begin();
    fixture.steps(3);
    return fixture.seen()[0];
  };
  CHECK(at(120).find("scale 65536") != std::string::npos);
  CHECK(at(60).find("scale") == std::string::npos);
  CHECK(at(60).find("ETA") != std::string::npos);
  CHECK(at(60).find("▕") == 0);
  CHECK(at(24) == "3/100  loss 1.2500");
  CHECK(at(8) == "3/100");
}

TEST_CASE("progress: the terminal's width is asked at each drawing" * needs_terminal) {
  Fixture fixture(120, every_step());
  fixture.begin();
  fixture.step();
  fixture.screen.resize(24);
  fixture.step();
  CHECK(fixture.seen()[0] == "2/100  loss 1.2500");
}

TEST_CASE("progress: the bar is drawn ten times a second at most, and at the last step" * needs_terminal) {
  Fixture fixture(80);
  fixture.begin();
  const auto start = std::chrono::steady_clock::now();
  fixture.steps(99);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const auto drawings = std::ranges::count(fixture.screen.read(), '\r');
  CHECK(drawings >= 1);
  CHECK(static_cast<double>(drawings) <= 1 + seconds.count() / 0.1);
  fixture.step();
  CHECK(fixture.seen()[0].find("  100/100  ") != std::string::npos);
}

TEST_CASE("progress: validations and notices are lines above the bar" * needs_terminal) {
  Fixture fixture(120, every_step());
  fixture.begin();
  fixture.steps(11);
  fixture.run.notice("scale_changed", {{"from", 65536.0}, {"to", 32768.0}}, "the loss scale changed");
  fixture.step();
  fixture.validate();
  fixture.run.notice("checkpoint_saved",
                     {{"path", std::string("runs/a/checkpoints/step-00000012")}, {"bytes", std::int64_t{1}}},
                     "saved runs/a/checkpoints/step-00000012");
  fixture.step();
  fixture.end();
  const auto& lines = fixture.seen();
  REQUIRE(lines.size() == 5);
  CHECK(lines[0] == "step 12: the loss scale changed");
  CHECK(lines[1] == "step 12  validation loss 1.9312, 2.786 bits per byte");
  CHECK(lines[2] == "step 13: saved runs/a/checkpoints/step-00000012");
  CHECK(lines[3].find("  13/100  ") != std::string::npos);
  CHECK(lines[4].empty());
}

TEST_CASE("progress: a notice is a sentence with the step that it is of, or else its name and details") {
  Fixture fixture(0);
  fixture.begin();
  fixture.steps(12);
  fixture.run.notice("non_finite", {{"step", std::int64_t{13}}, {"what", std::string("loss")}},
                     "the loss is not finite");
  fixture.step();
  fixture.run.notice("step_skipped", {{"step", std::int64_t{13}}}, "a callback skipped the update");  // one step late
  fixture.run.notice("throttled", {{"celsius", 95.5}});
  fixture.step();
  CHECK(fixture.seen() == std::vector<std::string>{"step 13: the loss is not finite",
                                                   "step 13: a callback skipped the update",
                                                   "step 14: throttled celsius=95.5", ""});
}

TEST_CASE("progress: how much of a checkpoint is written stands in the bar, and is not a line" * needs_terminal) {
  Fixture fixture(120, every_step());
  fixture.begin();
  fixture.run.notice("checkpoint_progress", {{"share", 0.42}});
  fixture.step();
  REQUIRE(fixture.seen().size() == 1);
  CHECK(fixture.seen()[0].find("  saving 42%  ") != std::string::npos);
  fixture.step();
  REQUIRE(fixture.seen().size() == 1);
  CHECK(fixture.seen()[0].find("saving") == std::string::npos);
}

TEST_CASE("progress: a line of the log takes the bar's place, which comes back below" * needs_terminal) {
  Fixture fixture(80, every_step());
  fixture.begin();
  fixture.step();
  const std::string line = "\r\x1b[Ktask/gpt: a sample\n";  // framework/common/log.cpp writes it so on a terminal
  REQUIRE(::write(STDERR_FILENO, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  fixture.step();
  REQUIRE(fixture.seen().size() == 2);
  CHECK(fixture.seen()[0] == "task/gpt: a sample");
  CHECK(fixture.seen()[1].find("  2/100  ") != std::string::npos);
}

TEST_CASE("progress: a storm of notices is thinned out") {
  Fixture fixture(0);
  fixture.run.steps = 100000;
  fixture.begin();
  for (int i = 0; i < 40; ++i) {
    fixture.run.notice("step_skipped");
    fixture.step();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1050));
  fixture.run.notice("step_skipped");
  fixture.step();
  const auto& lines = fixture.seen();
  REQUIRE(lines.size() >= 12);
  CHECK(lines.size() <= 14);
  CHECK(lines[9] == "step 10: step_skipped");
  CHECK(std::ranges::find(lines, "step 41: step_skipped  (and 30 more before)") != lines.end());
}

TEST_CASE("progress: the end of an epoch has a line with loss, scale and memory, also above the bar") {
  for (const int columns : {0, 100}) {
    if (columns > 0 && !has_pseudo_terminals()) continue;
    Fixture fixture(columns, every_step());
    fixture.begin();
    for (fixture.run.epoch = 0; fixture.run.epoch < 40; ++fixture.run.epoch) {
      const bool is_scaled = fixture.run.epoch > 0;
      fixture.run.amp.add({.is_amp = is_scaled});
      if (is_scaled) fixture.run.amp.set_scale(fixture.run.epoch + 1, 65536);
      fixture.step(2.30258);
      fixture.validate();  // it takes the metrics of the step away
      vernier::HostApi::emit(fixture.bus, Event::EpochEnd, fixture.run);
    }
    std::string text;
    for (const auto& line : fixture.seen()) text += line + '\n';
    CAPTURE(text);
    CHECK(std::regex_search(text, std::regex("\nepoch 1  loss 2\\.3026  memory [0-9.]+[MG]B\n")));
    CHECK(std::regex_search(text, std::regex("\nepoch 2  loss 2\\.3026  scale 65536  memory [0-9.]+[MG]B\n")));
    CHECK(text.find("epoch 40  ") == std::string::npos);  // many in a second are thinned out
  }
}

TEST_CASE("progress: many notices of one action hide no other of the same name") {
  Fixture fixture(0);
  fixture.run.steps = 100000;
  fixture.begin();
  const auto recovered = [&fixture](const char* action) {
    fixture.run.notice("recovered", {{"trigger", std::string("non_finite")}, {"action", std::string(action)}});
    fixture.step();
  };
  for (int i = 0; i < 14; ++i) recovered("skip");
  recovered("rewind");
  const auto& lines = fixture.seen();
  CHECK(std::ranges::find(lines, "step 15: recovered trigger=non_finite action=rewind") != lines.end());
  CHECK(std::ranges::count_if(lines, [](const auto& line) { return line.ends_with("action=skip"); }) < 14);
}

TEST_CASE("progress: the rate is that of this process, without validations") {
  Fixture fixture(0, {{"every", {std::int64_t{10}, ""}}, {"rate", {std::string("samples"), ""}}});
  fixture.run.step = 1000000;
  fixture.run.steps = 1000020;
  fixture.run.samples = 8000000;
  fixture.begin();
  const auto slow_steps = [&fixture] {
    for (int i = 0; i < 10; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      fixture.step();
    }
  };
  slow_steps();
  fixture.validate();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  slow_steps();
  const auto& lines = fixture.seen();
  for (const std::size_t i : {0, 2}) {
    std::smatch found;
    REQUIRE(std::regex_search(lines[i], found, std::regex(R"(([0-9.]+)(k?) samples/s)")));
    const double rate = std::stod(found[1]) * (found[2] == "k" ? 1000 : 1);
    CHECK(rate <= 1600.0);
    CHECK(rate > 300.0);  // the pause of the validation would make it 150
  }
}

TEST_CASE("progress: after a run went back, rate and time left are those of the steps since") {
  Fixture fixture(0, {{"every", {std::int64_t{10}, ""}}, {"rate", {std::string("samples"), ""}}});
  fixture.run.step = 50;
  fixture.run.samples = 400;
  fixture.begin();
  fixture.steps(10);
  fixture.run.step = fixture.run.updates = 20;
  fixture.run.samples = 160;
  fixture.steps(10);
  const auto& lines = fixture.seen();
  REQUIRE(lines.size() == 3);
  const char* pattern = R"(step 30/100  loss 1\.2500  lr 0\.0003  [0-9.]+[kM]? samples/s  [0-9.]+[MG]B  ETA 0:00)";
  CHECK_MESSAGE(matches(lines[1], pattern), lines[1]);
}

TEST_CASE("progress: odd runs" * needs_terminal) {
  SUBCASE("no step at all") {
    Fixture fixture(80);
    fixture.run.steps = 0;
    fixture.begin();
    fixture.end();
    CHECK(fixture.screen.read().empty());
  }
  SUBCASE("a loss that is not a number") {
    Fixture fixture(80, every_step());
    fixture.begin();
    fixture.step(std::nan(""));
    CHECK(fixture.seen()[0].find("loss nan") != std::string::npos);
  }
  SUBCASE("more steps than planned") {
    Fixture fixture(80, every_step());
    fixture.run.step = 200;
    fixture.begin();
    fixture.step();
    CHECK(fixture.seen()[0].find("  201/100  ") != std::string::npos);
  }
  SUBCASE("a failure ends the line") {
    Fixture fixture(80, every_step());
    fixture.begin();
    fixture.step();
    vernier::HostApi::emit(fixture.bus, Event::RunFailed, fixture.run);
    fixture.seen();
    CHECK(fixture.screen.drawing.column() == 0);
    CHECK(fixture.seen().size() == 2);
  }
  SUBCASE("so does the end of the process") {
    Fixture fixture(80, every_step());
    fixture.begin();
    fixture.step();
    fixture.plugin.reset();
    CHECK(fixture.seen().size() == 2);
  }
  SUBCASE("a failure before it began") {
    Fixture fixture(80);
    vernier::HostApi::emit(fixture.bus, Event::RunFailed, fixture.run);
    CHECK(fixture.screen.read().empty());
  }
  SUBCASE("a terminal that cannot move its cursor") {
    Fixture fixture(80, option("every", std::int64_t{1}));
    ::setenv("TERM", "dumb", 1);
    fixture.begin();
    fixture.step();
    CHECK(fixture.seen()[0].starts_with("step 1/100  "));
  }
}

TEST_CASE("progress: the bar is of ASCII unless the locale's encoding is UTF-8" * needs_terminal) {
  const auto bar_in = [](const char* all, const char* characters) {
    Fixture fixture(120, every_step());
    ::setenv("LC_ALL", all, 1);
    ::setenv("LC_CTYPE", characters, 1);
    fixture.begin();
    fixture.steps(50);
    ::unsetenv("LC_CTYPE");
    const auto line = fixture.seen()[0];
    return line.substr(0, line.find("  50/100  "));
  };
  for (const char* locale : {"C", "POSIX", "de_DE", "de_DE.ISO-8859-1"}) {
    CHECK(bar_in(locale, "C.UTF-8") == "[############............]");
    CHECK(bar_in("", locale) == "[############............]");  // an empty variable counts as none
  }
  for (const char* locale : {"C.UTF-8", "en_GB.utf8", "sr_RS.UTF-8@latin"}) {
    CHECK(bar_in("", locale).starts_with("▕████████████  "));
  }
}

}  // namespace progress_test
