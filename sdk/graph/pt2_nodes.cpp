#include "pt2_nodes.h"

#include <ATen/core/jit_type.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/graph/pt2_types.h>

#include <algorithm>
#include <cmath>

namespace vernier::graph {

namespace {

using nlohmann::json;

constexpr std::int64_t hint = 2;  // the samples of the captured batch

c10::TypePtr without_optional(const c10::TypePtr& type) {
  const auto* optional = type->castRaw<c10::OptionalType>();
  return optional != nullptr ? optional->getElementType() : type;
}

json expression(std::int64_t per_sample) {
  const std::string symbol = "Symbol('s0', positive=True, integer=True)";
  const auto text = per_sample == 1 ? symbol : c10::str("Mul(Integer(", per_sample, "), ", symbol, ")");
  return {{"as_expr", {{"expr_str", text}, {"hint", {{"as_int", per_sample * hint}}}}}};
}

json size_json(const Size& size) {
  return size.is_per_sample ? expression(size.number) : json{{"as_int", size.number}};
}

// JSON has no infinity: it is written as text.
json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

json scalar(const c10::Scalar& value) {
  if (value.isBoolean()) return {{"as_bool", value.toBool()}};
  if (value.isFloatingPoint()) return {{"as_float", number(value.toDouble())}};
  return {{"as_int", value.toLong()}};
}

json dtype_json(torch::ScalarType dtype) {
  const auto found = pt2::number_of(dtype);
  if (!found) refuse(std::string("a file of torch.export has no tensors of ") + c10::toString(dtype));
  return *found;
}

json device_json() {
  return {{"type", "cpu"}, {"index", nullptr}};
}

}  // namespace

Sizes fixed_sizes(const torch::Tensor& tensor) {
  Sizes sizes;
  for (const auto size : tensor.sizes()) sizes.push_back({size});
  return sizes;
}

json tensor_meta(const torch::Tensor& tensor, const Sizes& sizes, bool with_strides, bool requires_grad) {
  json meta = {{"dtype", dtype_json(tensor.scalar_type())},
               {"sizes", json::array()},
               {"requires_grad", requires_grad},
               {"device", device_json()},
               {"strides", json::array()},
               {"storage_offset", {{"as_int", 0}}},
               {"layout", pt2::strided}};
  Sizes strides(sizes.size());
  Size step{1};
  for (auto i = sizes.size(); i-- > 0;) {
    strides[i] = with_strides ? Size{tensor.stride(static_cast<std::int64_t>(i))} : step;
    step = {step.number * std::max<std::int64_t>(sizes[i].number, 1), step.is_per_sample || sizes[i].is_per_sample};
  }
  for (const auto& size : sizes) meta["sizes"].push_back(size_json(size));
  for (const auto& stride : strides) meta["strides"].push_back(size_json(stride));
  return meta;
}

void Pt2Nodes::write() {
  for (const auto& node : graph_.nodes) {
    auto inputs = inputs_of(node);  // before the node itself: it may add nodes of sizes
    auto target = node.name();
    std::replace(target.begin(), target.end(), ':', '.');
    target.erase(target.find(".."), 1);
    const auto& overload = node.op.schema().overload_name();
    json written = {{"target", "torch.ops." + target + "." + (overload.empty() ? "default" : overload)},
                    {"inputs", std::move(inputs)},
                    {"outputs", outputs_of(node)},
                    {"metadata", json::object()},
                    {"is_hop_single_tensor_return", nullptr}};
    // A node of one tensor has its name; another one has a name of its own.
    const bool is_one = written["outputs"].size() == 1 && written["outputs"][0].contains("as_tensor");
    written["name"] = is_one ? names_.at(node.results[0].at(0)) : c10::str("call_", nodes.size());
    auto stack = std::string("L__self__,,torch.nn.modules.module.Module");
    if (!node.layer.empty()) stack += ";L__self___layer," + node.layer + ",torch.nn.modules.module.Module";
    written["metadata"]["nn_module_stack"] = stack;
    nodes.push_back(std::move(written));
  }
}

json Pt2Nodes::inputs_of(const Node& node) {
  json inputs = json::array();
  const auto& schema = node.op.schema().arguments();
  reshapes_ = node.name() == "aten::view" || node.name() == "aten::reshape" || node.name() == "aten::_unsafe_view";
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const bool is_none = node.arguments[i].kind == Argument::Kind::constant && node.arguments[i].constant.isNone();
    if (is_none && schema[i].kwarg_only()) continue;  // one in the middle keeps the places of those after it
    inputs.push_back({{"name", schema[i].name()},
                      {"arg", argument(node.arguments[i], schema[i])},
                      {"kind", schema[i].kwarg_only() ? 2 : 1}});
  }
  return inputs;
}

json Pt2Nodes::tensor(std::size_t value) const {
  const auto& of = graph_.values[value];
  if (of.kind == Value::Kind::constant && of.tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return scalar(of.tensor.item());  // a number that Python would write as one
  }
  return {{"as_tensor", {{"name", names_.at(value)}}}};
}

json Pt2Nodes::argument(const Argument& argument, const c10::Argument& schema) {
  const auto type = without_optional(schema.real_type());
  switch (argument.kind) {
    case Argument::Kind::value:
      return tensor(argument.value);
    case Argument::Kind::size:
      return {{"as_sym_int", {{"as_name", symbol(argument.size.number)}}}};
    case Argument::Kind::list: {
      const auto* of = type->castRaw<c10::ListType>();
      return list(argument, of != nullptr ? of->getElementType() : type);
    }
    case Argument::Kind::constant:
      break;
  }
  return constant(argument.constant, type);
}

