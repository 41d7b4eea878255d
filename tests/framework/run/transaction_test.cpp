// Control::want_rerun and rerun: computing a step's gradients again changes nothing in the run.
#include <doctest/doctest.h>
#include <vernier/capsule.h>
#include <vernier/error.h>
#include <vernier/host.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "long_form.h"
#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

namespace transaction_test {

using vernier::Event;
using vernier::Run;

namespace {

// Computes the gradients of some steps again, counted from 0. Every second time fails.
class Rerunner final : public vernier::Callback {
 public:
  explicit Rerunner(std::set<std::int64_t> steps) : steps_(std::move(steps)) { set_id("callback/rerunner"); }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::GradientsReady, [this](Run& run) {
      if (steps_.contains(run.step)) rerun(run);
    });
  }
  void prepare(Run& run) override { run.control->want_rerun(*this); }
  int times = 0;

 private:
  void rerun(Run& run) {
    ++times;
    const auto weights = vernier::digests_of_weights(run);
    const auto gradients = vernier::fingerprint(run);
    const auto compare = [&] {
      CHECK(gradients.difference(vernier::fingerprint(run)) == "");
      if (times % 2 == 0) throw vernier::Error("no");
    };
    try {
      run.control->rerun([] {}, compare);
      CHECK(times % 2 == 1);
    } catch (const vernier::Error&) {
      CHECK(times % 2 == 0);
    }
    CHECK(vernier::digests_of_weights(run) == weights);
    CHECK(gradients.difference(vernier::fingerprint(run)) == "");
  }

  std::set<std::int64_t> steps_;
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
    "[precision]\nuse = 'adaptive'\nmin_gain = 1\nmeasure_steps = 6\n",  // measures in the last step
    "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 256\ngrowth_interval = 2\n",
    "[precision]\nuse = 'fp16'\nlevel = 'O2'\n[scaler]\nuse = 'statistical'\n",
    "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'per_layer'\n",
};

void check_same_states(const SmallRun& first, const SmallRun& second) {
  const auto expected = first.run.control->snapshot().tensors, found = second.run.control->snapshot().tensors;
  REQUIRE(expected.size() == found.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    REQUIRE(found.contains(name));
    CHECK(torch::equal(tensor, found.at(name)));
  }
}

// Returns how many steps were run again.
int check_rerun(const vernier::Table& config, const std::set<std::int64_t>& steps) {
  SmallRun plain(config);
  plain.train();
  SmallRun reruns(config);
  Rerunner rerunner(steps);
  rerunner.prepare(reruns.run);
  vernier::HostApi::attach(reruns.wiring->bus, rerunner, false);
  reruns.train();
  CHECK(rerunner.times == static_cast<int>(steps.size()));
  CHECK(reruns.digest() == plain.digest());
  check_same_states(plain, reruns);
  return rerunner.times;
}

}  // namespace

TEST_CASE("transaction: with every optimizer, precision and scaler a run goes on as if nothing had been run again" *
          doctest::test_suite("text")) {
  const TemporaryFolder folder;
  const auto task = gpt(folder);
  std::mt19937 random(5);
  int times = 0;
  for (const auto& optimizer : optimizers) {
    for (const auto& policy : policies) {
      const bool is_16_bits = policy.find("O3") != std::string::npos && policy.find("rounding") == std::string::npos;
      if (is_16_bits && optimizer.find("state") != std::string::npos) continue;
      // The short form tries half of the pairs.
      if (!is_long() && (&optimizer - optimizers.data() + (&policy - policies.data())) % 2 != 0) continue;
      CAPTURE(optimizer);
      CAPTURE(policy);
      std::set<std::int64_t> steps;
      for (std::int64_t step = 0; step < 6; ++step) {
        if (random() % 2 == 0) steps.insert(step);  // the first too, before the optimizer has a state
      }
      times += check_rerun(from_toml({task, "[optimizer]\n" + optimizer + "\n", policy}), steps);
    }
  }
  CHECK(times > (is_long() ? 100 : 50));
}

namespace {

std::string mlp() {
  return "[run]\nsteps = 5\n[task]\nuse = 'mlp'\nsamples = 64\nbatch_size = 6\n[optimizer]\nuse = 'sgd'\n"
         "[checkpoint]\nuse = 'none'\n";
}

class Listener final : public vernier::Callback {
 public:
  Listener() { set_id("callback/listener"); }
};

constexpr auto nothing = [] {};

}  // namespace

TEST_CASE("transaction: nothing of a step is held beyond it, and its gradients are computed again in GradientsReady") {
  SmallRun run(from_toml({mlp()}));
  Listener requester;
  run.run.control->want_rerun(requester);
  const auto rerun = [](Run& now) { now.control->rerun(nothing, nothing); };
  const auto refused = [&](Run& now) { CHECK_THROWS_WITH(rerun(now), doctest::Contains("again in GradientsReady")); };
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> gradients;
  run.on(Event::LossReady, [&](Run&) {
    for (const auto& gradient : gradients) CHECK(gradient.expired());
    gradients.clear();
  });
  run.on(Event::GradientsReady, [&](Run& now) {
    for (int i = 0; i < 2; ++i) rerun(now);
    CHECK_THROWS_WITH(now.control->want_rerun(requester), doctest::Contains("within a step"));
  });
  run.on(Event::UpdateDone, refused);
  run.on(Event::StepEnd, [&](Run& now) {
    refused(now);
    for (const auto& parameter : now.parameters) {
      auto* const gradient = parameter.master.grad().unsafeGetTensorImpl();
      gradients.emplace_back(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(gradient));
    }
  });
  run.train();
  CHECK(run.run.updates == 5);
}

TEST_CASE("transaction: a rerun that nobody wanted is refused, and so is an optimizer that steps in backward") {
  SmallRun run(from_toml({mlp()}));
  Listener requester;
  const auto rerun = [&] { run.run.control->rerun(nothing, nothing); };
  CHECK(says(thrown_by(rerun).text, "in GradientsReady, by a plugin that called want_rerun() in prepare"));
  SmallRun in_backward(from_toml({mlp(), "[optimizer]\nin_backward = true\n"}));
  const auto refused = thrown_by([&] { in_backward.run.control->want_rerun(requester); });
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
    bus.on(Event::GradientsReady, [this](Run& run) { untouched.push_back(run.control->rerun(nothing, nothing)); });
  }
  void prepare(Run& run) override { run.control->want_rerun(*this); }
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
