// precision/format with `unit`: y, dx and dw are products of the rounded operands with an emulated matrix unit.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/types.h>
#include <vernier/activation_checkpoint.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/lab/emulated_matmul.h>

#include "oracle.h"
#include "plugin_library.h"
#include "small_run.h"
#include "thrown.h"

namespace unit_test {

using torch::Tensor;
using vernier::emulated_matmul;
using vernier::MatrixUnit;
using vernier::Precision;
using vernier::ScaleBlock;
using vernier::unit_operand;
using vernier::UnitOperand;

namespace {

constexpr MatrixUnit hopper{.fraction = 13, .chunk = 32, .promote_every = 64};
constexpr const char* of_hopper = "\nunit = {fraction = 13, promote_every = 64}";

struct Layers final : torch::nn::Module {
  Layers() : weight(register_parameter("weight", torch::randn({48, 200}).div_(8))) {}
  Tensor weight;
};

struct Policy {
  explicit Policy(const std::string& options) {
    const auto config = from_toml({"[precision]\n" + options});
    plugin = make_plugin<Precision>("precision/format", std::get<vernier::Table>(config.at("precision").data));
    torch::manual_seed(3);
    model = std::make_shared<Layers>();
    run.model = model;
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
    plugin->prepare(run);
  }
  ~Policy() { vernier::set_log_sink(nullptr); }
  template <class Body>
  Tensor operator()(const Body& body) {
    return plugin->forward(body);
  }
  vernier::TrainerRun run;
  std::shared_ptr<Layers> model;
  std::unique_ptr<Precision> plugin;
};

// summed: the dimension of matrices along which blocks lie, -1 or -2.
UnitOperand operand(const Tensor& x, const std::string& name, int summed) {
  auto format = vernier::tensor_format(name);
  if (format.block == 0 && format.element.bits <= 8) format.block = -1;
  if (format.block <= 0) return unit_operand(x.detach(), format);
  return unit_operand(x.detach(), format, summed == -1 ? ScaleBlock{1, format.block} : ScaleBlock{format.block, 1});
}

UnitOperand turned(const UnitOperand& x) {
  const auto& least = x.least_exponents;
  return {x.numbers.transpose(-2, -1),
          least.dim() == 0 ? least : least.transpose(-2, -1),
          x.scale,
          {},
          x.inner_scales.defined() ? x.inner_scales.transpose(-2, -1) : Tensor()};
}

struct Products {
  Tensor y, dx, dw;
};

Products linear(Policy& policy, const Tensor& x, const Tensor& g) {
  const auto input = x.detach().clone().requires_grad_();
  policy.model->weight.mutable_grad() = Tensor();
  const auto y = policy([&] { return at::linear(input, policy.model->weight); });
  y.backward(g);
  return {y.detach(), input.grad(), policy.model->weight.grad()};
}

}  // namespace

TEST_CASE("unit: a linear layer adds y, dx and dw by the unit, each of its own rounded operands") {
  struct Row {
    const char *forward, *backward;
  };
  for (const auto& row :
       {Row{"e4m3", "e5m2"}, {"bf16", "bf16"}, {"nvfp4", "nvfp4"}, {"mxfp8", "fp16"}, {"int8", "e4m3"}}) {
    const std::string forward = row.forward, backward = row.backward;
    CAPTURE(forward);
    Policy policy("forward = '" + forward + "'\noperands = {g = '" + backward + "'}" + of_hopper);
    const auto x = torch::randn({5, 37, 200}), g = torch::randn({5, 37, 48}).mul_(1e-3);
    const auto found = linear(policy, x, g);
    const auto a = x.view({-1, 200}), e = g.view({-1, 48}), w = policy.model->weight.detach();
    const auto y = emulated_matmul(operand(a, forward, -1), turned(operand(w, forward, -1)), hopper);
    CHECK(same_bits(found.y.reshape({-1, 48}), y));
    const auto dx = emulated_matmul(operand(e, backward, -1), operand(w, forward, -2), hopper);
    CHECK(same_bits(found.dx.reshape({-1, 200}), dx));
    const auto dw = emulated_matmul(turned(operand(a, forward, -2)), operand(e, backward, -2), hopper);
    CHECK(same_bits(found.dw, dw.t()));
    Policy plain("forward = '" + forward + "'\noperands = {g = '" + backward + "'}");
    const auto exact = linear(plain, x, g);
    CHECK_FALSE(torch::equal(found.y, exact.y));
    CHECK((found.y - exact.y).abs().max().item<double>() < 2e-2);
  }
}

TEST_CASE("unit: products in batches and with broadcasting, and their gradients") {
  Policy policy(std::string("forward = 'e4m3'") + of_hopper);
  const auto a = torch::randn({3, 2, 7, 130}).requires_grad_(), b = torch::randn({2, 130, 9}).requires_grad_();
  const auto y = policy([&] { return at::matmul(a, b); });
  CHECK(same_bits(y.detach(), emulated_matmul(operand(a, "e4m3", -1), operand(b, "e4m3", -2), hopper)));
  const auto g = torch::randn_like(y);
  y.backward(g);
  CHECK(same_bits(a.grad(), emulated_matmul(operand(g, "e4m3", -1), turned(operand(b, "e4m3", -1)), hopper)));
  const auto each = emulated_matmul(turned(operand(a, "e4m3", -2)), operand(g, "e4m3", -2), hopper);
  CHECK(same_bits(b.grad(), each.sum(0)));
}

namespace {

constexpr std::int64_t groups = 2;
constexpr std::int64_t stride[] = {2, 1}, padding[] = {1, 2}, dilation[] = {1, 2};

// The numbers that one sum multiplies, in its order.
struct Sum {
  std::vector<float> a, b;
  void add(const Tensor& x, const Tensor& y) {
    a.push_back(x.item<float>());
    b.push_back(y.item<float>());
  }
  void add_zero() {
    a.push_back(0);
    b.push_back(0);
  }
  float value() const {
    return emulated_matmul(torch::tensor(a).unsqueeze(0), torch::tensor(b).unsqueeze(1), {.fraction = 8, .chunk = 4})
        .item<float>();
  }
};

// One element after another; the order of the sums is that of docs/guides/formats.md.
Tensor output_by_loop(const Tensor& x, const Tensor& w, const Tensor& like) {
  auto y = torch::zeros_like(like);
  const auto channels = w.size(1), outputs = w.size(0) / groups;
  for (std::int64_t n = 0; n < y.size(0); ++n) {
    for (std::int64_t o = 0; o < y.size(1); ++o) {
      for (std::int64_t p = 0; p < y.size(2) * y.size(3); ++p) {
        Sum sum;
        const auto row = p / y.size(3), column = p % y.size(3);
        for (std::int64_t k = 0; k < w.size(2) * w.size(3); ++k) {
          const auto i = k / w.size(3), j = k % w.size(3);
          const auto r = row * stride[0] + i * dilation[0] - padding[0],
                     c = column * stride[1] + j * dilation[1] - padding[1];
          for (std::int64_t channel = 0; channel < channels; ++channel) {
            const bool is_inside = r >= 0 && r < x.size(2) && c >= 0 && c < x.size(3);
            is_inside ? sum.add(x[n][o / outputs * channels + channel][r][c], w[o][channel][i][j]) : sum.add_zero();
          }
        }
        y[n][o][row][column] = sum.value();
      }
    }
  }
  return y;
}

Tensor input_gradient_by_loop(const Tensor& g, const Tensor& w, const Tensor& like) {
  auto dx = torch::zeros_like(like);
  const auto channels = w.size(1), outputs = w.size(0) / groups;
  for (std::int64_t n = 0; n < dx.size(0); ++n) {
    for (std::int64_t c = 0; c < dx.size(1); ++c) {
      for (std::int64_t p = 0; p < dx.size(2) * dx.size(3); ++p) {
        Sum sum;
        for (std::int64_t k = w.size(2) * w.size(3) - 1; k >= 0; --k) {  // the mirrored kernel
          const auto i = k / w.size(3), j = k % w.size(3);
          const auto r = p / dx.size(3) + padding[0] - i * dilation[0],
                     q = p % dx.size(3) + padding[1] - j * dilation[1];
          const bool is_between = r < 0 || q < 0 || r % stride[0] != 0 || q % stride[1] != 0 ||
                                  r / stride[0] >= g.size(2) || q / stride[1] >= g.size(3);
          for (std::int64_t output = 0; output < outputs; ++output) {
            const auto o = c / channels * outputs + output;
            is_between ? sum.add_zero() : sum.add(g[n][o][r / stride[0]][q / stride[1]], w[o][c % channels][i][j]);
          }
        }
        dx[n][c][p / dx.size(3)][p % dx.size(3)] = sum.value();
      }
    }
  }
  return dx;
}

Tensor weight_gradient_by_loop(const Tensor& x, const Tensor& g, const Tensor& like) {
  auto dw = torch::zeros_like(like);
  const auto channels = dw.size(1), outputs = dw.size(0) / groups;
  for (std::int64_t o = 0; o < dw.size(0); ++o) {
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t k = 0; k < dw.size(2) * dw.size(3); ++k) {
        Sum sum;
        for (std::int64_t n = 0; n < g.size(0); ++n) {
          for (std::int64_t p = 0; p < g.size(2) * g.size(3); ++p) {
            const auto r = p / g.size(3) * stride[0] + k / dw.size(3) * dilation[0] - padding[0];
            const auto q = p % g.size(3) * stride[1] + k % dw.size(3) * dilation[1] - padding[1];
            const bool is_inside = r >= 0 && r < x.size(2) && q >= 0 && q < x.size(3);
            is_inside ? sum.add(g[n][o][p / g.size(3)][p % g.size(3)], x[n][o / outputs * channels + c][r][q])
                      : sum.add_zero();
          }
        }
        dw[o][c][k / dw.size(3)][k % dw.size(3)] = sum.value();
      }
    }
  }
  return dw;
}

}  // namespace

