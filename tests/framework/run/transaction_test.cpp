// Control::want, roll_back and rerun: a run of which an update was rolled back is the run that skips it.
#include <doctest/doctest.h>
#include <vernier/error.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"
#include "trace/capsule.h"

namespace transaction_test {

using vernier::Event;
using vernier::Run;
using vernier::Stage;

namespace {

// Rolls back the updates of some steps, counted from 0. Each is run again on the side, or fails there.
class Undoer final : public vernier::Callback {
 public:
  explicit Undoer(std::set<std::int64_t> steps) : steps_(std::move(steps)) { set_id("callback/undoer"); }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::GradientsReady, [this](Run& run) {
      if (!steps_.contains(run.step)) return;
      before_ = vernier::digests_of_weights(run);
      run.control->want(Stage::gradients, *this);
    });
    bus.on(Event::UpdateDone, [this](Run& run) {
      if (!steps_.contains(run.step)) return;
      is_skipped(run) ? void(++skipped) : undo(run);
    });
  }
  void prepare(Run& run) override { run.control->want(Stage::batch, *this); }
  int times = 0, skipped = 0;

 private:
  static bool is_skipped(const Run& run) { return run.skip_update.defined() && run.skip_update.item<float>() != 0; }

  void undo(Run& run) {
    const auto after = vernier::digests_of_weights(run);
    CHECK(before_ != after);
    CHECK(run.control->roll_back(Stage::gradients));
    CHECK(vernier::digests_of_weights(run) == before_);
    CHECK(is_skipped(run));
    const auto begin = [&] {
      ++times;
      CHECK(vernier::digests_of_weights(run) == before_);
      CHECK_FALSE(is_skipped(run));
      const auto gradients = vernier::fingerprint(run);
      const auto compare = [&] { CHECK(gradients.difference(vernier::fingerprint(run)) == ""); };
      run.control->rerun(
          Stage::batch, [] {}, compare);
      if (times % 2 == 0) throw vernier::Error("no");
    };
    try {
      run.control->rerun(Stage::gradients, begin, [&] { CHECK(vernier::digests_of_weights(run) == after); });
      CHECK(times % 2 == 1);
    } catch (const vernier::Error&) {
      CHECK(times % 2 == 0);
    }
    CHECK(vernier::digests_of_weights(run) == before_);
    CHECK(is_skipped(run));
  }

  std::set<std::int64_t> steps_;
  std::map<std::string, std::string> before_;
};

std::string gpt(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + '\n';
  return "[run]\nsteps = 6\n[task]\nuse = 'gpt'\ndata = ['" + folder.write("text", text) +
         "']\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 8\nbatch_size = 4\nvalidation = 0.0\n"
         "dropout = 0.1\n[accumulation]\nuse = 'fixed'\nmicro_batches = 2\n[checkpoint]\nuse = 'none'\n"
         "[[callback]]\nuse = 'ema'\n[[callback]]\nuse = 'schedule'\nkind = 'linear'\n";
}

const std::vector<std::string> optimizers = {"use = 'adamw'",
                                             "use = 'adamw'\nstate = 'bf16'",
                                             "use = 'adamw'\nstate = '8bit'",
                                             "use = 'adamw'\namsgrad = true",
                                             "use = 'sgd'",
                                             "use = 'sgd'\nmomentum = 0.9\nlearning_rate = 0.01"};

const std::vector<std::string> policies = {
    "[precision]\nuse = 'fp32'\n",
    "[precision]\nuse = 'bf16'\n",
    "[precision]\nuse = 'bf16'\nlevel = 'O2'\n",
    "[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'stochastic'\n",
    "[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'\n",
    "[precision]\nuse = 'fp8'\nrecipe = 'delayed'\n",
    "[precision]\nuse = 'adaptive'\nmin_gain = 1.0\n",  // it measures and changes nothing: its choices hang on times
    "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 256\ngrowth_interval = 2\n",
    "[precision]\nuse = 'fp16'\nlevel = 'O2'\n[scaler]\nuse = 'statistical'\n",
    "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'per_layer'\n",
};

// But what precision/adaptive measures, times.
void check_same_states(const SmallRun& first, const SmallRun& second) {
  const auto expected = first.run.control->snapshot().tensors, found = second.run.control->snapshot().tensors;
  REQUIRE(expected.size() == found.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    REQUIRE(found.contains(name));
    if (name.find("adaptive/seconds") == std::string::npos) CHECK(torch::equal(tensor, found.at(name)));
  }
}

// A run that skips the updates of some steps is the one that rolls them back. Returns how many these are.
int check_rolled_back(const vernier::Table& config, const std::set<std::int64_t>& steps) {
  SmallRun skips(config);
  skips.on(Event::GradientsReady, [&](Run& run) {
    if (steps.contains(run.step)) run.skip_update = torch::ones({});
  });
  skips.train();
  SmallRun undoes(config);
  Undoer undoer(steps);
  undoer.prepare(undoes.run);
  undoes.wiring->bus.attach(undoer, false);
  undoes.train();
  CHECK(undoer.times == static_cast<int>(steps.size()));
  CHECK(undoer.skipped == undoer.times);
  CHECK(undoes.run.updates == skips.run.updates);
  CHECK(undoes.digest() == skips.digest());
  check_same_states(skips, undoes);
  return undoer.times;
}

}  // namespace

