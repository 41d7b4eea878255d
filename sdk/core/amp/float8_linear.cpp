#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/float8_linear.h>
#include <vernier/hardware.h>

#include <cmath>
#include <optional>
#include <utility>

#include "gpu/gpu_float8.h"

namespace vernier {

using torch::Tensor;
using torch::autograd::AutogradContext;

namespace {

constexpr auto float32 = torch::kFloat32;
constexpr auto e4m3 = torch::kFloat8_e4m3fn;

Float8Recipe tensorwise(const std::string& name) {
  return {.name = name, .gradient_format = torch::kFloat8_e5m2};
}

Float8Recipe rowwise(const std::string& name) {
  return {.name = name,
          .x = per_row,
          .w = per_row,
          .g = per_row,
          .w_for_dx = per_column,
          .g_for_dw = per_column,
          .x_for_dw = per_column,
          .power_of_two_scales = true};
}

Float8Recipe named(const std::string& name) {
  if (name == "current") return tensorwise(name);
  if (name == "rowwise") return rowwise(name);
  if (name == "delayed") {
    auto recipe = tensorwise(name);
    recipe.delayed = true;
    return recipe;
  }
  if (name == "rowwise_with_high_precision_grad_weight") {
    auto recipe = rowwise(name);
    recipe.w_for_dx = per_tensor;
    recipe.dw_in_float8 = false;
    return recipe;
  }
  if (name == "block") {
    return {.name = name,
            .x = per_1x128,
            .w = per_128x128,
            .g = per_1x128,
            .w_for_dx = per_128x128,
            .g_for_dw = per_128x1,
            .x_for_dw = per_128x1,
            .power_of_two_scales = true};
  }
  throw Error("there is no fp8 recipe \"" + name +
                  "\"; there are delayed, current, rowwise, rowwise_with_high_precision_grad_weight and block",
              Error::Kind::configuration);
}

// True if one factor for each row of the left operand is all of its scales; they can then be applied to the product.
bool scales_rows(const Float8Tensor& left) {
  return left.block.columns == 0;
}

// An operand of an emulated product, and the factor that remains to be applied to the product, if any.
std::pair<Tensor, Tensor> emulated(const Float8Tensor& operand, bool scale_remains) {
  if (!scale_remains) return {operand.dequantize(), {}};
  return {from_float8(operand.values), operand.scale.reciprocal()};
}

// The product of matrices whose elements bfloat16 holds, as it holds every fp8 number, and every one times a power of
// two. So oneDNN may take them for bfloat16; it adds up in float32 all the same. This changes nothing but the time: a
// quarter with AMX.
Tensor product_in_bfloat16(const Tensor& a, const Tensor& b) {
  constexpr auto backend = at::Float32Backend::MKLDNN;
  constexpr auto op = at::Float32Op::MATMUL;
  auto& context = at::globalContext();
  const auto back = c10::make_scope_exit(
      [&context, before = context.float32Precision(backend, op)] { context.setFloat32Precision(backend, op, before); });
  context.setFloat32Precision(backend, op, at::Float32Precision::BF16);
  return at::mm(a, b);
}

// left [m, k] times right [k, n] in float32: the sum of products of fp8 numbers, then the scales, as a GPU does it;
// scales of blocks along k are applied before.
Tensor emulated_product(const Float8Tensor& left, const Float8Tensor& right, const Tensor& bias, bool power_of_two) {
  const auto [a, left_factor] = emulated(left, scales_rows(left));
  const auto [b, right_factor] = emulated(right, scales_rows(right.t()));
  const bool both_remain = left_factor.defined() && right_factor.defined();
  auto product = power_of_two || both_remain ? product_in_bfloat16(a, b) : at::mm(a, b);
  if (both_remain && left_factor.dim() + right_factor.dim() == 0) {
    product.mul_(left_factor * right_factor);
  } else {
    if (left_factor.defined()) product.mul_(left_factor);
    if (right_factor.defined()) product.mul_(right_factor);
  }
  if (bias.defined()) product.add_(bias);
  return product;
}

// at::_scaled_mm wants its sums over multiples of 16, and over whole blocks of scales, whose number must be a multiple
// of 4; zeros add nothing.
Float8Tensor padded(const Float8Tensor& left) {
  const std::int64_t multiple = scales_rows(left) ? 16 : 512;
  const auto missing = (multiple - left.values.size(1) % multiple) % multiple;
  if (missing == 0) return left;
  const auto format = left.values.scalar_type();
  auto values = at::constant_pad_nd(left.values.view(torch::kUInt8), {0, missing}).view(format);
  if (scales_rows(left)) return {values, left.scale, left.block, left.inverse};
  const auto blocks = values.size(1) / 128 - left.scale.size(1);
  return {values, at::constant_pad_nd(left.scale, {0, blocks}, 1), left.block};
}

// The layout of scales that at::_scaled_mm takes for its left operand; for its right one all is transposed.
Tensor factors_for(const Float8Tensor& left, bool rowwise) {
  const auto factors = left.inverse.defined() ? left.inverse : left.scale.reciprocal();
  if (left.block == per_tensor) return rowwise ? factors.expand({left.values.size(0), 1}).contiguous() : factors;
  if (left.block == per_1x128) return factors.t().contiguous().t();
  return factors.contiguous();
}

// Row by row, as at::_scaled_mm reads its left operand.
Tensor contiguous(const Tensor& values) {
  const auto* const library =
      values.is_contiguous() || !values.t().is_contiguous() ? nullptr : gpu_library(values.device());
  return library != nullptr ? contiguous_on_gpu(*library, values) : values.contiguous();
}

Tensor scaled_product(const Float8Tensor& left, const Float8Tensor& right, const Tensor& bias, torch::ScalarType dtype,
                      bool fast_accumulation) {
  const auto a = padded(left), b = padded(right.t());
  const bool rowwise = a.block == per_row || b.block == per_row;
  const auto a_factors = factors_for(a, rowwise), b_factors = factors_for(b, rowwise);
  // The kernel adds a bias to results in 16 bits only.
  const bool adds = bias.defined() && dtype != torch::kFloat32;
  const auto product = at::_scaled_mm(
      contiguous(a.values), contiguous(b.values).t(), a_factors, b_factors.dim() == 0 ? b_factors : b_factors.t(),
      adds ? std::optional(bias) : std::nullopt, {}, dtype, fast_accumulation && scales_rows(a));
  return bias.defined() && !adds ? product + bias : product;
}

// fast_accumulation: TE and torchao take the quick, less exact adder of a GPU for y and not for gradients.
Tensor multiply(const Float8Recipe& recipe, const Float8Tensor& left, const Float8Tensor& right, const Tensor& bias,
                torch::ScalarType dtype, bool fast_accumulation) {
  if (!left.values.is_cpu()) return scaled_product(left, right, bias, dtype, fast_accumulation);
  return emulated_product(left, right, bias, recipe.power_of_two_scales).to(dtype);
}

}  // namespace

Float8Recipe float8_recipe(const std::string& name, const std::string& format) {
  auto recipe = named(name);
  if (format == "hybrid") recipe.gradient_format = torch::kFloat8_e5m2;
  if (format == "e4m3") recipe.gradient_format = e4m3;
  if (format == "hybrid" && recipe.x == per_1x128) {
    throw Error("fp8 blocks are of E4M3 alone, as LibTorch multiplies them on a GPU; take the format e4m3",
                Error::Kind::configuration);
  }
  if (format == "auto" || format == "hybrid" || format == "e4m3") return recipe;
  if (format == "e5m2") {
    throw Error(
        "two bits of E5M2 are too few for weights, and no GPU multiplies it with "
        "itself; take hybrid or e4m3",
        Error::Kind::configuration);
  }
  throw Error("there is no fp8 format \"" + format + "\"; there are auto, hybrid and e4m3", Error::Kind::configuration);
}

std::string float8_refusal(const Float8Recipe& recipe, torch::Device device) {
  if (device.is_cpu()) return "";
  const std::string remedy = "; take bf16, or a CPU, where fp8 is emulated";
  if (!device.is_cuda()) return c10::str("is for CUDA devices, not for ", device, remedy);
  const int capability = hardware_of(device.type()).compute_capability;
  if (capability == 0)
    return c10::str("needs to know the compute capability of ", device, ", and cannot read it", remedy);
  const int needed = recipe.x == per_tensor ? 89 : 90;
  if (capability >= needed) return "";
  return c10::str("with the recipe ", recipe.name, " is for GPUs of compute capability ", needed / 10, ".", needed % 10,
                  " or more, and ", device, " has ", capability / 10, ".", capability % 10, remedy);
}

// Columns of histories and scales.
enum Operand : std::int64_t { of_x, of_w, of_g };

struct Float8Linear::Layer {
  // The quantised weight and the tensor that it was made of, held so that no other can take its place in memory.
  struct Weight {
    Tensor source;
    std::int64_t version = 0;
    Tensor largest;  // delayed
    Float8Tensor for_y, for_dx;

