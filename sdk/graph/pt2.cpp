#include "pt2.h"

#include <caffe2/serialize/inline_container.h>
#include <torch/version.h>
#include <vernier/graph/pt2_types.h>

#include <set>

#include "pt2_nodes.h"

namespace vernier::graph {

namespace {

using nlohmann::json;

constexpr int minor_version = 17;

// The file: records of a zip.
class Pt2File {
 public:
  Pt2File(const Graph& graph, const std::vector<std::string>& inputs) : graph_(graph), inputs_(inputs) {}

  std::string bytes() {
    const auto names = name_inputs();
    Pt2Nodes nodes(graph_, names);
    nodes.write();
    json values = std::move(nodes.tensor_values);
    for (const auto& [value, name] : names) values[name] = meta_of(value);
    const json output = {{"as_tensor", {{"name", nodes.name_of(graph_.output)}}}};
    json graph = {{"inputs", graph_inputs_},
                  {"outputs", json::array({output})},
                  {"nodes", nodes.nodes},
                  {"tensor_values", values},
                  {"sym_int_values", nodes.sym_int_values},
                  {"sym_bool_values", json::object()},
                  {"is_single_tensor_return", false},
                  {"custom_obj_values", json::object()},
                  {"sym_float_values", json::object()}};
    const json outputs = json::array({{{"user_output", {{"arg", output}}}}});
    const json module = {{"graph", std::move(graph)},
                         {"signature", {{"input_specs", specs_}, {"output_specs", outputs}}},
                         {"module_call_graph", calls()},
                         {"metadata", json::object()},
                         {"treespec_namedtuple_fields", json::object()}};
    const json program = {{"graph_module", module},
                          {"opset_version", {{"aten", 10}}},
                          {"range_constraints", {{"s0", {{"min_val", 1}, {"max_val", nullptr}}}}},
                          {"schema_version", {{"major", pt2::schema_version}, {"minor", minor_version}}},
                          {"verifiers", {"TRAINING"}},
                          {"torch_version", TORCH_VERSION},
                          {"guards_code", json::array()}};
    return zipped(program);
  }

 private:
  json meta_of(std::size_t index) const {
    const auto& value = graph_.values[index];
    const bool is_input = value.kind == Value::Kind::input;
    return tensor_meta(value.tensor, value.sizes, !is_input, is_input ? false : value.tensor.requires_grad());
  }

  // Gives each parameter, buffer, constant and input a name in the graph, in this order.
  std::map<std::size_t, std::string> name_inputs() {
    std::map<std::size_t, std::string> names;
    std::set<std::string> taken;
    const auto take = [&](std::size_t index, std::string name) {
      for (auto& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      while (!taken.insert(name).second) name += '_';
      graph_inputs_.push_back({{"as_tensor", {{"name", name}}}});
      names[index] = name;
      return json{{"name", name}};
    };
    std::vector<std::size_t> constants;
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      const auto& value = graph_.values[i];
      if (value.kind == Value::Kind::parameter) {
        specs_.push_back({{"parameter", {{"arg", take(i, "p_" + value.name)}, {"parameter_name", value.name}}}});
      } else if (value.kind == Value::Kind::buffer) {
        specs_.push_back(
            {{"buffer", {{"arg", take(i, "b_" + value.name)}, {"buffer_name", value.name}, {"persistent", true}}}});
      } else if (value.kind == Value::Kind::constant) {
        constants.push_back(i);
      }
      if (value.kind == Value::Kind::parameter || value.kind == Value::Kind::buffer) {
        keep(weights_, "weight_", value.name, value.tensor, value.kind == Value::Kind::parameter);
      }
    }
    const auto used = used_values();
    for (const auto i : constants) {
      if (!used.contains(i)) continue;
      const auto name = "constant_" + std::to_string(constants_.config.size());
      specs_.push_back({{"tensor_constant", {{"arg", take(i, "c_" + name)}, {"tensor_constant_name", name}}}});
      keep(constants_, "tensor_", name, graph_.values[i].tensor.detach(), false);
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const json argument = {{"as_tensor", take(graph_.inputs[i], inputs_[i])}};
      specs_.push_back({{"user_input", {{"arg", argument}}}});
    }
    return names;
  }