TEST_CASE("transaction: with every optimizer, precision and scaler a run goes on as if the update had been skipped") {
  const TemporaryFolder folder;
  const auto task = gpt(folder);
  std::mt19937 random(5);
  int times = 0;
  for (const auto& optimizer : optimizers) {
    for (const auto& policy : policies) {
      const bool is_16_bits = policy.find("O3") != std::string::npos && policy.find("rounding") == std::string::npos;
      if (is_16_bits && optimizer.find("state") != std::string::npos) continue;
      CAPTURE(optimizer);
      CAPTURE(policy);
      std::set<std::int64_t> steps;
      for (std::int64_t step = 0; step < 6; ++step) {
        if (random() % 2 == 0) steps.insert(step);  // the first too, before the optimizer has a state
      }
      times += check_rolled_back(from_toml({task, "[optimizer]\n" + optimizer + "\n", policy}), steps);
    }
  }
  CHECK(times > 100);
}

namespace {

// Descends, and fails where a test wants it.
class Frail final : public vernier::Optimizer {
 public:
  Frail() { set_id("optimizer/frail"); }
  void step(Run& run) override {
    const torch::NoGradGuard no_grad;
    if (run.skip_update.defined() && run.skip_update.item<float>() != 0) return;
    for (auto& parameter : run.parameters) {
      if (parameter.master.grad().defined()) parameter.master.sub_(parameter.master.grad() * 0.01);
    }
  }
  vernier::State save() const override {
    if (fails_to_save) throw vernier::Error("no memory to save");
    return {};
  }
  void load(const vernier::State&) override {
    if (fails_to_load) throw vernier::Error("no memory to load");
  }
  bool fails_to_save = false, fails_to_load = false;
};

std::string mlp() {
  return "[run]\nsteps = 5\n[task]\nuse = 'mlp'\nsamples = 64\nbatch_size = 6\n[optimizer]\nuse = 'sgd'\n"
         "[checkpoint]\nuse = 'none'\n";
}

// A run of it with that optimizer.
struct FrailRun : SmallRun {
  FrailRun() : SmallRun(from_toml({mlp()})) {
    auto made = std::make_unique<Frail>();
    optimizer = made.get();
    wiring->optimizer = std::move(made);
  }
  Frail* optimizer = nullptr;
};

class Listener final : public vernier::Callback {
 public:
  Listener() { set_id("callback/listener"); }
};

std::string warned;

struct Warnings {
  Warnings() {
    warned.clear();
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) { warned += text + '\n'; });
  }
  ~Warnings() { vernier::set_log_sink(nullptr); }
};

constexpr auto nothing = [] {};

}  // namespace

TEST_CASE("transaction: an update that cannot be restored ends the run, though the asker goes on") {
  const Warnings warnings;
  FrailRun run;
  Listener asker;
  int times = 0;
  run.on(Event::GradientsReady, [&](Run& now) {
    if (now.step == 2) now.control->want(Stage::gradients, asker);
  });
  run.on(Event::UpdateDone, [&](Run& now) {
    if (now.step != 2) return;
    ++times;
    run.optimizer->fails_to_load = true;
    CHECK_THROWS_WITH(now.control->roll_back(Stage::gradients), "no memory to load");
  });
  const auto thrown = thrown_by([&] { run.train(); });
  CHECK(times == 1);
  CHECK(run.run.step == 2);
  CHECK(says(thrown.text, "no memory to load"));
}

TEST_CASE("transaction: an update of which there is no copy stays, and the run goes on") {
  const Warnings warnings;
  FrailRun run;
  Listener asker;
  int times = 0;
  run.on(Event::GradientsReady, [&](Run& now) {
    if (now.step != 2) return;
    run.optimizer->fails_to_save = true;
    now.control->want(Stage::gradients, asker);
  });
  run.on(Event::UpdateDone, [&](Run& now) {
    if (now.step != 2) return;
    ++times;
    CHECK_FALSE(now.control->roll_back(Stage::gradients));
    run.optimizer->fails_to_save = false;
  });
  CHECK(thrown_by([&] { run.train(); }) == Thrown{});
  CHECK(times == 1);
  CHECK(run.run.step == 5);
  CHECK(says(warned, "step 3: no memory to save (its update cannot be rolled back)"));
  CHECK(run.run.updates == 5);
  FrailRun plain;
  plain.train();
  CHECK(run.digest() == plain.digest());
}

