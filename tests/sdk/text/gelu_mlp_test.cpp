// gelu_mlp by the CUDA kernels' table, compiled for the host, whose products are plain loops.
#include "text/gpu/gelu_mlp_by.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>
#include <vernier/error.h>

#include <array>
#include <cstring>
#include <vector>

extern "C" const vernier::gpu::Library vernier_cuda;

namespace gelu_mlp_test {

using vernier::GeluMlp;
using Tensors = std::vector<torch::Tensor>;

namespace {

struct Case {
  torch::Tensor x;
  GeluMlp layers;

  Case(std::int64_t rows, std::int64_t width, std::int64_t hidden, std::int64_t outputs, torch::Dtype dtype) {
    const auto leaf = [&](at::IntArrayRef shape, double scale) {
      return (at::randn(shape) * scale).to(dtype).requires_grad_();
    };
    x = leaf({rows, width}, 1);
    layers = {leaf({width, hidden}, 0.3), leaf({hidden}, 1), leaf({hidden, outputs}, 0.3), leaf({outputs}, 1)};
  }
  Tensors all() const { return {x, layers.weight_in, layers.bias_in, layers.weight_out, layers.bias_out}; }
  // In float64, of the same numbers.
  Case wide() const {
    Case to = *this;
    const auto leaf = [](const torch::Tensor& tensor) { return tensor.detach().to(torch::kFloat64).requires_grad_(); };
    to.x = leaf(x);
    to.layers = {leaf(layers.weight_in), leaf(layers.bias_in), leaf(layers.weight_out), leaf(layers.bias_out)};
    return to;
  }
  torch::Tensor exact() const {
    const auto hidden = at::gelu(at::linear(x, layers.weight_in.t(), layers.bias_in), "tanh");
    return at::linear(hidden, layers.weight_out.t(), layers.bias_out);
  }
};

double error_of(const torch::Tensor& found, const torch::Tensor& exact) {
  return (found.to(torch::kFloat64) - exact).norm().item<double>() / exact.norm().item<double>();
}

}  // namespace

TEST_CASE("gelu_mlp: results, gradients and second gradients are those of the operators in float64") {
  torch::manual_seed(11);
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    for (const auto& [rows, width, hidden, outputs] :
         std::vector<std::array<std::int64_t, 4>>{{1, 8, 8, 8}, {5, 16, 32, 16}, {33, 24, 64, 8}}) {
      const Case ours(rows, width, hidden, outputs, dtype), right = ours.wide();
      const auto y = vernier::gelu_mlp_by(vernier_cuda, ours.x, ours.layers), exact = right.exact();
      const double bound = dtype == torch::kHalf ? 2e-3 : 1.5e-2;
      CHECK((y.scalar_type() == dtype));
      CHECK(error_of(y.detach(), exact.detach()) <= bound);
      const auto slopes = at::randn_like(exact).to(dtype);
      const auto found = torch::autograd::grad({y}, ours.all(), {slopes}, /*retain_graph=*/true, /*create_graph=*/true);
      const auto once = torch::autograd::grad({y}, ours.all(), {slopes});
      const auto wanted = torch::autograd::grad({exact}, right.all(), {slopes.to(torch::kFloat64)}, true, true);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        CHECK(once[i].sizes() == wanted[i].sizes());
        CHECK(error_of(once[i], wanted[i].detach()) <= bound);
        CHECK(error_of(found[i].detach(), wanted[i].detach()) <= bound);
      }
      const auto again = torch::autograd::grad({found[0].square().sum()}, {ours.layers.weight_in});
      const auto exactly = torch::autograd::grad({wanted[0].square().sum()}, {right.layers.weight_in});
      CHECK(error_of(again[0], exactly[0]) <= 3 * bound);
    }
  }
}

TEST_CASE("gelu_mlp: frozen tensors get no gradients, and the others the same") {
  torch::manual_seed(12);
  for (std::size_t trained = 0; trained < 5; ++trained) {
    const Case whole(6, 8, 16, 8, torch::kBFloat16);
    auto part = whole.all();
    for (auto& tensor : part) tensor = tensor.detach();
    part[trained].requires_grad_();
    const auto y = vernier::gelu_mlp_by(vernier_cuda, part[0], {part[1], part[2], part[3], part[4]});
    y.sum().backward();
    const auto all = vernier::gelu_mlp_by(vernier_cuda, whole.x, whole.layers);
    const auto right = torch::autograd::grad({all.sum()}, whole.all());
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(part[i].grad().defined() == (i == trained));
      if (i == trained) CHECK(at::equal(part[i].grad(), right[i]));
    }
  }
}

TEST_CASE("gelu_mlp: tensors with gaps, and a slope that one number gives all") {
  torch::manual_seed(13);
  const Case plain(7, 16, 8, 8, torch::kBFloat16);
  const auto gaps = at::stack({plain.x.detach(), plain.x.detach()}, 2).select(2, 0).requires_grad_();
  const auto turned = plain.layers.weight_in.detach().t().contiguous().t().requires_grad_();
  const auto y = vernier::gelu_mlp_by(vernier_cuda, gaps,
                                      {turned, plain.layers.bias_in, plain.layers.weight_out, plain.layers.bias_out});
  const auto right = vernier::gelu_mlp_by(vernier_cuda, plain.x, plain.layers);
  CHECK(at::equal(y, right));
  const auto ours = torch::autograd::grad({y.sum()}, {gaps, turned});
  const auto wanted = torch::autograd::grad({right.sum()}, {plain.x, plain.layers.weight_in});
  CHECK(at::equal(ours[0], wanted[0]));
  CHECK(at::equal(ours[1], wanted[1]));
}

TEST_CASE("gelu_mlp: a library that computes something else, or nothing, is found out") {
  const Case any(12, 16, 32, 16, torch::kBFloat16);
  CHECK(vernier::gelu_mlp_is_right(vernier_cuda, any.x, any.layers));
  struct Fault {
    const char* what;
    void (*spoil)(vernier::gpu::Product& product);
  };
  using vernier::gpu::Product;
  static Fault fault;
  auto broken = vernier_cuda;
  broken.multiply = [](const Product& product, vernier::gpu::Stream stream) {
    auto other = product;
    fault.spoil(other);
    return vernier_cuda.multiply(other, stream);
  };
  static std::uint16_t elsewhere[4096];
  for (const Fault& each : std::initializer_list<Fault>{
           {"no bias", [](Product& product) { product.bias = nullptr; }},
           {"no GELU", [](Product& product) { product.inputs_of_gelu = nullptr; }},
           {"no derivative of GELU", [](Product& product) { product.slopes_of_gelu = nullptr; }},
           {"another place for sums", [](Product& product) {
              if (product.sums != nullptr) std::memset(product.sums, 0, 2 * static_cast<std::size_t>(product.columns));
              product.sums = elsewhere;
            }}}) {
    fault = each;
    CHECK_MESSAGE(!vernier::gelu_mlp_is_right(broken, any.x, any.layers), each.what);
  }
  broken.multiply = [](const Product&, vernier::gpu::Stream) -> vernier::gpu::Trouble { return "there is none"; };
  CHECK_THROWS_AS(vernier::gelu_mlp_is_right(broken, any.x, any.layers), vernier::Error);
}

TEST_CASE("gelu_mlp: a CPU leaves the work to the operators") {
  const Case any(3, 8, 8, 8, torch::kBFloat16);
  CHECK_FALSE(vernier::gelu_mlp(any.x, any.layers).defined());
}

}  // namespace gelu_mlp_test
