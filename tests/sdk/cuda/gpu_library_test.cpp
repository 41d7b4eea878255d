// The CUDA kernels, compiled for the host: their results are those of the kernels for the CPU.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <vernier/add_norm.h>
#include <vernier/error.h>
#include <vernier/float8.h>
#include <vernier/grad_norm.h>
#include <vernier/optim.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>

#include "../../../sdk/cuda/float8.h"
#include "cpu/blocked_softmax.h"
#include "gpu/gpu_float8.h"
#include "gpu/gpu_norms.h"
#include "long_form.h"
#include "optim/gpu_optimizers.h"
#include "optim/stochastic_rounding.h"

extern "C" const vernier::gpu::Library vernier_cuda;

namespace gpu_library_test {

using vernier::AdamState;
using vernier::AdamWOptions;
using vernier::UpdateLists;
using Tensors = std::vector<torch::Tensor>;

namespace {

const vernier::gpu::Library& library = vernier_cuda;
std::mt19937 draw(20261126);

double between(double least, double most) {
  return std::uniform_real_distribution(least, most)(draw);
}
bool one_in(unsigned n) {
  return draw() % n == 0;
}
// How many random cases are tried: a quarter in the short form.
int cases(int count) {
  return is_long() ? count : count / 4;
}

// Numbers of many magnitudes, with odd ones among them where `odd`, at any alignment of float32.
torch::Tensor numbers(std::int64_t count, bool odd) {
  const auto start = static_cast<std::int64_t>(draw() % 4);
  auto all = at::empty({count + start}, torch::kFloat32);
  auto* first = all.data_ptr<float>();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float strange[] = {infinity, -infinity, std::nanf(""), 1e-41F, -1e-44F, 0, -0.0F, 3e38F};
  const auto scale = static_cast<float>(std::pow(10, between(-9, 3)));
  for (std::int64_t i = 0; i < count + start; ++i) {
    first[i] = odd && one_in(9) ? strange[draw() % 8] : scale * (static_cast<float>(draw()) / 2147483648.0F - 1.0F);
  }
  return all.slice(0, start);
}

std::int64_t any_size(std::int64_t least) {
  if (one_in(40)) return least + 8192 + static_cast<std::int64_t>(draw() % 5);
  return least + static_cast<std::int64_t>(draw() % (one_in(4) ? 700 : 40));
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.numel() != b.numel()) return false;
  if (!a.is_floating_point()) return at::equal(a.reshape({-1}), b.reshape({-1}));
  const auto x = a.to(torch::kFloat32).contiguous(), y = b.to(torch::kFloat32).contiguous();
  const auto *left = x.const_data_ptr<float>(), *right = y.const_data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const bool both_nan = left[i] != left[i] && right[i] != right[i];
    if (!both_nan && std::memcmp(left + i, right + i, sizeof(float)) != 0) return false;
  }
  return true;
}

// Two sums of the same squares in another order.
bool is_near(double a, double b) {
  return a == b || (a != a && b != b) || std::abs(a - b) <= 1e-13 * b;
}
double norm_of(const torch::Tensor& tensor) {
  double sum = 0;
  const auto* first = tensor.const_data_ptr<float>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) sum += static_cast<double>(first[i]) * first[i];
  return std::sqrt(sum);
}

torch::Tensor scalar(float number) {
  return at::full({}, number, torch::kFloat32);
}

