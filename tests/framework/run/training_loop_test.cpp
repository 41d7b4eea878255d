#include "run/training_loop.h"
#include <vernier/host.h>

#include <doctest/doctest.h>

#include <csignal>
#include <map>
#include <numeric>
#include <utility>

#include "log_lines.h"
#include "run/state/snapshot.h"
#include "same_tensors.h"
#include "thrown.h"
#include "toy_run.h"

namespace training_loop_test {

using toy::Toy;
using vernier::Error;
using vernier::Event;
using vernier::Options;
using vernier::Run;
using vernier::Table;
using Sizes = std::vector<std::int64_t>;

namespace {

// The same training, written by hand, over the batches of these numbers in this order.
std::vector<torch::Tensor> trained_on(const Sizes& batches) {
  toy::Task task;
  vernier::TrainerRun run;
  task.prepare(run);
  for (const auto number : batches) {
    task.loss(task.batch(number % task.batches_per_epoch())).backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : run.model->parameters()) {
      parameter.sub_(parameter.grad(), 0.1);
      parameter.mutable_grad().reset();
    }
  }
  std::vector<torch::Tensor> weights;
  for (const auto& parameter : run.model->parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

std::vector<torch::Tensor> plain_loop(std::int64_t steps) {
  Sizes batches(static_cast<std::size_t>(steps));
  std::iota(batches.begin(), batches.end(), 0);
  return trained_on(batches);
}

Table with(const char* key, vernier::Value value) {
  return {{key, std::move(value)}};
}

vernier::Value integer(std::int64_t value) {
  return {value, ""};
}

// Notices as monitors see them at each StepEnd.
std::vector<std::string>& notices_of(Toy& toy, bool in_sentences = false) {
  static std::vector<std::string> texts;
  texts.clear();
  toy.look(Event::StepEnd, [in_sentences](const Run& run) {
    for (const auto& notice : run.notices) texts.push_back(in_sentences ? notice.sentence : notice.text());
  });
  return texts;
}

}  // namespace

TEST_CASE("trainer: a batch in one micro-batch trains bit for bit as a plain loop") {
  Toy toy;
  toy.prepare().train(toy.run);
  CHECK(toy.run.step == 6);
  CHECK(toy.run.updates == 6);
  CHECK(toy.run.samples == 36);
  CHECK(toy.run.tokens == 360);
  CHECK(equal(toy.weights(), plain_loop(6)));
}

TEST_CASE("trainer: a batch in any micro-batches has the gradient of the whole") {
  const auto expected = plain_loop(6);
  for (const Sizes& sizes : {Sizes{3, 3}, Sizes{5, 1}, Sizes{1, 2, 3}, Sizes{1, 1, 1, 3}, Sizes{2, 1, 1, 1, 1}}) {
    Toy toy;
    toy.wiring.accumulation = std::make_unique<toy::MicroBatches>(sizes);
    toy.prepare().train(toy.run);
    const auto weights = toy.weights();
    REQUIRE(weights.size() == expected.size());
    for (std::size_t i = 0; i < weights.size(); ++i) CHECK(weights[i].allclose(expected[i], 1e-6, 1e-6));
  }
}

TEST_CASE("trainer: the loss is the mean of the batch, whatever the micro-batches") {
  Toy whole, split;
  split.wiring.accumulation = std::make_unique<toy::MicroBatches>(Sizes{1, 5});
  for (auto* toy : {&whole, &split}) {
    toy->run.steps = 1;
    toy->prepare().train(toy->run);
  }
  CHECK(split.run.loss.item<double>() == doctest::Approx(whole.run.loss.item<double>()).epsilon(1e-6));
}

namespace {

// Batches of 8. The size of a micro-batch says its loss, in bfloat16.
struct OfSizes final : toy::Task {
  vernier::Batch next() override { return {{torch::zeros({8, 3})}, 8, 0}; }
  torch::Tensor loss(const vernier::Batch& micro_batch) override {
    const std::map<std::int64_t, double> values = {{1, 8.0}, {3, 2.0}, {4, 1.0}, {8, 0.5}};
    const auto nothing = (model->first.sum() + model->second.sum()) * 0;
    return (nothing + values.at(micro_batch.samples)).to(torch::kBFloat16);
  }
};

// Keeps what is differentiated.
struct Looks final : vernier::Scaler {
  Looks() { set_id("scaler/looks"); }
  torch::Tensor scale(const torch::Tensor& loss) override { return scaled.emplace_back(loss); }
  std::vector<torch::Tensor> scaled;
};

// One step of it.
struct OneStep : Toy {
  explicit OneStep(const Sizes& sizes) {
    wiring.task = std::make_unique<OfSizes>();
    wiring.accumulation = std::make_unique<toy::MicroBatches>(sizes);
    auto scaler = std::make_unique<Looks>();
    looks = scaler.get();
    wiring.scaler = std::move(scaler);
    on(Event::LossReady, [this](Run& now) { last_loss = now.micro_batch_loss; });
    prepare().step().step(run);
  }
  Looks* looks = nullptr;
  torch::Tensor last_loss;
};

}  // namespace

TEST_CASE("trainer: each micro-batch counts by its samples, and the loss of the batch is in float32") {
  const OneStep one(Sizes{1, 3, 4});
  const std::vector<double> weighed = {8.0 * 1 / 8, 2.0 * 3 / 8, 1.0 * 4 / 8};
  REQUIRE(one.looks->scaled.size() == weighed.size());
  for (std::size_t i = 0; i < weighed.size(); ++i) CHECK(one.looks->scaled[i].item<double>() == weighed[i]);
  CHECK(one.run.loss.item<double>() == (8.0 + 6.0 + 4.0) / 8);
  CHECK((one.run.loss.scalar_type() == torch::kFloat32));
  CHECK_FALSE(one.run.loss.requires_grad());
}

TEST_CASE("trainer: a whole batch weighs itself, without a kernel") {
  const OneStep one(Sizes{8});
  REQUIRE(one.looks->scaled.size() == 1);
  CHECK(one.looks->scaled[0].is_same(one.last_loss));
}

TEST_CASE("trainer: the learning rate's factor is 1 in each step and callbacks multiply theirs in") {
  Toy half;
  std::vector<double> before;
  half.on(Event::StepBegin, [&](Run& run) {
    before.push_back(run.learning_rate_factor);
    run.learning_rate_factor *= 0.5;
  });
  half.on(Event::GradientsReady, [](Run& run) { run.learning_rate_factor *= 0.0; });
  auto& trainer = half.prepare();
  const auto start = half.weights();
  trainer.train(half.run);
  CHECK(before == std::vector<double>(6, 1.0));
  CHECK(equal(half.weights(), start));
  CHECK(half.run.learning_rate_factor == 0.0);
}

TEST_CASE("trainer: an update that is not finite is skipped, counted and reported") {
  Toy toy;
  toy.task().overflows_in = 3;
  toy.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic");
  const auto& notices = notices_of(toy);
  std::vector<std::vector<torch::Tensor>> weights;
  toy.on(Event::StepEnd, [&](Run&) { weights.push_back(toy.weights()); });
  toy.prepare().train(toy.run);
  CHECK(toy.run.step == 6);
  CHECK(toy.run.updates == 5);
  REQUIRE(weights.size() == 6);
  CHECK(equal(weights[2], weights[1]));
  CHECK_FALSE(equal(weights[3], weights[2]));
  CHECK(notices == std::vector<std::string>{"step_skipped step=3 reason=gradients not finite gradients=first,second",
                                            "scale_changed from=65536 to=32768"});
}

TEST_CASE("trainer: a notice has a sentence for people") {
  Toy toy;
  toy.task().overflows_in = 3;
  toy.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic");
  toy.on(Event::GradientsReady, [](Run& run) {
    if (run.step == 4) run.skip_update = torch::ones({});
  });
  const auto& sentences = notices_of(toy, true);
  toy.prepare().train(toy.run);
  CHECK(sentences == std::vector<std::string>{"the update is skipped: gradients are not finite (first,second)",
                                              "the loss scale changed from 65536 to 32768",
                                              "a callback skipped the update"});
}

TEST_CASE("trainer: notices are those of one step") {
  Toy toy;
  const auto& notices = notices_of(toy);
  toy.on(Event::StepBegin, [](Run& run) { run.notice("throttled", {{"step", run.step}}); });
  toy.run.steps = 3;
  toy.prepare().train(toy.run);
  CHECK(notices == std::vector<std::string>{"throttled step=0", "throttled step=1", "throttled step=2"});
}

TEST_CASE("trainer: recompute gives the same gradients and loss again") {
  struct Twice final : toy::Descent {
    void step(Run& run) override {
      std::vector<torch::Tensor> first;
      for (const auto& gradient : run.gradients()) first.push_back(gradient.clone());
      const torch::NoGradGuard no_grad;  // an optimizer records nothing
      const auto loss = run.control->recompute();
      same =
          same && equal(run.gradients(), first) && loss.equal(run.loss) && run.gradients()[0].ne(0).any().item<bool>();
      Descent::step(run);
    }
    bool same = true;
  };
  for (const char* scaler : {"none", "static", "dynamic"}) {
    CAPTURE(scaler);
    Toy toy;
    auto optimizer = std::make_unique<Twice>();
    const auto& twice = *optimizer;
    toy.wiring.optimizer = std::move(optimizer);
    toy.wiring.scaler = make_plugin<vernier::Scaler>(std::string("scaler/") + scaler);
    toy.wiring.accumulation = std::make_unique<toy::MicroBatches>(Sizes{4, 2});
    CHECK(thrown_by([&] { toy.prepare().train(toy.run); }) == Thrown{});
    CHECK(twice.same);
    CHECK(toy.run.updates == 6);
  }
}

TEST_CASE("trainer: an inf in the first of two passes skips the update, though the second is finite") {
  struct Twice final : toy::Descent {
    void step(Run& run) override {
      run.skip_update.fill_(1);  // a scaler leaves it so after a bad pass
      run.control->recompute();
      CHECK(run.skip_update.item<float>() == 1);
      Descent::step(run);
    }
  };
  Toy toy;
  toy.wiring.optimizer = std::make_unique<Twice>();
  toy.wiring.scaler = make_plugin<vernier::Scaler>("scaler/static");
  CHECK(thrown_by([&] { toy.prepare().train(toy.run); }) == Thrown{});
  CHECK(toy.run.step == 6);
  CHECK(toy.run.updates == 0);
}

TEST_CASE("trainer: a weight that two names share is one parameter") {
  struct Tied final : toy::Task {
    void prepare(Run& run) override {
      toy::Task::prepare(run);
      names = run.model->named_parameters().size();
      run.model->register_parameter("once_more", run.model->parameters().front());
    }
    std::size_t names = 0;
  };
  Toy toy;
  auto task = std::make_unique<Tied>();
  const auto& tied = *task;
  toy.wiring.task = std::move(task);
  CHECK(thrown_by([&] { toy.prepare().train(toy.run); }) == Thrown{});
  CHECK(toy.run.parameters.size() == tied.names);
}

TEST_CASE("trainer: epochs say how many steps") {
  Toy toy;
  toy.run.steps = 0;
  std::vector<std::int64_t> epochs;
  toy.on(Event::EpochEnd, [&](Run& run) { epochs.push_back(run.epoch); });
  toy.prepare(0, 2).train(toy.run);
  CHECK(toy.run.steps == 6);
  CHECK(toy.run.step == 6);
  CHECK(toy.run.epoch == 2);
  CHECK(epochs == std::vector<std::int64_t>{0, 1});
}

TEST_CASE("trainer: validation is in evaluation mode, without gradient, and its best is kept") {
  struct Validates final : toy::Task {
    torch::Tensor validate(Run& run) override {
      was_right = was_right && !model->is_training() && !torch::GradMode::is_enabled();
      return torch::tensor(static_cast<float>(run.step == 2 ? 1.0 : run.step));
    }
    bool was_right = true;
  };
  Toy toy;
  toy.wiring.task = std::make_unique<Validates>();
  std::vector<std::pair<std::int64_t, double>> told;
  toy.look(Event::Validated,
           [&](const Run& run) { told.emplace_back(run.step, *run.metrics.value("validation_loss")); });
  toy.run.steps = 5;
  const auto outcome = toy.prepare(2).train(toy.run);
  CHECK(told == std::vector<std::pair<std::int64_t, double>>{{2, 1.0}, {4, 4.0}, {5, 5.0}});
  CHECK(outcome.validation_loss == 5.0);
  CHECK(outcome.best_validation_loss == 1.0);
  CHECK(static_cast<Validates&>(*toy.wiring.task).was_right);
  CHECK(toy.task().model->is_training());
}

TEST_CASE("trainer: a validation's metrics are its own, and the step before knows that it comes") {
  struct Measures final : toy::Task {
    torch::Tensor validate(Run& run) override {
      run.metrics.set("accuracy", 0.25);
      return torch::tensor(1.0F);
    }
  };
  Toy toy;
  toy.wiring.task = std::make_unique<Measures>();
  toy.on(Event::GradientsReady, [](Run& run) {
    run.metrics.set("grad_norm", 2.0);
    run.metrics.set("accuracy", 0.75);
  });
  Sizes announced;
  std::vector<std::string> told;
  toy.look(Event::StepEnd, [&](const Run& run) {
    if (run.validates) announced.push_back(run.step);
    CHECK(run.metrics.value("grad_norm") == 2.0);
  });
  toy.look(Event::Validated, [&](const Run& run) {
    for (const auto* metric : run.metrics.set_now()) {
      told.push_back(metric->is_time ? metric->name : c10::str(metric->name, ' ', metric->value()));
    }
  });
  toy.run.steps = 5;
  toy.prepare(3).train(toy.run);
  CHECK(announced == Sizes{3, 5});
  const std::vector<std::string> one = {"accuracy 0.25", "validation_loss 1", "validation_time"};
  CHECK(told == std::vector<std::string>{one[0], one[1], one[2], one[0], one[1], one[2]});
}

namespace {

struct Measures final : toy::Task {  // epochs of 3 batches
  using Measured = std::optional<std::vector<vernier::MetricInfo>>;
  explicit Measures(Measured all) : measured(std::move(all)) {}
  Measured measures() const override { return measured; }
  Measured measured;
};
struct Gathers final : vernier::Accumulation {  // 2 batches, then 1
  Gathers() { set_id("accumulation/gathers"); }
  bool gathers() const override { return true; }
  std::int64_t batches_per_update(std::int64_t, std::int64_t, std::int64_t) override { return 2; }
  std::vector<vernier::Batch> split(const vernier::Batch& batch) override { return {batch}; }
};
struct Planned final : vernier::Callback {
  explicit Planned(std::int64_t& to) : planned(to) { set_id("callback/planned"); }
  void check(const Run& run) override { planned = run.validations; }
  std::int64_t& planned;
};

}  // namespace

TEST_CASE("trainer: validations are planned and made by steps, by epochs, or after the last step alone") {
  const Measures::Measured known = {{{"validation_loss", vernier::Better::lower}}};
  const Measures::Measured nothing = std::vector<vernier::MetricInfo>{};
  struct Case {
    Measures::Measured measures;
    std::int64_t every, steps;
    bool gathers;
    Sizes after;
    std::int64_t planned;
  };
  using vernier::each_epoch;
  for (const auto& [measures, every, steps, gathers, after, planned] :
       std::vector<Case>{{known, 0, 7, false, {7}, 1},
                         {known, 3, 7, false, {3, 6, 7}, 3},
                         {known, 9, 7, false, {7}, 1},
                         {known, each_epoch, 7, false, {3, 6, 7}, 3},
                         {known, each_epoch, 6, false, {3, 6}, 2},
                         {known, each_epoch, 2, false, {2}, 1},
                         {known, each_epoch, 5, true, {2, 4, 5}, 3},
                         {known, each_epoch, 4, true, {2, 4}, 2},
                         {std::nullopt, each_epoch, 7, false, {3, 6, 7}, 3},  // it does not say what it measures
                         {nothing, each_epoch, 7, false, {7}, 0},
                         {nothing, 2, 4, false, {2, 4}, 0}}) {
    CAPTURE(every);
    CAPTURE(steps);
    CAPTURE(gathers);
    Toy toy;
    toy.wiring.task = std::make_unique<Measures>(measures);
    if (gathers) toy.wiring.accumulation = std::make_unique<Gathers>();
    std::int64_t told = -1;
    toy.wiring.callbacks.push_back(std::make_unique<Planned>(told));
    Sizes announced, validated;
    toy.look(Event::StepEnd, [&](const Run& run) {
      if (run.validates) announced.push_back(run.step);
    });
    toy.look(Event::Validated, [&](const Run& run) { validated.push_back(run.step); });
    toy.run.steps = steps;
    toy.prepare(every).train(toy.run);
    CHECK(announced == after);
    CHECK(validated == after);
    CHECK(told == planned);
  }
}

TEST_CASE("trainer: callbacks wrap a validation, the last one outermost, and one that throws is named") {
  struct Three final : toy::Task {
    torch::Tensor validate(Run&) override { return torch::tensor(3.0F); }
  };
  struct Wraps final : vernier::Callback {
    using Change = std::function<torch::Tensor(const torch::Tensor&)>;
    Wraps(const char* id, Change change, bool throws = false) : change(std::move(change)), throws(throws) {
      set_id(id);
    }
    torch::Tensor evaluate(Run& run, const std::function<torch::Tensor()>& body) override {
      CHECK_FALSE(run.model->is_training());
      if (throws) throw std::runtime_error("boom");
      return change(body());
    }
    Change change;
    bool throws;
  };
  for (const bool throws : {false, true}) {
    Toy toy;
    toy.run.steps = 2;
    toy.wiring.task = std::make_unique<Three>();
    const auto add = [&](const char* id, Wraps::Change change, bool throws_here) {
      toy.wiring.callbacks.push_back(std::make_unique<Wraps>(id, std::move(change), throws_here));
    };
    add(
        "callback/doubles", [](const auto& loss) { return loss * 2; }, false);
    add(
        "callback/adds", [](const auto& loss) { return loss + 1; }, throws);
    toy.on(Event::StepEnd, [](Run&) {});  // a callback that does not care
    toy.prepare();
    const auto thrown = thrown_by([&] { toy.trainer->train(toy.run); });
    CHECK(thrown == (throws ? failed("callback/adds after step 2: boom") : Thrown{}));
    CHECK(toy.trainer->outcome().validation_loss == (throws ? std::optional<double>() : std::optional(7.0)));
    CHECK(toy.task().model->is_training());
  }
}

TEST_CASE("trainer: checkpoints are written when due and at the end, once each") {
  Toy toy;
  toy.memory().every = 2;
  toy.prepare().train(toy.run);
  CHECK(toy.memory().steps == std::vector<std::int64_t>{2, 4, 6});
  Toy rarely;
  rarely.memory().every = 4;
  rarely.prepare().train(rarely.run);
  CHECK(rarely.memory().steps == std::vector<std::int64_t>{4, 6});
}

TEST_CASE("trainer: a signal ends the run after the step in work, with a checkpoint") {
  Toy toy;
  toy.on(Event::LossReady, [&](Run& run) {
    if (run.step == 2) toy.stop = SIGTERM;
  });
  std::string end;
  toy.look(Event::RunEnd, [&](const Run&) { end = "RunEnd"; });
  const auto outcome = toy.prepare().train(toy.run);
  CHECK(outcome.signal == SIGTERM);
  CHECK(toy.run.step == 3);
  CHECK(toy.memory().steps == std::vector<std::int64_t>{3});
  CHECK(end == "RunEnd");
}

TEST_CASE("trainer: stopped at any step and resumed, the run ends in the same bits") {
  Toy whole;
  whole.task().overflows_in = 3;
  whole.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic");
  const auto uninterrupted = whole.prepare(2).train(whole.run);
  for (std::int64_t stop_at = 1; stop_at <= 6; ++stop_at) {  // 6: killed after the last checkpoint
    CAPTURE(stop_at);
    Toy first, second;
    for (auto* toy : {&first, &second}) {
      toy->task().overflows_in = 3;
      toy->wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic");
    }
    first.on(Event::StepEnd, [&](Run& run) {
      if (run.step == stop_at) first.stop = SIGINT;
    });
    first.prepare(2).train(first.run);
    REQUIRE(first.run.step == stop_at);
    second.on(Event::StepEnd, [](Run&) {});  // the same set of plugins
    auto& trainer = second.prepare(2);
    trainer.resume(second.run, *first.memory().last);
    const auto outcome = trainer.train(second.run);
    CHECK(equal(second.weights(), whole.weights()));
    CHECK(second.run.updates == 5);
    CHECK(second.run.samples == 36);
    CHECK(second.run.epoch == 2);
    CHECK(outcome.steps == 6 - stop_at);
    CHECK(outcome.loss == uninterrupted.loss);
    CHECK(outcome.best_loss == uninterrupted.best_loss);
    CHECK(outcome.validation_loss == uninterrupted.validation_loss);
    CHECK(outcome.best_validation_loss == uninterrupted.best_validation_loss);
  }
}

namespace {

// Asks to go back whenever the batch of that number is trained on, and counts it.
struct GoesBack final : vernier::Callback {
  GoesBack(std::int64_t bad_batch, std::int64_t back, std::int64_t drop, std::int64_t every = 1, std::int64_t keep = 3)
      : bad_batch(bad_batch), back(back), drop(drop), every(every), keep(keep) {
    set_id("callback/goes_back");
  }
  void prepare(Run& run) override { run.control->keep_savepoints(every, keep); }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::BatchReady, [this](Run& run) { trained.push_back(run.batches_drawn); });
    bus.on(Event::StepEnd, [this](Run& run) {
      if (run.batches_drawn - 1 != bad_batch || asked == limit) return;
      ++asked;
      run.control->rewind(*this, back, drop);
    });
  }
  vernier::State save() const override {
    vernier::State state;
    state.put("asked", asked);
    return state;
  }
  void load(const vernier::State& state) override { asked = state.integer("asked"); }
  std::int64_t bad_batch, back, drop, every, keep, asked = 0, limit = 100;
  std::vector<std::int64_t> trained;
};

}  // namespace

