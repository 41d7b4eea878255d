#include "blocked_attention.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <vernier/fused_kernels.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <tuple>
#include <vector>

#include "base/kernels.h"
#include "cpu/kernels/attention_kernel.h"
#include "cpu/tasks.h"

namespace vernier {

namespace {

namespace blas = at::native::cpublas;

constexpr std::int64_t block = attention_block;
constexpr std::int64_t together = 8;  // blocks of queries for which the keys are laid out once
constexpr std::int64_t widest = 256;  // largest width of a head
// With fewer queries or keys than these the blocks are too empty: LibTorch's kernels are faster, except its backward in
// 16 bits.
constexpr std::int64_t enough = 48;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float far = 1024;  // a logarithm of a sum beyond which float32 loses digits of weights

std::int64_t blocks_of(std::int64_t length) {
  return (length + block - 1) / block;
}

// c [m, n] is or gains a [m, k] times b [k, n], the latter in the layout of a right-hand factor.
template <class Product>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const Product* a, const Product* b, float* c, bool adds) {
  constexpr bool in_turn = !std::is_same_v<Product, float>;
  blas::brgemm(m, n, k, k, n, n, adds, a, b, c, in_turn);
}

// True if oneDNN multiplies bfloat16 as is needed here; settings of its own may forbid the instructions.
bool can_multiply_bfloat16() {
  static const bool can = [] {
    if (!has(Instructions::avx512_bf16) || !gains_by_bfloat16()) return false;
    constexpr std::int64_t n = 32;
    std::vector<c10::BFloat16> a(n * n), b(n * n);
    std::vector<float> c(n * n, 0);
    for (std::int64_t i = 0; i < n; ++i) {
      a[static_cast<std::size_t>(i * n + i)] = 1;
      for (std::int64_t j = 0; j < n; ++j) {
        b[static_cast<std::size_t>((i / 2) * 2 * n + 2 * j + i % 2)] = static_cast<float>(3 * i - j);
      }
    }
    try {
      multiply(n, n, n, a.data(), b.data(), c.data(), false);
      multiply(n, n, n, a.data(), b.data(), c.data(), true);
      blas::brgemm_release(true);
    } catch (const std::exception&) {
      return false;
    }
    for (std::int64_t i = 0; i < n * n; ++i) {
      if (c[static_cast<std::size_t>(i)] != static_cast<float>(2 * (3 * (i / n) - i % n))) return false;
    }
    return true;
  }();
  return can;
}

// A tensor [batch, heads, length, width], or the mask [batch, heads, queries, keys].
template <class Element>
struct Heads {
  Element* data;
  std::int64_t batch, head, row;
  explicit Heads(const at::Tensor& tensor)
      : data(static_cast<Element*>(tensor.data_ptr())),
        batch(tensor.stride(0)),
        head(tensor.stride(1)),
        row(tensor.stride(2)) {}
  Element* at(std::int64_t b, std::int64_t h, std::int64_t r) const { return data + b * batch + h * head + r * row; }
};

struct Sizes {
  std::int64_t batch, heads, queries, keys, columns;
  std::int64_t width;  // columns, filled up to whole pairs
  bool is_causal;
  float scale;

  std::int64_t query_blocks() const { return blocks_of(queries); }
  std::int64_t key_blocks() const { return blocks_of(keys); }
  std::int64_t queries_of(std::int64_t i) const { return std::min(block, queries - i * block); }
  std::int64_t keys_of(std::int64_t j) const { return std::min(block, keys - j * block); }
  ScoreRule rule(std::int64_t i, std::int64_t j, const float* mask) const {
    return {scale, queries_of(i), keys_of(j), is_causal ? (i - j) * block : block, mask};
  }
  // The number of blocks of keys that a block of queries sees.
  std::int64_t seen(std::int64_t i) const { return is_causal ? std::min(i + 1, key_blocks()) : key_blocks(); }
};

// Memory for one thread, taken piece by piece.
class Arena {
 public:
  explicit Arena(std::uintptr_t at) : at_(at) {}
  template <class T>
  T* take(std::int64_t count) {
    auto* const here = reinterpret_cast<T*>(at_);
    at_ += (static_cast<std::uintptr_t>(count) * sizeof(T) + 63) / 64 * 64;
    return here;
  }
  std::uintptr_t at() const { return at_; }

