#include "products.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
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

struct Products::Held final : torch::CustomClassHolder {
  Held(std::shared_ptr<Products> of, Call next) : products(std::move(of)), call(std::move(next)) {}
  std::shared_ptr<Products> products;
  Call call;  // the state in which forward left it
};

namespace {

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

// Two operands as ten tensors of autograd, some of which are undefined, and the exact ones that a gradient needs.
void save(AutogradContext* context, const UnitOperand& a, const UnitOperand& b, const Tensor& x = {},
          const Tensor& w = {}) {
  context->save_for_backward({a.numbers, a.least_exponents, a.scale, a.block_scales, a.inner_scales, b.numbers,
                              b.least_exponents, b.scale, b.block_scales, b.inner_scales, x, w});
}
UnitOperand saved(const variable_list& list, std::size_t first) {
  return {list[first], list[first + 1], list[first + 2], list[first + 3], list[first + 4]};
}

// The product of a slot and the other one.
Tensor multiplied(const Recipe& recipe, Slot slot, const UnitOperand& a, const UnitOperand& b) {
  const auto* const unit = recipe.unit(slot);
  return unit != nullptr ? vernier::emulated_matmul(a, b, *unit) : at::matmul(value(a), value(b));
}

// The summed dimension times a matrix, in pieces of its size; the last piece is filled up with zeros.
Tensor multiplied_along(const Tensor& x, const Tensor& matrix, int summed) {
  if (summed == -1) return multiplied_along(x.transpose(-2, -1), matrix, -2).transpose(-2, -1);
  const auto n = matrix.size(0);
  const auto exact = x.to(torch::kFloat32);
  const auto missing = (n - x.size(-2) % n) % n;
  const auto whole = missing == 0 ? exact : at::constant_pad_nd(exact, {0, 0, 0, missing});
  auto pieces = whole.sizes().vec();
  pieces.insert(pieces.end() - 1, n);
  pieces[pieces.size() - 3] /= n;
  return at::matmul(matrix.to(x.device()), whole.reshape(pieces)).reshape(whole.sizes());
}

// Returns the matrix that rotates the operands of one product. Its inverse is its transpose.
Tensor matrix_of(const Recipe& recipe, Slot slot, std::uint64_t product_seed) {
  const auto& rotation = recipe.rotation(slot);
  if (!recipe.draws_signs) return rotation.matrix;
  const auto signs = vernier::uniform_like(torch::empty({rotation.size}), product_seed + static_cast<int>(slot) / 2);
  return rotation.matrix * signs.lt(0.5).mul(2).sub(1);
}

Tensor rotated(const Recipe& recipe, Slot slot, std::uint64_t product_seed, const Tensor& x, int summed) {
  if (recipe.rotation(slot).size == 0) return x;
  return multiplied_along(x, matrix_of(recipe, slot, product_seed), summed);
}
// The inverse, of `size` numbers along the summed dimension.
Tensor turned_back(const Recipe& recipe, Slot slot, std::uint64_t product_seed, const Tensor& x, int summed,
                   std::int64_t size) {
  if (recipe.rotation(slot).size == 0) return x;
  return multiplied_along(x, matrix_of(recipe, slot, product_seed).t(), summed).narrow(summed, 0, size);
}

}  // namespace

bool Recipe::is_exact() const {
  return std::ranges::all_of(ways, [](const Way& way) { return way.quantizer == nullptr; });
}

From Recipe::from(Slot slot, bool is_weight) const {
  const auto& way = at(slot);
  if (way.from != From::automatic) return way.from;
  const bool is_same = source(slot) != slot && way.quantizer == at(source(slot)).quantizer;
  if (!is_same || rotation(slot).size != 0 || rotation(source(slot)).size != 0) return From::exact;
  const bool serves = way.quantizer == nullptr || way.quantizer->serves_both(is_weight);
  return serves || (slot != Slot::dw_g && !rounds(other(slot))) ? From::codes : From::exact;
}

bool Recipe::draws() const {
  return draws_signs ||
         std::ranges::any_of(slots, [this](Slot slot) { return rounds(slot) && at(slot).quantizer->draws(); });
}

// A product draws its random seed in forward, even if no gradient is asked for. So a recomputation draws the same one.
Products::Call Products::begin(const Recipe& recipe, const std::string& layer, bool is_recorded) {
  return {&recipe, layer, is_recorded, recipe.draws() ? drawn_seed() : 0};
}

// Called first by each backward.
c10::intrusive_ptr<Products::Held> Products::held_in(AutogradContext* context) {
  if (at::GradMode::is_enabled()) {
    throw vernier::Error(
        "a product in precision/format has no second derivative; keep its layer in float32 by a [[precision.rule]]");
  }
  return c10::static_intrusive_pointer_cast<Held>(context->saved_data["held"].toCapsule());
}

