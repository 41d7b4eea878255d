// LibTorch's optimizers as plugins, against the same optimizer in a plain loop.
#include <doctest/doctest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <vernier/torch_optimizer.h>

#include "thrown.h"
#include "toy_run.h"

namespace torch_optimizer_test {

using toy::Toy;
using vernier::TorchOptimizer;

namespace {

using Weights = std::vector<torch::Tensor>;

const std::pair<const char*, TorchOptimizer::Make> optimizers[] = {
    {"SGD",
     [](const Weights& all) {
       return std::make_unique<torch::optim::SGD>(all, torch::optim::SGDOptions(0.1).momentum(0.9));
     }},
    {"Adam",
     [](const Weights& all) { return std::make_unique<torch::optim::Adam>(all, torch::optim::AdamOptions(0.01)); }},
    {"Adagrad",
     [](const Weights& all) {
       return std::make_unique<torch::optim::Adagrad>(all, torch::optim::AdagradOptions(0.1));
     }},
    {"LBFGS", [](const Weights& all) {
       return std::make_unique<torch::optim::LBFGS>(all, torch::optim::LBFGSOptions(0.1).max_iter(4).history_size(3));
     }}};

void halve(vernier::Run& run) {
  run.learning_rate_factor *= run.step < 3 ? 1.0 : 0.5;
}

std::string by_hand(const TorchOptimizer::Make& make) {
  toy::Task task;
  vernier::TrainerRun run;
  task.prepare(run);
  const auto optimizer = make(run.model->parameters());
  const double rate = optimizer->param_groups()[0].options().get_lr();
  for (int step = 0; step < 6; ++step) {
    const auto batch = task.next();
    const auto compute = [&] {
      optimizer->zero_grad();
      auto loss = task.loss(batch);
      loss.backward();
      return loss;
    };
    optimizer->param_groups()[0].options().set_lr(rate * (step < 3 ? 1.0 : 0.5));
    if (dynamic_cast<torch::optim::LBFGS*>(optimizer.get()) != nullptr) {
      optimizer->step(compute);
    } else {
      compute();
      optimizer->step();
    }
  }
  return vernier::digest(*run.model);
}

}  // namespace

TEST_CASE("torch optimizer: the bits of a plain loop, with a schedule, and resumed after any step") {
  for (const auto& [name, make] : optimizers) {
    CAPTURE(name);
    const auto expected = by_hand(make);
    for (int stop = 1; stop <= 6; ++stop) {
      CAPTURE(stop);
      Toy first;
      first.wiring.optimizer = std::make_unique<TorchOptimizer>(make);
      first.on(vernier::Event::StepBegin, halve);
      first.look(vernier::Event::StepEnd, [&](const vernier::Run& run) {
        if (run.step == stop) first.stop = 2;
      });
      first.prepare().train(first.run);
      Toy second;
      second.wiring.optimizer = std::make_unique<TorchOptimizer>(make);
      second.on(vernier::Event::StepBegin, halve);
      second.look(vernier::Event::StepEnd, [](const vernier::Run&) {});
      auto& trainer = second.prepare();
      trainer.resume(second.run, *first.memory().last);
      trainer.train(second.run);
      CHECK(vernier::digest(*second.run.model) == expected);
    }
  }
}

TEST_CASE("torch optimizer: a skipped update changes nothing, and groups must have all parameters") {
  Toy skips;
  skips.wiring.optimizer = std::make_unique<TorchOptimizer>(optimizers[1].second);
  skips.on(vernier::Event::GradientsReady, [](vernier::Run& run) { run.skip_when(torch::ones({})); });
  skips.prepare();
  const auto before = vernier::digest(*skips.run.model);
  skips.trainer->train(skips.run);
  CHECK(vernier::digest(*skips.run.model) == before);
  using Groups = std::function<Weights(const Weights&)>;
  const std::pair<Groups, std::string> wrong[] = {
      {[](const Weights& all) { return Weights{all[0]}; }, "it leaves out the parameter 'second'"},
      {[](const Weights& all) {
         return Weights{all[0], all[1].detach().clone().requires_grad_()};
       },
       "it leaves out the parameter 'second'"},
      {[](const Weights& all) {
         return Weights{all[1], all[1]};
       },
       "it leaves out the parameter 'first'"},
      {[](const Weights& all) {
         return Weights{all[0], all[1], torch::ones({2}).requires_grad_()};
       },
       "it has 3 parameters in its groups, and the model has 2"}};
  for (const auto& [chosen, says] : wrong) {
    Toy toy;
    toy.wiring.optimizer = std::make_unique<TorchOptimizer>(
        [&](const Weights& all) { return std::make_unique<torch::optim::SGD>(chosen(all), 0.1); });
    CHECK(thrown_by([&] { toy.prepare(); }) ==
          refused("optimizer/torch: " + says +
                  "; give its groups the tensors that its function is called with, each once"));
  }
}

}  // namespace torch_optimizer_test
