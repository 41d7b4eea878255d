#include <ATen/ops/dropout.h>
#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <vernier/host.h>
#include <vernier/memory.h>

#include <algorithm>
#include <random>

#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

namespace fit_test {

using toy::Toy;
using vernier::Accumulation;
using vernier::Batch;
using vernier::Event;
using vernier::Run;
using vernier::Table;
using vernier::Value;
using Sizes = std::vector<std::int64_t>;

namespace {

constexpr auto cpu = torch::kCPU;

// A limit to what a test's own tensors take.
struct Limited {
  explicit Limited(std::int64_t bytes) {
    vernier::count_memory(cpu);
    vernier::limit_memory(cpu, vernier::allocated_memory(cpu).now + bytes);
  }
  ~Limited() { vernier::limit_memory(cpu, 0); }
};

// Micro-batches of exactly this size, and a rest.
class Exactly final : public Accumulation {
 public:
  explicit Exactly(std::int64_t size) : size_(size) { set_id("accumulation/exactly"); }
  std::vector<Batch> split(const Batch& batch) override {
    std::vector<Batch> micro_batches;
    for (std::int64_t first = 0; first < batch.samples; first += size_) {
      micro_batches.push_back(batch.narrow(first, std::min(size_, batch.samples - first)));
    }
    return micro_batches;
  }

 private:
  std::int64_t size_;
};

struct Network {
  std::vector<std::int64_t> hidden;
  const char* optimizer;

  void put_into(Toy& toy, std::unique_ptr<Accumulation> accumulation) const {
    vernier::Array widths;
    for (const auto width : hidden) widths.push_back({width, ""});
    toy.wiring.task = make_plugin<vernier::Task>("task/mlp", {{"inputs", {std::int64_t{24}, ""}},
                                                              {"hidden", {widths, ""}},
                                                              {"samples", {std::int64_t{3000}, ""}},
                                                              {"batch_size", {std::int64_t{2500}, ""}},
                                                              {"validation", {0.0, ""}}});
    toy.wiring.optimizer = make_plugin<vernier::Optimizer>(optimizer);
    toy.wiring.accumulation = std::move(accumulation);
    toy.run.steps = 5;
  }

  bool trains(std::int64_t size, std::int64_t limit) const {
    const Limited limited(limit);
    Toy toy;
    put_into(toy, std::make_unique<Exactly>(size));
    try {
      toy.prepare().train(toy.run);
      return true;
    } catch (const vernier::Error& error) {
      REQUIRE(says(error.what(), "more were requested"));
      return false;
    }
  }

  // By trying; 0 where a single sample is too much.
  std::int64_t largest(std::int64_t limit) const {
    std::int64_t fits = 0, fails = 2501;
    while (fails - fits > 1) {
      const auto middle = (fits + fails) / 2;
      (trains(middle, limit) ? fits : fails) = middle;
    }
    return fits;
  }
};

struct Fitted {
  std::int64_t size, failures;
};

Fitted fit(const Network& network, std::int64_t limit) {
  const Limited limited(limit);
  Toy toy;
  network.put_into(toy, make_plugin<Accumulation>("accumulation/fit"));
  Fitted fitted{0, 0};
  toy.look(Event::StepEnd, [&](const Run& run) {
    for (const auto& notice : run.notices) fitted.failures += notice.name == "out_of_memory" ? 1 : 0;
  });
  toy.prepare().train(toy.run);
  fitted.size = toy.wiring.accumulation->save().integer("size");
  return fitted;
}

}  // namespace

TEST_CASE("fit: within 5 % of the largest micro-batch that trains, found by trying, and at most one failure") {
  std::mt19937 random(7);
  int tried = 0;
  for (int i = 0; i < 8; ++i) {
    Network network{{}, i % 2 == 0 ? "optimizer/adamw" : "optimizer/sgd"};
    for (std::size_t layers = 1 + random() % 3; layers > 0; --layers) {
      network.hidden.push_back(16 + static_cast<std::int64_t>(random() % 200));
    }
    const auto limit = 1'000'000 + static_cast<std::int64_t>(random() % 4'000'000);
    const auto largest = network.largest(limit);
    CAPTURE(i);
    CAPTURE(limit);
    CAPTURE(largest);
    if (largest < 20 || largest > 1250) continue;  // a rest, or a whole batch, is not what is looked for
    const auto fitted = fit(network, limit);
    CHECK(fitted.failures <= 1);
    CHECK(fitted.size <= largest);
    CHECK(static_cast<double>(fitted.size) >= 0.95 * static_cast<double>(largest) - 1);
    tried += 1;
  }
  CHECK(tried >= 4);
}

namespace {

// Its loss hangs on random numbers and on a buffer that each micro-batch changes. It fails where it should: before
// or after forward, or in backward.
class Failing final : public toy::Task {
 public:
  using toy::Task::Task;
  Batch next() override {
    std::vector<Batch> six;
    for (int i = 0; i < 6; ++i) six.push_back(batch(6 * place_ + i));
    const bool is_one_to_fail = place_++ % 10 == 5 && failures < wanted;
    fails_in_ = is_one_to_fail ? static_cast<int>(random_() % 3) : -1;
    return Batch::concatenated(six);
  }
  torch::Tensor loss(const Batch& micro_batch) override {
    const auto when = fails_in_-- == 0 ? random_() % 3 : 3;
    failures += when < 3 ? 1 : 0;
    if (when == 0) fail();
    {
      const torch::NoGradGuard no_grad;
      model->seen.add_(static_cast<double>(micro_batch.samples));
    }
    const auto hidden = at::tanh(at::linear(at::dropout(micro_batch.tensors[0], 0.3, true), model->first));
    const auto loss = at::mse_loss(at::linear(hidden, model->second), micro_batch.tensors[1]);
    if (when == 1) fail();
    // In backward, when the second weight has its gradient and the first has not.
    if (when == 2) hidden.register_hook([](const torch::Tensor&) { fail(); });
    return loss * (1 + 0.001 * model->seen.item<double>());
  }
  torch::Tensor validate(vernier::Run&) override { return {}; }

