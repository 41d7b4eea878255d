// Optimizers and norms on a real GPU against the CPU, through the SDK as a training loop calls it.
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <vernier/add_norm.h>
#include <vernier/autocast.h>
#include <vernier/float8.h>
#include <vernier/grad_norm.h>
#include <vernier/half_weights.h>
#include <vernier/linear_cross_entropy.h>
#include <vernier/memory.h>
#include <vernier/memory_ledger.h>
#include <vernier/optim.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <string>

#include "gpu/gpu_choice.h"
#include "run/process/device.h"

namespace gpu_optimizer_test {

using vernier::AdamState;
using vernier::AdamWOptions;
using Tensors = std::vector<torch::Tensor>;

namespace {

bool has_gpu() {
  const bool has = vernier::open_device("auto").is_cuda();
  if (!has) MESSAGE("skipped: there is no GPU here");
  return has;
}

// More tensors than a launch takes, some larger than a chunk, some of a few numbers.
const std::vector<std::vector<std::int64_t>>& shapes() {
  static const auto all = [] {
    std::vector<std::vector<std::int64_t>> shapes{{768, 2304}, {1}, {50257}, {3, 5, 7}, {8192}, {8193}, {4096}, {0}};
    for (std::int64_t i = 0; i < 100; ++i) shapes.push_back({1 + i * i, 3});
    return shapes;
  }();
  return all;
}

Tensors random_tensors(double scale) {
  Tensors all;
  for (const auto& shape : shapes()) all.push_back(at::randn(shape) * scale);
  return all;
}

Tensors on_gpu(const Tensors& tensors) {
  Tensors all;
  for (const auto& tensor : tensors) all.push_back(tensor.to(torch::kCUDA).contiguous());
  return all;
}

bool same_bits(const torch::Tensor& gpu, const torch::Tensor& cpu) {
  const auto host = gpu.cpu();
  if (!host.is_floating_point()) return at::equal(host, cpu);
  return at::equal(host.nan_to_num(7e30), cpu.nan_to_num(7e30));
}

// Ten updates on both; one is skipped, one has an inf. Returns the first entry that differs, or "".
template <class Options>
std::string difference(const Options& options) {
  torch::manual_seed(1);
  const auto cpu = random_tensors(0.1);
  const auto gpu = on_gpu(cpu);
  vernier::Fused<Options> on_cpu(cpu, options), on_device(gpu, options);
  for (int step = 0; step < 10; ++step) {
    auto gradients = random_tensors(std::pow(10.0, step - 6.0));
    if (step == 7) gradients[0][3][5] = INFINITY;
    for (std::size_t i = 0; i < cpu.size(); ++i) {
      cpu[i].mutable_grad() = gradients[i];
      gpu[i].mutable_grad() = gradients[i].to(torch::kCUDA);
    }
    const auto skip = at::full({}, step == 4 ? 1.0F : 0.0F), scale = at::full({}, step % 2 == 0 ? 1.0F : 1024.0F);
    on_device.step(skip.to(torch::kCUDA), scale.to(torch::kCUDA));
    on_cpu.step(skip, scale);
  }
  const auto ours = on_device.state_dict(), right = on_cpu.state_dict();
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    if (!same_bits(gpu[i], cpu[i])) return "parameter " + std::to_string(i);
  }
  for (const auto& [name, tensor] : right.tensors) {
    if (!same_bits(ours.tensor(name), tensor)) return name;
  }
  return "";
}

double milliseconds(const std::function<void()>& update) {
  for (int i = 0; i < 5; ++i) update();
  vernier::synchronize({torch::kCUDA, 0});
  const auto start = std::chrono::steady_clock::now();
  constexpr int times = 20;
  for (int i = 0; i < times; ++i) update();
  vernier::synchronize({torch::kCUDA, 0});
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / times;
}

// The parameters of GPT-2 with 124 million of them, with gradients.
Tensors gpt2_parameters() {
  const auto options = torch::dtype(torch::kFloat32).device(torch::kCUDA);
  Tensors all{at::randn({50257, 768}, options), at::randn({1024, 768}, options)};
  for (int layer = 0; layer < 12; ++layer) {
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{768},
                                                                    {768},
                                                                    {768, 2304},
                                                                    {2304},
                                                                    {768, 768},
                                                                    {768},
                                                                    {768},
                                                                    {768},
                                                                    {768, 3072},
                                                                    {3072},
                                                                    {3072, 768},
                                                                    {768}}) {
      all.push_back(at::randn(shape, options));
    }
  }
  for (auto& tensor : all) tensor.mutable_grad() = at::randn_like(tensor);
  return all;
}

