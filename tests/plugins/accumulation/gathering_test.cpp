// Updates of several batches of the task, against loops written by hand.
#include <doctest/doctest.h>
#include <vernier/host.h>

#include <csignal>

#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

namespace gathering_test {

using toy::Toy;
using vernier::Accumulation;
using vernier::Batch;
using vernier::Event;
using vernier::Run;
using vernier::Table;
using vernier::Value;

namespace {

using Numbers = std::vector<std::int64_t>;

Value list(const Numbers& numbers) {
  vernier::Array all;
  for (const auto number : numbers) all.push_back({number, ""});
  return {all, ""};
}

std::unique_ptr<Accumulation> target(std::int64_t samples, std::int64_t micro_batch_size = 0) {
  return make_plugin<Accumulation>("accumulation/target", {{"target_effective_batch_size", {samples, ""}},
                                                           {"micro_batch_size", {micro_batch_size, ""}}});
}

std::unique_ptr<Accumulation> several(std::int64_t batches) {
  return make_plugin<Accumulation>("accumulation/target", {{"gradient_accumulation_steps", {batches, ""}}});
}

std::unique_ptr<Accumulation> schedule(const Numbers& sizes, const Numbers& from, const char* by,
                                       std::int64_t micro_batch_size = 0) {
  return make_plugin<Accumulation>("accumulation/schedule", {{"effective_batch_size", list(sizes)},
                                                             {"from", list(from)},
                                                             {"by", {std::string(by), ""}},
                                                             {"micro_batch_size", {micro_batch_size, ""}}});
}

// Batches of 6; the last of an epoch has 2.
class WithTail final : public toy::Task {
 public:
  using toy::Task::Task;
  Batch next() override {
    const auto last = place_ % batches_per_epoch() == batches_per_epoch() - 1;
    const auto all = toy::Task::next();
    return last ? all.narrow(0, 2) : all;
  }
};

// One update after the other on the batches of these numbers, each update's put together: what a plain loop does.
std::vector<torch::Tensor> by_hand(std::int64_t batches, const std::vector<Numbers>& updates) {
  WithTail task(batches);
  vernier::TrainerRun run;
  task.prepare(run);
  std::vector<Batch> epoch;
  for (std::int64_t i = 0; i < batches; ++i) epoch.push_back(task.next());
  for (const auto& update : updates) {
    std::vector<Batch> parts;
    for (const auto number : update) parts.push_back(epoch[static_cast<std::size_t>(number)]);
    task.loss(Batch::concatenated(parts)).backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : run.model->parameters()) {
      parameter.sub_(parameter.grad(), 0.1);
      parameter.mutable_grad().reset();
    }
  }
  std::vector<torch::Tensor> weights;
  for (const auto& parameter : run.model->parameters()) weights.push_back(parameter.detach());
  return weights;
}

struct Seen {
  std::vector<std::int64_t> samples, micro_batches, epochs_begun, epochs_ended;
  std::int64_t steps = 0;
  std::vector<torch::Tensor> weights;
};

Seen train(std::unique_ptr<Accumulation> accumulation, std::int64_t batches, std::int64_t epochs) {
  Toy toy;
  Seen seen;
  toy.wiring.task = std::make_unique<WithTail>(batches);
  toy.wiring.accumulation = std::move(accumulation);
  std::int64_t micro_batches = 0;
  toy.on(Event::StepBegin, [&](Run&) { micro_batches = 0; });
  toy.on(Event::BatchReady, [&](Run&) { micro_batches += 1; });
  toy.on(Event::StepEnd, [&](Run& run) {
    seen.samples.push_back(run.batch.samples);
    seen.micro_batches.push_back(micro_batches);
  });
  toy.on(Event::StepBegin, [&](Run& run) {
    if (run.batches_drawn % batches == 0) seen.epochs_begun.push_back(run.step);
  });
  toy.on(Event::EpochEnd, [&](Run& run) { seen.epochs_ended.push_back(run.step); });
  toy.prepare(0, epochs).train(toy.run);
  seen.steps = toy.run.steps;
  seen.weights = toy.weights();
  return seen;
}

void check_close(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i].allclose(b[i], 1e-6, 1e-6));
}

}  // namespace

TEST_CASE(
    "target: an update is so many samples of several batches, the tail of an epoch what is left, exactly weighed") {
  const auto seen = train(target(12), 5, 2);
  CHECK(seen.steps == 6);
  CHECK(seen.samples == Numbers{12, 12, 2, 12, 12, 2});
  CHECK(seen.micro_batches == Numbers{2, 2, 1, 2, 2, 1});
  CHECK(seen.epochs_begun == Numbers{0, 3});
  CHECK(seen.epochs_ended == Numbers{3, 6});
  check_close(seen.weights, by_hand(5, {{0, 1}, {2, 3}, {4}, {0, 1}, {2, 3}, {4}}));

  CHECK(train(several(2), 5, 2).samples == seen.samples);
  check_close(train(several(2), 5, 2).weights, seen.weights);

  const auto whole = train(target(600), 4, 3);  // more than an epoch has
  CHECK(whole.samples == Numbers{20, 20, 20});
  CHECK(whole.micro_batches == Numbers{4, 4, 4});
  check_close(whole.weights, by_hand(4, {{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}}));
}

