// A savepoint restores every field of a run, from each stage; after a step that fails, it restores all that a
// checkpoint has.
#include "run/state/savepoint.h"

#include <ATen/ops/dropout.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <csignal>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "same_tensors.h"
#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

namespace savepoint_test {

using vernier::AmpStats;
using vernier::Batch;
using vernier::Counters;
using vernier::Event;
using vernier::Metrics;
using vernier::Notice;
using vernier::Run;
using vernier::StepState;
using vernier::UpdateResult;
using Strings = std::vector<std::string>;

namespace {

// A field of a run as text; equal fields have equal texts.
template <class Number>
std::string text_of(const Number& number) {
  std::ostringstream text;
  text.precision(17);
  text << number;
  return text.str();
}
std::string text_of(const torch::Tensor& tensor) {
  return tensor.defined() ? c10::str(tensor.scalar_type(), tensor.sizes(), ' ') + bytes_of(tensor) : "undefined";
}
std::string text_of(const Batch& batch) {
  auto text = c10::str(batch.samples, ' ', batch.tokens, ' ', batch.weight.value_or(-1));
  for (const auto& tensor : batch.tensors) text += ' ' + text_of(tensor);
  return text;
}
std::string text_of(const Metrics& metrics) {
  std::string text;
  for (const auto* entry : metrics.set_now()) text += entry->name + '=' + text_of(entry->value()) + ' ';
  return text;
}
std::string text_of(const std::vector<Notice>& notices) {
  std::string text;
  for (const auto& notice : notices) text += text_of(notice.step) + ' ' + notice.text() + '\n';
  return text;
}
std::string text_of(const Strings& words) {
  std::string text;
  for (const auto& word : words) text += word + '\n';
  return text;
}
std::string text_of(const UpdateResult& result) {
  return std::to_string(static_cast<int>(result));
}
std::string text_of(const AmpStats& amp) {
  return amp.json();
}

// Makes a field something else.
void spoil(torch::Tensor& tensor, int number) {
  tensor = torch::full({2}, 100.0 + number);
}
void spoil(Batch& batch, int number) {
  batch = {{torch::full({3}, 1.0 * number)}, 1000 + number, 2000 + number, 0.5 * number};
}
void spoil(std::int64_t& count, int number) {
  count += 1000 + number;
}
void spoil(double& value, int number) {
  value = 7.0 + number;
}
void spoil(bool& flag, int) {
  flag = !flag;
}
void spoil(UpdateResult& result, int) {
  result = result == UpdateResult::vetoed ? UpdateResult::none : UpdateResult::vetoed;
}
void spoil(Metrics& metrics, int number) {
  metrics.set("spoilt", 1.0 * number);
}
void spoil(std::vector<Notice>& notices, int number) {
  notices.push_back({"spoilt", number, {}});
}
void spoil(Strings& words, int number) {
  words.push_back("spoilt " + std::to_string(number));
}
void spoil(AmpStats& amp, int) {
  amp.add({.overflowed = true});
}

// visit(name, field) for each of them. A field that is new or gone breaks the compilation here, on purpose.
template <class Visit>
void for_each_field(Run& run, const Visit& visit) {
  auto& [batch, batches, micro_batch, micro_batches, micro_batch_loss, loss, found_inf, skip_update, grad_scale, norms,
         learning_rate_factor, metrics, notices, swapped, non_finite_reported] = static_cast<StepState&>(run);
  visit("batch", batch);
  visit("batches", batches);
  visit("micro_batch", micro_batch);
  visit("micro_batches", micro_batches);
  visit("micro_batch_loss", micro_batch_loss);
  visit("loss", loss);
  visit("found_inf", found_inf);
  visit("skip_update", skip_update);
  visit("grad_scale", grad_scale);
  visit("norms", norms.all);
  visit("norms of each", norms.each);
  visit("norm before clipping", norms.before_clipping);
  visit("learning_rate_factor", learning_rate_factor);
  visit("metrics", metrics);
  visit("notices", notices);
  visit("swapped", swapped);
  visit("non_finite_reported", non_finite_reported);
  auto& [step, updates, epoch, samples, tokens, batches_drawn, last_update, amp] =
      static_cast<Counters&>(static_cast<vernier::TrainerRun&>(run));
  visit("step", step);
  visit("updates", updates);
  visit("epoch", epoch);
  visit("samples", samples);
  visit("tokens", tokens);
  visit("batches_drawn", batches_drawn);
  visit("last_update", last_update);
  visit("amp", amp);
}

using Fields = std::map<std::string, std::string>;

Fields fields_of(Run& run) {
  Fields fields;
  for_each_field(run, [&](const char* name, auto& field) { fields[name] = text_of(field); });
  return fields;
}

// Returns them then. Each must differ from what it was.
Fields spoil_all(Run& run, int number) {
  const auto before = fields_of(run);
  for_each_field(run, [&](const char*, auto& field) { spoil(field, number); });
  auto after = fields_of(run);
  for (const auto& [name, text] : after) {
    CAPTURE(name);
    CHECK((text != before.at(name)));
  }
  return after;
}

void check_same(const Fields& found, const Fields& expected, const std::set<std::string>& but = {}) {
  REQUIRE(found.size() == expected.size());
  for (const auto& [name, text] : expected) {
    CAPTURE(name);
    if (!but.contains(name)) CHECK((found.at(name) == text));
  }
}

// Sets found_inf, so that skip_update is there too.
struct Finite final : vernier::Scaler {
  Finite() { set_id("scaler/finite"); }
  void unscale(Run& run) override { run.found_inf = torch::zeros({}); }
};

struct TwoParts : toy::Toy {
  TwoParts() {
    wiring.scaler = std::make_unique<Finite>();
    wiring.accumulation = std::make_unique<toy::MicroBatches>(std::vector<std::int64_t>{4, 2});
  }
};

constexpr std::int64_t at_step = 3;  // counted from 0

}  // namespace

TEST_CASE("savepoint: a step that fails leaves every field as it was when the step began, but for its notices") {
  for (const auto event : {Event::StepBegin, Event::BatchReady, Event::LossReady, Event::GradientsReady}) {
    CAPTURE(vernier::name_of(event));
    TwoParts toy;
    Fields begun, spoilt;
    toy.on(Event::StepBegin, [&](Run& run) {
      if (run.step == at_step) begun = fields_of(run);
    });
    toy.on(event, [&](Run& run) {
      if (run.step != at_step) return;
      spoilt = spoil_all(run, 1);
      throw std::runtime_error("boom");
    });
    toy.prepare();
    CHECK(says(thrown_by([&] { toy.trainer->train(toy.run); }).text, "boom"));
    REQUIRE_FALSE(spoilt.empty());
    const auto left = fields_of(toy.run);
    check_same(left, begun, {"notices"});
    CHECK((left.at("notices") == spoilt.at("notices")));
    CHECK(toy.memory().steps == std::vector<std::int64_t>{at_step});
  }
}

namespace {

// Spoils every field, has the gradients of a step computed again on the side, and spoils the fields there too.
class Rerunner final : public vernier::Callback {
 public:
  explicit Rerunner(std::string throws_in) : throws_in_(std::move(throws_in)) { set_id("callback/rerunner"); }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::StepBegin, [this](Run& run) {
      if (run.step == at_step) begun_ = fields_of(run);
    });
    bus.on(Event::LossReady, [this](Run&) {
      if (is_rerunning_) throw_if("compute");
    });
    bus.on(Event::GradientsReady, [this](Run& run) {
      if (run.step == at_step) rerun(run);
    });
  }
  void prepare(Run& run) override { run.control->want_rerun(*this); }
  bool is_done = false;

