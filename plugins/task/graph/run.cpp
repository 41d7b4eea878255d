#include "run.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/stack.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <vernier/error.h>
#include <vernier/memory.h>

#include <algorithm>
#include <exception>

#include "values.h"

namespace graph {

namespace {

// LibTorch chooses oneDNN's LSTM before autocast casts the numbers to 16 bits, and for these oneDNN has none on
// processors without AVX-512. There LibTorch's own operators compute it.
void call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  auto& context = at::globalContext();
  const bool is_missing = op.schema().name() == "aten::lstm" && at::autocast::is_autocast_enabled(at::kCPU) &&
                          !__builtin_cpu_supports("avx512bw");
  const auto put_back =
      c10::make_scope_exit([&, was_used = context.userEnabledMkldnn()] { context.setUserEnabledMkldnn(was_used); });
  if (is_missing) context.setUserEnabledMkldnn(false);
  op.callBoxed(stack);
}

// Autocast as a graph wants it, until the end of the scope.
class Autocast {
 public:
  Autocast(c10::DeviceType device, std::optional<at::ScalarType> dtype, bool on)
      : device_(device),
        was_on_(at::autocast::is_autocast_enabled(device)),
        dtype_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::increment_nesting();
    if (dtype) at::autocast::set_autocast_dtype(device, *dtype);
    at::autocast::set_autocast_enabled(device, on);
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, was_on_);
    at::autocast::set_autocast_dtype(device_, dtype_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool was_on_;
  at::ScalarType dtype_;
};

// A graph has the numbers of the dtype that it was exported in, such as the least one in a mask.
std::string remedy_of(const std::string& message) {
  if (message.find("without overflow") == std::string::npos) return "";
  return "; the number is one of the dtype of the export: export the model by save(…, autocast=torch.bfloat16) of "
         "plugins/task/graph/export.py, or train with precision.use = \"fp32\"";
}

class Runner {
 public:
  Runner(const Graph& graph, std::vector<IValue> slots, const Mode& mode)
      : graph_(graph), slots_(std::move(slots)), mode_(mode) {}

  std::vector<IValue> run() {
    for (const auto& node : graph_.nodes) {
      if (node.only_in_training && !mode_.is_training) continue;
      try {
        run_node(node);
      } catch (const vernier::Error&) {
        throw;
      } catch (const std::exception& error) {
        if (vernier::is_out_of_memory(std::current_exception()))
          TORCH_CHECK_WITH(OutOfMemoryError, false, node.name, ": ", vernier::message(error));
        throw vernier::Error(node.name + ": " + vernier::message(error) + remedy_of(vernier::message(error)));
      }
      for (const auto slot : node.last_used) slots_[static_cast<std::size_t>(slot)] = IValue();
    }
    std::vector<IValue> outputs;
    outputs.reserve(graph_.outputs.size());
    for (const auto& output : graph_.outputs) outputs.push_back(value_of(output));
    return outputs;
  }

 private:
  IValue value_of(const Argument& argument) const {
    switch (argument.kind) {
      case Argument::Kind::constant:
        return argument.value;
      case Argument::Kind::slot:
        return fitted(slots_[static_cast<std::size_t>(argument.slot)], argument.type);
      case Argument::Kind::device:
        return mode_.device;
      case Argument::Kind::list:
        break;
    }
    std::vector<IValue> values;
    values.reserve(argument.items.size());
    for (const auto& item : argument.items) values.push_back(value_of(item));
    return list_of(values, argument.type);
  }

  void run_node(const Node& node) {
    switch (node.kind) {
      case Node::Kind::call:
        return call(node);
      case Node::Kind::arithmetic: {
        std::vector<IValue> arguments;
        for (const auto& argument : node.arguments) arguments.push_back(value_of(argument));
        return keep(node, {node.arithmetic(arguments)});
      }
      case Node::Kind::cond: {
        const bool is_first = is_true(node, value_of(node.arguments[0]));
        return keep(node, run_inner(*node.graphs[is_first ? 0 : 1], node, 1));
      }
      case Node::Kind::set_grad: {
        const c10::AutoGradMode grad(value_of(node.arguments[0]).toBool());
        return keep(node, run_inner(*node.graphs[0], node, 1));
      }
      case Node::Kind::autocast: {
        const auto dtype = value_of(node.arguments[1]);
        const Autocast autocast(mode_.device.type(),
                                dtype.isNone() ? std::nullopt : std::optional(dtype.toScalarType()),
                                value_of(node.arguments[2]).toBool());
        return keep(node, run_inner(*node.graphs[0], node, 4));
      }
      case Node::Kind::while_loop:
        return keep(node, repeated(node, values_of(node)));
      case Node::Kind::scan:
      case Node::Kind::map:
        return keep(node, for_each_row(node, values_of(node)));
    }
  }

  static bool is_true(const Node& node, const IValue& chosen) {
    const bool decides = chosen.isBool() || (chosen.isTensor() && chosen.toTensor().numel() == 1);
    if (!decides) vernier::refuse(node.name + " decides by " + chosen.tagKind() + ", and needs one truth value");
    return chosen.isTensor() ? chosen.toTensor().item<bool>() : chosen.toBool();
  }

