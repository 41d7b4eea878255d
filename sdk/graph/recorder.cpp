#include "recorder.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <vernier/error.h>
#include <vernier/graph/graph_export.h>

#include <algorithm>
#include <set>

namespace vernier::graph {

namespace {

constexpr auto key = Unrecorded::key;  // interceptors (trace/layers.cpp) use the one above it

thread_local Recorder* recorder = nullptr;

void record_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (recorder != nullptr && recorder->takes_apart(op, *stack)) {
    return op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
  }
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

// Returns true for an operator whose result has the numbers of its first argument in their order, in other sizes.
bool is_reshape(const std::string& name) {
  static const std::set<std::string> names = {"view",    "reshape", "flatten",    "unflatten",      "squeeze",
                                              "view_as", "ravel",   "reshape_as", "_reshape_alias", "unsqueeze"};
  return names.contains(name);
}

bool have_one_layout(const torch::Tensor& one, const torch::Tensor& other) {
  return one.sizes().equals(other.sizes()) && one.strides().equals(other.strides()) &&
         one.storage_offset() == other.storage_offset() && one.scalar_type() == other.scalar_type();
}

c10::OperatorHandle operator_named(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

Argument constant_of(const c10::IValue& constant) {
  return {.constant = constant};
}

Argument of_value(std::size_t value) {
  return {.kind = Argument::Kind::value, .value = value};
}

}  // namespace

Recorder::Recorder(const torch::nn::Module& module, const Inputs& inputs, const Keeps& keeps)
    : keeps_(keeps), layers_(module) {
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
  given_.push_back(known_as);
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
  if (views_.contains(tensor.unsafeGetTensorImpl())) return taken_again(tensor);
  refuse("it changes a tensor in place after it took a view of it" + place(layer_));
}

std::size_t Recorder::add_node(Node node, const torch::Tensor& result) {
  const auto index = add(Value::Kind::result, "", result);
  needs_input_[index] =
      std::ranges::any_of(node.arguments, [this](const auto& argument) { return needs_input(argument); });
  node.results = {{index}};
  graph_.nodes.push_back(std::move(node));
  return index;
}

void Recorder::keep_views(const Node& node) {
  if (node.op.schema().is_mutable()) return;
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    if (node.arguments[i].kind != Argument::Kind::value) continue;
    const auto& base = given_[node.arguments[i].value];
    for (std::size_t place = 0; base.has_storage() && place < node.results.at(0).size(); ++place) {
      const auto& view = given_[node.results[0][place]];
      if (view.is_same(base) || !view.has_storage() || !view.is_alias_of(base)) continue;
      views_.insert_or_assign(view.unsafeGetTensorImpl(), View{base, node, i, place});
    }
  }
}

// The tensors of which a tensor is a part, from the nearest on, with their values.
std::vector<std::pair<torch::Tensor, std::size_t>> Recorder::bases_of(torch::Tensor view) {
  std::vector<std::pair<torch::Tensor, std::size_t>> all;
  for (auto found = views_.find(view.unsafeGetTensorImpl()); found != views_.end();
       found = views_.find(view.unsafeGetTensorImpl())) {
    view = found->second.base;
    all.emplace_back(view, 0);
  }
  for (auto each = all.rbegin(); each != all.rend(); ++each) each->second = value_of(each->first);
  return all;
}

// Takes a view again after its base was changed.
std::size_t Recorder::taken_again(const torch::Tensor& view) {
  auto [base, node, argument_place, place] = views_.at(view.unsafeGetTensorImpl());
  auto& changed = node.arguments[argument_place];
  changed.value = value_of(base);
  for (auto& slot : node.results.at(0)) {
    const auto tensor = given_[slot];
    slot = add(Value::Kind::result, "", tensor);
    needs_input_[slot] = needs_input(changed);
  }
  graph_.nodes.push_back(node);
  return node.results[0][place];
}

// Returns a tensor with `part` in the place of a view of it; none: the view is not one that can be put back.
std::optional<std::size_t> Recorder::base_with(const View& view, std::size_t base, std::size_t part) {
  const auto& whole = view.base;
  const auto& from = view.node;
  if (have_one_layout(given_[part], whole)) {
    known_[whole.unsafeGetTensorImpl()] = part;
    return part;
  }
  const auto& given = from.arguments;
  const auto name = from.name().substr(from.name().find("::") + 2);
  const auto number_of = [&](const char* of) {
    return given.at(static_cast<std::size_t>(*from.op.schema().argumentIndexWithName(of))).constant;
  };
  const auto scattered = [&](const char* op, std::vector<Argument> rest) {
    rest.insert(rest.begin(), {of_value(base), of_value(part)});
    return add_node({operator_named(op), layer_, std::move(rest), {}}, whole);
  };
  const auto cut = [&](std::int64_t dimension, std::int64_t start, std::int64_t length) {
    return scattered("aten::slice_scatter", {constant_of(dimension), constant_of(start), constant_of(start + length),
                                             constant_of(std::int64_t{1})});
  };
  const std::vector<Argument> rest(given.begin() + 1, given.end());
  if (name == "select") return scattered("aten::select_scatter", rest);
  if (name == "slice") return scattered("aten::slice_scatter", rest);
  if (name == "diagonal") return scattered("aten::diagonal_scatter", rest);
  if (name == "unbind") {
    return scattered("aten::select_scatter", {rest.at(0), constant_of(static_cast<std::int64_t>(view.place))});
  }
  if (name == "narrow" && number_of("start").isInt()) {
    return cut(number_of("dim").toInt(), number_of("start").toInt(), number_of("length").toInt());
  }
  if (name.find("split") != std::string::npos || name.find("chunk") != std::string::npos) {
    const auto dimension = number_of("dim").toInt();
    std::int64_t start = 0;
    for (std::size_t i = 0; i < view.place; ++i) start += given_[from.results[0][i]].size(dimension);
    return cut(dimension, start, given_[part].size(dimension));
  }
  if (name == "transpose" || name == "t") {
    auto arguments = rest;
    arguments.insert(arguments.begin(), of_value(part));
    return add_node({from.op, layer_, std::move(arguments), {}}, whole);
  }
  if (name == "permute") {
    const auto order = number_of("dims").toIntVector();
    std::vector<std::int64_t> back(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      back[static_cast<std::size_t>(order[i] < 0 ? order[i] + std::ssize(order) : order[i])] =
          static_cast<std::int64_t>(i);
    }
    return add_node({from.op, layer_, {of_value(part), constant_of(back)}, {}}, whole);
  }
  if (!is_reshape(name) || given_[part].scalar_type() != whole.scalar_type()) return std::nullopt;
  return add_node({operator_named("aten::reshape"), layer_, {of_value(part), constant_of(whole.sizes().vec())}, {}},
                  whole);
}

// Gives the tensors of which a changed one is a part their new values.
void Recorder::write_back(const torch::Tensor& changed,
                          const std::vector<std::pair<torch::Tensor, std::size_t>>& bases) {
  const auto part = known_.find(changed.unsafeGetTensorImpl());
  if (part == known_.end()) return;
  auto value = part->second;
  auto view = changed;
  for (const auto& [base, before] : bases) {
    const auto with = base_with(views_.at(view.unsafeGetTensorImpl()), before, value);
    if (!with) return;  // whoever reads the base from here on is refused
    value = *with, view = base;
  }
}

void Recorder::mark_stale(const torch::Tensor& changed, bool needs_input) {
  const auto own = views_.find(changed.unsafeGetTensorImpl());
  const auto is_apart = [&](const torch::Tensor& other) {  // two of the parts that one node cut
    const auto found = views_.find(other.unsafeGetTensorImpl());
    return own != views_.end() && found != views_.end() && own->second.node.results == found->second.node.results &&
           own->second.place != found->second.place;
  };
  const auto [begin, end] = by_storage_.equal_range(changed.storage().unsafeGetStorageImpl());
  for (auto each = begin; each != end; ++each) {
    if (is_apart(given_[each->second])) continue;
    is_stale_[each->second] = true;
    if (needs_input) needs_input_[each->second] = true;
  }
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
  Node node{op, layer_, {}, {}, !keeps_ || keeps_(op, given)};
  for (const auto& argument : given) node.arguments.push_back(argument_of(argument));
  const auto changed = changed_by(op, given);
  std::vector<std::vector<std::pair<torch::Tensor, std::size_t>>> bases;
  for (const auto& tensor : changed) bases.push_back(bases_of(tensor)), keep_constants(tensor);
  op.callBoxed(stack);
  std::vector<c10::IValue> results(stack.end() - static_cast<std::ptrdiff_t>(op.schema().returns().size()),
                                   stack.end());
  const bool needs =
      std::ranges::any_of(node.arguments, [this](const auto& argument) { return needs_input(argument); });
  for (const auto& tensor : changed) {
    mark_stale(tensor, needs);
    known_.erase(tensor.unsafeGetTensorImpl());  // from here on it is another value
  }
  keep_results(node, results);
  for (std::size_t i = 0; i < changed.size(); ++i) write_back(changed[i], bases[i]);
}

bool Recorder::takes_apart(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  const auto& returns = op.schema().returns();
  const auto kind = returns.empty() ? c10::TypeKind::NoneType : returns[0].type()->kind();
  const bool gives_numbers = kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType;  // item gives one
  return keeps_ && !gives_numbers && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !keeps_(op, stack);
}

// Called before memory changes. Constants in it, and values that may become constants, keep the numbers that they have.
void Recorder::keep_constants(const torch::Tensor& changed) {
  const auto [begin, end] = by_storage_.equal_range(changed.storage().unsafeGetStorageImpl());
  for (auto each = begin; each != end; ++each) {
    auto& value = graph_.values[each->second];
    const bool is_weight = value.kind == Value::Kind::parameter || value.kind == Value::Kind::buffer;
    if (is_weight || is_stale_[each->second] || needs_input_[each->second]) continue;
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
  if (!is_new || !has_tensors) return;
  keep_views(node);
  graph_.nodes.push_back(std::move(node));
}

}  // namespace vernier::graph
