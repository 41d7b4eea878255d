// Rules of element-wise operators and of reductions.
#include <ATen/ops/result_type.h>

#include <limits>
#include <numbers>

#include "onnx_rules.h"

namespace vernier::graph {

namespace {

// One operator of ONNX with the same meaning.
template <Literal type>
void same(Call& call) {
  call.set(call.onnx.add(type.chars, {call.name("self", call.dtype())}));
}

// ONNX joins bools by operators of their own.
std::string joining(torch::ScalarType dtype, const std::string& type) {
  if (dtype != torch::kBool) return type;
  return type == "Mul" || type == "Min" ? "And" : "Or";
}

template <Literal type>
void binary(Call& call) {
  const auto dtype = call.dtype();
  call.set(call.onnx.add(joining(dtype, type.chars), {call.name("self", dtype), call.name("other", dtype)}));
}

void multiply(Call& call) {
  c10::isComplexType(call.dtype()) ? call.set(complex_product(call)) : binary<"Mul">(call);
}

void absolute(Call& call) {
  if (!c10::isComplexType(call.value("self").dtype())) return same<"Abs">(call);
  call.set(call.onnx.add("ReduceL2", {call.name("self"), call.onnx.ints({-1})}, {{"keepdims", std::int64_t{0}}}));
}

// Whole numbers stay what they are.
template <Literal type>
void rounded(Call& call) {
  if (call.has("decimals") && call.integer("decimals") != 0) call.refuse("its decimals are not 0");
  c10::isFloatingType(call.dtype()) ? same<type>(call) : call.set(call.name("self"));
}

// self + alpha * other
template <Literal type>
void scaled(Call& call) {
  const auto dtype = call.dtype();
  auto other = call.name("other", dtype);
  if (call.real("alpha") != 1) other = op(call, "Mul", {other, call.name("alpha", real_dtype(call))});
  call.set(call.onnx.add(joining(dtype, type.chars), {call.name("self", dtype), other}));
}

void reversed_sub(Call& call) {
  const auto dtype = call.dtype();
  if (call.real("alpha") != 1) call.refuse("its alpha is not 1");
  call.set(call.onnx.add("Sub", {call.name("other", dtype), call.name("self", dtype)}));
}

// Returns what fmod leaves of x, and whether that and y have different signs.
std::pair<Name, Name> rest_of(Call& call, const Name& x, const Name& y) {
  const auto rest = call.onnx.add("Mod", {x, y}, {{"fmod", std::int64_t{1}}});
  const auto signs = op(call, "Mul", {op(call, "Sign", {rest}), op(call, "Sign", {y})});
  return {rest, op(call, "Less", {signs, call.onnx.number(0, call.dtype())})};
}

// As LibTorch divides floats (c10/util/generic_math.h): the floor of a rounded quotient may be one too many.
void floor_divide(Call& call) {
  const auto dtype = call.dtype();
  const auto x = call.name("self", dtype), y = call.name("other", dtype);
  if (!c10::isFloatingType(dtype)) {
    const auto rest = call.onnx.add("Mod", {x, y});  // ONNX divides whole numbers towards 0
    return call.set(call.onnx.add("Div", {call.onnx.add("Sub", {x, rest}), y}));
  }
  const auto [rest, is_apart] = rest_of(call, x, y);
  const auto whole = op(call, "Div", {op(call, "Sub", {x, rest}), y});
  const auto quotient = op(call, "Sub", {whole, call.onnx.cast(is_apart, dtype)});
  const auto is_by_zero = op(call, "Equal", {y, call.onnx.number(0, dtype)});
  call.set(op(call, "Where", {is_by_zero, op(call, "Div", {x, y}), op(call, "Round", {quotient})}));
}

void divide(Call& call) {
  const auto dtype = call.dtype();
  if (c10::isComplexType(dtype)) {
    const bool is_number = call.at("other").kind != Argument::Kind::value;
    if (!is_number && c10::isComplexType(call.value("other").dtype())) call.refuse("it divides by complex numbers");
    const auto by = call.onnx.add("Unsqueeze", {call.name("other", real_dtype(call)), call.onnx.ints({-1})});
    return call.set(call.onnx.add("Div", {call.name("self", dtype), by}));
  }
  const bool is_rounded = call.has("rounding_mode");
  if (is_rounded && call.text("rounding_mode") == "floor") return floor_divide(call);
  const auto quotient = call.onnx.add("Div", {call.name("self", dtype), call.name("other", dtype)});
  call.set(is_rounded ? truncated(call, quotient) : quotient);
}

void power(Call& call) {
  const auto dtype = call.dtype();
  const char* exponent = "exponent";
  if (call.at(exponent).kind == Argument::Kind::constant && call.real(exponent) == 2) {
    const auto x = call.name("self", dtype);
    return call.set(call.onnx.add("Mul", {x, x}));
  }
  call.set(call.onnx.add("Pow", {call.name("self", dtype), call.name(exponent, dtype)}));
}

template <Literal type>
void compared(Call& call) {
  auto dtype = call.value("self").dtype();
  if (call.at("other").kind == Argument::Kind::value) {
    dtype = at::result_type(call.value("self").tensor, call.value("other").tensor);
  } else if (!c10::isFloatingType(dtype) && call.at("other").kind == Argument::Kind::constant &&
             call.at("other").constant.isDouble()) {
    dtype = torch::kFloat32;
  }
  if (dtype == torch::kBool) dtype = torch::kInt64;  // ONNX does not order bools, and 2 is not a bool
  call.set(call.onnx.add(type.chars, {call.name("self", dtype), call.name("other", dtype)}));
}

void not_equal(Call& call) {
  compared<"Equal">(call);
  call.set(call.onnx.add("Not", {call.onnx.name_of(call.slots()[0])}));
}

template <Literal type>
void logical(Call& call) {
  if (call.dtype() != torch::kBool) call.refuse("it is of whole numbers");
  call.set(call.onnx.add(type.chars, {call.name("self", torch::kBool), call.name("other", torch::kBool)}));
}

void logical_not(Call& call) {
  if (call.dtype() != torch::kBool) call.refuse("it is of whole numbers");
  call.set(call.onnx.add("Not", {call.name("self", torch::kBool)}));
}

void where(Call& call) {
  const auto dtype = call.dtype();
  call.set(chosen(call, call.name("condition", torch::kBool), call.name("self", dtype), call.name("other", dtype)));
}

void masked_fill(Call& call) {
  const auto dtype = call.dtype();
  call.set(chosen(call, call.name("mask", torch::kBool), call.name("value", dtype), call.name("self", dtype)));
}

// Clip takes numbers alone.
void clamp_by_tensors(Call& call) {
  const auto dtype = call.dtype();
  auto x = call.name("self", dtype);
  if (call.has("min")) x = call.onnx.add("Max", {x, call.name("min", dtype)});
  if (call.has("max")) x = call.onnx.add("Min", {x, call.name("max", dtype)});
  call.set(x);
}

void clamp(Call& call) {
  const auto dtype = call.dtype();
  const bool has_names = call.has("min") || call.has("max");
  const auto limit = [&](const char* name, const char* other) {
    const auto* found = has_names ? name : other;
    return call.has(found) ? call.name(found, dtype) : Name();
  };
  if (call.has("min") && call.at("min").kind == Argument::Kind::value) return clamp_by_tensors(call);
  if (call.has("max") && call.at("max").kind == Argument::Kind::value) return clamp_by_tensors(call);
  call.set(call.onnx.add("Clip", {call.name("self", dtype), limit("min", "min_val"), limit("max", "max_val")}));
}

void rsqrt(Call& call) {
  call.set(call.onnx.add("Reciprocal", {call.onnx.add("Sqrt", {call.name("self", call.dtype())})}));
}

void silu(Call& call) {
  const auto x = call.name("self");
  call.set(call.onnx.add("Mul", {x, call.onnx.add("Sigmoid", {x})}));
}

void gelu(Call& call) {
  call.set(call.onnx.add("Gelu", {call.name("self")}, {{"approximate", call.text("approximate")}}));
}

void leaky_relu(Call& call) {
  const auto slope = static_cast<float>(call.real("negative_slope"));
  call.set(call.onnx.add("LeakyRelu", {call.name("self")}, {{"alpha", slope}}));
}

void elu(Call& call) {
  if (call.real("scale") != 1 || call.real("input_scale") != 1) call.refuse("it is scaled");
  call.set(call.onnx.add("Elu", {call.name("self")}, {{"alpha", static_cast<float>(call.real("alpha"))}}));
}

void prelu(Call& call) {
  Sizes sizes(call.value("self").sizes.size() - 1, Size{1});
  const auto slope = call.value("weight").sizes;
  if (!slope.empty() && !sizes.empty()) sizes[0] = slope[0];
  call.set(call.onnx.add("PRelu", {call.name("self"), reshaped(call, call.name("weight"), sizes)}));
}

void log_sigmoid(Call& call) {
  call.set(call.onnx.add("Neg", {call.onnx.add("Softplus", {call.onnx.add("Neg", {call.name("self")})})}));
}

void hard_sigmoid(Call& call) {
  call.set(call.onnx.add("HardSigmoid", {call.name("self")}, {{"alpha", 1.0F / 6}, {"beta", 0.5F}}));
}

// log(1 + x)
void log1p(Call& call) {
  const auto dtype = call.dtype();
  call.set(call.onnx.add("Log", {call.onnx.add("Add", {call.name("self", dtype), call.onnx.number(1, dtype)})}));
}

// exp(x) - 1
void expm1(Call& call) {
  const auto dtype = call.dtype();
  call.set(call.onnx.add("Sub", {call.onnx.add("Exp", {call.name("self", dtype)}), call.onnx.number(1, dtype)}));
}

// The remainder has the sign of the divisor.
void remainder(Call& call) {
  const auto dtype = call.dtype();
  const auto x = call.name("self", dtype), y = call.name("other", dtype);
  if (!c10::isFloatingType(dtype)) return call.set(call.onnx.add("Mod", {x, y}));
  const auto [rest, is_apart] = rest_of(call, x, y);
  call.set(op(call, "Where", {is_apart, op(call, "Add", {rest, y}), rest}));
}

void glu(Call& call) {
  const auto dimension = call.dimension("dim", call.value("self").sizes.size());
  const auto halves =
      call.onnx.add("Split", {call.name("self")}, {{"axis", dimension}, {"num_outputs", std::int64_t{2}}}, 2);
  call.set(call.onnx.add("Mul", {halves[0], call.onnx.add("Sigmoid", {halves[1]})}));
}

void tensor_cast(Call& call) {
  const auto dtype = call.dtype();
  const char* of = call.has("self") ? "self" : "input";
  call.set(call.name(of, dtype));
}

// Reductions: over `dim`, or all dimensions.
template <Literal type>
void reduced(Call& call) {
  const auto dtype = call.dtype();
  const auto rank = call.value("self").sizes.size();
  const auto axes = call.dimensions("dim", rank);
  const std::int64_t keeps = call.flag("keepdim") ? 1 : 0;
  const auto x = call.name("self", dtype);
  const auto result = call.onnx.add(type.chars, {x, call.onnx.ints(axes)}, {{"keepdims", keeps}});
  const std::string name = type.chars;
  if ((name != "ReduceMax" && name != "ReduceMin") || !c10::isFloatingType(dtype)) return call.set(result);
  // Maxima and minima of ONNX pass over NaN.
  const auto has_nan = joined(call, "ReduceMax", op(call, "IsNaN", {x}), axes);
  call.set(op(call, "Where", {has_nan, call.onnx.number(std::numeric_limits<double>::quiet_NaN(), dtype), result}));
}

void norm(Call& call) {
  const char* order = call.has("ord") ? "ord" : "p";
  if (call.has(order) && call.real(order) != 2) call.refuse("only the norm of order 2 is known");
  reduced<"ReduceL2">(call);
}

void variance(Call& call) {
  const auto rank = call.value("self").sizes.size();
  const auto axes = call.dimensions("dim", rank);
  double count = 1, correction = 1;
  for (const auto axis : axes) {
    const auto size = call.value("self").sizes[static_cast<std::size_t>(axis)];
    if (size.is_per_sample) call.refuse("it is over the samples");
    count *= static_cast<double>(size.number);
  }
  if (call.has("correction")) correction = call.real("correction");
  if (call.has("unbiased")) correction = call.flag("unbiased") ? 1 : 0;
  const auto x = call.name("self"), over = call.onnx.ints(axes);
  const auto centred = call.onnx.add("Sub", {x, call.onnx.add("ReduceMean", {x, over})});
  const std::int64_t keeps = call.flag("keepdim") ? 1 : 0;
  const auto sum = call.onnx.add("ReduceSumSquare", {centred, over}, {{"keepdims", keeps}});
  call.set(call.onnx.add("Div", {sum, call.onnx.number(count - correction, call.dtype())}));
}

void deviation(Call& call) {
  variance(call);
  call.set(call.onnx.add("Sqrt", {call.onnx.name_of(call.slots()[0])}));
}

// The place of a maximum or minimum, or of the first NaN, over which ONNX passes.
template <Literal type>
Name place_of(Call& call) {
  const auto axis = call.dimension("dim", call.value("self").sizes.size());
  const auto dtype = call.value("self").dtype();
  const std::vector<Attribute> attributes = {{"axis", axis}, {"keepdims", std::int64_t{call.flag("keepdim")}}};
  const auto x = call.name("self", dtype == torch::kBool ? torch::kInt32 : dtype);
  const auto place = call.onnx.add(type.chars, {x}, attributes);
  if (!c10::isFloatingType(dtype)) return place;
  const auto is_nan = op(call, "IsNaN", {x});
  const auto first = call.onnx.add("ArgMax", {call.onnx.cast(is_nan, torch::kInt32)}, attributes);
  return op(call, "Where", {joined(call, "ReduceMax", is_nan, {axis}), first, place});
}

template <Literal type>
void arg_reduced(Call& call) {
  if (!call.has("dim")) call.refuse("it is over all dimensions");
  call.set(place_of<type>(call));
}

// max(dim) and min(dim): values and places.
template <Literal type, Literal place>
void extreme(Call& call) {
  if (call.has("other")) {
    return std::string(type.chars) == "ReduceMax" ? binary<"Max">(call) : binary<"Min">(call);
  }
  reduced<type>(call);
  if (call.has("dim")) call.set(place_of<place>(call), 1);
}

template <Literal type>
void softmax(Call& call) {
  const auto dtype = call.dtype();
  call.set(call.onnx.add(type.chars, {call.name("self", dtype)},
                         {{"axis", call.dimension("dim", call.value("self").sizes.size())}}));
}

void cumulative_sum(Call& call) {
  const auto axis = call.dimension("dim", call.value("self").sizes.size());
  call.set(call.onnx.add(
      "CumSum", {call.name("self", call.dtype()), call.onnx.number(static_cast<double>(axis), torch::kInt64)}));
}

}  // namespace

void add_math_rules(Rules& rules) {
  rules.insert({
      {"abs", absolute},
      {"neg", same<"Neg">},
      {"exp", same<"Exp">},
      {"log", same<"Log">},
      {"sqrt", same<"Sqrt">},
      {"sin", same<"Sin">},
      {"cos", same<"Cos">},
      {"tanh", same<"Tanh">},
      {"sigmoid", same<"Sigmoid">},
      {"relu", same<"Relu">},
      {"erf", same<"Erf">},
      {"floor", rounded<"Floor">},
      {"ceil", rounded<"Ceil">},
      {"round", rounded<"Round">},
      {"reciprocal", same<"Reciprocal">},
      {"sign", same<"Sign">},
      {"mish", same<"Mish">},
      {"hardswish", same<"HardSwish">},
      {"hardsigmoid", hard_sigmoid},
      {"selu", same<"Selu">},
      {"tan", same<"Tan">},
      {"atan", same<"Atan">},
      {"asin", same<"Asin">},
      {"acos", same<"Acos">},
      {"sinh", same<"Sinh">},
      {"cosh", same<"Cosh">},
      {"asinh", same<"Asinh">},
      {"acosh", same<"Acosh">},
      {"atanh", same<"Atanh">},
      {"sgn", same<"Sign">},
      {"prelu", prelu},
      {"log_sigmoid", log_sigmoid},
      {"log1p", log1p},
      {"expm1", expm1},
      {"remainder", remainder},
      {"floor_divide", floor_divide},
      {"rsqrt", rsqrt},
      {"silu", silu},
      {"gelu", gelu},
      {"leaky_relu", leaky_relu},
      {"elu", elu},
      {"glu", glu},
      {"hardtanh", clamp},
      {"clamp", clamp},
      {"clamp_min", clamp},
      {"clamp_max", clamp},
      {"add", scaled<"Add">},
      {"sub", scaled<"Sub">},
      {"rsub", reversed_sub},
      {"mul", multiply},
      {"div", divide},
      {"pow", power},
      {"maximum", binary<"Max">},
      {"minimum", binary<"Min">},
      {"eq", compared<"Equal">},
      {"ne", not_equal},
      {"lt", compared<"Less">},
      {"le", compared<"LessOrEqual">},
      {"gt", compared<"Greater">},
      {"ge", compared<"GreaterOrEqual">},
      {"logical_and", logical<"And">},
      {"logical_or", logical<"Or">},
      {"logical_xor", logical<"Xor">},
      {"logical_not", logical_not},
      {"bitwise_and", logical<"And">},
      {"bitwise_or", logical<"Or">},
      {"bitwise_xor", logical<"Xor">},
      {"bitwise_not", logical_not},
      {"__and__", logical<"And">},
      {"__or__", logical<"Or">},
      {"where", where},
      {"masked_fill", masked_fill},
      {"mean", reduced<"ReduceMean">},
      {"sum", reduced<"ReduceSum">},
      {"amax", reduced<"ReduceMax">},
      {"amin", reduced<"ReduceMin">},
      {"prod", reduced<"ReduceProd">},
      {"logsumexp", reduced<"ReduceLogSumExp">},
      {"norm", norm},
      {"linalg_vector_norm", norm},
      {"var", variance},
      {"std", deviation},
      {"argmax", arg_reduced<"ArgMax">},
      {"argmin", arg_reduced<"ArgMin">},
      {"max", extreme<"ReduceMax", "ArgMax">},
      {"min", extreme<"ReduceMin", "ArgMin">},
      {"softmax", softmax<"Softmax">},
      {"log_softmax", softmax<"LogSoftmax">},
      {"_softmax", softmax<"Softmax">},
      {"_log_softmax", softmax<"LogSoftmax">},
      {"cumsum", cumulative_sum},
  });
  for (const char* name :
       {"to", "_to_copy", "contiguous", "clone", "detach", "alias", "lift_fresh", "lift_fresh_copy", "float"}) {
    rules[name] = tensor_cast;
  }
}

}  // namespace vernier::graph