TEST_CASE("unit: a convolution with stride, padding, dilation and groups has the sums of a plain loop") {
  Policy policy("forward = 'bf16'\nunit = {fraction = 8, chunk = 4}");
  const auto x = torch::randn({2, 6, 5, 6}).requires_grad_(), w = torch::randn({4, 3, 3, 2}).requires_grad_();
  const auto y = policy([&] { return at::conv2d(x, w, {}, stride, padding, dilation, groups); });
  const auto bf16 = [](const Tensor& t) { return t.detach().to(torch::kBFloat16).to(torch::kFloat32); };
  CHECK(torch::equal(y, output_by_loop(bf16(x), bf16(w), y.detach())));
  const auto g = torch::randn_like(y);
  y.backward(g);
  CHECK(torch::equal(x.grad(), input_gradient_by_loop(bf16(g), bf16(w), x.detach())));
  CHECK(torch::equal(w.grad(), weight_gradient_by_loop(bf16(x), bf16(g), w.detach())));
}

TEST_CASE("unit: with 23 bits, convolutions of one to three dimensions are near those with float32 sums") {
  const std::string scaled = "\n[[precision.format]]\nname = 'scaled'\nelement = 'e4m3'\nblock = 4\nscale = 'fp32'";
  for (const std::string format : {"mxfp8", "e4m3", "bf16", "scaled"}) {
    CAPTURE(format);
    const std::string own = format == "scaled" ? scaled : "", forward = "forward = '" + format + "'";
    Policy emulated(forward + "\nunit = {fraction = 23, chunk = 4, promote_every = " + (own.empty() ? "32}" : "4}") +
                    own);
    Policy plain(forward + own);
    for (const std::size_t dimensions : {1, 2, 3}) {
      std::vector<std::int64_t> of_x = {3, 8, 7, 6, 5}, of_w = {8, 4, 3, 2, 3};
      of_x.resize(2 + dimensions);
      of_w.resize(2 + dimensions);
      const auto x = torch::randn(of_x), w = torch::randn(of_w);
      Products found[2];
      for (int i = 0; i < 2; ++i) {
        auto input = x.clone().requires_grad_(), kernel = w.clone().requires_grad_();
        const std::vector<std::int64_t> two(dimensions, 2), one(two.size(), 1);
        auto& policy = i == 0 ? emulated : plain;
        const auto y = policy([&] {
          return dimensions == 1   ? at::conv1d(input, kernel, {}, two, one, one, 2)
                 : dimensions == 2 ? at::conv2d(input, kernel, {}, two, one, one, 2)
                                   : at::conv3d(input, kernel, {}, two, one, one, 2);
        });
        y.backward(torch::ones_like(y).mul_(0.3));
        found[i] = {y.detach(), input.grad(), kernel.grad()};
      }
      CHECK(torch::allclose(found[0].y, found[1].y, 1e-4, 1e-4));
      CHECK(torch::allclose(found[0].dx, found[1].dx, 1e-4, 1e-4));
      CHECK(torch::allclose(found[0].dw, found[1].dw, 1e-4, 1e-4));
    }
  }
}

