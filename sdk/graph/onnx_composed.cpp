// Rules of operators that several of ONNX make up.
#include <cmath>
#include <limits>

#include "onnx_rules.h"

namespace vernier::graph {

Name truncated(Call& call, const Name& x) {
  if (!c10::isFloatingType(call.dtype())) return x;
  return op(call, "Mul", {op(call, "Sign", {x}), op(call, "Floor", {op(call, "Abs", {x})})});
}

Name chosen(Call& call, const Name& by, const Name& one, const Name& other) {
  if (call.dtype() != torch::kBool) return op(call, "Where", {by, one, other});
  const auto number = [&](const Name& name) { return call.onnx.cast(name, torch::kUInt8); };
  return call.onnx.cast(op(call, "Where", {by, number(one), number(other)}), torch::kBool);
}

Name joined(Call& call, const char* type, const Name& flags, const std::vector<std::int64_t>& axes) {
  const auto numbers = call.onnx.cast(flags, torch::kInt32);
  const std::vector<Attribute> keeps = {{"keepdims", std::int64_t{call.flag("keepdim")}}};
  return call.onnx.cast(call.onnx.add(type, {numbers, call.onnx.ints(axes)}, keeps), torch::kBool);
}

namespace {

void softplus(Call& call) {
  const auto dtype = call.dtype();
  if (call.real("threshold") < 15) call.refuse("its threshold is below 15");
  const auto beta = call.name("beta", dtype);
  call.set(op(call, "Div", {op(call, "Softplus", {op(call, "Mul", {call.name("self"), beta})}), beta}));
}

void celu(Call& call) {
  call.set(call.onnx.add("Celu", {call.name("self")}, {{"alpha", static_cast<float>(call.real("alpha"))}}));
}

void threshold(Call& call) {
  const auto dtype = call.dtype();
  const auto x = call.name("self", dtype);
  const auto is_low = op(call, "LessOrEqual", {x, call.name("threshold", dtype)});
  call.set(op(call, "Where", {is_low, call.name("value", dtype), x}));  // NaN stays
}

void trunc(Call& call) {
  call.set(truncated(call, call.name("self")));
}

void frac(Call& call) {
  const auto x = call.name("self");
  call.set(op(call, "Sub", {x, truncated(call, x)}));
}

void is_nan(Call& call) {
  const auto dtype = call.value("self").dtype();  // whole numbers become float32: they are no NaN
  call.set(op(call, "IsNaN", {call.name("self", c10::isFloatingType(dtype) ? dtype : torch::kFloat32)}));
}

void lerp(Call& call) {
  const auto dtype = call.dtype();
  const auto x = call.name("self", dtype), way = op(call, "Sub", {call.name("end", dtype), x});
  call.set(op(call, "Add", {x, op(call, "Mul", {way, call.name("weight", dtype)})}));
}

// self + value * tensor1 * tensor2, or their quotient.
template <Literal type>
void add_scaled(Call& call) {
  const auto dtype = call.dtype();
  const auto both = op(call, type.chars, {call.name("tensor1", dtype), call.name("tensor2", dtype)});
  call.set(op(call, "Add", {call.name("self", dtype), op(call, "Mul", {both, call.name("value", dtype)})}));
}

void baddbmm(Call& call) {
  const auto dtype = call.dtype();
  const auto product = op(call, "MatMul", {call.name("batch1"), call.name("batch2")});
  call.set(op(call, "Add",
              {op(call, "Mul", {product, call.name("alpha", dtype)}),
               op(call, "Mul", {call.name("self"), call.name("beta", dtype)})}));
}

// log2, log10 and exp2: `type` of a multiple, or a multiple of `type`.
template <Literal type, int base>
void of_base(Call& call) {
  const auto dtype = call.dtype();
  const auto log = call.onnx.number(std::log(base), dtype);
  const auto x = call.name("self", dtype);
  call.set(std::string(type.chars) == "Exp" ? op(call, "Exp", {op(call, "Mul", {x, log})})
                                            : op(call, "Div", {op(call, "Log", {x}), log}));
}

void fmod(Call& call) {
  const auto dtype = call.dtype();
  call.set(call.onnx.add("Mod", {call.name("self", dtype), call.name("other", dtype)}, {{"fmod", std::int64_t{1}}}));
}

template <int has_bias>
void shrink(Call& call) {
  const auto threshold = static_cast<float>(call.real("lambd"));
  const auto x = call.name("self");
  const auto shrunk = call.onnx.add("Shrink", {x}, {{"lambd", threshold}, {"bias", has_bias * threshold}});
  call.set(op(call, "Where", {op(call, "IsNaN", {x}), x, shrunk}));  // Shrink makes 0 of NaN
}

// rrelu in evaluation, as it is composed.
void random_relu(Call& call) {
  if (call.flag("training")) call.refuse("it is in training mode");
  const auto slope = static_cast<float>((call.real("lower") + call.real("upper")) / 2);
  call.set(call.onnx.add("LeakyRelu", {call.name("self")}, {{"alpha", slope}}));
}

template <Literal type>
void any_or_all(Call& call) {
  const auto axes = call.dimensions("dim", call.value("self").sizes.size());
  call.set(joined(call, type.chars, call.name("self", torch::kBool), axes));
}

// A tensor in place of what it had: its result is another value here.
void fill(Call& call) {
  const char* of = call.has("src") ? "src" : "value";
  call.set(op(call, "Expand", {call.name(of, call.dtype()), call.onnx.sizes(call.result().sizes)}));
}

}  // namespace

void add_composed_rules(Rules& rules) {
  rules.insert({{"softplus", softplus},
                {"celu", celu},
                {"threshold", threshold},
                {"trunc", trunc},
                {"frac", frac},
                {"log2", of_base<"Log", 2>},
                {"log10", of_base<"Log", 10>},
                {"exp2", of_base<"Exp", 2>},
                {"fmod", fmod},
                {"hardshrink", shrink<0>},
                {"softshrink", shrink<1>},
                {"rrelu", random_relu},
                {"isnan", is_nan},
                {"lerp", lerp},
                {"addcmul", add_scaled<"Mul">},
                {"addcdiv", add_scaled<"Div">},
                {"baddbmm", baddbmm},
                {"any", any_or_all<"ReduceMax">},
                {"all", any_or_all<"ReduceMin">},
                {"fill", fill},
                {"copy", fill}});
}

}  // namespace vernier::graph