template <class Options>
void time_updates(const char* name, const Options& options) {
  const auto parameters = gpt2_parameters();
  std::string line = std::string("speed: ") + name + ", 124 M parameters";
  for (const bool own : {true, false}) {
    vernier::use_gpu_library(own);
    vernier::Fused<Options> optimizer(parameters, options);
    line += std::string(own ? ": kernels " : ", operators ") + std::to_string(milliseconds([&] { optimizer.step(); })) +
            " ms";
  }
  vernier::use_gpu_library(true);
  MESSAGE(line);
}

using Update = vernier::HalfWeights::Update;

// Weights in bfloat16, with float32 parameters for the optimizer.
struct Halves {
  std::shared_ptr<torch::nn::Module> model = std::make_shared<torch::nn::Module>();
  std::vector<vernier::Parameter> parameters;
  vernier::HalfWeights weights;

  Halves(const Tensors& tensors, Update update) : weights(torch::kBFloat16, update) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto name = "p" + std::to_string(i);
      const auto& parameter = model->register_parameter(name, tensors[i].detach().clone());
      parameters.push_back({name, parameter, parameter});
    }
    weights.prepare(*model, parameters, /*seed=*/7);
  }
  void update(double change, const torch::Tensor& skip = {}) {
    const torch::NoGradGuard no_grad;
    weights.collect();
    for (auto& parameter : parameters) parameter.master.mul_(change);
    weights.commit(skip);
  }
};

void time_roundings(const char* name, Update update) {
  std::string line = std::string("speed: weights in bf16, ") + name + ", 124 M parameters";
  Halves halves(gpt2_parameters(), update);
  for (const bool own : {true, false}) {
    vernier::use_gpu_library(own);
    line += std::string(own ? ": kernels " : ", operators ") +
            std::to_string(milliseconds([&] { halves.update(1.001); })) + " ms";
  }
  vernier::use_gpu_library(true);
  MESSAGE(line);
}

void time_norms(const char* name, bool is_rms) {
  const auto options = torch::dtype(torch::kFloat32).device(torch::kCUDA);
  for (const std::int64_t width : {768, 4096}) {
    const auto x = at::randn({16384, width}, options).requires_grad_(), slopes = at::randn({16384, width}, options);
    const auto weight = at::randn({width}, options).requires_grad_(),
               bias = at::randn({width}, options).requires_grad_();
    std::string line = std::string("speed: ") + name + " of 16384 x " + std::to_string(width) + " with gradients";
    for (const bool own : {true, false}) {
      vernier::use_gpu_library(own);
      line += std::string(own ? ": kernels " : ", LibTorch's ") + std::to_string(milliseconds([&] {
                const auto y =
                    is_rms ? at::rms_norm(x, {width}, weight, 1e-5) : at::layer_norm(x, {width}, weight, bias);
                torch::autograd::grad({y}, {x, weight}, {slopes});
              })) +
              " ms";
    }
    MESSAGE(line);
  }
  vernier::use_gpu_library(true);
}

// Loss and gradients of a head, whose logits are computed in chunks or all at once.
Tensors head_results(const Tensors& given, const torch::Tensor& target, bool in_chunks) {
  const auto x = given[0].detach().requires_grad_(), weight = given[1].detach().requires_grad_();
  const auto loss = in_chunks ? vernier::linear_cross_entropy(x, weight, target)
                              : at::cross_entropy_loss(at::linear(x, weight).to(torch::kFloat32), target);
  (loss * target.size(0)).backward();  // or gradients in float16 would have few bits
  return {loss.detach(), x.grad(), weight.grad()};
}

}  // namespace

