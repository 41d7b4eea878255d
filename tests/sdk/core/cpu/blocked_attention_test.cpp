// Attention in blocks on a CPU. Its oracle is LibTorch's own in float64; its measure LibTorch's in the same dtype.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>
#include <vernier/attention.h>
#include <vernier/fused_kernels.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace blocked_attention_test {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Fused {
  explicit Fused(bool on) : before(vernier::fused_kernels()) { vernier::use_fused_kernels(on); }
  ~Fused() { vernier::use_fused_kernels(before); }
  bool before;
};
struct Threads {
  explicit Threads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  int before;
};

struct Call {
  torch::Tensor query, key, value, above;
  std::optional<torch::Tensor> mask = std::nullopt;
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;

  Call in(torch::ScalarType dtype) const {
    const auto cast = [&](const torch::Tensor& x) { return x.is_floating_point() ? x.to(dtype) : x; };
    return {cast(query), cast(key), cast(value), cast(above), mask ? std::optional(cast(*mask)) : mask,
            is_causal,   scale};
  }
  // The output, and the gradients of query, key and value.
  std::vector<torch::Tensor> run(bool fused) const {
    const Fused choice(fused);
    const std::vector<torch::Tensor> leaves = {query.detach().requires_grad_(), key.detach().requires_grad_(),
                                               value.detach().requires_grad_()};
    const auto y = at::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], mask, 0.0, is_causal, scale);
    auto all = torch::autograd::grad({y}, leaves, {above});
    all.insert(all.begin(), y.detach());
    return all;
  }
};

// As a model makes them: views of [batch, length, heads, width].
Call random_call(std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys, std::int64_t width) {
  const auto tensor = [&](std::int64_t length) { return torch::randn({batch, length, heads, width}).transpose(1, 2); };
  return {tensor(queries), tensor(keys), tensor(keys), tensor(queries)};
}

double error_of(const torch::Tensor& computed, const torch::Tensor& exact) {
  return (computed.to(torch::kFloat64) - exact).square().mean().sqrt().item<double>();
}

// The error of attention whose products add up their terms one after another in float32, as a share of the result. Each
// of n roundings is of a partial sum, so the error of a product is sqrt(n / 6) units. That of a score grows with it.
double error_of_sums(const Call& call, std::size_t part) {
  const auto width = static_cast<double>(call.query.size(3));
  const auto score = call.query.matmul(call.key.transpose(2, 3)).square().mean().sqrt().item<double>() *
                     call.scale.value_or(1 / std::sqrt(width));
  const bool is_of_score = part == 1 || part == 2;  // the gradients of query and key are the score's times the other
  return 0x1p-24 * std::sqrt(width / 6) * (1 + (is_of_score ? score : std::sqrt(score)));
}

const std::string parts[] = {"output", "gradient of query", "gradient of key", "gradient of value"};

}  // namespace

TEST_CASE("blocked attention: errors are not larger than LibTorch's, outputs and gradients") {
  struct {
    std::int64_t batch, heads, queries, keys, width;
  } const shapes[] = {{2, 2, 64, 64, 32}, {1, 2, 48, 48, 8},    {1, 2, 100, 131, 64}, {2, 1, 130, 70, 40},
                      {1, 2, 65, 65, 33}, {1, 1, 600, 600, 16}, {1, 1, 63, 129, 128}, {1, 1, 64, 80, 256}};
  torch::manual_seed(6);
  for (const auto& shape : shapes) {
    for (const std::string kind : {"all", "causal", "bool mask of keys", "mask", "mask of batches", "scale"}) {
      auto call = random_call(shape.batch, shape.heads, shape.queries, shape.keys, shape.width);
      if (kind == "causal") call.is_causal = true;
      if (kind == "bool mask of keys") {
        call.mask = torch::rand({shape.batch, 1, 1, shape.keys}) > 0.3;
        call.mask->select(3, 0).fill_(true);  // each query sees something
      }
      if (kind == "mask") call.mask = torch::randn({shape.queries, shape.keys});
      if (kind == "mask of batches") call.mask = torch::randn({shape.batch, 1, shape.queries, shape.keys});
      if (kind == "scale") call.scale = 0.7;
      for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
        CAPTURE(shape.queries);
        CAPTURE(shape.width);
        CAPTURE(kind);
        CAPTURE(dtype);
        const auto given = call.in(dtype);
        const auto exact = given.in(torch::kFloat64).run(false), mine = given.run(true), theirs = given.run(false);
        for (std::size_t i = 0; i < exact.size(); ++i) {
          CAPTURE(parts[i]);
          CHECK(mine[i].strides() == theirs[i].strides());
          CHECK(mine[i].options().type_equal(theirs[i].options()));
          const double size = exact[i].square().mean().sqrt().item<double>();
          double most = 1.2 * error_of(theirs[i], exact[i]) + 0x1p-24 * size;
          // MKL's generic path, which it takes on processors of other makers, adds up sums as long as these in parts.
          // Its errors are then down to half of those of its path for Intel, which are Vernier's.
          if (shape.width > 128) most = std::max(most, error_of_sums(given.in(torch::kFloat64), i) * size);
          CHECK(error_of(mine[i], exact[i]) <= most);
        }
      }
    }
  }
}

