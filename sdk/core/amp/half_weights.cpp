#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/error.h>
#include <vernier/half_weights.h>

#include <algorithm>
#include <set>

#include "optim/gpu_optimizers.h"
#include "optim/stochastic_rounding.h"
#include "wide_weights.h"

namespace vernier {

namespace {

// The tensors that the modules hold: one that is registered twice (a tied weight) is one.
using Identities = std::set<const c10::TensorImpl*>;

template <class... Modules>
bool is_any_of(const torch::nn::Module& module) {
  return (... || (dynamic_cast<const Modules*>(&module) != nullptr));
}

Identities tensors_of_norms(const torch::nn::Module& model) {
  Identities all;
  for (const auto& module : model.modules()) {
    if (!has_float32_weights(*module)) continue;
    for (const auto& tensor : module->parameters()) all.insert(tensor.unsafeGetTensorImpl());
  }
  return all;
}

// The tensor stays, with its shape: an optimizer holds it.
void free_memory(const torch::Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(0);
}

torch::Tensor in_float32(const torch::Tensor& gradient) {
  if (!draft::is_elsewhere(gradient)) return gradient.to(torch::kFloat32);
  auto none = at::empty(gradient.sizes(), gradient.options().dtype(torch::kFloat32));
  draft::leave_elsewhere(none);
  return none;
}

std::string describe(const torch::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), " ", tensor.sizes());
}

// A generator for the draws of one commit.
at::Generator generator_for(const torch::Device& device, std::uint64_t seed, std::uint64_t draw) {
  auto generator = at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
  at::Philox4_32 mixed(seed, 0, draw);
  const std::uint64_t high = mixed();
  generator.set_current_seed(high << 32 | mixed());
  return generator;
}

// The weights that this rank updates, as the CUDA kernels take them.
template <class Weights>
std::vector<HalfWeight> for_kernels(const Weights& weights) {
  std::vector<HalfWeight> all;
  std::uint64_t chunks = 0;
  for (const auto& weight : weights) {
    if (weight.is_owned) all.push_back({weight.master, weight.model, weight.compensation, chunks});
    chunks += static_cast<std::uint64_t>(rounding_chunks(weight.model.numel()));
  }
  return all;
}

// Returns the kernels of the weights' device, or nullptr: then LibTorch's operators round.
template <class Weights>
const gpu::Library* kernels_for(const Weights& weights) {
  return weights.empty() ? nullptr : gpu_library(weights.front().model.device());
}

}  // namespace

bool has_float32_weights(const torch::nn::Module& module) {
  using namespace torch::nn;
  return is_any_of<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl, InstanceNorm2dImpl,
                   InstanceNorm3dImpl>(module) ||
         module.named_buffers(/*recurse=*/false).contains("running_mean");
}

HalfWeights::HalfWeights(c10::ScalarType dtype, Update update) : dtype_(dtype), update_(update) {
  if (dtype != torch::kBFloat16 && dtype != torch::kFloat16) {
    throw Error(c10::str("weights in 16 bits are BFloat16 or Half, not ", dtype), Error::Kind::configuration);
  }
  if (dtype == torch::kFloat16 && has_copies()) {
    const char* method = update == Update::kahan ? "Kahan compensation" : "stochastic rounding";
    throw Error(c10::str(method, " is for bfloat16: what lies below the last place of a float16 weight underflows; ",
                         "keep float32 masters"),
                Error::Kind::configuration);
  }
}

void HalfWeights::prepare(const torch::nn::Module& model, std::vector<Parameter>& parameters, std::uint64_t seed,
                          const std::function<bool(const std::string&)>& keeps) {
  if (!casts_.empty()) throw Error("HalfWeights::prepare: it holds a model already, release that one first");
  const torch::NoGradGuard no_grad;
  seed_ = seed;
  auto done = tensors_of_norms(model);
  const auto wants = [&](const std::string& name, const torch::Tensor& tensor) {
    const auto dtype = tensor.scalar_type();
    const bool fits = dtype == torch::kFloat32 || dtype == torch::kBFloat16 || dtype == torch::kFloat16;
    return fits && !(keeps && keeps(name)) && done.insert(tensor.unsafeGetTensorImpl()).second;
  };
  if (update_ != Update::nearest) {
    for (auto& parameter : parameters) {
      if (!wants(parameter.name, parameter.model)) continue;
      weights_.push_back({parameter.name,
                          parameter.model,
                          parameter.model.to(torch::kFloat32, false, /*copy=*/true),
                          {},
                          parameter.owned});
      parameter.master = weights_.back().master.requires_grad_();
      if (!parameter.owned) free_memory(parameter.master);
      cast(parameter.model);
    }
  }
  for (const auto& entry : model.named_parameters()) {
    if (wants(entry.key(), entry.value())) cast(entry.value());
  }
  if (!has_copies()) return;
  for (auto& weight : weights_) {
    free_memory(weight.master);
    if (update_ == Update::kahan && weight.is_owned) weight.compensation = torch::zeros_like(weight.model);
  }
}

// Always new memory: one that is in 16 bits already may be a view with gaps, which `master` is not.
void HalfWeights::cast(const torch::Tensor& tensor) {
  casts_.push_back({tensor, tensor.scalar_type()});
  auto same = tensor;  // a handle that is not const
  same.set_data(tensor.to(dtype_, false, /*copy=*/true));
  same.mutable_grad().reset();
}

