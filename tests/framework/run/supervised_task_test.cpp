#include <doctest/doctest.h>
#include <torch/torch.h>
#include <vernier/data/predictor.h>
#include <vernier/data/split.h>
#include <vernier/data/supervised_task.h>
#include <vernier/error.h>

#include <algorithm>
#include <csignal>

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
  class NoSamples final : public Own {
   public:
    using Own::Own;
    void build(Run& run) override {
      Own::build(run);
      set_training(vernier::subset(make_data(), torch::empty({0}, torch::kInt64)));
    }
  };
  OwnRun without(std::make_unique<NoSamples>(options()));
  CHECK_THROWS_WITH(without.prepare(), doctest::Contains("the training set has 0 samples"));
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

TEST_CASE("facts of the author and of the base are kept apart, whenever build() gives them") {
  class Facts final : public Own {
   public:
    Facts(Options options, std::string name) : Own(std::move(options)), name_(std::move(name)) {}
    void build(Run& run) override {
      learn_targets(vernier::target_facts(torch::tensor({0, 1, 1}), {vernier::Targets::Kind::classes, 2}));
      Own::build(run);
      vernier::State facts;
      facts.put(name_, std::string("red"));
      set_learned(std::move(facts));  // trained or not, as the guide says
    }
    std::string name_;
  };
  OwnRun trained(std::make_unique<Facts>(options(), "words"));
  trained.prepare();
  for (const bool reads_data : {true, false}) {
    auto used = std::make_unique<Facts>(options(), "words");
    used->use_learned(trained.wiring.task->save().part("learned"), reads_data);
    auto& task = *used;
    OwnRun run(std::move(used));
    run.prepare();
    CHECK(task.learned().text("words") == "red");
    CHECK(vernier::baselines_of(task.learned().part("targets")).size() == 1);
    CHECK(task.learned().part("example").tensors.size() == 1);
    CHECK(task.example(2).tensors.at(0).sizes() == torch::IntArrayRef({2, 3}));
  }
  for (const char* own : {"example/0", "targets/counts"}) {
    OwnRun wrong(std::make_unique<Facts>(options(), own));
    CHECK_THROWS_WITH(wrong.prepare(), doctest::Contains("keeps its own facts under"));
  }
}

namespace {

// If it is worse, it is very sure of class 0 and learns nothing; the baseline is one of two classes.
class Sure final : public Own {
 public:
  Sure(Options options, bool is_worse) : Own(std::move(options)), is_worse_(is_worse) {}
  void build(Run& run) override {
    Own::build(run);
    const auto model = make_model();
    set_model(model.ptr(), [model = model.ptr(), is_worse = is_worse_](const Batch& batch) {
      const auto output = model->forward(batch.tensors[0]);
      return is_worse ? output * 0 + torch::tensor({100.0F, -100.0F}) : output;
    });
    learn_targets(vernier::target_facts(is_worse_ ? torch::tensor({0, 1, 1}) : torch::tensor({0, 0}),
                                        {vernier::Targets::Kind::classes, 2}));
  }

 private:
  bool is_worse_;
};

}  // namespace

TEST_CASE("however a run ends, it says that the model is worse than no model, once") {
  static std::vector<std::string> warnings;
  vernier::set_log_sink([](vernier::Level level, const std::string&, const std::string& text) {
    if (level == vernier::Level::warning) warnings.push_back(text);
  });
  struct Back {
    ~Back() { vernier::set_log_sink(nullptr); }
  } back;
  using vernier::Event;
  const struct {
    const char* end;
    Event event;  // in which the run is ended
    bool finishes, stops;
  } cases[] = {{"its steps", Event::StepEnd, false, false},
               {"finish() after a step", Event::StepEnd, true, false},
               {"finish() at a validation", Event::Validated, true, false},
               {"a signal after a validation", Event::StepEnd, false, true}};
  for (const auto& [end, event, finishes, stops] : cases) {
    for (const bool is_worse : {true, false}) {
      CAPTURE(end);
      CAPTURE(is_worse);
      warnings.clear();
      OwnRun own(std::make_unique<Sure>(options(), is_worse));
      own.on(event, [&own, finishes = finishes, stops = stops](Run& run) {
        if (run.step < 7) return;
        if (finishes) run.control->finish(*own.wiring.task, "enough");
        if (stops) own.stop = SIGTERM;
      });
      own.prepare(5);
      own.train();
      const auto said = std::ranges::count_if(warnings, [](const auto& text) {
        return text.find("the model is worse than no model: \"most frequent class\" has the validation loss ") !=
               std::string::npos;
      });
      CHECK(said == (is_worse ? 1 : 0));
    }
  }
}

TEST_CASE("the folds of a task are all of its data, once, whichever way it splits them") {
  class Splits final : public Own {
   public:
    Splits(Options options, std::string how) : Own(std::move(options)), how_(std::move(how)) {}
    void build(Run& run) override {
      Own::build(run);
      const auto classes = torch::cat({torch::zeros({30}, torch::kInt64), torch::ones({10}, torch::kInt64)});
      const auto groups = torch::arange(40).div(3, "floor");
      if (how_ == "random") rows = vernier::split_random(40, 0.1, 3);
      if (how_ == "classes") rows = vernier::split_classes(classes, 0.1, 3);
      if (how_ == "groups") rows = vernier::split_groups(groups, 0.1, 3);
      if (how_ == "last") rows = vernier::split_last(40, 0.1);
    }
    vernier::SplitRows rows;
    std::string how_;
  };
  const auto rows_of = [](const std::string& how, const std::string& fold) {
    auto task = std::make_unique<Splits>(
        Options("task/own", Table{{"workers", Value{std::int64_t{0}, ""}}, {"fold", Value{fold, ""}}}, ""), how);
    auto* split = task.get();
    OwnRun run(std::move(task));
    run.prepare();
    return split->rows;
  };
  for (const std::string how : {"random", "classes", "groups"}) {
    CAPTURE(how);
    std::vector<torch::Tensor> held_out;
    for (int i = 1; i <= 4; ++i) {
      const auto rows = rows_of(how, std::to_string(i) + "/4");
      CHECK(std::get<0>(torch::cat({rows.training, rows.held_out}).sort()).equal(torch::arange(40)));
      CHECK(rows.held_out.numel() >= 9);
      if (how == "classes") CHECK((rows.held_out >= 30).sum().item<std::int64_t>() >= 2);
      if (how == "groups") {
        const auto out = rows.held_out.div(3, "floor"), in = rows.training.div(3, "floor");
        CHECK_FALSE((out.unsqueeze(1) == in.unsqueeze(0)).any().item<bool>());
      }
      held_out.push_back(rows.held_out);
    }
    CHECK(std::get<0>(torch::cat(held_out).sort()).equal(torch::arange(40)));
    CHECK(rows_of(how, "2/4").held_out.equal(held_out[1]));
  }
  // TimeSeriesSplit of scikit-learn 1.9 with test_size=8: the last of these trains on all that comes before.
  const auto last = rows_of("last", "4/4");
  CHECK(last.training.equal(torch::arange(32)));
  CHECK(last.held_out.equal(torch::arange(32, 40)));
  CHECK_THROWS_WITH(rows_of("none", "1/4"), doctest::Contains("a fold needs data of which a share is held out"));
  CHECK_THROWS_WITH(rows_of("groups", "1/20"), doctest::Contains("there are 14 groups; take at most 14 folds"));
  for (const char* wrong : {"4", "0/4", "5/4", "1/1", "1/4x", "a/b"}) {
    CHECK_THROWS_WITH(rows_of("random", wrong), doctest::Contains("must be the part and the number of parts"));
  }
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