// The same updates by an optimizer on the CPU and by kernels of the library. `apply(lists, lr, scale, found_inf)`
// calls the latter. Returns the name of the first tensor that differs, or "".
template <class Options, class Apply>
std::string difference(const Options& options, std::int64_t least, const std::vector<const char*>& names, bool counts,
                       const Apply& apply) {
  UpdateLists lists;
  Tensors theirs;
  const bool is_odd = one_in(2);
  const std::size_t tensors = one_in(100) ? 60 : 1 + draw() % 4;
  for (std::size_t i = 0; i < tensors; ++i) {
    lists.parameters.push_back(numbers(any_size(least), false));
    theirs.push_back(lists.parameters.back().clone());
    lists.numbers.push_back(i);
    if (counts) lists.steps.push_back(scalar(0));
  }
  vernier::Fused<Options> optimizer(theirs, options);
  const auto updates = 1 + static_cast<int>(draw() % 3);
  for (int update = 0; update < updates; ++update) {
    const auto scale = one_in(2) ? torch::Tensor() : scalar(static_cast<float>(std::exp2(draw() % 20)));
    const auto found_inf = one_in(4) ? torch::Tensor() : scalar(update > 0 && one_in(5) ? 1.0F : 0.0F);
    const bool is_skipped = found_inf.defined() && found_inf.template item<float>() != 0;
    lists.gradients.clear();
    for (std::size_t i = 0; i < tensors; ++i) {
      lists.gradients.push_back(numbers(theirs[i].numel(), is_odd));
      theirs[i].mutable_grad() = lists.gradients.back().clone();
    }
    optimizer.step(found_inf, scale);
    if (update == 0) {  // in the shapes and dtypes of the other side, with what a new state holds
      const auto state = optimizer.state_dict();
      for (const auto* name : names) {
        auto& slot = lists.slots.emplace_back();
        for (std::size_t i = 0; i < tensors; ++i) {
          slot.push_back(at::zeros_like(state.tensor(std::to_string(i) + "/" + name)));
        }
      }
    }
    for (auto& step : lists.steps) step.add_(is_skipped ? 0 : 1);
    vernier::gpu::threads_run_backwards = one_in(2);
    apply(lists, optimizer.lr(), scale.defined() ? vernier::MaybeTensor(scale) : std::nullopt,
          found_inf.defined() ? vernier::MaybeTensor(found_inf) : std::nullopt);
  }
  const auto state = optimizer.state_dict();
  for (std::size_t i = 0; i < tensors; ++i) {
    if (!same_bits(lists.parameters[i], theirs[i])) return "parameter";
    for (std::size_t k = 0; k < names.size(); ++k) {
      if (!same_bits(lists.slots[k][i], state.tensor(std::to_string(i) + "/" + names[k]))) return names[k];
    }
  }
  return "";
}

template <class Options>
Options any_adam(AdamState state) {
  Options options;
  options.lr = between(0, 0.1);
  options.beta1 = one_in(4) ? between(0, 0.6) : between(0.6, 0.99);
  options.beta2 = between(0.5, 0.9999);
  options.eps = one_in(5) ? 0 : std::pow(10, between(-12, -4));
  options.weight_decay = one_in(2) ? 0 : between(0, 0.2);
  options.maximize = one_in(4);
  options.state = state;
  options.seed = draw();
  return options;
}

// Returns true if the kernels for the CPU have fused multiplication, as the library has. Elsewhere they round twice.
bool rounds_once() {
  return at::get_cpu_capability().starts_with("AVX");
}

template <class Options>
void compare_adam(AdamState state, int cases) {
  const bool in_codes = state == AdamState::eight_bit;
  std::vector<const char*> names{"exp_avg", "exp_avg_sq"};
  if (in_codes) names.insert(names.end(), {"exp_avg_absmax", "exp_avg_sq_absmax"});
  for (int i = 0; i < cases; ++i) {
    const auto options = any_adam<Options>(state);
    CAPTURE(i);
    REQUIRE(difference(options, in_codes ? 4096 : 0, names, true, [&](const auto& lists, double lr, auto... gate) {
              vernier::adam_on_gpu(library, vernier::gpu_options(options, lr), state, options.seed, lists, gate...);
            }) == "");
  }
}

}  // namespace

TEST_CASE("gpu library: Adam and AdamW have the bits of the CPU, in each kind of state") {
  if (!rounds_once()) return;
  compare_adam<AdamWOptions>(AdamState::full, 1800);
  compare_adam<vernier::AdamOptions>(AdamState::full, 1800);
  compare_adam<AdamWOptions>(AdamState::bfloat16, 1800);
  compare_adam<AdamWOptions>(AdamState::eight_bit, 300);
}

TEST_CASE("gpu library: Lion has the bits of the CPU, SGD those of LibTorch's kernel") {
  for (int i = 0; i < 1800; ++i) {
    const vernier::LionOptions options{between(0, 0.1), between(0, 0.99), between(0, 0.999), between(0, 0.5)};
    CAPTURE(i);
    REQUIRE(difference(options, 0, {"exp_avg"}, false, [&](const auto& lists, double lr, auto... gate) {
              vernier::lion_on_gpu(library, vernier::gpu_options(options, lr), lists, gate...);
            }) == "");
  }
  if (!rounds_once()) return;
  for (int i = 0; i < 1800; ++i) {
    vernier::SGDOptions options{.lr = between(0, 0.1), .weight_decay = one_in(2) ? 0 : between(0, 0.1)};
    options.momentum = one_in(3) ? 0 : between(0.1, 0.99);
    options.maximize = one_in(4);
    if (options.momentum > 0) options.dampening = one_in(2) ? between(0, 0.9) : 0;
    options.nesterov = options.momentum > 0 && options.dampening == 0 && one_in(2);
    std::vector<const char*> names;
    if (options.momentum > 0) names.push_back("momentum_buffer");
    CAPTURE(i);
    REQUIRE(difference(options, 0, names, options.dampening != 0, [&](const auto& lists, double lr, auto... gate) {
              vernier::sgd_on_gpu(library, vernier::gpu_options(options, lr), lists, gate...);
            }) == "");
  }
}

