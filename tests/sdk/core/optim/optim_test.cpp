#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <vernier/error.h>
#include <vernier/optim.h>

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "oracle.h"

namespace optim_test {

using vernier::Adam;
using vernier::AdamW;
using vernier::Error;
using vernier::FusedOptimizer;
using vernier::SGD;
using Parameters = std::vector<torch::Tensor>;

namespace {

using ::same_bits;

Parameters make_parameters(at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(3);
  Parameters parameters;
  for (const auto& shape : {std::vector<std::int64_t>{5, 7}, {7}, {}, {2, 3, 4}}) {
    parameters.push_back(torch::randn(shape, dtype).requires_grad_());
  }
  return parameters;
}

// The same for the same step, whoever asks. One in `missing` is left out.
void set_gradients(const Parameters& parameters, int step, int missing = 0) {
  torch::manual_seed(100 + step);
  std::minstd_rand random(static_cast<unsigned>(100 + step));
  for (const auto& parameter : parameters) {
    const auto gradient = torch::randn(parameter.sizes(), at::kDouble).to(parameter.scalar_type());
    const bool leave_out = missing != 0 && random() % static_cast<unsigned>(missing) == 0;
    parameter.mutable_grad() = leave_out ? torch::Tensor() : gradient;
  }
}

Parameters copies(const Parameters& parameters) {
  Parameters all;
  for (const auto& parameter : parameters) all.push_back(parameter.detach().clone());
  return all;
}

bool same_bits(const Parameters& a, const Parameters& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i].detach(), b[i].detach())) return false;
  }
  return true;
}

double largest_difference(const Parameters& a, const Parameters& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  return largest;
}

using MakeOurs = std::function<std::unique_ptr<FusedOptimizer>(Parameters)>;
using MakeTheirs = std::function<std::unique_ptr<torch::optim::Optimizer>(Parameters)>;

template <class Optimizer, class Options>
MakeOurs ours(Options options) {
  return [options](Parameters parameters) { return std::make_unique<Optimizer>(std::move(parameters), options); };
}

template <class Optimizer, class Options>
MakeTheirs theirs(Options options) {
  return [options](Parameters parameters) { return std::make_unique<Optimizer>(std::move(parameters), options); };
}

// 100 steps of both, some parameters without a gradient at times; the largest difference of a weight at the end. In the
// middle our parameters get memory in another order, as torch::load() gives them.
double drift(const MakeOurs& make_ours, const MakeTheirs& make_theirs, at::ScalarType dtype) {
  const auto a = make_parameters(dtype), b = make_parameters(dtype);
  const auto optimizer = make_ours(a);
  const auto reference = make_theirs(b);
  for (int step = 0; step < 100; ++step) {
    const int missing = step % 3 == 0 ? 4 : 0;
    if (step == 50) {
      for (auto& each : a) each.set_data(each.transpose(0, -1).contiguous().transpose(0, -1));
    }
    set_gradients(a, step, missing);
    set_gradients(b, step, missing);
    optimizer->step();
    reference->step();
  }
  return largest_difference(a, b);
}

void follow(const MakeOurs& make_ours, const MakeTheirs& make_theirs) {
  CHECK(drift(make_ours, make_theirs, at::kDouble) <= 1e-12);
  CHECK(drift(make_ours, make_theirs, at::kFloat) <= 1e-5);
}

}  // namespace

TEST_CASE("optim: AdamW follows torch::optim::AdamW") {
  using Reference = torch::optim::AdamWOptions;
  follow(ours<AdamW>(vernier::AdamWOptions{.lr = 0.01}), theirs<torch::optim::AdamW>(Reference(0.01)));
  follow(ours<AdamW>(vernier::AdamWOptions{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1}),
         theirs<torch::optim::AdamW>(Reference(0.02).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1)));
  follow(ours<AdamW>(vernier::AdamWOptions{.lr = 0.01, .amsgrad = true}),
         theirs<torch::optim::AdamW>(Reference(0.01).amsgrad(true)));
}

TEST_CASE("optim: Adam follows torch::optim::Adam") {
  using Reference = torch::optim::AdamOptions;
  follow(ours<Adam>(vernier::AdamOptions{.lr = 0.01}), theirs<torch::optim::Adam>(Reference(0.01)));
  follow(ours<Adam>(vernier::AdamOptions{.lr = 0.01, .weight_decay = 0.1, .amsgrad = true}),
         theirs<torch::optim::Adam>(Reference(0.01).weight_decay(0.1).amsgrad(true)));
}

