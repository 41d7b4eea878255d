// Misuses of the contract at random: each ends in one line that names the plugin, or changes nothing.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>
#include <vernier/between_steps.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>

#include "long_form.h"
#include "run/process/crash.h"
#include "run/state/snapshot.h"
#include "thrown.h"
#include "tools/check_plugin/forked_call.h"
#include "toy_run.h"

namespace misuses_test {

using toy::Toy;
using vernier::Bus;
using vernier::Event;
using vernier::Result;
using vernier::Run;
using vernier::State;

namespace {

// Wrong values of each type.
class Values {
 public:
  explicit Values(unsigned seed) : random_(seed) {}
  std::size_t below(std::size_t count) { return random_() % count; }

  std::int64_t integer() {
    constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min(), most = ~least;
    const std::int64_t all[] = {-1, 0, -7, least, most, most / 2, std::int64_t{1} << 40};
    return all[below(std::size(all))];
  }
  double real() {
    constexpr double all[] = {NAN, -NAN, HUGE_VAL, -HUGE_VAL, -1.0, -1e-30, -1e300};
    return all[below(std::size(all))];
  }
  std::string text() {
    const std::string all[] = {"", "nobody", "two\nlines", "\x1b[31m", std::string(3000, 'x'), std::string("\0", 1),
                               "/"};
    return all[below(std::size(all))];
  }
  torch::Tensor tensor() {
    switch (below(7)) {
      case 0:
        return {};
      case 1:
        return at::zeros({3});
      case 2:
        return at::zeros({}, at::kComplexFloat);
      case 3:
        return at::zeros({0});
      case 4:
        return at::empty({}, at::TensorOptions(at::kMeta));
      case 5:
        return at::zeros({2, 2}).to_sparse();
      default:
        return at::zeros({1, 2, 3}, at::kLong);
    }
  }
  vernier::Table swap() {
    const vernier::Value nobody{vernier::Table{{"use", {std::string("nobody"), ""}}}, ""};
    const vernier::Value wrong{vernier::Table{{"use", {std::string("bf16"), ""}}, {"level", {text(), ""}}}, ""};
    const vernier::Value number{integer(), ""}, empty{vernier::Table{}, ""};
    const char* roles[] = {"precision", "scaler", "task", "callback", "monitor", "", "checkpoint", "optimiser"};
    const vernier::Value values[] = {nobody, wrong, number, empty};
    return {{roles[below(std::size(roles))], values[below(std::size(values))]}};
  }