TEST_CASE("target: micro-batches of another size train the same") {
  for (const std::int64_t size : {1, 4, 5, 12}) {
    const auto seen = train(target(12, size), 5, 2);
    CHECK(seen.samples == Numbers{12, 12, 2, 12, 12, 2});
    CHECK(seen.micro_batches.front() == (12 + size - 1) / size);
    check_close(seen.weights, by_hand(5, {{0, 1}, {2, 3}, {4}, {0, 1}, {2, 3}, {4}}));
  }
}

TEST_CASE("schedule: the batch of an update grows over steps or epochs, and epochs are as many steps as that makes") {
  const auto steps = train(schedule({6, 12, 18}, {0, 2, 4}, "steps"), 6, 2);
  CHECK(steps.samples == Numbers{6, 6, 12, 8, 18, 14});
  CHECK(steps.steps == 6);
  CHECK(steps.epochs_begun == Numbers{0, 4});
  check_close(steps.weights, by_hand(6, {{0}, {1}, {2, 3}, {4, 5}, {0, 1, 2}, {3, 4, 5}}));

  const auto epochs = train(schedule({6, 18}, {0, 1}, "epochs"), 6, 3);
  CHECK(epochs.samples == Numbers{6, 6, 6, 6, 6, 2, 18, 14, 18, 14});
  CHECK(epochs.epochs_ended == Numbers{6, 8, 10});
}

TEST_CASE("target and schedule: what does not go together is refused before the first step") {
  const auto prepare = [](std::unique_ptr<Accumulation> accumulation) {
    return thrown_by([&] {
      Toy toy;
      toy.wiring.accumulation = std::move(accumulation);
      toy.prepare(0, 2);
    });
  };
  CHECK(prepare(target(15)).text ==
        "accumulation/target: target_effective_batch_size = 15 is not a multiple of the task's batches of 6 samples: "
        "give "
        "12 or 18, or change the task's batch_size");
  CHECK(
      prepare(target(5)).text ==
      "accumulation/target: target_effective_batch_size = 5 is not a multiple of the task's batches of 6 samples: give "
      "6, or change the task's batch_size");
  CHECK(prepare(schedule({6, 12, 19}, {0, 5, 9}, "steps")).kind == 2);
  CHECK(thrown_by([] { target(12, 13); }).text ==
        "accumulation/target: `micro_batch_size` is more than an update has samples (12)");
  CHECK(thrown_by([] {
          schedule({6, 12}, {0, 5}, "steps", 13);
        }).text == "accumulation/schedule: `micro_batch_size` is more than an update has samples (12)");
  CHECK(thrown_by([] {
          schedule({6, 12}, {0}, "steps");
        }).text == "accumulation/schedule: `from` has 1 numbers and effective_batch_size 2: give one for each");
  CHECK(thrown_by([] {
          schedule({6, 12}, {0, 0}, "steps");
        }).text == "accumulation/schedule: `from` must begin with 0 and grow");
  CHECK(thrown_by([] { make_plugin<Accumulation>("accumulation/target"); }).text ==
        "test.toml:1: accumulation/target: `target_effective_batch_size` is needed: samples of an update, a multiple "
        "of the task's batch_size; or give gradient_accumulation_steps");
  CHECK(thrown_by([] {
          make_plugin<Accumulation>("accumulation/target",
                                    {{"target_effective_batch_size", {std::int64_t{12}, "test.toml:2"}},
                                     {"gradient_accumulation_steps", {std::int64_t{2}, "test.toml:3"}}});
        }).text ==
        "test.toml:2: accumulation/target: `target_effective_batch_size` and `gradient_accumulation_steps` "
        "both say how large an update is; give one");
}

TEST_CASE("target: looking at the first batch leaves the data and the random numbers as they were") {
  const auto run = [](const std::string& accumulation) {
    const auto config =
        from_toml({"[run]\nepochs = 2\n[task]\nuse = 'mlp'\nsamples = 48\nbatch_size = 16\nvalidation = 0\n"
                   "[optimizer]\nuse = 'sgd'\n[checkpoint]\nuse = 'none'\n",
                   accumulation});
    SmallRun run(config);
    std::vector<torch::Tensor> seen;
    run.on(Event::BatchReady, [&](Run& now) { seen.push_back(now.micro_batch.tensors[0].clone()); });
    run.train();
    return torch::cat(seen);
  };
  CHECK(torch::equal(run("[accumulation]\nuse = 'target'\ntarget_effective_batch_size = 32\n"), run("")));
  CHECK(torch::equal(run("[accumulation]\nuse = 'target'\ngradient_accumulation_steps = 2\n"), run("")));
}

TEST_CASE("target: after going back, the batches of an update are passed over together") {
  Toy toy;
  toy.wiring.task = std::make_unique<toy::Task>(40);
  toy.wiring.accumulation = target(12);
  std::vector<std::int64_t> drawn;
  bool has_gone_back = false;
  auto* requester = static_cast<vernier::Plugin*>(nullptr);
  toy.wiring.callbacks.push_back(
      std::make_unique<toy::Told<vernier::Callback>>("callback/back", [&](vernier::Bus& bus) {
        bus.on(Event::StepEnd, [&](Run& run) {
          drawn.push_back(run.batches_drawn);
          if (run.step != 4 || has_gone_back) return;
          has_gone_back = true;
          run.control->rewind(*requester, 2, 1);
        });
      }));
  requester = toy.wiring.callbacks.back().get();
  auto& trainer = toy.prepare();
  toy.run.control->keep_savepoints(1, 4);
  trainer.train(toy.run);
  CHECK(drawn == Numbers{2, 4, 6, 8, 6, 10, 12, 14});  // the update on batches 6 and 7 is given up
}

}  // namespace gathering_test