TEST_CASE("optim: SGD follows torch::optim::SGD") {
  using Reference = torch::optim::SGDOptions;
  follow(ours<SGD>(vernier::SGDOptions{.lr = 0.1}), theirs<torch::optim::SGD>(Reference(0.1)));
  follow(ours<SGD>(vernier::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01}),
         theirs<torch::optim::SGD>(Reference(0.05).momentum(0.9).weight_decay(0.01)));
  follow(ours<SGD>(vernier::SGDOptions{.lr = 0.05, .momentum = 0.9, .dampening = 0.5}),
         theirs<torch::optim::SGD>(Reference(0.05).momentum(0.9).dampening(0.5)));
  follow(ours<SGD>(vernier::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}),
         theirs<torch::optim::SGD>(Reference(0.05).momentum(0.9).weight_decay(0.01).nesterov(true)));
}

TEST_CASE("optim: maximize is to minimize the negative") {
  const auto run = [](bool maximize, const MakeOurs& make) {
    const auto parameters = make_parameters();
    const auto optimizer = make(parameters);
    for (int step = 0; step < 10; ++step) {
      set_gradients(parameters, step);
      if (!maximize) {
        for (const auto& parameter : parameters) parameter.mutable_grad().neg_();
      }
      optimizer->step();
    }
    return copies(parameters);
  };
  CHECK(same_bits(run(true, ours<AdamW>(vernier::AdamWOptions{.maximize = true})),
                  run(false, ours<AdamW>(vernier::AdamWOptions{}))));
  CHECK(same_bits(run(true, ours<SGD>(vernier::SGDOptions{.momentum = 0.5, .maximize = true})),
                  run(false, ours<SGD>(vernier::SGDOptions{.momentum = 0.5}))));
}

namespace {

// Every kind of rule and state.
std::vector<MakeOurs> all_kinds() {
  return {ours<AdamW>(vernier::AdamWOptions{.lr = 0.01, .amsgrad = true}),
          ours<Adam>(vernier::AdamOptions{.lr = 0.01, .weight_decay = 0.1}),
          ours<SGD>(vernier::SGDOptions{.lr = 0.1}),
          ours<SGD>(vernier::SGDOptions{.lr = 0.1, .momentum = 0.9}),
          ours<SGD>(vernier::SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5}),
          ours<vernier::RMSprop>(vernier::RMSpropOptions{.lr = 0.01, .momentum = 0.9, .centered = true}),
          ours<vernier::Adagrad>(vernier::AdagradOptions{.lr_decay = 0.1, .initial_accumulator_value = 0.5}),
          ours<vernier::Lion>(vernier::LionOptions{.lr = 0.01, .weight_decay = 0.1}),
          ours<vernier::Lamb>(vernier::LambOptions{.lr = 0.01}),
          ours<vernier::Adafactor>(vernier::AdafactorOptions{.weight_decay = 0.1}),
          ours<vernier::Muon>(vernier::MuonOptions{.lr = 0.01}),
          ours<vernier::Adadelta>(vernier::AdadeltaOptions{}),
          ours<vernier::NAdam>(vernier::NAdamOptions{.weight_decay = 0.1, .decoupled_weight_decay = true}),
          ours<vernier::RAdam>(vernier::RAdamOptions{.beta2 = 0.9}),
          ours<vernier::Adamax>(vernier::AdamaxOptions{}),
          ours<vernier::Rprop>(vernier::RpropOptions{}),
          ours<vernier::ASGD>(vernier::ASGDOptions{.t0 = 2})};
}

vernier::Tensors copies(const vernier::Tensors& tensors) {
  vernier::Tensors all;
  for (const auto& [name, tensor] : tensors) all[name] = tensor.clone();
  return all;
}