TEST_CASE("unit: an operand in fp32 and a layer in float32 keep float32 sums; recomputation repeats the bits") {
  const auto x = torch::randn({40, 200}), g = torch::randn({40, 48});
  Policy part(std::string("forward = 'e4m3'\noperands = {g = 'fp32'}") + of_hopper),
      plain("forward = 'e4m3'\noperands = {g = 'fp32'}");
  const auto found = linear(part, x, g), expected = linear(plain, x, g);
  CHECK_FALSE(torch::equal(found.y, expected.y));
  CHECK(torch::equal(found.dx, expected.dx));
  CHECK(torch::equal(found.dw, expected.dw));
  Policy ruled(std::string("forward = 'e4m3'") + of_hopper + "\n[[precision.rule]]\nmatch = ''\nuse = 'fp32'\n");
  CHECK(torch::equal(linear(ruled, x, g).y, at::linear(x, ruled.model->weight)));
  Policy again(std::string("forward = 'e4m3'") + of_hopper);
  Products once[2];
  for (const bool recomputes : {false, true}) {
    const auto input = x.clone().requires_grad_();
    auto& weight = again.model->weight;
    weight.mutable_grad() = Tensor();
    const auto y = again([&] {
      const auto body = [&](const Tensor& in) { return at::linear(in, weight).relu(); };
      return recomputes ? vernier::checkpoint(body, input) : body(input);
    });
    y.backward(g);
    once[recomputes ? 1 : 0] = {y.detach(), input.grad(), weight.grad()};
  }
  CHECK(torch::equal(once[0].y, once[1].y));
  CHECK(torch::equal(once[0].dx, once[1].dx));
  CHECK(torch::equal(once[0].dw, once[1].dw));
}

