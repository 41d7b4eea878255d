#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <vernier/error.h>
#include <vernier/state.h>

#include <sstream>
#include <typeinfo>
#include <utility>

namespace vernier {

State state_dict(const torch::nn::Module& module) {
  State state;
  const auto put = [&](const auto& tensors) {
    for (const auto& entry : tensors) {
      if (entry.value().defined()) state.put(entry.key(), entry.value().detach());
    }
  };
  put(module.named_parameters());
  put(module.named_buffers());
  return state;
}

void load_state_dict(torch::nn::Module& module, const State& state) {
  const auto own = state_dict(module);
  for (const auto& [name, tensor] : own.tensors) {
    const auto saved = state.tensors.find(name);
    if (saved == state.tensors.end()) throw Error("the saved state has no '" + name + "', which the module has");
    if (saved->second.sizes() == tensor.sizes()) continue;
    throw Error(
        c10::str("the saved state has '", name, "' as ", saved->second.sizes(), ", the module as ", tensor.sizes()));
  }
  for (const auto& [name, tensor] : state.tensors) {
    if (!own.has(name)) throw Error("the saved state has '" + name + "', which the module does not have");
  }
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own.tensors) tensor.copy_(state.tensors.at(name));
}

namespace {

std::string class_of(const torch::optim::Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

// A line for each parameter, and an empty one after each group.
std::string shapes_of(const torch::optim::Optimizer& optimizer) {
  std::ostringstream lines;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) lines << parameter.sizes() << '\n';
    lines << '\n';
  }
  return lines.str();
}

}  // namespace

State state_dict(const torch::optim::Optimizer& optimizer) {
  // LBFGS cannot write its room for numbers of a step while it is in part undefined. The next step does not read it.
  for (const auto& [parameter, each] : optimizer.state()) {
    auto* memory = dynamic_cast<torch::optim::LBFGSParamState*>(each.get());
    if (memory == nullptr || !memory->al()) continue;
    for (auto& number : *memory->al()) {
      if (!number.defined()) number = torch::zeros({});
    }
  }
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream bytes;
  archive.save_to(bytes);
  State state;
  state.put("class", class_of(optimizer));
  state.put("shapes", shapes_of(optimizer));
  state.put("archive", bytes.str());
  return state;
}

// LibTorch adds what it loads to the state that is there, and does not compare shapes.
void load_state_dict(torch::optim::Optimizer& optimizer, const State& state) {
  const auto saved = state.text("class"), own = class_of(optimizer), bytes = state.text("archive");
  if (saved != own) throw Error("the saved state is of " + saved + ", this optimizer is " + own);
  if (state.text("shapes") != shapes_of(optimizer)) {
    throw Error("the saved state of " + own + " is of parameters in other groups or of other shapes");
  }
  auto before = std::exchange(optimizer.state(), {});
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(bytes.data(), bytes.size());
    optimizer.load(archive);
  } catch (const std::exception& error) {
    optimizer.state() = std::move(before);
    throw Error("the saved state of " + own + " cannot be read: " + message(error));
  }
}

}  // namespace vernier