bool same_bits(const vernier::Tensors& a, const vernier::Tensors& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a) {
    if (!b.count(name) || !same_bits(tensor, b.at(name))) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("optim: a step with found_inf changes nothing, step counts included") {
  for (const auto& make : all_kinds()) {
    for (const float found : {1.f, 2.f, 0.5f, NAN}) {
      const auto parameters = make_parameters(), reference_parameters = make_parameters();
      const auto optimizer = make(parameters), reference = make(reference_parameters);
      for (int step = 0; step < 6; ++step) {
        const bool skipped = step == 0 || step == 3;  // the very first too
        set_gradients(parameters, step);
        if (skipped) parameters[1].mutable_grad().fill_(INFINITY);
        const auto weights = copies(parameters);
        const auto state = copies(optimizer->state_dict().tensors);
        optimizer->step(torch::full({}, skipped ? found : 0.f));
        if (skipped) {
          CHECK(same_bits(weights, parameters));
          if (step != 0) CHECK(same_bits(state, optimizer->state_dict().tensors));
          continue;
        }
        set_gradients(reference_parameters, step);
        reference->step();
        CHECK(same_bits(parameters, reference_parameters));
      }
      CHECK(same_bits(optimizer->state_dict().tensors, reference->state_dict().tensors));
    }
  }
}

TEST_CASE("optim: gradients are divided by grad_scale") {
  for (const auto& make : all_kinds()) {
    const auto parameters = make_parameters(), reference_parameters = make_parameters();
    const auto optimizer = make(parameters), reference = make(reference_parameters);
    for (int step = 0; step < 4; ++step) {
      set_gradients(parameters, step);
      set_gradients(reference_parameters, step);
      for (const auto& parameter : parameters) parameter.mutable_grad().mul_(1024);
      optimizer->step(torch::zeros({}), torch::full({}, 1024.f));
      reference->step();
    }
    CHECK(same_bits(parameters, reference_parameters));
  }
}

TEST_CASE("optim: a parameter without a gradient is passed over and its step stays") {
  const auto parameters = make_parameters();
  AdamW optimizer(parameters);
  for (int step = 0; step < 5; ++step) {
    set_gradients(parameters, step);
    if (step % 2 == 0) parameters[1].mutable_grad().reset();
    parameters[2].mutable_grad().reset();
    optimizer.step();
  }
  const auto state = optimizer.state_dict();
  CHECK(state.tensor("0/step").item<float>() == 5);
  CHECK(state.tensor("1/step").item<float>() == 2);
  CHECK_FALSE(state.has("2/exp_avg"));
  CHECK(state.tensor("3/step").item<float>() == 5);
  CHECK(torch::equal(parameters[2], make_parameters()[2]));
  optimizer.zero_grad();
  const auto before = copies(parameters);
  optimizer.step();
  CHECK(same_bits(before, parameters));
}

TEST_CASE("optim: groups have options and learning rates of their own") {
  const auto parameters = make_parameters(), weights = make_parameters(), biases = make_parameters();
  std::vector<AdamW::Group> groups{{{parameters[0], parameters[1]}, {.lr = 0.01, .weight_decay = 0.5}},
                                   {{parameters[2], parameters[3]}, {.lr = 0.02, .weight_decay = 0}},
                                   {}};
  AdamW optimizer(groups);
  AdamW one({weights[0], weights[1]}, {.lr = 0.01, .weight_decay = 0.5});
  AdamW two({biases[2], biases[3]}, {.lr = 0.02, .weight_decay = 0});
  const auto step_all = [&](int step) {
    for (const auto& some : {parameters, weights, biases}) set_gradients(some, step);
    optimizer.step();
    one.step();
    two.step();
    CHECK(same_bits(parameters, {weights[0], weights[1], biases[2], biases[3]}));
  };
  CHECK(optimizer.lr() == 0.01);
  CHECK(optimizer.lr(1) == 0.02);
  step_all(0);
  optimizer.set_lr(0.5, 1);
  two.set_lr(0.5);
  CHECK(optimizer.lr(0) == 0.01);
  step_all(1);
  optimizer.set_lr(0.25);
  one.set_lr(0.25);
  two.set_lr(0.25);
  CHECK(optimizer.lr(1) == 0.25);
  step_all(2);
  CHECK(optimizer.state_dict().has("3/exp_avg"));
  CHECK(optimizer.parameters().size() == 4);
}

TEST_CASE("optim: dtypes may differ between parameters") {
  Parameters parameters;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kHalf, at::kFloat}) {
    parameters.push_back(torch::ones({9}, dtype).requires_grad_());
    parameters.back().mutable_grad() = torch::full({9}, 0.5, dtype);
  }
  AdamW optimizer(parameters, {.lr = 0.1, .weight_decay = 0});
  optimizer.step();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto name = std::to_string(i) + "/exp_avg";
    CHECK((optimizer.state_dict().tensor(name).scalar_type() == parameters[i].scalar_type()));
    CHECK(parameters[i][8].item<double>() == doctest::Approx(0.9).epsilon(1e-2));
  }
}

