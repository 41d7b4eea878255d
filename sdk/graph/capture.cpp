#include "capture.h"

#include <ATen/core/List.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/unchanged.h>

#include <algorithm>
#include <cmath>

#include "recorder.h"

namespace vernier::graph {

namespace {

using c10::IValue;

constexpr std::int64_t first_batch = 2, second_batch = 3, third_batch = 5;

Inputs rows_of(const Inputs& examples, std::int64_t samples) {
  Inputs inputs;
  for (const auto& example : examples) {
    if (example.dim() == 0 || example.size(0) == 0) refuse("an example of an input has no samples");
    inputs.push_back(example.index_select(0, at::arange(samples, example.device()).remainder(example.size(0))));
  }
  return inputs;
}

// Merges what two traces have, of batches of 2 and 3 samples.
class Merger {
 public:
  Graph merge(Graph one, const Graph& other) {
    if (one.nodes.size() != other.nodes.size() || one.values.size() != other.values.size()) refuse_other();
    for (std::size_t i = 0; i < one.values.size(); ++i) merge_value(one.values[i], other.values[i]);
    for (std::size_t i = 0; i < one.nodes.size(); ++i) {
      layer_ = one.nodes[i].layer;
      if (one.nodes[i].op != other.nodes[i].op || one.nodes[i].results != other.nodes[i].results) refuse_other();
      merge_all(one.nodes[i].arguments, other.nodes[i].arguments);
    }
    if (one.output != other.output) refuse_other();
    return one;
  }

 private:
  [[noreturn]] static void refuse_other() {
    refuse("its forward() calls other operators for a batch of 3 samples than for one of 2");
  }

  [[noreturn]] void refuse_number(const std::string& what) const {
    refuse(what + " depends on the batch" + (layer_.empty() ? "" : ", in or after the layer '" + layer_ + "'") +
           ", and is not a multiple of its samples");
  }

  Size size_of(std::int64_t one, std::int64_t other) const {
    if (one == other) return {one};
    if (one % first_batch != 0 || other % second_batch != 0 || one / first_batch != other / second_batch) {
      refuse_number(c10::str("a number (", one, ", then ", other, ")"));
    }
    return {one / first_batch, true};
  }

  void merge_value(Value& one, const Value& other) const {
    if (one.kind != other.kind || one.sizes.size() != other.sizes.size() || one.dtype() != other.dtype())
      refuse_other();
    for (std::size_t i = 0; i < one.sizes.size(); ++i) {
      one.sizes[i] = size_of(one.sizes[i].number, other.sizes[i].number);
    }
    if (one.kind != Value::Kind::constant || one.tensor.is_same(other.tensor)) return;
    if (!one.tensor.sizes().equals(other.tensor.sizes()) ||
        !one.tensor.allclose(other.tensor, 0, 0, /*equal_nan=*/true)) {
      refuse_number("a tensor that it makes");
    }
  }

  void merge_all(std::vector<Argument>& ones, const std::vector<Argument>& others) const {
    if (ones.size() != others.size()) refuse_other();
    for (std::size_t i = 0; i < ones.size(); ++i) merge_argument(ones[i], others[i]);
  }

  static bool is_same(double one, double other) { return one == other || (std::isnan(one) && std::isnan(other)); }

  void merge_argument(Argument& one, const Argument& other) const {
    if (one.kind != other.kind || one.value != other.value) refuse_other();
    if (one.kind == Argument::Kind::list) return merge_all(one.items, other.items);
    if (one.kind != Argument::Kind::constant) return;
    if (one.constant.isInt() && other.constant.isInt()) {
      if (const auto size = size_of(one.constant.toInt(), other.constant.toInt()); size.is_per_sample) {
        one = {.kind = Argument::Kind::size, .size = size};
      }
    } else if (one.constant.isIntList() && other.constant.isIntList()) {
      merge_list(one, other);
    } else if (one.constant.tagKind() != other.constant.tagKind()) {
      refuse_other();
    } else if ((one.constant.isDouble() && !is_same(one.constant.toDouble(), other.constant.toDouble())) ||
               (one.constant.isBool() && one.constant.toBool() != other.constant.toBool())) {
      refuse_number("a number");
    }
  }

  void merge_list(Argument& one, const Argument& other) const {
    const auto ones = one.constant.toIntVector(), others = other.constant.toIntVector();
    if (ones.size() != others.size()) refuse_other();
    if (ones == others) return;
    Argument list{.kind = Argument::Kind::list};
    for (std::size_t i = 0; i < ones.size(); ++i) {
      const auto size = size_of(ones[i], others[i]);
      list.items.push_back(size.is_per_sample ? Argument{.kind = Argument::Kind::size, .size = size}
                                              : Argument{.constant = ones[i]});
    }
    one = std::move(list);
  }

