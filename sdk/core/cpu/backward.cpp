#include "backward.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <vernier/fused_kernels.h>

#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vernier {

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// A node that has not been called: how many gradients it waits for, and the sums of those that have come.
struct Waiting {
  std::size_t gradients = 0;
  variable_list sums;
};
using Graph = std::unordered_map<Node*, Waiting>;

// LibTorch's engine alone calls hooks, and knows the streams of devices.
bool needs_engine(Node& node) {
  const bool has_hooks = !node.pre_hooks().empty() || !node.post_hooks().empty() || !node.tensor_pre_hooks().empty() ||
                         !node.retains_grad_hooks().empty();
  return has_hooks || !node.device().is_cpu();
}

// The nodes that are reached from `root`, or nothing where one of them needs LibTorch's engine.
std::optional<Graph> graph_of(Node* root) {
  Graph graph;
  graph.try_emplace(root);
  std::vector<Node*> left = {root};
  while (!left.empty()) {
    auto& node = *left.back();
    left.pop_back();
    if (needs_engine(node)) return std::nullopt;
    for (const auto& edge : node.next_edges()) {
      if (!edge.is_valid()) continue;
      const auto [next, is_new] = graph.try_emplace(edge.function.get());
      next->second.gradients += 1;
      if (is_new) left.push_back(next->first);
    }
  }
  return graph;
}

// The whole graph as one node. The engine calls it, and so sets the thread's state for all nodes, keeps their warnings
// and knows of their errors.
class WholeGraph final : public Node {
 public:
  WholeGraph(Graph graph, Edge root) : Node(/*sequence_nr=*/0), graph_(std::move(graph)), root_(std::move(root)) {}
  std::string name() const override { return "VernierWholeGraph"; }

  variable_list apply(variable_list&& gradients) override {
    const auto is_earlier = [](Node* a, Node* b) { return a->sequence_nr() < b->sequence_nr(); };
    std::priority_queue<Node*, std::vector<Node*>, decltype(is_earlier)> ready;  // the engine's order: the last made
    add(root_, std::move(gradients[0]));
    ready.push(root_.function.get());
    while (!ready.empty()) {
      auto& node = *ready.top();
      ready.pop();
      auto outputs = call(node, std::move(graph_.at(&node).sums));
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const auto& next = node.next_edge(i);
        if (next.is_valid() && add(next, std::move(outputs[i])) == 0) ready.push(next.function.get());
      }
    }
    return {};
  }

 private:
  static variable_list call(Node& node, variable_list inputs) {
    node.will_release_variables();
    auto outputs = node(std::move(inputs));
    const auto text = [&](const std::string& error) { return "Function " + node.name() + " returned an " + error; };
    torch::autograd::validate_outputs(node.next_edges(), outputs, text);
    node.release_variables();
    return outputs;
  }

  // Returns how many gradients the node still waits for.
  std::size_t add(const Edge& edge, at::Tensor gradient) {
    auto& [waits_for, sums] = graph_.at(edge.function.get());
    sums.resize(edge.function->num_inputs());
    auto& sum = sums[edge.input_nr];
    if (sum.defined() && gradient.defined()) {
      torch::autograd::InputBuffer both(1);  // adds in place where LibTorch's engine does
      for (auto* each : {&sum, &gradient}) both.add(0, std::move(*each), {}, {}, edge.function.get());
      sum = std::move(both.buffer[0]);
    } else if (gradient.defined()) {
      sum = std::move(gradient);
    }
    return waits_for == 0 ? 0 : --waits_for;
  }

  Graph graph_;
  Edge root_;
};

}  // namespace

void backward(const torch::Tensor& loss) {
  const bool is_looked_at = at::hasCallbacks() || torch::autograd::AnomalyMode::is_enabled();
  const bool is_taken = fused_kernels() && !is_looked_at && loss.is_cpu() && loss.dim() == 0 && loss.grad_fn();
  auto graph = is_taken ? graph_of(loss.grad_fn().get()) : std::nullopt;
  if (!graph) return loss.backward();
  auto& node = *loss.grad_fn();
  if (graph->size() == 1 && node.num_outputs() == 0 && node.num_inputs() == 1) {
    // A recording, which needs no state of the engine.
    const at::AutoGradMode no_graph(false);
    thread_local auto one = at::ones_like(loss);
    if (one.scalar_type() != loss.scalar_type()) one = at::ones_like(loss);
    node.will_release_variables();
    node({one});
    node.release_variables();
    return;
  }
  const auto whole = std::make_shared<WholeGraph>(std::move(*graph), torch::autograd::impl::gradient_edge(loss));
  whole->add_input_metadata(loss);
  torch::autograd::Engine::get_default_engine().execute({Edge(whole, 0)}, {at::ones_like(loss)}, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace vernier