void Products::note(const std::string& name, const Tensor& x, const Tensor& y, const FormatQuantizer* own, int summed) {
  const auto exact = x.to(torch::kFloat32);
  auto& loss = losses_[name];
  loss.numbers += static_cast<double>(x.numel());
  if (x.numel() > 0) loss.largest = std::max(loss.largest, exact.abs().max().item<double>());
  loss.squares += exact.square().sum(at::kDouble).item<double>();
  loss.errors += (exact - y).square_().sum(at::kDouble).item<double>();
  loss.flushed += y.eq(0).logical_and_(exact.ne(0)).sum().item<double>();
  if (own == nullptr) return;
  const auto& format = own->format();
  const auto& [block, draw] = own->last();
  // The same rounding, with infinity or NaN for what is beyond the largest number.
  auto open = format;
  open.element.saturate = false;
  open.element.infinities = open.element.infinities || open.element.nan != vernier::NumberFormat::Nan::negative_zero;
  const auto beyond = vernier::round_to(x, open, block).isfinite().logical_not_().logical_and_(exact.isfinite());
  loss.saturated += beyond.sum().item<double>();
  const auto codes = vernier::element_numbers(x, format, block, draw);
  if (format.block > 0 && x.numel() > 0) {
    const auto amax_of = [&, &b = block, n = format.block](const Tensor& of) {
      const auto rows = (summed == -2 ? of.transpose(-2, -1) : of).reshape({-1, of.size(summed)});
      return vernier::float8_amax(rows, b.rows == b.columns ? b : ScaleBlock{1, n});
    };
    const auto amax = amax_of(exact), some = amax.masked_select(amax.gt(0));
    loss.blocks += static_cast<double>(amax.numel());
    loss.full_blocks += amax_of(codes).ge(format.element.largest()).sum().item<double>();
    if (some.numel() > 0) {
      loss.most_of_block = std::max(loss.most_of_block, some.max().item<double>());
      loss.least_of_block = std::min(loss.least_of_block, some.min().item<double>());
    }
  }
  if (!UsedCodes::can_count(format.element)) return;
  loss.codes.add(codes);
  loss.element = format.element;
}

vernier::Operand Products::operand(const Call& call, const Tensor& x, Slot slot, int summed, bool is_weight) {
  const auto exact = x.to(torch::kFloat32);
  return {.numbers = summed == -1 ? exact : exact.transpose(-2, -1),
          .slot = slot,
          .key = call.layer + "/" + vernier::slot_name(slot),
          .is_weight = is_weight,
          .is_recorded = call.is_recorded,
          .is_turned = summed == -2,
          .is_for_unit = call.recipe->has_unit(),
          .seed = call.seed,
          .product_seed = call.product_seed};
}

UnitOperand Products::rounded(Call& call, const Tensor& x, Slot slot, int summed, bool is_weight) {
  const auto& quantizer = call.recipe->at(slot).quantizer;
  if (quantizer == nullptr) return {x.to(torch::kFloat32)};
  auto of = operand(call, x, slot, summed, is_weight);
  ++call.seed;
  const auto letter = call.layer + "/" + of.key.back();
  const auto* const own = dynamic_cast<const FormatQuantizer*>(quantizer.get());
  const auto size = of.numbers.size(-1), block = own != nullptr ? own->format().block : quantizer->multiple();
  if (notes_uneven_ && block > 0 && size % block != 0) uneven_.insert(letter + " (" + std::to_string(size) + ")");
  auto y = quantizer->rounded(std::move(of));
  if (summed == -2) y = turned(y);
  if (measures_) note(letter, x, value(y), own, summed);
  return y;
}

UnitOperand Products::again(Call& call, const Tensor& exact, const UnitOperand& of_y, Slot slot, int summed,
                            bool is_weight) {
  const auto& recipe = *call.recipe;
  const auto from = recipe.from(slot, is_weight);
  if (from == From::codes) return of_y;
  const int other = -3 - summed;  // the dimension that y sums over
  const auto source = from == From::exact ? exact
                                          : turned_back(recipe, Recipe::source(slot), call.product_seed, value(of_y),
                                                        other, exact.size(other));
  return rounded(call, rotated(recipe, slot, call.product_seed, source, summed), slot, summed, is_weight);
}