// LibTorch's CPU kernel leaves whole vectors of 16-bit weights as they are (pytorch/pytorch#191763).
TEST_CASE("optim: SGD trains weights in 16 bits, computed in float32 and rounded once") {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const std::int64_t size : {1, 15, 64, 1000, 20000}) {
        CAPTURE(size);
        torch::manual_seed(1);
        auto parameter = torch::randn({size}).to(dtype).requires_grad_();
        auto weight = parameter.detach().clone(), buffer = torch::zeros_like(weight);
        SGD optimizer({parameter}, {.lr = 0.125, .momentum = momentum, .weight_decay = 0.25});
        for (int step = 0; step < 5; ++step) {
          const auto gradient = torch::randn({size}).to(dtype);
          parameter.mutable_grad() = gradient.clone() * 2;
          optimizer.step({}, torch::full({}, 2.0F));
          CHECK(same_bits(parameter.grad(), gradient));  // divided by grad_scale
          auto change = gradient.to(at::kFloat) + weight.to(at::kFloat) * 0.25;
          if (momentum != 0) change = buffer.to(at::kFloat) * static_cast<float>(momentum) + change;
          buffer = change.to(dtype);
          weight = (weight.to(at::kFloat) - change * 0.125).to(dtype);
          const auto difference = (parameter.detach() - weight).abs().max().item<double>();
          CHECK(difference <= weight.abs().max().item<double>() * (dtype == at::kHalf ? 1e-3 : 8e-3));
          weight.copy_(parameter.detach());  // a fused multiply-add may round a tie the other way
          if (momentum != 0) buffer.copy_(optimizer.state_dict().tensor("0/momentum_buffer"));
        }
      }
    }
  }
}

TEST_CASE("optim: small and large tensors train together, and the number of threads stays") {
  Parameters parameters, apart;
  for (const std::int64_t size : {3, 20000, 8192, 8193, 1}) {
    parameters.push_back(torch::linspace(-1, 1, size).requires_grad_());
    apart.push_back(parameters.back().detach().clone().requires_grad_());
  }
  AdamW optimizer(parameters, {.lr = 0.1});
  std::vector<std::unique_ptr<AdamW>> each;
  for (const auto& parameter : apart) {
    each.push_back(std::make_unique<AdamW>(Parameters{parameter}, vernier::AdamWOptions{.lr = 0.1}));
  }
  const int threads = at::get_num_threads();
  for (int step = 0; step < 5; ++step) {
    set_gradients(parameters, step);
    set_gradients(apart, step);
    optimizer.step();
    for (const auto& one : each) one->step();
  }
  CHECK(at::get_num_threads() == threads);
  CHECK(same_bits(parameters, apart));
  for (std::size_t i = 0; i < 5; ++i) CHECK(optimizer.parameters()[i].is_same(parameters[i]));
  CHECK(optimizer.state_dict().tensor("1/exp_avg").numel() == 20000);
}

TEST_CASE("optim: gradients() are those defined, zero_grad() drops or zeroes them") {
  const auto parameters = make_parameters();
  SGD optimizer(parameters);
  CHECK(optimizer.gradients().empty());
  set_gradients(parameters, 0);
  parameters[2].mutable_grad().reset();
  REQUIRE(optimizer.gradients().size() == 3);
  CHECK(optimizer.gradients()[2].is_same(parameters[3].grad()));
  const auto gradient = parameters[0].grad();
  optimizer.zero_grad(false);
  CHECK(parameters[0].grad().is_same(gradient));
  CHECK(gradient.eq(0).all().item<bool>());
  optimizer.zero_grad();
  CHECK(optimizer.gradients().empty());
}