  std::set<std::size_t> used_values() const {
    std::set<std::size_t> used;
    const std::function<void(const std::vector<Argument>&)> add = [&](const std::vector<Argument>& arguments) {
      for (const auto& argument : arguments) {
        if (argument.kind == Argument::Kind::value) used.insert(argument.value);
        add(argument.items);
      }
    };
    for (const auto& node : graph_.nodes) add(node.arguments);
    return used;
  }

  struct Tensors {
    json config = json::object();
    std::vector<std::pair<std::string, torch::Tensor>> records = {};
  };

  // Tensors that are one share their record.
  static void keep(Tensors& all, const std::string& prefix, const std::string& name, const torch::Tensor& tensor,
                   bool is_parameter) {
    std::string record;
    for (const auto& [known, other] : all.records) {
      if (other.is_same(tensor)) record = known;
    }
    if (record.empty()) {
      record = prefix + std::to_string(all.records.size());
      all.records.emplace_back(record, tensor);
    }
    // Weights are written contiguous.
    all.config[name] = {{"path_name", record},
                        {"is_param", is_parameter},
                        {"use_pickle", false},
                        {"tensor_meta", tensor_meta(tensor, fixed_sizes(tensor), false, tensor.requires_grad())}};
  }

  json calls() const {
    const json leaf = {{"type", nullptr}, {"context", nullptr}, {"children_spec", json::array()}};
    json leaves = json::array();
    for (std::size_t i = 0; i < inputs_.size(); ++i) leaves.push_back(leaf);
    const json arguments = {{"type", "builtins.tuple"}, {"context", "null"}, {"children_spec", leaves}};
    const json keywords = {{"type", "builtins.dict"}, {"context", "[]"}, {"children_spec", json::array()}};
    const json both = {
        {"type", "builtins.tuple"}, {"context", "null"}, {"children_spec", json::array({arguments, keywords})}};
    const json signature = {{"inputs", json::array()},
                            {"outputs", json::array()},
                            {"in_spec", json::array({1, both}).dump()},
                            {"out_spec", json::array({1, leaf}).dump()},
                            {"forward_arg_names", inputs_}};
    return json::array({{{"fqn", ""}, {"signature", signature}}});
  }

  std::string zipped(const json& program) const {
    std::string bytes;
    caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
      bytes.append(static_cast<const char*>(data), size);
      return size;
    });
    const auto text = [&](const std::string& record, const std::string& content) {
      writer.writeRecord(record, content.data(), content.size());
    };
    const auto tensors = [&](const std::string& folder, const char* config, const Tensors& all) {
      for (const auto& [record, tensor] : all.records) {
        const auto values = tensor.detach().resolve_conj().resolve_neg().to(torch::kCPU).contiguous();
        writer.writeRecord(folder + record, values.const_data_ptr(), values.nbytes());
      }
      text(folder + config, json{{"config", all.config}}.dump());
    };
    text("archive_format", "pt2");
    text("models/model.json", program.dump());
    tensors("data/weights/", "model_weights_config.json", weights_);
    tensors("data/constants/", "model_constants_config.json", constants_);
    text("data/sample_inputs/model.pt", "");
    text("archive_version", "0");
    text("byteorder", "little");
    writer.writeEndOfFile();
    return bytes;
  }

  const Graph& graph_;
  const std::vector<std::string>& inputs_;
  Tensors weights_, constants_;
  json graph_inputs_ = json::array(), specs_ = json::array();
};

}  // namespace

std::string pt2_bytes(const Graph& graph, const std::vector<std::string>& inputs) {
  return Pt2File(graph, inputs).bytes();
}

}  // namespace vernier::graph
