#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Version.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <vernier/autocast.h>
#include <vernier/error.h>
#include <vernier/grad_scaler.h>
#include <vernier/half_weights.h>
#include <vernier/host.h>
#include <vernier/run.h>

#include <cmath>
#include <limits>
#include <random>

#include "optim/stochastic_rounding.h"
#include "oracle.h"

namespace half_weights_test {

using vernier::AdamW;
using vernier::Error;
using vernier::GradScaler;
using vernier::HalfWeights;
using vernier::Run;
using vernier::State;
using Update = vernier::HalfWeights::Update;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
const auto every_update = {Update::masters, Update::nearest, Update::stochastic, Update::kahan};

// Tensors as a model, without a forward.
class Bag final : public torch::nn::Module {
 public:
  torch::Tensor add(const std::string& name, const torch::Tensor& value) {
    return register_parameter(name, value.detach().clone());
  }
};

void name_parameters(vernier::TrainerRun& run) {
  for (const auto& entry : run.model->named_parameters())
    run.parameters.push_back({entry.key(), entry.value(), entry.value()});
}

// One weight tensor, and steps that an optimizer would do by hand.
struct One {
  One(const torch::Tensor& start, Update update, c10::ScalarType dtype = torch::kBFloat16) : weights(dtype, update) {
    auto bag = std::make_shared<Bag>();
    weight = bag->add("weight", start);
    run.model = bag;
    name_parameters(run);
    weights.prepare(*run.model, run.parameters, run.seed);
  }
  torch::Tensor master() const { return run.parameters[0].master; }
  void step(const torch::Tensor& change, const torch::Tensor& found_inf = {}) {
    const torch::NoGradGuard no_grad;
    run.skip_update = found_inf;
    weight.mutable_grad() = torch::zeros_like(weight);
    weights.collect();
    if (!found_inf.defined() || found_inf.item<float>() == 0) master() += change.to(master().scalar_type());
    weights.commit(run.skip_update);
  }
  vernier::TrainerRun run;
  torch::Tensor weight;
  HalfWeights weights;
};

// The net of tests/oracles/half_weights.py.
struct Net {
  Net(const Oracle& oracle, c10::ScalarType dtype, Update update) : weights(dtype, update) {
    auto bag = std::make_shared<Bag>();
    for (const char* name : {"w1", "b1", "w2", "b2"}) p[name] = bag->add(name, oracle[name]);
    norm = bag->register_module("bn", torch::nn::BatchNorm1d(24));
    const torch::NoGradGuard no_grad;
    (p["bn_w"] = norm->weight).copy_(oracle["bn_w"]);
    (p["bn_b"] = norm->bias).copy_(oracle["bn_b"]);
    run.model = bag;
    name_parameters(run);
    weights.prepare(*run.model, run.parameters, run.seed);
  }
  torch::Tensor loss(const torch::Tensor& input, const torch::Tensor& target) {
    const vernier::Autocast autocast(torch::kCPU, p["w1"].scalar_type());
    const auto hidden = at::relu(norm->forward(at::linear(input, p["w1"], p["b1"])));
    return at::cross_entropy_loss(at::linear(hidden, p["w2"], p["b2"]), target);
  }
  std::vector<torch::Tensor> master() const {
    std::vector<torch::Tensor> all;
    for (const auto& parameter : run.parameters) all.push_back(parameter.master);
    return all;
  }
  vernier::TrainerRun run;
  std::map<std::string, torch::Tensor> p;
  torch::nn::BatchNorm1d norm{nullptr};
  HalfWeights weights;
};

std::int64_t bytes(const torch::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.storage().nbytes()) : 0;
}

torch::Tensor rounded(const torch::Tensor& from, std::uint64_t seed, std::uint64_t draw = 0) {
  auto to = torch::empty_like(from, torch::kBFloat16);
  vernier::round_on_host(from.const_data_ptr<float>(), to.data_ptr<c10::BFloat16>(), from.numel(), seed, 0, draw);
  return to;
}

torch::Tensor rounded_by_operators(const torch::Tensor& from, std::uint64_t seed) {
  auto to = torch::empty_like(from, torch::kBFloat16);
  vernier::round_by_operators(from, to, at::make_generator<at::CPUGeneratorImpl>(seed));
  return to;
}

}  // namespace