TEST_CASE("gpu: the CUDA kernels are used, and updates have the bits of the CPU") {
  if (!has_gpu()) return;
  for (const auto state : {AdamState::full, AdamState::bfloat16, AdamState::eight_bit}) {
    CHECK(difference(AdamWOptions{.lr = 1e-2, .weight_decay = 0.1, .state = state}) == "");
    CHECK(difference(vernier::AdamOptions{.lr = 1e-2, .weight_decay = 0.1, .maximize = true, .state = state}) == "");
  }
  CHECK(difference(vernier::LionOptions{.lr = 1e-3, .weight_decay = 0.1}) == "");
  CHECK(difference(vernier::SGDOptions{.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}) == "");
  CHECK(difference(vernier::SGDOptions{.lr = 1e-2, .momentum = 0.9, .dampening = 0.5}) == "");
  CHECK(vernier::uses_gpu_library({torch::kCUDA, 0}));
}

TEST_CASE("gpu: norms and the finite check are those of the CPU") {
  if (!has_gpu()) return;
  torch::manual_seed(2);
  for (int i = 0; i < 20; ++i) {
    auto gradients = random_tensors(std::pow(10.0, i - 12.0));
    if (i % 5 == 1) gradients[2][17] = INFINITY;
    if (i % 5 == 2) gradients[2][18] = NAN;
    const auto ours = vernier::inspect_gradients(on_gpu(gradients)), right = vernier::inspect_gradients(gradients);
    CHECK(ours.found_inf.item<float>() == right.found_inf.item<float>());
    CHECK(at::allclose(ours.norm.cpu(), right.norm, 1e-13, 0, /*equal_nan=*/true));
  }
}

TEST_CASE("gpu: weights in bfloat16 are rounded to the bits of the CPU") {
  if (!has_gpu()) return;
  torch::manual_seed(6);
  const auto tensors = random_tensors(1);
  for (const auto update : {Update::masters, Update::stochastic, Update::kahan}) {
    Halves ours(on_gpu(tensors), update), right(tensors, update);
    for (int step = 0; step < 5; ++step) {
      const auto skip = update == Update::kahan ? at::full({}, step == 2 ? 1.0F : 0.0F) : torch::Tensor();
      ours.update(1.001, skip.defined() ? skip.to(torch::kCUDA) : skip);
      right.update(1.001, skip);
    }
    const auto on_gpu = ours.weights.state_dict();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      CHECK(same_bits(ours.parameters[i].model, right.parameters[i].model));
    }
    for (const auto& [name, tensor] : right.weights.state_dict().tensors) {
      CHECK(same_bits(on_gpu.tensor(name), tensor));
    }
  }
}

TEST_CASE("gpu: LayerNorm and RMSNorm are those of LibTorch, with their derivatives") {
  if (!has_gpu()) return;
  torch::manual_seed(7);
  const auto results = [](bool own, bool is_rms, bool twice) {
    vernier::use_gpu_library(own);
    torch::manual_seed(8);
    const auto options = torch::dtype(torch::kFloat32).device(torch::kCUDA);
    const auto x = at::randn({64, 33, 768}, options).requires_grad_();
    const auto weight = at::randn({768}, options).requires_grad_(), bias = at::randn({768}, options).requires_grad_();
    const auto slopes = at::randn({64, 33, 768}, options);
    const auto y = is_rms ? at::rms_norm(x, {768}, weight, 1e-5) : at::layer_norm(x, {768}, weight, bias);
    const std::vector<torch::Tensor> leaves =
        is_rms ? std::vector<torch::Tensor>{x, weight} : std::vector<torch::Tensor>{x, weight, bias};
    auto all = torch::autograd::grad({y}, leaves, {slopes}, /*retain_graph=*/twice, /*create_graph=*/twice);
    if (twice) all = torch::autograd::grad({all[0].pow(2).sum()}, {x, weight});
    all.push_back(y.detach());
    return all;
  };
  for (const bool is_rms : {false, true}) {
    for (const bool twice : {false, true}) {
      const auto ours = results(true, is_rms, twice), right = results(false, is_rms, twice);
      for (std::size_t i = 0; i < right.size(); ++i) {
        CHECK((ours[i] - right[i]).norm().item<double>() <= 1e-5 * right[i].norm().item<double>());
      }
    }
  }
  vernier::use_gpu_library(true);
}

