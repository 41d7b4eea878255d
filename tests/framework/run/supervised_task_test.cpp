#include <doctest/doctest.h>
#include <torch/torch.h>
#include <vernier/data/predictor.h>
#include <vernier/data/supervised_task.h>
#include <vernier/error.h>

#include "run/state/snapshot.h"
#include "small_run.h"
#include "toy_run.h"

namespace supervised_task_test {

using vernier::Batch;
using vernier::Error;
using vernier::Options;
using vernier::Run;
using vernier::Sample;
using vernier::Table;
using vernier::Value;

namespace {

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
}

// 40 samples of noise with a rule in it; an augmentation that draws random numbers.
vernier::DatasetPtr make_data() {
  const auto x = torch::arange(120, torch::kFloat32).reshape({40, 3}).mul(0.7).sin();
  const auto data = vernier::tensor_dataset({x, (x.sum(1) > 0).to(torch::kInt64)});
  return vernier::map(data, [](Sample sample, vernier::Random& random) {
    sample[0] = sample[0] + torch::randn({3}, random.generator()) * 0.1;
    return sample;
  });
}

class Own : public vernier::SupervisedTask {
 public:
  explicit Own(Options options) : SupervisedTask(options, 6) { set_id("task/own"); }
  void build(Run&) override {
    set_training(make_data());
    add_validation(vernier::subset(make_data(), torch::arange(10)));
    add_validation(vernier::subset(make_data(), torch::arange(10, 25)), "late");
    set_model(make_model());
    set_loss([](const auto& output, const auto& target) { return at::cross_entropy_loss(output, target); });
    add_metric(vernier::accuracy());
  }
};

Options options(std::int64_t workers = 2, const std::string& recompute = "none") {
  return {"task/own", Table{{"workers", Value{workers, ""}}, {"recompute", Value{recompute, ""}}}, ""};
}

struct OwnRun : toy::Toy {
  explicit OwnRun(Options of_task) : OwnRun(std::make_unique<Own>(std::move(of_task))) {}
  explicit OwnRun(std::unique_ptr<vernier::Task> task) {
    torch::manual_seed(1);
    wiring.task = std::move(task);
    wiring.accumulation = make_plugin<vernier::Accumulation>("accumulation/fixed");
    run.steps = 20;
  }
  std::string train() {
    trainer->train(run);
    return vernier::digest(*run.model);
  }
};

}  // namespace

TEST_CASE("an own task trains the same weights with any number of workers, and with recompute") {
  OwnRun alone(options(0));
  alone.prepare();
  const auto before = vernier::digest(*alone.run.model), expected = alone.train();
  CHECK(before != expected);
  for (const std::int64_t workers : {1, 3}) {
    for (const char* recompute : {"none", "full", "selective"}) {
      OwnRun run(options(workers, recompute));
      run.prepare();
      CHECK(run.train() == expected);
    }
  }
}

TEST_CASE("an own task that is stopped three times in an epoch resumes bit for bit") {
  OwnRun whole(options());
  whole.prepare(4);
  const auto expected = whole.train();
  std::optional<vernier::State> saved;
  std::string digest;
  for (const std::int64_t stop : {1, 3, 5, 12, 20}) {  // an epoch has 7 steps
    OwnRun part(options(stop % 3));
    part.memory().last = saved;
    part.run.steps = 20;
    part.on(vernier::Event::StepEnd, [&part, stop](Run& run) {
      if (run.step == stop && stop < 20) part.stop = SIGTERM;
    });
    auto& trainer = part.prepare(4);
    if (saved) trainer.resume(part.run, *saved, /*allow_inexact=*/true);  // one listener more than before
    digest = part.train();
    saved = part.memory().last;
  }
  CHECK(digest == expected);
}

TEST_CASE("validation is exact over its batches, and each set has its metrics") {
  OwnRun run(options());
  std::map<std::string, double> seen;
  run.on(vernier::Event::Validated, [&](Run& now) {
    for (const auto* entry : now.metrics.set_now()) seen[entry->name] = entry->value();
  });
  run.prepare(20).train(run.run);
  const torch::NoGradGuard no_grad;
  const auto whole = [&](std::int64_t first, std::int64_t count) {
    vernier::DataLoader loader(vernier::subset(make_data(), torch::arange(first, first + count)),
                               {.batch_size = count, .order = vernier::Sampler::Order::sequential});
    const auto batch = loader.next();
    const auto output = static_cast<Own&>(*run.wiring.task).forward(batch);
    return std::pair(at::cross_entropy_loss(output, batch.tensors[1]).item<double>(),
                     (output.argmax(1) == batch.tensors[1]).to(torch::kFloat64).mean().item<double>());
  };
  CHECK(seen.at("validation_loss") == doctest::Approx(whole(0, 10).first).epsilon(1e-6));
  CHECK(seen.at("accuracy") == doctest::Approx(whole(0, 10).second));
  CHECK(seen.at("late_loss") == doctest::Approx(whole(10, 15).first).epsilon(1e-6));
  CHECK(seen.at("late_accuracy") == doctest::Approx(whole(10, 15).second));
}

TEST_CASE("the time that a step waits for data is a metric") {
  OwnRun run(options());
  std::vector<double> waits;
  run.on(vernier::Event::StepEnd, [&](Run& now) { waits.push_back(now.metrics.value("data_wait").value_or(-1)); });
  run.prepare().train(run.run);
  CHECK(waits.size() == 20);
  for (const double wait : waits) CHECK(wait >= 0);
}