TEST_CASE("half_weights: O2 and O3 are the loops that one writes by hand in Python, bit for bit") {
  const Oracle oracle("half_weights");
  const bool same_processor = at::get_cpu_capability().starts_with("AVX");
  struct Case {
    std::string name;
    c10::ScalarType dtype;
    Update update;
    bool scales;
  };
  for (const auto& c : {Case{"o2_bf16", torch::kBFloat16, Update::masters, false},
                        Case{"o2_fp16", torch::kFloat16, Update::masters, true},
                        Case{"o3_bf16", torch::kBFloat16, Update::nearest, false}}) {
    CAPTURE(c.name);
    Net net(oracle, c.dtype, c.update);
    const auto recorded = [&](const std::string& name) { return oracle[c.name + "." + name]; };
    AdamW optimizer(net.master(), {.lr = 0.01, .weight_decay = 0.1});
    GradScaler scaler(torch::kCPU, {.init_scale = 4194304.0, .growth_interval = 5, .enabled = c.scales});
    for (std::int64_t step = 0; step < 20; ++step) {
      CAPTURE(step);
      optimizer.zero_grad();
      const auto loss = net.loss(oracle["input"][step], oracle["target"][step]);
      scaler.scale(loss).backward();
      net.weights.collect();
      net.run.skip_update = scaler.unscale_(net.run.gradients());
      optimizer.step(net.run.skip_update);
      net.weights.commit(net.run.skip_update);
      scaler.update();
      CHECK(distance(loss.detach(), recorded("loss")[step]) <= 1e-3);
      if (same_processor) CHECK(same_bits(loss.detach(), recorded("loss")[step]));
      if (c.scales) CHECK(scaler.get_scale() == recorded("scale")[step].item<double>());
      if (c.scales) CHECK(same_bits(net.run.skip_update, recorded("found_inf")[step]));
    }
    for (const auto& [name, tensor] : net.p) {
      CAPTURE(name);
      CHECK((tensor.scalar_type() == (name.starts_with("bn") ? torch::kFloat32 : c.dtype)));
      CHECK(distance(tensor.detach(), recorded("model." + name)) <= 2e-2);
      if (same_processor) CHECK(same_bits(tensor.detach(), recorded("model." + name)));
    }
    for (const auto& parameter : net.run.parameters) {
      if (parameter.master.is_same(parameter.model)) continue;
      CAPTURE(parameter.name);
      CHECK((parameter.master.scalar_type() == torch::kFloat32));
      if (same_processor) CHECK(same_bits(parameter.master.detach(), recorded("owned." + parameter.name)));
    }
    if (same_processor) CHECK(same_bits(net.norm->running_mean, recorded("mean")));
    if (same_processor) CHECK(same_bits(net.norm->running_var, recorded("variance")));
  }
}

