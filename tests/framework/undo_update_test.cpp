// Control::undo_update: a run of which an update was undone is the run that skips it.
#include <doctest/doctest.h>
#include <vernier/capsule.h>
#include <vernier/error.h>

#include <random>
#include <set>

#include "small_run.h"

using vernier::Event;
using vernier::Run;

namespace {

// Undoes the updates of some steps, counted from 0. Each is done again in between, or fails there.
class Undoer final : public vernier::Callback {
 public:
  explicit Undoer(std::set<std::int64_t> steps) : steps_(std::move(steps)) { set_id("callback/undoer"); }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::GradientsReady, [this](Run& run) {
      if (!steps_.contains(run.step)) return;
      const auto before = vernier::digests_of_weights(run);
      run.control.look_at_update(*this, [this, before](Run& now) { undo(now, before); });
    });
  }
  void prepare(Run& run) override { run.control.keep_for_repeat(*this); }
  int times = 0;

 private:
  void undo(Run& run, const std::map<std::string, std::string>& before) {
    const auto after = vernier::digests_of_weights(run);
    CHECK(before != after);
    const auto begin = [&] {
      ++times;
      CHECK(vernier::digests_of_weights(run) == before);
      const auto gradients = vernier::fingerprint(run);
      run.control.repeat([] {}, [&] { CHECK(gradients.difference(vernier::fingerprint(run)) == ""); });
      if (times % 2 == 0) throw vernier::Error("no");
    };
    try {
      run.control.undo_update(begin, [&] { CHECK(vernier::digests_of_weights(run) == after); });
      CHECK(times % 2 == 1);
    } catch (const vernier::Error&) {
      CHECK(times % 2 == 0);
    }
    CHECK(run.found_inf.item<float>() != 0);
  }
  std::set<std::int64_t> steps_;
};

}  // namespace

TEST_CASE("undo_update: every optimizer, precision and scaler goes on as if the update had been skipped") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + '\n';
  const auto task = "[run]\nsteps = 6\n[task]\nuse = 'gpt'\ndata = ['" + folder.write("text", text) +
                    "']\nlayers = 1\nheads = 2\nwidth = 16\ncontext = 8\nbatch_size = 4\nvalidation = 0.0\n"
                    "dropout = 0.1\n[accumulation]\nuse = 'fixed'\npieces = 2\n[checkpoint]\nuse = 'none'\n"
                    "[[callback]]\nuse = 'ema'\n[[callback]]\nuse = 'schedule'\nkind = 'linear'\n";
  const std::vector<std::string> optimizers = {"use = 'adamw'", "use = 'adamw'\nstate = 'bf16'",
                                               "use = 'adamw'\nstate = '8bit'", "use = 'adamw'\namsgrad = true",
                                               "use = 'sgd'", "use = 'sgd'\nmomentum = 0.9\nlearning_rate = 0.01"};
  const std::string fp16 = "[precision]\nuse = 'fp16'\n";
  const std::vector<std::string> policies = {
      "[precision]\nuse = 'fp32'\n",
      "[precision]\nuse = 'bf16'\n",
      "[precision]\nuse = 'bf16'\nlevel = 'O2'\n",
      "[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'stochastic'\n",
      "[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'\n",
      "[precision]\nuse = 'fp8'\nrecipe = 'delayed'\n",
      "[precision]\nuse = 'adaptive'\n",
      fp16 + "[scaler]\nuse = 'dynamic'\ninit_scale = 256\ngrowth_interval = 2\n",
      fp16 + "level = 'O2'\n[scaler]\nuse = 'statistical'\n",
      fp16 + "[scaler]\nuse = 'per_layer'\n",
  };
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
      const auto config = from_toml({task, "[optimizer]\n" + optimizer + "\n", policy});
      SmallRun skips(config);
      skips.on(Event::GradientsReady, [&](Run& run) {
        if (steps.contains(run.step)) run.found_inf = torch::ones({});
      });
      skips.train();
      SmallRun undoes(config);
      Undoer undoer(steps);
      undoer.prepare(undoes.run);
      undoes.wiring->bus.attach(undoer, false);
      undoes.train();
      times += undoer.times;
      CHECK(undoer.times == static_cast<int>(steps.size()));
      CHECK(undoes.run.updates == skips.run.updates);
      CHECK(undoes.digest() == skips.digest());
      const auto states = [](const SmallRun& run) {
        const auto snapshot = run.run.control.snapshot();
        std::map<std::string, torch::Tensor> all(snapshot.tensors.begin(), snapshot.tensors.end());
        return all;
      };
      const auto first = states(skips), second = states(undoes);
      REQUIRE(first.size() == second.size());
      for (const auto& [name, tensor] : first) {
        CAPTURE(name);
        REQUIRE(second.contains(name));
        if (name.find("adaptive/seconds") == std::string::npos) CHECK(torch::equal(tensor, second.at(name)));
      }
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
    if (run.found_inf.defined() && run.found_inf.item<float>() != 0) return;
    for (auto& parameter : run.parameters) {
      if (parameter.owned.grad().defined()) parameter.owned.sub_(parameter.owned.grad() * 0.01);
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

class Listener final : public vernier::Callback {
 public:
  Listener() { set_id("callback/listener"); }
};

}  // namespace

