// A run small enough to be followed by hand: a task of its own, and the plugins of the product around it.
#pragma once

#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/module.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin_library.h"
#include "run/training_loop.h"

namespace toy {

// Two layers with a buffer between them.
class Model final : public torch::nn::Module {
 public:
  explicit Model(std::int64_t width = 4) {
    first = register_parameter("first", torch::linspace(-1, 1, width * 3).reshape({width, 3}));
    second = register_parameter("second", torch::linspace(1, -1, width * 2).reshape({2, width}));
    seen = register_buffer("seen", torch::zeros({1}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return at::linear(at::tanh(at::linear(x, first)), second); }
  torch::Tensor first, second, seen;
};

// Batches of 6 in a fixed order, `batches` of them.
class Task : public vernier::Task {
 public:
  explicit Task(std::int64_t batches = 3, std::int64_t width = 4) : batches_(batches), width_(width) {
    set_id("task/toy");
  }
  void prepare(vernier::Run& run) override { run.set_model(model = std::make_shared<Model>(width_)); }
  vernier::Batch batch(std::int64_t number) const {
    const auto x = torch::arange(18, torch::kFloat32).reshape({6, 3}).add(number).sin();
    return {{x, x.narrow(1, 0, 2).cos()}, 6, 60};
  }
  vernier::Batch next() override { return batch(place_++ % batches_); }
  std::int64_t batches_per_epoch() const override { return batches_; }
  torch::Tensor loss(const vernier::Batch& micro_batch) override {
    const auto loss = at::mse_loss(model->forward(micro_batch.tensors[0]), micro_batch.tensors[1]);
    return place_ == overflows_in ? loss * HUGE_VAL : loss;
  }
  torch::Tensor validate(vernier::Run&) override { return loss(batch(100)); }
  vernier::State save() const override {
    vernier::State state;
    state.put("place", place_);
    return state;
  }
  void load(const vernier::State& state) override { place_ = state.integer("place"); }

  std::shared_ptr<Model> model;
  std::int64_t overflows_in = -1;  // the step, from 1, whose gradients are not finite

 protected:
  std::int64_t place_ = 0;

 private:
  std::int64_t batches_, width_;
};

// Plain gradient descent, in the same kernel as a hand-written loop.
class Descent : public vernier::Optimizer {
 public:
  Descent() { set_id("optimizer/descent"); }
  void step(vernier::Run& run) override {
    const torch::NoGradGuard no_grad;
    if (run.skip_update.defined() && run.skip_update.item<float>() != 0.0F) return;
    const double rate = 0.1 * run.learning_rate_factor;
    for (auto& parameter : run.parameters) parameter.master.sub_(parameter.master.grad(), rate);
  }
};

// Micro-batches of the sizes that are given.
class MicroBatches : public vernier::Accumulation {
 public:
  explicit MicroBatches(std::vector<std::int64_t> sizes) : sizes_(std::move(sizes)) {
    set_id("accumulation/micro_batches");
  }
  std::vector<vernier::Batch> split(const vernier::Batch& batch) override {
    std::vector<vernier::Batch> micro_batches;
    std::int64_t first = 0;
    for (const auto size : sizes_) micro_batches.push_back(batch.narrow(std::exchange(first, first + size), size));
    return micro_batches;
  }

 private:
  std::vector<std::int64_t> sizes_;
};

// Keeps the last snapshot in memory, with copies of its tensors.
class Memory : public vernier::Checkpoint {
 public:
  Memory() { set_id("checkpoint/memory"); }
  bool due(const vernier::Run& run) override { return every > 0 && run.step % every == 0; }
  void write(const vernier::State& snapshot, vernier::Run& run) override {
    last = vernier::State{};
    for (const auto& [name, tensor] : snapshot.tensors) last->tensors[name] = tensor.clone();
    steps.push_back(run.step);
  }
  std::optional<vernier::State> read(const vernier::Run&, const std::string&) override { return last; }

  std::int64_t every = 0;
  std::optional<vernier::State> last;
  std::vector<std::int64_t> steps;
};

// A callback or monitor made of a function.
template <class Base>
class Told final : public Base {
 public:
  explicit Told(std::string id, std::function<void(vernier::Bus&)> attach) : attach_(std::move(attach)) {
    this->set_id(std::move(id));
  }
  void attach(vernier::Bus& bus) override { attach_(bus); }

 private:
  std::function<void(vernier::Bus&)> attach_;
};

struct Toy {
  Toy() {
    wiring.task = std::make_unique<Task>();
    wiring.precision = make_plugin<vernier::Precision>("precision/fp32");
    wiring.scaler = make_plugin<vernier::Scaler>("scaler/none");
    wiring.accumulation = std::make_unique<MicroBatches>(std::vector<std::int64_t>{6});
    wiring.optimizer = std::make_unique<Descent>();
    wiring.checkpoint = std::make_unique<Memory>();
    wiring.distributed = make_plugin<vernier::Distributed>("distributed/none");
    run.steps = 6;
  }

  Task& task() { return static_cast<Task&>(*wiring.task); }
  Memory& memory() { return static_cast<Memory&>(*wiring.checkpoint); }
  std::vector<torch::Tensor> weights() const {
    std::vector<torch::Tensor> all;
    for (const auto& parameter : run.parameters) all.push_back(parameter.model.detach().clone());
    return all;
  }

  // Adds a callback that listens to one event.
  void on(vernier::Event event, std::function<void(vernier::Run&)> listener, const char* id = "callback/told") {
    wiring.callbacks.push_back(std::make_unique<Told<vernier::Callback>>(
        id, [event, listener](vernier::Bus& bus) { bus.on(event, listener); }));
  }
  void look(vernier::Event event, std::function<void(const vernier::Run&)> listener) {
    wiring.monitors.push_back(std::make_unique<Told<vernier::Monitor>>(
        "monitor/told", [event, listener](vernier::Bus& bus) { bus.on(event, listener); }));
  }

  // After the plugins are as the test wants them.
  vernier::TrainingLoop& prepare(std::int64_t validate_every = 0, std::int64_t epochs = 0) {
    const auto plugins = wiring.plugins();
    for (std::size_t i = 0; i < plugins.size(); ++i)
      vernier::HostApi::attach(wiring.bus, *plugins[i], i >= plugins.size() - wiring.monitors.size());
    trainer = std::make_unique<vernier::TrainingLoop>(wiring, validate_every, stop);
    if (make_graph) trainer->step().record_with(vernier::recorded_passes(make_graph, vernier::Recordings::exact));
    trainer->prepare(run, epochs);
    return *trainer;
  }

  vernier::Wiring wiring;
  vernier::TrainerRun run;
  std::atomic<int> stop = 0;
  vernier::MakeDeviceGraph make_graph;
  std::unique_ptr<vernier::TrainingLoop> trainer;
};

}  // namespace toy
