// Quantizers of precision/format: what the host gives them and takes from them, and the numbers of published recipes.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/inner_plugin.h>
#include <vernier/lab/quantizer.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <tuple>

#include "../../../plugins/precision/format/quantizer_laws.h"
#include "plugin_library.h"
#include "small_run.h"
#include "thrown.h"

namespace quantizer_test {

using torch::Tensor;
using vernier::Operand;
using vernier::Precision;
using vernier::Quantizer;
using vernier::round_to;
using vernier::tensor_format;
using vernier::UnitOperand;

namespace {

// The block of the papers' rules that all of them were computed for.
Tensor block() {
  return torch::tensor({{0.1, -0.25, 0.5, 1., -1.5, 2.2, 3.3, -4.4, 5.5, -6.6, 7.7, 0., 0.03, -0.9, 2.5, 10.}})
      .to(torch::kFloat);
}

Tensor rounded(Quantizer& quantizer, const Tensor& x, std::uint64_t seed = 0, bool is_weight = false) {
  return quantizer
      .quantize({.numbers = x, .key = "layer/y.x", .is_weight = is_weight, .seed = seed, .product_seed = seed})
      .numbers;
}

struct Model final : torch::nn::Module {
  Model() {
    for (const char* name : {"h.0", "h.1", "h.2", "head"}) {
      auto place = std::make_shared<torch::nn::Module>();
      weights.push_back(place->register_parameter("weight", torch::randn({48, 128}).div_(8)));
      std::string path = name;
      if (path != "head") path = path.substr(2);
      (path == "head" ? register_module("head", place) : blocks()->register_module(path, place));
    }
  }
  std::shared_ptr<torch::nn::Module> blocks() {
    if (h == nullptr) h = register_module("h", std::make_shared<torch::nn::Module>());
    return h;
  }
  std::shared_ptr<torch::nn::Module> h;
  std::vector<Tensor> weights;
};

struct Products {
  Tensor y, dx, dw;
};

struct Policy {
  explicit Policy(const vernier::Table& precision) {
    vernier::set_plugin_maker([](const std::string& role, const vernier::Value& table) {
      return vernier::make(built_plugins(), role, table).plugin;
    });
    auto table = precision;
    table.erase("use");
    plugin = make_plugin<Precision>("precision/format", table);
    torch::manual_seed(3);
    model = std::make_shared<Model>();
    run.model = model;
    plugin->prepare(run);
    plugin->check(run);
  }
  explicit Policy(const std::string& options)
      : Policy(std::get<vernier::Table>(from_toml({"[precision]\n" + options}).at("precision").data)) {}
  ~Policy() { vernier::set_plugin_maker(nullptr); }

  Products linear(const Tensor& x, const Tensor& g, std::size_t layer = 0) const {
    const auto input = x.detach().clone().requires_grad_();
    const auto& weight = model->weights[layer];
    weight.mutable_grad() = Tensor();
    const auto y = plugin->forward([&] { return at::linear(input, weight); });
    y.backward(g);
    return {y.detach(), input.grad(), weight.grad()};
  }
  Tensor weight(std::size_t layer = 0) const { return model->weights[layer].detach(); }

