#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/lab/emulated_matmul.h>

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
}

// Contiguous matrices with the exponents of their numbers.
struct UnitMatrices {
  at::Tensor numbers, exponents;  // [batch, rows, columns]
  int significant_bits = 1;       // bits of the longest number
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
  at::Tensor numbers, exponents;
};

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
  const auto tasks = static_cast<std::size_t>(panels.batch * panels.count * bands);
  for_each_chunk(tasks, /*chunks_a_thread=*/2, [&](std::size_t task) {
    const auto index = static_cast<std::int64_t>(task), panel = index / bands;
    const auto matrix = panel / panels.count, row = index % bands * tile_rows;
    const auto column = panel % panels.count * tile_columns;
    const auto of_a = (matrix * rows + row) * k, of_b = panel * k * tile_columns;
    best_kernels<AccumulatorKernels>()->multiply_tile(
        rule, {a_numbers + of_a, a_exponents + of_a, b_numbers + of_b, b_exponents + of_b,
               std::min(tile_rows, rows - row), std::min(tile_columns, panels.columns - column), k,
               to + (matrix * rows + row) * panels.columns + column, panels.columns});
  });
  return y;
}

at::Tensor transposed(const at::Tensor& x) {
  return x.defined() && x.dim() != 0 ? x.transpose(-2, -1) : x;
}

UnitOperand transposed(const UnitOperand& x) {
  return {transposed(x.numbers), transposed(x.least_exponents), x.scale};
}

UnitOperand on_cpu(const UnitOperand& x) {
  const auto cpu = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.cpu() : tensor; };
  return {cpu(x.numbers), cpu(x.least_exponents), x.scale};
}

// Without scales.
at::Tensor product(const UnitOperand& a, const UnitOperand& b, const ProductAccumulator& accumulator) {
  const auto n = a.numbers.size(-2), m = b.numbers.size(-1);
  // Tiles are filled up to tile_columns columns, and rows need no filling.
  if (m < tile_columns && m < n) return product(transposed(b), transposed(a), accumulator).transpose(-2, -1);
  const auto leading = [](const at::Tensor& x) { return x.sizes().slice(0, static_cast<std::size_t>(x.dim() - 2)); };
  auto sizes = at::infer_size(leading(a.numbers), leading(b.numbers));
  const auto x = prepared(a, sizes), w = prepared(b, sizes);
  sizes.insert(sizes.end(), {n, m});
  const auto& [mantissa, chunk, promote_every] = accumulator;
  // A product is below 2^(mantissa + 2) of the units in which a step adds, and the accumulator below half of that.
  const bool has_room = chunk <= 1024 && ((2 * chunk + 1) << (mantissa + 1)) < (std::int64_t{1} << 31) - 256;
  const AccumulatorRule rule{mantissa, chunk, promote_every, has_room && x.significant_bits + w.significant_bits <= 24};
  return multiplied(x, w, rule).view(sizes);
}

}  // namespace

void ProductAccumulator::check() const {
  const auto refuse = [](const std::string& text) {
    throw Error("the accumulator cannot be: " + text, Error::Kind::configuration);
  };
  if (mantissa < 1 || mantissa > 23) refuse(c10::str("mantissa is ", mantissa, ", and 1 to 23 bits are possible"));
  if (chunk < 1 || chunk > 1024) refuse(c10::str("chunk is ", chunk, ", and 1 to 1024 products are possible"));
  if (promote_every < 0 || promote_every % chunk != 0) {
    refuse(c10::str("promote_every is ", promote_every, ", and multiples of chunk (", chunk, ") are possible, or 0"));
  }
}

torch::Tensor emulated_matmul(const UnitOperand& a, const UnitOperand& b, const ProductAccumulator& accumulator) {
  const torch::NoGradGuard no_grad;
  accumulator.check();
  require_operand(a, "a");
  require_operand(b, "b");
  if (a.numbers.size(-1) != b.numbers.size(-2)) {
    throw Error(
        c10::str("emulated_matmul sums over the last dimension of a and the last but one of b, and their shapes ",
                 a.numbers.sizes(), " and ", b.numbers.sizes(), " do not fit"));
  }
  auto y = product(on_cpu(a), on_cpu(b), accumulator).to(a.numbers.device());
  for (const auto* scale : {&a.scale, &b.scale}) {
    if (scale->defined()) y.mul_(scale->to(y.device()));
  }
  return y;
}

torch::Tensor emulated_matmul(const torch::Tensor& a, const torch::Tensor& b, const ProductAccumulator& accumulator) {
  return emulated_matmul(UnitOperand{a}, UnitOperand{b}, accumulator);
}

}  // namespace vernier
