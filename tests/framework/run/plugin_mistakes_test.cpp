// Mistakes that a plugin may make without knowing it: a run refuses or reports them, in the plugin's name.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <utility>

#include "log_lines.h"
#include "run/training_loop.h"
#include "thrown.h"
#include "tools/check/dry_run.h"
#include "toy_run.h"

namespace plugin_mistakes_test {

using toy::Toy;
using vernier::Batch;
using vernier::Event;
using vernier::Run;
using vernier::State;

namespace {

// A task whose functions the test gives; those that it leaves out are the toy's.
struct Made final : toy::Task {
  Batch next() override { return next_ ? next_() : toy::Task::next(); }
  torch::Tensor loss(const Batch& micro_batch) override {
    const auto good =
        micro_batch.tensors.empty() ? model->first.sum() + model->second.sum() : toy::Task::loss(micro_batch);
    return loss_ ? loss_(good) : good;
  }
  torch::Tensor validate(Run& run) override { return validate_ ? validate_() : toy::Task::validate(run); }
  State save() const override { return save_ ? save_() : toy::Task::save(); }
  void load(const State& state) override { load_ ? load_() : toy::Task::load(state); }

  std::function<Batch()> next_;
  std::function<torch::Tensor(const torch::Tensor& good)> loss_;
  std::function<torch::Tensor()> validate_;
  std::function<State()> save_;
  std::function<void()> load_;
};

struct Mistaken : Toy {
  Mistaken() {
    auto made = std::make_unique<Made>();
    task = made.get();
    wiring.task = std::move(made);
  }
  Thrown train() {
    return thrown_by([&] { prepare().train(run); });
  }
  Thrown rehearse() {
    return thrown_by([&] {
      vernier::dry_run(prepare(), wiring, run);
      validation_loss = vernier::rehearse(*trainer, run);
    });
  }
  Made* task;
  std::optional<double> validation_loss;
};

Thrown thrown_with(const Batch& batch) {
  Mistaken toy;
  toy.task->next_ = [&] { return batch; };
  return toy.train();
}

using Loss = std::function<torch::Tensor(const torch::Tensor&)>;

Thrown thrown_with_loss(const Loss& loss) {
  Mistaken toy;
  toy.task->loss_ = loss;
  return toy.train();
}

const std::string remedy = "; set Batch::samples to the size of dimension 0, which is the sample in each tensor";
const std::string mean = "; return the mean over the samples, a 0-dim tensor, as loss.mean() gives it";

}  // namespace

TEST_CASE("mistakes: a batch whose count is not that of its tensors is refused, whatever the accumulation") {
  const auto x = torch::ones({6, 3}), y = torch::ones({6, 2});
  CHECK(
      thrown_with({{torch::ones({7, 3}), torch::ones({7, 2})}, 6, 0}) ==
      failed("task/toy in step 1: its next() returned a batch of 6 samples with tensors[0] of shape [7, 3]" + remedy));
  CHECK(
      thrown_with({{x, torch::ones({5, 2})}, 6, 0}) ==
      failed("task/toy in step 1: its next() returned a batch of 6 samples with tensors[1] of shape [5, 2]" + remedy));
  CHECK(thrown_with({{x, y, torch::ones({})}, 6, 0}) ==
        failed("task/toy in step 1: its next() returned a batch of 6 samples with tensors[2] of shape []" + remedy));
  CHECK(thrown_with({{x, y, {}}, 6, 0}) ==
        failed("task/toy in step 1: its next() returned a batch of 6 samples with tensors[2] undefined" + remedy));
  CHECK(thrown_with({{x, y}, 0, 0}) == failed("task/toy in step 1: its next() returned a batch of 0 samples; set "
                                              "Batch::samples to the number of its samples, at least 1"));
  Mistaken gathers;
  gathers.wiring.accumulation = make_plugin<vernier::Accumulation>(
      "accumulation/target", {{"target_effective_batch_size", {std::int64_t{12}, "test.toml:2"}}});
  gathers.task->next_ = [&] { return Batch{{torch::ones({7, 3}), torch::ones({7, 2})}, 6, 0}; };
  CHECK(says(gathers.train().text, "task/toy: its next() returned a batch of 6 samples with tensors[0]"));
}

TEST_CASE("mistakes: a batch of any tensors with the samples first is none, and one without tensors neither") {
  const auto x = torch::ones({6, 3}), y = torch::ones({6, 2});
  CHECK(thrown_with({{x, y}, 6, 0}) == Thrown{});
  CHECK(thrown_with({{x, y, torch::ones({6}), torch::ones({6, 1, 4, 2}), torch::ones({6, 0})}, 6, 60}) == Thrown{});
  CHECK(thrown_with({{x.t().contiguous().t(), y.expand({6, 2})}, 6, 0}) == Thrown{});
  CHECK(thrown_with({{}, 6, 0}) == Thrown{});
}

TEST_CASE("mistakes: a loss that is not a number is refused with its shape") {
  CHECK(thrown_with_loss([](const auto& good) { return good.expand({6}); }) ==
        failed("task/toy in step 1: its loss() returned a tensor of shape [6]" + mean));
  CHECK(thrown_with_loss([](const auto& good) { return good.unsqueeze(0); }) ==
        failed("task/toy in step 1: its loss() returned a tensor of shape [1]" + mean));
  CHECK(thrown_with_loss([](const auto&) { return torch::Tensor(); }) ==
        failed("task/toy in step 1: its loss() returned an undefined tensor" + mean));
}

TEST_CASE("mistakes: so is the result of a validation, of the task's or of a callback's") {
  Mistaken toy;
  toy.task->validate_ = [] { return torch::ones({4}); };
  CHECK(toy.train() == failed("task/toy after step 6: its validate() returned a tensor of shape [4]" + mean));

  struct Doubles final : vernier::Callback {
    Doubles() { set_id("callback/doubles"); }
    torch::Tensor evaluate(Run&, const std::function<torch::Tensor()>& body) override { return body().expand({2}); }
  };
  Mistaken wrapped;
  wrapped.wiring.callbacks.push_back(std::make_unique<Doubles>());
  CHECK(wrapped.train() ==
        failed("callback/doubles after step 6: its validate() returned a tensor of shape [2]" + mean));

  Mistaken without;
  without.task->validate_ = [] { return torch::Tensor(); };
  CHECK(without.train() == Thrown{});
}

TEST_CASE("mistakes: a metric of several numbers is refused in the name of the plugin that sets it") {
  Toy toy;
  toy.on(Event::GradientsReady, [](Run& run) { run.metrics.set("norms", torch::ones({3})); });
  CHECK(thrown_by([&] { toy.prepare().train(toy.run); }) ==
        failed("callback/told at GradientsReady of step 1: the metric \"norms\" is set to a tensor of shape [3]: a "
               "metric is one number; set a mean, or a metric for each number"));
}

TEST_CASE("mistakes: a step that fails after a weight was replaced is not saved") {
  const LogLines log;
  for (const int times : {1, 2}) {
    CAPTURE(times);
    Toy toy;
    toy.on(Event::StepBegin, [times](Run& run) {
      auto weight = run.parameters.at(0).model;
      for (int i = 0; run.step == 2 && i < times; ++i) weight.set_data(weight.detach() * 2);
    });
    toy.on(Event::GradientsReady, [](Run& run) {
      if (run.step == 2) throw std::runtime_error("boom");
    });
    CHECK(says(thrown_by([&] { toy.prepare().train(toy.run); }).text, "boom"));
    CHECK(toy.memory().steps.empty());
  }
  CHECK(LogLines::count("of shape [4, 3], was written or replaced before the update") == 2);
}

TEST_CASE("mistakes: a rehearsal validates, and has the task save, load and go on; what fails is named") {
  const auto boom = [] { throw std::runtime_error("boom"); };
  Mistaken good;
  CHECK(good.rehearse() == Thrown{});
  CHECK(good.validation_loss.has_value());
  CHECK(good.task->model->is_training());

  Mistaken validates, saves, loads;
  validates.task->validate_ = [&] { return boom(), torch::Tensor(); };
  CHECK(validates.rehearse() == failed("task/toy in validate(): boom"));
  saves.task->save_ = [&] { return boom(), State(); };
  const LogLines log;  // no copy for undoing the step either
  CHECK(saves.rehearse() == failed("task/toy in save(): boom"));
  loads.task->load_ = boom;
  CHECK(loads.rehearse() == failed("task/toy in load(): boom"));
  for (const int nth : {2, 3}) {  // after that of the dry run
    Mistaken draws;
    int drawn = 0;
    const auto batch = draws.task->next();
    draws.task->next_ = [&] {
      if (++drawn == nth) boom();
      return batch;
    };
    CHECK(draws.rehearse() == failed(nth == 2 ? "task/toy in next(): boom" : "task/toy in next() after load(): boom"));
  }
}

TEST_CASE("mistakes: a rehearsal reports a task that does not restore its place, and no other") {
  const LogLines log;
  const std::string report = "task/toy: next() returns another batch after save() and load()";
  Mistaken good, forgets, random;
  CHECK(good.rehearse() == Thrown{});
  random.task->next_ = [] { return Batch{{torch::rand({6, 3}), torch::full({6, 2}, NAN)}, 6, 0}; };
  CHECK(random.rehearse() == Thrown{});  // its numbers are the run's
  CHECK(LogLines::count(report) == 0);
  forgets.task->save_ = [] { return State(); };
  forgets.task->load_ = [] {};
  CHECK(forgets.rehearse() == Thrown{});
  CHECK(LogLines::count(report) == 1);
}

TEST_CASE("mistakes: a resume reports a task that has saved nothing, once") {
  for (const bool has_state : {true, false}) {
    Mistaken first, second;
    for (auto* toy : {&first, &second}) {
      if (has_state) continue;
      toy->task->save_ = [] { return State(); };
      toy->task->load_ = [] {};
    }
    first.run.steps = 3;
    CHECK(first.train() == Thrown{});
    const LogLines log;
    second.prepare().resume(second.run, *first.memory().last);
    second.trainer->train(second.run);
    CHECK(LogLines::count("task/toy: it has saved no state: ") == (has_state ? 0 : 1));
  }
}

namespace {

enum class Veto { none, last };

// The divergence that a run of 6 steps reports.
std::string divergence_with(const Loss& loss, const std::string& scaler, Veto veto = Veto::none, bool late = false) {
  Mistaken toy;
  toy.run.results_are_late = late;
  toy.task->loss_ = loss;
  toy.task->validate_ = [] { return torch::Tensor(); };
  toy.wiring.scaler = make_plugin<vernier::Scaler>("scaler/" + scaler);
  toy.on(Event::GradientsReady, [veto](Run& run) {
    if (veto == Veto::last && run.step == 5) run.skip_update = torch::ones({});
  });
  return toy.prepare().train(toy.run).diverged;
}

// In the n-th step, from 1.
Loss bad_in(int n, const Loss& bad) {
  return [n, bad, calls = 0](const auto& good) mutable { return ++calls == n ? bad(good) : good; };
}

}  // namespace

TEST_CASE("mistakes: a run has diverged if its last weights or its last loss are not finite") {
  const LogLines log;
  const Loss spoils = [](const auto& good) { return good * NAN; };
  const Loss shows = [](const auto& good) { return good + HUGE_VAL; };  // with finite gradients
  CHECK(divergence_with({}, "none").empty());
  CHECK(divergence_with(bad_in(3, spoils), "none") == "the weight first is not finite");
  CHECK(divergence_with(bad_in(6, spoils), "none") == "the weight first is not finite");
  CHECK(divergence_with(bad_in(3, shows), "none").empty());
  CHECK(divergence_with(bad_in(6, shows), "none") == "the last loss is not finite");
  for (const bool late : {false, true}) {
    CAPTURE(late);
    CHECK(divergence_with(bad_in(6, spoils), "dynamic", Veto::none, late).empty());  // its update was skipped
    CHECK(divergence_with(bad_in(3, spoils), "dynamic", Veto::none, late).empty());
    CHECK(divergence_with(bad_in(6, spoils), "none", Veto::last, late).empty());
  }
}

}  // namespace plugin_mistakes_test
