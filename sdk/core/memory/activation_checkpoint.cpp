#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/alias.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/types.h>
#include <vernier/activation_checkpoint.h>
#include <vernier/autocast.h>
#include <vernier/autograd_node.h>
#include <vernier/error.h>

#include <algorithm>
#include <optional>

#include "activation_checkpoint_kept.h"
#include "trace/interception.h"

namespace vernier {

namespace {

// The generators that a forward on these devices draws from.
std::vector<at::Generator> generators(const std::vector<torch::Tensor>& inputs) {
  std::vector<at::Generator> all{at::detail::getDefaultCPUGenerator()};
  for (const auto& input : inputs) {
    if (!input.defined() || input.is_cpu()) continue;
    auto generator = at::globalContext().defaultGenerator(input.device());
    if (std::find(all.begin(), all.end(), generator) == all.end()) all.push_back(std::move(generator));
  }
  return all;
}

torch::Tensor state_of(at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state().clone();
}

using RandomStates = std::vector<std::pair<at::Generator, torch::Tensor>>;

// Sets random states, and leaves those of before in their places.
void swap_in(RandomStates& states) {
  for (auto& [generator, state] : states) {
    const std::scoped_lock lock(generator.mutex());
    auto before = generator.get_state().clone();
    generator.set_state(state);
    state = std::move(before);
  }
}

// The state of this thread, except the random numbers.
struct ThreadState {
  struct Cast {
    torch::DeviceType device;
    torch::ScalarType dtype = at::autocast::get_autocast_dtype(device);
    bool enabled = at::autocast::is_autocast_enabled(device);
  };
  Cast cpu{torch::kCPU}, cuda{torch::kCUDA};
  bool caches = at::autocast::is_autocast_cache_enabled();
  std::vector<Link> interceptors = intercepting();
};

struct Recompute final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override {
    inputs.clear();
    kept.reset();
    random.clear();
    function = nullptr;
  }
  std::string name() const override { return "VernierRecompute"; }
  std::vector<torch::Tensor> forward(const std::vector<torch::Tensor>& arguments);

  TensorFunction function;
  std::vector<torch::autograd::SavedVariable> inputs;  // they notice where one was changed in place
  std::optional<KeptResults> kept;
  std::vector<bool> requires_grad;    // one for each input
  std::vector<std::int64_t> outputs;  // indices of the function's outputs that this node differentiates
  ThreadState thread_state;
  RandomStates random;  // states of the generators from which the function draws
};

// Calls the function again in the state of the first call, with a graph.
std::vector<torch::Tensor> Recompute::forward(const std::vector<torch::Tensor>& arguments) {
  auto states = random;
  swap_in(states);
  const auto states_back = c10::make_scope_exit([&] { swap_in(states); });
  const at::AutoGradMode recorded(true);
  const PassGuard second(Pass::second);
  const auto& [cpu, cuda, caches, interceptors] = thread_state;
  const Autocast on_cpu(cpu.device, cpu.dtype, cpu.enabled, caches);
  const Autocast on_cuda(cuda.device, cuda.dtype, cuda.enabled, caches);
  const InterceptAgain same_interceptors(interceptors);
  std::optional<KeptResultsGuard> answers;
  if (kept) answers.emplace(*kept, KeptResultsGuard::Time::second);
  at::autocast::clear_cache();  // a guard around backward has cached copies of another graph
  auto results = function(arguments);
  at::autocast::clear_cache();
  return results;
}

// Autocast takes a leaf for a weight, whose copy it keeps: gradients of several uses would be added up in 16 bits.
torch::Tensor no_leaf(const torch::Tensor& leaf) {
  const at::AutoGradMode recorded(true);
  return at::alias(leaf);
}

torch::autograd::variable_list Recompute::apply(torch::autograd::variable_list&& gradients) {
  if (function == nullptr) {
    throw Error("backward came a second time through vernier::checkpoint; the first one needs retain_graph");
  }
  if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
    throw Error(
        "vernier::checkpoint works with backward() only: torch::autograd::grad() would leave gradients in .grad()");
  }
  if (torch::GradMode::is_enabled()) {
    throw Error("vernier::checkpoint is differentiable once: call backward() without create_graph");
  }
  std::vector<torch::Tensor> leaves, arguments;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto input = inputs[i].unpack(getptr());
    leaves.push_back(input.defined() ? input.detach().requires_grad_(requires_grad[i]) : input);
    const bool was_computed = requires_grad[i] && !input.is_leaf();
    arguments.push_back(was_computed ? no_leaf(leaves.back()) : leaves.back());
  }
  const auto results = forward(arguments);

  torch::autograd::variable_list roots, root_gradients;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& result = results.at(static_cast<std::size_t>(outputs[i]));
    if (!gradients[i].defined() || !result.requires_grad()) continue;
    roots.push_back(result);
    root_gradients.push_back(gradients[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, root_gradients);

  torch::autograd::variable_list input_gradients;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    input_gradients.push_back(requires_grad[i] ? leaves[i].grad() : torch::Tensor());
  }
  return input_gradients;
}

}  // namespace

std::vector<torch::Tensor> checkpoint_all(const TensorFunction& function, const std::vector<torch::Tensor>& inputs,
                                          Keep keep) {
  if (!torch::GradMode::is_enabled()) return function(inputs);
  const auto node = make_node<Recompute>();
  node->function = function;
  if (keep == Keep::matmuls) node->kept.emplace();
  for (const auto& input : inputs) node->requires_grad.push_back(input.defined() && input.requires_grad());

  auto before = generators(inputs);
  std::vector<torch::Tensor> states;
  for (const auto& generator : before) states.push_back(state_of(generator));
  std::vector<torch::Tensor> results;
  {
    const torch::NoGradGuard not_recorded;
    // Copies of weights are without a graph here, and autocast would give them to a forward with one.
    at::autocast::set_autocast_cache_enabled(false);
    const auto cache_back = c10::make_scope_exit(
        [caches = node->thread_state.caches] { at::autocast::set_autocast_cache_enabled(caches); });
    const PassGuard first(Pass::first);
    std::optional<KeptResultsGuard> keeps;
    if (node->kept) keeps.emplace(*node->kept, KeptResultsGuard::Time::first);
    results = function(inputs);
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!states[i].equal(state_of(before[i]))) node->random.emplace_back(before[i], states[i]);
  }

  for (const auto& input : inputs) {
    node->inputs.push_back(input.defined() ? torch::autograd::SavedVariable(input, /*is_output=*/false)
                                           : torch::autograd::SavedVariable());
  }
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (std::size_t i = 0; i < results.size(); ++i) {
    auto& result = results[i];
    if (!result.defined() || !torch::autograd::isDifferentiableType(result.scalar_type())) continue;
    result = result.variable_data();  // it may be an input, or a view of one
    torch::autograd::set_history(result, node);
    node->outputs.push_back(static_cast<std::int64_t>(i));
  }
  if (node->kept) node->kept->watch(results);
  return results;
}

}  // namespace vernier