    bool is_of(const Tensor& weight) const {
      return !weight.is_inference() && version == static_cast<std::int64_t>(weight._version()) &&
             source.const_data_ptr() == weight.const_data_ptr() && source.scalar_type() == weight.scalar_type() &&
             source.sizes() == weight.sizes() && source.strides() == weight.strides();
    }
  };

  Tensor scale_of(const Tensor& largest, Operand operand) const {
    if (recipe.delayed) return scales.select(0, operand);
    return float8_scale(largest, format_of(operand), recipe.margin, recipe.power_of_two_scales);
  }

  Float8Tensor quantized(const Tensor& matrix, ScaleBlock block, Operand operand, bool recorded) {
    const auto* const library = recipe.delayed || block != per_tensor ? nullptr : gpu_library(matrix.device());
    if (library != nullptr && can_cast_on_gpu(matrix)) {
      const auto cast = by_amax(*library, matrix, operand, /*twice=*/false);
      return {cast.values, cast.scale, block, cast.inverse};
    }
    Tensor largest;
    if (!recipe.delayed || recorded) largest = float8_amax(matrix, block);
    if (history && recorded) history->record(operand, largest);
    return float8_quantize(matrix, scale_of(largest, operand), format_of(operand), block);
  }

  // The same matrix for a product over its columns, and for one over its rows. Vernier's CUDA kernels make the
  // transposed copy that the latter needs in the pass of the cast, and find the largest magnitude for the delayed
  // recipe there. Elsewhere both are one tensor.
  struct Quantized {
    Float8Tensor plain, turned;
  };
  Quantized quantized_twice(const Tensor& matrix, ScaleBlock block, Operand operand, bool recorded) {
    const auto* const library = gpu_library(matrix.device());
    const bool is_turned = matrix.dim() == 2 && !matrix.is_contiguous();  // the weight of GPT-2's Conv1D
    const auto rows = is_turned ? matrix.t() : matrix;
    if (library == nullptr || block != per_tensor || !can_cast_on_gpu(rows)) {
      auto one = quantized(matrix, block, operand, recorded);
      return {one, one};
    }
    CastTwice cast;
    if (recipe.delayed) {
      const auto largest = recorded ? torch::zeros({}, scales.options()) : Tensor();
      const auto scale = scale_of(largest, operand);
      cast = cast_twice_on_gpu(*library, rows, scale, format_of(operand), largest);
      cast.scale = scale;
      if (recorded) history->record(operand, largest);
    } else {
      cast = by_amax(*library, rows, operand, /*twice=*/true);
    }
    const Float8Tensor by_rows{cast.values, cast.scale, block, cast.inverse};
    const Float8Tensor by_columns{cast.transposed, cast.scale, block, cast.inverse};
    if (is_turned) return {by_columns, by_rows.t()};
    return {by_rows, by_columns.t()};
  }