  int wanted = 0, failures = 0;

 private:
  [[noreturn]] static void fail() { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory"); }
  std::mt19937 random_{11};
  int fails_in_ = -1;  // micro-batches from now
};

// Another strategy, and how it split the batch of each step in the end.
class Recorded final : public Accumulation {
 public:
  explicit Recorded(std::unique_ptr<Accumulation> of) : of_(std::move(of)) { set_id("accumulation/recorded"); }
  void attach(vernier::Bus& bus) override {
    vernier::HostApi::set_id(*of_, "accumulation/fit");
    of_->attach(bus);
    bus.on(Event::StepEnd, [this](Run&) { steps.push_back(last_); });
  }
  void prepare(Run& run) override {
    of_->prepare(run);
    run.control->want_rerun(*this);
  }
  std::vector<Batch> split(const Batch& batch) override {
    auto micro_batches = of_->split(batch);
    last_.clear();
    for (const auto& micro_batch : micro_batches) last_.push_back(micro_batch.samples);
    return micro_batches;
  }
  bool shrink(Run& run) override { return of_->shrink(run); }

  std::vector<Sizes> steps;

 private:
  std::unique_ptr<Accumulation> of_;
  Sizes last_;
};

// The micro-batches of each step, given.
class Given final : public Accumulation {
 public:
  explicit Given(std::vector<Sizes> steps) : steps_(std::move(steps)) { set_id("accumulation/given"); }
  std::vector<Batch> split(const Batch& batch) override { return toy::MicroBatches(steps_.at(step_++)).split(batch); }

