#include "onnx.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <vernier/error.h>

#include <algorithm>
#include <map>

#include "onnx_rules.h"

namespace vernier::graph {

namespace {

constexpr int ir_version = 9, opset = 20, text_opset = 3;
constexpr const char* text_domain = "ai.onnx.ml";
constexpr std::size_t most_bytes = 2'000'000'000;  // size of a protocol buffers message

const Rules& all_rules() {
  static const Rules rules = [] {
    Rules all;
    add_math_rules(all);
    add_shape_rules(all);
    add_layer_rules(all);
    add_recurrent_rules(all);
    add_composed_rules(all);
    add_indexing_rules(all);
    add_complex_rules(all);
    return all;
  }();
  return rules;
}

// "aten::add_" is written as add: its result is another value here.
std::string rule_name(const c10::OperatorHandle& op) {
  auto name = op.schema().name();
  if (name.starts_with("aten::")) name.erase(0, 6);
  if (op.schema().is_mutable() && name.ends_with('_')) name.pop_back();
  return name;
}

// onnxruntime has no kernel for float64 of what these become.
bool is_narrow(const std::string& rule) {
  static const std::set<std::string> names = {
      "softplus", "celu",       "elu",         "selu",  "mish",  "hardswish", "hardsigmoid", "gelu",     "rrelu",
      "erf",      "leaky_relu", "log_sigmoid", "prelu", "tan",   "atan",      "asin",        "acos",     "col2im",
      "sinh",     "cosh",       "asinh",       "acosh", "atanh", "lstm",      "gru",         "rnn_tanh", "rnn_relu"};
  const auto has = [&](const char* part) { return rule.find(part) != std::string::npos; };
  return names.contains(rule) || has("conv") || has("avg_pool") || has("linear1d") || has("linear2d") ||
         has("linear3d") || has("cubic2d");
}

// The same graph in float32 where it has 16-bit floats: onnxruntime has no kernels of bfloat16 on a CPU, and rounds
// float16 in other places than LibTorch.
Graph in_float32(Graph graph) {
  for (auto& value : graph.values) {
    const bool is_wide = value.dtype() != torch::kBFloat16 && value.dtype() != torch::kFloat16;
    if (!is_wide) value.tensor = value.tensor.detach().to(torch::kFloat32);
  }
  return graph;
}

std::string place(const Node& node) {
  return rule_name(node.op) + (node.layer.empty() ? "" : " (in or after the layer '" + node.layer + "')");
}

}  // namespace

OnnxGraph::OnnxGraph(const Graph& graph, const std::vector<std::string>& inputs, const ExportedModel& model)
    : graph_(graph), model_(model), inputs_(inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!taken_.insert(inputs[i]).second) refuse("two inputs have the name '" + shortened(inputs[i]) + "'");
    names_[graph.inputs[i]] = inputs[i];
  }
  for (std::size_t i = 0; i < inputs.size() && batch_.empty(); ++i) {
    const auto& sizes = graph.values[graph.inputs[i]].sizes;
    if (!sizes.empty() && sizes[0] == Size{1, true}) batch_ = inputs[i];
  }
  for (const char* output : {"output", "class", "probabilities"}) outputs_[output] = unused(output);
  encode_texts();
  if (model_.images) {
    const auto& images = graph_.values[graph_.inputs.at(0)];
    if (images.sizes.size() < 4 || images.dtype() != torch::kUInt8) refuse("images are uint8 [samples, 3, 8, 8]");
    names_[graph_.inputs[0]] = prepared_images(*this, inputs[0], images.sizes.size(), model_.images->size);
  }
}

Name OnnxGraph::unused(Name name) {
  while (!taken_.insert(name).second) name += '_';
  return name;
}

void OnnxGraph::add_node(const std::string& type, const Names& inputs, const Names& outputs,
                         const std::vector<Attribute>& attributes, const char* domain) {
  Message node;
  for (const auto& input : inputs) node.text(1, input);
  for (const auto& output : outputs) node.text(2, output);
  node.text(4, type);
  for (const auto& attribute : attributes) node.message(5, attribute_message(attribute));
  if (*domain != 0) node.text(7, domain);
  nodes_.push_back(std::move(node));
}

Names OnnxGraph::add(const std::string& type, const Names& inputs, const std::vector<Attribute>& attributes,
                     std::size_t outputs) {
  Names names;
  for (std::size_t i = 0; i < outputs; ++i) names.push_back(new_name(type));
  add_node(type, inputs, names, attributes);
  return names;
}