  torch::ScalarType format_of(Operand operand) const {
    return operand == of_g ? recipe.gradient_format : recipe.forward_format;
  }
  CastTwice by_amax(const gpu::Library& library, const Tensor& matrix, Operand operand, bool twice) const {
    const auto format = format_of(operand);
    const double highest = float8_max(format) * std::exp2(-recipe.margin);
    return cast_by_amax_on_gpu(library, matrix, format, highest, recipe.power_of_two_scales, twice);
  }

  const Weight& quantized_weight(const Tensor& matrix, bool recorded) {
    if (!weight || !weight->is_of(matrix)) {
      Weight made;
      made.source = matrix.detach();
      made.version = matrix.is_inference() ? 0 : static_cast<std::int64_t>(matrix._version());
      if (recipe.delayed) made.largest = float8_amax(matrix);
      const bool is_one = recipe.w_for_dx == recipe.w;
      auto both = quantized_twice(matrix, recipe.w, of_w, false);
      made.for_y = std::move(both.plain);
      made.for_dx = is_one ? std::move(both.turned) : quantized(matrix, recipe.w_for_dx, of_w, false);
      weight = std::move(made);
    }
    if (history && recorded) history->record(of_w, weight->largest);
    return *weight;
  }

  void move_to(torch::Device device) {
    if (!history || scales.device() == device) return;
    history->to(device);
    scales = scales.to(device);
  }