TEST_CASE("trainer: going back drops the batches that were named, and the run is the one without them") {
  struct Case {
    std::int64_t bad, back, drop, every;
    Sizes trained, left;
  };
  const std::vector<Case> cases{
      {3, 2, 1, 1, {0, 1, 2, 3, 2, 4, 5, 6}, {0, 1, 2, 4, 5, 6}},
      {3, 1, 1, 1, {0, 1, 2, 3, 4, 5, 6}, {0, 1, 2, 4, 5, 6}},
      {4, 2, 3, 2, {0, 1, 2, 3, 4, 5, 6, 7, 8}, {0, 1, 5, 6, 7, 8}},  // from step 2 on, because there is one each 2
                                                                      // steps
      {0, 9, 1, 1, {0, 1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}},        // to the oldest
      {5, 1, 2, 4, {0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 6, 7}},
  };
  for (const auto& each : cases) {
    CAPTURE(each.bad);
    Toy toy;
    auto* requester = new GoesBack(each.bad, each.back, each.drop, each.every);
    toy.wiring.callbacks.emplace_back(requester);
    toy.memory().every = 1;
    toy.prepare(1).train(toy.run);
    CHECK(requester->trained == each.trained);
    CHECK(equal(toy.weights(), trained_on(each.left)));
    CHECK(toy.run.step == 6);
    CHECK(toy.run.updates == 6);
    CHECK(toy.run.samples == 36);
    CHECK(requester->asked == 1);
  }
}