TEST_CASE("optim: no gradient is held beyond a step") {
  const auto parameters = make_parameters();
  AdamW optimizer(parameters);
  set_gradients(parameters, 0);
  const auto gradient = parameters[0].grad();
  optimizer.step();
  optimizer.zero_grad();
  CHECK(gradient.use_count() == 1);
}

TEST_CASE("optim: a gradient in another memory layout counts the same") {
  for (const bool channels_last : {false, true}) {
    const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    auto a = torch::arange(120.f).view({2, 3, 4, 5}).contiguous(format).requires_grad_();
    auto b = a.detach().clone().requires_grad_();
    const auto gradient = torch::randn({2, 3, 4, 5});
    a.mutable_grad() =
        gradient.contiguous(channels_last ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast);
    b.mutable_grad() = gradient.contiguous(format);
    for (const auto& parameter : {a, b}) AdamW(Parameters{parameter}, {.lr = 0.1}).step();
    CHECK(torch::equal(a, b));
  }
}

TEST_CASE("optim: a parameter that became another tensor is refused") {
  using vernier::AdamState;
  const auto refused = [](const torch::Tensor& data, AdamState kept_in, const std::string& why) {
    auto parameter = torch::ones({96, 64}).requires_grad_();
    AdamW optimizer(Parameters{parameter}, {.lr = 0.1, .state = kept_in});
    for (const bool is_changed : {false, true}) {
      if (is_changed) parameter.set_data(data);
      parameter.mutable_grad() = torch::ones(parameter.sizes());
      if (!is_changed) optimizer.step();
    }
    CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains(why.c_str()), Error);
  };
  refused(torch::ones({9, 9}), AdamState::full, "parameter 0 has the shape [9, 9] now, but had [96, 64] when");
  refused(torch::ones({96, 128}).slice(1, 0, 128, 2), AdamState::full,
          "parameter 0 has become a view with gaps or overlaps");
  refused(torch::ones({64, 96}).t(), AdamState::eight_bit, "parameter 0 has other strides than when");
}

TEST_CASE("optim: backward through weights from before the step is refused") {
  const auto parameters = make_parameters();
  SGD optimizer(parameters);
  set_gradients(parameters, 0);
  const auto loss = (parameters[0] * parameters[0]).sum();
  optimizer.step();
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("modified by an inplace operation"), c10::Error);
}

TEST_CASE("optim: gradients that the kernels cannot take are refused before any change") {
  const auto refused = [](const torch::Tensor& gradient, const std::string& why) {
    const auto parameters = make_parameters();
    AdamW optimizer(parameters);
    set_gradients(parameters, 0);
    optimizer.step();
    const auto weights = copies(parameters);
    const auto state = copies(optimizer.state_dict().tensors);
    set_gradients(parameters, 1);
    parameters[1].mutable_grad() = gradient;
    CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains(why.c_str()), Error);
    CHECK(same_bits(weights, parameters));
    CHECK(same_bits(state, optimizer.state_dict().tensors));
    set_gradients(parameters, 1);
    optimizer.step();  // and it goes on
  };
  refused(torch::ones({7}, at::kBFloat16), "the gradient of parameter 1 is CPUBFloat16Type [7] on cpu");
  refused(torch::ones({8}), "the gradient of parameter 1 is CPUFloatType [8]");
  refused(torch::ones({7}).to_sparse(), "the gradient of parameter 1 is sparse");
  refused(torch::ones({7}, at::kComplexFloat), "ComplexFloat");
}