Tensor Products::passed(const Call& call, const Tensor& x, const Tensor& gradient, Slot slot, int summed,
                        bool is_weight) {
  const auto& recipe = *call.recipe;
  const auto in_pieces = [&](const Tensor& tensor) {
    return rotated(recipe, slot, call.product_seed, tensor, summed).to(torch::kFloat32);
  };
  auto of = operand(call, in_pieces(x), slot, summed, is_weight);
  of.seed = call.product_seed + (slot == Slot::y_w && recipe.rounds(Slot::y_x) ? 1 : 0);  // the seed of forward
  const auto given = in_pieces(gradient);
  const auto passes = gradient_through(*recipe.at(slot).quantizer, of, summed == -1 ? given : given.transpose(-2, -1));
  return turned_back(recipe, slot, call.product_seed, summed == -1 ? passes : passes.transpose(-2, -1), summed,
                     x.size(summed));
}

// Matrices of square blocks lie over outputs and channels, one for each position of the kernel.
UnitOperand Products::kernel(Call& call, const Tensor& weight, Slot slot) {
  const auto sizes = weight.sizes();
  const auto* const quantizer = call.recipe->at(slot).quantizer.get();
  const auto* const own = dynamic_cast<const FormatQuantizer*>(quantizer);
  if (quantizer == nullptr || (own != nullptr && !own->has_squares())) {
    return as(rounded(call, slot == Slot::y_w ? by_channels(weight) : by_samples(weight), slot, -2), sizes);
  }
  const auto matrices = by_channels(weight).permute({2, 0, 1});
  return mapped(rounded(call, matrices, slot, slot == Slot::y_w ? -1 : -2, /*is_weight=*/true),
                [&](const Tensor& tensor) {
                  return tensor.permute({1, 2, 0}).reshape(sizes);
                });
}

struct MatmulFunction final : torch::autograd::Function<MatmulFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& a, const Tensor& b,
                        const std::shared_ptr<Products>& products, const Recipe* recipe, const std::string& layer,
                        bool is_weight, bool is_recorded) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    auto& p = *products;
    auto call = Products::begin(*recipe, layer, is_recorded);
    const auto in_pieces = [&](const Tensor& of, Slot slot, int summed) {
      return rotated(*recipe, slot, call.product_seed, of, summed);
    };
    const auto x = p.rounded(call, in_pieces(a, Slot::y_x, -1), Slot::y_x, -1);
    const auto w = p.rounded(call, in_pieces(b, Slot::y_w, -2), Slot::y_w, -2, is_weight);
    const auto y = multiplied(*recipe, Slot::y_x, x, w);
    if (is_recorded) {
      UnitOperand for_dx, for_dw;
      if (a.requires_grad()) for_dx = p.again(call, b, w, Slot::dx_w, -1, is_weight);
      if (b.requires_grad()) for_dw = p.again(call, a, x, Slot::dw_x, -2, false);
      const auto exact = [&](const Tensor& of, Slot slot) {
        const auto& quantizer = recipe->at(slot).quantizer;
        return quantizer != nullptr && quantizer->has_gradient() && of.requires_grad() ? of : Tensor();
      };
      save(context, for_dx, for_dw, exact(a, Slot::y_x), exact(b, Slot::y_w));
      context->saved_data["held"] = c10::IValue::make_capsule(c10::make_intrusive<Products::Held>(products, call));
      context->saved_data["a"] = a.sizes().vec();
      context->saved_data["b"] = b.sizes().vec();
      context->saved_data["is_weight"] = is_weight;
    }
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto held = Products::held_in(context);
    auto& p = *held->products;
    auto call = held->call;
    const auto& recipe = *call.recipe;
    const auto list = context->get_saved_variables();
    const auto& g = gradients[0];
    const auto in_pieces = [&](Slot slot, int summed) { return rotated(recipe, slot, call.product_seed, g, summed); };
    Tensor da, db;
    UnitOperand g_for_dx;
    if (context->needs_input_grad(0)) {
      g_for_dx = p.rounded(call, in_pieces(Slot::dx_g, -1), Slot::dx_g, -1);
      da = at::sum_to(multiplied(recipe, Slot::dx_g, g_for_dx, turned(saved(list, 0))),
                      context->saved_data["a"].toIntVector());
      if (list[10].defined()) da = Products::passed(call, list[10], da, Slot::y_x, -1, false);
    }
    if (context->needs_input_grad(1)) {
      const bool is_there = g_for_dx.numbers.defined() && recipe.from(Slot::dw_g) == From::codes;
      const auto g_for_dw = is_there ? g_for_dx : p.rounded(call, in_pieces(Slot::dw_g, -2), Slot::dw_g, -2);
      db = at::sum_to(multiplied(recipe, Slot::dw_g, turned(saved(list, 5)), g_for_dw),
                      context->saved_data["b"].toIntVector());
      if (list[11].defined()) {
        db = Products::passed(call, list[11], db, Slot::y_w, -2, context->saved_data["is_weight"].toBool());
      }
    }
    return {da, db, {}, {}, {}, {}, {}};
  }
};