TEST_CASE("trainer: a monitor sees the counts of the run as it stands, and forgets with it what was given up") {
  Toy toy;
  toy.task().overflows_in = 4;
  toy.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic");
  toy.wiring.callbacks.push_back(std::make_unique<GoesBack>(3, 3, 1));
  std::vector<std::int64_t> overflows;
  toy.look(Event::StepEnd, [&](const Run& run) {
    overflows.push_back(run.amp.overflow_count());
    CHECK(run.amp.total_steps() == run.step);
    CHECK(run.amp.current_scale() == (run.amp.overflow_count() > 0 ? 32768 : 65536));  // the next step's
  });
  toy.prepare(1).train(toy.run);
  CHECK(overflows == Sizes{0, 0, 0, 1, 0, 0, 0, 0, 0});
  CHECK(toy.run.amp.overflow_count() == 0);
  CHECK(toy.run.amp.scaler_updates() == 0);
}

TEST_CASE("trainer: a run that went back, stopped at any step and resumed, ends in the same bits") {
  Toy whole;
  whole.wiring.callbacks.push_back(std::make_unique<GoesBack>(3, 3, 2, 2));
  whole.prepare().train(whole.run);
  for (std::int64_t steps_done = 1; steps_done <= 8; ++steps_done) {
    CAPTURE(steps_done);
    Toy first, second;
    auto* requester = new GoesBack(3, 3, 2, 2);
    first.wiring.callbacks.emplace_back(requester);
    second.wiring.callbacks.push_back(std::make_unique<GoesBack>(3, 3, 2, 2));
    std::int64_t count = 0;
    first.look(Event::StepEnd, [&](const Run&) {
      if (++count == steps_done) first.stop = SIGINT;
    });
    first.prepare().train(first.run);
    second.look(Event::StepEnd, [](const Run&) {});
    auto& trainer = second.prepare();
    trainer.resume(second.run, *first.memory().last);
    trainer.train(second.run);
    CHECK(equal(second.weights(), whole.weights()));
    CHECK(second.run.batches_drawn == whole.run.batches_drawn);
  }
}