 private:
  std::uintptr_t at_;  // no pointer: the first time only the size is wanted
};

// Calls body(task, part) for each task, where part is a Part(sizes, arena) of the thread.
template <class Part, class Body>
void in_parts(const Sizes& sizes, std::int64_t tasks, bool releases, const Body& body) {
  Arena measure(0);
  (void)Part(sizes, measure);
  in_tasks(
      tasks, static_cast<std::int64_t>(measure.at()),
      [&](std::int64_t task, std::uintptr_t memory) {
        Arena arena(memory);
        body(task, Part(sizes, arena));
      },
      [&] { blas::brgemm_release(releases); });
}

// A block of an added mask, transposed as the scores are; none without a mask.
const float* take_mask(const Heads<float>* mask, const Sizes& s, std::int64_t b, std::int64_t h, std::int64_t i,
                       std::int64_t j, float* rows, float* to) {
  if (mask == nullptr) return nullptr;
  const auto& kernels = *best_kernels<AttentionKernels<float, float>>();
  kernels.take_rows(mask->at(b, h, i * block) + j * block, mask->row, s.queries_of(i), s.keys_of(j), block, rows);
  kernels.transpose_left(rows, block, to);
  return to;
}

template <class Product>
struct ForwardPart {
  Product *keys, *values, *rows, *query, *weights;
  float *scores, *output, *largest, *sum, *mask_rows, *mask;
  ForwardPart(const Sizes& s, Arena& arena)
      : keys(arena.take<Product>(s.key_blocks() * block * s.width)),
        values(arena.take<Product>(s.key_blocks() * block * s.width)),
        rows(arena.take<Product>(block * s.width)),
        query(arena.take<Product>(block * s.width)),
        weights(arena.take<Product>(block * block)),
        scores(arena.take<float>(block * block)),
        output(arena.take<float>(block * s.width)),
        largest(arena.take<float>(block)),
        sum(arena.take<float>(block)),
        mask_rows(arena.take<float>(block * block)),
        mask(arena.take<float>(block * block)) {}
};

template <class Element, class Product>
void forward(const Sizes& s, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
             const Heads<float>* mask, const at::Tensor& output, const at::Tensor& log_sums) {
  const Heads<Element> q(query), k(key), v(value), y(output);
  const Heads<float> log_sum(log_sums);
  const auto groups = (s.query_blocks() + together - 1) / together;
  const auto size = block * s.width;
  const auto& kernels = *best_kernels<AttentionKernels<Element, Product>>();

  in_parts<ForwardPart<Product>>(
      s, s.batch * s.heads * groups, !std::is_same_v<Product, float>, [&](std::int64_t task, const auto& my) {
        const auto group = groups - 1 - task % groups, h = task / groups % s.heads, b = task / groups / s.heads;
        const auto end = std::min(s.query_blocks(), (group + 1) * together);
        for (std::int64_t j = 0; j < s.seen(end - 1); ++j) {
          kernels.take_rows(k.at(b, h, j * block), k.row, s.keys_of(j), s.columns, s.width, my.keys + j * size);
          kernels.take_rows(v.at(b, h, j * block), v.row, s.keys_of(j), s.columns, s.width, my.rows);
          kernels.transpose_left(my.rows, s.width, my.values + j * size);
        }
        for (std::int64_t i = group * together; i < end; ++i) {
          kernels.take_rows(q.at(b, h, i * block), q.row, s.queries_of(i), s.columns, s.width, my.rows);
          kernels.transpose_right(my.rows, s.width, my.query);
          std::fill_n(my.output, size, 0.0F);
          std::fill_n(my.largest, block, -infinity);
          std::fill_n(my.sum, block, 0.0F);
          for (std::int64_t j = 0; j < s.seen(i); ++j) {
            multiply(block, block, s.width, my.keys + j * size, my.query, my.scores, false);
            const auto rule = s.rule(i, j, take_mask(mask, s, b, h, i, j, my.mask_rows, my.mask));
            kernels.soften(rule, my.scores, my.largest, my.sum, s.width, my.output, my.weights);
            multiply(s.width, block, block, my.values + j * size, my.weights, my.output, true);
          }
          for (std::int64_t row = 0; row < block; ++row) {
            if (row < s.queries_of(i)) *log_sum.at(b, h, i * block + row) = my.largest[row] + std::log(my.sum[row]);
            my.sum[row] = my.sum[row] == 0 ? 0 : 1 / my.sum[row];  // who sees nothing gets 0
          }
          kernels.give_columns(my.output, my.sum, s.queries_of(i), s.columns, y.at(b, h, i * block), y.row);
        }
      });
}

template <class Product>
struct BackwardPart {
  Product *query_columns, *query_rows, *above_columns, *above_rows;  // copies of all queries and slopes
  float *query_gradient, *log_sum, *log_rest, *dots, *sum;
  Product *rows, *key, *key_left, *value, *weights, *slope_left, *slope_right;
  float *scores, *slopes, *key_gradient, *value_gradient, *factors, *mask_rows, *mask;
  BackwardPart(const Sizes& s, Arena& arena) {
    const auto all = s.query_blocks() * block;
    for (auto* each : {&query_columns, &query_rows, &above_columns, &above_rows})
      *each = arena.take<Product>(all * s.width);
    query_gradient = arena.take<float>(all * s.width);
    for (auto* each : {&log_sum, &log_rest, &dots}) *each = arena.take<float>(all);
    for (auto* each : {&rows, &key, &key_left, &value}) *each = arena.take<Product>(block * s.width);
    for (auto* each : {&weights, &slope_left, &slope_right}) *each = arena.take<Product>(block * block);
    for (auto* each : {&scores, &slopes, &mask_rows, &mask}) *each = arena.take<float>(block * block);
    for (auto* each : {&key_gradient, &value_gradient}) *each = arena.take<float>(block * s.width);
    for (auto* each : {&factors, &sum}) *each = arena.take<float>(block);
  }
};

template <class Element, class Product>
class Backward {
 public:
  Backward(const Sizes& sizes, const at::Tensor& above, const at::Tensor& query, const at::Tensor& key,
           const at::Tensor& value, const Heads<float>* mask, const at::Tensor& output, const at::Tensor& log_sums,
           const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv)
      : s_(sizes),
        above_(above),
        q_(query),
        k_(key),
        v_(value),
        y_(output),
        dq_(dq),
        dk_(dk),
        dv_(dv),
        log_sum_(log_sums),
        mask_(mask) {}