  vernier::TrainerRun run;
  std::shared_ptr<Model> model;
  std::unique_ptr<Precision> plugin;
};

bool is_near(const Tensor& a, const Tensor& b) {
  return torch::allclose(a, b, 1e-5, 1e-5);
}

}  // namespace

TEST_CASE("quantizers: blocks, rows and scales of published recipes are those of their authors") {
  const auto x2 =
      torch::tensor({{4.9, 4.8, -4.7, 5.1, 4.6, 1., 2., 3., .5, .2, -4.9, 5., 4.8, -2.2, 1.1, 6.}}).to(torch::kFloat);
  struct Row {
    const char *name, *options;
    Tensor x, codes;
    double scale;
    bool is_weight = false;
  };
  const auto codes = [](std::vector<float> list) { return torch::tensor(list).view({1, -1}); };
  const auto w = codes({-1, -.5F, -.2F, .05F, .1F, .3F, .8F, 1.5F});
  const auto hif4 = torch::zeros({2, 64});
  hif4.narrow(1, 0, 12).copy_(torch::tensor(
      {{7., -3.3, 1., .2, .5, -.1, .03, 2., .9, .4, -.6, .1}, {7., -3., 1., 0., .5, 0., 0., 2., 1., .5, -.5, 0.}}));
  const Row rows[] = {
      {"hif8", "", codes({.3F, 1.F / 3, 17, 300, 33000, -0x1p-23F, 0x1p-24F, 5e-7F}),
       codes({.3125F, .34375F, 16, 256, 32768, -0x1p-22F, 0, 0x1p-21F}), 1},
      {"hif4", "", hif4.narrow(0, 0, 1), hif4.narrow(0, 1, 1), 1},
      {"bitnet", "", w, codes({-1, -1, 0, 0, 0, 1, 1, 1}), 0.55625, true},
      {"bitnet", "", w, codes({-85, -42, -17, 4, 8, 25, 68, 127}), 1.5 / 127},
      {"sawb", "", w, codes({-4, -2, -1, 0, 0, 1, 3, 6}), 0.25834018},
      {"quartet", "", torch::cat({block(), block()}, 1),
       codes({0, 0, .5, 1, -1.5, 2, 3, -4, 6, -6, 6, 0, 0, -1, 2, 6}).repeat({1, 2}), 1},
      {"four_over_six", "", block(), codes({0, 0, .5, .5, -1, 1.5, 2, -3, 3, -4, 4, 0, 0, -.5, 1.5, 6}), 256. / 153.6},
      {"four_over_six", "error = 'magnitudes'", x2, codes({3, 3, -3, 3, 3, .5, 1.5, 2, .5, 0, -3, 3, 3, -1.5, .5, 4}),
       384. / 256},
      {"lsq", "", w, codes({-2, -1, 0, 0, 0, 1, 2, 4}), 0.420485476, true},
      {"pact", "bits = 2\nclip = 1.0", w, codes({0, 0, 0, 0, 0, 1, 2, 3}), 1. / 3},
      {"quest", "bits = 4", codes({-3, -1.2F, -.4F, 0, .1F, .7F, 1.5F, 2.9F}),
       codes({-5.5, -2.5, -.5, -.5, .5, 1.5, 2.5, 5.5}), 0.552810737},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const auto config = from_toml({std::string("[options]\n") + row.options});
    const auto quantizer = make_plugin<Quantizer>(std::string("quantizer/") + row.name,
                                                  std::get<vernier::Table>(config.at("options").data));
    const auto y = rounded(*quantizer, row.x, 0, row.is_weight);
    CAPTURE(y);
    CHECK(torch::allclose(y, row.codes * row.scale, 1e-5, 1e-6));
  }
}

TEST_CASE(
    "quantizers: four_over_six has 0.836 of the squared error of nvfp4, and ms_eden is unbiased with less than SR's") {
  torch::manual_seed(1);
  const auto x = torch::randn({64, 1024});
  const auto error = [&](const Tensor& y) { return (y - x).square().mean().item<double>(); };
  const auto nvfp4 = tensor_format("nvfp4");
  const auto four = make_plugin<Quantizer>("quantizer/four_over_six");
  CHECK(error(rounded(*four, x)) / error(round_to(x, nvfp4, {1, 16})) == doctest::Approx(0.8357).epsilon(0.02));
  const auto eden = make_plugin<Quantizer>("quantizer/ms_eden");
  auto unbiased = nvfp4;
  unbiased.headroom = 16.0F / 17;  // scales are rounded to a sixteenth, so nothing is cut off
  const double drawn = error(round_to(x, unbiased, {1, 16}, {vernier::Rounding::stochastic, 1}));
  CHECK(error(rounded(*eden, x, 1)) < drawn / 2);
}

TEST_CASE("quantizers: luq has powers of two whose mean is the number, and hif4 24 % less error than nvfp4") {
  const auto x = torch::tensor({{.001, .01, .02, .05, -.3, .7, -1.3, 2.}}).to(torch::kFloat);
  auto luq = make_plugin<Quantizer>("quantizer/luq");
  auto sum = torch::zeros_like(x);
  constexpr int draws = 4000;
  for (std::uint64_t seed = 0; seed < draws; ++seed) {
    const auto y = rounded(*luq, x, seed * 7919), power = y.abs().div(2.0 / 64).log2();
    CHECK(power.eq(power.round()).logical_or(y.eq(0)).all().item<bool>());
    sum += y;
  }
  CHECK(torch::allclose(sum / draws, x, 0.04, 4e-4));
  auto mean = make_plugin<Quantizer>("quantizer/luq", {{"samples", {std::int64_t{16}, "test"}}});
  CHECK((rounded(*mean, x, 1) - x).norm().item<double>() < (rounded(*luq, x, 1) - x).norm().item<double>());
  torch::manual_seed(2);
  const auto gaussian = torch::randn({512, 1024});
  const auto error = [&](const Tensor& y) { return (y - gaussian).square().mean().item<double>(); };
  auto four = make_plugin<Quantizer>("quantizer/hif4");
  CHECK(error(rounded(*four, gaussian)) / error(round_to(gaussian, tensor_format("nvfp4"), {1, 16})) ==
        doctest::Approx(0.7628).epsilon(0.01));
}

TEST_CASE("quantizers: formats of rowwise and deepseek_v3 have the scales of torchao and DeepGEMM") {
  auto row = tensor_format("e4m3");
  row.block = 65536;
  row.has_block_scale = true;
  row.scale = vernier::number_format("e8m0");
  row.rule = vernier::ScaleRule::rceil;
  for (const auto& [amax, scale] : {std::pair(1.F, 1 / 256.F), {3.F, 1 / 128.F}, {448.F, 1.F}}) {
    const auto unit = vernier::unit_operand(torch::full({1, 300}, amax), row, {1, 65536});
    CHECK(vernier::element_numbers(torch::full({1, 300}, amax), row, {1, 65536})[0][0].item<float>() == amax / scale);
    CHECK(unit.numbers[0][299].item<float>() == amax);
  }
  auto block = tensor_format("e4m3");
  block.block = 128;
  const auto unit = vernier::unit_operand(torch::linspace(-3, 5, 128).unsqueeze(0), block, {1, 128});
  CHECK(unit.block_scales[0][0].item<float>() == doctest::Approx(0.0111607146));
  CHECK(unit.numbers.narrow(1, 0, 4).eq(-256).all().item<bool>());
}

TEST_CASE("quantizers: rows that the page gives for MS-EDEN") {
  const auto z = torch::tensor({{-5.82, -4.145, 3.98, -0.945, 2.195, -4.83, 0.595, -1.83, 4.195, 1.57, -6.205, 4.57,
                                 -1.22, 9.255, 1.98, -2.945}})
                     .to(torch::kFloat);
  const auto codes =
      torch::tensor({{-4., -3., 3., -.5, 1.5, -3., .5, -1., 3., 1., -4., 3., -1., 6., 1.5, -2.}}).to(torch::kFloat);
  const auto eden = make_plugin<Quantizer>("quantizer/ms_eden", {{"group", {std::int64_t{16}, "test"}}});
  int up = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const auto scale = rounded(*eden, z, seed)[0][13].item<double>() / 6 / 0.00595407164;
    const bool is_up = std::abs(scale - 256) < 0.1;
    CHECK((is_up || std::abs(scale - 240) < 0.1));
    up += is_up ? 1 : 0;
    if (is_up) CHECK(torch::allclose(rounded(*eden, z, seed), codes * (256 * 0.00595407164), 1e-4, 1e-4));
  }
  CHECK(up / 400.0 == doctest::Approx(0.707482).epsilon(0.1));
}