TEST_CASE("undo_update: what cannot be put back ends the run, though the asker goes on; what cannot be kept does not") {
  for (const bool is_kept : {true, false}) {
    CAPTURE(is_kept);
    static std::string warned;
    warned.clear();
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) { warned += text + '\n'; });
    SmallRun run(from_toml({mlp()}));
    auto frail = std::make_unique<Frail>();
    auto& optimizer = *frail;
    run.wiring->optimizer = std::move(frail);
    Listener asker;
    int looks = 0;
    run.on(Event::GradientsReady, [&](Run& now) {
      if (now.step != 2) return;
      optimizer.fails_to_save = !is_kept;
      now.control.look_at_update(asker, [&](Run& updated) {
        ++looks;
        optimizer.fails_to_load = true;
        CHECK_THROWS_WITH(updated.control.undo_update([] {}, [] {}), "no memory to load");
      });
    });
    run.on(Event::StepEnd, [&](Run&) { optimizer.fails_to_save = false; });
    std::string thrown;
    try {
      run.train();
    } catch (const std::exception& error) {
      thrown = error.what();
    }
    vernier::set_log_sink(nullptr);
    CHECK(looks == (is_kept ? 1 : 0));
    CHECK(run.run.step == (is_kept ? 2 : 5));
    CHECK((thrown.find("no memory to load") != std::string::npos) == is_kept);
    CHECK((warned.find("the update of step 3 is not looked at") != std::string::npos) == !is_kept);
  }
}

TEST_CASE("undo_update: it is for a look, and once; nothing of a step is held beyond it") {
  SmallRun run(from_toml({mlp()}));
  Listener asker;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> gradients;
  const auto nothing = [] {};
  int looks = 0;
  run.on(Event::LossReady, [&](Run&) {
    for (const auto& gradient : gradients) CHECK(gradient.expired());
    gradients.clear();
  });
  run.on(Event::GradientsReady, [&](Run& now) {
    CHECK_THROWS_WITH(now.control.undo_update(nothing, nothing), doctest::Contains("while it is looked at"));
    for (int i = 0; i < 2; ++i) {
      now.control.look_at_update(asker, [&](Run& updated) {
        ++looks;
        updated.control.undo_update(nothing, nothing);
        CHECK_THROWS_WITH(updated.control.undo_update(nothing, nothing), doctest::Contains("once"));
      });
    }
  });
  run.on(Event::StepEnd, [&](Run& now) {
    CHECK_THROWS_WITH(now.control.undo_update(nothing, nothing), doctest::Contains("while it is looked at"));
    CHECK_THROWS_WITH(now.control.look_at_update(asker, [](Run&) {}), doctest::Contains("outside of GradientsReady"));
    for (const auto& parameter : now.parameters) {
      gradients.emplace_back(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(parameter.owned.grad().unsafeGetTensorImpl()));
    }
  });
  const auto before = run.digest();
  run.train();
  CHECK(looks == 10);
  CHECK(run.run.updates == 0);
  CHECK(run.digest() == before);
}