TEST_CASE("optim: parameters and options that make no sense are refused") {
  const auto good = torch::ones({3}).requires_grad_();
  const auto refused = [](const auto& make, const char* why) {
    CHECK_THROWS_WITH_AS(make(), doctest::Contains(why), Error);
  };
  refused([&] { AdamW(Parameters{}); }, "given no parameters");
  refused([&] { AdamW(Parameters{good, good}); }, "parameter 1 is given to the optimizer twice");
  refused([&] { AdamW(Parameters{good, good * 2}); }, "parameter 1 cannot be optimized: it is not a leaf");
  refused([&] { AdamW(Parameters{torch::Tensor()}); }, "parameter 0 cannot be optimized: it is undefined");
  refused([&] { AdamW(Parameters{torch::ones({3}, at::kComplexFloat)}); }, "of dtype ComplexFloat");
  refused([&] { AdamW(Parameters{torch::ones({3}, at::kLong)}); }, "of dtype Long");
  refused([&] { AdamW(Parameters{torch::ones({3}).to_sparse()}); }, "sparse");
  refused([&] { AdamW(Parameters{torch::ones({4, 4}).slice(1, 0, 2)}); }, "a view with gaps");
  refused([&] { AdamW(Parameters{good}, {.lr = -1}); }, "lr = -1 is out of range: it must be at least 0");
  refused([&] { AdamW(Parameters{good}, {.beta1 = 1}); }, "beta1 = 1");
  refused([&] { Adam(Parameters{good}, {.beta2 = -0.1}); }, "beta2");
  refused([&] { Adam(Parameters{good}, {.eps = -1}); }, "eps");
  refused([&] { Adam(Parameters{good}, {.weight_decay = NAN}); }, "weight_decay");
  refused([&] { SGD(Parameters{good}, {.momentum = -1}); }, "momentum");
  refused([&] { SGD(Parameters{good}, {.nesterov = true}); }, "Nesterov momentum needs");
}

TEST_CASE("optim: after load() the next steps are the same, bit for bit") {
  for (const auto& make : all_kinds()) {
    const auto parameters = make_parameters();
    const auto optimizer = make(parameters);
    for (int step = 0; step < 5; ++step) {
      set_gradients(parameters, step, 4);
      optimizer->step();
    }
    vernier::State state;
    state.tensors = copies(optimizer->state_dict().tensors);

    Parameters resumed = copies(parameters);
    for (auto& parameter : resumed) parameter.requires_grad_();
    const auto other = make(resumed);
    set_gradients(resumed, 77);  // a state from before, to be replaced
    other->step(torch::ones({}));
    other->load_state_dict(state);
    CHECK(same_bits(other->state_dict().tensors, state.tensors));
    for (int step = 5; step < 15; ++step) {
      set_gradients(parameters, step, 4);
      set_gradients(resumed, step, 4);
      optimizer->step();
      other->step();
    }
    CHECK(same_bits(parameters, resumed));
  }
}

TEST_CASE("optim: a state of another optimizer is refused before any change") {
  const auto parameters = make_parameters();
  AdamW optimizer(parameters);
  set_gradients(parameters, 0);
  optimizer.step();
  vernier::State own;
  own.tensors = copies(optimizer.state_dict().tensors);
  const auto refused = [&](const vernier::State& state, const char* why) {
    CHECK_THROWS_WITH_AS(optimizer.load_state_dict(state), doctest::Contains(why), Error);
    CHECK(same_bits(own.tensors, optimizer.state_dict().tensors));
  };
  refused({}, "has no 'parameters'");
  auto other = own;
  other.put("parameters", std::int64_t{5});
  refused(other, "is of 5 parameters, the optimizer has 4");
  other = own;
  other.tensors["3/exp_avg"] = torch::zeros({4, 3, 2});
  refused(other, "'3/exp_avg' as CPUFloatType [4, 3, 2] on cpu, the optimizer as CPUFloatType [2, 3, 4] on cpu");
  other = own;
  other.tensors["1/step"] = other.tensors["1/step"].to(at::kDouble);
  refused(other, "'1/step' as CPUDoubleType");
  other = own;
  other.tensors.erase("2/exp_avg_sq");
  refused(other, "has no '2/exp_avg_sq'");
  other = own;
  other.tensors["0/momentum_buffer"] = torch::zeros({5, 7});
  refused(other, "has '0/momentum_buffer', which this optimizer does not keep");
}

// As torch.optim.Optimizer.load_state_dict does.
TEST_CASE("optim: a state is loaded into the dtypes of the parameters, counts as they are") {
  auto weights = std::vector{torch::ones({3}).requires_grad_()};
  AdamW full(weights);
  weights[0].mutable_grad() = torch::tensor({0.1F, -0.3F, 7.0F});
  full.step();
  AdamW half(std::vector{torch::ones({3}, at::kBFloat16).requires_grad_()});
  half.load_state_dict(full.state_dict());
  const auto before = full.state_dict(), after = half.state_dict();
  for (const char* slot : {"0/exp_avg", "0/exp_avg_sq"}) {
    CHECK((after.tensor(slot).scalar_type() == at::kBFloat16));
    CHECK(after.tensor(slot).equal(before.tensor(slot).to(at::kBFloat16)));
  }
  CHECK(after.tensor("0/step").equal(before.tensor("0/step")));
}