  std::string layer_;
};

template <class Action>
void for_each_value(const std::vector<Argument>& arguments, const Action& action) {
  for (const auto& argument : arguments) {
    if (argument.kind == Argument::Kind::value) action(argument.value);
    for_each_value(argument.items, action);
  }
}

bool has_sizes(const std::vector<Argument>& arguments) {
  return std::ranges::any_of(
      arguments, [](const auto& each) { return each.kind == Argument::Kind::size || has_sizes(each.items); });
}

// Makes constants of what is computed from constants alone, such as tables of positions, and of what operators that
// nobody keeps compute from weights alone.
void fold_constants(Graph& graph) {
  std::vector<bool> is_known;  // it depends on weights and constants alone
  for (const auto& value : graph.values) {
    is_known.push_back(value.kind != Value::Kind::input && value.kind != Value::Kind::result);
  }
  std::erase_if(graph.nodes, [&](const Node& node) {
    bool is_constant = !has_sizes(node.arguments) && !node.op.schema().is_mutable(), is_fixed = is_constant;
    for_each_value(node.arguments, [&](std::size_t value) {
      is_constant = is_constant && graph.values[value].kind == Value::Kind::constant;
      is_fixed = is_fixed && is_known[value];
    });
    for (const auto& slots : node.results) {
      for (const auto slot : slots) {
        is_fixed = is_fixed && std::ranges::none_of(graph.values[slot].sizes, &Size::is_per_sample);
      }
    }
    is_constant = is_fixed && (is_constant || !node.is_kept);
    for (const auto& slots : node.results) {
      for (const auto slot : slots) {
        is_known[slot] = is_fixed;
        if (is_constant) graph.values[slot].kind = Value::Kind::constant;
      }
    }
    return is_constant;
  });
}

void drop_unused(Graph& graph) {
  std::vector<bool> is_used(graph.values.size());
  is_used[graph.output] = true;
  std::vector<Node> kept;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const bool is_needed = std::ranges::any_of(node->results, [&](const auto& slots) {
      return std::ranges::any_of(slots, [&](std::size_t slot) { return is_used[slot]; });
    });
    if (!is_needed) continue;
    for_each_value(node->arguments, [&](std::size_t value) { is_used[value] = true; });
    kept.push_back(std::move(*node));
  }
  std::ranges::reverse(kept);
  graph.nodes = std::move(kept);
}

IValue value_of(const Argument& argument, const std::vector<torch::Tensor>& tensors, std::int64_t samples,
                const c10::TypePtr& type);

IValue list_value(const Argument& argument, const std::vector<torch::Tensor>& tensors, std::int64_t samples,
                  const c10::TypePtr& type) {
  const auto* optional = type->castRaw<c10::OptionalType>();
  const auto list_type = optional != nullptr ? optional->getElementType() : type;
  c10::impl::GenericList list(list_type->castRaw<c10::ListType>()->getElementType());
  for (const auto& item : argument.items) {
    list.push_back(value_of(item, tensors, samples, list_type->castRaw<c10::ListType>()->getElementType()));
  }
  return list;
}

IValue value_of(const Argument& argument, const std::vector<torch::Tensor>& tensors, std::int64_t samples,
                const c10::TypePtr& type) {
  switch (argument.kind) {
    case Argument::Kind::value:
      return tensors[argument.value];
    case Argument::Kind::size:
      return argument.size.number * samples;
    case Argument::Kind::list:
      return list_value(argument, tensors, samples, type);
    case Argument::Kind::constant:
      break;
  }
  return argument.constant;
}

}  // namespace

torch::Tensor run(const Graph& graph, const Inputs& inputs) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> tensors(graph.values.size());
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    if (graph.values[i].kind != Value::Kind::result) tensors[i] = graph.values[i].tensor;
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) tensors[graph.inputs[i]] = inputs[i];
  for (const auto& node : graph.nodes) {
    torch::jit::Stack stack;
    for (std::size_t i = 0; i < node.arguments.size(); ++i) {
      const auto& of_schema = node.op.schema().arguments()[i];
      stack.push_back(value_of(node.arguments[i], tensors, inputs.at(0).size(0), of_schema.type()));
      const bool is_changed = of_schema.alias_info() != nullptr && of_schema.alias_info()->isWrite();
      if (is_changed && stack.back().isTensor()) stack.back() = stack.back().toTensor().clone();
    }
    node.op.callBoxed(stack);
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      const auto& slots = node.results[i];
      if (stack[i].isTensor()) tensors[slots.at(0)] = stack[i].toTensor();
      if (!stack[i].isTensorList()) continue;
      const auto list = stack[i].toTensorVector();
      for (std::size_t place = 0; place < slots.size(); ++place) tensors[slots[place]] = list.at(place);
    }
  }
  return tensors[graph.output];
}

Graph capture(const torch::nn::Module& module, const Forward& forward, const Inputs& examples, const Keeps& keeps) {
  const torch::NoGradGuard no_grad;
  if (examples.empty()) refuse("it has no input");
  const Unchanged unchanged(module);
  const auto inputs = rows_of(examples, first_batch), more = rows_of(examples, second_batch);
  forward(inputs);  // tables that a model keeps are there from now on
  auto graph = Recorder(module, inputs, keeps).record(forward, inputs);
  graph = Merger().merge(std::move(graph), Recorder(module, more, keeps).record(forward, more));
  fold_constants(graph);
  drop_unused(graph);
  const auto batch = rows_of(examples, third_batch);
  const auto expected = forward(batch), output = run(graph, batch);
  if (output.sizes() != expected.sizes() || !output.allclose(expected, 1e-4, 1e-5, /*equal_nan=*/true)) {
    refuse("its graph gives other numbers for a batch of 5 samples than forward()");
  }
  return graph;
}

}  // namespace vernier::graph