// Inputs that are texts become codes.
void OnnxGraph::encode_texts() {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const auto found = model_.texts.find(inputs_[i]);
    if (found == model_.texts.end()) continue;
    std::vector<std::string> texts;
    std::vector<std::int64_t> codes;
    for (const auto& [text, code] : found->second.codes) texts.push_back(text), codes.push_back(code);
    const auto name = new_name("codes");
    add_node("LabelEncoder", {inputs_[i]}, {name},
             {{"keys_strings", texts}, {"values_int64s", codes}, {"default_int64", found->second.other}}, text_domain);
    names_[graph_.inputs[i]] = name;
  }
}

Name OnnxGraph::tensor(const torch::Tensor& tensor) {
  const auto name = new_name("constant");
  initializers_.push_back(tensor_message(name, tensor));
  return name;
}

Name OnnxGraph::ints(const std::vector<std::int64_t>& numbers) {
  auto& known = ints_[numbers];
  if (known.empty()) known = tensor(at::tensor(numbers, torch::kInt64));
  return known;
}

Name OnnxGraph::number(double number, torch::ScalarType dtype) {
  return tensor(at::scalar_tensor(number, torch::kFloat64).to(dtype));
}

Name OnnxGraph::name_of(std::size_t value) {
  if (const auto known = names_.find(value); known != names_.end()) return known->second;
  const auto& one = graph_.values[value];
  if (one.kind == Value::Kind::result) refuse("a value is used before it is made");
  total_ += one.tensor.nbytes();
  if (total_ > most_bytes) refuse("its weights have more than 2 GB, and an ONNX file has less; take --format pt2");
  const auto name = one.name.empty() ? new_name("constant") : unused(one.name);
  initializers_.push_back(tensor_message(name, one.tensor));
  return names_[value] = name;
}

Name OnnxGraph::sizes(const Sizes& sizes) {
  if (std::ranges::none_of(sizes, &Size::is_per_sample)) {
    std::vector<std::int64_t> numbers;
    for (const auto& size : sizes) numbers.push_back(size.number);
    return ints(numbers);
  }
  const auto shape = add("Shape", {batch_}, {{"start", std::int64_t{0}}, {"end", std::int64_t{1}}});
  Names parts;
  for (const auto& size : sizes) {
    parts.push_back(!size.is_per_sample ? ints({size.number})
                    : size.number == 1  ? shape
                                        : add("Mul", {shape, ints({size.number})}));
  }
  return add("Concat", parts, {{"axis", std::int64_t{0}}});
}

namespace {

Shape shape_of(const Value& value) {
  Shape shape;
  for (const auto& size : value.sizes) {
    if (!size.is_per_sample) shape.emplace_back(size.number);
    if (size.is_per_sample) {
      shape.emplace_back(size.number == 1 ? "batch" : std::to_string(size.number) + " * batch");
    }
  }
  return shape;
}

}  // namespace

Shape OnnxGraph::input_shape(std::size_t place) const {
  auto shape = shape_of(graph_.values[graph_.inputs[place]]);
  if (place > 0 || !model_.images) return shape;
  std::rotate(shape.end() - 3, shape.end() - 2, shape.end());
  if (model_.images->size > 0) shape.end()[-3] = "height", shape.end()[-2] = "width";
  return shape;
}

void OnnxGraph::put_inputs(Message& graph) const {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const auto dtype = graph_.values[graph_.inputs[i]].dtype();
    const bool is_text = model_.texts.contains(inputs_[i]);
    graph.message(11, input_message(inputs_[i], is_text ? onnx_text : onnx_dtype(dtype), input_shape(i)));
  }
}

void OnnxGraph::put_outputs(Message& graph) {
  const auto& value = graph_.values[graph_.output];
  const auto shape = shape_of(value);
  const auto output = name_of(graph_.output);
  add_node("Identity", {output}, {outputs_["output"]}, {});
  graph.message(12, input_message(outputs_["output"], onnx_dtype(value.dtype()), shape));
  if (model_.classes.empty()) return;
  const Shape both = {"batch", std::ssize(model_.classes)};
  if (shape != both) refuse("the names of the classes are for an output [samples, classes]");
  add_node("Softmax", {cast(output, torch::kFloat32)}, {outputs_["probabilities"]}, {{"axis", std::int64_t{1}}});
  const auto code =
      add("ArgMax", {outputs_["probabilities"]}, {{"axis", std::int64_t{1}}, {"keepdims", std::int64_t{0}}});
  // Logits that are NaN have no class. They get the text behind the names, which is "".
  const auto sum = add("ReduceSum", {outputs_["probabilities"], ints({1})}, {{"keepdims", std::int64_t{0}}});
  const auto place = add("Where", {add("IsNaN", {sum}), ints({std::ssize(model_.classes)}), code});
  auto names = model_.classes;
  names.emplace_back();
  const auto words = new_name("constant");
  initializers_.push_back(texts_message(words, names));
  add_node("Gather", {words, place}, {outputs_["class"]}, {{"axis", std::int64_t{0}}});
  graph.message(12, input_message(outputs_["class"], onnx_text, {shape[0]}));
  graph.message(12, input_message(outputs_["probabilities"], onnx_dtype(torch::kFloat32), shape));
}