TEST_CASE("unit: each product has its own, and a unit by name has the rule of the formats") {
  const auto x = torch::randn({40, 200}), g = torch::randn({40, 48});
  struct Row {
    const char *options, *format;
    std::optional<MatrixUnit> y, dx, dw;
  };
  const MatrixUnit h100{.fraction = 13, .chunk = 32}, split{.fraction = 13, .chunk = 32, .promote_every = 128};
  const MatrixUnit a100{.fraction = 24, .chunk = 8};
  const Row rows[] = {
      {"unit = {use = 'h100', dx = {promote_every = 128}, dw = {use = 'h100', promote_every = 128}}", "e4m3", h100,
       split, split},
      {"unit = {use = 'a100', dw = {use = 'fp32'}}", "bf16", a100, a100, std::nullopt},
      {"unit = {use = 'a100', y = {fraction = 13}}", "fp16", MatrixUnit{.fraction = 13, .chunk = 8}, a100, a100},
      {"unit = {use = 'b200'}", "nvfp4", vernier::matrix_unit("b200", 4), vernier::matrix_unit("b200", 4),
       vernier::matrix_unit("b200", 4)},
      {"unit = {use = 'b200'}", "e2m1", vernier::matrix_unit("b200", 8), vernier::matrix_unit("b200", 8),
       vernier::matrix_unit("b200", 8)},
  };
  for (const auto& row : rows) {
    CAPTURE(row.options);
    const std::string format = row.format;
    Policy policy("forward = '" + format + "'\n" + row.options);
    const auto found = linear(policy, x, g);
    const auto w = policy.model->weight.detach();
    const auto product = [&](const UnitOperand& a, const UnitOperand& b, const std::optional<MatrixUnit>& of) {
      if (of) return emulated_matmul(a, b, *of);
      return at::matmul(a.numbers, b.numbers);
    };
    CHECK(same_bits(found.y, product(operand(x, format, -1), turned(operand(w, format, -1)), row.y)));
    CHECK(same_bits(found.dx, product(operand(g, format, -1), operand(w, format, -2), row.dx)));
    CHECK(same_bits(found.dw, product(turned(operand(x, format, -2)), operand(g, format, -2), row.dw).t()));
  }
}

TEST_CASE("unit: bad options end in one line with the TOML to write") {
  struct Row {
    const char *options, *text;
  };
  const Row rows[] = {
      {"unit = {fraction = 13, promote_evry = 128}", "did you mean `promote_every`?"},
      {"unit = {bits = 13}", "write unit = {fraction = 13, chunk = 32}"},
      {"unit = {}", "unit = {use = \"h100\"}"},
      {"unit = {use = 'h10'}", "did you mean \"h100\"?"},
      {"unit = {use = 'v100'}\nforward = 'tf32'", "formats of up to 16 bits, and these have 19"},
      {"unit = {use = 'amx', fraction = 13}\nforward = 'bf16'", "not for amx"},
      {"unit = {fraction = 32}", "31"},
      {"unit = {fraction = 13.5}", "an integer"},
      {"unit = {fraction = 13, chunk = 0}", "1 to 1024"},
      {"unit = {fraction = 13, promote_every = 100}", "write 96"},
      {"unit = {use = 'h100', dw = 4}", "write dw = {promote_every = 128}"},
      {"unit = 'h100'", "unit"},
      {"accumulate = {mantissa = 13}", "write unit = {fraction = 13, promote_every = 128}"},
      {"forward = 'fp32'\noperands = {weight = 'bf16'}\nunit = {fraction = 13}", "write forward = \"e4m3\""},
      {"forward = 'fp32'\noperands = {g = 'e5m2'}\nunit = {fraction = 13}", "write forward = \"e4m3\""},
      {"forward = 'mine'\nunit = {fraction = 13}\n[[precision.format]]\nname = 'mine'\nblock = 128\nscale = "
       "'fp32'",
       "write promote_every = 128"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.options);
    const auto refusal = thrown_by([&] { Policy policy(row.options); });
    CHECK(refusal.kind == 2);
    CHECK_MESSAGE(says(refusal.text, row.text), refusal);
  }
}

}  // namespace unit_test