  Float8Recipe recipe;
  torch::ScalarType output;
  std::optional<AmaxHistory> history;  // delayed
  Tensor scales;                       // delayed
  std::optional<Weight> weight;
};

// x, weight and bias as in forward; `recorded`: backward will follow.
struct Float8Function final : torch::autograd::Function<Float8Function> {
  struct Held final : torch::CustomClassHolder {
    explicit Held(std::shared_ptr<Float8Linear::Layer> held) : layer(std::move(held)) {}
    std::shared_ptr<Float8Linear::Layer> layer;
  };

  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, const std::shared_ptr<Float8Linear::Layer>& layer,
                        bool recorded) {
    // This layer chooses the dtype that it computes in, not an autocast around it.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto& recipe = layer->recipe;
    layer->move_to(x.device());
    const auto rows = x.reshape({-1, x.size(-1)}).to(layer->output);
    const bool takes_both = recorded && weight.requires_grad() && recipe.dw_in_float8 && recipe.x_for_dw == recipe.x;
    const auto x8 = takes_both ? layer->quantized_twice(rows, recipe.x, of_x, recorded)
                               : Float8Linear::Layer::Quantized{layer->quantized(rows, recipe.x, of_x, recorded), {}};
    const auto& w8 = layer->quantized_weight(weight, recorded);
    const auto added = bias ? bias->to(layer->output) : Tensor();
    const auto y = multiply(recipe, x8.plain, w8.for_y.t(), added, layer->output, true);
    if (recorded) {
      Float8Tensor for_dw, for_dx;
      if (weight.requires_grad() && !recipe.dw_in_float8) for_dw.values = rows;
      if (weight.requires_grad() && recipe.dw_in_float8)
        for_dw = takes_both ? x8.turned : layer->quantized(rows, recipe.x_for_dw, of_x, recorded);
      if (x.requires_grad()) for_dx = w8.for_dx;
      context->save_for_backward(
          {for_dw.values, for_dw.scale, for_dw.inverse, for_dx.values, for_dx.scale, for_dx.inverse});
      context->saved_data["bias"] = bias && bias->requires_grad();
      context->saved_data["layer"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(layer));
    }
    auto sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return y.view(sizes);
  }