std::string OnnxGraph::bytes() {
  Message graph, model;
  put_inputs(graph);
  put_outputs(graph);
  for (const auto& node : nodes_) graph.message(1, node);
  graph.text(2, "model");
  for (const auto& initializer : initializers_) graph.message(5, initializer);
  model.number(1, ir_version);
  model.text(2, "Vernier");
  model.text(3, VERNIER_VERSION);
  model.message(7, graph);
  const auto use = [&](const char* domain, int version) {
    Message operators;
    operators.text(1, domain), operators.number(2, version);
    model.message(8, operators);
  };
  use("", opset);
  if (!model_.texts.empty()) use(text_domain, text_opset);
  if (!model_.description.empty()) {
    Message metadata;
    metadata.text(1, "description"), metadata.text(2, model_.description);
    model.message(14, metadata);
  }
  return model.bytes();
}

bool has_rule(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const auto name = rule_name(op);
  if (name != "lstm") return all_rules().contains(name);
  const auto& states = torch::jit::peek(arguments, 1, op.schema().arguments().size());
  if (!states.isTensorList() || states.toListRef().size() != 2) return true;
  return states.toTensorVector()[0].size(-1) == states.toTensorVector()[1].size(-1);  // it has no projections
}

namespace {

void refuse_complex(const Graph& graph, const Call& call, const Node& node, const std::string& rule) {
  const auto is_complex = [&](std::size_t value) { return c10::isComplexType(graph.values[value].dtype()); };
  bool has_some = false;
  for (const auto& argument : node.arguments) {
    has_some = has_some || (argument.kind == Argument::Kind::value && is_complex(argument.value));
    for (const auto& item : argument.items) {
      has_some = has_some || (item.kind == Argument::Kind::value && is_complex(item.value));
    }
  }
  if (has_some && !takes_complex(rule)) {
    call.refuse("it computes with complex numbers; write it with torch.view_as_real()");
  }
}

}  // namespace

std::string onnx_bytes(const Graph& graph, const std::vector<std::string>& inputs, const ExportedModel& model) {
  std::map<std::string, std::pair<std::string, int>>
      unknown;  // the first place of each operator, and how many there are
  for (const auto& node : graph.nodes) {
    if (!all_rules().contains(rule_name(node.op)))
      ++unknown.try_emplace(rule_name(node.op), place(node), 0).first->second.second;
  }
  if (!unknown.empty()) {
    std::string all;
    for (const auto& [name, found] : unknown) {
      all += (all.empty() ? "" : ", ") + found.first;
      if (found.second > 1) all += " and " + std::to_string(found.second - 1) + " more";
    }
    refuse("there is no rule that writes by ONNX: " + all);
  }
  auto ends = graph.inputs;
  ends.push_back(graph.output);
  for (const auto end : ends) {
    if (c10::isComplexType(graph.values[end].dtype())) {
      refuse("ONNX has no complex numbers; take and return torch.view_as_real() of them");
    }
  }
  const auto wide = in_float32(graph);
  OnnxGraph onnx(wide, inputs, model);
  for (const auto& node : wide.nodes) {
    const auto name = rule_name(node.op);
    Call call(onnx, node, is_narrow(name));
    refuse_complex(wide, call, node, name);
    all_rules().at(name)(call);
  }
  return onnx.bytes();
}

std::size_t Call::place_of(const char* argument) const {
  const auto& arguments = node_.op.schema().arguments();
  const auto found = std::ranges::find(arguments, argument, &c10::Argument::name);
  return static_cast<std::size_t>(found - arguments.begin());
}

bool Call::has(const char* argument) const {
  const auto place = place_of(argument);
  if (place == node_.arguments.size()) return false;
  const auto& found = node_.arguments[place];
  return found.kind != Argument::Kind::constant || !found.constant.isNone();
}

const Argument& Call::at(const char* argument) const {
  if (!has(argument)) refuse(std::string("it lacks the argument '") + argument + "'");
  return node_.arguments[place_of(argument)];
}