TEST_CASE("blocked attention: gradients are those of two products and a softmax") {
  torch::manual_seed(7);
  const auto call = random_call(1, 2, 70, 70, 16);
  const auto exact = call.in(torch::kFloat64);
  const std::vector<torch::Tensor> leaves = {exact.query.detach().requires_grad_(), exact.key.detach().requires_grad_(),
                                             exact.value.detach().requires_grad_()};
  const auto y = vernier::attention_by_matmul(leaves[0], leaves[1], leaves[2], {}, 0.0, /*is_causal=*/true);
  auto expected = torch::autograd::grad({y}, leaves, {exact.above});
  expected.insert(expected.begin(), y.detach());
  auto mine = call;
  mine.is_causal = true;
  const auto got = mine.run(true);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(torch::allclose(got[i].to(torch::kFloat64), expected[i], 1e-4, 1e-6));
  }
}

TEST_CASE("blocked attention: the same bits on any number of threads") {
  if (at::get_cpu_capability() != "AVX512") return;  // LibTorch's kernels
  torch::manual_seed(8);
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    for (const std::int64_t length : {70, 600}) {  // one task for a head, and two
      auto call = random_call(1, 3, length, length, 32).in(dtype);
      call.is_causal = length == 600;
      std::vector<torch::Tensor> alone;
      for (const int threads : {1, 2, 5}) {
        const Threads many(threads);
        const auto now = call.run(true);
        if (alone.empty()) alone = now;
        for (std::size_t i = 0; i < now.size(); ++i) CHECK(torch::equal(now[i], alone[i]));
      }
    }
  }
}

TEST_CASE("blocked attention: any layout of memory") {
  torch::manual_seed(9);
  const auto call = random_call(2, 3, 70, 70, 16);
  const auto expected = call.run(true);
  const auto apart = call.above.transpose(2, 3).contiguous().transpose(2, 3);  // elements of a row are apart
  const Call others[] = {{call.query.contiguous(), call.key.contiguous(), call.value.contiguous(), call.above},
                         {call.query, call.key, call.value, apart}};
  for (const auto& other : others) {
    const auto got = other.run(true);
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(torch::equal(got[i], expected[i]));
  }
  auto sum = call;
  sum.above = torch::ones({}).expand_as(call.query);
  auto ones = call;
  ones.above = torch::ones_like(call.query);
  CHECK(torch::equal(sum.run(true)[1], ones.run(true)[1]));
}

TEST_CASE("blocked attention: a query that sees nothing gets 0, and so do its gradients") {
  torch::manual_seed(10);
  auto call = random_call(1, 2, 70, 130, 16);
  call.mask = torch::zeros({70, 130});
  call.mask->select(0, 5).fill_(-infinity);
  call.mask->narrow(1, 0, 64).narrow(0, 20, 10).fill_(-infinity);  // a whole block of keys
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
    const auto got = call.in(dtype).run(true);
    CHECK(got[0].select(2, 5).eq(0).all().item<bool>());
    CHECK(got[1].select(2, 5).eq(0).all().item<bool>());
    for (const auto& tensor : got) CHECK(tensor.isfinite().all().item<bool>());
    const auto exact = call.in(torch::kFloat64).run(false);
    for (std::size_t i = 0; i < got.size(); ++i) {
      CHECK(error_of(got[i], exact[i]) < (dtype == torch::kFloat32 ? 1e-6 : 1e-2));
    }
  }
}

