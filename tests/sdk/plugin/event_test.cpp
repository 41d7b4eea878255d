#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include "thrown.h"

namespace event_test {

using vernier::Bus;
using vernier::Error;
using vernier::Event;
using vernier::Run;

namespace {

std::string told;  // who was called, in order

std::vector<std::string> warnings;
void collect_warnings(vernier::Level level, const std::string& who, const std::string& text) {
  if (level == vernier::Level::warning) warnings.push_back(who + ": " + text);
}

// Adds its id to `told`, once for each of its listeners, and may throw in one of them.
template <class Role, class Seen>
class Listener final : public Role {
 public:
  Listener(const char* id, int listeners, int throws_in = 0) : listeners_(listeners), throws_in_(throws_in) {
    this->set_id(id);
  }
  void attach(Bus& bus) override {
    for (int nth = 1; nth <= listeners_; ++nth) {
      bus.on(Event::StepEnd, [this, nth](Seen&) {
        told += this->id();
        if (nth == throws_in_) throw std::runtime_error("boom");
      });
    }
    bus.on(Event::RunEnd, [this](Seen&) { told += this->id(); });
  }

 private:
  int listeners_, throws_in_;
};
using Callback = Listener<vernier::Callback, Run>;
using Monitor = Listener<vernier::Monitor, const Run>;
using Meddler = Listener<vernier::Monitor, Run>;

struct Fixture {
  Fixture() {
    told.clear();
    warnings.clear();
    vernier::set_log_sink(collect_warnings);
    run.step = 6;
  }
  ~Fixture() { vernier::set_log_sink(nullptr); }
  std::string emit(Event event) {
    told.clear();
    vernier::HostApi::emit(bus, event, run);
    return told;
  }
  vernier::TrainerRun run;
  Bus bus;
};

template <class Exception>
class Thrower final : public vernier::Callback {
 public:
  explicit Thrower(Exception exception) : exception_(std::move(exception)) { set_id("callback/thrower"); }
  void attach(Bus& bus) override {
    for (int i = 0; i < vernier::event_count; ++i) bus.on(static_cast<Event>(i), [this](Run&) { throw exception_; });
  }

 private:
  Exception exception_;
};

template <class Exception>
Thrown thrown_at(Event event, Exception exception, std::int64_t step = 6) {
  Thrower thrower(std::move(exception));
  Fixture fixture;
  fixture.run.step = step;
  vernier::HostApi::attach(fixture.bus, thrower, false);
  return thrown_by([&] { vernier::HostApi::emit(fixture.bus, event, fixture.run); });
}

}  // namespace

TEST_CASE("event: every event has its name") {
  CHECK(std::string(vernier::name_of(Event::RunBegin)) == "RunBegin");
  CHECK(std::string(vernier::name_of(Event::GradientsReady)) == "GradientsReady");
  CHECK(std::string(vernier::name_of(Event::UpdateDone)) == "UpdateDone");
  CHECK(std::string(vernier::name_of(Event::RunFailed)) == "RunFailed");
  CHECK(static_cast<int>(Event::RunFailed) + 1 == vernier::event_count);
}

TEST_CASE("bus: listeners are called in the order of attaching, monitors after all others") {
  Callback a("a", 1), b("b", 2);
  Monitor m("m", 1), n("n", 1);
  Fixture fixture;
  vernier::HostApi::attach(fixture.bus, a, false);
  vernier::HostApi::attach(fixture.bus, m, true);
  vernier::HostApi::attach(fixture.bus, n, true);
  vernier::HostApi::attach(fixture.bus, b, false);
  CHECK(fixture.emit(Event::StepEnd) == "abbmn");
  CHECK(fixture.emit(Event::RunEnd) == "abmn");
  CHECK(fixture.emit(Event::StepBegin).empty());
}

TEST_CASE("bus: a monitor whose listener could change the run is refused") {
  Meddler meddler("monitor/meddler", 1);
  Fixture fixture;
  CHECK(
      thrown_by([&] { vernier::HostApi::attach(fixture.bus, meddler, true); }) ==
      refused("monitor/meddler is a monitor, and may only look: its listener for StepEnd must take `const Run&`; make "
              "it a callback if it changes the run"));
}

TEST_CASE("bus: listening outside of attach is refused") {
  Fixture fixture;
  const auto listen = [&] { fixture.bus.on(Event::StepEnd, [](const Run&) {}); };
  CHECK(thrown_by(listen) == refused("Bus::on is called in Plugin::attach only"));
  Meddler meddler("monitor/meddler", 1);
  CHECK_THROWS(vernier::HostApi::attach(fixture.bus, meddler, true));
  CHECK(thrown_by(listen) == refused("Bus::on is called in Plugin::attach only"));
}

TEST_CASE("bus: what attach throws names the plugin") {
  struct Broken final : vernier::Callback {
    void attach(Bus&) override { throw std::runtime_error("boom"); }
  } broken;
  vernier::HostApi::set_id(broken, "callback/broken");
  Fixture fixture;
  CHECK(thrown_by([&] { vernier::HostApi::attach(fixture.bus, broken, false); }) ==
        refused("callback/broken failed to attach: boom"));
}

TEST_CASE("bus: a monitor that throws is detached and reported, the others are called exactly once") {
  for (int throws_in = 1; throws_in <= 3; ++throws_in) {
    CAPTURE(throws_in);
    Callback a("a", 1);
    Monitor l("l", 2), m("m", 3, throws_in), n("n", 2);
    Fixture fixture;
    for (auto* monitor : {&l, &m, &n}) vernier::HostApi::attach(fixture.bus, *monitor, true);
    vernier::HostApi::attach(fixture.bus, a, false);
    CHECK(fixture.emit(Event::StepEnd) == "all" + std::string(static_cast<std::size_t>(throws_in), 'm') + "nn");
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0] == "m at StepEnd of step 6: boom (the monitor is detached, the run goes on)");
    CHECK(fixture.emit(Event::RunEnd) == "aln");
    CHECK(fixture.emit(Event::StepEnd) == "allnn");
    CHECK(warnings.size() == 1);
    REQUIRE(fixture.run.notices.size() == 1);
    CHECK(fixture.run.notices[0].text() == "plugin_detached plugin=m event=StepEnd");
    CHECK(fixture.run.notices[0].sentence == "m failed at StepEnd and is detached");
  }
}

