// Rules of recurrent layers. LibTorch has a weight for each layer and direction; ONNX has one node for each layer, and
// its gates stand in another order.
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "onnx_rules.h"

namespace vernier::graph {

namespace {

// The places of ONNX's gates among LibTorch's.
struct Kind {
  const char* type;
  std::vector<std::int64_t> gates;
  std::size_t states;  // h, or h and c
};

class Recurrent {
 public:
  Recurrent(Call& call, const Kind& kind, std::vector<Attribute> attributes)
      : call_(call), kind_(kind), attributes_(std::move(attributes)) {}

  void write() {
    if (call_.overload() != "input") call_.refuse("its sequences are packed");
    if (call_.flag("train") && call_.real("dropout") > 0) call_.refuse("it is in training mode");
    auto x = call_.name("input");
    const bool is_batch_first = call_.flag("batch_first");
    if (is_batch_first) x = transposed(call_, x, {1, 0, 2});
    Names lasts[2];
    for (std::int64_t layer = 0; layer < call_.integer("num_layers"); ++layer) {
      const auto outputs = write_layer(x, layer);
      x = joined(outputs[0]);
      for (std::size_t i = 0; i < kind_.states; ++i) lasts[i].push_back(outputs[1 + i]);
    }
    call_.set(is_batch_first ? transposed(call_, x, {1, 0, 2}) : x);
    for (std::size_t i = 0; i < kind_.states; ++i) {
      call_.set(call_.onnx.add("Concat", lasts[i], {{"axis", std::int64_t{0}}}), 1 + i);
    }
  }

 private:
  std::int64_t directions() const { return call_.flag("bidirectional") ? 2 : 1; }

  const torch::Tensor& weight(std::int64_t layer, std::int64_t direction, std::int64_t which) const {
    const auto each = call_.flag("has_biases") ? 4 : 2;
    const auto all = call_.values("params");
    const auto place = static_cast<std::size_t>((layer * directions() + direction) * each + which);
    if (all.size() != static_cast<std::size_t>(call_.integer("num_layers") * directions() * each)) {
      call_.refuse("it has projections");
    }
    const auto& value = call_.onnx.value(all[place]);
    if (value.kind == Value::Kind::result || value.kind == Value::Kind::input) call_.refuse("its weights are computed");
    return value.tensor;
  }

  torch::Tensor reordered(const torch::Tensor& weight) const {
    const auto parts = weight.detach().to(call_.dtype()).chunk(static_cast<std::int64_t>(kind_.gates.size()), 0);
    std::vector<torch::Tensor> ordered;
    for (const auto gate : kind_.gates) ordered.push_back(parts[static_cast<std::size_t>(gate)]);
    return at::cat(ordered, 0);
  }

  // Weights of all directions of a layer. which: 0 for those of inputs, 1 for those of states.
  Name weights(std::int64_t layer, std::int64_t which) const {
    std::vector<torch::Tensor> all;
    for (std::int64_t i = 0; i < directions(); ++i) all.push_back(reordered(weight(layer, i, which)));
    return call_.onnx.tensor(at::stack(all));
  }

  Name biases(std::int64_t layer) const {
    if (!call_.flag("has_biases")) return "";
    std::vector<torch::Tensor> all;
    for (std::int64_t i = 0; i < directions(); ++i) {
      all.push_back(at::cat({reordered(weight(layer, i, 2)), reordered(weight(layer, i, 3))}));
    }
    return call_.onnx.tensor(at::stack(all));
  }

  Name first_state(std::int64_t layer, std::size_t which) const {
    const auto state = kind_.states == 1 ? call_.name("hx") : call_.name_of(call_.values("hx").at(which));
    const auto start = layer * directions();
    return call_.onnx.add(
        "Slice", {state, call_.onnx.ints({start}), call_.onnx.ints({start + directions()}), call_.onnx.ints({0})});
  }

  Names write_layer(const Name& x, std::int64_t layer) const {
    Names inputs = {x, weights(layer, 0), weights(layer, 1), biases(layer), ""};
    for (std::size_t i = 0; i < kind_.states; ++i) inputs.push_back(first_state(layer, i));
    auto attributes = attributes_;
    attributes.push_back({"hidden_size", weight(layer, 0, 1).size(1)});
    attributes.push_back({"direction", std::string(directions() == 2 ? "bidirectional" : "forward")});
    return call_.onnx.add(kind_.type, inputs, attributes, 1 + kind_.states);
  }

  // [time, directions, batch, width] to [time, batch, directions * width].
  Name joined(const Name& outputs) const {
    if (directions() == 1) return call_.onnx.add("Squeeze", {outputs, call_.onnx.ints({1})});
    return call_.onnx.add("Reshape", {transposed(call_, outputs, {0, 2, 1, 3}), call_.onnx.ints({0, 0, -1})});
  }

  Call& call_;
  const Kind& kind_;
  std::vector<Attribute> attributes_;
};

void lstm(Call& call) {
  static const Kind kind{"LSTM", {0, 3, 1, 2}, 2};  // i, o, f, c of i, f, c, o
  Recurrent(call, kind, {}).write();
}

void gru(Call& call) {
  static const Kind kind{"GRU", {1, 0, 2}, 1};  // z, r, h of r, z, h
  Recurrent(call, kind, {{"linear_before_reset", std::int64_t{1}}}).write();
}

template <int is_tanh>
void rnn(Call& call) {
  static const Kind kind{"RNN", {0}, 1};
  const std::string activation = is_tanh != 0 ? "Tanh" : "Relu";
  const std::vector<std::string> activations(call.flag("bidirectional") ? 2 : 1, activation);
  Recurrent(call, kind, {{"activations", activations}}).write();
}

}  // namespace

void add_recurrent_rules(Rules& rules) {
  rules.insert({{"lstm", lstm}, {"gru", gru}, {"rnn_tanh", rnn<1>}, {"rnn_relu", rnn<0>}});
}

}  // namespace vernier::graph