TEST_CASE("gpu library: norms and the finite check are those of the CPU") {
  for (int i = 0; i < cases(1600); ++i) {
    Tensors gradients;
    const auto count = one_in(50) ? 300 : 1 + draw() % 5;
    for (std::size_t k = 0; k < count; ++k) {
      gradients.push_back(numbers(one_in(10) ? 0 : any_size(0) + (one_in(30) ? 32768 : 0), one_in(20)));
    }
    vernier::gpu::threads_run_backwards = one_in(2);
    const auto ours = vernier::inspect_on_gpu(library, gradients), right = vernier::inspect_gradients(gradients);
    CAPTURE(i);
    REQUIRE(*ours.found_inf.const_data_ptr<float>() == *right.found_inf.const_data_ptr<float>());
    REQUIRE(is_near(*ours.norm.const_data_ptr<double>(), *right.norm.const_data_ptr<double>()));
    const auto* norm = ours.norms.const_data_ptr<double>();
    for (const auto& gradient : gradients) {
      if (gradient.numel() != 0) REQUIRE(is_near(*norm++, norm_of(gradient)));
    }
    REQUIRE(norm == ours.norms.const_data_ptr<double>() + ours.norms.numel());
  }
}

TEST_CASE("gpu library: casts to fp8 have the bits of LibTorch, with largest magnitude and transposed copy") {
  const torch::ScalarType formats[] = {torch::kFloat8_e4m3fn, torch::kFloat8_e5m2};
  const torch::ScalarType kinds[] = {torch::kFloat32, torch::kBFloat16, torch::kHalf};
  const auto bytes = [](const torch::Tensor& values) { return values.contiguous().view(torch::kByte); };
  for (int i = 0; i < 1500; ++i) {
    const auto rows = 1 + static_cast<std::int64_t>(draw() % (one_in(3) ? 140 : 20));
    const auto columns = 1 + static_cast<std::int64_t>(draw() % (one_in(3) ? 140 : 20));
    const auto kind = kinds[draw() % 3], format = formats[draw() % 2];
    const auto x = numbers(rows * columns, one_in(2)).to(kind).view({rows, columns});
    const auto scale = scalar(static_cast<float>(std::exp2(between(-10, 30))));
    const auto right = vernier::float8_quantize(x, scale, format).values;
    const auto largest = scalar(0);
    vernier::gpu::threads_run_backwards = one_in(2);
    const auto ours = vernier::cast_twice_on_gpu(library, x, scale, format, largest);
    CAPTURE(i);
    REQUIRE(at::equal(bytes(ours.values), bytes(right)));
    REQUIRE(at::equal(bytes(ours.transposed), bytes(right.t())));
    REQUIRE(same_bits(largest, vernier::float8_amax(x).abs()));  // the largest of zeros may be -0
    REQUIRE(at::equal(bytes(vernier::cast_on_gpu(library, x, scale, format)), bytes(right)));
    REQUIRE(at::equal(bytes(vernier::contiguous_on_gpu(library, ours.transposed.t())), bytes(right)));
    REQUIRE(same_bits(vernier::amax_on_gpu(library, x), largest));
    const double margin = one_in(3) ? 1 : 0;
    const double highest = vernier::float8_max(format) * std::exp2(-margin);
    const bool power_of_two = one_in(2);
    const auto of_amax = vernier::float8_scale(vernier::float8_amax(x), format, margin, power_of_two);
    const auto scaled = vernier::cast_by_amax_on_gpu(library, x, format, highest, power_of_two, /*twice=*/true);
    REQUIRE(same_bits(scaled.scale, of_amax));
    REQUIRE(same_bits(scaled.inverse, of_amax.reciprocal()));
    const auto by_amax = vernier::float8_quantize(x, of_amax, format).values;
    REQUIRE(at::equal(bytes(scaled.values), bytes(by_amax)));
    REQUIRE(at::equal(bytes(scaled.transposed), bytes(by_amax.t())));
  }
}

