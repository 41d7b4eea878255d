// A rule translates one operator of LibTorch into operators of ONNX. The other files onnx_*.cpp define the rules.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "onnx.h"
#include "onnx_message.h"

namespace vernier::graph {

// A text that a template takes as an argument, such as the name of an operator of ONNX.
template <std::size_t size>
struct Literal {
  consteval Literal(const char (&text)[size]) {
    std::ranges::copy(text, chars);
  }  // NOLINT(google-explicit-constructor)
  char chars[size];
};

using Name = std::string;  // name of a tensor in the ONNX graph
using Names = std::vector<Name>;

using Shape = std::vector<std::variant<std::int64_t, std::string>>;  // the sizes and their names

// Collects the nodes and constants of an ONNX graph.
class OnnxGraph {
 public:
  OnnxGraph(const Graph& graph, const std::vector<std::string>& inputs, const ExportedModel& model);

  const Value& value(std::size_t index) const { return graph_.values[index]; }
  // Adds a node. Returns the names of its outputs.
  Names add(const std::string& type, const Names& inputs, const std::vector<Attribute>& attributes,
            std::size_t outputs);
  Name add(const std::string& type, const Names& inputs, const std::vector<Attribute>& attributes = {}) {
    return add(type, inputs, attributes, 1)[0];
  }
  // Constants.
  Name tensor(const torch::Tensor& tensor);
  Name ints(const std::vector<std::int64_t>& numbers);  // int64 [n]
  Name number(double number, torch::ScalarType dtype);  // a scalar
  // The name of a value, whose tensor becomes an initializer if it is none of a node.
  Name name_of(std::size_t value);
  void set_name(std::size_t value, const Name& name) { names_[value] = name; }
  // Sizes as an int64 tensor [n], computed from the batch where they depend on it.
  Name sizes(const Sizes& sizes);
  Name cast(const Name& name, torch::ScalarType dtype) {
    return add("Cast", {name}, {{"to", std::int64_t{onnx_dtype(dtype)}}});
  }
  std::string bytes();

 private:
  Name unused(Name name);  // the name, with _ at its end where another value has it
  Name new_name(const std::string& type) { return unused(type + "_" + std::to_string(++count_[type])); }
  void add_node(const std::string& type, const Names& inputs, const Names& outputs,
                const std::vector<Attribute>& attributes, const char* domain = "");
  void encode_texts();
  Shape input_shape(std::size_t place) const;
  void put_inputs(Message& graph) const;
  void put_outputs(Message& graph);

  const Graph& graph_;
  const ExportedModel& model_;
  const std::vector<std::string>& inputs_;
  std::set<Name> taken_;
  std::map<std::size_t, Name> names_;
  std::map<std::string, int> count_;
  std::map<std::vector<std::int64_t>, Name> ints_;
  std::map<std::string, Name> outputs_;
  Name batch_;  // an input whose dimension 0 is the samples
  std::vector<Message> nodes_, initializers_;
  std::size_t total_ = 0;
};

// A node whose rule is applied.
class Call {
 public:
  // is_narrow: float64 becomes float32 for it, and what it gives becomes float64 again.
  Call(OnnxGraph& onnx, const Node& node, bool is_narrow) : onnx(onnx), node_(node), is_narrow_(is_narrow) {}

  bool has(const char* argument) const;  // it exists and is not None
  const Argument& at(const char* argument) const;
  const Value& value(const char* argument) const;
  std::vector<std::size_t> values(const char* argument) const;  // values of a list
  Name name(const char* argument) { return name_of(value_index(argument)); }
  Name name_of(std::size_t value);
  // A tensor, or a number, in a dtype. What has another one is converted.
  Name name(const char* argument, torch::ScalarType dtype);
  std::int64_t integer(const char* argument) const;
  double real(const char* argument) const;
  bool flag(const char* argument) const;
  std::string text(const char* argument) const;
  std::vector<std::int64_t> integers(const char* argument) const;
  // A dimension of the argument `self`, or of another tensor, without sign.
  std::int64_t dimension(const char* argument, std::size_t dimensions) const;
  std::vector<std::int64_t> dimensions(const char* argument, std::size_t of) const;  // all, where it has none
  std::string overload() const { return node_.op.schema().overload_name(); }

  const Value& result(std::size_t place = 0) const { return onnx.value(slots(place).at(0)); }
  const std::vector<std::size_t>& slots(std::size_t place = 0) const { return node_.results.at(place); }
  torch::ScalarType dtype() const { return narrowed(result().dtype()); }
  // Returns the operator's result for another first argument.
  torch::Tensor computed(const torch::Tensor& input) const;
  void set(const Name& name, std::size_t place = 0);
  // Throws Error: this call has no counterpart.
  [[noreturn]] void refuse(const std::string& what) const;

  OnnxGraph& onnx;

 private:
  std::size_t place_of(const char* argument) const;
  std::size_t value_index(const char* argument) const;
  torch::ScalarType narrowed(torch::ScalarType dtype) const {
    return is_narrow_ && dtype == torch::kFloat64 ? torch::kFloat32 : dtype;
  }

  const Node& node_;
  bool is_narrow_;
};

using Rule = void (*)(Call& call);
using Rules = std::map<std::string, Rule>;  // by operator, such as "linear"

void add_math_rules(Rules& rules);
void add_shape_rules(Rules& rules);
void add_layer_rules(Rules& rules);
void add_recurrent_rules(Rules& rules);
void add_composed_rules(Rules& rules);
void add_indexing_rules(Rules& rules);
void add_complex_rules(Rules& rules);

// Returns true for a rule that takes complex numbers.
bool takes_complex(const std::string& rule);

// Images [samples, height, width, colours], of `dimensions` axes, with the colours before the height and, if size is
// not 0, resized.
Name prepared_images(OnnxGraph& onnx, const Name& images, std::size_t dimensions, std::int64_t size);

// Shared by several rules.
inline Name op(Call& call, const char* type, const Names& inputs) {
  return call.onnx.add(type, inputs);
}
Name reshaped(Call& call, const Name& name, const Sizes& sizes);
Name transposed(Call& call, const Name& name, const std::vector<std::int64_t>& order);
Name complex_product(Call& call);
Name truncated(Call& call, const Name& x);
// Adds a Where. onnxruntime has none for bools, so those pass through it as uint8.
Name chosen(Call& call, const Name& by, const Name& one, const Name& other);
// Says along the axes whether all flags are true ("ReduceMin"), or some ("ReduceMax").
Name joined(Call& call, const char* type, const Name& flags, const std::vector<std::int64_t>& axes);
inline torch::ScalarType real_dtype(const Call& call) {
  return c10::toRealValueType(call.dtype());
}
Sizes sizes_in(const Call& call, const char* argument);  // a number, or a list of them
// The sizes that a value has in ONNX, where a complex number is two numbers.
Sizes written_sizes(const Value& value);

}  // namespace vernier::graph
