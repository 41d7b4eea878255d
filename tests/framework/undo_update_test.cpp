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
