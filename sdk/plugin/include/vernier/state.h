// Saved state: named tensors, with numbers and texts stored as tensors. Plugins save it, and so does a training loop of
// your own. The names are PyTorch's:
//
//   State state;
//   state.put("optimizer", optimizer.state_dict());
//   state.put("scaler", scaler.state_dict());
//   write_checkpoint(path, {.step = step}, state_dict(*model), state);
//
//   const auto saved = read_checkpoint(path);
//   load_state_dict(*model, saved.model);
//   optimizer.load_state_dict(saved.state.part("optimizer"));
//   scaler.load_state_dict(saved.state.part("scaler"));
#pragma once

#include <ATen/core/Generator.h>
#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace vernier {

using Tensors = std::map<std::string, torch::Tensor>;

// Tensors are shared, not copied: to keep a State while training continues, clone its tensors. Numbers are exact (64
// bits). Reading a missing name, or one of another type, throws Error with the name.
class VERNIER_API State {
 public:
  State() = default;
  State(Tensors tensors) : tensors(std::move(tensors)) {}
  State(std::initializer_list<Tensors::value_type> entries) : tensors(entries) {}

  void put(const std::string& name, torch::Tensor value);
  void put(const std::string& name, std::int64_t value);
  void put(const std::string& name, double value);
  void put(const std::string& name, const std::string& value);
  void put(const std::string& name, const at::Generator& value);
  void put(const std::string& name, std::integral auto value) { put(name, static_cast<std::int64_t>(value)); }
  void put(const std::string& name, std::floating_point auto value) { put(name, static_cast<double>(value)); }
  void put(const std::string& prefix, State part);  // each entry of part as "prefix/entry", or "entry" below ""
  template <class Part>
  requires requires(const Part& part) { part.save(); } || requires(const Part& part) {
    part.state_dict();
  }
  void put(const std::string& prefix, const Part& part) {
    if constexpr (requires { part.save(); }) {
      put(prefix, State(part.save()));
    } else {
      put(prefix, State(part.state_dict()));
    }
  }

  bool has(const std::string& name) const { return tensors.count(name) != 0; }
  torch::Tensor tensor(const std::string& name) const;
  std::int64_t integer(const std::string& name) const;
  double real(const std::string& name) const;
  std::string text(const std::string& name) const;
  State part(const std::string& prefix) const;  // the entries below "prefix/", without this prefix

  // Read what put() has saved into a member, which gets a copy. Tensors go to the dtype and device of the one that the
  // member holds, or else to `device`.
  void get(const std::string& name, torch::Tensor& member, torch::Device device) const;
  template <std::integral Number>
  void get(const std::string& name, Number& member, torch::Device) const {
    const auto value = integer(name);
    if (static_cast<std::int64_t>(static_cast<Number>(value)) != value) refuse_number(name, value);
    member = static_cast<Number>(value);
  }
  template <std::floating_point Number>
  void get(const std::string& name, Number& member, torch::Device) const {
    member = static_cast<Number>(real(name));
  }
  void get(const std::string& name, std::string& member, torch::Device) const { member = text(name); }
  void get(const std::string& name, at::Generator& member, torch::Device) const;
  void get(const std::string& prefix, Tensors& member, torch::Device device) const;
  template <class Part>
  requires requires(Part& part, const State& own) { part.load(own); } || requires(Part& part, const State& own) {
    part.load_state_dict(own);
  }
  void get(const std::string& prefix, Part& member, torch::Device) const {
    const auto own = prefix.empty() ? *this : part(prefix);
    if constexpr (requires { member.load(own); }) {
      member.load(own);
    } else {
      member.load_state_dict(own);
    }
  }

  Tensors tensors;

 private:
  [[noreturn]] static void refuse_number(const std::string& name, std::int64_t value);
};

// Parameters and buffers under their dotted names, without their graphs. load_state_dict() copies into the module's
// tensors; dtypes and devices may differ. It throws Error, before any change, if a name is missing or unknown, or if a
// shape differs.
VERNIER_API State state_dict(const torch::nn::Module& module);
VERNIER_API void load_state_dict(torch::nn::Module& module, const State& state);

// LibTorch's own optimizers, with their options, in LibTorch's format: a copy. load_state_dict() throws Error, before
// any change, if the state is of another class of optimizer, or if groups or shapes of the parameters differ.
VERNIER_API State state_dict(const torch::optim::Optimizer& optimizer);
VERNIER_API void load_state_dict(torch::optim::Optimizer& optimizer, const State& state);

}  // namespace vernier