namespace {

// A model with one of each kind of tensor.
struct Mixed {
  std::shared_ptr<Bag> bag = std::make_shared<Bag>();
  torch::nn::Linear linear = bag->register_module("linear", torch::nn::Linear(4, 3));
  torch::nn::LayerNorm layer_norm =
      bag->register_module("layer_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({3})));
  torch::nn::BatchNorm2d norm = bag->register_module("norm", torch::nn::BatchNorm2d(3));
  torch::nn::InstanceNorm1d instance = bag->register_module(
      "instance",
      torch::nn::InstanceNorm1d(torch::nn::InstanceNorm1dOptions(3).affine(true).track_running_stats(true)));
  torch::Tensor wide = bag->add("wide", torch::ones({2}, torch::kFloat64));
  torch::Tensor kept = bag->add("kept", torch::ones({2}));
  torch::Tensor frozen = bag->add("frozen", torch::full({2}, 1.0F / 3));
  torch::Tensor gaps = bag->register_parameter("gaps", torch::ones({3, 4}, torch::kBFloat16).t().slice(1, 0, 2));
  torch::Tensor table = bag->register_buffer("table", torch::ones({2}));
  torch::Tensor count = bag->register_buffer("count", torch::ones({2}, torch::kInt64));
  torch::Tensor before = linear->weight.detach().clone();
  const void* identity = linear->weight.unsafeGetTensorImpl();
  vernier::TrainerRun run;

  Mixed() {
    frozen.requires_grad_(false);
    bag->register_parameter("tied", linear->weight);
    run.model = bag;
    for (const auto& entry : bag->named_parameters()) {
      if (entry.value().requires_grad() && entry.key() != "tied") {
        run.parameters.push_back({entry.key(), entry.value(), entry.value()});
      }
    }
  }
};

bool is_kept(const std::string& name) {
  return name == "kept";
}

}  // namespace

TEST_CASE("half_weights: what is cast and what stays, with the tensors that modules hold") {
  for (const auto update : every_update) {
    CAPTURE(static_cast<int>(update));
    Mixed of;
    HalfWeights weights(torch::kBFloat16, update);
    weights.prepare(*of.run.model, of.run.parameters, of.run.seed, is_kept);
    for (const auto& tensor : {of.linear->weight, of.linear->bias, of.layer_norm->weight, of.frozen, of.gaps}) {
      CHECK((tensor.scalar_type() == torch::kBFloat16));
    }
    for (const auto& tensor :
         {of.norm->weight, of.norm->running_var, of.instance->bias, of.instance->running_mean, of.kept, of.table}) {
      CHECK((tensor.scalar_type() == torch::kFloat32));
    }
    CHECK((of.wide.scalar_type() == torch::kFloat64));
    CHECK((of.count.scalar_type() == torch::kInt64));
    CHECK(of.linear->weight.unsafeGetTensorImpl() == of.identity);
    CHECK(of.linear->weight.is_leaf());
    CHECK(torch::equal(of.linear->weight, of.before.to(torch::kBFloat16)));
    for (const auto& parameter : of.run.parameters) {
      const bool is_cast = parameter.model.scalar_type() == torch::kBFloat16 && update != Update::nearest;
      CHECK(parameter.master.is_same(parameter.model) != is_cast);
      if (is_cast) CHECK((parameter.master.scalar_type() == torch::kFloat32));
      CHECK(parameter.master.sizes() == parameter.model.sizes());
      CHECK(parameter.master.is_non_overlapping_and_dense());
    }
    CHECK_THROWS_AS(weights.prepare(*of.run.model, of.run.parameters, of.run.seed), Error);
  }
}

TEST_CASE("half_weights: what was cast comes back, and can be cast again") {
  for (const auto update : every_update) {
    CAPTURE(static_cast<int>(update));
    Mixed of;
    HalfWeights weights(torch::kBFloat16, update);
    weights.prepare(*of.run.model, of.run.parameters, of.run.seed, is_kept);
    weights.release(of.run.parameters);
    for (const auto& tensor : {of.linear->weight, of.linear->bias, of.layer_norm->weight, of.frozen, of.table}) {
      CHECK((tensor.scalar_type() == torch::kFloat32));
    }
    CHECK((of.gaps.scalar_type() == torch::kBFloat16));
    CHECK(of.linear->weight.unsafeGetTensorImpl() == of.identity);
    const bool exact = update == Update::masters;
    CHECK(torch::equal(of.linear->weight, exact ? of.before : of.before.to(torch::kBFloat16).to(torch::kFloat32)));
    for (const auto& parameter : of.run.parameters) CHECK(parameter.master.is_same(parameter.model));
    weights.prepare(*of.run.model, of.run.parameters, of.run.seed);  // again
    CHECK((of.linear->weight.scalar_type() == torch::kBFloat16));
  }
}

TEST_CASE("half_weights: normalisations take 16-bit input with the weights that they are left with") {
  for (const auto dtype : {torch::kBFloat16, torch::kFloat16}) {
    auto bag = std::make_shared<Bag>();
    const auto norm = bag->register_module("norm", torch::nn::BatchNorm1d(3));
    const auto instance = bag->register_module(
        "instance",
        torch::nn::InstanceNorm1d(torch::nn::InstanceNorm1dOptions(3).affine(true).track_running_stats(true)));
    const auto layer_norm = bag->register_module("layer_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})));
    const auto group_norm = bag->register_module("group_norm", torch::nn::GroupNorm(3, 3));
    vernier::TrainerRun run;
    run.model = bag;
    name_parameters(run);
    HalfWeights weights(dtype, Update::masters);
    weights.prepare(*run.model, run.parameters, run.seed);
    torch::manual_seed(1);
    const auto x = torch::randn({4, 3, 5}).to(dtype);
    const vernier::Autocast autocast(torch::kCPU, dtype);
    auto y = group_norm->forward(layer_norm->forward(instance->forward(norm->forward(x))));
    CHECK((y.scalar_type() == dtype));
    y.square().sum().backward();
    for (const auto& parameter : run.parameters) CHECK(parameter.model.grad().isfinite().all().item<bool>());
  }
}

TEST_CASE("half_weights: gradients arrive in float32, are freed in 16 bits, and an inf or nan arrives too") {
  for (const auto dtype : {torch::kBFloat16, torch::kFloat16}) {
    One one(torch::ones({4}), Update::masters, dtype);
    one.weight.mutable_grad() = torch::tensor({0.5F, infinity, -infinity, NAN}).to(dtype);
    one.weights.collect();
    CHECK_FALSE(one.weight.grad().defined());
    CHECK(same_bits(one.master().grad(), torch::tensor({0.5F, infinity, -infinity, NAN})));
    CHECK(vernier::unscale_gradients_({one.master().grad()}, torch::ones({})).item<float>() == 1);
  }
}

TEST_CASE("half_weights: where bfloat16 stands still, masters, Kahan and chance move on") {
  // 10,000 random updates, each less than half of 2^-7, the last place at 1: their sum is 1.
  torch::manual_seed(5);
  const auto changes = torch::rand({10000, 64}) * 2e-4;
  const auto exact = changes.sum(0, false, torch::kFloat64) + 1;
  const auto end = [&](Update update) {
    One one(torch::ones({64}), update);
    for (std::int64_t i = 0; i < 10000; ++i) one.step(changes[i]);
    return one.weight.detach().to(torch::kFloat64);
  };
  CHECK(torch::equal(end(Update::nearest), torch::ones({64}, torch::kFloat64)));
  const double place = std::ldexp(1, -6);  // from 2 on
  CHECK((end(Update::masters) - exact).abs().max().item<double>() <= place / 2 * 1.01);
  CHECK((end(Update::kahan) - exact).abs().max().item<double>() <= place);
  // A walk of 10,000 steps, whose variance is at most p (1 - p) places squared each, p = 1e-4 / 2^-7: sigma 0.088.
  const auto walked = end(Update::stochastic) - exact;
  CHECK(walked.abs().max().item<double>() <= 4.5 * 0.088);
  CHECK(std::abs(walked.mean().item<double>()) <= 4 * 0.088 / 8);
  CHECK(walked.abs().max().item<double>() > place);  // chance it is
}

TEST_CASE("half_weights: Kahan holds twice the bits of the weight") {
  torch::manual_seed(6);
  One one(torch::zeros({1000}), Update::kahan);
  const auto value = torch::randn({1000});
  one.step(value);
  CHECK(torch::equal(one.weight, value.to(torch::kBFloat16)));
  one.weights.release(one.run.parameters);
  CHECK((one.weight.scalar_type() == torch::kFloat32));
  CHECK(((one.weight - value) / value).abs().max().item<double>() <= std::ldexp(1, -17));
}

TEST_CASE(
    "half_weights: a skipped update changes no bit of weights and compensation, also half way between two weights") {
  const auto start = torch::tensor({1.0F, 1.0F + std::ldexp(1.0F, -8), 1.0078125F, -3.0F});
  for (const auto update : {Update::masters, Update::stochastic, Update::kahan}) {
    CAPTURE(static_cast<int>(update));
    One one(start, update);
    // Half a place, nearly: as bfloat16 it is rounded to half a place, so that 1.0078125 plus it is a tie.
    const float nearly = std::ldexp(1.0F, -8) * (1 - std::ldexp(1.0F, -12));
    one.step(torch::full({4}, nearly));
    const auto before = one.weight.detach().clone();
    const auto state = one.weights.state_dict();
    State copy;
    for (const auto& [name, tensor] : state.tensors) copy.put(name, tensor.clone());
    for (int i = 0; i < 20; ++i) one.step(torch::full({4}, 0.25F), torch::ones({}));
    CHECK(same_bits(one.weight.detach(), before));
    for (const auto& [name, tensor] : one.weights.state_dict().tensors) {
      if (name != "draws") CHECK_MESSAGE(same_bits(tensor, copy.tensor(name)), name);
    }
    one.step(torch::full({4}, 0.25F), torch::zeros({}));
    CHECK_FALSE(torch::equal(one.weight, before));
  }
}

TEST_CASE("half_weights: stochastic rounding leaves what bfloat16 holds, and nan and inf") {
  auto every = torch::arange(65536, torch::kInt32).to(torch::kInt16).view(torch::kBFloat16);
  const auto wide = every.to(torch::kFloat32);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CHECK(same_bits(rounded(wide, seed), every));
    CHECK(same_bits(rounded_by_operators(wide, seed), every));
  }
  // nan in any disguise: the low bits alone may say so.
  const auto nan = torch::tensor({0x7f800001, 0x7fffffff, -1, -8388607}, torch::kInt32).view(torch::kFloat32);
  CHECK(rounded(nan, 1).isnan().all().item<bool>());
  CHECK(rounded_by_operators(nan, 1).isnan().all().item<bool>());
  // Between 0 and the smallest denormal, on both sides.
  const auto tiny = torch::tensor({1, -2147483647}, torch::kInt32).view(torch::kFloat32).repeat(100);
  CHECK(rounded(tiny, 1).to(torch::kFloat32).abs().max().item<float>() <= std::ldexp(1.0F, -133));
}

TEST_CASE("half_weights: stochastic rounding takes one of the two neighbours, in the mean the number itself") {
  const std::int64_t draws = 1000000;
  for (const float value : {1.001F, -1.001F, 0.3333F, 1e-30F, 250.7F, 1.00001F, 1.0078F}) {
    CAPTURE(value);
    const auto from = torch::full({draws}, value);
    for (const bool host : {true, false}) {
      const auto to = (host ? rounded(from, 11) : rounded_by_operators(from, 11)).to(torch::kFloat64);
      const double low = to.min().item<double>(), high = to.max().item<double>();
      const double place = std::ldexp(1.0, std::ilogb(value) - 7);
      CHECK(high - low == place);
      CHECK(low < value);
      CHECK(value < high);
      CHECK(to.eq(low).logical_or(to.eq(high)).all().item<bool>());
      const double share = (static_cast<double>(value) - low) / place;
      const double sigma = place * std::sqrt(share * (1 - share) / static_cast<double>(draws));
      CHECK(std::abs(to.mean().item<double>() - value) <= 4 * sigma);
      // Neighbouring elements, and those whose noise is of one word, are independent.
      const auto up = to.eq(high).to(torch::kFloat64).view({-1, 2});
      const double both = up.prod(1).mean().item<double>();
      CHECK(std::abs(both - share * share) <=
            4 * std::sqrt(share * share * (1 - share * share) / (draws / 2.0)) + 1e-12);
    }
  }
}

TEST_CASE(
    "half_weights: stochastic rounding is the same for any number of threads, and another for each seed and draw") {
  torch::manual_seed(2);
  const auto from = torch::randn({100003});
  at::set_num_threads(1);
  const auto one = rounded(from, 3);
  at::set_num_threads(4);
  CHECK(same_bits(rounded(from, 3), one));
  at::set_num_threads(1);
  for (const auto& other : {rounded(from, 4), rounded(from, 3, 1), rounded(from, 3, 2)}) {
    const double differ = other.ne(one).to(torch::kFloat64).mean().item<double>();
    CHECK(differ == doctest::Approx(1.0 / 3).epsilon(0.02));  // 2 p (1 - p) in the mean over p
  }
  // No chunk has another's noise, and no weight another weight's.
  const auto constant = rounded(torch::full({4096 * 3}, 1.004F), 3);
  CHECK_FALSE(torch::equal(constant.narrow(0, 0, 4096), constant.narrow(0, 4096, 4096)));
  vernier::TrainerRun run;
  auto bag = std::make_shared<Bag>();
  const auto a = bag->add("a", torch::ones({1000})), b = bag->add("b", torch::ones({1000}));
  run.model = bag;
  name_parameters(run);
  HalfWeights weights(torch::kBFloat16, Update::stochastic);
  weights.prepare(*run.model, run.parameters, run.seed);
  weights.collect();
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : run.parameters) parameter.master += 0.004F;
  }
  weights.commit(run.skip_update);
  CHECK_FALSE(torch::equal(a, b));
}

