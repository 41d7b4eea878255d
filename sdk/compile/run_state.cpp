#include "run_state.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/variable.h>
#include <vernier/checksum.h>

#include <algorithm>

#include "files/weights.h"

namespace vernier::compile {

namespace {

void copy_to(const std::vector<torch::Tensor>& live, const std::vector<torch::Tensor>& copies) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (live[i].defined()) live[i].detach().copy_(copies[i]);
  }
}

}  // namespace

std::vector<torch::Tensor> clones(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> all;
  for (const auto& tensor : tensors) all.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
  return all;
}

std::vector<torch::Tensor> gradients_of(const Run& run) {
  std::vector<torch::Tensor> all;
  for (const auto& parameter : run.parameters) all.push_back(parameter.model.grad());
  return all;
}

void set_gradients(const Run& run, const std::vector<torch::Tensor>& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) run.parameters[i].model.mutable_grad() = gradients[i];
}

bool has_any(const std::vector<torch::Tensor>& tensors) {
  return std::ranges::any_of(tensors, &torch::Tensor::defined);
}

std::vector<const void*> addresses(const std::vector<torch::Tensor>& tensors) {
  std::vector<const void*> all;
  for (const auto& tensor : tensors) all.push_back(tensor.defined() ? tensor.const_data_ptr() : nullptr);
  return all;
}

bool has_hook(const torch::Tensor& weight) {
  return !torch::autograd::impl::hooks(weight).empty() || torch::autograd::impl::post_acc_grad_hooks(weight);
}

std::vector<std::size_t> holders(const Run& run, const std::vector<torch::Tensor>& gradients) {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto& gradient = gradients[i];
    const std::size_t own = run.parameters[i].model.grad().is_same(gradient) ? 1 : 0;
    all.push_back(gradient.defined() ? gradient.use_count() + gradient.storage().use_count() - own : 0);
  }
  return all;
}

torch::Tensor random_of(const Run& run) {
  return at::globalContext().defaultGenerator(run.device).get_state();
}

Marks::Marks(const torch::nn::Module& model)
    : weights(model.parameters()), buffers(model.buffers()), modules(model.modules()), recorded(now()) {}

std::vector<const void*> Marks::now() const {
  auto all = addresses(buffers);
  for (const auto& weight : weights) {
    all.push_back(weight.const_data_ptr());
    if (!weight.requires_grad() || has_hook(weight)) all.push_back(weight.unsafeGetTensorImpl());
  }
  for (const auto& module : modules) {
    if (!module->is_training()) all.push_back(module.get());
  }
  return all;
}

std::string Marks::flags() const {
  std::string text;
  for (const auto& weight : weights) text += weight.requires_grad() && !has_hook(weight) ? '1' : '0';
  for (const auto& module : modules) text += module->is_training() ? '1' : '0';
  return checksum_of(text).substr(0, 8);
}

PutBack::PutBack(TrainerRun& run)
    : run_(run), batch_(run.micro_batch), gradients_(gradients_of(run)), sums_(clones(gradients_)) {
  for (const auto& buffer : run.model->buffers()) {
    buffers_.push_back({buffer, buffer.detach().clone(), buffer._version(), false});
  }
  random_.take(run.device);
}

void PutBack::now() {
  run_.micro_batch = batch_;
  set_gradients(run_, gradients_);
  copy_to(gradients_, sums_);
  for (auto& [live, copy, version, is_written] : buffers_) {
    // Neither a replay nor batch normalisation raises the version.
    is_written = is_written || live._version() != version || !same_bits(live, copy);
    if (is_written) copy_to({live}, {copy});
  }
  random_.restore(run_.device);
}

std::vector<torch::Tensor> PutBack::written() const {
  std::vector<torch::Tensor> all;
  for (const auto& buffer : buffers_) {
    if (buffer.is_written) all.push_back(buffer.live);
  }
  return all;
}

}  // namespace vernier::compile