TEST_CASE("quantizers: `from` rounds the exact operand, that of y again, or takes its codes") {
  torch::manual_seed(4);
  const auto x = torch::randn({32, 128}), g = torch::randn({32, 48});
  const auto format = tensor_format("mxfp4");
  const auto q = [&](const Tensor& t, int summed) {
    return round_to(t, format, summed == 1 ? vernier::ScaleBlock{1, 32} : vernier::ScaleBlock{32, 1});
  };
  const std::string base = "forward = 'mxfp4'\noperands = {dx = {w = {from = '";
  for (const std::string from : {"exact", "forward", "codes"}) {
    CAPTURE(from);
    const Policy policy(base + from + "'}}, dw = {x = {from = '" + from + "'}}}");
    const auto w = policy.weight();
    const auto found = policy.linear(x, g);
    const auto again = [&](const Tensor& t, int in_y, int here) {
      return from == "exact" ? q(t, here) : from == "codes" ? q(t, in_y) : q(q(t, in_y), here);
    };
    CHECK(is_near(found.y, at::matmul(q(x, 1), q(w, 1).t())));
    CHECK(is_near(found.dx, at::matmul(q(g, 1), again(w, 1, 0))));
    CHECK(is_near(found.dw, at::matmul(q(g, 0).t(), again(x, 1, 0))));
  }
}

