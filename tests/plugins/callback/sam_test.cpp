// sam: the numbers of the rule in PyTorch, and what is as it was after the second pass.
#include <doctest/doctest.h>
#include <torch/nn/module.h>

#include "oracle.h"
#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

namespace sam_test {

using vernier::Event;
using vernier::Run;

namespace {

struct SamRun : toy::Toy {
  explicit SamRun(const std::string& options = "") {
    wiring.callbacks.push_back(make_plugin<vernier::Callback>("callback/sam", from_toml({options})));
  }
};

struct SkipsTheThird final : vernier::Callback {
  void attach(vernier::Bus& bus) override {
    bus.on(Event::GradientsReady, [](Run& run) {
      if (run.step == 2) run.skip_update = torch::ones({});
    });
  }
};

}  // namespace

TEST_CASE("sam: the weights and losses of the rule in PyTorch, whatever the micro-batches and the scaler") {
  const Oracle oracle("sam");
  const std::pair<std::string, const char*> cases[] = {{"sam", ""}, {"asam", "rho = 0.5\nadaptive = true"}};
  for (const auto& [name, options] : cases) {
    for (const char* scaler : {"scaler/none", "scaler/dynamic"}) {
      for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{6}, {1, 5}}) {
        CAPTURE(name);
        CAPTURE(scaler);
        SamRun toy(options);
        toy.wiring.scaler = make_plugin<vernier::Scaler>(scaler);
        toy.wiring.accumulation = std::make_unique<toy::MicroBatches>(sizes);
        std::vector<double> losses, perturbed;
        toy.on(Event::StepEnd, [&](Run& run) {
          losses.push_back(run.loss.item<double>());
          perturbed.push_back(run.metrics.value("perturbed_loss").value());
        });
        toy.prepare().train(toy.run);
        CHECK(distance(toy.weights()[0], oracle[name + ".first"]) < 2e-6);
        CHECK(distance(toy.weights()[1], oracle[name + ".second"]) < 2e-6);
        CHECK(distance(torch::tensor(losses), oracle[name + ".loss"]) < 2e-6);
        CHECK(distance(torch::tensor(perturbed), oracle[name + ".perturbed_loss"]) < 2e-6);
      }
    }
  }
}

TEST_CASE("sam: after the second pass the weights are those before it, bit for bit, and the gradients are not") {
  SamRun toy;
  std::vector<torch::Tensor> before;
  torch::Tensor gradient, buffer;
  toy.on(Event::StepBegin, [&](Run& run) {
    before = toy.weights();
    buffer = run.model->buffers().front().clone();
  });
  toy.on(Event::BatchReady,
         [](Run& run) { run.model->buffers().front().add_(1); });  // running statistics change like this
  toy.on(Event::GradientsReady, [&](Run& run) {
    for (std::size_t i = 0; i < before.size(); ++i) CHECK(torch::equal(run.parameters[i].model, before[i]));
    CHECK(torch::equal(run.model->buffers().front(), buffer + 1));
    CHECK(run.metrics.value("perturbed_loss").value() > run.loss.item<double>());
    gradient = run.parameters[0].master.grad().clone();
  });
  toy.prepare().train(toy.run);
  CHECK(toy.run.updates == 6);
}

TEST_CASE("sam: a step that fails in or after the second pass is undone, and the run is saved") {
  for (const auto event : {Event::LossReady, Event::GradientsReady}) {
    SamRun toy;
    std::vector<torch::Tensor> before;
    int passes = 0;
    toy.on(Event::StepBegin, [&](Run&) {
      before = toy.weights();
      passes = 0;
    });
    toy.on(event, [&](Run& run) {
      ++passes;
      if (run.step == 3 && (event == Event::GradientsReady || passes == 2)) throw std::runtime_error("boom");
    });
    CHECK(says(thrown_by([&] { toy.prepare().train(toy.run); }).text, "boom"));
    CHECK(toy.memory().steps == std::vector<std::int64_t>{3});
    for (std::size_t i = 0; i < before.size(); ++i) CHECK(torch::equal(toy.weights()[i], before[i]));
  }
}

TEST_CASE("sam: a step whose gradients are not finite changes no weight") {
  SamRun toy;
  toy.wiring.scaler = make_plugin<vernier::Scaler>("scaler/dynamic");
  toy.task().overflows_in = 3;
  std::vector<torch::Tensor> before;
  toy.on(Event::StepBegin, [&](Run&) { before = toy.weights(); });
  toy.on(Event::UpdateDone, [&](Run& run) { CHECK(torch::equal(toy.weights()[0], before[0]) == (run.step == 2)); });
  toy.prepare().train(toy.run);
  CHECK(toy.run.updates == 5);
}

TEST_CASE("sam: without a scaler too, an update that a listener skips stays skipped") {
  SamRun toy;
  toy.wiring.callbacks.insert(toy.wiring.callbacks.begin(), std::make_unique<SkipsTheThird>());
  std::vector<torch::Tensor> before;
  toy.on(Event::StepBegin, [&](Run&) { before = toy.weights(); });
  toy.on(Event::UpdateDone, [&](Run& run) { CHECK(torch::equal(toy.weights()[0], before[0]) == (run.step == 2)); });
  toy.prepare().train(toy.run);
  CHECK(toy.run.updates == 5);
}

TEST_CASE("sam: with masters; and with weights that do not outlive a pass it is refused") {
  const auto config = [](const std::string& precision) {
    return from_toml(
        {"[run]\nsteps = 12\n[task]\nuse = 'mlp'\nsamples = 64\n[optimizer]\nuse = 'adamw'\n"
         "[checkpoint]\nuse = 'none'\n[[callback]]\nuse = 'sam'\n[precision]\nuse = 'bf16'\n" +
         precision});
  };
  SmallRun masters(config("level = 'O2'\n"));
  std::vector<torch::Tensor> before;
  masters.on(Event::StepBegin, [&](Run& run) {
    before.clear();
    for (const auto& parameter : run.parameters) before.push_back(parameter.master.detach().clone());
  });
  masters.on(Event::GradientsReady, [&](Run& run) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      CHECK(torch::equal(run.parameters[i].master, before[i]));
      CHECK(torch::equal(run.parameters[i].model, before[i].to(run.parameters[i].model.scalar_type())));
    }
  });
  masters.train();
  CHECK(masters.run.updates == 12);
  CHECK(says(thrown_by([&] { SmallRun run(config("level = 'O3'\nrounding = 'kahan'\n")); }).text,
             "choose another `rounding` or `level` of the precision"));
}

}  // namespace sam_test