TEST_CASE("trainer: going back without savepoints, and a plugin that ends the run") {
  Toy toy;
  toy.on(Event::StepEnd, [&](Run& run) { run.control->rewind(*toy.wiring.task, 1, 1); });
  toy.prepare();
  CHECK(says(thrown_by([&] { toy.trainer->train(toy.run); }).text, "keep_savepoints"));

  Toy fails;
  auto* requester = new GoesBack(3, 1, 1);
  requester->limit = 0;
  fails.wiring.callbacks.emplace_back(requester);
  fails.on(Event::StepEnd, [&](Run& run) {
    if (run.step == 4) run.control->fail(*requester, "3 updates in a row were skipped");
  });
  fails.prepare();
  CHECK(thrown_by([&] { fails.trainer->train(fails.run); }) ==
        failed("callback/goes_back after step 4: 3 updates in a row were skipped"));
  CHECK(fails.memory().steps == Sizes{4});  // the last finished step left this on disk
}

TEST_CASE("trainer: who asks to go back keeps its memory, but for what it names") {
  struct Counts final : vernier::Callback {
    explicit Counts(std::string also) : also(std::move(also)) { set_id("callback/counts"); }
    void prepare(Run& run) override { run.control->keep_savepoints(2, 3); }
    void attach(vernier::Bus& bus) override {
      bus.on(Event::StepEnd, [this](Run& run) {
        ++trained;
        ++in_rewound;
        if (run.step == 4 && !std::exchange(has_asked, true)) run.control->rewind(*this, 2, 0, also);
      });
    }
    vernier::State save() const override {
      vernier::State state;
      state.put("trained", trained);
      state.put("rewound/trained", in_rewound);
      return state;
    }
    void load(const vernier::State& state) override {
      trained = state.integer("trained");
      in_rewound = state.integer("rewound/trained");
    }
    std::string also;
    bool has_asked = false;
    std::int64_t trained = 0, in_rewound = 0;
  };
  for (const std::string also : {"", "rewound"}) {
    CAPTURE(also);
    Toy toy;
    toy.wiring.callbacks.push_back(std::make_unique<Counts>(also));
    toy.prepare().train(toy.run);
    const auto& counts = static_cast<Counts&>(*toy.wiring.callbacks[0]);
    CHECK(toy.run.step == 6);
    CHECK(counts.trained == 8);  // from step 4 back to step 2
    CHECK(counts.in_rewound == (also.empty() ? 8 : 6));
  }
}