TEST_CASE("quantizers: rotations of all products cancel, with fixed signs and with drawn ones") {
  torch::manual_seed(5);
  const auto x = torch::randn({40, 128}), g = torch::randn({40, 48});  // 40 and 48 are no multiples of 32
  const auto plain = Policy("forward = 'e7m16'").linear(x, g);
  for (const std::string from : {"exact", "forward"}) {
    for (const std::string signs : {"fixed", "drawn"}) {
      CAPTURE(from);
      CAPTURE(signs);
      const Policy policy("forward = 'e7m16'\nrotate = {y = 32, dx = 32, dw = 32, signs = '" + signs +
                          "'}\noperands = {dx = {w = {from = '" + from + "'}}, dw = {x = {from = '" + from + "'}}}");
      const auto found = policy.linear(x, g);
      for (const auto& [a, b] : {std::pair(found.y, plain.y), {found.dx, plain.dx}, {found.dw, plain.dw}}) {
        CHECK_FALSE(torch::equal(a, b));
        CHECK((a - b).norm().item<double>() < 1e-4 * b.norm().item<double>());
      }
    }
  }
}

TEST_CASE("quantizers: the gradient of quest passes where a number is near what it became") {
  torch::manual_seed(6);
  auto x = torch::randn({16, 128});
  x[2][7] = 100;
  const auto g = torch::randn({16, 48});
  const Policy policy("forward = 'fp32'\noperands = {y = {x = 'quest'}}");
  const auto found = policy.linear(x, g), exact = Policy("forward = 'bf16'\noperands = {g = 'fp32'}").linear(x, g);
  CHECK(found.dx[2][7].item<float>() == 0);
  CHECK(found.dx.ne(0).to(torch::kFloat).mean().item<double>() > 0.9);
  CHECK(torch::allclose(found.dx, at::matmul(g, policy.weight()) * found.dx.ne(0), 1e-4, 1e-4));
}

TEST_CASE("quantizers: layers have operands of their own by name and by place, and may stay out") {
  torch::manual_seed(7);
  const auto x = torch::randn({8, 128}), g = torch::randn({8, 48});
  const std::string out = "operands = {x = 'fp32', w = 'fp32', g = 'fp32'}\n";
  const Policy policy("forward = 'mxfp4'\n[[precision.layers]]\nfirst = 1\nlast = 1\n" + out +
                      "[[precision.layers]]\nmatch = 'head'\noperands = {w = 'e4m3'}");
  const auto product = [](const Tensor& a, const Tensor& b) { return at::matmul(a, b.t()); };
  const auto mxfp4 = tensor_format("mxfp4");
  auto e4m3 = tensor_format("e4m3");
  e4m3.block = -1;
  const auto xq = round_to(x, mxfp4, {1, 32});
  CHECK(torch::equal(policy.linear(x, g, 0).y, product(x, policy.weight(0))));
  CHECK(is_near(policy.linear(x, g, 1).y, product(xq, round_to(policy.weight(1), mxfp4, {1, 32}))));
  CHECK(torch::equal(policy.linear(x, g, 2).y, product(x, policy.weight(2))));
  CHECK(is_near(policy.linear(x, g, 3).y, product(xq, round_to(policy.weight(3), e4m3))));
}