TEST_CASE("half_weights: a run that was saved goes on bit for bit") {
  const Oracle oracle("half_weights");
  for (const auto update : every_update) {
    CAPTURE(static_cast<int>(update));
    const auto train = [&](Net& net, AdamW& optimizer, std::int64_t from, std::int64_t to) {
      for (auto step = from; step < to; ++step) {
        optimizer.zero_grad();
        net.loss(oracle["input"][step], oracle["target"][step]).backward();
        net.weights.collect();
        optimizer.step();
        net.weights.commit(net.run.skip_update);
      }
    };
    Net whole(oracle, torch::kBFloat16, update), first(oracle, torch::kBFloat16, update);
    AdamW of_whole(whole.master(), {.lr = 0.001}), of_first(first.master(), {.lr = 0.001});
    train(whole, of_whole, 0, 20);
    train(first, of_first, 0, 10);
    const auto kept = first.weights.state_dict();
    const auto moments = of_first.state_dict();

    Net second(oracle, torch::kBFloat16, update);
    AdamW of_second(second.master(), {.lr = 0.001});
    {
      const torch::NoGradGuard no_grad;
      for (const auto& [name, tensor] : first.p) second.p[name].copy_(tensor);
      second.norm->running_mean.copy_(first.norm->running_mean);
      second.norm->running_var.copy_(first.norm->running_var);
    }
    second.weights.load_state_dict(kept);
    of_second.load_state_dict(moments);
    train(second, of_second, 10, 20);
    for (const auto& [name, tensor] : whole.p) CHECK(same_bits(tensor.detach(), second.p[name].detach()));
    for (const auto& [name, tensor] : whole.weights.state_dict().tensors) {
      CHECK(same_bits(tensor, second.weights.state_dict().tensor(name)));
    }
    CHECK_FALSE(same_bits(whole.p["w1"].detach(), first.p["w1"].detach()));
  }
}

