// LayerNorm and RMSNorm of rows. Numbers are float32 while they are computed with. A row is read three times, twice
// from the first cache.
#pragma once

#include "kinds.h"

namespace vernier::gpu {

// A group of threads computes a row. From: numbers of x and the sum. To: those of the branch and y.
template <class From, class To>
struct Norm {
  static constexpr unsigned threads = 256;
  struct Shared {};
  NormRows rows;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared&) const {
    block.each_group([&](unsigned group, unsigned member) {
      const std::int64_t row = std::int64_t{block.index} * Block::groups + group;
      if (row < rows.rows) compute<Block>(row, member);
    });
  }

  template <class Block>
  VERNIER_BOTH void compute(std::int64_t row, unsigned member) const {
    const std::int64_t start = row * rows.columns;
    const auto* const x = static_cast<const typename From::Number*>(rows.x) + start;
    const auto* const branch = static_cast<const typename To::Number*>(rows.branch);
    auto* const sums = static_cast<typename From::Number*>(rows.sum);
    auto* const y = static_cast<typename To::Number*>(rows.y) + start;
    const auto count = static_cast<float>(rows.columns);
    const auto number_at = [&](std::int64_t i) {
      const float number = From::wide(x[i]);
      return rows.branch == nullptr ? number : From::wide(From::narrow(number + To::wide(branch[start + i])));
    };
    const auto sum_over = [&](const auto& term) {
      float sum = 0;
      for (std::int64_t i = member; i < rows.columns; i += Block::members) sum += term(number_at(i));
      return Block::sum_of_group(sum);
    };
    const float mean = rows.mean == nullptr ? 0.0F : sum_over([](float number) { return number; }) / count;
    const float squares = sum_over([&](float number) { return (number - mean) * (number - mean); });
    const float inverse = 1 / sqrtf(squares / count + rows.eps);
    for (std::int64_t i = member; i < rows.columns; i += Block::members) {
      const float number = number_at(i), scaled = (number - mean) * inverse;
      const float weight = rows.weight == nullptr ? 1.0F : rows.weight[i];
      if (rows.branch != nullptr) sums[start + i] = From::narrow(number);
      y[i] = To::narrow(multiply_add(scaled, weight, rows.bias == nullptr ? 0.0F : rows.bias[i]));
    }
    if (member != 0) return;
    if (rows.mean != nullptr) rows.mean[row] = mean;
    rows.inverse[row] = inverse;
  }
};

// A block computes some rows, one after another, and sums up the slopes of weight and bias over them.
template <class From, class To, std::int64_t most_columns>
struct NormBackward {
  static constexpr unsigned threads = 256, groups = threads / 32;
  struct Shared {
    float sums[2][groups];
    float of_weight[most_columns], of_bias[most_columns];
  };
  NormSlopes rows;

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared& shared) const {
    constexpr std::int64_t step = std::int64_t{Block::groups} * Block::members;
    const auto all_columns = [&](unsigned group, unsigned member, const auto& body) {
      for (std::int64_t i = group * Block::members + member; i < rows.columns; i += step) body(i);
    };
    block.each_group([&](unsigned group, unsigned member) {
      all_columns(group, member, [&](std::int64_t i) { shared.of_weight[i] = shared.of_bias[i] = 0; });
    });
    for (std::int64_t row = block.index; row < rows.rows; row += norm_parts) {
      const std::int64_t start = row * rows.columns;
      const auto* const x = static_cast<const typename From::Number*>(rows.x) + start;
      const auto* const slopes = static_cast<const typename To::Number*>(rows.slopes) + start;
      const auto* const of_sum = static_cast<const typename From::Number*>(rows.sum_slopes);
      auto* const of_x = static_cast<typename From::Number*>(rows.x_slopes) + start;
      auto* const of_branch = static_cast<typename To::Number*>(rows.branch_slopes);
      const float mean = rows.mean == nullptr ? 0.0F : rows.mean[row], inverse = rows.inverse[row];
      const auto scaled = [&](std::int64_t i) { return (From::wide(x[i]) - mean) * inverse; };
      const auto weighted = [&](std::int64_t i) {
        return To::wide(slopes[i]) * (rows.weight == nullptr ? 1.0F : rows.weight[i]);
      };
      block.each_group([&](unsigned group, unsigned member) {
        float sum = 0, product = 0;
        all_columns(group, member, [&](std::int64_t i) {
          const float slope = weighted(i);
          sum += slope;
          product = multiply_add(slope, scaled(i), product);
        });
        sum = Block::sum_of_group(sum);
        product = Block::sum_of_group(product);
        if (member != 0) return;
        shared.sums[0][group] = sum;
        shared.sums[1][group] = product;
      });
      block.each_group([&](unsigned group, unsigned member) {
        float sum = 0, product = 0;
        for (unsigned k = 0; k < groups; ++k) {
          sum += shared.sums[0][k];
          product += shared.sums[1][k];
        }
        const float share = rows.mean == nullptr ? 0.0F : sum / static_cast<float>(rows.columns);
        product /= static_cast<float>(rows.columns);
        all_columns(group, member, [&](std::int64_t i) {
          const float number = scaled(i), slope = To::wide(slopes[i]);
          shared.of_weight[i] = multiply_add(slope, number, shared.of_weight[i]);
          shared.of_bias[i] += slope;
          auto to = From::narrow(inverse * (weighted(i) - share - number * product));
          if (rows.sum_slopes != nullptr) to = From::narrow(From::wide(to) + From::wide(of_sum[start + i]));
          of_x[i] = to;
          if (rows.branch_slopes != nullptr) of_branch[start + i] = To::narrow(From::wide(to));
        });
      });
    }
    block.each_group([&](unsigned group, unsigned member) {
      float* const part = rows.scratch + std::int64_t{block.index} * 2 * rows.columns;
      all_columns(group, member, [&](std::int64_t i) {
        part[i] = shared.of_weight[i];
        part[rows.columns + i] = shared.of_bias[i];
      });
    });
  }
};

// The sums over all parts: a block has 32 columns of [parts, columns].
struct SumOfParts {
  static constexpr unsigned threads = 256, columns_at_once = 32, rows_at_once = threads / columns_at_once;
  struct Shared {
    float sums[threads];
  };
  const float* parts;
  std::int64_t count, columns;
  float *first, *second;  // each gets half of the columns; second may be nullptr

  template <class Block>
  VERNIER_BOTH void operator()(const Block& block, Shared& shared) const {
    const std::int64_t start = std::int64_t{block.index} * columns_at_once;
    block.each([&](unsigned thread) {
      const std::int64_t column = start + thread % columns_at_once;
      float sum = 0;
      if (column < columns) {
        for (std::int64_t i = thread / columns_at_once; i < count; i += rows_at_once)
          sum += parts[i * columns + column];
      }
      shared.sums[thread] = sum;
    });
    block.each([&](unsigned thread) {
      const std::int64_t column = start + thread, half = columns / 2;
      if (thread >= columns_at_once || column >= columns) return;
      float sum = 0;
      for (unsigned k = 0; k < rows_at_once; ++k) sum += shared.sums[k * columns_at_once + thread];
      float* const to = column < half ? first : second;
      if (to != nullptr) to[column < half ? column : column - half] = sum;
    });
  }
};

}  // namespace vernier::gpu