TEST_CASE("quantizers: every recipe that ships computes gradients in the direction of the exact ones") {
  torch::manual_seed(8);
  const auto x = torch::randn({256, 128}), g = torch::randn({256, 48});
  for (const auto& file : std::filesystem::directory_iterator(VERNIER_SOURCE_DIR "/configs/precision/formats")) {
    CAPTURE(file.path());
    const auto config = vernier::load_config({file.path().string()}, {});
    const Policy policy(std::get<vernier::Table>(config.at("precision").data));
    const auto found = policy.linear(x, g);
    const auto w = policy.weight();
    const auto cosine = [](const Tensor& a, const Tensor& b) {
      return (a.flatten().dot(b.flatten()) / (a.norm() * b.norm())).item<double>();
    };
    const auto name = file.path().stem();
    // bitnet: weights of three values; pact: x below 0 become 0, and half of these are.
    const double least = name == "bitnet" ? 0.85 : name == "quartet" ? 0.92 : name == "pact" ? 0.65 : 0.93;
    CHECK(cosine(found.y, at::matmul(x, w.t())) > least);
    CHECK(cosine(found.dx, at::matmul(g, w)) > least);
    CHECK(cosine(found.dw, at::matmul(g.t(), x)) > least);
  }
}

TEST_CASE(
    "quantizers: tetrajet_v2 rounds to nearest in double blocks as a loop does, and stochastically to neighbours") {
  torch::manual_seed(10);
  auto x = torch::randn({3, 256}) * torch::randn({3, 256}).exp();
  x.slice(1, 16, 32) = 0;
  const auto nearest = make_plugin<Quantizer>("quantizer/tetrajet_v2"),
             drawn =
                 make_plugin<Quantizer>("quantizer/tetrajet_v2", {{"rounding", {std::string("stochastic"), "test"}}});
  const auto y = rounded(*nearest, x), z = rounded(*drawn, x, 5);
  constexpr float levels[] = {0, .5F, 1, 1.5F, 2, 3, 4, 6};
  const auto e4m3 = vernier::number_format("e4m3");
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t i = 0; i < 256; ++i) {
      const auto most = [&](std::int64_t size) {
        return x[row].narrow(0, i / size * size, size).abs().max().item<float>();
      };
      const float outer = most(128) / 448 / 6, inner = static_cast<float>(e4m3.round(most(16) / outer / 6));
      const float scale = (inner == 0 ? 0x1p-9F : inner) * outer, exact = x[row][i].item<float>();
      const auto off = [&](float level) { return std::abs(std::abs(exact) - level * scale); };
      const float best = off(*std::ranges::min_element(levels, {}, off));
      CHECK(std::abs(y[row][i].item<float>() - exact) <= best * 1.0001F + 1e-12F);
      const float level = std::abs(z[row][i].item<float>()) / scale;
      CHECK(std::ranges::any_of(levels, [&](float each) { return std::abs(each - level) < 1e-5; }));
      CHECK(off(level) <= std::max(2.0F * scale, off(6)) * 1.0001F);
    }
  }
}

TEST_CASE(
    "quantizers: learned steps and clips have the gradients of PyTorch's learned quantization, and move by them") {
  torch::manual_seed(11);
  const auto x = torch::randn({16, 128}), g = torch::randn({16, 48});
  Policy policy("forward = 'fp32'\noperands = {x = {use = 'lsq', learning_rate = 0.5}, w = 'lsq'}");
  const auto w = policy.weight();
  const auto first_step = [](const Tensor& of) { return of.abs().mean().mul(2 / std::sqrt(7.0)); };
  const auto found = policy.linear(x, g);
  const auto learned = [&](const Tensor& of, double count, const Tensor& gradient) {
    const auto step = first_step(of).view({1}).requires_grad_(), exact = of.clone().requires_grad_();
    const auto y =
        at::_fake_quantize_learnable_per_tensor_affine(exact, step, torch::zeros({1}), -8, 7, 1 / std::sqrt(count * 7));
    y.backward(gradient);
    return std::array{y.detach(), exact.grad(), step.grad()};
  };
  const auto xq = learned(x, 128, torch::zeros({16, 128}))[0], wq = learned(w, 1, torch::zeros({48, 128}))[0];
  CHECK(is_near(found.y, at::matmul(xq, wq.t())));
  const auto of_x = learned(x, 128, at::matmul(g, wq)), of_w = learned(w, 48 * 128, at::matmul(g.t(), xq));
  // PyTorch lets the gradient pass up to half a step beyond the limits, and the paper up to them.
  const auto is_inside = [&](const Tensor& of) { return (of / first_step(of)).clamp(-8, 7).eq(of / first_step(of)); };
  CHECK(is_near(found.dx, of_x[1] * is_inside(x)));
  CHECK(is_near(found.dw, of_w[1] * is_inside(w)));
  vernier::Bus bus;
  vernier::HostApi::attach(bus, *policy.plugin, /*monitor=*/false);
  const auto before = policy.plugin->save();
  vernier::HostApi::emit(bus, vernier::Event::UpdateDone, policy.run);
  const auto after = policy.plugin->save();
  for (const auto& [key, of, slope, rate] :
       {std::tuple("quantizer/x/step/h.0/y.x", x, of_x[2], 0.5), {"quantizer/w/step/h.0/y.w", w, of_w[2], 0.01}}) {
    CAPTURE(key);
    CHECK(before.real(key) == doctest::Approx(first_step(of).item<double>()));
    CHECK(after.real(key) - before.real(key) == doctest::Approx(-rate * slope.item<double>()).epsilon(1e-3));
  }
}