TEST_CASE("tasks that lack a part are named") {
  class Empty final : public Own {
   public:
    using Own::Own;
    void build(Run&) override {}
  };
  OwnRun empty(std::make_unique<Empty>(options()));
  CHECK_THROWS_WITH(empty.prepare(), doctest::Contains("task/own: build() must call set_model()"));

  class Opaque final : public Own {
   public:
    using Own::Own;
    void build(Run& run) override {
      Own::build(run);
      set_model(torch::nn::Linear(3, 2));
    }
  };
  OwnRun opaque(std::make_unique<Opaque>(options(1, "full")));
  CHECK_THROWS_WITH(opaque.prepare().train(opaque.run), doctest::Contains("option recompute has no effect"));

  class TwoMains final : public Own {
   public:
    using Own::Own;
    void build(Run& run) override {
      Own::build(run);
      add_validation(make_data());
    }
  };
  OwnRun twice(std::make_unique<TwoMains>(options()));
  CHECK_THROWS_WITH(twice.prepare(), doctest::Contains("a second validation set needs a name"));

  OwnRun mute(options());
  mute.prepare();
  auto& task = static_cast<Own&>(*mute.wiring.task);
  CHECK(task.example(1).tensors.size() == 1);
  CHECK(task.forward(task.example(1)).sizes() == torch::IntArrayRef({1, 2}));
}

TEST_CASE("a model that returns its loss takes all tensors of a batch, those of exports included") {
  class OwnLoss final : public Own {
   public:
    using Own::Own;
    void build(Run&) override {
      set_training(make_data());
      const auto model = make_model().ptr();
      set_model(model, [model](const Batch& batch) {
        return at::cross_entropy_loss(model->forward(batch.tensors.at(0)), batch.tensors.at(1));
      });
      set_loss([](const auto& output, const auto& target) { return target.defined() ? output * 0 : output; }, {});
    }
    using Batch = vernier::Batch;
  };
  OwnRun own(std::make_unique<OwnLoss>(options()));
  own.prepare();
  auto& task = static_cast<Own&>(*own.wiring.task);
  CHECK(task.example(2).tensors.size() == 2);
  CHECK(task.loss(task.next()).item<float>() > 0);
}

TEST_CASE("a plugin checks the whole run before its first step, and knows what validations measure") {
  struct Wants final : vernier::Callback {
    explicit Wants(std::string name) : metric(std::move(name)) { set_id("callback/wants"); }
    void check(const Run& run) override { better = run.better(metric); }
    std::vector<vernier::MetricInfo> measures() const override { return {{"patience_left"}}; }
    std::string metric;
    vernier::Better better = vernier::Better::unknown;
  };
  using vernier::Better;
  for (const auto& [metric, better] : {std::pair{"validation_loss", Better::lower},
                                       {"accuracy", Better::higher},
                                       {"late_loss", Better::lower},
                                       {"late_accuracy", Better::higher},
                                       {"patience_left", Better::unknown}}) {
    CAPTURE(metric);
    OwnRun own(options());
    auto wants = std::make_unique<Wants>(metric);
    auto* checked = wants.get();
    own.wiring.callbacks.push_back(std::move(wants));
    own.prepare();
    CHECK(checked->better == better);
  }
  OwnRun wrong(options());
  wrong.wiring.callbacks.push_back(std::make_unique<Wants>("acuracy"));
  CHECK_THROWS_WITH(
      wrong.prepare(),
      doctest::Contains(
          "\"acuracy\" is not a metric of this run's validations; did you mean \"accuracy\"? They measure "
          "validation_loss, accuracy, late_loss, late_accuracy, patience_left"));
}

TEST_CASE("what a task has learned of its data is saved, and given back without them") {
  class Learns final : public Own {
   public:
    using Own::Own;
    void build(Run& run) override {
      if (is_trained()) {
        words = learned().text("words");
      } else {
        State facts;
        facts.put("words", std::string("red green"));
        set_learned(std::move(facts));
      }
      if (reads_data()) return Own::build(run);
      set_model(make_model());
      set_loss([](const auto& output, const auto& target) { return at::cross_entropy_loss(output, target); });
    }
    using State = vernier::State;
    std::string words;
  };
  OwnRun trained(std::make_unique<Learns>(options()));
  trained.prepare();
  const auto saved = trained.wiring.task->save().part("learned");
  auto used = std::make_unique<Learns>(options());
  used->use_learned(saved, /*reads_data=*/false);
  auto& task = *used;
  OwnRun run(std::move(used));
  run.prepare();
  CHECK(task.words == "red green");
  CHECK(task.example(2).tensors[0].sizes() == torch::IntArrayRef({2, 3}));
  CHECK_FALSE(task.measures().has_value());  // nothing is judged where a trained model is used
  CHECK_THROWS_WITH(task.next(), doctest::Contains("was loaded without its data"));
}

TEST_CASE("a predictor that only reads its inputs has one column, the output, and no form of its own") {
  class Reads final : public vernier::Predictor {
   public:
    vernier::DatasetPtr read_inputs(const std::string&) override { return make_data(); }
  };
  Reads reads;
  CHECK(reads.predict({}).empty());
  CHECK(reads.python_model().empty());
  CHECK_FALSE(reads.save_torchscript("model.pt"));
}

}  // namespace supervised_task_test