TEST_CASE("transaction: an update is rolled back in UpdateDone, and once; nothing of a step is held beyond it") {
  SmallRun run(from_toml({mlp()}));
  Listener asker;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> gradients;
  int rolled_back = 0, skipped = 0;
  run.on(Event::LossReady, [&](Run&) {
    for (const auto& gradient : gradients) CHECK(gradient.expired());
    gradients.clear();
  });
  run.on(Event::GradientsReady, [&](Run& now) {
    CHECK_THROWS_WITH(now.control->roll_back(Stage::gradients), doctest::Contains("rolled back in UpdateDone"));
    CHECK_THROWS_WITH(now.control->rerun(Stage::gradients, nothing, nothing), doctest::Contains("after roll_back"));
    for (int i = 0; i < 2; ++i) now.control->want(Stage::gradients, asker);
  });
  run.on(Event::UpdateDone, [&](Run& now) {
    if (now.skip_update.defined()) {
      ++skipped;
    } else {
      CHECK_THROWS_WITH(now.control->rerun(Stage::gradients, nothing, nothing), doctest::Contains("after roll_back"));
      CHECK(now.control->roll_back(Stage::gradients));
      for (int i = 0; i < 2; ++i) now.control->rerun(Stage::gradients, nothing, nothing);
      ++rolled_back;
    }
    CHECK_THROWS_WITH(now.control->roll_back(Stage::gradients), doctest::Contains("once a step"));
  });
  run.on(Event::StepEnd, [&](Run& now) {
    CHECK_THROWS_WITH(now.control->roll_back(Stage::gradients), doctest::Contains("rolled back in UpdateDone"));
    CHECK_THROWS_WITH(now.control->want(Stage::gradients, asker), doctest::Contains("outside of GradientsReady"));
    for (const auto& parameter : now.parameters) {
      auto* const gradient = parameter.master.grad().unsafeGetTensorImpl();
      gradients.emplace_back(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(gradient));
    }
  });
  const auto before = run.digest();
  run.train();
  CHECK(rolled_back == 5);
  CHECK(skipped == 5);
  CHECK(run.run.updates == 0);
  CHECK(run.digest() == before);
}

TEST_CASE("transaction: what nobody wanted is not rolled back") {
  SmallRun run(from_toml({mlp()}));
  Listener asker;
  std::vector<std::string> refusals;
  run.on(Event::GradientsReady, [&](Run& now) {
    if (now.step == 0) now.control->want(Stage::gradients, asker);
  });
  run.on(Event::UpdateDone,
         [&](Run& now) { refusals.push_back(thrown_by([&] { now.control->roll_back(Stage::gradients); }).text); });
  run.train();
  // The first step's update was rolled back, and could not be a second time; later steps did not want it.
  REQUIRE(refusals.size() == 6);
  CHECK(refusals[0] == "");
  CHECK(says(refusals[1], "once a step"));
  for (std::size_t i = 2; i < 6; ++i) CHECK(says(refusals[i], "no plugin wanted Stage::gradients"));
  CHECK(run.run.updates == 4);
}

TEST_CASE("transaction: a stage that plugins cannot have is refused, and so is an optimizer that steps in backward") {
  SmallRun run(from_toml({mlp()}));
  Listener asker;
  const auto begin = thrown_by([&] { run.run.control->want(Stage::begin, asker); });
  CHECK(says(begin.text, "callback/listener wants Stage::begin"));
  const auto rerun = [&] { run.run.control->rerun(Stage::batch, nothing, nothing); };
  CHECK(says(thrown_by(rerun).text, "in GradientsReady, by a plugin that wanted Stage::batch in prepare"));
  SmallRun in_backward(from_toml({mlp(), "[optimizer]\nin_backward = true\n"}));
  const auto refused = thrown_by([&] { in_backward.run.control->want(Stage::batch, asker); });
  CHECK(refused.kind == 2);
  CHECK(says(refused.text, "callback/listener has part of a step run again"));
  CHECK(says(refused.text, "optimizer/sgd's in_backward"));
}

namespace {

// Runs each step's gradients again, and says whether they were untouched.
class Repeats final : public vernier::Callback {
 public:
  Repeats() { set_id("callback/repeats"); }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::GradientsReady,
           [this](Run& run) { untouched.push_back(run.control->rerun(Stage::batch, nothing, nothing)); });
  }
  void prepare(Run& run) override { run.control->want(Stage::batch, *this); }
  std::vector<bool> untouched;
};

}  // namespace

TEST_CASE("transaction: a rerun says whether a listener has changed the gradients since, and monitors hear nothing") {
  toy::Toy toy;
  toy.on(Event::GradientsReady, [](Run& run) {
    if (run.step == 2) run.gradients()[0].mul_(2);
  });
  auto repeats = std::make_unique<Repeats>();
  const auto& untouched = repeats->untouched;
  toy.wiring.callbacks.push_back(std::move(repeats));
  int batches = 0;
  toy.look(Event::BatchReady, [&](const Run&) { ++batches; });
  toy.prepare().train(toy.run);
  CHECK((untouched == std::vector<bool>{true, true, false, true, true, true}));
  CHECK(batches == 6);
}

}  // namespace transaction_test