TEST_CASE(
    "quantizers: the clip of pact gets the gradient of what it cuts off, of all micro-batches and without scale") {
  const auto clip = make_plugin<Quantizer>("quantizer/pact", {{"bits", {std::int64_t{2}, "test"}},
                                                              {"clip", {1.0, "test"}},
                                                              {"learning_rate", {0.125, "test"}},
                                                              {"decay", {0.5, "test"}}});
  vernier::Bus bus;
  vernier::HostApi::attach(bus, *clip, /*monitor=*/false);
  vernier::TrainerRun run;
  Operand of{
      .numbers = torch::tensor({{-1., -.5, -.2, .05, .1, .3, .8, 1.5, 1.}}), .key = "h.0/y.x", .is_recorded = true};
  const auto g = torch::arange(1, 10).to(torch::kFloat).view({1, 9});
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    clip->quantize(of);
    CHECK(torch::equal(clip->gradient(of, g), g * torch::tensor({{0, 0, 0, 1, 1, 1, 1, 0, 0}})));
  }
  run.amp.set_scale(1, 16.0);
  run.skip_update = torch::ones({});
  vernier::HostApi::emit(bus, vernier::Event::UpdateDone, run);
  CHECK(clip->save().real("clip/h.0/y.x") == 1);  // a skipped update drops the gradients
  clip->gradient(of, g);
  clip->gradient(of, g);
  run.skip_update.reset();
  vernier::HostApi::emit(bus, vernier::Event::UpdateDone, run);
  CHECK(clip->save().real("clip/h.0/y.x") == doctest::Approx(1 - 0.125 * (2 * (8 + 9) / 16.0 + 0.5)));
  clip->gradient(of, g * 1e6);
  vernier::HostApi::emit(bus, vernier::Event::UpdateDone, run);
  const double last = clip->save().real("clip/h.0/y.x");
  CHECK(last == doctest::Approx((1 - 0.125 * (34 / 16.0 + 0.5)) / 2));
}

TEST_CASE("quantizers: a learned number has the gradient of the last pass of its step, also when a pass is undone") {
  const auto clip =
      make_plugin<Quantizer>("quantizer/pact", {{"clip", {1.0, "test"}}, {"learning_rate", {0.125, "test"}}});
  vernier::Bus bus;
  vernier::HostApi::attach(bus, *clip, /*monitor=*/false);
  vernier::TrainerRun run;
  const Operand of{.numbers = torch::tensor({{0.5, 1.5}}), .key = "h.0/y.x", .is_recorded = true};
  const auto g = torch::tensor({{0.0, 1.0}});
  vernier::HostApi::emit(bus, vernier::Event::BatchReady, run);
  clip->quantize(of);
  clip->gradient(of, g * 1e6);
  run.loss = torch::ones({});
  vernier::HostApi::emit(bus, vernier::Event::BatchReady, run);
  clip->gradient(of, g * 1e6);
  run.loss.reset();  // the batch is computed again
  vernier::HostApi::emit(bus, vernier::Event::BatchReady, run);
  clip->gradient(of, g);
  run.loss = torch::ones({});
  vernier::HostApi::emit(bus, vernier::Event::BatchReady, run);
  const auto before = clip->save();
  clip->gradient(of, g * 1e6);
  clip->load(before);
  clip->gradient(of, g);
  vernier::HostApi::emit(bus, vernier::Event::UpdateDone, run);
  const auto after = clip->save();
  CHECK(after.real("clip/h.0/y.x") == doctest::Approx(1 - 0.125 * 2).epsilon(0.01));  // and a little decay
  CHECK(after.tensors.size() == 1);
}

