#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/lab/emulated_matmul.h>
#include <vernier/options.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "base/parallel.h"
#include "lab/kernels/accumulator_kernel.h"
#include "lab/kernels/lab_kernels.h"

namespace vernier {

namespace {

constexpr std::int64_t numbers_a_task = 16384;

void require_operand(const UnitOperand& operand, const char* name) {
  const auto& x = operand.numbers;
  if (!x.defined() || x.scalar_type() != torch::kFloat32) {
    throw Error(c10::str("emulated_matmul multiplies float32, and ", name, " is ",
                         x.defined() ? c10::str("of ", x.scalar_type()) : "undefined"));
  }
  if (x.dim() < 2) {
    throw Error(c10::str("emulated_matmul multiplies matrices, and ", name, " is of shape ", x.sizes()));
  }
  const auto& least = operand.least_exponents;
  if (least.defined() && (least.scalar_type() != torch::kInt16 || (least.dim() != 0 && least.sizes() != x.sizes()))) {
    throw Error(c10::str("the least exponents of ", name, " are int16 of its shape ", x.sizes(), " or 0-dim, not ",
                         least.scalar_type(), " of shape ", least.sizes()));
  }
  for (const auto& scales : {operand.block_scales, operand.inner_scales}) {
    if (!scales.defined() || (scales.scalar_type() == torch::kFloat32 && scales.sizes() == x.sizes())) continue;
    throw Error(c10::str("the block scales of ", name, " are float32 of its shape ", x.sizes(), ", not ",
                         scales.scalar_type(), " of shape ", scales.sizes()));
  }
}

// Contiguous matrices with the exponents of their numbers.
struct UnitMatrices {
  at::Tensor numbers, exponents, scales;  // [batch, rows, columns]; scales may be undefined
  int significant_bits = 1;               // bits of the longest number
};

std::int16_t exponent_of(float x, std::int16_t least) {
  const auto bits = std::bit_cast<std::uint32_t>(x) & 0x7fffffffU;
  if (bits == 0) return exponent_of_zero;
  if (bits >= 0x7f800000U) return exponent_of_non_finite;
  const int exponent = bits < 0x800000U ? std::bit_width(bits) - 150 : static_cast<int>(bits >> 23) - 127;
  return std::max(static_cast<std::int16_t>(exponent), least);
}

UnitMatrices prepared(const UnitOperand& operand, at::IntArrayRef batch) {
  const auto& x = operand.numbers;
  auto sizes = batch.vec();
  sizes.insert(sizes.end(), {x.size(-2), x.size(-1)});
  const auto of = [&, count = c10::multiply_integers(batch)](const at::Tensor& tensor) {
    return tensor.expand(sizes).reshape({count, x.size(-2), x.size(-1)}).contiguous();
  };
  UnitMatrices matrices;
  matrices.numbers = of(x);
  matrices.exponents = at::empty(matrices.numbers.sizes(), at::kShort);
  if (operand.block_scales.defined()) matrices.scales = of(operand.block_scales);
  const auto& least = operand.least_exponents;
  const auto each = least.defined() && least.dim() != 0 ? of(least) : at::Tensor();
  const auto all = least.defined() && least.dim() == 0 ? least.item<std::int16_t>() : exponent_of_zero;
  const auto* const from = matrices.numbers.const_data_ptr<float>();
  const auto* const leasts = each.defined() ? each.const_data_ptr<std::int16_t>() : nullptr;
  auto* const to = matrices.exponents.mutable_data_ptr<std::int16_t>();
  const auto count = matrices.numbers.numel(), tasks = (count + numbers_a_task - 1) / numbers_a_task;
  std::atomic<std::uint32_t> fractions = 0;
  for_each_chunk(static_cast<std::size_t>(tasks), /*chunks_a_thread=*/2, [&](std::size_t task) {
    const auto first = static_cast<std::int64_t>(task) * numbers_a_task;
    std::uint32_t mine = 0;
    for (auto i = first; i < std::min(count, first + numbers_a_task); ++i) {
      to[i] = exponent_of(from[i], std::clamp<std::int16_t>(leasts == nullptr ? all : leasts[i], -2000, 2000));
      mine |= std::bit_cast<std::uint32_t>(from[i]);
    }
    fractions |= mine & 0x7fffffU;
  });
  matrices.significant_bits = fractions == 0 ? 1 : 24 - std::countr_zero(fractions.load());
  return matrices;
}

// b in panels of tile_columns columns, filled up with zeros.
struct Panels {
  explicit Panels(const UnitMatrices& b)
      : batch(b.numbers.size(0)),
        rows(b.numbers.size(1)),
        columns(b.numbers.size(2)),
        count((columns + tile_columns - 1) / tile_columns),
        numbers(at::empty({batch, count, rows, tile_columns})),
        exponents(at::empty({batch, count, rows, tile_columns}, at::kShort)) {
    copy(b.numbers.const_data_ptr<float>(), numbers.mutable_data_ptr<float>(), 0.0F);
    copy(b.exponents.const_data_ptr<std::int16_t>(), exponents.mutable_data_ptr<std::int16_t>(), exponent_of_zero);
    if (!b.scales.defined()) return;
    scales = at::empty_like(numbers);
    copy(b.scales.const_data_ptr<float>(), scales.mutable_data_ptr<float>(), 0.0F);
  }
  template <class Number>
  void copy(const Number* from, Number* to, Number zero) const {
    for_each_chunk(static_cast<std::size_t>(batch * count), /*chunks_a_thread=*/2, [&](std::size_t task) {
      const auto panel = static_cast<std::int64_t>(task);
      const auto first = panel % count * tile_columns, width = std::min(tile_columns, columns - first);
      for (std::int64_t row = 0; row < rows; ++row) {
        const auto* const source = from + (panel / count * rows + row) * columns + first;
        auto* const target = to + (panel * rows + row) * tile_columns;
        std::fill(std::copy(source, source + width, target), target + tile_columns, zero);
      }
    });
  }
  std::int64_t batch, rows, columns, count;
  at::Tensor numbers, exponents, scales;
};

// Returns whether so many numbers along the summed dimension share a scale each. scales: [..., k]; a NaN equals NaN.
bool share_scales(const at::Tensor& scales, std::int64_t count) {
  for (std::int64_t from = 0; from < scales.size(-1); from += count) {
    const auto of = scales.narrow(-1, from, std::min(count, scales.size(-1) - from)), first = of.narrow(-1, 0, 1);
    if (!of.eq(first).logical_or(of.isnan().logical_and(first.isnan())).all().item<bool>()) return false;
  }
  return true;
}

// Refuses block scales that differ within a promotion, or within what Sum::block_scaled adds exactly. The last
// dimension is the summed one.
void require_blocks(const UnitOperand& of, const MatrixUnit& unit, const char* name) {
  const auto &outside = of.block_scales, &inner = of.inner_scales;
  const auto every = unit.promote_every;
  if (outside.defined() && (every == 0 || !share_scales(outside, every))) {
    throw Error(
        c10::str("the float32 scales of the blocks of ", name, " are outside of the matrix unit, so it must promote ",
                 "within each block, and promote_every is ", every, "; write a divisor of the block size"),
        Error::Kind::configuration);
  }
  if (unit.sum == MatrixUnit::Sum::block_scaled && inner.defined() && !share_scales(inner, 16)) {
    throw Error(
        c10::str("the matrix unit multiplies 16 numbers of ", name, " by one scale, and the blocks are smaller"),
        Error::Kind::configuration);
  }
}

at::Tensor multiplied(const UnitMatrices& a, const UnitMatrices& b, const AccumulatorRule& rule) {
  const Panels panels(b);
  const auto rows = a.numbers.size(1), k = a.numbers.size(2);
  const auto bands = (rows + tile_rows - 1) / tile_rows;
  auto y = at::empty({panels.batch, rows, panels.columns});
  auto* const to = y.mutable_data_ptr<float>();
  const auto* const a_numbers = a.numbers.const_data_ptr<float>();
  const auto* const a_exponents = a.exponents.const_data_ptr<std::int16_t>();
  const auto* const b_numbers = panels.numbers.const_data_ptr<float>();
  const auto* const b_exponents = panels.exponents.const_data_ptr<std::int16_t>();
  const auto* const a_scales = a.scales.defined() ? a.scales.const_data_ptr<float>() : nullptr;
  const auto* const b_scales = panels.scales.defined() ? panels.scales.const_data_ptr<float>() : nullptr;
  const auto tasks = static_cast<std::size_t>(panels.batch * panels.count * bands);
  for_each_chunk(tasks, /*chunks_a_thread=*/2, [&](std::size_t task) {
    const auto index = static_cast<std::int64_t>(task), panel = index / bands;
    const auto matrix = panel / panels.count, row = index % bands * tile_rows;
    const auto column = panel % panels.count * tile_columns;
    const auto of_a = (matrix * rows + row) * k, of_b = panel * k * tile_columns;
    best_kernels<AccumulatorKernels>()->multiply_tile(
        rule, {a_numbers + of_a, a_exponents + of_a, b_numbers + of_b, b_exponents + of_b,
               a_scales == nullptr ? nullptr : a_scales + of_a, b_scales == nullptr ? nullptr : b_scales + of_b,
               std::min(tile_rows, rows - row), std::min(tile_columns, panels.columns - column), k,
               to + (matrix * rows + row) * panels.columns + column, panels.columns});
  });
  return y;
}

UnitOperand transposed(const UnitOperand& x) {
  return mapped(x, [](const at::Tensor& tensor) { return tensor.transpose(-2, -1); });
}

// Takes the inner scales out of the numbers where the unit multiplies by them.
UnitOperand on_cpu(const UnitOperand& x, const MatrixUnit& unit) {
  auto y = mapped(x, [](const at::Tensor& tensor) { return tensor.cpu(); });
  if (unit.sum != MatrixUnit::Sum::block_scaled || !x.inner_scales.defined()) return y;
  y.block_scales = y.inner_scales;
  y.numbers = at::where(y.block_scales.eq(0), y.numbers, y.numbers / y.block_scales);
  return y;
}

// Without scales.
at::Tensor product(const UnitOperand& a, const UnitOperand& b, const MatrixUnit& unit) {
  const auto n = a.numbers.size(-2), m = b.numbers.size(-1);
  // Tiles are filled up to tile_columns columns, and rows need no filling.
  if (m < tile_columns && m < n) return product(transposed(b), transposed(a), unit).transpose(-2, -1);
  const auto leading = [](const at::Tensor& x) { return x.sizes().slice(0, static_cast<std::size_t>(x.dim() - 2)); };
  auto sizes = at::infer_size(leading(a.numbers), leading(b.numbers));
  const auto x = prepared(a, sizes), w = prepared(b, sizes);
  sizes.insert(sizes.end(), {n, m});
  // A product is below 2^(fraction + 2) of the units in which a step adds, and the sum so far below half of that.
  const auto has_room = [&](std::int64_t products) {
    return ((2 * products + 1) << (unit.fraction + 1)) < (std::int64_t{1} << 31) - 256;
  };
  // With more fraction bits float32 lacks the powers of two of a fast step.
  const bool is_common = unit.sum == MatrixUnit::Sum::aligned && !unit.is_half && unit.fraction <= 25;
  const AccumulatorRule rule{
      unit, is_common && x.significant_bits + w.significant_bits <= 24 && has_room(std::min(unit.chunk, fast_products)),
      unit.fraction > 23 || !has_room(unit.chunk)};
  return multiplied(x, w, rule).view(sizes);
}

}  // namespace

void MatrixUnit::check() const {
  const auto refuse = [](const std::string& text) {
    throw Error("the matrix unit cannot be: " + text, Error::Kind::configuration);
  };
  if (fraction < 1 || fraction > 31) refuse(c10::str("fraction is ", fraction, ", and 1 to 31 bits are possible"));
  if (chunk < 1 || chunk > 1024) refuse(c10::str("chunk is ", chunk, ", and 1 to 1024 products are possible"));
  if (promote_every < 0 || promote_every % chunk != 0) {
    refuse(c10::str("promote_every is ", promote_every, ", and multiples of chunk (", chunk, ") are possible, or 0"));
  }
}

MatrixUnit matrix_unit(const std::string& name, int bits) {
  struct Row {
    const char* name;
    int most_bits;  // bits of the longest format
    MatrixUnit unit;
  };
  using Sum = MatrixUnit::Sum;
  static const Row rows[] = {{"v100", 16, {.fraction = 23, .chunk = 4}},
                             {"a100", 16, {.fraction = 24, .chunk = 8}},
                             {"a100", 19, {.fraction = 24, .chunk = 4}},
                             {"ada", 8, {.fraction = 13, .chunk = 16}},
                             {"ada", 16, {.fraction = 24, .chunk = 8}},
                             {"ada", 19, {.fraction = 24, .chunk = 4}},
                             {"h100", 8, {.fraction = 13, .chunk = 32}},
                             {"h100", 16, {.fraction = 25, .chunk = 16}},
                             {"h100", 19, {.fraction = 25, .chunk = 8}},
                             {"b200", 4, {.chunk = 64, .sum = Sum::block_scaled}},
                             {"b200", 8, {.fraction = 25, .chunk = 32}},
                             {"b200", 16, {.fraction = 25, .chunk = 16}},
                             {"b200", 19, {.fraction = 25, .chunk = 8}},
                             {"cdna2", 16, {.chunk = 4, .sum = Sum::pairwise}},
                             {"cdna3", 8, {.chunk = 16, .sum = Sum::floored_twice}},
                             {"cdna3", 16, {.chunk = 8, .sum = Sum::floored}},
                             {"cdna3", 19, {.chunk = 4, .sum = Sum::floored}},
                             {"amx", 16, {.chunk = 32, .sum = Sum::even_odd}},
                             {"avx512_bf16", 16, {.chunk = 2, .sum = Sum::fma_pairs}},
                             {"arm_bfdot", 16, {.chunk = 2, .sum = Sum::to_odd}}};
  std::vector<std::string> names;
  int most = 0;
  for (const auto& row : rows) {
    if (names.empty() || names.back() != row.name) names.emplace_back(row.name);
    if (name != row.name) continue;
    if (bits <= row.most_bits) return row.unit;
    most = row.most_bits;
  }
  if (most != 0) {
    throw Error(c10::str("\"", name, "\" multiplies formats of up to ", most, " bits, and these have ", bits),
                Error::Kind::configuration);
  }
  const auto near = nearest(name, names);
  throw Error("there is no matrix unit \"" + name + "\"; " +
                  (near.empty() ? "there are " + c10::Join(", ", names) : "did you mean \"" + near + "\"?"),
              Error::Kind::configuration);
}

torch::Tensor emulated_matmul(const UnitOperand& a, const UnitOperand& b, const MatrixUnit& unit) {
  const torch::NoGradGuard no_grad;
  unit.check();
  require_operand(a, "a");
  require_operand(b, "b");
  if (a.numbers.size(-1) != b.numbers.size(-2)) {
    throw Error(
        c10::str("emulated_matmul sums over the last dimension of a and the last but one of b, and their shapes ",
                 a.numbers.sizes(), " and ", b.numbers.sizes(), " do not fit"));
  }
  require_blocks(a, unit, "a");
  require_blocks(transposed(b), unit, "b");
  auto y = product(on_cpu(a, unit), on_cpu(b, unit), unit).to(a.numbers.device());
  for (const auto* scale : {&a.scale, &b.scale}) {
    if (scale->defined()) y.mul_(scale->to(y.device()));
  }
  return y;
}

torch::Tensor emulated_matmul(const torch::Tensor& a, const torch::Tensor& b, const MatrixUnit& unit) {
  return emulated_matmul(UnitOperand{a}, UnitOperand{b}, unit);
}

}  // namespace vernier