TEST_CASE("trainer: a run that was ended where an epoch ends has finished that epoch") {
  Toy fails;
  int epochs_ended = 0;
  fails.look(Event::EpochEnd, [&](const Run&) { ++epochs_ended; });
  fails.on(Event::StepEnd, [&](Run& run) {
    if (run.step == 3) run.control->fail(*fails.wiring.task, "enough");
  });
  fails.prepare();
  CHECK(thrown_by([&] { fails.trainer->train(fails.run); }) == failed("task/toy after step 3: enough"));
  CHECK(epochs_ended == 1);
  CHECK(fails.memory().last->integer("run/epoch") == 1);
}

TEST_CASE("trainer: a run that goes back or goes on with other plugins has not failed") {
  Toy toy;
  toy.wiring.callbacks.push_back(std::make_unique<GoesBack>(3, 1, 1));
  toy.on(Event::StepEnd, [&](Run& run) {
    if (run.batches_drawn == 4) run.control->fail(*toy.wiring.task, "overflows at the minimum");
  });
  toy.prepare();
  CHECK(thrown_by([&] { toy.trainer->train(toy.run); }) == Thrown{});
  CHECK(toy.run.step == 6);
}

TEST_CASE("trainer: what was validated in steps that were given up is forgotten") {
  Toy toy;
  // From step 4 to 0, over the validation at 3.
  toy.wiring.callbacks.push_back(std::make_unique<GoesBack>(3, 4, 1, 10));
  toy.on(Event::RunEnd, [](Run&) {});
  std::vector<std::int64_t> validated;
  toy.look(Event::Validated, [&](const Run& run) { validated.push_back(run.step); });
  const auto outcome = toy.prepare(3).train(toy.run);
  Toy plain;
  const auto without = plain.prepare(3).train(plain.run);
  CHECK(validated == Sizes{3, 3, 6});
  CHECK(outcome.steps == 10);  // with those that were given up
  CHECK(without.steps == 6);
  CHECK(*outcome.best_validation_loss <= *outcome.validation_loss);
}