  static torch::autograd::variable_list backward(AutogradContext* context, torch::autograd::variable_list gradients) {
    if (at::GradMode::is_enabled()) throw Error("a linear layer in fp8 has no second derivative; keep it in bf16");
    const auto layer = c10::static_intrusive_pointer_cast<Held>(context->saved_data["layer"].toCapsule())->layer;
    const auto& recipe = layer->recipe;
    const auto saved = context->get_saved_variables();
    const Float8Tensor x8{saved[0], saved[1], recipe.x_for_dw, saved[2]};
    const Float8Tensor w8{saved[3], saved[4], recipe.w_for_dx, saved[5]};
    const bool needs_dx = context->needs_input_grad(0), needs_dw = context->needs_input_grad(1);
    const auto g = gradients[0].reshape({-1, gradients[0].size(-1)}).to(layer->output);
    Float8Linear::Layer::Quantized g8;
    if (needs_dx || recipe.delayed) g8 = layer->quantized_twice(g, recipe.g, of_g, true);
    Tensor dx, dw, db;
    if (needs_dx) {
      auto sizes = gradients[0].sizes().vec();
      sizes.back() = w8.values.size(1);
      dx = multiply(recipe, g8.plain, w8, {}, layer->output, false).view(sizes);
    }
    if (needs_dw && !recipe.dw_in_float8) dw = at::mm(g.t(), x8.values);
    if (needs_dw && recipe.dw_in_float8) {
      const bool as_for_dx = g8.plain.values.defined() && recipe.g_for_dw == recipe.g;
      const auto for_dw = as_for_dx ? g8.turned : layer->quantized(g, recipe.g_for_dw, of_g, true);
      dw = multiply(recipe, for_dw.t(), x8, {}, layer->output, false);
    }
    if (context->saved_data["bias"].toBool()) db = g.sum(0);
    return {dx, dw, db, {}, {}};
  }
};

Float8Linear::Float8Linear(Float8Recipe recipe, torch::ScalarType output) : layer_(std::make_shared<Layer>()) {
  if (output != float32 && output != torch::kBFloat16 && output != torch::kFloat16) {
    throw Error(c10::str("fp8 products are rounded to Float, BFloat16 or Half, not to ", output),
                Error::Kind::configuration);
  }
  layer_->output = output;
  if (recipe.delayed) {
    layer_->history.emplace(recipe.amax_history_len, /*columns=*/3, recipe.most_recent);
    layer_->scales = torch::ones({3});
  }
  layer_->recipe = std::move(recipe);
}
Float8Linear::~Float8Linear() = default;
Float8Linear::Float8Linear(Float8Linear&&) noexcept = default;
Float8Linear& Float8Linear::operator=(Float8Linear&&) noexcept = default;

Tensor Float8Linear::forward(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (weight.dim() != 2 || x.dim() == 0 || x.size(-1) != weight.size(1)) {
    throw Error(c10::str("a linear layer of weight ", weight.sizes(), " cannot take an input of shape ", x.sizes()));
  }
  const bool recorded = at::GradMode::is_enabled() &&
                        (x.requires_grad() || weight.requires_grad() || (bias.defined() && bias.requires_grad()));
  return Float8Function::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, layer_, recorded);
}

void Float8Linear::update() {
  auto& layer = *layer_;
  layer.weight.reset();
  if (!layer.history) return;
  const torch::NoGradGuard no_grad;
  const auto [largest, makes_scale] = layer.history->end_update();
  const auto scale = [&](const Tensor& amax, torch::ScalarType format) {
    return float8_scale(amax, format, layer.recipe.margin, layer.recipe.power_of_two_scales);
  };
  const auto moved = at::cat({scale(largest.narrow(0, of_x, 2), layer.recipe.forward_format),
                              scale(largest.narrow(0, of_g, 1), layer.recipe.gradient_format)});
  // A new tensor: a graph may hold the scales that it was made with.
  layer.scales = at::where(makes_scale, moved, layer.scales);
}

State Float8Linear::state_dict() const {
  State state;
  if (!layer_->history) return state;
  state.put("amax_history", layer_->history->tensor());
  state.put("scales", layer_->scales);
  return state;
}

void Float8Linear::load_state_dict(const State& state) {
  if (!layer_->history) return;
  const auto scales = state.tensor("scales");
  layer_->history->load(state.tensor("amax_history"));
  layer_->scales = scales.to(layer_->scales.options(), false, true);
  layer_->weight.reset();
}

}  // namespace vernier
