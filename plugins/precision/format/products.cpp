#include "products.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <algorithm>

#include "stored.h"
#include "unfolded.h"

namespace formats {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using vernier::ScaleBlock;
using vernier::UnitOperand;

namespace {

struct Held final : torch::CustomClassHolder {
  Held(std::shared_ptr<Products> of, std::string name, std::uint64_t next)
      : products(std::move(of)), layer(std::move(name)), seed(next) {}
  std::shared_ptr<Products> products;
  std::string layer;
  std::uint64_t seed;  // the one that follows those of forward
};

// A product draws once, in forward, whether a gradient is asked for or not: so a recomputation repeats what it draws.
std::uint64_t seed_of(const Recipe& recipe) {
  return drawn(recipe.forward.rounding == vernier::Rounding::stochastic ? recipe.forward : recipe.backward).seed;
}

// Called first by each backward.
c10::intrusive_ptr<Held> held_in(AutogradContext* context) {
  if (at::GradMode::is_enabled()) {
    throw vernier::Error(
        "a product in precision/format has no second derivative; keep its layer in float32 by a [[precision.rule]]");
  }
  return c10::static_intrusive_pointer_cast<Held>(context->saved_data["held"].toCapsule());
}

// [N, C, ...] as matrices [N, C, positions], or as one matrix [N, the rest].
Tensor by_channels(const Tensor& x) {
  return x.reshape({x.size(0), x.size(1), -1});
}
Tensor by_samples(const Tensor& x) {
  return x.reshape({x.size(0), -1});
}
// Numbers by samples, of which a rotation may have added some, with the sizes of the others.
UnitOperand as(const UnitOperand& x, at::IntArrayRef sizes) {
  auto all = sizes.vec();
  all.front() = -1;
  return mapped(x, [&](const Tensor& tensor) { return tensor.view(all); });
}

// The numbers with their scale, for a product in float32.
Tensor value(const UnitOperand& x) {
  return x.scale.defined() ? x.numbers * x.scale : x.numbers;
}

Tensor multiplied(const Recipe& recipe, bool is_emulated, const UnitOperand& a, const UnitOperand& b) {
  return is_emulated ? vernier::emulated_matmul(a, b, *recipe.accumulator) : at::matmul(value(a), value(b));
}

UnitOperand transposed(const UnitOperand& x) {
  return mapped(x, [](const Tensor& tensor) { return tensor.transpose(-2, -1); });
}

// Two operands as six tensors of autograd, some of which are undefined.
void save(AutogradContext* context, const UnitOperand& a, const UnitOperand& b) {
  context->save_for_backward({a.numbers, a.least_exponents, a.scale, b.numbers, b.least_exponents, b.scale});
}
UnitOperand saved(const variable_list& list, std::size_t first) {
  return {list[first], list[first + 1], list[first + 2]};
}

}  // namespace

void Products::note(const std::string& name, const Tensor& x, const Tensor& y, const vernier::TensorFormat& format,
                    ScaleBlock block, const vernier::Draw& draw) {
  const auto exact = x.to(torch::kFloat32);
  auto& loss = losses_[name];
  loss.numbers += static_cast<double>(x.numel());
  if (x.numel() > 0) loss.largest = std::max(loss.largest, exact.abs().max().item<double>());
  loss.squares += exact.square().sum(at::kDouble).item<double>();
  loss.errors += (exact - y).square_().sum(at::kDouble).item<double>();
  loss.flushed += y.eq(0).logical_and_(exact.ne(0)).sum().item<double>();
  // The same rounding, with infinity or NaN for what is beyond the largest number.
  auto open = format;
  open.element.saturate = false;
  open.element.infinities = open.element.infinities || open.element.nan != vernier::NumberFormat::Nan::negative_zero;
  const auto beyond = vernier::round_to(x, open, block).isfinite().logical_not_().logical_and_(exact.isfinite());
  loss.saturated += beyond.sum().item<double>();
  if (!UsedCodes::can_count(format.element)) return;
  loss.codes.add(vernier::element_numbers(x, format, block, draw));
  loss.element = format.element;
}

UnitOperand Products::rounded(const Tensor& x, const std::string& layer, Operand operand, const OptionalFormat& wanted,
                              int summed, bool is_weight) {
  if (!wanted) return {x.to(torch::kFloat32)};
  static constexpr const char* names[] = {"/x", "/w", "/g"};
  const auto name = layer + names[static_cast<int>(operand)];
  const bool is_delayed = recipe_.delayed && wanted->block < 0;
  const auto format = is_delayed ? recipe_.delayed->of(name, *wanted, x, records_) : *wanted;
  ScaleBlock block = vernier::per_tensor;
  if (format.block > 0) {
    if (x.size(summed) % format.block != 0) note_uneven(name, x.size(summed), format.block);
    const bool is_square = is_weight && recipe_.square_weights;
    block = is_square      ? ScaleBlock{format.block, format.block}
            : summed == -1 ? ScaleBlock{1, format.block}
                           : ScaleBlock{format.block, 1};
  }
  auto draw = operand == Operand::g ? recipe_.backward : recipe_.forward;
  draw.seed = seed_++;
  auto y = recipe_.accumulator ? vernier::unit_operand(x, format, block, draw)
                               : UnitOperand{vernier::round_to(x, format, block, draw)};
  if (measures_) note(name, x, value(y), format, block, draw);
  return y;
}

void Products::note_uneven(const std::string& name, std::int64_t count, std::int64_t block) {
  if (!recipe_.refuses_uneven) {
    if (notes_uneven_) uneven_.insert(name + " (" + std::to_string(count) + ")");
    return;
  }
  throw vernier::Error(
      c10::str("blocks of ", block, " do not divide the ", count, " numbers that the product of ", name,
               " sums over; keep its layer out by a [[precision.rule]] with use = \"fp32\", or write "
               "uneven_blocks = \"shorter\""),
      vernier::Error::Kind::configuration);
}

// The dimension -2, in pieces of `hadamard` numbers; the last piece is filled up with zeros.
Tensor Products::rotated(const Tensor& x) const {
  if (!rotates()) return x;
  const auto n = recipe_.hadamard;
  const auto exact = x.to(torch::kFloat32), rotation = recipe_.rotation.to(x.device());
  const auto missing = (n - x.size(-2) % n) % n;
  const auto whole = missing == 0 ? exact : at::constant_pad_nd(exact, {0, 0, 0, missing});
  auto pieces = whole.sizes().vec();
  pieces.insert(pieces.end() - 1, n);
  pieces[pieces.size() - 3] /= n;
  return at::matmul(rotation, whole.reshape(pieces)).reshape(whole.sizes());
}

// Returns whether the numbers of one product serve another that sums over the other dimension.
bool Products::reuses(const OptionalFormat& first, const OptionalFormat& second, bool is_weight) const {
  if (first.has_value() != second.has_value()) return false;
  if (!first) return true;
  return first->name == second->name && (first->block <= 0 || (is_weight && recipe_.square_weights));
}

bool Products::rotates() const {
  return recipe_.hadamard != 0 && recipe_.x_for_dw && recipe_.g_for_dw;
}

// Returns whether x as it was rounded for y serves dw. It does where dw itself rounds nothing.
bool Products::takes_x_again() const {
  if (rotates()) return false;
  return (recipe_.x_for_dw && !recipe_.g_for_dw) || reuses(recipe_.x, recipe_.x_for_dw, false);
}

UnitOperand Products::kernel(const Tensor& weight, const std::string& layer, bool is_for_dx) {
  const auto& sizes = weight.sizes();
  if (!recipe_.square_weights) {
    const auto rows = is_for_dx ? by_samples(weight) : by_channels(weight);
    return as(rounded(rows, layer, Operand::w, recipe_.w, -2), sizes);
  }
  const auto matrices = by_channels(weight).permute({2, 0, 1});
  return mapped(rounded(matrices, layer, Operand::w, recipe_.w, -1, /*is_weight=*/true), [&](const Tensor& tensor) {
    return tensor.permute({1, 2, 0}).reshape(sizes);
  });
}

struct MatmulFunction final : torch::autograd::Function<MatmulFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& a, const Tensor& b,
                        const std::shared_ptr<Products>& products, const std::string& layer, bool is_weight,
                        bool is_recorded) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    using Operand = Products::Operand;
    auto& p = *products;
    const auto& recipe = p.recipe();
    p.seed_ = seed_of(recipe);
    const auto x = p.rounded(a, layer, Operand::x, recipe.x, -1);
    const auto w = p.rounded(b, layer, Operand::w, recipe.w, -2, is_weight);
    const auto y = multiplied(recipe, recipe.is_emulated(recipe.x, recipe.w), x, w);
    if (is_recorded) {
      // All copies are rounded from the exact tensors, not from rounded ones.
      UnitOperand for_dx, for_dw;
      if (a.requires_grad()) {
        for_dx = !recipe.g || p.reuses(recipe.w, recipe.w, is_weight)
                     ? w
                     : p.rounded(b, layer, Operand::w, recipe.w, -1, is_weight);
      }
      if (b.requires_grad()) {
        for_dw = p.takes_x_again() ? x : p.rounded(p.rotated(a), layer, Operand::x, recipe.x_for_dw, -2);
      }
      save(context, for_dx, for_dw);
      context->saved_data["held"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(products, layer, p.seed_));
      context->saved_data["a"] = a.sizes().vec();
      context->saved_data["b"] = b.sizes().vec();
    }
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    using Operand = Products::Operand;
    const auto held = held_in(context);
    auto& p = *held->products;
    p.records_ = true;
    p.seed_ = held->seed;
    const auto& recipe = p.recipe();
    const auto list = context->get_saved_variables();
    const auto& g = gradients[0];
    Tensor da, db;
    UnitOperand g_for_dx;
    if (context->needs_input_grad(0)) {
      g_for_dx = p.rounded(g, held->layer, Operand::g, recipe.g, -1);
      const bool is_emulated = recipe.is_emulated(recipe.g, recipe.w);
      da = at::sum_to(multiplied(recipe, is_emulated, g_for_dx, transposed(saved(list, 0))),
                      context->saved_data["a"].toIntVector());
    }
    if (context->needs_input_grad(1)) {
      const bool reuses = g_for_dx.numbers.defined() && !p.rotates() && p.reuses(recipe.g, recipe.g_for_dw, false);
      const auto g_for_dw = reuses ? g_for_dx : p.rounded(p.rotated(g), held->layer, Operand::g, recipe.g_for_dw, -2);
      const bool is_emulated = recipe.is_emulated(recipe.x_for_dw, recipe.g_for_dw);
      db = at::sum_to(multiplied(recipe, is_emulated, transposed(saved(list, 3)), g_for_dw),
                      context->saved_data["b"].toIntVector());
    }
    return {da, db, {}, {}, {}, {}};
  }
};

