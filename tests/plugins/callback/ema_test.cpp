// ema: the average in every precision; what validation sees, and what it leaves behind.
// tests/sdk/core/optim/ema_test.cpp compares the numbers with PyTorch's.
#include <doctest/doctest.h>
#include <vernier/host.h>

#include <csignal>

#include "log_lines.h"
#include "same_tensors.h"
#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

namespace ema_test {

using vernier::Event;
using vernier::Run;

namespace {

vernier::Table options(double decay, const std::string& validate = "ema") {
  return {{"decay", {decay, "test.toml:2"}}, {"validate", {validate, "test.toml:3"}}};
}

// An average by hand, of the best weights that there are after each update that was applied.
class ByHand {
 public:
  explicit ByHand(double decay) : decay_(decay) {}
  void add(const Run& run) {
    if (run.skip_update.defined() && run.skip_update.item<float>() != 0) return;
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : run.parameters) {
      const bool has_memory = parameter.master.storage().nbytes() != 0;
      const auto weight = (has_memory ? parameter.master : parameter.model).detach().to(torch::kFloat32);
      auto& average = averages["average/" + parameter.name];
      average = average.defined() ? average.lerp(weight, 1 - decay_) : weight.clone();
    }
    ++updates;
  }
  vernier::Tensors averages;
  int updates = 0;

 private:
  double decay_;
};

vernier::Tensors averages_of(const vernier::State& state) {
  auto tensors = state.tensors;
  tensors.erase("updates");
  return tensors;
}

constexpr const char* mlp = R"(
[run]
steps = 12
validate_every = 3
[task]
use = "mlp"
samples = 64
batch_size = 12
[optimizer]
use = "adamw"
learning_rate = 0.01
[[monitor]]
use = "jsonl"
[[callback]]
use = "ema"
decay = 0.8
)";

const std::vector<std::string> precisions = {
    "[precision]\nuse = 'fp32'\n",
    "[precision]\nuse = 'bf16'\n",
    "[precision]\nuse = 'bf16'\nlevel = 'O2'\n",
    "[precision]\nuse = 'bf16'\nlevel = 'O3'\n",
    "[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'stochastic'\n",
    "[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'\n",
    "[precision]\nuse = 'fp16'\nlevel = 'O2'\n[scaler]\nuse = 'dynamic'\ninit_scale = 5e5\n",
    "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 5e5\n",
    "[precision]\nuse = 'fp8'\n"};

// A veto in some steps, whatever the precision.
void veto(SmallRun& run) {
  run.on(Event::GradientsReady, [](Run& now) {
    if (now.step % 4 == 1) now.skip_update = torch::ones({});
  });
}

struct Ended {
  vernier::State average;
  std::string digest, losses;
  std::int64_t updates = 0;
};

Ended end_of(SmallRun& run) {
  return {run.wiring->callbacks.front()->save(), run.digest(), read_text(run.run.output + "/losses.jsonl"),
          run.run.updates};
}

Ended train(const vernier::Table& config, const std::function<void(SmallRun&)>& before = veto) {
  const TemporaryFolder output;
  SmallRun run(config, output.path().string());
  if (before) before(run);
  run.train();
  auto ended = end_of(run);
  for (auto& [name, tensor] : ended.average.tensors) tensor = tensor.clone();
  return ended;
}

// Looks at the model while it is validated.
class Looking final : public toy::Task {
 public:
  torch::Tensor validate(Run& run) override {
    for (const auto& parameter : run.parameters) {
      seen.push_back(parameter.model.clone());
      memory.push_back(parameter.model.const_data_ptr());
      CHECK_FALSE(parameter.model.is_inference());
    }
    CHECK_FALSE(run.model->is_training());
    CHECK_FALSE(torch::GradMode::is_enabled());
    ++times;
    if (throws) throw std::runtime_error("boom");
    if (stop != nullptr) *stop = SIGTERM;
    return holds_out ? toy::Task::validate(run) : torch::Tensor();
  }
  std::vector<torch::Tensor> seen;
  std::vector<const void*> memory;
  int times = 0;
  bool throws = false, holds_out = true;
  std::atomic<int>* stop = nullptr;
};

struct ToyRun : toy::Toy {
  explicit ToyRun(vernier::Table table) {
    auto made = std::make_unique<Looking>();
    task = made.get();
    wiring.task = std::move(made);
    wiring.callbacks.push_back(make_plugin<vernier::Callback>("callback/ema", std::move(table)));
    run.steps = 3;
    on(Event::StepEnd, [this](Run& now) {
      trained = weights();
      hand.add(now);
    });
    on(Event::Validated, [this](Run& now) {
      ++validated;
      check_trained();
      own = now.metrics.value("trained_validation_loss");
      of_average = now.metrics.value("validation_loss");
    });
  }
  // The trained weights stand in the model, and in their memory.
  void check_trained() const {
    for (std::size_t i = 0; i < trained.size(); ++i) {
      CHECK(torch::equal(run.parameters[i].model, trained[i]));
      CHECK(run.parameters[i].model.const_data_ptr() == task->memory.at(i));
    }
  }
  double loss_of(const std::vector<torch::Tensor>& values) {
    const torch::NoGradGuard no_grad;
    const auto kept = weights();
    const auto put = [this](const std::vector<torch::Tensor>& all) {
      for (std::size_t i = 0; i < all.size(); ++i) run.parameters[i].model.copy_(all[i]);
    };
    put(values);
    const double loss = task->toy::Task::validate(run).item<double>();
    put(kept);
    return loss;
  }
  Looking* task;
  ByHand hand{0.5};
  std::vector<torch::Tensor> trained;
  std::optional<double> own, of_average;
  int validated = 0;
};

}  // namespace