std::size_t Call::value_index(const char* argument) const {
  const auto& found = at(argument);
  if (found.kind != Argument::Kind::value) refuse(std::string("its argument '") + argument + "' is not a tensor");
  return found.value;
}

const Value& Call::value(const char* argument) const {
  return onnx.value(value_index(argument));
}

std::vector<std::size_t> Call::values(const char* argument) const {
  std::vector<std::size_t> all;
  for (const auto& item : at(argument).items) {
    if (item.kind != Argument::Kind::value) refuse(std::string("its list '") + argument + "' has an empty place");
    all.push_back(item.value);
  }
  return all;
}

Name Call::name_of(std::size_t value) {
  const auto name = onnx.name_of(value);
  const auto dtype = onnx.value(value).dtype();
  return narrowed(dtype) == dtype ? name : onnx.cast(name, torch::kFloat32);
}

void Call::set(const Name& name, std::size_t place) {
  const auto dtype = result(place).dtype();
  onnx.set_name(slots(place).at(0), narrowed(dtype) == dtype ? name : onnx.cast(name, dtype));
}

Name Call::name(const char* argument, torch::ScalarType dtype) {
  const auto& found = at(argument);
  if (found.kind == Argument::Kind::size) return onnx.cast(onnx.sizes({found.size}), dtype);
  const bool is_constant = found.kind == Argument::Kind::constant;
  if (is_constant && !found.constant.isInt()) return onnx.number(real(argument), dtype);
  if (is_constant) return onnx.tensor(at::scalar_tensor(found.constant.toInt(), torch::kInt64).to(dtype));
  const auto& of = value(argument);
  if (of.dtype() == dtype) return name(argument);
  if (c10::isComplexType(dtype) && !c10::isComplexType(of.dtype())) {
    const auto real = onnx.add("Unsqueeze", {name(argument, c10::toRealValueType(dtype)), onnx.ints({-1})});
    return onnx.add("Mul", {real, onnx.tensor(at::scalar_tensor(1, dtype))});
  }
  return of.is_number() ? onnx.tensor(of.tensor.to(dtype)) : onnx.cast(onnx.name_of(value_index(argument)), dtype);
}

std::int64_t Call::integer(const char* argument) const {
  const auto& found = at(argument);
  if (found.kind != Argument::Kind::constant) refuse(std::string("'") + argument + "' depends on the batch");
  return found.constant.toScalar().toLong();
}

double Call::real(const char* argument) const {
  const auto& found = at(argument);
  if (found.kind == Argument::Kind::value && value(argument).is_number()) return value(argument).tensor.item<double>();
  if (found.kind != Argument::Kind::constant) refuse(std::string("'") + argument + "' is not a constant");
  if (found.constant.isBool()) return found.constant.toBool() ? 1 : 0;
  return found.constant.toScalar().toDouble();
}

bool Call::flag(const char* argument) const {
  return has(argument) && at(argument).constant.toBool();
}

std::string Call::text(const char* argument) const {
  return at(argument).constant.toStringRef();
}

std::vector<std::int64_t> Call::integers(const char* argument) const {
  const auto& found = at(argument);
  if (found.kind != Argument::Kind::constant) refuse(std::string("'") + argument + "' depends on the batch");
  if (found.constant.isInt()) return {found.constant.toInt()};
  return found.constant.toIntVector();
}

std::int64_t Call::dimension(const char* argument, std::size_t dimensions) const {
  const auto given = integer(argument);
  return given < 0 ? given + static_cast<std::int64_t>(dimensions) : given;
}

std::vector<std::int64_t> Call::dimensions(const char* argument, std::size_t of) const {
  std::vector<std::int64_t> all;
  if (has(argument)) all = integers(argument);
  for (auto& one : all) one = one < 0 ? one + static_cast<std::int64_t>(of) : one;
  if (!all.empty()) return all;
  for (std::size_t i = 0; i < of; ++i) all.push_back(static_cast<std::int64_t>(i));
  return all;
}

torch::Tensor Call::computed(const torch::Tensor& input) const {
  std::vector<c10::IValue> stack = {input};
  for (std::size_t i = 1; i < node_.arguments.size(); ++i) stack.push_back(node_.arguments[i].constant);
  node_.op.callBoxed(stack);
  return stack.at(0).toTensor();
}

void Call::refuse(const std::string& what) const {
  vernier::refuse("ONNX cannot have " + place(node_) + ": " + what);
}

}  // namespace vernier::graph