 private:
  void throw_if(const std::string& here) const {
    if (throws_in_ == here) throw vernier::Error("no");
  }
  void rerun(Run& run) {
    const StepState step = run;
    const Counters counters = static_cast<vernier::TrainerRun&>(run);
    begun_["batch"] = text_of(run.batch);
    begun_["metrics"] += "data_wait=" + text_of(run.metrics.value("data_wait").value()) + ' ';  // comes with the batch
    const auto spoilt = spoil_all(run, 1);
    const auto begin = [&] {
      check_same(fields_of(run), begun_);
      throw_if("begin");
    };
    const auto end = [&] {
      spoil_all(run, 2);
      throw_if("end");
    };
    is_rerunning_ = true;
    const auto thrown = thrown_by([&] { run.control->rerun(begin, end); });
    is_rerunning_ = false;
    CHECK((thrown == Thrown{}) == throws_in_.empty());
    check_same(fields_of(run), spoilt);
    static_cast<StepState&>(run) = step;
    static_cast<Counters&>(static_cast<vernier::TrainerRun&>(run)) = counters;
    is_done = true;
  }

  std::string throws_in_;
  Fields begun_;
  bool is_rerunning_ = false;
};

}  // namespace

TEST_CASE("savepoint: a rerun begins with every field as it was with the batch, and ends as if it had not been") {
  TwoParts plain;
  plain.prepare().train(plain.run);
  for (const std::string throws_in : {"", "begin", "compute", "end"}) {
    CAPTURE(throws_in);
    TwoParts toy;
    auto made = std::make_unique<Rerunner>(throws_in);
    const auto& rerunner = *made;
    toy.wiring.callbacks.push_back(std::move(made));
    toy.prepare().train(toy.run);
    CHECK(rerunner.is_done);
    CHECK(toy.run.updates == 6);
    CHECK(equal(toy.weights(), plain.weights()));
  }
}

