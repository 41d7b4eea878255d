// Requests of plugins are carried out or refused, whichever event they are made at; their numbers replace no others.
#include <doctest/doctest.h>

#include <set>

#include "log_lines.h"
#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

namespace requests_test {

using toy::Toy;
using vernier::Event;
using vernier::Run;

namespace {

class Asks;

// The result of a run with a request.
struct Seen {
  std::string error;
  std::int64_t steps = 0, planned = 6, swaps = 0;
  std::string finished;
  double validated_at = 0;
  bool is_vetoed = false, has_half_rate = false, has_metric = false, has_twice_the_loss = false;
};

struct Request {
  const char* name;
  std::set<Event> refused_at;
  void (*ask)(Run& run, Asks& plugin);
  bool (*is_done)(const Seen& seen);
};

// Asks once, at the first or the last occurrence of an event.
class Asks final : public vernier::Callback {
 public:
  Asks(Event event, bool at_last, const Request& request) : event_(event), at_last_(at_last), request_(request) {
    set_id("callback/asks");
  }
  void prepare(Run& run) override { run.control->keep_savepoints(1, 3); }
  void attach(vernier::Bus& bus) override {
    bus.on(event_, [this](Run& run) {
      const auto step = run.step + (event_ < Event::StepEnd ? 1 : 0);
      if (has_asked || (at_last_ && step < run.steps)) return;
      has_asked = true;
      request_.ask(run, *this);
    });
  }
  bool has_asked = false;

 private:
  Event event_;
  bool at_last_;
  const Request& request_;
};

const std::set<Event> ends = {Event::RunEnd, Event::RunFailed};
const std::set<Event> before_and_ends = {Event::RunBegin, Event::RunEnd, Event::RunFailed};

std::set<Event> all_but(std::set<Event> taken) {
  std::set<Event> others;
  for (int i = 0; i < vernier::event_count; ++i) {
    if (const auto event = static_cast<Event>(i); !taken.contains(event)) others.insert(event);
  }
  return others;
}

const Request requests[] = {
    {"skip_when", all_but({Event::GradientsReady}), [](Run& run, Asks&) { run.skip_when(torch::ones({})); },
     [](const Seen& seen) { return seen.is_vetoed; }},
    {"skip_update", all_but({Event::GradientsReady}), [](Run& run, Asks&) { run.skip_update = torch::ones({}); },
     [](const Seen& seen) { return seen.is_vetoed; }},
    {"learning_rate_factor",
     all_but({Event::StepBegin, Event::BatchReady, Event::LossReady, Event::BackwardDone, Event::GradientsReady}),
     [](Run& run, Asks&) { run.learning_rate_factor *= 0.5; }, [](const Seen& seen) { return seen.has_half_rate; }},
    {"micro_batch_loss", all_but({Event::LossReady}),
     [](Run& run, Asks&) {
       run.micro_batch_loss = run.micro_batch_loss.defined() ? 1e6 * run.micro_batch_loss : torch::ones({});
     },
     [](const Seen& seen) { return seen.has_twice_the_loss; }},
    {"a metric",
     {Event::RunBegin, Event::EpochEnd, Event::RunEnd, Event::RunFailed},
     [](Run& run, Asks&) { run.metrics.set("mine", 1.0); },
     [](const Seen& seen) { return seen.has_metric; }},
    {"finish", before_and_ends, [](Run& run, Asks& plugin) { run.control->finish(plugin, "enough"); },
     [](const Seen& seen) {
       const auto steps = static_cast<double>(seen.steps);
       return seen.validated_at == steps && (seen.steps == 6 || seen.finished == "callback/asks: enough");
     }},
    {"fail", ends, [](Run& run, Asks& plugin) { run.control->fail(plugin, "too bad"); },
     [](const Seen& seen) { return says(seen.error, "too bad"); }},
    {"swap", ends,
     [](Run& run, Asks&) {
       run.control->swap({{"precision", {vernier::Table{{"use", {std::string("fp32"), ""}}}, ""}}});
     },
     [](const Seen& seen) { return seen.swaps == 1; }},
    {"rewind", before_and_ends, [](Run& run, Asks& plugin) { run.control->rewind(plugin, 1, 0); },
     [](const Seen& seen) { return seen.steps > 6 || seen.error != ""; }}};

Seen train(const Request& request, Event event, bool at_last, bool stops_at_once = false) {
  Toy toy;
  toy.wiring.host = built_plugins();
  Seen seen;
  auto* asks = new Asks(event, at_last, request);
  toy.wiring.callbacks.emplace_back(asks);
  std::int64_t trained = 0;
  double first_loss = 0;
  const bool fails = event == Event::RunFailed;
  toy.on(Event::UpdateDone, [&](Run& run) {
    seen.is_vetoed |= run.skip_update.defined() && run.skip_update.item<float>() != 0;
    seen.has_half_rate |= run.learning_rate_factor == 0.5;
    if (first_loss == 0) first_loss = run.loss.item<double>();
    seen.has_twice_the_loss |= run.loss.item<double>() > 1e3;
  });
  toy.look(Event::StepEnd, [&](const Run& run) {
    ++trained;
    seen.has_metric |= run.metrics.value("mine").has_value();
  });
  toy.look(Event::Validated, [&](const Run& run) {
    seen.validated_at = static_cast<double>(run.step);
    seen.has_metric |= run.metrics.value("mine").has_value();
  });
  if (fails) {
    toy.on(Event::StepBegin, [](Run& run) {
      if (run.step == 4) throw std::runtime_error("boom");
    });
  }
  auto& trainer = toy.prepare(4);
  if (stops_at_once) toy.stop = 2;
  seen.error = thrown_by([&] { seen.finished = trainer.train(toy.run).finished; }).text;
  CHECK(asks->has_asked);
  seen.steps = trained;
  seen.swaps = std::ssize(toy.wiring.swaps);
  return seen;
}

}  // namespace

TEST_CASE("requests: each is done or refused at each event, the last one of a run too") {
  for (const auto& request : requests) {
    CAPTURE(request.name);
    for (int i = 0; i < vernier::event_count; ++i) {
      const auto event = static_cast<Event>(i);
      for (const bool at_last : {false, true}) {
        if (at_last && (event == Event::RunBegin || event == Event::RunFailed)) continue;
        CAPTURE(vernier::name_of(event));
        CAPTURE(at_last);
        const LogLines log;
        const auto seen = train(request, event, at_last);
        if (!request.refused_at.contains(event)) {
          CHECK_MESSAGE(request.is_done(seen), seen.error);
          continue;
        }
        const auto where = std::string("callback/asks at ") + vernier::name_of(event) + " of step ";
        CHECK_MESSAGE((says(seen.error, where) || LogLines::count(where) == 1), seen.error);
      }
    }
  }
}

TEST_CASE("requests: a plugin can make a run fail that is stopped before its first step") {
  for (const auto& request : requests) {
    if (std::string(request.name) != "fail") continue;
    CHECK(says(train(request, Event::RunBegin, false, /*stops_at_once=*/true).error, "too bad"));
  }
}

namespace {

constexpr const char* base = R"([run]
steps = 4
validate_every = 2
[task]
use = "mlp"
samples = 32
batch_size = 16
[optimizer]
use = "adamw"
[scaler]
use = "static"
[checkpoint]
use = "none"
[[callback]]
use = "clip_norm"
)";

struct Name {
  std::string metric, owner;
  Event event = Event::StepEnd;
};

// Every number that a run writes without this plugin.
const Name taken[] = {{"loss", "the trainer"},
                      {"loss", "the trainer", Event::Validated},
                      {"step", "the trainer"},
                      {"time", "the trainer"},
                      {"notices", "the trainer"},
                      {"epoch", "the trainer"},
                      {"samples", "the trainer"},
                      {"tokens", "the trainer"},
                      {"updates", "the trainer"},
                      {"overflows", "the trainer"},
                      {"skipped_updates", "the trainer"},
                      {"micro_batches", "the trainer", Event::BatchReady},
                      {"step_time", "the trainer"},
                      {"validation_loss", "the trainer", Event::Validated},
                      {"validation_loss", "the trainer"},
                      {"learning_rate", "optimizer/adamw"},
                      {"learning_rate", "optimizer/adamw", Event::StepBegin},
                      {"scale", "scaler/static", Event::StepBegin},
                      {"grad_norm", "callback/clip_norm"},
                      {"accuracy", "task/mlp", Event::Validated},
                      {"mine", "callback/first"}};

std::unique_ptr<vernier::Callback> sets(const char* id, const std::string& name, Event event) {
  return std::make_unique<toy::Told<vernier::Callback>>(
      id, [=](vernier::Bus& bus) { bus.on(event, [=](Run& run) { run.metrics.set(name.c_str(), 7.0); }); });
}

}  // namespace

