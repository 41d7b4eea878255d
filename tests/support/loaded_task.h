// A task as a run has it: made from its library, prepared, with its model's parameters listed.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin_library.h"

struct LoadedTask {
  // name: "gpt". Sets one thread for the kernels: the same sums on every machine.
  explicit LoadedTask(const std::string& name, vernier::Table table = {}, std::uint64_t seed = 1)
      : task(make_plugin<vernier::Task>("task/" + name, std::move(table))) {
    at::set_num_threads(1);
    at::manual_seed(seed);
    run.seed = seed;
    task->prepare(run);
    for (const auto& entry : run.model->named_parameters()) {
      run.parameters.push_back({entry.key(), entry.value(), entry.value()});
    }
  }

  vernier::Task* operator->() const { return task.get(); }

  // The loss that the trainer sees, in evaluation mode and without gradient; -1 where nothing is held out.
  double validate() {
    const torch::NoGradGuard no_grad;
    run.model->eval();
    const auto loss = task->validate(run);
    run.model->train();
    return loss.defined() ? loss.item<double>() : -1.0;
  }

  torch::Tensor parameter(const std::string& name) const { return run.model->named_parameters()[name]; }

  // One step of plain gradient descent on a batch.
  void descend(const vernier::Batch& batch, double learning_rate) {
    task->loss(batch).backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : run.parameters) {
      parameter.model.sub_(parameter.model.grad(), learning_rate);
      parameter.model.mutable_grad().reset();
    }
  }

  std::unique_ptr<vernier::Task> task;
  vernier::TrainerRun run;
};

// The text of the configuration error that a function throws; "" where it throws none.
template <class Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const vernier::Error& error) {
    return error.kind() == vernier::Error::Kind::configuration ? error.what() : "not a configuration error";
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
inline bool has_shape(const torch::Tensor& tensor, torch::IntArrayRef shape) {
  return tensor.sizes() == shape;
}

// A value of an options table.
template <class T>
vernier::Value value(T data) {
  return {std::move(data), "test.toml:2"};
}
inline vernier::Value value(int data) {
  return {std::int64_t{data}, "test.toml:2"};
}
inline vernier::Value value(const char* data) {
  return {std::string(data), "test.toml:2"};
}
template <class T>
vernier::Value list(const std::vector<T>& elements) {
  vernier::Array array;
  for (const auto& element : elements) array.push_back(value(element));
  return {array, "test.toml:2"};
}