  void run() {
    in_parts<Part>(s_, s_.batch * s_.heads, !std::is_same_v<Product, float>, [&](std::int64_t task, const Part& my) {
      const auto b = task / s_.heads, h = task % s_.heads;
      for (std::int64_t i = 0; i < s_.query_blocks(); ++i) take_queries(b, h, i, my);
      for (std::int64_t j = 0; j < s_.key_blocks(); ++j) take_keys(b, h, j, my);
      std::fill_n(my.factors, block, s_.scale);
      for (std::int64_t i = 0; i < s_.query_blocks(); ++i) {
        kernels_.give_columns(my.query_gradient + i * size_, my.factors, s_.queries_of(i), s_.columns,
                              dq_.at(b, h, i * block), dq_.row);
      }
    });
  }

 private:
  using Part = BackwardPart<Product>;

  // Prepares the parts of a block of queries that each block of keys needs.
  void take_queries(std::int64_t b, std::int64_t h, std::int64_t i, const Part& my) const {
    const auto row = i * block, count = s_.queries_of(i);
    kernels_.take_rows(q_.at(b, h, row), q_.row, count, s_.columns, s_.width, my.rows);
    kernels_.transpose_right(my.rows, s_.width, my.query_columns + i * size_);
    lay_right(my.rows, my.query_rows + i * size_);
    kernels_.take_rows(above_.at(b, h, row), above_.row, count, s_.columns, s_.width, my.rows);
    kernels_.transpose_right(my.rows, s_.width, my.above_columns + i * size_);
    lay_right(my.rows, my.above_rows + i * size_);
    kernels_.row_dots(above_.at(b, h, row), above_.row, y_.at(b, h, row), y_.row, count, s_.columns, my.dots + row);
    bool is_far = false;
    for (std::int64_t r = 0; r < block; ++r) {
      const float sum = r < count ? *log_sum_.at(b, h, row + r) : 0;
      is_far = is_far || (std::abs(sum) > far && std::isfinite(sum));
      my.log_sum[row + r] = sum == -infinity ? 0 : sum;  // who sees nothing has weights of 0
      my.log_rest[row + r] = 0;
    }
    if (is_far) find_sums(b, h, i, my);
    std::fill_n(my.query_gradient + i * size_, size_, 0.0F);
  }