struct ConvolutionFunction final : torch::autograd::Function<ConvolutionFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight,
                        const std::shared_ptr<Products>& products, const std::string& layer,
                        const Products::Convolution& shape, bool is_recorded) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    using Operand = Products::Operand;
    auto& p = *products;
    const auto& recipe = p.recipe();
    p.seed_ = seed_of(recipe);
    const auto x = as(p.rounded(by_channels(input), layer, Operand::x, recipe.x, -2), input.sizes());
    const auto w = p.kernel(weight, layer, /*is_for_dx=*/false);
    const auto y = recipe.is_emulated(recipe.x, recipe.w)
                       ? unfolded_convolution(x, w, shape, *recipe.accumulator)
                       : at::convolution(value(x), value(w), {}, shape.stride, shape.padding, shape.dilation, false,
                                         std::vector<std::int64_t>(shape.stride.size(), 0), shape.groups);
    if (is_recorded) {
      UnitOperand for_dx, for_dw;
      if (input.requires_grad()) {
        for_dx = !recipe.g || p.reuses(recipe.w, recipe.w, true) ? w : p.kernel(weight, layer, /*is_for_dx=*/true);
      }
      if (weight.requires_grad()) {
        for_dw = p.takes_x_again() ? x
                                   : as(p.rounded(p.rotated(by_samples(input)), layer, Operand::x, recipe.x_for_dw, -2),
                                        input.sizes());
      }
      // Only shapes count where no gradient is asked for, and these tensors are there anyway.
      save(context, for_dx.numbers.defined() ? for_dx : w, for_dw.numbers.defined() ? for_dw : x);
      auto& data = context->saved_data;
      data["held"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(products, layer, p.seed_));
      data["input"] = input.sizes().vec();
      data["stride"] = shape.stride;
      data["padding"] = shape.padding;
      data["dilation"] = shape.dilation;
      data["groups"] = shape.groups;
    }
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    using Operand = Products::Operand;
    const auto held = held_in(context);
    auto& p = *held->products;
    p.records_ = true;
    p.seed_ = held->seed;
    const auto& recipe = p.recipe();
    const auto list = context->get_saved_variables();
    const auto w = saved(list, 0), x = saved(list, 3);
    const auto& g = gradients[0];
    auto& data = context->saved_data;
    const Products::Convolution shape{data["stride"].toIntVector(), data["padding"].toIntVector(),
                                      data["dilation"].toIntVector(), data["groups"].toInt()};
    const std::vector<std::int64_t> none(shape.stride.size(), 0);
    const auto sizes = data["input"].toIntVector();
    const auto gradient = [&](const UnitOperand& of, bool of_input) {
      const auto samples = value(x).slice(0, 0, of.numbers.size(0));  // a rotation has added some for dw
      return at::convolution_backward(value(of), samples, value(w), at::OptionalIntArrayRef(), shape.stride,
                                      shape.padding, shape.dilation, false, none, shape.groups,
                                      {of_input, !of_input, false});
    };
    Tensor dx, dw;
    UnitOperand g_for_dx;
    if (context->needs_input_grad(0)) {
      g_for_dx = as(p.rounded(by_channels(g), held->layer, Operand::g, recipe.g, -2), g.sizes());
      dx = recipe.is_emulated(recipe.g, recipe.w)
               ? unfolded_input_gradient(g_for_dx, w, sizes, shape, *recipe.accumulator)
               : std::get<0>(gradient(g_for_dx, true));
    }
    if (context->needs_input_grad(1)) {
      const bool reuses = g_for_dx.numbers.defined() && !p.rotates() && p.reuses(recipe.g, recipe.g_for_dw, false);
      const auto g_for_dw =
          reuses ? g_for_dx
                 : as(p.rounded(p.rotated(by_samples(g)), held->layer, Operand::g, recipe.g_for_dw, -2), g.sizes());
      dw = recipe.is_emulated(recipe.x_for_dw, recipe.g_for_dw)
               ? unfolded_weight_gradient(x, g_for_dw, w.numbers.sizes(), shape, *recipe.accumulator)
               : std::get<1>(gradient(g_for_dw, false));
    }
    return {dx, dw, {}, {}, {}, {}};
  }
};

Tensor Products::matmul(const std::shared_ptr<Products>& products, const std::string& layer, const Tensor& a,
                        const Tensor& b, bool is_weight) {
  const bool is_recorded = at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad());
  products->records_ = is_recorded;
  return MatmulFunction::apply(a, b, products, layer, is_weight, is_recorded);
}

Tensor Products::convolution(const std::shared_ptr<Products>& products, const std::string& layer, const Tensor& input,
                             const Tensor& weight, const Convolution& shape) {
  const bool is_recorded = at::GradMode::is_enabled() && (input.requires_grad() || weight.requires_grad());
  products->records_ = is_recorded;
  return ConvolutionFunction::apply(input, weight, products, layer, shape, is_recorded);
}

}  // namespace formats