TEST_CASE("gpu: add_norm under autocast has the bits of a sum, a norm and the cast of a linear layer") {
  if (!has_gpu()) return;
  const auto results = [](bool is_one, torch::Dtype dtype, bool is_rms) {
    torch::manual_seed(9);
    const auto options = torch::dtype(torch::kFloat32).device(torch::kCUDA);
    const auto leaf = [&](at::IntArrayRef shape) { return at::randn(shape, options).requires_grad_(); };
    const auto x = leaf({16, 33, 768}), weight = leaf({768}), bias = leaf({768}), matrix = leaf({384, 768});
    const auto branch = at::randn({16, 33, 768}, options).to(dtype).requires_grad_();
    const vernier::Autocast autocast(torch::kCUDA, dtype);
    vernier::NormOptions norm{weight, is_rms ? torch::Tensor() : bias, 1e-5, is_rms};
    vernier::AddedNorm both{x + branch, {}};
    both.normed = is_rms ? at::rms_norm(both.sum, {768}, weight, 1e-5) : at::layer_norm(both.sum, {768}, weight, bias);
    if (is_one) both = vernier::add_norm(x, branch, norm);
    CHECK((both.normed.scalar_type() == (is_one ? dtype : torch::kFloat32)));
    const auto loss = at::linear(both.normed, matrix).to(torch::kFloat32).square().sum() + both.sum.square().sum();
    auto all = torch::autograd::grad({loss}, {x, branch, weight, matrix});
    all.push_back(loss.detach());
    return all;
  };
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    for (const bool is_rms : {false, true}) {
      const auto ours = results(true, dtype, is_rms), right = results(false, dtype, is_rms);
      for (std::size_t i = 0; i < right.size(); ++i) CHECK(same_bits(ours[i].cpu(), right[i].cpu()));
    }
  }
}

TEST_CASE("gpu: casts to fp8 have the bits of the CPU") {
  if (!has_gpu()) return;
  torch::manual_seed(4);
  for (const auto format : {torch::kFloat8_e4m3fn, torch::kFloat8_e5m2}) {
    for (const auto kind : {torch::kFloat32, torch::kBFloat16, torch::kHalf}) {
      const auto x = (at::randn({1037, 771}) * 30).to(kind);
      const auto scale = at::full({}, 3.0F);
      const auto ours = vernier::float8_quantize(x.to(torch::kCUDA), scale.to(torch::kCUDA), format).values;
      const auto right = vernier::float8_quantize(x, scale, format).values;
      CHECK(at::equal(ours.cpu().view(torch::kByte), right.view(torch::kByte)));
    }
  }
}

TEST_CASE("gpu: two streams update as one does") {
  if (!has_gpu()) return;
  const auto on_stream = [](bool other) {
    torch::manual_seed(3);
    const auto parameters = on_gpu(random_tensors(0.1));
    for (const auto& parameter : parameters) parameter.mutable_grad() = at::full_like(parameter, 0.5);
    vernier::AdamW optimizer(parameters, {.state = AdamState::bfloat16});
    vernier::synchronize({torch::kCUDA, 0});
    const c10::impl::VirtualGuardImpl guard(torch::kCUDA);
    const auto before = guard.getStream({torch::kCUDA, 0});
    if (other) guard.exchangeStream(guard.getStreamFromGlobalPool({torch::kCUDA, 0}));
    for (int i = 0; i < 5; ++i) {
      for (const auto& parameter : parameters) parameter.mutable_grad().mul_(-1.5);  // in the same stream
      optimizer.step();
    }
    guard.exchangeStream(before);
    vernier::synchronize({torch::kCUDA, 0});
    return at::cat({parameters[0].flatten(), parameters[2]}).cpu();
  };
  CHECK(at::equal(on_stream(true), on_stream(false)));
}

