// A model as operators and values, captured while it computes (capture.h) and written for other programs (onnx.h,
// pt2.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <string>
#include <vector>

namespace vernier::graph {

// A whole number of a graph: `number`, or `number` times the samples of a batch.
struct Size {
  std::int64_t number = 0;
  bool is_per_sample = false;
  bool operator==(const Size&) const = default;
};

using Sizes = std::vector<Size>;

// A tensor of a graph. Values are known by their index in Graph::values.
struct Value {
  enum class Kind { input, parameter, buffer, constant, result };
  Kind kind = Kind::result;
  std::string name;      // name of a parameter, buffer or input; "" if nobody named the input
  torch::Tensor tensor;  // the one that was captured with the first batch
  Sizes sizes;
  torch::ScalarType dtype() const { return tensor.scalar_type(); }
  bool is_number() const { return kind == Kind::constant && tensor.dim() == 0; }
};

// An argument of an operator.
struct Argument {
  enum class Kind { constant, value, size, list };
  Kind kind = Kind::constant;
  c10::IValue constant = {};         // also None
  std::size_t value = 0;             // index in Graph::values
  Size size = {};                    // a number that depends on the batch
  std::vector<Argument> items = {};  // items of a list that has tensors, or sizes that depend on the batch
};

// A call of an operator.
struct Node {
  c10::OperatorHandle op;
  std::string layer;                              // the layer whose weight it uses, or the last such layer before it
  std::vector<Argument> arguments;                // one for each argument of the schema, in order
  std::vector<std::vector<std::size_t>> results;  // values of each result; a list of tensors has several
  bool is_kept = true;                            // false: who captures it has no use for the operator
  const std::string& name() const { return op.schema().name(); }  // "aten::linear"
};

struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;  // in the order of the calls
  std::vector<std::size_t> inputs;
  std::size_t output = 0;
};

}  // namespace vernier::graph