json Pt2Nodes::list(const Argument& list, const c10::TypePtr& element) {
  json all = json::array();
  if (element->kind() == c10::TypeKind::TensorType) {
    for (const auto& item : list.items) all.push_back({{"name", names_.at(item.value)}});
    return {{"as_tensors", all}};
  }
  if (element->kind() == c10::TypeKind::OptionalType) {
    for (const auto& item : list.items) {
      const bool is_none = item.kind == Argument::Kind::constant;
      all.push_back(is_none ? json{{"as_none", true}} : json{{"as_tensor", {{"name", names_.at(item.value)}}}});
    }
    return {{"as_optional_tensors", all}};
  }
  if (reshapes_) {  // one size may be left over: -1
    json plain = json::array();
    for (const auto& item : list.items) {
      const bool is_size = item.kind == Argument::Kind::size;
      plain.push_back(is_size ? -1 : item.constant.toInt());
    }
    if (std::ranges::count(plain, json(-1)) == 1 && std::ranges::count(plain, json(0)) == 0)
      return {{"as_ints", plain}};
  }
  for (const auto& item : list.items) {
    all.push_back(item.kind == Argument::Kind::size ? json{{"as_name", symbol(item.size.number)}}
                                                    : json{{"as_int", item.constant.toInt()}});
  }
  return {{"as_sym_ints", all}};
}

json Pt2Nodes::constant(const c10::IValue& value, const c10::TypePtr& type) const {
  if (value.isNone()) return {{"as_none", true}};
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return {{"as_scalar_type", dtype_json(static_cast<torch::ScalarType>(value.toInt()))}};
    case c10::TypeKind::LayoutType:
      return {{"as_layout", pt2::strided}};
    case c10::TypeKind::MemoryFormatType:
      for (int number = 1; number <= 4; ++number) {
        if (pt2::memory_format_of(number) == value.toMemoryFormat()) return {{"as_memory_format", number}};
      }
      return {{"as_none", true}};
    case c10::TypeKind::DeviceObjType:
      return {{"as_device", device_json()}};
    default:
      break;
  }
  if (value.isString()) return {{"as_string", value.toStringRef()}};
  if (value.isIntList()) return {{"as_ints", value.toIntVector()}};
  if (value.isBoolList()) {
    json all = json::array();
    for (const bool one : value.toBoolList()) all.push_back(one);
    return {{"as_bools", all}};
  }
  if (value.isDoubleList()) {
    json all = json::array();
    for (const double one : value.toDoubleVector()) all.push_back(number(one));
    return {{"as_floats", all}};
  }
  if (value.isList()) return {{"as_ints", json::array()}};
  return scalar(value.isBool() ? c10::Scalar(value.toBool()) : value.toScalar());
}

json Pt2Nodes::outputs_of(const Node& node) {
  const auto short_name = node.name().substr(node.name().rfind(':') + 1);
  json outputs = json::array();
  const auto add = [&](std::size_t slot) {
    const auto number = count_[short_name]++;
    names_[slot] = number == 0 ? "v_" + short_name : c10::str("v_", short_name, "_", number);
    const auto& value = graph_.values[slot];
    tensor_values[names_[slot]] = tensor_meta(value.tensor, value.sizes, /*with_strides=*/false, false);
    return json{{"name", names_[slot]}};
  };
  for (std::size_t i = 0; i < node.results.size(); ++i) {
    const bool is_list = node.op.schema().returns()[i].type()->kind() == c10::TypeKind::ListType;
    json list = json::array();
    for (const auto slot : node.results[i]) list.push_back(add(slot));
    if (is_list) outputs.push_back({{"as_tensors", list}});
    if (!is_list && !list.empty()) outputs.push_back({{"as_tensor", list[0]}});
  }
  return outputs;
}

std::string Pt2Nodes::symbol(std::int64_t per_sample) {
  auto& known = symbols_[per_sample];
  if (!known.empty()) return known;
  json node = {{"metadata", json::object()}, {"is_hop_single_tensor_return", nullptr}};
  if (per_sample == 1) {
    known = "sym_size_int";
    node["target"] = "torch.ops.aten.sym_size.int";
    const json first = {{"as_tensor", {{"name", names_.at(graph_.inputs.at(0))}}}};
    node["inputs"] = json::array(
        {{{"name", "self"}, {"arg", first}, {"kind", 1}}, {{"name", "dim"}, {"arg", {{"as_int", 0}}}, {"kind", 1}}});
  } else {
    const auto one = symbol(1);
    known = c10::str("mul_", per_sample);
    node["target"] = "_operator.mul";
    node["inputs"] = json::array({{{"name", ""}, {"arg", {{"as_sym_int", {{"as_name", one}}}}}, {"kind", 1}},
                                  {{"name", ""}, {"arg", {{"as_int", per_sample}}}, {"kind", 1}}});
  }
  node["outputs"] = json::array({{{"as_sym_int", {{"as_name", known}}}}});
  node["name"] = known;
  sym_int_values[known] = expression(per_sample);
  nodes.push_back(std::move(node));
  return known;
}

}  // namespace vernier::graph