// Rounds a list of masters on both sides. Returns the kind of rounding whose bits differ, or "".
std::string difference_of_roundings() {
  std::vector<vernier::HalfWeight> weights;
  Tensors right;
  const auto seed = std::uint64_t{draw()} << 32 | draw(), now = std::uint64_t{draw() % 1000};
  std::uint64_t chunks = draw() % 5;
  const std::size_t count = one_in(100) ? 70 : 1 + draw() % 5;
  for (std::size_t i = 0; i < count; ++i) {
    const auto size = one_in(20) ? 30000 + static_cast<std::int64_t>(draw() % 9000) : any_size(0);
    const auto master = numbers(size, one_in(2));
    const auto like = [&] { return at::ones({size}, torch::kBFloat16); };
    weights.push_back({master, like(), like(), chunks});
    right.push_back(like());
    vernier::round_on_host(master.const_data_ptr<float>(), right.back().mutable_data_ptr<c10::BFloat16>(), size, seed,
                           chunks, now);
    chunks += static_cast<std::uint64_t>(vernier::rounding_chunks(size));
  }
  vernier::gpu::threads_run_backwards = one_in(2);
  vernier::round_at_random_on_gpu(library, weights, seed, now);
  for (std::size_t i = 0; i < count; ++i) {
    if (!same_bits(weights[i].weight, right[i])) return "stochastic";
  }
  const auto skip = one_in(3) ? torch::Tensor() : scalar(one_in(2) ? 1.0F : 0.0F);
  const bool is_skipped = skip.defined() && skip.item<float>() != 0;
  Tensors rests;
  for (std::size_t i = 0; i < count; ++i) {
    if (is_skipped) {
      rests.push_back(weights[i].compensation.clone());
      continue;
    }
    right[i] = weights[i].master.to(torch::kBFloat16);
    rests.push_back((weights[i].master - right[i]).to(torch::kBFloat16));
  }
  vernier::round_with_kahan_on_gpu(library, weights, skip);
  for (std::size_t i = 0; i < count; ++i) {
    if (!same_bits(weights[i].weight, right[i])) return "Kahan";
    if (!same_bits(weights[i].compensation, rests[i])) return "Kahan's compensation";
  }
  return "";
}

TEST_CASE("gpu library: bfloat16 weights are rounded to the bits of the CPU") {
  for (int i = 0; i < cases(6000); ++i) REQUIRE(difference_of_roundings() == "");
}

// Logits in two blocks of classes against LibTorch in float64. Returns what differs, or "".
std::string difference_of_cross_entropy() {
  const auto kind = std::array{torch::kFloat32, torch::kBFloat16, torch::kHalf}[draw() % 3];
  const auto rows = 1 + static_cast<std::int64_t>(draw() % 5);
  const auto classes = one_in(30) ? 2049 + static_cast<std::int64_t>(draw() % 3000) : any_size(2);
  const auto cut = 1 + static_cast<std::int64_t>(draw()) % (classes - 1);
  const double smoothing = one_in(3) ? 0.1 : 0.0;
  auto x = (at::randn({rows, classes}) * between(0.1, 30)).to(kind);
  if (one_in(5)) x[0][0] = -std::numeric_limits<float>::infinity();
  const bool is_odd = smoothing == 0 && one_in(10);
  if (is_odd) x[0][classes - 1] = one_in(2) ? NAN : INFINITY;
  auto target = at::randint(1, classes, {rows});
  const auto share = at::rand({rows}, torch::kFloat64);
  if (one_in(4)) share[rows - 1] = 0;
  const bool weighs = smoothing != 0 && one_in(2);  // LibTorch's operators, then
  const auto of_class = (weighs ? at::rand({classes}) + 0.5 : at::ones({classes})).to(torch::kFloat64);
  const auto spread = share * smoothing / static_cast<double>(classes);
  const auto hit = share * (1 - smoothing) * of_class.index_select(0, target);
  vernier::BlockedSoftmax softmax(target, {hit, spread, hit + spread * of_class.sum()},
                                  weighs ? of_class : torch::Tensor(), smoothing, classes, kind, &library);
  const auto scale = kind == torch::kHalf ? at::full({}, 4096.0, torch::kFloat64) : at::ones({}, torch::kFloat64);
  softmax.scale_slopes(scale);
  vernier::gpu::threads_run_backwards = one_in(2);
  const auto more = static_cast<std::int64_t>(draw() % 3);  // columns of no class
  const auto part = [&](bool second) {
    return second ? at::constant_pad_nd(x.slice(1, cut), {0, more}, 7)
                  : x.slice(1, 0, cut).clone(at::MemoryFormat::Contiguous);
  };
  softmax.add(part(false), 0);
  softmax.add(part(true), cut);
  const auto loss = softmax.loss();
  const auto padded = at::cat({softmax.slopes(part(false), 0), softmax.slopes(part(true), cut)}, 1).to(at::kDouble);
  if (padded.slice(1, classes).count_nonzero().item<std::int64_t>() != 0) return "slopes of no class";
  const auto slopes = padded.narrow(1, 0, classes) / scale;
  const auto wide = x.to(torch::kFloat64).requires_grad_();
  const auto losses = at::cross_entropy_loss(wide, target, of_class, at::Reduction::None, -100, smoothing);
  const auto right = at::where(share != 0, losses * share, at::zeros_like(share)).sum();
  if (smoothing == 0 || x.isfinite().all().item<bool>()) {
    if (!at::allclose(loss, right.detach(), 1e-6, 1e-6, /*equal_nan=*/true)) return "loss";
    right.backward();
    const double bound = kind == torch::kBFloat16 ? 8e-3 : kind == torch::kHalf ? 1e-3 : 2e-5;
    const auto gradient = at::where((share != 0).unsqueeze(1), wide.grad(), at::zeros({}, wide.options()));
    if (!at::allclose(slopes, gradient, bound, 1e-6, /*equal_nan=*/true)) return "slopes";
  }
  return "";
}

