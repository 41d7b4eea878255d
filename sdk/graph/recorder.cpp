#include "recorder.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <vernier/error.h>

#include <algorithm>

namespace vernier::graph {

namespace {

// A key that nothing else uses, above Autocast and Autograd: a kernel under it sees what the model called. Interceptors
// (trace/layers.cpp) use the one above it.
constexpr auto key = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

thread_local Recorder* recorder = nullptr;

void record_call(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(key);
  if (recorder != nullptr) return recorder->call(op, *stack);
  op.callBoxed(stack);
}

void register_kernel() {
  static torch::Library all(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  static const bool registered = [] {
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&record_call>());
    return true;
  }();
  (void)registered;
}

std::string place(const std::string& layer) {
  return layer.empty() ? "" : ", in or after the layer '" + layer + "'";
}

struct Recording {
  explicit Recording(Recorder* now) { recorder = now; }
  ~Recording() { recorder = nullptr; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
};

Sizes sizes_of(const torch::Tensor& tensor) {
  Sizes sizes;
  for (const auto size : tensor.sizes()) sizes.push_back({size});
  return sizes;
}

}  // namespace

Recorder::Recorder(const torch::nn::Module& module, const Inputs& inputs) : layers_(module) {
  for (const auto& entry : module.named_parameters()) add(Value::Kind::parameter, entry.key(), entry.value());
  for (const auto& entry : module.named_buffers()) add(Value::Kind::buffer, entry.key(), entry.value());
  for (const auto& input : inputs) graph_.inputs.push_back(add(Value::Kind::input, "", input));
}

Graph Recorder::record(const Forward& forward, const Inputs& inputs) {
  register_kernel();
  const torch::NoGradGuard no_grad;
  torch::Tensor output;
  {
    const Recording recording(this);
    const c10::impl::IncludeDispatchKeyGuard included(key);
    output = forward(inputs);
  }
  if (!output.defined()) refuse("its forward() returns no tensor");
  graph_.output = value_of(output);
  return std::move(graph_);
}

std::size_t Recorder::add(Value::Kind kind, const std::string& name, const torch::Tensor& tensor) {
  return add(kind, name, tensor, tensor);
}

std::size_t Recorder::add(Value::Kind kind, const std::string& name, const torch::Tensor& tensor,
                          const torch::Tensor& known_as) {
  const auto index = graph_.values.size();
  graph_.values.push_back({kind, name, tensor, sizes_of(tensor)});
  is_stale_.push_back(false);
  needs_input_.push_back(kind == Value::Kind::input);
  known_[known_as.unsafeGetTensorImpl()] = index;
  if (known_as.has_storage()) by_storage_.emplace(known_as.storage().unsafeGetStorageImpl(), index);
  return index;
}

std::size_t Recorder::value_of(const torch::Tensor& tensor) {
  const auto found = known_.find(tensor.unsafeGetTensorImpl());
  const auto index = found != known_.end() ? found->second : add(Value::Kind::constant, "", tensor);
  if (!is_stale_[index]) return index;
  // Numbers that no input has made are what they are now: those of a mask, written piece by piece.
  if (!needs_input_[index]) return add(Value::Kind::constant, "", tensor.clone(), tensor);
  refuse("it changes a tensor in place after it took a view of it" + place(layer_));
}

Argument Recorder::list_of(const c10::IValue& value) {
  Argument list{.kind = Argument::Kind::list};
  for (const c10::IValue& item : value.toListRef()) list.items.push_back(argument_of(item));
  const bool is_constant =
      std::ranges::all_of(list.items, [](const auto& item) { return item.kind == Argument::Kind::constant; });
  return is_constant ? Argument{.constant = value} : list;
}

Argument Recorder::argument_of(const c10::IValue& value) {
  if (value.isTensor()) {
    if (!value.toTensor().defined()) return {};
    return {.kind = Argument::Kind::value, .value = value_of(value.toTensor())};
  }
  return value.isList() ? list_of(value) : Argument{.constant = value};
}

bool Recorder::needs_input(const Argument& argument) const {
  if (argument.kind == Argument::Kind::value) return needs_input_[argument.value];
  return std::ranges::any_of(argument.items, [this](const auto& item) { return needs_input(item); });
}

std::vector<torch::Tensor> Recorder::changed_by(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  std::vector<torch::Tensor> changed;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = op.schema().arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite() || !arguments[i].isTensor() || !arguments[i].toTensor().defined())
      continue;
    const auto& tensor = arguments[i].toTensor();
    const auto [begin, end] = by_storage_.equal_range(tensor.storage().unsafeGetStorageImpl());  // views of it too
    for (auto each = begin; each != end; ++each) {
      const auto& value = graph_.values[each->second];
      if (value.kind != Value::Kind::parameter && value.kind != Value::Kind::buffer) continue;
      refuse("it changes '" + value.name +
             "' in evaluation, and what others run keeps nothing from one call to the next");
    }
    changed.push_back(tensor);
  }
  return changed;
}