TEST_CASE("ema: in every precision the average of the best weights there are, of applied updates alone") {
  for (const auto& precision : precisions) {
    for (const auto* micro_batches : {"micro_batches = 1\n", "micro_batches = 4\n"}) {
      CAPTURE(precision);
      CAPTURE(micro_batches);
      const auto config = from_toml({mlp, precision, "[accumulation]\nuse = 'fixed'\n" + std::string(micro_batches)});
      ByHand hand(0.8);
      const auto ended = train(config, [&hand](SmallRun& run) {
        veto(run);
        run.on(Event::StepEnd, [&hand](Run& now) { hand.add(now); });
      });
      CHECK(ended.average.integer("updates") == hand.updates);
      CHECK(hand.updates == ended.updates);
      CHECK(hand.updates < 12);
      check_equal(averages_of(ended.average), hand.averages);
    }
  }
}

TEST_CASE("ema: the training is what it is without it") {
  for (const auto& precision : precisions) {
    CAPTURE(precision);
    auto without = from_toml({mlp, precision});
    without.erase("callback");
    const TemporaryFolder output;
    SmallRun alone(without, output.path().string());
    veto(alone);
    alone.train();
    for (const auto* validate : {"ema", "both", "trained"}) {
      const auto with =
          train(from_toml({mlp, precision, "[[callback]]\nuse = 'ema'\nvalidate = '" + std::string(validate) + "'\n"}));
      CHECK(with.digest == alone.digest());
      const bool is_same = with.losses == read_text(output.path() / "losses.jsonl");
      CHECK(is_same == (std::string(validate) == "trained"));
    }
  }
}

TEST_CASE("ema: every, and start") {
  const auto config = from_toml({mlp, "[[callback]]\nuse = 'ema'\nevery = 3\nstart = 2\n"});
  ByHand hand(0.8);
  const auto ended = train(config, [&hand](SmallRun& run) {
    run.on(Event::StepEnd, [&hand](Run& now) {
      if (now.step == 5 || now.step == 8 || now.step == 11) hand.add(now);
    });
  });
  CHECK(ended.average.integer("updates") == 3);
  check_equal(averages_of(ended.average), hand.averages);
}

TEST_CASE("ema: validation sees the average, and leaves the trained weights in their memory, bit for bit") {
  ToyRun toy(options(0.5));
  toy.prepare().train(toy.run);
  CHECK(toy.validated == 1);
  REQUIRE(toy.task->times == 1);
  CHECK(torch::equal(toy.task->seen[0], toy.hand.averages.at("average/first")));
  CHECK(torch::equal(toy.task->seen[1], toy.hand.averages.at("average/second")));
  CHECK_FALSE(torch::equal(toy.task->seen[0], toy.trained[0]));
  CHECK(toy.of_average == toy.loss_of(toy.task->seen));
  CHECK_FALSE(toy.own);
  CHECK(torch::equal(toy.memory().last->tensor("model/first"), toy.trained[0]));
  check_equal(averages_of(toy.memory().last->part("plugin/callback/ema")), toy.hand.averages);
}

TEST_CASE("ema: both losses, or that of the trained weights") {
  ToyRun both(options(0.5, "both"));
  both.prepare().train(both.run);
  CHECK(both.task->times == 2);
  const auto trained = both.loss_of(both.trained);
  CHECK(both.own == trained);
  CHECK(both.of_average == both.loss_of({both.task->seen[2], both.task->seen[3]}));
  CHECK(both.own != both.of_average);
  ToyRun own(options(0.5, "trained"));
  own.prepare().train(own.run);
  CHECK(own.task->times == 1);
  CHECK(own.of_average == trained);
  CHECK_FALSE(own.own);
}

TEST_CASE("ema: before the first update the trained weights are validated, once") {
  auto table = options(0.5, "both");
  table["start"] = {std::int64_t{3}, "test.toml:4"};
  ToyRun toy(table);
  toy.prepare().train(toy.run);
  CHECK(toy.task->times == 1);
  CHECK(toy.own == toy.of_average);
  CHECK(toy.memory().last->part("plugin/callback/ema").tensors.empty());
}