TEST_CASE("half_weights: beside 2 bytes a weight, between updates, there are 4 of masters, 0, 0 and 2") {
  const std::int64_t count = 10000;
  for (const auto& [update, expected] : {std::pair(Update::masters, 4), std::pair(Update::nearest, 0),
                                         std::pair(Update::stochastic, 0), std::pair(Update::kahan, 2)}) {
    CAPTURE(static_cast<int>(update));
    One one(torch::ones({count}), update);
    const auto beside = [&] {
      std::int64_t sum = one.master().is_same(one.weight) ? 0 : bytes(one.master());
      for (const auto& [name, tensor] : one.weights.state_dict().tensors) {
        if (name.starts_with("compensation/")) sum += bytes(tensor);
      }
      return sum;
    };
    CHECK(bytes(one.weight) == 2 * count);
    CHECK(beside() == expected * count);
    const auto identity = one.master();
    for (int i = 0; i < 3; ++i) {
      one.weight.mutable_grad() = torch::zeros_like(one.weight);
      one.weights.collect();
      CHECK(beside() == (update == Update::nearest ? 0 : update == Update::kahan ? 6 : 4) * count);
      one.weights.collect();  // for an optimizer that asks again
      one.weights.commit(one.run.skip_update);
      CHECK(bytes(one.weight) == 2 * count);
      CHECK(beside() == expected * count);
      CHECK(one.master().is_same(identity));
    }
  }
}

