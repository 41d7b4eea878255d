#include "program.h"

#include <ATen/core/jit_type.h>
#include <c10/util/StringUtil.h>
#include <vernier/error.h>
#include <vernier/graph/pt2_types.h>
#include <vernier/json_in.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "arithmetic.h"
#include "collectives.h"
#include "guards.h"
#include "operators.h"
#include "values.h"

namespace graph {

namespace {

using nlohmann::json;
using vernier::pt2::dtype_of;
using vernier::pt2::memory_format_of;
using vernier::pt2::schema_version;
using vernier::pt2::strided;

constexpr int most_nested = 8;
constexpr std::size_t most_nodes = 1'000'000;

// The one entry of a union: {"as_tensor": {…}}.
std::pair<std::string, const json&> entry_of(const Archive& archive, const json& one) {
  if (!one.is_object() || one.size() != 1) archive.refuse("an argument is not a union of one value");
  return {one.begin().key(), one.begin().value()};
}

// JSON has no infinity: it is written as text.
double number_of(const json& value) {
  if (!value.is_string()) return value.get<double>();
  const auto text = value.get<std::string>();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

// The module whose forward() made a node: the name and the class of the last one of
// "L__self__,,…;L__self___layers,layers.0,torch.nn.…".
std::pair<std::string, std::string> layer_of(const json& node) {
  const auto stack = node.value("metadata", json::object()).value("nn_module_stack", std::string());
  const auto last = stack.substr(stack.rfind(';') + 1);
  const auto first = last.find(','), second = last.find(',', first + 1);
  if (second == std::string::npos) return {};
  return {last.substr(first + 1, second - first - 1), last.substr(second + 1)};
}

// Gives inputs the names that the program has for them: "d_a.size()[0]" for "L['d']['a'].size()[0]".
std::string with_names_of_inputs(const std::string& guard) {
  std::string text;
  for (std::size_t i = 0; i < guard.size(); ++i) {
    if (guard.compare(i, 2, "L[") != 0) {
      text += guard[i];
      continue;
    }
    const auto begin = text.size();
    for (++i; i < guard.size() && guard[i] == '['; ++i) {
      const auto end = std::min(guard.find(']', i), guard.size());
      if (text.size() > begin) text += '_';
      for (++i; i < end; ++i) {
        if (guard[i] != '\'' && guard[i] != '"')
          text += std::isalnum(static_cast<unsigned char>(guard[i])) != 0 ? guard[i] : '_';
      }
    }
    --i;
  }
  return text;
}

c10::TypePtr without_optional(const c10::TypePtr& type) {
  const auto* optional = type ? type->castRaw<c10::OptionalType>() : nullptr;
  return optional != nullptr ? optional->getElementType() : type;
}

class Reader {
 public:
  explicit Reader(Archive& archive) : archive_(archive) {}

  Program read(const json& file, bool switches) {
    check_kind(file);
    const auto& module = file.at("graph_module");
    Program program;
    // Names count in the whole graph; nested graphs have their own.
    Names names;
    program.graph = read_graph(module.at("graph"), names, 0);
    read_inputs(module, names, program);
    read_outputs(module, program);
    read_guards(file, program);
    refuse_unknown();
    program.has_writes = has_writes_;
    if (switches) mark_evaluation(program.graph, program);
    find_last_uses(program.graph);
    return program;
  }

 private:
  using Names = std::unordered_map<std::string, Slot>;

  void check_kind(const json& file) {
    const auto major = file.at("schema_version").at("major").get<int>();
    if (major != schema_version) {
      archive_.refuse(c10::str("it has version ", major, " of the format, and version ", schema_version,
                               " is read; export it with PyTorch 2.11"));
    }
    for (const auto& verifier : file.value("verifiers", json::array())) {
      if (verifier == "TRAINING") return;
    }
    archive_.refuse("it is not a training program; do not call run_decompositions() before torch.export.save()");
  }

  static Slot slot_of(Graph& graph, Names& names, const std::string& name) {
    const auto [place, is_new] = names.try_emplace(name, graph.slots);
    if (is_new) ++graph.slots;
    return place->second;
  }

  Slot known_slot(const Names& names, const std::string& name) const {
    const auto found = names.find(name);
    if (found == names.end()) archive_.refuse("it reads the value '" + name + "' before that is made");
    return found->second;
  }

  Graph read_graph(const json& from, Names& names, int depth) {
    if (depth > most_nested) archive_.refuse("its graphs are nested too deeply");
    Graph graph;
    for (const auto& input : from.at("inputs")) {
      const auto [kind, value] = entry_of(archive_, input);
      const bool has_name = value.is_object() && (value.contains("name") || value.contains("as_name"));
      const auto name = !has_name                ? std::string()
                        : value.contains("name") ? value.at("name").get<std::string>()
                                                 : value.at("as_name").get<std::string>();
      graph.inputs.push_back(has_name ? slot_of(graph, names, name) : no_slot);
    }
    for (const auto& node : from.at("nodes")) {
      if (++nodes_ > most_nodes) archive_.refuse("it has too many nodes");
      read_node(graph, names, node, depth);
    }
    for (const auto& output : from.at("outputs")) graph.outputs.push_back(read_argument(names, output, nullptr));
    return graph;
  }

  void read_node(Graph& graph, Names& names, const json& from, int depth) {
    auto target = from.at("target").get<std::string>();
    if (target.starts_with("torch.ops.")) target = target.substr(10);
    if (target.starts_with("aten._assert_tensor_metadata")) return;  // autocast gives other dtypes
    Node node;
    const auto [layer, kind] = layer_of(from);
    node.is_of_torch = kind.starts_with("torch.nn.");
    node.name = vernier::printable(target + (layer.empty() ? "" : " of '" + layer + "'"));
    if (target.starts_with("higher_order.")) {
      read_higher_order(node, target, names, from, depth);
    } else if ((node.arithmetic = arithmetic_of(target)) != nullptr) {
      node.kind = Node::Kind::arithmetic;
      for (const auto& input : from.at("inputs")) {
        node.arguments.push_back(read_argument(names, input.at("arg"), nullptr));
      }
    } else {
      read_call(node, target, names, from);
    }
    for (const auto& output : from.at("outputs")) node.outputs.push_back(read_output(graph, names, output));
    const bool is_short = node.op && node.op->schema().returns().size() != node.outputs.size() && !node.outputs.empty();
    if (is_short) archive_.refuse(node.name + " returns another number of values than its operator");
    graph.nodes.push_back(std::move(node));
  }

  void read_call(Node& node, const std::string& target, const Names& names, const json& from) {
    node.op = operator_of(target);
    const auto* rule = node.op ? rule_of(target) : nullptr;
    if (rule == nullptr) {  // the refusal names all of these operators
      (node.op && !is_of_library(target) ? unlisted_ : unknown_).insert(target);
      return node.op.reset();
    }
    node.rule = *rule;
    has_writes_ = has_writes_ || node.op->schema().is_mutable();
    std::map<std::string, const json*> given;
    for (const auto& input : from.at("inputs")) given[input.at("name").get<std::string>()] = &input.at("arg");
    for (const auto& argument : node.op->schema().arguments()) {
      if (const auto found = given.find(argument.name()); found != given.end()) {
        place_ = "the argument '" + argument.name() + "' of " + node.name + " ";
        const auto& read = node.arguments.emplace_back(read_argument(names, *found->second, argument.real_type()));
        if (read.kind == Argument::Kind::constant && !is_of_type(read.value, argument.real_type()))
          archive_.refuse(place_ + "is " + read.value.tagKind() + ", and the operator takes " +
                          argument.real_type()->str());
        place_.clear();
        given.erase(found);
      } else if (argument.default_value()) {
        node.arguments.push_back({.value = *argument.default_value()});
      } else {
        archive_.refuse(node.name + " lacks the argument '" + argument.name() + "'");
      }
    }
    if (is_collective(target)) refuse_troubled(node);
    if (!given.empty())
      archive_.refuse(node.name + " has the argument '" + given.begin()->first + "', which LibTorch lacks");
  }

  void refuse_troubled(const Node& node) const {
    std::map<std::string, IValue> constants;
    for (std::size_t i = 0; i < node.arguments.size(); ++i) {
      const auto& name = node.op->schema().arguments()[i].name();
      const bool is_constant = node.arguments[i].kind == Argument::Kind::constant;
      if (is_constant) constants[name] = node.arguments[i].value;
      if (i > 0 && !is_constant) {
        archive_.refuse(node.name + " computes its argument '" + name + "', which must be a constant");
      }
    }
    if (const auto trouble = trouble_with_collective(constants); !trouble.empty()) {
      archive_.refuse(node.name + " " + trouble);
    }
  }

  // The lists of a loop: the values that a round gives to the next, the tensors of which it takes a row, and the rest.
  static bool has_parts_of_loop(const Node& node) {
    const auto results = node.graphs.empty() ? 0 : node.graphs.back()->outputs.size();
    switch (node.kind) {
      case Node::Kind::while_loop:
        return node.lists.size() == 2 && results == node.lists[0] && node.graphs[0]->outputs.size() == 1;
      case Node::Kind::scan:
        return node.lists.size() == 3 && results >= node.lists[0] && node.lists[1] > 0;
      case Node::Kind::map:
        return node.lists.size() == 2 && node.lists[0] > 0;
      default:
        return true;
    }
  }

  // A graph that is called for another one's values. The first arguments say how; the rest are its inputs.
  void read_higher_order(Node& node, const std::string& target, Names& names, const json& from, int depth) {
    // The types of the facts. A decision may be a tensor or a number.
    std::vector<c10::TypePtr> types;
    if (target == "higher_order.cond") {
      node.kind = Node::Kind::cond;
      types = {nullptr};
    } else if (target == "higher_order.wrap_with_set_grad_enabled") {
      node.kind = Node::Kind::set_grad;
      types = {c10::BoolType::get()};
    } else if (target == "higher_order.wrap_with_autocast") {
      node.kind = Node::Kind::autocast;
      types = {c10::StringType::get(), c10::OptionalType::create(c10::ScalarTypeType::get()), c10::BoolType::get(),
               c10::OptionalType::create(c10::BoolType::get())};
    } else if (target == "higher_order.while_loop") {
      node.kind = Node::Kind::while_loop;
    } else if (target == "higher_order.scan") {
      node.kind = Node::Kind::scan;
    } else if (target == "higher_order.map_impl") {
      node.kind = Node::Kind::map;
    } else {
      return void(unknown_.insert(target));
    }
    for (const auto& input : from.at("inputs")) {
      const auto [kind, value] = entry_of(archive_, input.at("arg"));
      if (kind == "as_graph") {
        Names inner;
        node.graphs.push_back(std::make_shared<Graph>(read_graph(value.at("graph"), inner, depth + 1)));
      } else if (kind == "as_tensors" || kind == "as_sym_ints" || (value.is_array() && value.empty())) {
        node.lists.push_back(value.size());
        for (const auto& one : value) {
          const auto name = one.contains("name") ? one.at("name") : one.at("as_name");
          node.arguments.push_back({.kind = Argument::Kind::slot, .slot = known_slot(names, name.get<std::string>())});
        }
      } else {
        const auto type = node.arguments.size() < types.size() ? types[node.arguments.size()] : nullptr;
        place_ = "an argument of " + node.name + " ";
        node.arguments.push_back(read_argument(names, input.at("arg"), type));
        place_.clear();
      }
    }
    const std::size_t graphs = node.kind == Node::Kind::cond || node.kind == Node::Kind::while_loop ? 2 : 1;
    const std::size_t facts = types.size();
    if (node.graphs.size() != graphs || node.arguments.size() < facts || !has_parts_of_loop(node))
      archive_.refuse(node.name + " is incomplete");
    for (std::size_t i = 0; i < facts; ++i) {
      const auto& given = node.arguments[i];
      if (types[i] && (given.kind != Argument::Kind::constant || !is_of_type(given.value, types[i])))
        archive_.refuse(node.name + " has another argument than " + types[i]->str());
    }
    for (const auto& graph : node.graphs) {
      if (graph->inputs.size() != node.arguments.size() - facts) {
        archive_.refuse(node.name + " calls a graph with another number of values than it takes");
      }
    }
  }

  std::vector<Slot> read_output(Graph& graph, Names& names, const json& output) {
    const auto [kind, value] = entry_of(archive_, output);
    std::vector<Slot> slots;
    const auto add = [&](const json& one) {
      const auto* name = one.contains("name")      ? &one.at("name")
                         : one.contains("as_name") ? &one.at("as_name")
                                                   : nullptr;
      slots.push_back(name == nullptr ? no_slot : slot_of(graph, names, name->get<std::string>()));
    };
    if (kind == "as_tensors" || kind == "as_sym_ints") {
      for (const auto& one : value) add(one);
    } else if (kind == "as_optional_tensors") {
      for (const auto& one : value) add(one.contains("as_tensor") ? one.at("as_tensor") : json::object());
    } else if (kind == "as_optional_tensor") {
      add(value.contains("as_tensor") ? value.at("as_tensor") : json::object());
    } else {
      add(value.is_object() ? value : json::object());
    }
    return slots;
  }

  Argument slot_argument(const Names& names, const json& name, const c10::TypePtr& type) const {
    if (is_word(type)) archive_.refuse(place_ + "is computed, and must be in the file");
    return {.kind = Argument::Kind::slot, .slot = known_slot(names, name.get<std::string>()), .type = type};
  }

  Argument list_argument(const Names& names, const std::string& kind, const json& value, const c10::TypePtr& type,
                         int depth) const {
    Argument list{.kind = Argument::Kind::list};
    const auto* as_list = type ? type->castRaw<c10::ListType>() : nullptr;
    list.type = as_list != nullptr     ? as_list->getElementType()
                : kind == "as_tensors" ? c10::TypePtr(c10::TensorType::get())
                : kind == "as_floats"  ? c10::TypePtr(c10::FloatType::get())
                : kind == "as_bools"   ? c10::TypePtr(c10::BoolType::get())
                                       : c10::TypePtr(c10::IntType::get());
    bool is_constant = true;
    for (const auto& one : value) {
      Argument item;
      if (kind == "as_tensors") {
        item = slot_argument(names, one.at("name"), list.type);
      } else if (kind == "as_optional_tensors" || kind == "as_sym_ints" || kind == "as_sym_floats" ||
                 kind == "as_sym_bools") {
        item = one.contains("as_name") ? slot_argument(names, one.at("as_name"), list.type)
                                       : read_argument(names, one, list.type, depth + 1);
      } else if (!one.is_boolean() && !one.is_number() && !one.is_string()) {
        archive_.refuse(place_ + "has something else than numbers in its list");
      } else {
        item.value = one.is_boolean()          ? IValue(one.get<bool>())
                     : one.is_number_integer() ? IValue(one.get<std::int64_t>())
                                               : IValue(number_of(one));
      }
      is_constant = is_constant && item.kind == Argument::Kind::constant;
      list.items.push_back(std::move(item));
    }
    if (!is_constant) return list;
    std::vector<IValue> values;
    for (const auto& item : list.items) values.push_back(item.value);
    try {
      return {.value = list_of(values, list.type)};
    } catch (const vernier::Error& error) {
      archive_.refuse(place_ + "is " + error.what());
    }
  }

  Argument read_argument(const Names& names, const json& from, const c10::TypePtr& schema_type, int depth = 0) const {
    if (depth > most_nested) archive_.refuse(place_ + "is nested too deeply");
    const auto [kind, value] = entry_of(archive_, from);
    const auto type = without_optional(schema_type);
    if (kind == "as_none") return {};
    if (kind == "as_tensor") return slot_argument(names, value.at("name"), type);
    if (kind == "as_sym_int" || kind == "as_sym_bool" || kind == "as_sym_float") {
      if (value.contains("as_name")) return slot_argument(names, value.at("as_name"), type);
      return read_argument(names, value, type, depth + 1);
    }
    if (kind == "as_optional_tensor") return read_argument(names, value, type, depth + 1);
    if (kind == "as_int" && is_word(type)) archive_.refuse(place_ + "is a number, and must be " + type->str());
    if (kind == "as_int") return {.value = fitted(value.get<std::int64_t>(), type)};
    if (kind == "as_float") return {.value = fitted(number_of(value), type)};
    if (kind == "as_bool") return {.value = fitted(value.get<bool>(), type)};
    if (kind == "as_string") return {.value = value.get<std::string>()};
    if (kind == "as_device") return {.kind = Argument::Kind::device};
    if (kind == "as_layout") {
      if (value.get<int>() != strided) archive_.refuse("it makes sparse tensors, which are not trained here");
      return {.value = c10::kStrided};
    }
    if (kind == "as_scalar_type") {
      const auto dtype = dtype_of(value.get<int>());
      if (!dtype) archive_.refuse("it has a dtype that LibTorch does not have");
      return {.value = *dtype};
    }
    if (kind == "as_memory_format") {
      const auto format = memory_format_of(value.get<int>());
      if (!format) archive_.refuse("it has a memory format that LibTorch does not have");
      return {.value = *format};
    }
    static const std::set<std::string> lists = {"as_tensors", "as_optional_tensors", "as_ints",      "as_floats",
                                                "as_bools",   "as_sym_ints",         "as_sym_bools", "as_sym_floats"};
    if (lists.contains(kind)) return list_argument(names, kind, value, type, depth);
    archive_.refuse("it has an argument of the kind " + kind + ", which is not read");
  }

  // The tensors that the module and the user give, in the order of the graph's inputs.
  void read_inputs(const json& module, const Names& names, Program& program) {
    const auto& values = module.at("graph").at("tensor_values");
    for (const auto& spec : module.at("signature").at("input_specs")) {
      const auto [kind, value] = entry_of(archive_, spec);
      Input input;
      if (kind == "constant_input") continue;  // None, or a number that the graph has already
      if (kind == "custom_obj" || kind == "token") archive_.refuse("it needs objects of its own kind (" + kind + ")");
      const json argument = kind == "user_input" ? value.at("arg") : json{{"as_tensor", value.at("arg")}};
      const auto [form, tensor] = entry_of(archive_, argument);
      if (form != "as_tensor") {
        if (form == "as_none") continue;
        archive_.refuse("forward() takes a number (" + form +
                        "), and the task gives tensors alone; give it as a tensor, or build it into the model");
      }
      const auto name = tensor.at("name").get<std::string>();
      input.slot = known_slot(names, name);
      if (kind == "user_input") {
        input.name = name;
        const auto& meta = values.at(name);
        const auto dtype = dtype_of(meta.at("dtype").get<int>());
        if (!dtype) archive_.refuse("its input '" + name + "' has a dtype that LibTorch does not have");
        input.dtype = *dtype;
        for (const auto& size : meta.at("sizes")) {
          input.sizes.push_back(size.contains("as_int") ? std::optional(size.at("as_int").get<std::int64_t>())
                                                        : std::nullopt);
        }
      } else {
        input.kind = kind == "parameter" ? Input::Kind::parameter
                     : kind == "buffer"  ? Input::Kind::buffer
                                         : Input::Kind::constant;
        input.name = value.at(kind == "tensor_constant" ? "tensor_constant_name" : kind + "_name").get<std::string>();
        input.is_persistent = input.kind != Input::Kind::constant && value.value("persistent", true);
      }
      if (vernier::printable(input.name) != input.name)
        archive_.refuse("the name of '" + input.name + "' cannot be printed");
      program.inputs.push_back(std::move(input));
    }
  }

  void read_guards(const json& file, Program& program) const {
    for (const auto& guard : file.value("guards_code", json::array())) {
      program.guards.push_back(with_names_of_inputs(guard.get<std::string>()));
    }
    // Ranges have the names of symbols. What is exported for two samples or more is called with one, too.
    const auto& values = file.at("graph_module").at("graph").at("tensor_values");
    const auto ranges = file.value("range_constraints", json::object());
    for (const auto& input : program.inputs) {
      for (std::size_t i = 0; i < input.sizes.size(); ++i) {
        if (input.sizes[i]) continue;
        const auto expression = values.at(input.name).at("sizes")[i].at("as_expr").at("expr_str").get<std::string>();
        for (const auto& [symbol, range] : ranges.items()) {
          if (!expression.starts_with("Symbol('" + symbol + "'")) continue;
          const auto size = c10::str(input.name, ".size()[", i, "]");
          const auto least = range.value("min_val", json()), most = range.value("max_val", json());
          if (least.is_number_integer() && least > 2) program.guards.push_back(size + " >= " + least.dump());
          if (most.is_number_integer()) program.guards.push_back(size + " <= " + most.dump());
        }
      }
    }
  }

  void read_outputs(const json& module, Program& program) {
    for (const auto& spec : module.at("signature").at("output_specs")) {
      const auto [kind, value] = entry_of(archive_, spec);
      if (kind != "user_output" && kind != "loss_output") {
        archive_.refuse("it returns a " + kind + "; export it with torch.export.export alone, without further passes");
      }
    }
    const auto& calls = module.at("module_call_graph");
    const auto count = program.graph.outputs.size();
    program.outputs = names_of_outputs(module, calls.empty() ? json() : calls.at(0).value("signature", json()), count);
  }

  // Adds the names of the tensors of a tree, such as "logits" and "hidden_states.0": keys of dicts and dataclasses,
  // fields of named tuples, and places. fields: of each named tuple.
  static void add_leaves(const json& spec, const json& fields, const std::string& name,
                         std::vector<std::string>& names) {
    if (spec.value("type", json()).is_null()) return names.push_back(name.empty() ? "0" : name);
    const auto children = spec.value("children_spec", json::array());
    const auto context = spec.value("context", json());
    auto keys = context.is_string() ? vernier::json_in<json>(context.get<std::string>(), most_nested) : json();
    if (keys.is_string()) keys = fields.value(keys.get<std::string>(), json());
    if (keys.is_object()) keys = keys.value("field_names", json());
    const auto fits = [&](const json& list) { return list.is_array() && list.size() == children.size(); };
    if (keys.is_array()) {  // a dataclass has the fields that are None beside the others, a defaultdict its factory
      for (const auto& part : json(keys)) {
        if (fits(part)) keys = part;
      }
    }
    for (std::size_t i = 0; i < children.size(); ++i) {
      const auto key = !fits(keys)           ? std::to_string(i)
                       : keys[i].is_string() ? keys[i].get<std::string>()
                                             : keys[i].dump();
      add_leaves(children[i], fields, name.empty() ? key : name + "." + key, names);
    }
  }

  static std::vector<std::string> names_of_outputs(const json& module, const json& signature, std::size_t count) {
    std::vector<std::string> names;
    if (signature.is_object()) {
      const auto spec = vernier::json_in<json>(signature.value("out_spec", std::string()), 4 * most_nested);
      const bool is_tree = spec.is_array() && spec.size() == 2 && spec[1].is_object();
      if (is_tree) add_leaves(spec[1], module.value("treespec_namedtuple_fields", json::object()), "", names);
    }
    if (names.size() != count) names.clear();
    for (auto i = names.size(); i < count; ++i) names.push_back(std::to_string(i));
    return names;
  }

  void refuse_unknown() const {
    std::set<std::string> missing, foreign, calls, collectives;
    auto unlisted = unlisted_;
    for (const auto& name : unlisted_) {
      if (name.starts_with("_c10d_functional")) collectives.insert(unlisted.extract(name));
    }
    for (const auto& name : unknown_) {
      (name.starts_with("aten.") ? missing : name.starts_with("higher_order.") ? calls : foreign).insert(name);
    }
    std::string text;
    const auto say = [&](const std::set<std::string>& names, const char* what) {
      std::string all;
      for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
      if (!names.empty()) text += (text.empty() ? "" : "; ") + all + ": " + what;
    };
    say(missing, "this LibTorch has no such operators");
    say(calls,
        "calls of graphs, which are not run here; write torch.cond, while_loop, scan or map, or a loop of Python "
        "over a number that does not depend on the batch, as in for i in range(8)");
    std::set<std::string> experts;  // transformers has another form of them, of LibTorch's operators
    for (const auto& name : foreign) {
      if (name.find("grouped_mm") != std::string::npos) experts.insert(name);
    }
    for (const auto& name : experts) foreign.erase(name);
    say(experts,
        "a product of a mixture of experts, which LibTorch does not have; export the model with "
        "config._experts_implementation = \"batched_mm\", as from_pretrained(…, experts_implementation=\"batched_mm\") "
        "sets it");
    say(foreign,
        "no named library has registered them; name the one that does, as in [task] operators = [\"libmine.so\"]");
    say(collectives,
        "collectives without a gradient here; write them by all_reduce(…, \"sum\", …), all_gather_tensor() and "
        "reduce_scatter_tensor() of torch.distributed._functional_collectives");
    say(unlisted,
        "LibTorch has them, but a graph is data, and they are not on the list of operators that are safe with "
        "arguments "
        "of a stranger (plugins/task/graph/operators.inc)");
    if (!text.empty()) archive_.refuse("it calls what a graph may not call; write the model without it: " + text);
  }

  // Marks what torch.nn does otherwise in evaluation mode: dropout, batch normalisation and their count of batches.
  void mark_evaluation(Graph& graph, Program& program) const {
    std::set<Slot> counts;
    for (const auto& input : program.inputs) {
      if (input.kind == Input::Kind::buffer && input.name.ends_with("num_batches_tracked")) counts.insert(input.slot);
    }
    mark_nodes(graph, counts, program);
  }

  static void mark_nodes(Graph& graph, const std::set<Slot>& counts, Program& program) {
    for (auto& node : graph.nodes) {
      for (const auto& inner : node.graphs) mark_nodes(*inner, {}, program);
      if (!node.op) continue;
      const auto& schema = node.op->schema();
      const auto& name = schema.name();
      if (name == "aten::add_" && counts.contains(node.arguments[0].slot)) node.only_in_training = true;
      for (std::size_t i = 0; i < node.arguments.size(); ++i) {
        const auto& argument = node.arguments[i];
        const auto& of = schema.arguments()[i].name();
        if (argument.kind != Argument::Kind::constant) continue;
        if (of == "dropout_p" && argument.value.isDouble() && argument.value.toDouble() > 0) {
          node.in_evaluation.emplace_back(i, 0.0);
        } else if ((of == "train" || of == "training" || of == "use_input_stats") &&
                   (argument.value.isBool() || argument.value.isNone())) {  // None: true
          // Normalisation without running statistics uses the batch's always.
          if (name.ends_with("_norm") && node.arguments[3].kind == Argument::Kind::constant) continue;
          const bool is_on = argument.value.isNone() || argument.value.toBool();
          (is_on ? program.has_training_nodes : program.has_idle_nodes) = true;
          if (is_on) node.in_evaluation.emplace_back(i, false);
        }
      }
      if (!node.in_evaluation.empty() && !node.is_of_torch && program.guessed.empty()) program.guessed = node.name;
    }
  }

  static void collect(const Argument& argument, std::vector<Slot>& slots) {
    if (argument.kind == Argument::Kind::slot) slots.push_back(argument.slot);
    for (const auto& item : argument.items) collect(item, slots);
  }

  static void find_last_uses(Graph& graph) {
    std::vector<bool> is_used(static_cast<std::size_t>(graph.slots));
    std::vector<Slot> slots;
    for (const auto& output : graph.outputs) collect(output, slots);
    for (const auto slot : slots) is_used[static_cast<std::size_t>(slot)] = true;
    for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
      for (const auto& inner : node->graphs) find_last_uses(*inner);
      slots.clear();
      for (const auto& argument : node->arguments) collect(argument, slots);
      for (const auto& output : node->outputs) slots.insert(slots.end(), output.begin(), output.end());
      for (const auto slot : slots) {
        if (slot == no_slot || is_used[static_cast<std::size_t>(slot)]) continue;
        is_used[static_cast<std::size_t>(slot)] = true;
        node->last_used.push_back(slot);
      }
    }
  }

  Archive& archive_;
  std::set<std::string> unknown_, unlisted_;  // operators: LibTorch lacks them; it has them, but they are not allowed
  std::string place_;                         // the argument that is read, for messages
  std::size_t nodes_ = 0;
  bool has_writes_ = false;
};

}  // namespace

Program program_of(Archive& archive, const json& file, bool switches) {
  try {
    return Reader(archive).read(file, switches);
  } catch (const nlohmann::json::exception& error) {
    archive.refuse("its program is damaged (" + vernier::message(error) + ")");
  }
}

}  // namespace graph