TEST_CASE("blocked attention: scores far apart, infinity and NaN") {
  torch::manual_seed(11);
  auto call = random_call(1, 1, 64, 64, 16);
  call.scale = 300;  // most weights are 0, and one is 1
  const auto exact = call.in(torch::kFloat64).run(false), got = call.run(true);
  for (const auto& tensor : got) CHECK(tensor.isfinite().all().item<bool>());
  CHECK(error_of(got[0], exact[0]) < 1e-4);

  auto broken = random_call(1, 1, 64, 64, 16);
  broken.query.select(2, 3).fill_(std::numeric_limits<float>::quiet_NaN());
  const auto output = broken.run(true)[0];
  CHECK(output.select(2, 3).isnan().all().item<bool>());
  CHECK(output.narrow(2, 4, 60).isfinite().all().item<bool>());
  broken.value.select(2, 7).fill_(std::numeric_limits<float>::infinity());
  CHECK_FALSE(broken.run(true)[0].narrow(2, 4, 60).isfinite().any().item<bool>());
}

TEST_CASE("blocked attention: the logarithms of sums are LibTorch's, so each backward takes the other's forward") {
  torch::manual_seed(12);
  const auto call = random_call(2, 2, 80, 80, 16);
  const auto run = [&](bool fused) {
    const Fused choice(fused);
    return at::_scaled_dot_product_flash_attention_for_cpu(call.query, call.key, call.value, 0.0, true);
  };
  const auto [y, sums] = run(true);
  const auto [their_y, their_sums] = run(false);
  CHECK(torch::allclose(sums, their_sums, 1e-5, 1e-5));
  CHECK(sums.strides() == their_sums.strides());
  CHECK(torch::allclose(y, their_y, 1e-4, 1e-6));
}

TEST_CASE("blocked attention: rows masked wholly by a finite number have the gradients of their weights") {
  if (at::get_cpu_capability() != "AVX512") return;  // LibTorch's kernels
  torch::manual_seed(14);
  for (const double masked : {-1e4, -1e9, -3e38}) {
    for (const std::int64_t length : {64, 100}) {
      CAPTURE(masked);
      CAPTURE(length);
      auto call = random_call(1, 2, length, length, 16);
      call.mask = torch::zeros({1, 1, length, length});
      call.mask->narrow(2, length / 2, 7).fill_(masked);
      const std::vector<torch::Tensor> leaves = {call.query.clone().requires_grad_(), call.key.clone().requires_grad_(),
                                                 call.value.clone().requires_grad_()};
      const auto weights = (leaves[0].matmul(leaves[1].transpose(2, 3)) * 0.25 + *call.mask).softmax(3);
      auto wanted = torch::autograd::grad({weights.matmul(leaves[2])}, leaves, {call.above});
      const auto mine = call.run(true);
      for (std::size_t i = 1; i < 4; ++i) {
        CAPTURE(parts[i]);
        CHECK(error_of(mine[i], wanted[i - 1].to(torch::kFloat64)) < (masked == -1e4 ? 1e-3 : 1e-5));
      }
    }
  }
}

TEST_CASE("blocked attention: NaN in a key that no query sees stays there") {
  if (at::get_cpu_capability() != "AVX512") return;  // LibTorch's kernels
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
    CAPTURE(dtype);
    torch::manual_seed(15);
    for (const std::int64_t queries : {47, 50, 70}) {
      CAPTURE(queries);
      auto call = random_call(2, 1, queries, 96, 32).in(dtype);
      call.is_causal = true;
      call.key.select(2, queries + 3).fill_(std::numeric_limits<float>::quiet_NaN());
      const auto mine = call.run(true);  // the gradient of the query adds the key times 0
      for (const auto i : {0, 2, 3}) CHECK(mine[static_cast<std::size_t>(i)].isfinite().all().item<bool>());
    }
  }
}

TEST_CASE("blocked attention: what it does not take is LibTorch's, bit for bit") {
  torch::manual_seed(13);
  const Threads one(1);  // LibTorch's bits depend on it
  const std::pair<const char*, Call> calls[] = {{"few queries", random_call(1, 2, 20, 70, 16)},
                                                {"few keys", random_call(1, 2, 70, 20, 16)},
                                                {"wide heads", random_call(1, 1, 64, 64, 264)},
                                                {"float64", random_call(1, 2, 64, 64, 16).in(torch::kFloat64)}};
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    const auto mine = call.run(true), theirs = call.run(false);
    for (std::size_t i = 0; i < mine.size(); ++i) CHECK(torch::equal(mine[i], theirs[i]));
  }
}

}  // namespace blocked_attention_test