TEST_CASE("half_weights: a second gradient in an update leaves what the optimizer has done to its copy") {
  One one(torch::ones({3}), Update::stochastic);
  const torch::NoGradGuard no_grad;
  one.weights.collect();
  one.master() += 1;
  one.weights.collect();
  CHECK(torch::equal(one.master(), torch::full({3}, 2.0F)));
}

TEST_CASE("half_weights: what makes no sense is refused") {
  CHECK_THROWS_WITH_AS(HalfWeights(torch::kFloat32, Update::masters), doctest::Contains("not Float"), Error);
  for (const auto update : {Update::stochastic, Update::kahan}) {
    CHECK_THROWS_WITH_AS(HalfWeights(torch::kFloat16, update), doctest::Contains("is for bfloat16"), Error);
  }
  One one(torch::ones({3}), Update::kahan);
  auto state = one.weights.state_dict();
  one.weights.load_state_dict(state);
  CHECK_THROWS_WITH_AS(one.weights.load_state_dict(State{}), doctest::Contains("compensation/weight"), Error);
  CHECK_THROWS_WITH_AS(one.weights.load_state_dict(State{}),
                       doctest::Contains("written with another `level` or `rounding`"), Error);
  state.put("compensation/weight", torch::ones({4}, torch::kBFloat16));
  CHECK_THROWS_WITH_AS(one.weights.load_state_dict(state), doctest::Contains("[4]"), Error);
  state.put("compensation/weight", torch::ones({3}, torch::kBFloat16));
  state.put("master/weight", torch::ones({3}));
  CHECK_THROWS_WITH_AS(one.weights.load_state_dict(state), doctest::Contains("master/weight"), Error);
}

}  // namespace half_weights_test