 private:
  std::mt19937 random_;
};

struct Context {
  Run& run;
  vernier::Plugin& plugin;
  Bus* bus;
  Values& values;
};

struct Misuse {
  const char* name;
  void (*call)(Context& c);
};

// Calls that are right at some moment are made at others, or from another thread.
const Misuse misuses[] = {
    {"keep_savepoints", [](Context& c) { c.run.control->keep_savepoints(c.values.integer(), c.values.integer()); }},
    {"rewind",
     [](Context& c) { c.run.control->rewind(c.plugin, c.values.integer(), c.values.integer(), c.values.text()); }},
    {"swap", [](Context& c) { c.run.control->swap(c.values.swap()); }},
    {"try_swap", [](Context& c) { c.run.control->try_swap(c.values.swap()); }},
    {"between_steps", [](Context& c) { c.run.control->between_steps(c.plugin, {}); }},
    {"set_every",
     [](Context& c) {
       c.run.control->between_steps(c.plugin,
                                    [&values = c.values, is_done = false](vernier::BetweenSteps& now) mutable {
                                      if (!std::exchange(is_done, true)) now.set_every(values.text(), values.integer());
                                      return false;
                                    });
     }},
    {"swap between steps",
     [](Context& c) {
       c.run.control->between_steps(c.plugin, [&values = c.values](vernier::BetweenSteps& now) {
         now.swap(values.swap());
         return false;
       });
     }},
    {"recompute", [](Context& c) { (void)c.run.control->recompute(); }},
    {"recompute_at", [](Context& c) { (void)c.run.control->recompute_at({}); }},
    {"recompute_at that throws", [](Context& c) { (void)c.run.control->recompute_at([] { throw 7; }); }},
    {"rerun", [](Context& c) { (void)c.run.control->rerun({}, {}); }},
    {"want_rerun", [](Context& c) { c.run.control->want_rerun(c.plugin); }},
    {"snapshot", [](Context& c) { (void)c.run.control->snapshot(); }},
    {"gather",
     [](Context& c) {
       (void)c.run.control->gather(State{{c.values.text(), c.values.tensor()}});
     }},
    {"set_model",
     [](Context& c) { c.run.set_model(c.values.below(2) == 0 ? nullptr : std::make_shared<torch::nn::Module>()); }},
    {"set_master", [](Context& c) { c.run.set_master(c.values.below(2) * 1000, c.values.tensor()); }},
    {"freeze", [](Context& c) { c.run.freeze(static_cast<std::size_t>(c.values.integer())); }},
    {"skip_when", [](Context& c) { c.run.skip_when(c.values.tensor()); }},
    {"notice", [](Context& c) { c.run.notice(nullptr, {}, c.values.text()); }},
    {"better", [](Context& c) { (void)c.run.better(c.values.text()); }},
    {"gradients", [](Context& c) { (void)c.run.gradients(); }},
    {"gradient_norm", [](Context& c) { (void)c.run.gradient_norm(); }},
    {"metrics.set", [](Context& c) { c.run.metrics.set(c.values.below(2) == 0 ? nullptr : "odd", c.values.tensor()); }},
    {"metrics.value", [](Context& c) { (void)c.run.metrics.value(nullptr); }},
    {"bus.on", [](Context& c) { c.bus->on(Event::StepEnd, [](const Run&) {}); }},
    {"learning_rate_factor", [](Context& c) { c.run.learning_rate_factor = c.values.real(); }},
    {"micro_batches", [](Context& c) { c.run.micro_batches = c.values.integer(); }},
    {"batches", [](Context& c) { c.run.batches = c.values.integer(); }},
    {"swapped",
     [](Context& c) {
       c.run.swapped = {c.values.text(), ""};
     }},
    {"notices",
     [](Context& c) {
       c.run.notices.push_back({c.values.text(), c.values.integer(), {{"", c.values.real()}}});
     }},
    {"batch.samples", [](Context& c) { c.run.batch.samples = c.values.integer(); }},
    {"batch.tokens", [](Context& c) { c.run.batch.tokens = c.values.integer(); }},
    {"batch.weight", [](Context& c) { c.run.batch.weight = c.values.real(); }},
    {"micro_batch.samples", [](Context& c) { c.run.micro_batch.samples = c.values.integer(); }},
    {"micro_batch.weight", [](Context& c) { c.run.micro_batch.weight = c.values.real(); }},
    {"loss", [](Context& c) { c.run.loss = c.values.tensor(); }},
    {"micro_batch_loss", [](Context& c) { c.run.micro_batch_loss = c.values.tensor(); }},
    {"found_inf", [](Context& c) { c.run.found_inf = c.values.tensor(); }},
    {"skip_update", [](Context& c) { c.run.skip_update = c.values.tensor(); }},
    {"grad_scale", [](Context& c) { c.run.grad_scale = c.values.tensor(); }},
    {"norms", [](Context& c) { c.run.norms.all = c.run.norms.each = c.values.tensor(); }},
    {"norms.before_clipping", [](Context& c) { c.run.norms.before_clipping = c.values.tensor(); }},
    {"narrow", [](Context& c) { (void)c.run.batch.narrow(c.values.integer(), c.values.integer()); }},
    {"share", [](Context& c) { (void)c.run.batch.share(c.values.integer(), c.values.integer()); }},
    {"concatenated",
     [](Context& c) {
       (void)vernier::Batch::concatenated({});
       (void)c;
     }},
    {"state",
     [](Context& c) {
       (void)State{{"a", c.values.tensor()}}.integer("a");
     }},
    // These have no wrong value: only the moment or the thread is wrong.
    {"finish", [](Context& c) { c.run.control->finish(c.plugin, c.values.text()); }},
    {"fail", [](Context& c) { c.run.control->fail(c.plugin, c.values.text()); }},
};

constexpr const char* is_right_at_any_event[] = {"finish", "fail"};
constexpr std::size_t of_control = 14;  // the first ones; a monitor has a constant run, and no more than them

constexpr const char* moments[] = {"prepare",      "check",          "evaluate",       "save",       "role",
                                   "role",         "RunBegin",       "StepBegin",      "BatchReady", "LossReady",
                                   "BackwardDone", "GradientsReady", "GradientsReady", "UpdateDone", "StepEnd",
                                   "Validated",    "EpochEnd",       "RunEnd"};

// The misuse of a number. only_looks: by a monitor.
struct Choice {
  Choice(int seed, bool only_looks) : values(static_cast<unsigned>(seed)) {
    misuse = &misuses[values.below(only_looks ? of_control : std::size(misuses))];
    moment = moments[values.below(std::size(moments))];
    is_in_thread = values.below(4) == 0;
    for (const auto* name : is_right_at_any_event) is_in_thread |= misuse->name == std::string(name);
  }
  std::string text() const {
    return std::string(misuse->name) + " at " + moment + (is_in_thread ? " in a thread" : "");
  }
  Values values;
  const Misuse* misuse;
  std::string moment;
  bool is_in_thread;
};

// The base of every role: makes its misuse at its moment, in the third call. A seed of -1: none.
template <class Base>
class Misuses : public Base {
 public:
  explicit Misuses(int seed) : is_misused_(seed >= 0), choice_(seed, std::is_base_of_v<vernier::Monitor, Base>) {
    this->set_id(std::string(Base::role) + "/misuses");
  }
  void attach(Bus& bus) override {
    bus_ = &bus;
    for (int i = 0; i < vernier::event_count; ++i) {
      const auto event = static_cast<Event>(i);
      bus.on(event,
             [this, event](auto& run) { at(vernier::name_of(event), const_cast<Run&>(static_cast<const Run&>(run))); });
    }
  }
  void prepare(Run& run) override {
    run_ = &run;
    Base::prepare(run);
    at("prepare", run);
  }
  void check(const Run& run) override { at("check", const_cast<Run&>(run)); }
  torch::Tensor evaluate(Run& run, const std::function<torch::Tensor()>& body) override {
    at("evaluate", run);
    return Base::evaluate(run, body);
  }
  State save() const override {
    const_cast<Misuses*>(this)->at("save", *run_);
    return Base::save();
  }