namespace {

// Places at which a step may fail: at events and in the task, where it is called for each micro-batch in the second.
const Strings places = {"StepBegin", "task.next", "BatchReady", "task.loss", "LossReady", "backward", "GradientsReady"};

[[noreturn]] void boom() {
  throw std::runtime_error("boom");
}

// Its batches and its loss use random numbers, and its loss a buffer that it writes.
class Frail final : public toy::Task {
 public:
  Frail(std::string place, std::int64_t step) : fails_at_(std::move(place)), fails_in_(step) {}
  Batch next() override {
    auto batch = toy::Task::next();
    batch.tensors[0] = batch.tensors[0] + 0.1 * torch::rand({6, 3});
    micro_batches_ = 0;
    if (is_here("task.next")) boom();
    return batch;
  }
  torch::Tensor loss(const Batch& micro_batch) override {
    const bool is_second = ++micro_batches_ == 2;
    {
      const torch::NoGradGuard no_grad;
      model->seen.add_(static_cast<double>(micro_batch.samples));
    }
    const auto hidden = at::tanh(at::linear(at::dropout(micro_batch.tensors[0], 0.3, true), model->first));
    if (is_second && is_here("task.loss")) boom();
    // When the second weight has its gradient and the first has not.
    if (is_second && is_here("backward")) hidden.register_hook([](const torch::Tensor&) { boom(); });
    return at::mse_loss(at::linear(hidden, model->second), micro_batch.tensors[1]);
  }
  torch::Tensor validate(Run&) override { return {}; }

 private:
  bool is_here(const char* place) const { return fails_at_ == place && place_ == fails_in_ + 1; }
  std::string fails_at_;
  std::int64_t fails_in_;
  int micro_batches_ = 0;
};

struct Policy {
  std::string precision, scaler, optimizer;
  Strings callbacks;
};

// A run that fails at a place, in the step after so many; or stops before it, where there is no place.
struct Trajectory : toy::Toy {
  Trajectory(const Policy& policy, std::int64_t steps, const std::string& place) {
    run.steps = steps + 3;
    wiring.task = std::make_unique<Frail>(place, steps);
    wiring.accumulation = std::make_unique<toy::MicroBatches>(std::vector<std::int64_t>{4, 2});
    wiring.precision = make_plugin<vernier::Precision>("precision/" + policy.precision);
    wiring.scaler = make_plugin<vernier::Scaler>("scaler/" + policy.scaler);
    if (!policy.optimizer.empty()) wiring.optimizer = make_plugin<vernier::Optimizer>("optimizer/" + policy.optimizer);
    for (const auto& name : policy.callbacks) {
      wiring.callbacks.push_back(make_plugin<vernier::Callback>("callback/" + name));
    }
    wiring.callbacks.push_back(std::make_unique<toy::Told<vernier::Callback>>(
        "callback/fails", [this, steps, place](vernier::Bus& bus) { fail_at(bus, steps, place); }));
    torch::manual_seed(3);
    prepare();
  }

 private:
  void fail_at(vernier::Bus& bus, std::int64_t steps, const std::string& place) {
    for (const auto event : {Event::StepBegin, Event::BatchReady, Event::LossReady, Event::GradientsReady}) {
      const bool is_of_micro_batch = event == Event::BatchReady || event == Event::LossReady;
      bus.on(event, [=](Run& now) {
        const bool is_first = is_of_micro_batch && !now.loss.defined();
        if (now.step == steps && place == vernier::name_of(event) && !is_first) boom();
      });
    }
    bus.on(Event::StepEnd, [this, steps, place](Run& now) {
      if (place.empty() && now.step == steps) stop = SIGINT;
    });
  }
};

// The saved results of a run.
struct Saved {
  std::string digest;  // the digest of the run's last model
  std::vector<std::int64_t> steps;
  vernier::Tensors last;
};

Saved saved_by(const Run& run, const toy::Memory& memory) {
  return {vernier::digest(*run.model), memory.steps, memory.last ? memory.last->tensors : vernier::Tensors()};
}

Saved saved_by(const Policy& policy, std::int64_t steps, const std::string& place, bool undoes = true) {
  Trajectory trajectory(policy, steps, place);
  trajectory.trainer->step().transaction().undo_failed_steps(undoes);
  const auto thrown = thrown_by([&] { trajectory.trainer->train(trajectory.run); });
  CHECK(says(thrown.text, "boom") == !place.empty());
  return saved_by(trajectory.run, trajectory.memory());
}

// As the run that stopped after so many steps, with every tensor of the snapshot.
void check_saved(const Saved& found, const Saved& stopped, std::int64_t steps) {
  CHECK(stopped.steps == std::vector<std::int64_t>{steps});
  CHECK(found.steps == stopped.steps);
  CHECK(found.digest == stopped.digest);
  check_equal(found.last, stopped.last);
}

const std::vector<Policy> policies = {{"fp32", "none", "", {}},
                                      {"fp32", "none", "adamw", {"ema", "schedule", "recovery"}},
                                      {"bf16", "none", "adamw", {"recovery", "ema"}},
                                      {"fp16", "dynamic", "sgd", {"schedule", "ema", "recovery"}}};

}  // namespace