  // values: those that a round gives to the next, then those of every round.
  std::vector<IValue> repeated(const Node& node, std::vector<IValue> values) const {
    constexpr int most_rounds = 1'000'000;
    for (int round = 0; is_true(node, run_graph(*node.graphs[0], values).at(0)); ++round) {
      if (round == most_rounds) vernier::refuse(node.name + " goes on after a million rounds");
      std::ranges::move(run_graph(*node.graphs[1], values), values.begin());
    }
    values.resize(node.lists[0]);
    return values;
  }

  // values: those that a row gives to the next, the tensors of which each call takes a row, then those of every call.
  // What a call returns behind the first ones is stacked.
  std::vector<IValue> for_each_row(const Node& node, std::vector<IValue> values) const {
    const auto carried = node.kind == Node::Kind::scan ? node.lists[0] : 0;
    const auto of_rows = node.kind == Node::Kind::scan ? node.lists[1] : node.lists[0];
    const std::vector<IValue> all(values.begin() + static_cast<std::ptrdiff_t>(carried),
                                  values.begin() + static_cast<std::ptrdiff_t>(carried + of_rows));
    for (const auto& rows : all) {
      if (!rows.isTensor() || rows.toTensor().dim() == 0 || rows.toTensor().size(0) == 0 ||
          rows.toTensor().size(0) != all[0].toTensor().size(0)) {
        vernier::refuse(node.name + " needs tensors of as many rows, and at least one");
      }
    }
    std::vector<std::vector<at::Tensor>> made(node.graphs[0]->outputs.size() - carried);
    for (std::int64_t row = 0; row < all[0].toTensor().size(0); ++row) {
      for (std::size_t i = 0; i < of_rows; ++i) values[carried + i] = all[i].toTensor().select(0, row);
      auto next = run_graph(*node.graphs[0], values);
      for (std::size_t i = 0; i < next.size(); ++i) {
        i < carried ? void(values[i] = next[i]) : made[i - carried].push_back(next[i].toTensor());
      }
    }
    values.resize(carried);
    for (const auto& tensors : made) values.emplace_back(at::stack(tensors));
    return values;
  }

  void call(const Node& node) {
    torch::jit::Stack stack;
    stack.reserve(node.arguments.size());
    for (const auto& argument : node.arguments) stack.push_back(value_of(argument));
    if (!mode_.is_training) {
      for (const auto& [place, value] : node.in_evaluation) stack[place] = value;
    }
    const auto& wanted = node.op->schema().arguments();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (node.arguments[i].kind == Argument::Kind::constant || is_of_type(stack[i], wanted[i].real_type())) continue;
      vernier::refuse(node.name + " gets " + stack[i].tagKind() + " as '" + wanted[i].name() + "', and takes " +
                      wanted[i].real_type()->str());
    }
    if (node.rule.check != nullptr) check(node, stack);
    graph::call(*node.op, stack);
    if (node.rule.is_filled) stack.at(0).toTensor().zero_();
    keep(node, std::move(stack));
  }

  static void check(const Node& node, torch::jit::Stack& stack) {
    try {
      node.rule.check({node.op->schema(), stack});
    } catch (const vernier::Error& error) {
      vernier::refuse(node.name + " " + error.what());
    }
  }

  std::vector<IValue> values_of(const Node& node, std::size_t first = 0) const {
    std::vector<IValue> values;
    for (auto i = first; i < node.arguments.size(); ++i) values.push_back(value_of(node.arguments[i]));
    return values;
  }

  std::vector<IValue> run_graph(const Graph& inner, const std::vector<IValue>& values) const {
    std::vector<IValue> slots(static_cast<std::size_t>(inner.slots));
    for (std::size_t i = 0; i < inner.inputs.size(); ++i) {
      if (inner.inputs[i] != no_slot) slots[static_cast<std::size_t>(inner.inputs[i])] = values.at(i);
    }
    return graph::run(inner, std::move(slots), mode_);
  }

  std::vector<IValue> run_inner(const Graph& inner, const Node& node, std::size_t first) const {
    return run_graph(inner, values_of(node, first));
  }

  // Puts what a node returned into its slots. A list may be one value for several slots.
  void keep(const Node& node, std::vector<IValue> values) {
    std::size_t next = 0;
    for (const auto& slots : node.outputs) {
      if (next < values.size() && values[next].isList()) {
        const auto list = values[next++].toList();
        if (list.size() != slots.size())
          vernier::refuse(node.name + " returns another number of tensors than in Python");
        for (std::size_t i = 0; i < slots.size(); ++i) put(slots[i], list.get(i));
        continue;
      }
      for (const auto slot : slots) {
        if (next == values.size()) vernier::refuse(node.name + " returns fewer values than in Python");
        put(slot, std::move(values[next++]));
      }
    }
  }

  void put(Slot slot, IValue value) {
    if (slot != no_slot) slots_[static_cast<std::size_t>(slot)] = std::move(value);
  }

  const Graph& graph_;
  std::vector<IValue> slots_;
  const Mode& mode_;
};

}  // namespace

std::vector<IValue> run(const Graph& graph, std::vector<IValue> slots, const Mode& mode) {
  return Runner(graph, std::move(slots), mode).run();
}

}  // namespace graph