TEST_CASE("trainer: a veto is reported as such, an overflow with the gradients that a later listener spreads") {
  Toy vetoed;
  const auto& notices = notices_of(vetoed);
  vetoed.on(Event::GradientsReady, [](Run& run) {
    if (run.step == 1) run.skip_update = torch::ones({});
  });
  vetoed.prepare().train(vetoed.run);
  CHECK(notices == std::vector<std::string>{"step_skipped step=2 reason=vetoed"});
  CHECK(vetoed.run.updates == 5);

  Toy overflows;
  overflows.task().overflows_in = 3;
  overflows.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic");
  const auto& told = notices_of(overflows);
  overflows.on(Event::GradientsReady, [](Run& run) {
    for (const auto& gradient : run.gradients()) gradient.clamp_(-1, 1).nan_to_num_(0);
  });
  overflows.prepare().train(overflows.run);
  CHECK(told.at(0) == "step_skipped step=3 reason=gradients not finite gradients=first,second");
  CHECK(overflows.run.amp.overflow_count() == 1);
}

TEST_CASE("trainer: a loss that a callback replaces is the one that is differentiated and reported") {
  Toy toy;
  toy.on(Event::LossReady, [](Run& run) { run.micro_batch_loss = run.micro_batch_loss * 2; });
  std::vector<torch::Tensor> twice, once;
  toy.on(Event::GradientsReady, [&](Run& run) { twice = {run.loss, run.gradients()[0].clone()}; });
  Toy plain;
  plain.on(Event::GradientsReady, [&](Run& run) { once = {run.loss, run.gradients()[0].clone()}; });
  toy.run.steps = plain.run.steps = 1;
  toy.prepare().train(toy.run);
  plain.prepare().train(plain.run);
  for (int i = 0; i < 2; ++i) CHECK(twice[i].equal(once[i] * 2));
}

namespace {

// Throws in the call that the test names, in its second step.
std::string faulty_call;
int calls_left = 0;

void call(const char* name) {
  if (faulty_call == name && calls_left-- == 0) throw std::runtime_error("boom");
}

struct FaultyTask final : toy::Task {
  void prepare(Run& run) override { call("task.prepare"), toy::Task::prepare(run); }
  vernier::Batch next() override { return call("task.next"), toy::Task::next(); }
  torch::Tensor loss(const vernier::Batch& micro_batch) override {
    return call("task.loss"), toy::Task::loss(micro_batch);
  }
  torch::Tensor validate(Run& run) override { return call("task.validate"), torch::Tensor(); }
  void load(const vernier::State& state) override { call("task.load"), toy::Task::load(state); }
};
struct FaultyPrecision final : vernier::Precision {
  torch::Tensor forward(const std::function<torch::Tensor()>& body) override {
    return call("precision.forward"), body();
  }
  void collect(Run&) override { call("precision.collect"); }
  void commit(Run&) override { call("precision.commit"); }
};
struct FaultyScaler final : vernier::Scaler {
  torch::Tensor scale(const torch::Tensor& loss) override { return call("scaler.scale"), loss; }
  void unscale(Run&) override { call("scaler.unscale"); }
  void update(Run&) override { call("scaler.update"); }
};
struct FaultyAccumulation final : vernier::Accumulation {
  std::vector<vernier::Batch> split(const vernier::Batch& batch) override {
    return call("accumulation.split"), std::vector{batch};
  }
};
struct FaultyOptimizer final : toy::Descent {
  void step(Run& run) override { call("optimizer.step"), Descent::step(run); }
};
struct FaultyCheckpoint final : vernier::Checkpoint {
  bool due(const Run&) override { return call("checkpoint.due"), true; }
  void write(const vernier::State&, Run&) override { call("checkpoint.write"); }
  std::optional<vernier::State> read(const Run&, const std::string&) override { return std::nullopt; }
};

template <class Role>
std::unique_ptr<Role> named(const char* id) {
  auto role = std::make_unique<Role>();
  vernier::HostApi::set_id(*role, id);
  return role;
}

struct FaultyToy : Toy {
  FaultyToy() {
    wiring.task = named<FaultyTask>("task/faulty");
    wiring.precision = named<FaultyPrecision>("precision/faulty");
    wiring.scaler = named<FaultyScaler>("scaler/faulty");
    wiring.accumulation = named<FaultyAccumulation>("accumulation/faulty");
    wiring.optimizer = named<FaultyOptimizer>("optimizer/faulty");
    wiring.checkpoint = named<FaultyCheckpoint>("checkpoint/faulty");
  }
};

}  // namespace

TEST_CASE("trainer: what a role throws is named with the role and the step, and reported as RunFailed") {
  for (const std::string name : {"task.next", "task.loss", "precision.forward", "precision.collect", "precision.commit",
                                 "scaler.scale", "scaler.unscale", "scaler.update", "accumulation.split",
                                 "optimizer.step", "task.validate", "checkpoint.due", "checkpoint.write"}) {
    CAPTURE(name);
    faulty_call = name;
    calls_left = 1;
    FaultyToy toy;
    bool was_told = false;
    toy.look(Event::RunFailed, [&](const Run&) { was_told = true; });
    auto& trainer = toy.prepare(name == "task.validate" ? 1 : 0);
    const bool is_after = name == "task.validate" || name.starts_with("checkpoint");
    CHECK(thrown_by([&] { trainer.train(toy.run); }) ==
          failed(name.substr(0, name.find('.')) + "/faulty " + (is_after ? "after" : "in") + " step 2: boom"));
    CHECK(was_told);
  }
}