TEST_CASE("savepoint: a step that fails anywhere before its update saves what a run that stopped before it saves") {
  for (const auto& policy : policies) {
    CAPTURE(policy.precision);
    CAPTURE(policy.optimizer);
    for (const std::int64_t steps : {1, 3, 4}) {
      CAPTURE(steps);
      const auto stopped = saved_by(policy, steps, "");
      for (const auto& place : places) {
        CAPTURE(place);
        check_saved(saved_by(policy, steps, place), stopped, steps);
      }
    }
  }
}

TEST_CASE("savepoint: so does the 5001st of very short steps") {
  constexpr std::int64_t steps = 5000;
  const auto stopped = saved_by(policies[0], steps, "");
  for (const char* place : {"StepBegin", "task.loss", "GradientsReady"}) {
    CAPTURE(place);
    check_saved(saved_by(policies[0], steps, place), stopped, steps);
  }
}

TEST_CASE("savepoint: where failed steps are not undone, nothing is saved") {
  for (const auto& place : places) {
    CAPTURE(place);
    CHECK(saved_by(policies[1], 3, place, /*undoes=*/false).steps.empty());
  }
}

namespace {

// A small GPT with dropout, by TOML, that stops after three steps, or fails in the fourth at an event.
Saved saved_by(const vernier::Table& config, std::optional<Event> event) {
  SmallRun run(config);
  auto made = std::make_unique<toy::Memory>();
  const auto& memory = *made;
  run.wiring->checkpoint = std::move(made);
  if (event) {
    run.on(*event, [](Run& now) {
      if (now.step == at_step) boom();
    });
  } else {
    run.stop_after(at_step);
  }
  const auto thrown = thrown_by([&] { run.train(); });
  CHECK(says(thrown.text, "boom") == event.has_value());
  return saved_by(run.run, memory);
}

}  // namespace

TEST_CASE("savepoint: a step that fails is undone whole with the plugins of the product, in every precision" *
          doctest::test_suite("text")) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + '\n';
  const auto task = "[run]\nsteps = 6\n[task]\nuse = 'gpt'\ndata = ['" + folder.write("text", text) +
                    "']\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 8\nbatch_size = 4\nvalidation = 0.0\n"
                    "dropout = 0.1\n[accumulation]\nuse = 'fixed'\nmicro_batches = 2\n[optimizer]\nuse = 'adamw'\n"
                    "[checkpoint]\nuse = 'none'\n[[callback]]\nuse = 'ema'\n[[callback]]\nuse = 'recovery'\n"
                    "[[callback]]\nuse = 'clip_norm'\nmax_norm = 1.0\n[[callback]]\nuse = 'flight_recorder'\n"
                    "every = 1\n";
  for (const std::string precision :
       {"use = 'fp32'\n", "use = 'bf16'\n", "use = 'bf16'\nlevel = 'O2'\n",
        "use = 'bf16'\nlevel = 'O3'\nrounding = 'stochastic'\n", "use = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'\n",
        "use = 'fp8'\nrecipe = 'delayed'\n", "use = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 256\n",
        "use = 'fp16'\nlevel = 'O2'\n[scaler]\nuse = 'statistical'\n", "use = 'fp16'\n[scaler]\nuse = 'per_layer'\n"}) {
    CAPTURE(precision);
    const auto config = from_toml({task, "[precision]\n" + precision});
    const auto stopped = saved_by(config, std::nullopt);
    for (const auto event : {Event::StepBegin, Event::BatchReady, Event::LossReady, Event::GradientsReady}) {
      CAPTURE(vernier::name_of(event));
      check_saved(saved_by(config, event), stopped, at_step);
    }
  }
}

}  // namespace savepoint_test