TEST_CASE("quantizers: headroom makes stochastic rounding of blocks unbiased") {
  torch::manual_seed(9);
  const auto x = torch::randn({64, 256});
  struct Row {
    const char* format;
    double headroom, least, most;  // the mean's share of the exact magnitudes
  };
  const Row rows[] = {{"nvfp4", 1, 0.99, 0.998},
                      {"nvfp4", 16.0 / 17, 0.9995, 1.0005},
                      {"mxfp4", 1, 0.97, 0.993},
                      {"mxfp4", 0.75, 0.9995, 1.0005}};
  for (const auto& row : rows) {
    CAPTURE(row.format);
    CAPTURE(row.headroom);
    auto format = tensor_format(row.format);
    format.headroom = static_cast<float>(row.headroom);
    auto sum = torch::zeros_like(x);
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      sum += round_to(x, format, {1, format.block}, {vernier::Rounding::stochastic, seed * 7919});
    }
    const double kept = ((sum / 200 * x).sum() / x.square().sum()).item<double>();
    CHECK(kept > row.least);
    CHECK(kept < row.most);
  }
}

TEST_CASE("quantizers: one that breaks a law is refused before the first step, and says how") {
  struct Broken final : Quantizer {
    explicit Broken(std::string name) : how(std::move(name)) { set_id("quantizer/broken"); }
    UnitOperand quantize(const Operand& of) override {
      const auto& x = of.numbers;
      if (how == "in place") return {x.mul_(2)};
      if (how == "shape") return {x.flatten()};
      if (how == "random") return {x + torch::rand_like(x)};
      if (how == "zero") return {x.div(x.abs().amax(-1, true))};
      if (how == "nan") return {x.nan_to_num()};
      return {x * 0.9 + 0.01 * vernier::uniform_like(x, of.seed) * x};
    }
    bool is_unbiased() const override { return how == "biased"; }
    std::string how;
  };
  struct Row {
    const char *how, *says;
  };
  for (const auto& row : {Row{"in place", "changes its operand"},
                          {"shape", "must return float32 of shape [8, 128]"},
                          {"random", "uniform_like"},
                          {"zero", "makes zeros into"},
                          {"nan", "makes NaN into a number"},
                          {"biased", "not unbiased"}}) {
    CAPTURE(row.how);
    Broken broken(row.how);
    CHECK(thrown_by([&] { formats::try_quantizer(broken, vernier::Slot::y_x); }).text.find(row.says) !=
          std::string::npos);
  }
  Broken kept("none of these");
  formats::try_quantizer(kept, vernier::Slot::y_x);
}

TEST_CASE("quantizers: what cannot be is refused, with the operand and a remedy") {
  struct Row {
    const char *options, *says;
  };
  const Row rows[] = {
      {"operands = {y = {g = 'e4m3'}}", "has no operand `y.g`"},
      {"operands = {dw = {w = 'e4m3'}}", "has no operand `dw.w`"},
      {"operands = {x = 4}", "write x = \"e4m3\""},
      {"operands = {x = 'four_over_seven'}", "did you mean \"four_over_six\"?"},
      {"operands = {x = {use = 'nvfp4', roundin = 'zero'}}", "did you mean `rounding`?"},
      {"operands = {x = {use = 'four_over_six', error = 'none'}}", "`error`"},
      {"operands = {dx = {g = {from = 'codes'}}}", "is for dx.w, dw.x and dw.g"},
      {"operands = {dw = {g = {from = 'forward'}}}", "write \"codes\""},
      {"operands = {x = {use = 'bf16', headroom = 0.9}}", "is for formats with scales"},
      {"operands = {x = {use = 'e4m3', scale_rule = 'even'}}", "powers of two"},
      {"rotate = {dw = 16}\noperands = {dw = {x = {from = 'codes'}}}", "write from = \"forward\""},
      {"rotate = {dz = 16}", "`dz`"},
      {"[[precision.layers]]\nmatch = 'nothing'\noperands = {x = 'fp32'}", "`match`"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.options);
    const auto text = thrown_by([&] { Policy policy(row.options); }).text;
    CAPTURE(text);
    CHECK(text.find(row.says) != std::string::npos);
  }
}

}  // namespace quantizer_test