TEST_CASE("ema: a validation that throws or is cut short leaves the trained weights, and a checkpoint of them") {
  {
    ToyRun toy(options(0.5));
    toy.task->throws = true;
    CHECK(thrown_by([&] { toy.prepare().train(toy.run); }).text == "task/toy after step 3: boom");
    toy.check_trained();
    REQUIRE(toy.memory().last);
    CHECK(torch::equal(toy.memory().last->tensor("model/first"), toy.trained[0]));
    CHECK(toy.validated == 0);
  }
  {
    ToyRun toy(options(0.5));
    toy.task->stop = &toy.stop;
    CHECK(toy.prepare().train(toy.run).signal == SIGTERM);
    toy.check_trained();
    CHECK(torch::equal(toy.memory().last->tensor("model/first"), toy.trained[0]));
    CHECK(toy.validated == 0);
  }
  ToyRun toy(options(0.5, "both"));  // nothing is held out
  toy.task->holds_out = false;
  toy.prepare().train(toy.run);
  toy.check_trained();
  CHECK(toy.validated == 0);
}

TEST_CASE("ema: with an optimizer that computes gradients again") {
  class Twice final : public toy::Descent {
   public:
    void step(Run& run) override {
      toy::Descent::step(run);
      run.control->recompute();
      toy::Descent::step(run);
    }
  };
  ToyRun toy(options(0.5));
  toy.wiring.optimizer = std::make_unique<Twice>();
  toy.prepare().train(toy.run);
  CHECK(toy.hand.updates == 3);
  check_equal(averages_of(toy.wiring.callbacks.front()->save()), toy.hand.averages);
}

TEST_CASE("ema: stopped and resumed, gone back, and with other precisions on the way, bit for bit") {
  const std::string to_bf16 = "[[callback]]\nuse = 'switch'\nat_step = 5\n[callback.to]\nprecision = {use = 'bf16', ";
  const std::string bad =
      "[[callback]]\nuse = 'inject'\nwhere = 'loss'\nat_batch = 8\n[[callback]]\nuse = 'recovery'\n"
      "non_finite = ['rewind']\nrewind_back = 3\nsnapshot_every = 2\n";
  auto cases = precisions;
  cases.push_back(to_bf16 + "level = 'O2'}\n");
  cases.push_back(to_bf16 + "level = 'O3', rounding = 'stochastic'}\n");
  cases.push_back("[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'\n" + to_bf16 + "level = 'O1'}\n");
  cases.push_back(bad);
  const NoLog no_log;
  for (const auto& each : cases) {
    CAPTURE(each);
    const auto config = from_toml({mlp, "[[callback]]\nuse = 'ema'\nwarmup = true\nevery = 2\n", each});
    const auto whole = train(config);
    CHECK(whole.average.integer("updates") >= 3);
    for (const std::int64_t stop : {1, 4, 5, 6, 9}) {
      CAPTURE(stop);
      const TemporaryFolder output;
      {
        SmallRun first(config, output.path().string());
        veto(first);
        first.stop_after(stop);
        first.train();
      }
      SmallRun second(config, output.path().string());
      veto(second);
      REQUIRE(second.resume());
      second.train();
      const auto ended = end_of(second);
      CHECK(ended.digest == whole.digest);
      CHECK(ended.losses == whole.losses);
      check_equal(ended.average.tensors, whole.average.tensors);
    }
  }
}

TEST_CASE("ema: going back takes the average along") {
  const NoLog no_log;
  const auto gone_back =
      train(from_toml({mlp,
                       "[[callback]]\nuse = 'inject'\nwhere = 'loss'\nat_batch = 8\n[[callback]]\nuse = 'recovery'\n"
                       "non_finite = ['rewind']\nrewind_back = 3\nsnapshot_every = 2\n"}),
            nullptr);
  // The run that never saw that batch, by hand.
  const TemporaryFolder output;
  auto config = from_toml({mlp});
  SmallRun without(config, output.path().string());
  without.on(Event::StepEnd, [&](Run& now) {
    if (now.step == 7) without.wiring->task->next();
  });
  without.train();
  CHECK(without.digest() == gone_back.digest);
  check_equal(without.wiring->callbacks.front()->save().tensors, gone_back.average.tensors);
}

TEST_CASE("ema: what it cannot do is refused") {
  CHECK(says(thrown_by([] { make_plugin<vernier::Callback>("callback/ema", options(1)); }).text,
             "`decay` must be below 1, or the average would never move"));
  CHECK(thrown_by([] { make_plugin<vernier::Callback>("callback/ema", options(1.5)); }).kind == 2);
  const auto plugin = make_plugin<vernier::Callback>("callback/ema", options(0.5));
  vernier::TrainerRun run;
  run.parameters.push_back({"w", torch::zeros({2, 3}), {}});
  run.parameters.back().master = run.parameters.back().model;
  plugin->prepare(run);
  vernier::State state;
  state.put("updates", std::int64_t{1});
  state.put("average/w", torch::zeros({3, 2}));
  CHECK(says(thrown_by([&] { plugin->load(state); }).text,
             "the saved average of w is [3, 2], and the weights are [2, 3]"));
  state.tensors.erase("average/w");
  CHECK(says(thrown_by([&] { plugin->load(state); }).text, "has no 'average/w'"));
}

}  // namespace ema_test