  // Computes the largest score and the logarithm of the sum of each query again, as forward does. float32 does not hold
  // the two in one number if a mask adds -1e9 to all scores.
  void find_sums(std::int64_t b, std::int64_t h, std::int64_t i, const Part& my) const {
    auto *const largest = my.log_sum + i * block, *const rest = my.log_rest + i * block;
    std::fill_n(largest, block, -infinity);
    std::fill_n(my.sum, block, 0.0F);
    for (std::int64_t j = 0; j < s_.seen(i); ++j) {
      kernels_.take_rows(k_.at(b, h, j * block), k_.row, s_.keys_of(j), s_.columns, s_.width, my.key);
      multiply(block, block, s_.width, my.key, my.query_columns + i * size_, my.scores, false);
      const auto rule = s_.rule(i, j, take_mask(mask_, s_, b, h, i, j, my.mask_rows, my.mask));
      kernels_.soften(rule, my.scores, largest, my.sum, /*width=*/0, my.slopes, my.weights);
    }
    for (std::int64_t r = 0; r < block; ++r) {
      rest[r] = my.sum[r] == 0 ? 0 : std::log(my.sum[r]);
      if (largest[r] == -infinity) largest[r] = 0;
    }
  }

  void take_keys(std::int64_t b, std::int64_t h, std::int64_t j, const Part& my) const {
    const auto row = j * block, count = s_.keys_of(j);
    kernels_.take_rows(k_.at(b, h, row), k_.row, count, s_.columns, s_.width, my.key);
    kernels_.transpose_left(my.key, s_.width, my.key_left);
    kernels_.take_rows(v_.at(b, h, row), v_.row, count, s_.columns, s_.width, my.value);
    std::fill_n(my.key_gradient, size_, 0.0F);
    std::fill_n(my.value_gradient, size_, 0.0F);
    for (std::int64_t i = s_.is_causal ? j : 0; i < s_.query_blocks(); ++i) {
      multiply(block, block, s_.width, my.key, my.query_columns + i * size_, my.scores, false);
      multiply(block, block, s_.width, my.value, my.above_columns + i * size_, my.slopes, false);
      const auto rule = s_.rule(i, j, take_mask(mask_, s_, b, h, i, j, my.mask_rows, my.mask));
      kernels_.differentiate(rule, my.scores, my.slopes, my.log_sum + i * block, my.log_rest + i * block,
                             my.dots + i * block, my.weights, my.slope_left, my.slope_right);
      multiply(block, s_.width, block, my.weights, my.above_rows + i * size_, my.value_gradient, true);
      multiply(block, s_.width, block, my.slope_left, my.query_rows + i * size_, my.key_gradient, true);
      multiply(s_.width, block, block, my.key_left, slope_right(my), my.query_gradient + i * size_, true);
    }
    kernels_.give_rows(my.key_gradient, s_.width, s_.scale, count, s_.columns, dk_.at(b, h, row), dk_.row);
    kernels_.give_rows(my.value_gradient, s_.width, 1, count, s_.columns, dv_.at(b, h, row), dv_.row);
  }

  void lay_right(const Product* from, Product* to) const {
    if (const auto* laid = kernels_.right(from, s_.width, to); laid != to) std::copy_n(laid, size_, to);
  }
  static const Product* slope_right(const Part& my) {
    return std::is_same_v<Product, float> ? my.slope_left : my.slope_right;
  }

  const AttentionKernels<Element, Product>& kernels_ = *best_kernels<AttentionKernels<Element, Product>>();
  const Sizes& s_;
  std::int64_t size_ = block * s_.width;
  Heads<Element> above_, q_, k_, v_, y_, dq_, dk_, dv_;
  Heads<float> log_sum_;
  const Heads<float>* mask_;
};

// Calls body(Element{}, Product{}) for a dtype.
template <class Body>
void for_dtype(at::ScalarType dtype, const Body& body) {
  if (dtype == at::kFloat) return body(float{}, float{});
  if (dtype == at::kHalf) return body(c10::Half{}, float{});
  can_multiply_bfloat16() ? body(c10::BFloat16{}, c10::BFloat16{}) : body(c10::BFloat16{}, float{});
}

bool takes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout,
           const std::optional<at::Tensor>& mask) {
  if (!has_blocked_attention() || dropout != 0 || query.dim() != 4 || key.dim() != 4 || value.dim() != 4) return false;
  const auto dtype = query.scalar_type();
  const bool is_known = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  const bool is_alike = key.scalar_type() == dtype && value.scalar_type() == dtype && key.sizes() == value.sizes() &&
                        query.size(0) == key.size(0) && query.size(1) == key.size(1) && query.size(3) == key.size(3);
  const bool has_mask = mask && mask->defined();
  const bool is_mask_known = !has_mask || ((mask->dim() == 4 || mask->dim() == 2) && mask->is_floating_point());
  return is_known && is_alike && is_mask_known && query.size(3) <= widest && query.numel() > 0 && key.numel() > 0;
}