void Recorder::call(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto count = op.schema().arguments().size();
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(count);
  std::vector<c10::IValue> given(first, stack.end());
  for (const auto& argument : given) {
    if (argument.isTensor() && layers_.find(argument.toTensor()) >= 0) {
      layer_ = layers_.names()[static_cast<std::size_t>(layers_.find(argument.toTensor()))];
    }
  }
  Node node{op, layer_, {}, {}};
  for (const auto& argument : given) node.arguments.push_back(argument_of(argument));
  const auto changed = changed_by(op, given);
  for (const auto& tensor : changed) keep_constants(tensor);
  op.callBoxed(stack);
  std::vector<c10::IValue> results(stack.end() - static_cast<std::ptrdiff_t>(op.schema().returns().size()),
                                   stack.end());
  const bool needs =
      std::ranges::any_of(node.arguments, [this](const auto& argument) { return needs_input(argument); });
  for (const auto& tensor : changed) {
    const auto [begin, end] = by_storage_.equal_range(tensor.storage().unsafeGetStorageImpl());
    for (auto each = begin; each != end; ++each) {
      is_stale_[each->second] = true;
      if (needs) needs_input_[each->second] = true;
    }
    known_.erase(tensor.unsafeGetTensorImpl());  // from here on it is another value
  }
  keep_results(node, results);
}

// Called before memory changes. Constants in it, and values that may become constants, keep the numbers that they have.
void Recorder::keep_constants(const torch::Tensor& changed) {
  const auto [begin, end] = by_storage_.equal_range(changed.storage().unsafeGetStorageImpl());
  for (auto each = begin; each != end; ++each) {
    auto& value = graph_.values[each->second];
    const bool is_weight = value.kind == Value::Kind::parameter || value.kind == Value::Kind::buffer;
    if (is_weight || is_stale_[each->second] || needs_input_[each->second]) continue;
    alive_.push_back(value.tensor);
    value.tensor = value.tensor.clone();
  }
}

void Recorder::keep_results(Node& node, const std::vector<c10::IValue>& results) {
  const auto& name = node.name();
  // A new tensor takes dtype and sizes of another, and no number.
  const bool is_filled = name.starts_with("aten::new_") || name == "aten::zeros_like" || name == "aten::ones_like" ||
                         name == "aten::full_like" || name == "aten::empty_like";
  const bool needs =
      !is_filled && std::ranges::any_of(node.arguments, [this](const auto& argument) { return needs_input(argument); });
  bool is_new = false, has_tensors = false;
  const auto slot = [&](const torch::Tensor& tensor) {
    has_tensors = true;
    if (known_.contains(tensor.unsafeGetTensorImpl())) return value_of(tensor);
    is_new = true;
    const auto index = add(Value::Kind::result, "", tensor);
    needs_input_[index] = needs;
    return index;
  };
  for (const auto& result : results) {
    auto& slots = node.results.emplace_back();
    if (result.isTensor()) {
      slots.push_back(slot(result.toTensor()));
    } else if (result.isTensorList()) {
      for (const torch::Tensor& tensor : result.toTensorVector()) slots.push_back(slot(tensor));
    }
  }
  const bool reads_numbers = name == "aten::item" || name == "aten::_local_scalar_dense" || name == "aten::equal" ||
                             name == "aten::is_nonzero" || name == "aten::allclose";
  if (reads_numbers && needs) {
    refuse("it decides by the values of its input (" + name.substr(6) + ")" + place(node.layer) +
           ", and a graph has one way through it");
  }
  if (is_new && has_tensors) graph_.nodes.push_back(std::move(node));
}

}  // namespace vernier::graph