namespace {

// A task whose validation is asked to stop.
class Interrupted final : public toy::Task {
 public:
  torch::Tensor validate(Run& run) override {
    if (stop_in == validations++) *stop = SIGTERM;
    return run.is_stopping() ? torch::Tensor() : toy::Task::validate(run);
  }
  std::atomic<int>* stop = nullptr;
  int stop_in = -1, validations = 0;
};

// Runs of 6 steps that are validated after every second.
struct Validated : Toy {
  explicit Validated(int stop_in = -1) {
    auto made = std::make_unique<Interrupted>();
    made->stop = &stop;
    made->stop_in = stop_in;
    task = made.get();
    wiring.task = std::move(made);
    look(Event::Validated, [this](const Run& run) { seen.push_back(run.step); });
    prepare(/*validate_every=*/2);
  }
  Interrupted* task;
  std::vector<std::int64_t> seen;
};

}  // namespace

TEST_CASE("trainer: a validation that a signal cuts short is done again where the run goes on") {
  Validated whole;
  whole.trainer->train(whole.run);
  CHECK(whole.seen == std::vector<std::int64_t>{2, 4, 6});
  for (int nth = 0; nth < 3; ++nth) {
    CAPTURE(nth);
    Validated stopped(nth), resumed;
    const auto outcome = stopped.trainer->train(stopped.run);
    CHECK(outcome.signal == SIGTERM);
    CHECK(stopped.run.step == 2 * (nth + 1));
    CHECK(stopped.seen.size() == static_cast<std::size_t>(nth));
    CHECK(stopped.memory().steps == std::vector<std::int64_t>{stopped.run.step});
    resumed.trainer->resume(resumed.run, *stopped.memory().last);
    CHECK_FALSE(resumed.trainer->is_finished(resumed.run));
    const auto end = resumed.trainer->train(resumed.run);
    auto seen = stopped.seen;
    seen.insert(seen.end(), resumed.seen.begin(), resumed.seen.end());
    CHECK(seen == whole.seen);
    CHECK(equal(resumed.weights(), whole.weights()));
    CHECK(end.signal == 0);
    CHECK(resumed.run.epoch == whole.run.epoch);
    Validated again;  // the last checkpoint has all of it
    again.trainer->resume(again.run, *resumed.memory().last);
    CHECK(again.trainer->is_finished(again.run));
  }
}

TEST_CASE("trainer: a signal while it prepares ends it before the next plugin") {
  Toy toy;
  toy.stop = SIGTERM;
  toy.prepare();
  CHECK(toy.run.model == nullptr);
}

TEST_CASE("trainer: what fails between two steps is saved first, and what fails in one before its update") {
  const auto saved_by = [](Event event, std::int64_t step = 3) {
    Toy toy;
    toy.on(event, [step](Run& run) {
      if (run.step >= step) throw std::runtime_error("boom");
    });
    toy.prepare(/*validate_every=*/3);
    CHECK_THROWS_AS(toy.trainer->train(toy.run), Error);
    return toy.memory().steps;
  };
  CHECK(saved_by(Event::Validated) == std::vector<std::int64_t>{3});
  for (const auto event : {Event::StepBegin, Event::BatchReady, Event::LossReady, Event::GradientsReady}) {
    CHECK(saved_by(event) == std::vector<std::int64_t>{3});
    CHECK(saved_by(event, 0).empty());  // nothing has been trained
  }
  CHECK(saved_by(Event::UpdateDone).empty());  // the weights have changed
  CHECK(saved_by(Event::StepEnd).empty());
  CHECK(saved_by(Event::EpochEnd).empty());
}

TEST_CASE("trainer: after a failure at Validated, the run that goes on counts that validation once") {
  struct Counter final : vernier::Callback {
    Counter(const char* id, std::int64_t throws_at) : throws_at(throws_at) {
      set_id(id);
      remember("count", count);
    }
    void attach(vernier::Bus& bus) override {
      bus.on(Event::Validated, [this](Run& run) {
        count += 1;
        if (run.step == throws_at) throw std::runtime_error("boom");
      });
    }
    std::int64_t throws_at, count = 0;
  };
  for (const std::int64_t thrower : {0, 1, 2}) {
    CAPTURE(thrower);
    const auto with_counters = [&](Toy& toy, bool throws) {
      const char* const ids[] = {"callback/first", "callback/second", "callback/third"};
      for (std::int64_t i = 0; i < 3; ++i) {
        toy.wiring.callbacks.push_back(std::make_unique<Counter>(ids[i], throws && i == thrower ? 4 : -1));
      }
    };
    Toy failed;
    with_counters(failed, true);
    failed.prepare(/*validate_every=*/2);
    CHECK_THROWS_AS(failed.trainer->train(failed.run), Error);
    REQUIRE(failed.memory().steps == std::vector<std::int64_t>{4});
    for (const char* id : {"first", "second", "third"}) {
      CHECK(failed.memory().last->integer(c10::str("plugin/callback/", id, "/count")) == 1);
    }
  }
}

TEST_CASE("trainer: a failure in any role of a step before its update is saved as the step before left the run") {
  struct Saved {
    std::vector<std::int64_t> steps;
    std::optional<vernier::State> last;
  };
  const auto saved_by = [](const std::string& name) -> Saved {
    FaultyToy toy;
    toy.wiring.checkpoint = std::make_unique<toy::Memory>();
    faulty_call = name;
    calls_left = 2;
    CHECK_THROWS_AS(toy.prepare().train(toy.run), Error);
    return {toy.memory().steps, toy.memory().last};
  };
  for (const std::string name : {"task.next", "task.loss", "precision.forward", "precision.collect", "scaler.scale",
                                 "scaler.unscale", "accumulation.split"}) {
    CAPTURE(name);
    faulty_call = "";
    FaultyToy whole;
    whole.wiring.checkpoint = std::make_unique<toy::Memory>();
    whole.run.steps = 2;
    whole.prepare().train(whole.run);
    const auto saved = saved_by(name);
    CHECK(saved.steps == std::vector<std::int64_t>{2});
    REQUIRE(saved.last);
    const auto wanted = vernier::take_snapshot(whole.run, whole.wiring.plugins());
    for (const auto& [part, tensor] : wanted.tensors) {
      CAPTURE(part);
      CHECK(torch::equal(saved.last->tensor(part), tensor));
    }
  }
  // The weights may be half done then.
  for (const std::string name : {"optimizer.step", "precision.commit", "scaler.update"}) {
    CAPTURE(name);
    CHECK(saved_by(name).steps.empty());
  }
}