struct ConvolutionFunction final : torch::autograd::Function<ConvolutionFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight,
                        const std::shared_ptr<Products>& products, const Recipe* recipe, const std::string& layer,
                        const Products::Convolution& shape, bool is_recorded) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    auto& p = *products;
    auto call = Products::begin(*recipe, layer, is_recorded);
    const auto x = as(p.rounded(call, by_channels(input), Slot::y_x, -2), input.sizes());
    const auto w = p.kernel(call, weight, Slot::y_w);
    const auto* const unit = recipe->unit(Slot::y_x);
    const auto y = unit != nullptr
                       ? unfolded_convolution(x, w, shape, *unit)
                       : at::convolution(value(x), value(w), {}, shape.stride, shape.padding, shape.dilation, false,
                                         std::vector<std::int64_t>(shape.stride.size(), 0), shape.groups);
    if (is_recorded) {
      const auto source = [&](Slot slot, const Tensor& exact, const UnitOperand& of_y) {
        return recipe->from(slot) == From::forward ? value(of_y) : exact;
      };
      UnitOperand for_dx, for_dw;
      if (input.requires_grad()) {
        const bool is_there = recipe->from(Slot::dx_w, true) == From::codes;
        for_dx = is_there ? w : p.kernel(call, source(Slot::dx_w, weight, w), Slot::dx_w);
      }
      if (weight.requires_grad()) {
        const bool is_there = recipe->from(Slot::dw_x) == From::codes;
        const auto samples = [&] { return by_samples(source(Slot::dw_x, input, x)); };
        for_dw =
            is_there
                ? x
                : as(p.rounded(call, rotated(*recipe, Slot::dw_x, call.product_seed, samples(), -2), Slot::dw_x, -2),
                     input.sizes());
      }
      // Only shapes count where no gradient is asked for, and these tensors are there anyway.
      save(context, for_dx.numbers.defined() ? for_dx : w, for_dw.numbers.defined() ? for_dw : x);
      auto& data = context->saved_data;
      data["held"] = c10::IValue::make_capsule(c10::make_intrusive<Products::Held>(products, call));
      data["input"] = input.sizes().vec();
      data["stride"] = shape.stride;
      data["padding"] = shape.padding;
      data["dilation"] = shape.dilation;
      data["groups"] = shape.groups;
    }
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto held = Products::held_in(context);
    auto& p = *held->products;
    auto call = held->call;
    const auto& recipe = *call.recipe;
    const auto list = context->get_saved_variables();
    const auto w = saved(list, 0), x = saved(list, 5);
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
      g_for_dx = as(p.rounded(call, by_channels(g), Slot::dx_g, -2), g.sizes());
      const auto* const unit = recipe.unit(Slot::dx_g);
      dx = unit != nullptr ? unfolded_input_gradient(g_for_dx, w, sizes, shape, *unit)
                           : std::get<0>(gradient(g_for_dx, true));
    }
    if (context->needs_input_grad(1)) {
      const bool is_there = g_for_dx.numbers.defined() && recipe.from(Slot::dw_g) == From::codes;
      const auto samples = [&] { return rotated(recipe, Slot::dw_g, call.product_seed, by_samples(g), -2); };
      const auto g_for_dw = is_there ? g_for_dx : as(p.rounded(call, samples(), Slot::dw_g, -2), g.sizes());
      const auto* const unit = recipe.unit(Slot::dw_g);
      dw = unit != nullptr ? unfolded_weight_gradient(x, g_for_dw, w.numbers.sizes(), shape, *unit)
                           : std::get<1>(gradient(g_for_dw, false));
    }
    return {dx, dw, {}, {}, {}, {}, {}};
  }
};

Tensor Products::matmul(const std::shared_ptr<Products>& products, const Recipe& recipe, const std::string& layer,
                        const Tensor& a, const Tensor& b, bool is_weight) {
  const bool is_recorded = at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad());
  return MatmulFunction::apply(a, b, products, &recipe, layer, is_weight, is_recorded);
}

Tensor Products::convolution(const std::shared_ptr<Products>& products, const Recipe& recipe, const std::string& layer,
                             const Tensor& input, const Tensor& weight, const Convolution& shape) {
  const bool is_recorded = at::GradMode::is_enabled() && (input.requires_grad() || weight.requires_grad());
  return ConvolutionFunction::apply(input, weight, products, &recipe, layer, shape, is_recorded);
}

}  // namespace formats