 private:
  std::vector<Sizes> steps_;
  std::size_t step_ = 0;
};

struct Trajectory {
  std::vector<double> losses;
  std::vector<torch::Tensor> weights;
  std::int64_t notices = 0;
};

class Training final {
 public:
  Training(std::unique_ptr<Accumulation> accumulation, int failures, const char* precision, const char* scaler) {
    auto task = std::make_unique<Failing>(7);
    task->wanted = failures;
    failing = task.get();
    toy.wiring.task = std::move(task);
    toy.wiring.precision = make_plugin<vernier::Precision>(precision);
    toy.wiring.scaler = make_plugin<vernier::Scaler>(scaler);
    toy.wiring.accumulation = std::move(accumulation);
    toy.run.steps = 1010;
  }
  Trajectory train() {
    Trajectory trajectory;
    toy.look(Event::StepEnd, [&](const Run& run) {
      trajectory.losses.push_back(run.loss.item<double>());
      for (const auto& notice : run.notices) {
        trajectory.notices += notice.text().starts_with("out_of_memory micro_batch=");
        CHECK(
            (notice.name != "out_of_memory" || says(notice.sentence, " samples does not fit into memory; the next ")));
      }
    });
    torch::manual_seed(3);
    toy.prepare().train(toy.run);
    trajectory.weights = toy.weights();
    trajectory.weights.push_back(failing->model->seen.clone());
    return trajectory;
  }
  Toy toy;
  Failing* failing;
};

}  // namespace

TEST_CASE(
    "fit: 100 failures at random places leave the run that the same micro-batches make without them, bit for bit") {
  for (const auto& [precision, scaler] :
       {std::pair{"precision/fp32", "scaler/none"}, std::pair{"precision/bf16", "scaler/none"},
        std::pair{"precision/fp16", "scaler/dynamic"}}) {
    CAPTURE(precision);
    auto fit = make_plugin<Accumulation>(
        "accumulation/fit", {{"try_larger_after", {std::int64_t{1}, ""}}, {"largest", {std::int64_t{12}, ""}}});
    auto recorded = std::make_unique<Recorded>(std::move(fit));
    auto* micro_batches = recorded.get();
    Training failing(std::move(recorded), 100, precision, scaler);
    const auto with = failing.train();
    CHECK(failing.failing->failures == 100);
    CHECK(with.notices == 100);
    Training smooth(std::make_unique<Given>(micro_batches->steps), 0, precision, scaler);
    const auto without = smooth.train();
    CHECK(smooth.failing->failures == 0);
    CHECK(with.losses == without.losses);
    REQUIRE(with.weights.size() == without.weights.size());
    for (std::size_t i = 0; i < with.weights.size(); ++i) CHECK(with.weights[i].equal(without.weights[i]));
  }
}

TEST_CASE("fit: gradients that are computed again come from the same micro-batches") {
  const TemporaryFolder folder;
  for (const std::string again :
       {"[[callback]]\nuse = 'sam'\n", "[[callback]]\nuse = 'recheck'\nevery = 1\n", "[optimizer]\nuse = 'lbfgs'\n"}) {
    CAPTURE(again);
    SmallRun run(from_toml({"[run]\nsteps = 4\n[task]\nuse = 'mlp'\n[accumulation]\nuse = 'fit'\n[optimizer]\nuse = "
                            "'adamw'\n[checkpoint]\nuse = 'none'\n",
                            again}),
                 folder.path().string());
    Sizes sizes;  // the micro-batches of this step
    std::int64_t steps_in_parts = 0;
    run.on(Event::StepBegin, [&](Run&) { sizes.clear(); });
    run.on(Event::BatchReady, [&](Run& now) { sizes.push_back(now.micro_batch.samples); });
    run.on(Event::StepEnd, [&](Run& now) {
      CHECK(now.notices.empty());
      REQUIRE(std::ssize(sizes) >= 2 * now.micro_batches);
      CHECK(std::equal(sizes.end() - now.micro_batches, sizes.end(), sizes.end() - 2 * now.micro_batches));
      steps_in_parts += now.micro_batches > 1 ? 1 : 0;
    });
    run.train();
    CHECK(steps_in_parts >= 1);
  }
}

TEST_CASE("fit: a single sample that is too much ends the run, as it was between the steps, with a checkpoint") {
  Toy toy;
  const Network network{{4096}, "optimizer/adamw"};
  network.put_into(toy, make_plugin<Accumulation>("accumulation/fit"));
  std::optional<Limited> limited;
  std::vector<torch::Tensor> trained;
  toy.on(Event::StepBegin, [&](Run& run) {
    if (run.step != 2) return;
    trained = toy.weights();
    limited.emplace(400'000);  // enough for a batch, not for gradients
  });
  auto& trainer = toy.prepare();
  const auto thrown = thrown_by([&] { trainer.train(toy.run); });
  CHECK(thrown.kind == 4);
  CHECK(says(thrown.text, "task/mlp in step 3: "));
  CHECK(says(thrown.text, "more were requested"));
  REQUIRE(toy.memory().last);
  CHECK(toy.memory().last->integer("run/step") == 2);
  CHECK(toy.memory().last->tensor("model/layers.0.weight").equal(trained.at(0)));
}

TEST_CASE("fit: micro-batches grow again after a failure, and wait longer each time that it comes back") {
  Toy toy;
  toy.wiring.accumulation =
      make_plugin<Accumulation>("accumulation/fit", {{"try_larger_after", {std::int64_t{2}, ""}}});
  toy.prepare();
  const auto& fit = toy.wiring.accumulation;
  vernier::Bus& bus = toy.wiring.bus;
  auto state = fit->save();
  state.put("size", std::int64_t{64});
  state.put("wanted", std::int64_t{64});
  state.put("is_settled", std::int64_t{1});
  fit->load(state);
  const auto size = [&] { return fit->save().integer("size"); };
  const auto fails = [&](std::int64_t samples) {
    toy.run.micro_batch.samples = samples;
    vernier::HostApi::emit(bus, Event::BatchReady, toy.run);
    return fit->shrink(toy.run);
  };
  Sizes sizes;
  REQUIRE(fails(64));
  REQUIRE(fails(32));  // in the same step
  CHECK(size() == 16);
  for (toy.run.step = 1; toy.run.step <= 12; ++toy.run.step) {
    vernier::HostApi::emit(bus, Event::StepBegin, toy.run);
    sizes.push_back(size());
    if (size() == 64 && toy.run.step < 9) REQUIRE(fails(64));
  }
  CHECK(sizes == Sizes{16, 16, 16, 32, 32, 32, 32, 64, 32, 32, 32, 32});
  CHECK_FALSE(fails(1));
  CHECK(toy.run.notices.size() == 3);
  vernier::limit_memory(cpu, 0);
}

}  // namespace fit_test