TEST_CASE("trainer: a step that fails after something wrote a weight, or spoiled one before, is not saved") {
  const auto saved_after = [](Event event, double factor) {
    Toy toy;
    toy.on(event, [factor, step = event == Event::StepEnd ? 3 : 2](Run& run) {
      const torch::NoGradGuard no_grad;
      if (run.step == step) run.model->parameters().at(0).mul_(factor);
    });
    toy.on(Event::GradientsReady, [event](Run& run) {
      if (run.step == (event == Event::StepEnd ? 3 : 2)) throw std::runtime_error("boom");
    });
    CHECK_THROWS_AS(toy.prepare().train(toy.run), Error);
    return toy.memory().steps;
  };
  const NoLog no_log;
  CHECK(saved_after(Event::BatchReady, 2).empty());
  CHECK(saved_after(Event::StepEnd, 2) == std::vector<std::int64_t>{3});
  CHECK(saved_after(Event::StepEnd, NAN).empty());
}

TEST_CASE("trainer: a new model is given its first weights before anything is made from it") {
  Toy toy;
  for (auto* plugin : toy.wiring.plugins()) vernier::HostApi::attach(toy.wiring.bus, *plugin, false);
  toy.trainer = std::make_unique<vernier::TrainingLoop>(toy.wiring, 0, toy.stop);
  toy.trainer->prepare(toy.run, 0, [](torch::nn::Module& model) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model.parameters()) parameter.fill_(0.25);
  });
  CHECK(toy.run.parameters.at(0).master.eq(0.25).all().item<bool>());
}

TEST_CASE("trainer: what prepare and load throw is named") {
  FaultyToy toy;
  faulty_call = "task.prepare";
  calls_left = 0;
  CHECK(thrown_by([&] { toy.prepare(); }) == failed("task/faulty: boom"));

  FaultyToy resumed;
  faulty_call = "task.load";
  calls_left = 0;
  auto& trainer = resumed.prepare();
  const auto snapshot = vernier::take_snapshot(resumed.run, resumed.wiring.plugins());
  CHECK(thrown_by([&] { trainer.resume(resumed.run, snapshot); }) == failed("task/faulty while it was resumed: boom"));
}

TEST_CASE("trainer: an error's kind is kept, and what names its plugin is not named twice") {
  const auto failure = [](const Error& error) {
    struct Throws final : toy::Task {
      explicit Throws(Error error) : error_(std::move(error)) {}
      vernier::Batch next() override { throw error_; }
      Error error_;
    };
    Toy toy;
    toy.wiring.task = std::make_unique<Throws>(error);
    auto& trainer = toy.prepare();
    return thrown_by([&] { trainer.train(toy.run); });
  };
  CHECK(failure(Error("no data", Error::Kind::configuration)) == configuration("task/toy in step 1: no data"));
  CHECK(failure(Error("run.toml:3: task/toy: `data` is empty", Error::Kind::configuration, "task/toy")) ==
        configuration("run.toml:3: task/toy: `data` is empty"));
}

TEST_CASE("trainer: a listener to RunFailed that throws hides nothing") {
  Toy toy;
  toy.on(Event::StepEnd, [](Run&) { throw std::runtime_error("the cause"); });
  toy.on(Event::RunFailed, [](Run&) { throw std::runtime_error("another"); });
  const NoLog no_log;
  auto& trainer = toy.prepare();
  CHECK(thrown_by([&] { trainer.train(toy.run); }) == failed("callback/told at StepEnd of step 1: the cause"));
}

TEST_CASE("trainer: a task that breaks its promises is refused") {
  struct NoModel final : toy::Task {
    void prepare(Run&) override {}
  };
  struct NoBatches final : toy::Task {
    std::int64_t batches_per_epoch() const override { return 0; }
  };
  struct Constant final : toy::Task {
    torch::Tensor loss(const vernier::Batch&) override { return torch::tensor(1.0F); }
  };
  const auto refusal = [](std::unique_ptr<vernier::Task> task) {
    Toy toy;
    toy.wiring.task = std::move(task);
    return thrown_by([&] { toy.prepare().train(toy.run); });
  };
  CHECK(refusal(std::make_unique<NoModel>()) == refused("task/toy: its prepare did not call run.set_model()"));
  CHECK(refusal(std::make_unique<NoBatches>()) ==
        refused("task/toy: its batches_per_epoch is 0, and must be at least 1"));
  CHECK(refusal(std::make_unique<Constant>()) ==
        failed("task/toy in step 1: its loss has no gradient: it does not depend on run.model's parameters"));
  Toy toy;
  toy.wiring.accumulation = std::make_unique<toy::MicroBatches>(Sizes{});
  CHECK(thrown_by([&] { toy.prepare().train(toy.run); }) ==
        failed("accumulation/micro_batches in step 1: it split a batch of 6 samples into 0"));
  Toy with_empty;
  with_empty.wiring.accumulation = std::make_unique<toy::MicroBatches>(Sizes{6, 0});
  CHECK(says(thrown_by([&] { with_empty.prepare().train(with_empty.run); }).text,
             "it split a batch of 6 samples, and a micro-batch has 0 samples and "));
  struct TwoScales final : vernier::Scaler {
    Current current() const override { return {torch::ones({2}), {}}; }
  };
  Toy scaled;
  scaled.wiring.scaler = std::make_unique<TwoScales>();
  CHECK(says(thrown_by([&] { scaled.prepare().train(scaled.run); }).text,
             "the scale of its current() has the shape [2], and must be one number"));
}

TEST_CASE("trainer: accumulation/fixed splits as evenly as can be") {
  Toy whole, split;
  split.wiring.accumulation =
      make_plugin<vernier::Accumulation>("accumulation/fixed", with("micro_batches", integer(4)));
  std::vector<std::int64_t> sizes;
  split.on(Event::BatchReady, [&](Run& run) { sizes.push_back(run.micro_batch.samples); });
  split.run.steps = 1;
  split.prepare().train(split.run);
  CHECK(sizes == Sizes{1, 2, 1, 2});
}

}  // namespace training_loop_test