TEST_CASE("bus: several monitors may throw at one event, the last one too") {
  Monitor l("l", 1, 1), m("m", 1), n("n", 1, 1);
  Fixture fixture;
  for (auto* monitor : {&l, &m, &n}) vernier::HostApi::attach(fixture.bus, *monitor, true);
  CHECK(fixture.emit(Event::StepEnd) == "lmn");
  CHECK(fixture.emit(Event::StepEnd) == "m");
  CHECK(warnings.size() == 2);
  CHECK(fixture.run.notices.size() == 2);
}

TEST_CASE("bus: a callback that throws ends the run with plugin, event and step, and the kind it threw") {
  CHECK(thrown_at(Event::StepEnd, std::runtime_error("boom")) == failed("callback/thrower at StepEnd of step 6: boom"));
  CHECK(thrown_at(Event::UpdateDone, std::runtime_error("boom")) ==
        failed("callback/thrower at UpdateDone of step 7: boom"));
  CHECK(thrown_at(Event::GradientsReady, Error("wrong", Error::Kind::configuration)) ==
        configuration("callback/thrower at GradientsReady of step 7: wrong"));
  CHECK(thrown_at(Event::RunBegin, Error("wrong", Error::Kind::plugin), 0) ==
        refused("callback/thrower at RunBegin of step 1: wrong"));
  CHECK(thrown_at(Event::BatchReady, c10::Error({__func__, __FILE__, 1}, "bad\nshape")) ==
        failed("callback/thrower at BatchReady of step 7: bad shape"));
}

TEST_CASE("bus: an event after a step names that step") {
  for (const Event event : {Event::Validated, Event::EpochEnd, Event::RunEnd}) {
    CHECK(thrown_at(event, std::runtime_error("boom")) ==
          failed("callback/thrower at " + std::string(vernier::name_of(event)) + " of step 6: boom"));
  }
}

TEST_CASE("bus: the first cause stays nested") {
  Thrower thrower(std::out_of_range("the cause"));
  Fixture fixture;
  vernier::HostApi::attach(fixture.bus, thrower, false);
  try {
    vernier::HostApi::emit(fixture.bus, Event::StepEnd, fixture.run);
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK_THROWS_AS(std::rethrow_if_nested(error), std::out_of_range);
  }
}

TEST_CASE_FIXTURE(Fixture, "event: what replaces a plugin is called in its place, the plugin is called no more") {
  Callback a("a", 1), b("b", 0), c("c", 1), next("n", 2), stranger("s", 1);
  Monitor m("m", 1);
  for (auto* plugin : {&a, &b, &c}) vernier::HostApi::attach(bus, *plugin, false);
  vernier::HostApi::attach(bus, m, true);
  CHECK(emit(Event::StepEnd) == "acm");
  vernier::HostApi::replace(bus, b, next);
  CHECK(emit(Event::StepEnd) == "anncm");
  CHECK(emit(Event::RunEnd) == "ancm");
  vernier::HostApi::replace(bus, next, b);
  CHECK(emit(Event::StepEnd) == "acm");
  CHECK(thrown_by([&] { vernier::HostApi::replace(bus, stranger, next); }) ==
        refused("s is not attached, and cannot be replaced"));
  CHECK(emit(Event::RunEnd) == "abcm");
}

}  // namespace event_test