 protected:
  void at(const std::string& moment, Run& run) {
    if (!is_misused_ || moment != choice_.moment || is_acting_) return;
    const bool comes_once =
        moment == "prepare" || moment == "check" || moment == "RunBegin" || moment == "RunEnd" || moment == "RunFailed";
    if (!comes_once && ++calls_ != 3) return;
    is_acting_ = true;
    Context context{run, *this, bus_, choice_.values};
    std::exception_ptr thrown;
    const auto call = [&] {
      try {
        choice_.misuse->call(context);
      } catch (...) {
        thrown = std::current_exception();
      }
    };
    choice_.is_in_thread ? std::thread(call).join() : call();
    is_acting_ = false;
    if (thrown) std::rethrow_exception(thrown);
  }
  Run* run_ = nullptr;

 private:
  bool is_misused_, is_acting_ = false;
  Choice choice_;
  std::int64_t calls_ = 0;
  Bus* bus_ = nullptr;
};

struct Optimizer final : Misuses<toy::Descent> {
  using Misuses::Misuses;
  void step(Run& run) override {
    at("role", run);
    toy::Descent::step(run);
  }
};

struct Scaler final : Misuses<vernier::Scaler> {
  using Misuses::Misuses;
  torch::Tensor scale(const torch::Tensor& loss) override {
    at("role", *run_);
    return loss;
  }
  void unscale(Run&) override {}
};

struct Accumulation final : Misuses<vernier::Accumulation> {
  using Misuses::Misuses;
  std::vector<vernier::Batch> split(const vernier::Batch& batch) override {
    at("role", *run_);
    const auto half = batch.samples / 2;
    return {batch.narrow(0, half), batch.narrow(half, batch.samples - half)};
  }
};

struct Precision final : Misuses<vernier::Precision> {
  using Misuses::Misuses;
  torch::Tensor forward(const std::function<torch::Tensor()>& body) override {
    at("role", *run_);
    return body();
  }
};

// Puts a plugin that misuses the contract into a run.
const std::pair<const char*, void (*)(Toy& toy, int seed)> roles[] = {
    {"callback",
     [](Toy& toy, int seed) { toy.wiring.callbacks.push_back(std::make_unique<Misuses<vernier::Callback>>(seed)); }},
    {"scaler", [](Toy& toy, int seed) { toy.wiring.scaler = std::make_unique<Scaler>(seed); }},
    {"callback",
     [](Toy& toy, int seed) { toy.wiring.callbacks.push_back(std::make_unique<Misuses<vernier::Callback>>(seed)); }},
    {"accumulation", [](Toy& toy, int seed) { toy.wiring.accumulation = std::make_unique<Accumulation>(seed); }},
    {"monitor",
     [](Toy& toy, int seed) { toy.wiring.monitors.push_back(std::make_unique<Misuses<vernier::Monitor>>(seed)); }},
    {"optimizer", [](Toy& toy, int seed) { toy.wiring.optimizer = std::make_unique<Optimizer>(seed); }},
    {"precision", [](Toy& toy, int seed) { toy.wiring.precision = std::make_unique<Precision>(seed); }}};

// All that a run computes, or the error that ended it; in a process of its own, and a run that hangs is ended.
Result train(std::size_t role, int seed) {
  return vernier::ForkedCall(
             [&] {
               vernier::name_crashes();
               Toy toy;
               toy.run.steps = 8;
               toy.memory().every = 4;
               roles[role].second(toy, seed);
               const auto outcome = toy.prepare(/*validate_every=*/3).train(toy.run);
               std::ostringstream text;
               text << vernier::digest(*toy.run.model) << " after " << toy.run.updates << " updates and "
                    << toy.run.step << " steps of " << outcome.micro_batches << " micro-batches, validated "
                    << outcome.validation_loss.value_or(-1) << ", best " << outcome.best_loss.value_or(-1) << ", "
                    << toy.run.samples << " samples, finished by \"" << outcome.finished << "\", diverged: \""
                    << outcome.diverged << '"';
               return text.str();
             },
             20)
      .wait();
}

// Returns the fault of a run that ended so, or "".
std::string fault_of(const Result& result, const Result& plain) {
  if (result.kind == Result::Kind::ok) return result.text == plain.text ? "" : "done, and other: " + result.text;
  for (const char* end : {"the process ", "it took more than "}) {
    if (result.text.starts_with(end)) return result.text;
  }
  if (!says(result.text, "/misuses")) return "no plugin is named: " + result.text;
  return says(result.text, "\n") ? "more than a line: " + result.text : "";
}

}  // namespace

TEST_CASE("misuses: each of 500 at random ends in a line that names the plugin, or changes nothing") {
  std::vector<Result> plain;
  for (std::size_t role = 0; role < std::size(roles); ++role) {
    plain.push_back(train(role, -1));
    REQUIRE_MESSAGE(plain.back().kind == Result::Kind::ok, roles[role].first, ": ", plain.back().text);
  }
  for (int seed = 0; seed < (is_long() ? 5000 : 500); ++seed) {
    const auto role = static_cast<std::size_t>(seed) % std::size(roles);
    const auto fault = fault_of(train(role, seed), plain[role]);
    const auto what = Choice(seed, roles[role].first == std::string("monitor")).text();
    CHECK_MESSAGE(fault.empty(), std::string(roles[role].first), "/misuses with seed ", seed, ": ", what, ": ", fault);
  }
}

}  // namespace misuses_test