TEST_CASE("gpu library: cross entropy of logits in blocks is that of LibTorch in float64") {
  torch::manual_seed(8);
  for (int i = 0; i < cases(10'000); ++i) REQUIRE(difference_of_cross_entropy() == "");
  vernier::BlockedSoftmax of_no_class(
      at::full({1}, 7),
      {at::ones({1}, torch::kFloat64), at::zeros({1}, torch::kFloat64), at::ones({1}, torch::kFloat64)}, {}, 0, 5,
      torch::kFloat32, &library);
  of_no_class.add(at::randn({1, 5}), 0);
  CHECK(of_no_class.loss().isnan().item<bool>());
}

TEST_CASE("gpu library: the scale of float16's slopes fits factors of any size and sign") {
  const struct {
    std::vector<double> factors;
    double scale;
  } cases[] = {{{}, 1},       {{0, 0}, 1},         {{0.25, 3}, 0x1p10}, {{-0.25, -0.5}, 0x1p13}, {{INFINITY, 1}, 1},
               {{NAN, 1}, 1}, {{1e-300}, 0x1p100}, {{-1e300}, 0x1p-100}};
  for (const auto& [factors, scale] : cases) {
    const auto all = at::tensor(factors, torch::kFloat64);
    CAPTURE(all);
    CHECK(vernier::LossFactors{all, {}, all}.slope_scale().item<double>() == scale);
  }
}

TEST_CASE("gpu library: a mean over no row has no slopes, and one over rows without weight is not a number") {
  const auto zeros = at::zeros({3}, torch::kFloat64), counts = at::zeros({3}, torch::kBool);
  const auto none = zeros / vernier::divisor_of_mean(zeros, counts);
  CHECK((zeros / vernier::divisor_of_mean(zeros, counts.logical_not())).isnan().all().item<bool>());
  const vernier::LossFactors nothing{none, none, none};
  vernier::BlockedSoftmax softmax(at::arange(3), nothing, {}, 0, 5, torch::kHalf, &library);
  softmax.scale_slopes(nothing.slope_scale());
  const auto logits = at::randn({3, 5}).to(torch::kHalf);
  softmax.add(logits, 0);
  CHECK(softmax.loss().item<double>() == 0);
  CHECK(at::equal(softmax.slopes(logits, 0), at::zeros({3, 5}, torch::kHalf)));
}

// LayerNorm or RMSNorm with its gradients against LibTorch in float64. Returns what differs, or "".
std::string difference_of_norms() {
  const auto kind = std::array{torch::kFloat32, torch::kBFloat16, torch::kHalf}[draw() % 3];
  const auto columns = one_in(20) ? 1000 + static_cast<std::int64_t>(draw() % 3097) : any_size(1) % 1500 + 1;
  const auto rows =
      one_in(200) ? 800 + static_cast<std::int64_t>(draw() % 900) : 1 + static_cast<std::int64_t>(draw() % 9);
  const bool is_rms = one_in(2);
  const auto offset = kind == torch::kFloat32 && one_in(4) ? 30.0 : 0.0;
  const auto x = (at::randn({rows, columns}) * between(0.3, 10) + offset).to(kind);
  const auto slopes = at::randn({rows, columns}).to(kind);
  const auto weight = one_in(4) ? torch::Tensor() : at::randn({columns}) + 1;
  const auto bias = is_rms || one_in(4) ? torch::Tensor() : at::randn({columns});
  const vernier::NormInput input{x, weight, bias, columns, 1e-5, is_rms};
  vernier::gpu::threads_run_backwards = one_in(2);
  const auto ours = vernier::norm_on_gpu(library, input);
  const auto gradients = vernier::norm_backward_on_gpu(library, input, ours, slopes);
  const auto leaf = [](const torch::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor.to(torch::kFloat64).requires_grad_()) : std::nullopt;
  };
  const auto of_x = *leaf(x);
  const auto of_weight = leaf(weight), of_bias = leaf(bias);
  const auto y = is_rms ? at::rms_norm(of_x, {columns}, of_weight, 1e-5)
                        : at::layer_norm(of_x, {columns}, of_weight, of_bias, 1e-5);
  y.backward(slopes.to(torch::kFloat64));
  // The bound is wider for columns with an offset: float32 has fewer bits of their deviations.
  const double bound = (kind == torch::kBFloat16 ? 1e-2 : kind == torch::kHalf ? 2e-3 : 2e-5) * (offset > 0 ? 20 : 1);
  const auto is_near_to = [&](const torch::Tensor& a, const torch::Tensor& b, double factor,
                              const torch::Tensor& parts = at::full({}, 1e-3)) {
    const auto scale = std::max(parts.max().item<double>(), b.abs().max().item<double>());
    return (a.to(torch::kFloat64) - b).abs().max().item<double>() <= factor * bound * scale;
  };
  if (!is_near_to(ours.y, y.detach(), 1)) return "y";
  // It is a difference of slopes over the standard deviation.
  const auto parts = ours.inverse.to(torch::kFloat64).unsqueeze(1).expand_as(of_x.grad());
  if (!is_near_to(gradients.x, of_x.grad(), 2, parts)) return "gradient of x";
  if (weight.defined() && !is_near_to(gradients.weight, of_weight->grad(), 2)) return "gradient of the weight";
  if (bias.defined() && !is_near_to(gradients.bias, of_bias->grad(), 2)) return "gradient of the bias";
  return "";
}

TEST_CASE("gpu library: LayerNorm and RMSNorm with their gradients are those of LibTorch in float64") {
  torch::manual_seed(9);
  for (int i = 0; i < cases(10'000); ++i) REQUIRE(difference_of_norms() == "");
}

// As add_norm(), by the library.
vernier::AddedNorm added_by_library(const torch::Tensor& x, const torch::Tensor& branch,
                                    const vernier::NormOptions& options, torch::Dtype dtype) {
  const auto normed = vernier::norm_with_gradients(
      library, {x, options.weight, options.bias, x.size(-1), options.eps, options.is_rms, dtype, branch});
  return {branch.defined() ? normed.sum : x, normed.y};
}
// As add_norm(), by LibTorch's operators alone.
vernier::AddedNorm added_by_operators(const torch::Tensor& x, const torch::Tensor& branch,
                                      const vernier::NormOptions& options, torch::Dtype dtype) {
  const auto sum = branch.defined() ? x + branch : x;
  const auto weight = std::optional(options.weight), bias = std::optional(options.bias);
  const auto normed = options.is_rms ? at::rms_norm(sum, {x.size(-1)}, weight, options.eps)
                                     : at::layer_norm(sum, {x.size(-1)}, weight, bias, options.eps);
  return {sum, normed.to(dtype)};
}

// A sum with a branch that is normed, against sum, norm and cast by operators. Returns what differs, or "".
std::string difference_of_added_norms() {
  const auto dtype = std::array{torch::kFloat32, torch::kBFloat16, torch::kHalf}[draw() % 3];
  const auto columns = one_in(20) ? 1000 + static_cast<std::int64_t>(draw() % 3097) : any_size(2) % 1500 + 2;
  const auto rows = 1 + static_cast<std::int64_t>(draw() % 9);
  const bool adds = !one_in(4), has_shift = !one_in(4);
  const auto leaf = [](const torch::Tensor& tensor) { return tensor.detach().clone().requires_grad_(); };
  const auto x = leaf(at::randn({2, rows, columns}) * between(0.3, 10));
  const auto branch = adds ? leaf(at::randn({2, rows, columns}).to(dtype)) : torch::Tensor();
  vernier::NormOptions options{leaf(at::randn({columns}) + 1), {}, 1e-5, one_in(2)};
  if (!options.is_rms && has_shift) options.bias = leaf(at::randn({columns}));
  const auto right = added_by_operators(x, branch, options, dtype);
  const auto ours = added_by_library(x, branch, options, dtype);
  if (!same_bits(ours.sum, right.sum)) return "sum";
  if (ours.normed.scalar_type() != dtype) return "dtype";
  const double bound = dtype == torch::kBFloat16 ? 1e-2 : dtype == torch::kHalf ? 2e-3 : 3e-5;
  const auto is_near_to = [&](const torch::Tensor& a, const torch::Tensor& b) {
    return a.scalar_type() == b.scalar_type() && at::allclose(a, b, bound, bound * b.abs().max().item<double>());
  };
  if (!is_near_to(ours.normed, right.normed)) return "norm";

  // Gradients, and the gradients of a number that is made of them.
  std::vector<torch::Tensor> leaves = {x, options.weight};
  if (adds) leaves.push_back(branch);
  if (options.bias.defined()) leaves.push_back(options.bias);
  const auto slopes = at::randn_like(x), more = at::randn_like(x);
  const auto gradients = [&](const vernier::AddedNorm& from, bool again) {
    const auto loss = (from.normed * slopes).sum() + (from.sum * more).sum();
    auto found = torch::autograd::grad({loss}, leaves, {}, again, again);
    if (!again) return found;
    return torch::autograd::grad({(found[0] * more).sum() + found[1].square().sum()}, {leaves[0], leaves[1]});
  };
  const std::array names{"of x", "of the weight", "of the branch or the bias", "of the bias"};
  for (const bool again : {true, false}) {
    const auto of_ours = gradients(added_by_library(x, branch, options, dtype), again);
    const auto of_right = gradients(added_by_operators(x, branch, options, dtype), again);
    for (std::size_t i = 0; i < of_ours.size(); ++i) {
      if (!is_near_to(of_ours[i], of_right[i])) return std::string(again ? "second gradient " : "gradient ") + names[i];
    }
  }
  return "";
}

TEST_CASE("gpu library: add_norm is a sum, a norm and a cast, with derivatives of second order") {
  torch::manual_seed(10);
  for (int i = 0; i < cases(1'000); ++i) REQUIRE(difference_of_added_norms() == "");
}

TEST_CASE("gpu library: a frozen stream has a gradient for its branch alone, and a sum may be left unused") {
  const auto x = at::randn({3, 8}), branch = at::randn({3, 8}).to(torch::kBFloat16).requires_grad_();
  const vernier::NormOptions options{at::ones({8}), at::zeros({8})};
  for (const bool again : {false, true}) {
    const auto ours = added_by_library(x, branch, options, torch::kBFloat16);
    const auto right = added_by_operators(x, branch, options, torch::kBFloat16);
    const auto gradient = [&](const torch::Tensor& normed) {
      return torch::autograd::grad({normed.square().sum()}, {branch}, {}, again, again)[0];
    };
    CHECK(at::allclose(gradient(ours.normed), gradient(right.normed), 2e-2, 2e-2));
  }
  {
    const c10::InferenceMode predicts;
    const auto ours = added_by_library(x, branch, options, torch::kBFloat16);
    const auto right = added_by_operators(x, branch, options, torch::kBFloat16);
    CHECK((same_bits(ours.sum, right.sum) && at::allclose(ours.normed, right.normed, 2e-2, 2e-2)));
  }
  // A weight that two norms share: the second one's input depends on it.
  const auto of_shared = [&](bool again) {
    const auto weight = at::linspace(0.5, 2, 8).requires_grad_();
    const auto once = added_by_library(x, x, {weight}, torch::kFloat32);
    const auto twice = added_by_library(once.sum, once.normed, {weight}, torch::kFloat32);
    return torch::autograd::grad({twice.normed.sin().sum() + twice.sum.sum()}, {weight}, {}, again, again)[0].detach();
  };
  CHECK(at::allclose(of_shared(true), of_shared(false), 1e-5, 1e-5));
}

TEST_CASE("gpu library: half and every code of fp8 are exact") {
  for (int bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const auto right = static_cast<float>(c10::Half(pattern, c10::Half::from_bits()));
    const float ours = vernier::gpu::half_to_float(pattern);
    const bool both_nan = ours != ours && right != right;
    if (!both_nan) REQUIRE(std::memcmp(&ours, &right, sizeof ours) == 0);
    for (const float near : {right, std::nextafterf(right, 1e30F), std::nextafterf(right, -1e30F),
                             right + std::ldexp(1.0F, std::max(std::ilogb(right), -14) - 11)}) {  // a midpoint
      if (near != near) continue;
      REQUIRE(vernier::gpu::float_to_half(near) == c10::Half(near).x);
    }
  }
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const auto wide = static_cast<float>(c10::Float8_e4m3fn(byte, c10::Float8_e4m3fn::from_bits()));
    const auto wider = static_cast<float>(c10::Float8_e5m2(byte, c10::Float8_e5m2::from_bits()));
    if (wide == wide) CHECK(vernier::gpu::to_float8<4, 3>(wide, 448) == byte);
    if (std::isfinite(wider)) CHECK(vernier::gpu::to_float8<5, 2>(wider, 57344) == byte);
  }
}

TEST_CASE("gpu library: one that computes something else is not used") {
  CHECK(vernier::wrong_on_device(library, torch::kCPU) == "");
  const auto nothing = [](auto...) -> vernier::gpu::Trouble { return nullptr; };
  auto broken = library;
  broken.adam = nothing;
  CHECK(vernier::wrong_on_device(broken, torch::kCPU) == "adamw");
  broken = library;
  broken.lion = nothing;
  CHECK(vernier::wrong_on_device(broken, torch::kCPU) == "lion");
  broken = library;
  broken.sgd = [](const auto& options, auto* tensors, auto count, auto gate, auto stream) {
    auto other = options;
    other.momentum *= 1.01;
    return library.sgd(other, tensors, count, gate, stream);
  };
  CHECK(vernier::wrong_on_device(broken, torch::kCPU) == "sgd");
  broken = library;
  broken.inspect = [](auto*, auto, const auto& to, auto) -> vernier::gpu::Trouble {
    *to.norm = 1;
    *to.found_inf = 0;
    return nullptr;
  };
  CHECK(vernier::wrong_on_device(broken, torch::kCPU) == "norm");
  broken = library;
  broken.round_weights = nothing;
  CHECK(vernier::wrong_on_device(broken, torch::kCPU) == "rounding of bfloat16 weights");
  broken = library;
  broken.norm_slopes = nothing;
  CHECK(vernier::wrong_on_device(broken, torch::kCPU) == "LayerNorm");
  broken = library;
  broken.norm_slopes = [](const auto& all, auto stream) {
    auto slopes = all;
    slopes.branch_slopes = nullptr;
    return library.norm_slopes(slopes, stream);
  };
  CHECK(vernier::wrong_on_device(broken, torch::kCPU) == "LayerNorm");
  broken = library;
  broken.softmax_slopes = nothing;
  CHECK(vernier::wrong_on_device(broken, torch::kCPU) == "cross entropy");
  broken = library;
  broken.cast_to_float8 = nothing;
  CHECK(vernier::wrong_on_device(broken, torch::kCPU) == "cast to fp8");
}

TEST_CASE("gpu library: a file that cannot be used says why") {
  CHECK_THROWS_WITH_AS(vernier::open_gpu_library("nowhere/libvernier_cuda.so"),
                       "Vernier was built without them: set CUDACXX to nvcc, and build again with the component cuda",
                       vernier::Error);
  CHECK_THROWS_WITH_AS(vernier::open_gpu_library(VERNIER_BINARY_DIR "/libvernier_sdk.so"),
                       (VERNIER_BINARY_DIR "/libvernier_sdk.so is of another build of Vernier: build it again"),
                       vernier::Error);
  if (!std::filesystem::exists(vernier::gpu_library_file())) return;
  const auto* const trouble = vernier::open_gpu_library(vernier::gpu_library_file()).trouble();
  CHECK((trouble == nullptr) == std::filesystem::exists("/dev/nvidiactl"));
}

}  // namespace gpu_library_test