TEST_CASE("gpu: the memory ledger agrees with the allocator") {
  if (!has_gpu()) return;
  const torch::Device device(torch::kCUDA, 0);
  torch::nn::Sequential model;
  for (int i = 0; i < 4; ++i) model->push_back(torch::nn::Linear(2048, 2048));
  model->to(device);
  const auto x = at::randn({512, 2048}, device);
  for (int step = 0; step < 3; ++step) {
    vernier::MemoryLedger ledger(*model);
    ledger.hold("batch", {x});
    for (const auto& parameter : model->parameters()) parameter.mutable_grad().reset();
    vernier::reset_peak_memory(device);
    ledger.begin_forward();
    const auto loss = model->forward(x).relu().sum();
    ledger.begin_backward();
    loss.backward();
    const auto use = ledger.stop();
    const auto peak = vernier::allocated_memory(device).peak;
    CHECK(std::abs(static_cast<double>(use.peak) / static_cast<double>(peak) - 1) < 0.02);
  }
}

TEST_CASE("gpu: time of updates and norms") {
  if (!has_gpu()) return;
  time_norms("LayerNorm", false);
  time_norms("RMSNorm", true);
  time_updates("adamw", AdamWOptions{});
  time_updates("adamw bf16", AdamWOptions{.state = AdamState::bfloat16});
  time_updates("adamw 8bit", AdamWOptions{.state = AdamState::eight_bit});
  time_updates("lion", vernier::LionOptions{});
  time_updates("sgd with momentum", vernier::SGDOptions{.momentum = 0.9});
  time_roundings("Kahan", Update::kahan);
  time_roundings("stochastic", Update::stochastic);
  Tensors gradients;
  for (const auto& parameter : gpt2_parameters()) gradients.push_back(parameter.grad());
  const auto norms = [&] { vernier::inspect_gradients(gradients); };
  const double ours = milliseconds(norms);
  vernier::use_gpu_library(false);
  const double theirs = milliseconds(norms);
  vernier::use_gpu_library(true);
  MESSAGE("speed: norms and finite check, 124 M numbers: kernels " << ours << " ms, operators " << theirs << " ms");
}

TEST_CASE("gpu: a head of 128,256 classes does not hold its logits") {
  if (!has_gpu()) return;
  torch::manual_seed(5);
  constexpr std::int64_t rows = 8192, width = 768, classes = 128256;
  const auto options = torch::dtype(torch::kFloat32).device(torch::kCUDA);
  const auto input = at::randn({rows, width}, options), weight = at::randn({classes, width}, options) * 0.02;
  const auto target = at::randint(classes, {rows}, options.dtype(torch::kLong));
  Tensors given;
  for (const auto dtype : {torch::kFloat32, torch::kHalf, torch::kBFloat16}) {
    given = {input.to(dtype), weight.to(dtype)};
    const auto ours = head_results(given, target, true);
    const auto right = head_results({given[0].to(torch::kFloat32), given[1].to(torch::kFloat32)}, target, false);
    CHECK(at::allclose(ours[0], right[0], 1e-4));
    const double bound = dtype == torch::kFloat32 ? 1e-5 : dtype == torch::kHalf ? 2e-3 : 1e-2;
    for (std::size_t i = 1; i < 3; ++i) {
      CHECK((ours[i].to(torch::kFloat32) - right[i]).norm().item<double>() < bound * right[i].norm().item<double>());
    }
  }
  std::string line = "speed: cross entropy of 8192 x 128,256 from a head of width 768 in bf16";
  for (const bool in_chunks : {true, false}) {
    const double time = milliseconds([&] { head_results(given, target, in_chunks); });
    vernier::reset_peak_memory({torch::kCUDA, 0});
    const auto before = vernier::allocated_memory({torch::kCUDA, 0}).now;
    head_results(given, target, in_chunks);
    const auto bytes = vernier::allocated_memory({torch::kCUDA, 0}).peak - before;
    line += c10::str(in_chunks ? ": chunks " : ", all logits ", time, " ms and ", bytes >> 20, " MiB");
  }
  MESSAGE(line);
}

}  // namespace gpu_optimizer_test