bool is_short(const at::Tensor& query, const at::Tensor& key) {
  return std::min(query.size(2), key.size(2)) < enough;
}

// With the elements of a row side by side.
at::Tensor in_rows(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 || tensor.size(-1) == 1 ? tensor : tensor.contiguous();
}

Sizes sizes_of(const at::Tensor& query, const at::Tensor& key, bool is_causal, std::optional<double> scale) {
  const auto columns = query.size(3);
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(columns)));
  return {query.size(0), query.size(1),         query.size(2), key.size(2),
          columns,       (columns + 1) / 2 * 2, is_causal,     static_cast<float>(factor)};
}

// [batch, heads, queries, keys] in float32; undefined without a mask.
at::Tensor mask_of(const Sizes& s, const std::optional<at::Tensor>& mask) {
  if (!mask || !mask->defined()) return {};
  return in_rows(mask->to(at::kFloat).expand({s.batch, s.heads, s.queries, s.keys}));
}

// [batch, heads, length, width] in the memory of [batch, length, heads, width], as LibTorch gives gradients.
at::Tensor empty_heads(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                             double dropout, bool is_causal, const std::optional<at::Tensor>& mask,
                                             std::optional<double> scale) {
  if (!takes(query, key, value, dropout, mask) || is_short(query, key)) {
    return at::cpu::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, is_causal, mask, scale);
  }
  const auto sizes = sizes_of(query, key, is_causal, scale);
  const auto added = mask_of(sizes, mask);
  const auto heads = added.defined() ? std::optional<Heads<float>>(added) : std::nullopt;
  const auto output = at::empty_like(query);  // its strides are LibTorch's: exported graphs count on them
  const auto rows = in_rows(output);
  const auto log_sums =
      at::empty({sizes.batch, sizes.queries, sizes.heads}, query.options().dtype(at::kFloat)).transpose(1, 2);
  for_dtype(query.scalar_type(), [&]<class Element, class Product>(Element, Product) {
    forward<Element, Product>(sizes, in_rows(query), in_rows(key), in_rows(value), heads ? &*heads : nullptr, rows,
                              log_sums);
  });
  if (!rows.is_same(output)) output.copy_(rows);
  return {output, log_sums};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& above, const at::Tensor& query,
                                                                  const at::Tensor& key, const at::Tensor& value,
                                                                  const at::Tensor& output, const at::Tensor& log_sums,
                                                                  double dropout, bool is_causal,
                                                                  const std::optional<at::Tensor>& mask,
                                                                  std::optional<double> scale) {
  if (!takes(query, key, value, dropout, mask) || above.scalar_type() != query.scalar_type() ||
      (query.scalar_type() == at::kFloat && is_short(query, key))) {
    return at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward(above, query, key, value, output, log_sums,
                                                                         dropout, is_causal, mask, scale);
  }
  const auto sizes = sizes_of(query, key, is_causal, scale);
  const auto added = mask_of(sizes, mask);
  const auto heads = added.defined() ? std::optional<Heads<float>>(added) : std::nullopt;
  const auto dq = empty_heads(query), dk = empty_heads(key), dv = empty_heads(value);
  for_dtype(query.scalar_type(), [&]<class Element, class Product>(Element, Product) {
    const auto q = in_rows(query), k = in_rows(key), v = in_rows(value), dy = in_rows(above), y = in_rows(output);
    Backward<Element, Product>(sizes, dy, q, k, v, heads ? &*heads : nullptr, y, log_sums, dq, dk, dv).run();
  });
  return {dq, dk, dv};
}

}  // namespace

bool has_blocked_attention() {
  return fused_kernels() && has(Instructions::avx512) && at::globalContext().userEnabledMkldnn();
}

void register_blocked_attention(torch::Library& library) {
  library.impl("_scaled_dot_product_flash_attention_for_cpu", &attention);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", &attention_backward);
}

}  // namespace vernier
