#include <torch/csrc/autograd/autograd.h>
#include <vernier/autocast.h>
#include <vernier/error.h>
#include <vernier/float8_linear.h>

#include <map>
#include <string>

#include "float8_reference.h"
#include "oracle.h"
#include "run/process/device.h"

namespace float8_linear_test {

using torch::Tensor;
using vernier::Error;
using vernier::float8_recipe;
using vernier::Float8Linear;
using vernier::Float8Recipe;

namespace {

const char* const recipes[] = {"delayed", "current", "rowwise", "rowwise_with_high_precision_grad_weight", "block"};
constexpr double inf = HUGE_VAL;

struct Data {
  Tensor x, w, b, g;
  Data(std::int64_t m, std::int64_t n, std::int64_t k, std::uint64_t seed) {
    torch::manual_seed(seed);
    // A few columns and rows stand out, so that it matters what shares a scale.
    x = (torch::randn({m, k}) * torch::randn({k}).exp()).requires_grad_();
    w = (torch::randn({n, k}) * torch::randn({n, 1}).exp() / 10).requires_grad_();
    b = torch::randn({n}).requires_grad_();
    g = torch::randn({m, n}) * torch::randn({m, 1}).exp() / 1000;
  }
};

struct Results {
  Tensor y, dx, dw, db;
};

Results run(Float8Linear& layer, const Data& data) {
  for (const auto& tensor : {data.x, data.w, data.b}) tensor.mutable_grad().reset();
  const auto y = layer.forward(data.x, data.w, data.b);
  y.backward(data.g.to(y.scalar_type()));
  return {y.detach(), data.x.grad().clone(), data.w.grad().clone(), data.b.grad().clone()};
}

// Undefined if the recipe is not delayed.
Tensor kept(const Float8Linear& layer, const char* name) {
  const auto state = layer.state_dict();
  return state.has(name) ? state.tensor(name) : Tensor();
}

// The same from the formulas, each with the sum of magnitudes that its rounding errors are relative to.
struct Formula {
  Matrix value, magnitude;
};

Matrix magnitudes(Matrix matrix) {
  for (auto& value : matrix.values) value = std::abs(value);
  return matrix;
}

Formula of(const Matrix& a, const Matrix& b) {
  return {product(a, b), product(magnitudes(a), magnitudes(b))};
}

struct Formulas {
  Formula y, dx, dw;
};

// scales: of x, w and g where they are not computed from the operands.
Formulas formulas(const std::string& name, const Data& data, const std::vector<double>& scales = {0, 0, 0}) {
  using namespace vernier;
  const Matrix x(data.x), w(data.w), g(data.g);
  const auto e4m3 = torch::kFloat8_e4m3fn, e5m2 = torch::kFloat8_e5m2;
  if (name == "delayed" || name == "current") {
    const auto x8 = quantized(x, e4m3, per_tensor, 0, false, scales[0]);
    const auto w8 = quantized(w, e4m3, per_tensor, 0, false, scales[1]);
    const auto g8 = quantized(g, e5m2, per_tensor, 0, false, scales[2]);
    return {of(x8, w8.transposed()), of(g8, w8), of(g8.transposed(), x8)};
  }
  if (name == "block") {
    const auto w8 = quantized(w, e4m3, {128, 128}, 0, true);
    return {of(quantized(x, e4m3, {1, 128}, 0, true), w8.transposed()), of(quantized(g, e4m3, {1, 128}, 0, true), w8),
            of(quantized(g, e4m3, {128, 1}, 0, true).transposed(), quantized(x, e4m3, {128, 1}, 0, true))};
  }
  const auto y = of(quantized(x, e4m3, {1, 0}, 0, true), quantized(w, e4m3, {1, 0}, 0, true).transposed());
  const auto g8 = quantized(g, e4m3, {1, 0}, 0, true);
  if (name == "rowwise") {
    return {y, of(g8, quantized(w, e4m3, {0, 1}, 0, true)),
            of(quantized(g, e4m3, {0, 1}, 0, true).transposed(), quantized(x, e4m3, {0, 1}, 0, true))};
  }
  return {y, of(g8, quantized(w, e4m3, {0, 0}, 0, true)), of(g.transposed(), x)};
}

// Sums of float32 are as exact as their magnitudes allow.
bool is(const Tensor& tensor, const Formula& formula) {
  const auto error = (tensor.to(torch::kFloat64) - formula.value.tensor()).abs();
  return (error <= formula.magnitude.tensor() * 2e-6 + 1e-30).all().item<bool>();
}

}  // namespace

TEST_CASE("float8_linear: output and gradients are the recipe's formulas, in random shapes") {
  std::uint64_t seed = 0;
  for (const std::string name : recipes) {
    for (const auto& [m, n, k] :
         {std::tuple(5, 7, 9), std::tuple(16, 32, 48), std::tuple(130, 64, 257), std::tuple(40, 144, 130)}) {
      CAPTURE(name);
      CAPTURE(m);
      const Data data(m, n, k, ++seed);
      Float8Linear layer(float8_recipe(name), torch::kFloat32);
      const auto results = run(layer, data);
      auto expected =
          formulas(name, data, {name == "delayed" ? 1.0 : 0, name == "delayed" ? 1.0 : 0, name == "delayed" ? 1.0 : 0});
      CHECK(is((results.y - data.b).detach(), expected.y));
      CHECK(is(results.dx, expected.dx));
      CHECK(is(results.dw, expected.dw));
      CHECK(torch::allclose(results.db, data.g.sum(0), 1e-5, 1e-8));
    }
  }
}

TEST_CASE("float8_linear: delayed computes with the scales of earlier updates") {
  Float8Linear layer(float8_recipe("delayed"), torch::kFloat32);
  for (std::uint64_t update = 0; update < 4; ++update) {
    const Data data(12, 16, 20, 30 + update);
    const auto scales = kept(layer, "scales").clone();
    const auto results = run(layer, data);
    const auto expected =
        formulas("delayed", data, {scales[0].item<double>(), scales[1].item<double>(), scales[2].item<double>()});
    CHECK(is((results.y - data.b).detach(), expected.y));
    CHECK(is(results.dx, expected.dx));
    CHECK(is(results.dw, expected.dw));
    layer.update();
  }
  CHECK(kept(layer, "scales")[0].item<double>() != 1);
}

TEST_CASE("float8_linear: results in 16 bits are those in float32, rounded once") {
  for (const std::string name : recipes) {
    CAPTURE(name);
    for (const auto dtype : {torch::kBFloat16, torch::kFloat16}) {
      Data data(24, 32, 48, 5);
      for (auto* tensor : {&data.x, &data.w, &data.b})
        *tensor = tensor->detach().to(dtype).to(torch::kFloat32).requires_grad_();
      data.g = data.g.to(dtype).to(torch::kFloat32);
      Float8Linear exact(float8_recipe(name), torch::kFloat32), rounded(float8_recipe(name), dtype);
      const auto a = run(exact, data), b = run(rounded, data);
      CHECK((b.y.scalar_type() == dtype));
      CHECK((b.dw.scalar_type() == torch::kFloat32));
      CHECK(torch::equal(a.y.to(dtype), b.y));
      CHECK(torch::equal(a.dx.to(dtype).to(torch::kFloat32), b.dx));
      if (exact.state_dict().tensors.empty() && name != "rowwise_with_high_precision_grad_weight")
        CHECK(torch::equal(a.dw.to(dtype).to(torch::kFloat32), b.dw));
      CHECK(distance(b.dw, a.dw) < 5e-3);
      CHECK(distance(b.db, a.db) < 5e-3);
    }
  }
}

TEST_CASE("float8_linear: emulated layers are those of torchao") {
  const Oracle oracle("float8");
  const std::pair<const char*, const char*> names[] = {
      {"tensorwise", "current"},
      {"rowwise", "rowwise"},
      {"rowwise_with_gw_hp", "rowwise_with_high_precision_grad_weight"}};
  for (const auto& [theirs, ours] : names) {
    CAPTURE(ours);
    const auto of = [&oracle, theirs = theirs](const char* part) {
      return oracle[c10::str("linear.", theirs, ".", part)].detach().clone();
    };
    const auto x = of("x").requires_grad_(), w = of("w").requires_grad_();
    Float8Linear layer(float8_recipe(ours));
    const auto y = layer.forward(x, w);
    y.backward(of("g"));
    for (const auto& [part, got] : {std::pair("y", y), std::pair("dx", x.grad()), std::pair("dw", w.grad())}) {
      CAPTURE(part);
      const auto expected = of(part);
      CHECK((got.scalar_type() == torch::kBFloat16));
      // A sum in another order is at most another neighbour in bfloat16, here and there.
      CHECK(distance(got, expected) < 4e-3);
      CHECK(got.eq(expected).to(torch::kFloat32).mean().item<double>() > 0.99);
    }
  }
}

TEST_CASE("float8_linear: inputs of any dimensions, weights of any stride and dtype") {
  for (const std::string name : recipes) {
    CAPTURE(name);
    const Data data(12, 16, 32, 9);
    Float8Linear layer(float8_recipe(name));
    const auto expected = run(layer, data);
    const auto x = data.x.detach().view({2, 3, 2, 32}).requires_grad_();
    const auto stored = data.w.detach().t().contiguous().requires_grad_();  // [in, out], as GPT-2's are
    const auto y = layer.forward(x, stored.t(), data.b);
    CHECK((y.sizes() == torch::IntArrayRef{2, 3, 2, 16}));
    y.backward(data.g.view({2, 3, 2, 16}).to(y.scalar_type()));
    CHECK(torch::equal(y.reshape({12, 16}), expected.y));
    CHECK(torch::equal(x.grad().view({12, 32}), expected.dx));
    CHECK(torch::equal(stored.grad().t(), expected.dw));
    CHECK(torch::equal(layer.forward(data.x[3], data.w, data.b),
                       layer.forward(data.x.narrow(0, 3, 1), data.w, data.b)[0]));
    for (const auto dtype : {torch::kBFloat16, torch::kFloat16}) {
      const auto w = data.w.detach().to(dtype).requires_grad_();
      const auto narrow = layer.forward(data.x.detach().to(torch::kBFloat16), w);
      narrow.sum().backward();
      CHECK((w.grad().scalar_type() == dtype));
      CHECK(torch::equal(narrow, layer.forward(data.x, w.detach().to(torch::kFloat32))));
    }
  }
}

TEST_CASE("float8_linear: only the gradients that are wanted") {
  for (const std::string name : recipes) {
    CAPTURE(name);
    const Data data(12, 16, 32, 9);
    Float8Linear layer(float8_recipe(name));
    const auto expected = run(layer, data);
    const auto g = data.g.to(torch::kBFloat16);
    {
      const auto x = data.x.detach().requires_grad_();
      layer.forward(x, data.w.detach()).backward(g);
      CHECK(torch::equal(x.grad(), expected.dx));
    }
    {
      const auto w = data.w.detach().requires_grad_();
      layer.forward(data.x.detach(), w, data.b.detach()).backward(g);
      CHECK(torch::equal(w.grad(), expected.dw));
    }
    {
      const auto b = data.b.detach().requires_grad_();
      layer.forward(data.x.detach(), data.w.detach(), b).backward(g);
      CHECK(torch::equal(b.grad(), expected.db));
    }
    CHECK_FALSE(layer.forward(data.x.detach(), data.w.detach()).requires_grad());
  }
}

TEST_CASE("float8_linear: without a gradient the output is the same, and histories are left alone") {
  for (const std::string name : recipes) {
    CAPTURE(name);
    const Data data(12, 16, 32, 9);
    Float8Linear layer(float8_recipe(name));
    run(layer, data);
    layer.update();
    const auto history = kept(layer, "amax_history").defined() ? kept(layer, "amax_history").clone() : Tensor();
    Tensor y;
    {
      const torch::NoGradGuard no_grad;
      y = layer.forward(data.x, data.w, data.b);
      CHECK_FALSE(y.requires_grad());
    }
    if (history.defined()) CHECK(torch::equal(kept(layer, "amax_history"), history));
    CHECK(torch::equal(layer.forward(data.x, data.w, data.b), y));
    // The weight that was kept from the forward without a gradient counts in the one with it.
    if (history.defined()) CHECK(kept(layer, "amax_history")[0][1].item<float>() == data.w.abs().max().item<float>());
  }
}

TEST_CASE("float8_linear: the same under autocast") {
  const Data data(12, 16, 32, 9);
  Float8Linear layer(float8_recipe("current"));
  const auto y = layer.forward(data.x, data.w, data.b);
  const vernier::Autocast autocast(torch::kCPU, torch::kBFloat16);
  CHECK(torch::equal(layer.forward(data.x, data.w, data.b), y));
}

TEST_CASE("float8_linear: a weight that changed is quantised anew") {
  for (const std::string name : recipes) {
    CAPTURE(name);
    const Data data(12, 16, 32, 9);
    Float8Linear layer(float8_recipe(name)), fresh(float8_recipe(name));
    const torch::NoGradGuard no_grad;
    const auto before = layer.forward(data.x, data.w);
    CHECK(torch::equal(layer.forward(data.x, data.w), before));
    data.w.mul_(-1);
    CHECK(torch::equal(layer.forward(data.x, data.w), -before));
    CHECK(torch::equal(layer.forward(data.x, data.w * 2), fresh.forward(data.x, data.w * 2)));
    CHECK(torch::equal(layer.forward(data.x, data.w * 3), fresh.forward(data.x, data.w * 3)));
  }
}

namespace {

// Transformer Engine's rule for one operand: a window of the last amaxes, and one scale.
struct History {
  std::size_t length;
  bool most_recent;
  double largest, margin;
  std::vector<double> seen;
  double scale = 1;