TEST_CASE("requests: a metric with the name of another number of the run is refused") {
  const NoLog quiet;
  for (const auto& [metric, owner, event] : taken) {
    CAPTURE(metric);
    CAPTURE(vernier::name_of(event));
    SmallRun run(from_toml({base}));
    const auto first = sets("callback/first", "mine", event), second = sets("callback/second", metric, event);
    for (auto* plugin : {first.get(), second.get()}) vernier::HostApi::attach(run.wiring->bus, *plugin, false);
    const auto text = thrown_by([&] { run.train(); }).text;
    CHECK_MESSAGE(says(text, "callback/second at " + std::string(vernier::name_of(event))), text);
    CHECK_MESSAGE(says(text, "the metric \"" + metric + "\" is set by " + owner +
                                 ", whose number it would replace; give it another name, such as \"second_" + metric),
                  text);
    run.wiring->bus = {};
  }
}

TEST_CASE("requests: two runs of one process may give one name to different plugins") {
  for (const char* id : {"callback/first", "callback/second"}) {
    Toy toy;
    toy.wiring.callbacks.push_back(sets(id, "mine", Event::StepEnd));
    toy.look(Event::StepEnd, [](const Run& run) { CHECK(run.metrics.value("mine") == 7.0); });
    CHECK(thrown_by([&] { toy.prepare().train(toy.run); }) == Thrown{});
  }
}

TEST_CASE("requests: what throws as the run ends leaves the event, or that of the failure, to the others") {
  for (const auto event : {Event::RunEnd, Event::RunFailed}) {
    const LogLines log;
    Toy toy;
    std::vector<std::string> heard;
    toy.on(
        event, [](Run&) { throw std::runtime_error("boom"); }, "callback/throws");
    for (const auto last : {Event::RunEnd, Event::RunFailed}) {
      toy.on(last, [&, last](Run&) { heard.push_back(vernier::name_of(last) + std::string(" behind")); });
      toy.look(last, [&, last](const Run&) { heard.push_back(vernier::name_of(last)); });
    }
    if (event == Event::RunFailed) toy.on(Event::StepEnd, [](Run&) { throw std::runtime_error("first"); });
    const auto text = thrown_by([&] { toy.prepare().train(toy.run); }).text;
    CHECK(says(text, event == Event::RunEnd ? "callback/throws at RunEnd of step 6: boom" : "first"));
    CHECK(heard == std::vector<std::string>{"RunFailed behind", "RunFailed"});
  }
}

}  // namespace requests_test