void HalfWeights::collect() {
  const torch::NoGradGuard no_grad;
  for (auto& weight : weights_) {
    if (auto& gradient = weight.model.mutable_grad(); gradient.defined()) {
      weight.master.mutable_grad() = in_float32(gradient);
      gradient.reset();
    }
    if (has_copies() && weight.is_owned && weight.master.storage().nbytes() == 0) weight.master.set_data(best(weight));
  }
}

void HalfWeights::commit(const torch::Tensor& skip_update) {
  const torch::NoGradGuard no_grad;
  if (update_ == Update::masters) {
    TensorVector models, masters;
    for (const auto& weight : weights_) {
      if (!weight.is_owned) continue;
      models.push_back(weight.model);
      masters.push_back(weight.master);
    }
    if (!models.empty()) at::_foreach_copy_(models, masters);
  } else if (update_ == Update::kahan) {
    commit_kahan(skip_update);
  } else if (update_ == Update::stochastic) {
    commit_stochastic();
  }
  if (!has_copies()) return;
  for (auto& weight : weights_) free_memory(weight.master);
}

// If nothing was updated, `master` may lie half way between two weights, and rounding could take the other one.
void HalfWeights::commit_kahan(const torch::Tensor& skip_update) {
  if (const auto* const kernels = kernels_for(weights_); kernels != nullptr) {
    round_with_kahan_on_gpu(*kernels, for_kernels(weights_), skip_update);
    return;
  }
  for (auto& weight : weights_) {
    if (!weight.is_owned) continue;
    auto rounded = weight.master.to(torch::kBFloat16);
    auto rest = (weight.master - rounded).to(torch::kBFloat16);  // the difference is exact in float32
    if (skip_update.defined()) {
      rounded = at::where(skip_update != 0, weight.model, rounded);
      rest = at::where(skip_update != 0, weight.compensation, rest);
    }
    weight.model.copy_(rounded);
    weight.compensation.copy_(rest);
  }
}

// If nothing was updated, `master` is a bfloat16 and stays as it is. A draw is used up nevertheless, because on a GPU
// the host does not know.
void HalfWeights::commit_stochastic() {
  const auto draw = static_cast<std::uint64_t>(draws_++);
  if (const auto* const kernels = kernels_for(weights_); kernels != nullptr) {
    round_at_random_on_gpu(*kernels, for_kernels(weights_), seed_, draw);
    return;
  }
  std::uint64_t chunks = 0;
  at::Generator generator;
  for (auto& weight : weights_) {
    if (!weight.is_owned) {
      // its owner draws for it
    } else if (weight.model.is_cpu()) {
      round_on_host(weight.master.const_data_ptr<float>(), weight.model.mutable_data_ptr<c10::BFloat16>(),
                    weight.model.numel(), seed_, chunks, draw);
      weight.model.unsafeGetTensorImpl()->bump_version();
    } else {
      if (!generator.defined()) generator = generator_for(weight.model.device(), seed_, draw);
      round_by_operators(weight.master, weight.model, generator);
    }
    chunks += static_cast<std::uint64_t>(rounding_chunks(weight.model.numel()));
  }
}

torch::Tensor HalfWeights::best(const Weight& weight) const {
  if (update_ == Update::masters && weight.is_owned) return weight.master.detach();
  auto value = weight.model.to(torch::kFloat32);
  return weight.compensation.defined() ? value.add_(weight.compensation) : value;
}

void HalfWeights::release(std::vector<Parameter>& parameters) {
  const torch::NoGradGuard no_grad;
  for (auto& weight : weights_) weight.model.set_data(best(weight));
  for (auto& [tensor, before] : casts_) {
    if (tensor.scalar_type() != before) tensor.set_data(tensor.to(before));
    tensor.mutable_grad().reset();
  }
  for (auto& parameter : parameters) parameter.master = parameter.model;
  weights_.clear();
  casts_.clear();
}

Tensors HalfWeights::tensors(bool owned) const {
  Tensors all;
  for (const auto& weight : weights_) {
    if (weight.is_owned != owned) continue;
    if (update_ == Update::masters) all["master/" + weight.name] = weight.master.detach();
    if (update_ == Update::kahan) all["compensation/" + weight.name] = weight.compensation;
  }
  return all;
}

State HalfWeights::state_dict() const {
  State state;
  for (const auto& [name, tensor] : tensors()) state.put(name, tensor);
  if (update_ == Update::stochastic) state.put("draws", draws_);
  return state;
}

void HalfWeights::load_state_dict(const State& state) {
  const auto own = tensors(), of_others = tensors(/*owned=*/false);
  const auto is_saved = [&](const auto& named) { return state.has(named.first); };
  if (!own.empty() && std::none_of(own.begin(), own.end(), is_saved)) {
    throw Error(
        "the saved state has no '" + own.begin()->first +
        "', nor any other of what weights in 16 bits keep here: it was written with another `level` or `rounding`");
  }
  for (const auto& [name, tensor] : own) {
    const auto saved = state.tensor(name);
    if (saved.sizes() == tensor.sizes() && saved.scalar_type() == tensor.scalar_type()) continue;
    throw Error("the saved '" + name + "' is " + describe(saved) + ", this model's " + describe(tensor));
  }
  const auto draws = update_ == Update::stochastic ? state.integer("draws") : 0;
  for (const auto& [name, tensor] : state.tensors) {
    if (own.count(name) == 0 && of_others.count(name) == 0 && name != "draws") {
      throw Error("the saved '" + name + "' is nothing that these weights keep");
    }
  }
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own) {
    const auto saved = state.tensor(name);
    if (!tensor.is_alias_of(saved)) tensor.copy_(saved);  // its own weights: writing them would look like a change
  }
  draws_ = draws;
}

}  // namespace vernier