  void update(double amax) {
    if (amax == 0) return;
    seen.push_back(amax);
    double counts = 0;
    for (std::size_t i = seen.size() > length ? seen.size() - length : 0; i < seen.size(); ++i)
      counts = std::fmax(counts, seen[i]);
    if (most_recent) counts = amax;
    if (std::isfinite(counts) && counts > 0) scale = static_cast<float>(largest * std::exp2(-margin) / counts);
  }
};

}  // namespace

TEST_CASE("float8_linear: histories and scales are those computed by hand") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  // The magnitudes of x, w and g: ordinary updates, one that overflows, one with nan, one that does not use the layer,
  // quiet ones.
  const std::vector<std::vector<double>> updates = {{3, 0.5, 1e-3}, {7, 0.25, 2e-3}, {inf, 0.5, inf}, {2, 0.5, nan},
                                                    {0, 0, 0},      {1, 0.5, 1e-4},  {2, 0.5, 1e-4},  {0.5, 0.5, 1e-4},
                                                    {0.5, 1, 1e-5}, {0.25, 1, 1e-5}, {0.25, 1, 1e-5}, {9, 1, 1e-5}};
  for (const std::int64_t length : {1, 3, 5}) {
    for (const bool most_recent : {false, true}) {
      for (const double margin : {0.0, 2.0}) {
        auto recipe = float8_recipe("delayed");
        recipe.amax_history_len = length;
        recipe.most_recent = most_recent;
        recipe.margin = margin;
        Float8Linear layer(recipe);
        std::vector<History> operands;
        for (const double largest : {448.0, 448.0, 57344.0})
          operands.push_back({static_cast<std::size_t>(length), most_recent, largest, margin, {}});
        for (std::size_t update = 0; update < updates.size(); ++update) {
          CAPTURE(length);
          CAPTURE(update);
          const auto& amaxes = updates[update];
          // Two micro-batches, the larger one second: what counts is the largest of the update.
          for (const double share : {0.5, 1.0}) {
            if (amaxes[0] == 0) continue;
            const auto x = torch::full({4, 16}, amaxes[0] * share, torch::kFloat32).requires_grad_();
            const auto w = torch::full({16, 16}, amaxes[1], torch::kFloat32).requires_grad_();
            layer.forward(x, w).backward(torch::full({4, 16}, amaxes[2] * share, torch::kFloat32).to(torch::kBFloat16));
          }
          layer.update();
          for (std::size_t i = 0; i < 3; ++i) {
            CAPTURE(i);
            double amax = amaxes[i];
            if (i != 1) amax = torch::scalar_tensor(amax).to(torch::kBFloat16).item<double>();
            operands[i].update(amax);
            CHECK(kept(layer, "scales")[static_cast<std::int64_t>(i)].item<double>() == operands[i].scale);
            // Newest last, and the row of the update in work is empty.
            const auto column = kept(layer, "amax_history").select(1, static_cast<std::int64_t>(i));
            CHECK(column[0].item<double>() == 0);
            const auto& seen = operands[i].seen;
            for (std::int64_t back = 1; back < length; ++back) {
              const auto index = static_cast<std::int64_t>(seen.size()) - back;
              const double expected = index < 0 ? 0 : seen[static_cast<std::size_t>(index)],
                           got = column[length - back].item<float>();
              CHECK(((std::isnan(expected) && std::isnan(got)) || got == static_cast<float>(expected)));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("float8_linear: saved and loaded, the next updates are the same bits") {
  auto recipe = float8_recipe("delayed");
  recipe.amax_history_len = 3;
  Float8Linear layer(recipe), other(recipe);
  for (std::uint64_t update = 0; update < 8; ++update) {
    if (update == 4) {
      vernier::State state;
      for (const auto& [name, tensor] : layer.state_dict().tensors) state.tensors[name] = tensor.clone();
      REQUIRE(state.tensors.size() == 2);
      other.load_state_dict(state);
    }
    const Data data(8, 16, 16, 50 + update);
    const auto a = run(layer, data);
    if (update >= 4) {
      const auto b = run(other, data);
      CHECK(torch::equal(a.y, b.y));
      CHECK(torch::equal(a.dx, b.dx));
      CHECK(torch::equal(a.dw, b.dw));
      other.update();
    }
    layer.update();
  }
  CHECK(torch::equal(kept(layer, "amax_history"), kept(other, "amax_history")));
  CHECK(torch::equal(kept(layer, "scales"), kept(other, "scales")));
  recipe.amax_history_len = 4;
  Float8Linear longer(recipe);
  CHECK_THROWS_WITH(longer.load_state_dict(layer.state_dict()),
                    "the saved amax_history is of shape [3, 3], and amax_history_len asks for [4, 3]");
  CHECK(Float8Linear(float8_recipe("rowwise")).state_dict().tensors.empty());
}

TEST_CASE("float8_linear: an inf or nan in comes out, so that a scaler sees it") {
  for (const std::string name : recipes) {
    CAPTURE(name);
    Data data(8, 16, 16, 3);
    data.g[2][3] = std::numeric_limits<float>::quiet_NaN();
    Float8Linear layer(float8_recipe(name));
    const auto results = run(layer, data);
    CHECK(results.dw.isnan().any().item<bool>());
    CHECK(results.dx.isnan().any().item<bool>());
    const auto x = data.x.detach().clone();
    x[1][1] = std::numeric_limits<float>::quiet_NaN();
    CHECK(layer.forward(x, data.w).isnan().any().item<bool>());
  }
}

TEST_CASE("float8_linear: a graph outlives its layer and an update") {
  const Data data(8, 16, 16, 3);
  Float8Linear reference(float8_recipe("delayed"));
  run(reference, data);
  reference.update();
  const auto expected = run(reference, data);
  Tensor y;
  {
    Float8Linear layer(float8_recipe("delayed"));
    run(layer, data);
    layer.update();
    y = layer.forward(data.x, data.w, data.b);
    layer.update();
  }
  data.x.mutable_grad().reset();
  y.backward(data.g.to(torch::kBFloat16));
  CHECK(torch::equal(y, expected.y));
  CHECK(data.x.grad().isfinite().all().item<bool>());
}

TEST_CASE("float8_linear: a second derivative is refused") {
  const Data data(8, 16, 16, 3);
  Float8Linear layer(float8_recipe("current"));
  const auto loss = layer.forward(data.x, data.w).sum();
  CHECK_THROWS_WITH_AS(torch::autograd::grad({loss}, {data.x}, {}, std::nullopt, /*create_graph=*/true),
                       "a linear layer in fp8 has no second derivative; keep it in bf16", Error);
}

TEST_CASE("float8_linear: what cannot be is refused with the reason") {
  const auto refusal = [](const std::string& name, const std::string& format) -> std::string {
    try {
      float8_recipe(name, format);
    } catch (const Error& error) {
      CHECK((error.kind() == Error::Kind::configuration));
      return error.what();
    }
    return "";
  };
  CHECK(refusal("delay", "auto").starts_with("there is no fp8 recipe \"delay\"; there are delayed, current"));
  CHECK(refusal("current", "e5m2").starts_with("two bits of E5M2 are too few"));
  CHECK(refusal("block", "hybrid").starts_with("fp8 blocks are of E4M3 alone"));
  CHECK(refusal("rowwise", "fp4").starts_with("there is no fp8 format \"fp4\""));
  CHECK(refusal("rowwise", "hybrid") == "");
  CHECK((float8_recipe("current", "e4m3").gradient_format == torch::kFloat8_e4m3fn));
  CHECK((float8_recipe("delayed").gradient_format == torch::kFloat8_e5m2));
  CHECK((float8_recipe("rowwise", "hybrid").gradient_format == torch::kFloat8_e5m2));
  CHECK_THROWS_AS(Float8Linear(float8_recipe("current"), torch::kFloat64), Error);
  Float8Linear layer(float8_recipe("current"));
  CHECK_THROWS_WITH(layer.forward(torch::ones({2, 3}), torch::ones({4, 5})),
                    "a linear layer of weight [4, 5] cannot take an input of shape [2, 3]");
}

TEST_CASE("float8_linear: devices that cannot are refused, with the reason") {
  const auto recipe = float8_recipe("rowwise");
  CHECK(vernier::float8_refusal(recipe, torch::kCPU) == "");
  CHECK(vernier::float8_refusal(recipe, torch::kMPS).starts_with("is for CUDA devices, not for mps"));
  const bool has_gpu = vernier::open_device("auto").is_cuda();
  // Either there is no CUDA here, or a GPU that is too old; a new one would be taken.
  const auto refusal = vernier::float8_refusal(recipe, torch::Device(torch::kCUDA, 0));
  if (!has_gpu) CHECK(refusal.ends_with("take bf16, or a CPU, where fp8 is emulated"));
}

TEST_CASE("float8_linear: a GPU computes what is emulated") {
  const torch::Device gpu(torch::kCUDA, 0);
  if (!vernier::open_device("auto").is_cuda() || !vernier::float8_refusal(float8_recipe("rowwise"), gpu).empty()) {
    MESSAGE("skipped: there is no GPU here that multiplies fp8");
    return;
  }
  for (const std::string name : recipes) {
    CAPTURE(name);
    Data data(40, 64, 144, 5);
    Float8Linear emulated(float8_recipe(name)), real(float8_recipe(name));
    const auto expected = run(emulated, data);
    Data there = data;
    for (auto* tensor : {&there.x, &there.w, &there.b}) *tensor = tensor->detach().to(gpu).requires_grad_();
    there.g = data.g.to(gpu);
    const auto got = run(real, there);
    CHECK(distance(got.y.cpu(), expected.y) < 2e-2);
    CHECK(distance(got.dx.cpu(), expected.dx) < 1e-2);
    CHECK(distance(got.dw.cpu(), expected.dw) < 1e-2);
    CHECK(distance(got.db.cpu(), expected.db) < 1e-2);
  }
}

}  // namespace float8_linear_test
