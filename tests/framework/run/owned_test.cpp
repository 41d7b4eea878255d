// The run is the trainer's: who may change what, and when its functions may be called.
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/sdk.h>
#include <vernier/with_weights.h>

#include <cmath>
#include <type_traits>

#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"
#include "wiring/swap.h"

namespace owned_test {

using toy::Toy;
using vernier::Batch;
using vernier::Event;
using vernier::Run;

// The fields that the trainer owns are references to constants: what a plugin must not do does not compile.
template <class Field>
constexpr bool is_constant = std::is_const_v<std::remove_reference_t<Field>>;
static_assert(is_constant<decltype(Run::step)> && is_constant<decltype(Run::updates)> &&
              is_constant<decltype(Run::epoch)> && is_constant<decltype(Run::samples)> &&
              is_constant<decltype(Run::tokens)> && is_constant<decltype(Run::batches_drawn)> &&
              is_constant<decltype(Run::amp)> && is_constant<decltype(Run::last_update)>);
static_assert(is_constant<decltype(Run::model)> && is_constant<decltype(Run::device)> &&
              is_constant<decltype(Run::output)> && is_constant<decltype(Run::steps)> &&
              is_constant<decltype(Run::seed)> && is_constant<decltype(Run::parameters)> &&
              is_constant<decltype(Run::control)> && is_constant<decltype(Run::measures)>);
static_assert(!std::is_copy_constructible_v<Run> && !std::is_copy_assignable_v<Run>);

namespace {

struct Requester final : vernier::Callback {
  Requester() { set_id("callback/requester"); }
};

struct Case {
  const char* name;
  Event event;
  void (*call)(Run& run);
  std::string text;
};

const std::string gradients_text =
    "is called outside of its moment: the gradients hold from Scaler::unscale to the optimizer's step, at "
    "GradientsReady "
    "for a listener";
const std::string recompute_text =
    "is called outside of its moment: call it in Optimizer::step, or in a listener of GradientsReady";
const std::string prepare_text = "is called outside of its moment: call it in Plugin::prepare";
Requester requester;

const Case cases[] = {
    {"gradients after the update", Event::UpdateDone, [](Run& run) { (void)run.gradients(); },
     "callback/told at UpdateDone of step 1: run.gradients() " + gradients_text},
    {"gradients at the next batch", Event::BatchReady,
     [](Run& run) {
       if (run.step == 1) (void)run.gradients();
     },
     "callback/told at BatchReady of step 2: run.gradients() " + gradients_text},
    {"norm after the step", Event::StepEnd, [](Run& run) { (void)run.gradient_norm(); },
     "callback/told at StepEnd of step 1: run.gradient_norm() " + gradients_text},
    {"recompute after the step", Event::StepEnd, [](Run& run) { (void)run.control->recompute(); },
     "callback/told at StepEnd of step 1: run.control->recompute() " + recompute_text},
    {"recompute_at before the batch", Event::StepBegin, [](Run& run) { (void)run.control->recompute_at([] {}); },
     "callback/told at StepBegin of step 1: run.control->recompute_at() " + recompute_text},
    {"savepoints in a step", Event::BatchReady, [](Run& run) { run.control->keep_savepoints(1, 1); },
     "callback/told at BatchReady of step 1: run.control->keep_savepoints() " + prepare_text},
    {"looks in a step", Event::StepEnd,
     [](Run& run) { run.control->between_steps(requester, [](vernier::BetweenSteps&) { return false; }); },
     "callback/told at StepEnd of step 1: run.control->between_steps() " + prepare_text},
    {"finish before the first step", Event::RunBegin, [](Run& run) { run.control->finish(requester, "enough"); },
     "callback/told at RunBegin of step 1: run.control->finish() is called outside of its moment: call it once the run "
     "has begun"},
    {"another model", Event::StepBegin, [](Run& run) { run.set_model(std::make_shared<torch::nn::Module>()); },
     "callback/told at StepBegin of step 1: run.set_model() is called again: a run has one model, which Task::prepare "
     "sets"},
    {"a master in mid-run", Event::StepBegin,
     [](Run& run) {
       run.set_master(0, torch::zeros({4, 3}));
     },
     "callback/told at StepBegin of step 1: run.set_master() is called outside of its moment: call it in "
     "Precision::prepare"},
    {"frozen in mid-run", Event::StepBegin, [](Run& run) { run.freeze(0); },
     "callback/told at StepBegin of step 1: run.freeze() is called outside of its moment: call it in "
     "Optimizer::prepare"},
    {"a veto that is not a number", Event::GradientsReady, [](Run& run) { run.skip_when(torch::ones({2})); },
     "callback/told at GradientsReady of step 1: run.skip_when() got a tensor of shape [2]; give one number, not 0 "
     "where "
     "the update is to be skipped"}};

}  // namespace

TEST_CASE("owned: calls outside of their moment are refused in one sentence") {
  for (const auto& [name, event, call, text] : cases) {
    CAPTURE(name);
    Toy toy;
    toy.on(event, call);
    auto& trainer = toy.prepare();
    CHECK(thrown_by([&] { trainer.train(toy.run); }).text == text);
  }
}

TEST_CASE("owned: a master has the shape of its parameter, and a commit that brings it back") {
  struct Masters final : vernier::Precision {
    explicit Masters(torch::Tensor master) : master_(std::move(master)) { set_id("precision/masters"); }
    void prepare(Run& run) override {
      run.set_master(0, master_.defined() ? master_ : run.parameters[0].model.detach().clone());
    }
    void collect(Run& run) override { run.parameters[0].master.mutable_grad() = run.parameters[0].model.grad(); }
    torch::Tensor master_;
  };
  Toy other_shape;
  other_shape.wiring.precision = std::make_unique<Masters>(torch::zeros({1}));
  CHECK(thrown_by([&] { other_shape.prepare(); }).text ==
        "precision/masters: run.set_master() got a tensor of shape [1] for first, whose shape is [4, 3]; a master has "
        "the shape of its parameter");
  Toy no_commit;
  no_commit.wiring.precision = std::make_unique<Masters>(torch::Tensor());
  no_commit.prepare();
  const auto text = thrown_by([&] { no_commit.trainer->train(no_commit.run); }).text;
  CHECK(text.find("precision/masters in step 1: it has a master of its own for first, and no commit()") == 0);
}

TEST_CASE("owned: sizes and weights that cannot be are refused in the name of who gave them") {
  struct Gathers final : vernier::Accumulation {
    explicit Gathers(std::int64_t many, double weight) : many(many), weight(weight) { set_id("accumulation/gathers"); }
    std::vector<Batch> split(const Batch& batch) override {
      auto part = batch;
      part.weight = weight;
      return {part};
    }
    bool gathers() const override { return true; }
    std::int64_t batches_per_update(std::int64_t, std::int64_t, std::int64_t) override { return many; }
    std::int64_t many;
    double weight;
  };
  const auto refused = [](std::int64_t many, double weight, std::int64_t epochs) {
    Toy toy;
    toy.wiring.accumulation = std::make_unique<Gathers>(many, weight);
    return thrown_by([&] { toy.prepare(0, epochs).train(toy.run); }).text;
  };
  CHECK(refused(0, 1, 0) == "accumulation/gathers in step 1: its batches_per_update is 0, and must be at least 1");
  CHECK(refused(-2, 1, 1) == "accumulation/gathers: its batches_per_update is -2, and must be at least 1");
  for (const double weight : {-1.0, double(NAN), HUGE_VAL}) {
    CHECK(refused(1, weight, 0).find("accumulation/gathers in step 1: the weight of a micro-batch is ") == 0);
  }
  struct Weighs : toy::Task {
    std::optional<double> weight_of(const Batch&) const override { return -3.0; }
  };
  Toy toy;
  toy.wiring.task = std::make_unique<Weighs>();
  CHECK(thrown_by([&] { toy.prepare().train(toy.run); }).text ==
        "task/toy in step 1: the weight of a micro-batch is -3, and must be at least 0");
}

TEST_CASE("owned: updates whose size depends on what was trained end with the last epoch, resumed or not") {
  // Twice as many batches an update after every fourth.
  struct Grows final : vernier::Accumulation {
    Grows() { set_id("accumulation/grows"); }
    std::vector<Batch> split(const Batch& batch) override { return ++updates, std::vector<Batch>{batch}; }
    bool gathers() const override { return true; }
    std::int64_t batches_per_update(std::int64_t, std::int64_t, std::int64_t) override { return 1 + updates / 4; }
    vernier::State save() const override {
      vernier::State state;
      state.put("updates", updates);
      return state;
    }
    void load(const vernier::State& state) override { updates = state.integer("updates"); }
    std::int64_t updates = 0;
  };
  const auto train = [](std::int64_t stop_at) {
    Toy toy;
    toy.wiring.task = std::make_unique<toy::Task>(10);
    toy.wiring.accumulation = std::make_unique<Grows>();
    toy.run.steps = 0;
    toy.on(Event::StepEnd, [&](Run& run) {
      if (run.step == stop_at) toy.stop = 2;
    });
    toy.prepare(0, 3).train(toy.run);
    if (toy.stop == 0) return std::pair(toy.run.step, vernier::digest(*toy.run.model));
    Toy resumed;
    resumed.wiring.task = std::make_unique<toy::Task>(10);
    resumed.wiring.accumulation = std::make_unique<Grows>();
    resumed.run.steps = 0;
    resumed.on(Event::StepEnd, [](Run&) {});
    auto& trainer = resumed.prepare(0, 3);
    trainer.resume(resumed.run, *toy.memory().last);
    trainer.train(resumed.run);
    CHECK(resumed.run.batches_drawn == 30);
    CHECK(resumed.run.epoch == 3);
    return std::pair(resumed.run.step, vernier::digest(*resumed.run.model));
  };
  const auto whole = train(-1);
  CHECK(whole.first < 30);
  for (const std::int64_t stop : {1, 4, 5, 9}) CHECK(train(stop) == whole);
}

TEST_CASE("owned: the task puts the batches of an update together") {
  // Rows of other lengths, padded to the longest.
  struct Ragged : toy::Task {
    Batch next() override {
      auto batch = toy::Task::next();
      batch.tensors.push_back(torch::ones({6, 1 + place_ % 3}));
      return batch;
    }
    Batch concatenated(const std::vector<Batch>& batches) const override {
      std::vector<Batch> padded = batches;
      for (auto& batch : padded)
        batch.tensors[2] = at::constant_pad_nd(batch.tensors[2], {0, 3 - batch.tensors[2].size(1)});
      return Batch::concatenated(padded);
    }
  };
  struct Two final : vernier::Accumulation {
    Two() { set_id("accumulation/two"); }
    std::vector<Batch> split(const Batch& batch) override { return {batch}; }
    bool gathers() const override { return true; }
    std::int64_t batches_per_update(std::int64_t, std::int64_t, std::int64_t) override { return 2; }
  };
  Toy toy;
  toy.wiring.task = std::make_unique<Ragged>();
  toy.wiring.accumulation = std::make_unique<Two>();
  torch::Tensor seen;
  toy.on(Event::BatchReady, [&](Run& run) {
    if (run.batches == 2) seen = run.batch.tensors[2];
  });
  toy.prepare().train(toy.run);
  CHECK(seen.size(1) == 3);
}

TEST_CASE("owned: an event after each micro-batch's backward, when its gradients are added up") {
  Toy toy;
  toy.wiring.accumulation = std::make_unique<toy::MicroBatches>(std::vector<std::int64_t>{1, 2, 3});
  std::vector<double> norms;
  toy.on(Event::BackwardDone, [&](Run& run) {
    norms.push_back(run.parameters[0].model.grad().norm().item<double>());
    CHECK_FALSE(run.micro_batch_loss.defined());
  });
  double whole = 0;
  toy.on(Event::GradientsReady, [&](Run& run) {
    whole = run.parameters[0].model.grad().norm().item<double>();
    double squares = 0;
    for (const auto& gradient : run.gradients()) squares += gradient.norm().square().item<double>();
    CHECK(run.gradient_norm().item<double>() == doctest::Approx(std::sqrt(squares)));
    CHECK(run.gradient_norm().is_same(run.gradient_norm()));
  });
  toy.run.steps = 1;
  toy.prepare().train(toy.run);
  REQUIRE(norms.size() == 3);
  CHECK(norms.back() == whole);
  CHECK(norms[0] != norms[1]);
}

TEST_CASE("owned: vetoes add up, of any type") {
  for (const auto& flags : std::vector<std::vector<torch::Tensor>>{{torch::zeros({}), torch::ones({}, torch::kInt64)},
                                                                   {torch::ones({}, torch::kBool), torch::zeros({1})},
                                                                   {torch::full({}, 0.5)}}) {
    Toy toy;
    toy.on(Event::GradientsReady, [&](Run& run) {
      for (const auto& flag : flags) run.skip_when(flag);
      CHECK((run.skip_update.scalar_type() == torch::kFloat32));
    });
    toy.prepare().train(toy.run);
    CHECK(toy.run.updates == 0);
  }
}

TEST_CASE("owned: an optimizer evaluates with weights of its own") {
  // Lookahead in small: it trains fast weights, and evaluates with slow ones.
  struct Slow final : toy::Descent {
    void step(Run& run) override {
      toy::Descent::step(run);
      const torch::NoGradGuard no_grad;
      for (const auto& parameter : run.parameters) {
        if (slow.size() < run.parameters.size()) slow.push_back(parameter.master.clone());
      }
      for (std::size_t i = 0; i < slow.size(); ++i) slow[i].lerp_(run.parameters[i].master, 0.1);
    }
    torch::Tensor evaluate(Run& run, const std::function<torch::Tensor()>& body) override {
      return slow.empty() ? body() : vernier::with_weights(slow, run, body);
    }
    std::vector<torch::Tensor> slow;
  };
  Toy toy, plain;
  toy.wiring.optimizer = std::make_unique<Slow>();
  const auto outcome = toy.prepare().train(toy.run), without = plain.prepare().train(plain.run);
  CHECK(vernier::digest(*toy.run.model) == vernier::digest(*plain.run.model));
  CHECK(outcome.validation_loss != without.validation_loss);
}

TEST_CASE("owned: one plugin fills a second role where the TOML leaves it out, and both are swapped or none") {
  struct Both final : vernier::Precision {
    struct Part final : vernier::Scaler {
      explicit Part(Both& whole) : whole(whole) {}
      bool scales() const override { return false; }
      void unscale(Run&) override { whole.unscaled += 1; }
      Both& whole;
    };
    Both() { set_id("precision/both"); }
    std::unique_ptr<vernier::Plugin> fill(const std::string& role) override {
      return role == vernier::Scaler::role ? std::make_unique<Part>(*this) : nullptr;
    }
    int unscaled = 0;
  };
  const auto wired = [](const std::string& more) {
    std::vector<vernier::Given> given;
    given.push_back(vernier::given("precision", std::make_unique<Both>(), vernier::Options("", {}, "")));
    given.push_back(vernier::given("task", std::make_unique<toy::Task>(), vernier::Options("", {}, "")));
    return vernier::wire(from_toml({"[optimizer]\nuse = 'sgd'\n[checkpoint]\nuse = 'none'\n" + more}), built_plugins(),
                         std::move(given));
  };
  CHECK(wired("[scaler]\nuse = 'none'")->scaler->id() == "scaler/none");
  const auto wiring = wired("");
  CHECK(wiring->scaler->id() == "scaler/both");
  const std::atomic<int> stop = 0;
  vernier::TrainingLoop trainer(*wiring, 0, stop);
  vernier::TrainerRun run;
  run.steps = 3;
  trainer.prepare(run, 0);
  trainer.train(run);
  CHECK(static_cast<Both&>(*wiring->precision).unscaled == 3);
  const auto half = thrown_by([&] { vernier::swap(*wiring, run, from_toml({"precision = {use = 'bf16'}"})); });
  CHECK(half == configuration("precision/both fills the role scaler too; swap `scaler` with it"));
}

}  // namespace owned_test