namespace {

struct OracleCase {
  const char* name;
  MakeOurs make;
  bool schedule = false;
};

Parameters like(const torch::Tensor& flat) {
  Parameters parameters;
  std::int64_t at = 0;
  for (const auto& shape : {std::vector<std::int64_t>{}, {1}, {7}, {3, 5}, {2, 3, 4}, {17, 33}}) {
    const auto size = c10::multiply_integers(shape);
    parameters.push_back(flat.slice(0, at, at + size).view(shape).clone());
    at += size;
  }
  return parameters;
}

torch::Tensor flat(const Parameters& tensors) {
  Parameters parts;
  for (const auto& tensor : tensors) parts.push_back(tensor.detach().flatten());
  return torch::cat(parts);
}

void check_recorded(const Oracle& oracle, const std::string& recorded, const FusedOptimizer& optimizer) {
  CHECK((flat(optimizer.parameters()) - oracle[recorded + "parameters"]).abs().max().item<double>() <= 5e-6);
  const auto state = optimizer.state_dict();
  for (const char* name : {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "step"}) {
    if (!oracle.has(recorded + name)) continue;
    Parameters parts;
    for (std::size_t i = 0; i < 6; ++i) parts.push_back(state.tensor(std::to_string(i) + "/" + name));
    CHECK((flat(parts) - oracle[recorded + name]).abs().max().item<double>() <= 5e-6);
  }
}

void repeat(const Oracle& oracle, const OracleCase& c) {
  CAPTURE(c.name);
  auto parameters = like(oracle["start"]);
  for (auto& parameter : parameters) parameter.requires_grad_();
  const auto target = like(oracle["target"]);
  const auto optimizer = c.make(parameters);
  for (int step = 1; step <= 100; ++step) {
    if (c.schedule) optimizer->set_lr(0.01 / (1.0 + 0.1 * (step - 1)));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = (parameters[i].detach() - target[i]) * (1 + 0.25 * ((step - 1) % 5));
    }
    optimizer->step();
    if (step == 1 || step == 10 || step == 100) {
      const auto when = "." + std::to_string(step) + ".";
      check_recorded(oracle, c.name + when, *optimizer);
      const auto& plain = oracle[c.name + (".plain" + when) + "parameters"];  // a second opinion
      CHECK((flat(parameters) - plain).abs().max().item<double>() <= 5e-6);
    }
  }
}

}  // namespace

TEST_CASE("optim: 100 steps end where Python's do") {
  using WOptions = vernier::AdamWOptions;
  using Options = vernier::SGDOptions;
  const Oracle oracle("optimizers");
  for (const OracleCase& c : std::vector<OracleCase>{
           {"adamw", ours<AdamW>(WOptions{})},
           {"adamw_decay", ours<AdamW>(WOptions{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1})},
           {"adamw_amsgrad", ours<AdamW>(WOptions{.lr = 0.01, .amsgrad = true})},
           {"adamw_maximize", ours<AdamW>(WOptions{.lr = 0.01, .maximize = true})},
           {"adamw_schedule", ours<AdamW>(WOptions{.weight_decay = 0.1}), true},
           {"adam", ours<Adam>(vernier::AdamOptions{})},
           {"adam_l2", ours<Adam>(vernier::AdamOptions{.lr = 0.01, .weight_decay = 0.1})},
           {"sgd", ours<SGD>(Options{.lr = 0.01})},
           {"sgd_l2", ours<SGD>(Options{.lr = 0.01, .weight_decay = 0.1})},
           {"sgd_momentum", ours<SGD>(Options{.lr = 0.01, .momentum = 0.9})},
           {"sgd_dampening", ours<SGD>(Options{.lr = 0.01, .momentum = 0.9, .dampening = 0.3})},
           {"sgd_nesterov", ours<SGD>(Options{.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true})},
           {"sgd_schedule", ours<SGD>(Options{.momentum = 0.9}), true}}) {
    repeat(oracle, c);
  }
}

}  // namespace optim_test
