// Adam's own pass on the host against LibTorch's kernel.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <vernier/optim.h>

#include <cmath>
#include <random>
#include <string>

#include "oracle.h"

namespace optim_adam_test {

namespace {

using Parameters = std::vector<torch::Tensor>;

struct Threads {
  explicit Threads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  int before;
};

// LibTorch's kernel with what it works on.
template <class Options>
struct Theirs {
  Theirs(const Parameters& like, Options options) : options(options) {
    for (const auto& each : like) {
      parameters.push_back(each.detach().clone());
      mean.push_back(at::zeros_like(each));
      square.push_back(at::zeros_like(each));
      steps.push_back(at::zeros({}, at::kFloat));
    }
  }
  void step(const Parameters& gradients, double lr, const std::optional<torch::Tensor>& grad_scale) {
    at::_foreach_add_(steps, 1);
    Parameters copies;
    for (const auto& gradient : gradients) copies.push_back(gradient.clone());
    const auto kernel = [&](auto&&... arguments) {
      if constexpr (std::is_same_v<Options, vernier::AdamWOptions>) {
        at::_fused_adamw_(arguments...);
      } else {
        at::_fused_adam_(arguments...);
      }
    };
    kernel(parameters, copies, mean, square, at::TensorList(), steps, lr, options.beta1, options.beta2,
           options.weight_decay, options.eps, false, options.maximize, grad_scale, std::nullopt);
  }
  Options options;
  Parameters parameters, mean, square, steps;
};

// Any layout that is dense.
torch::Tensor random_parameter(std::mt19937& random) {
  const auto draw = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(most));
  };
  switch (draw(4)) {
    case 0:
      return at::randn({draw(40)});  // none at all, too
    case 1:
      return at::randn({1 + draw(30000)});
    case 2:
      return at::randn({1 + draw(90), 1 + draw(90)}).t();
    default:
      return at::randn({1 + draw(5), 1 + draw(9), 1 + draw(9), 1 + draw(9)}).contiguous(at::MemoryFormat::ChannelsLast);
  }
}

torch::Tensor random_gradient(const torch::Tensor& like, std::mt19937& random) {
  auto gradient = at::randn_like(like);
  switch (random() % 6) {
    case 0:
      return gradient.mul_(1e-6);
    case 1:
      return gradient.mul_(1e-25);  // the squares are denormal, or 0
    case 2:
      return gradient.mul_(random() % 2 == 0 ? 1e12 : 1e22);  // the squares are large, or inf
    case 3:
      return gradient.masked_fill_(gradient.abs() < 0.5, 0);
    default:
      return gradient;
  }
}

template <class Options, class Optimizer>
void check_bits(unsigned seed, int threads) {
  CAPTURE(seed);
  std::mt19937 random(seed);
  torch::manual_seed(seed);
  const auto pick = [&](std::initializer_list<double> values) { return values.begin()[random() % values.size()]; };
  Options options;
  options.lr = pick({1e-3, 0.1, 3e-4});
  options.beta1 = pick({0.9, 0.9, 0.4, 0.0});  // one that keeps less than half of the mean takes another form
  options.beta2 = pick({0.999, 0.95, 0.5});
  options.eps = pick({1e-8, 1e-3, 0});
  options.weight_decay = pick({0, 0.01, 0.3});
  options.maximize = random() % 3 == 0;
  Parameters parameters;
  for (int i = 0; i < 5; ++i) parameters.push_back(random_parameter(random).requires_grad_());
  Theirs<Options> theirs(parameters, options);
  Optimizer ours(parameters, options);
  vernier::State started;  // anywhere in a run: each count of steps has bias corrections of its own
  started.put("parameters", static_cast<std::int64_t>(parameters.size()));
  started.put("param_groups/0/lr", options.lr);
  const auto count = at::full({}, static_cast<double>(random() % 2 == 0 ? 0 : random() % 20000), at::kFloat);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto number = std::to_string(i);
    theirs.steps[i].copy_(count);
    started.put(number + "/step", count.clone());
    started.put(number + "/exp_avg", theirs.mean[i].clone());
    started.put(number + "/exp_avg_sq", theirs.square[i].clone());
  }
  ours.load_state_dict(started);
  for (int step = 0; step < 4; ++step) {
    const double rate = options.lr / (1 + step);
    const bool scales = random() % 2 == 0;
    const auto grad_scale = scales ? std::optional(at::full({}, pick({65536, 3, 0.7}), at::kFloat)) : std::nullopt;
    Parameters gradients;
    for (const auto& parameter : parameters) {
      gradients.push_back(random_gradient(parameter.detach(), random));
      parameter.mutable_grad() = gradients.back().clone();
    }
    ours.set_lr(rate);
    {
      const Threads own(threads);
      ours.step({}, grad_scale.value_or(torch::Tensor()));
    }
    theirs.step(gradients, rate, grad_scale);
    const auto state = ours.state_dict();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto number = std::to_string(i);
      CAPTURE(parameters[i].sizes());
      CAPTURE(step);
      CHECK(same_bits(parameters[i].detach(), theirs.parameters[i]));
      CHECK(same_bits(state.tensor(number + "/exp_avg"), theirs.mean[i]));
      CHECK(same_bits(state.tensor(number + "/exp_avg_sq"), theirs.square[i]));
      CHECK(same_bits(parameters[i].grad(), gradients[i]));  // left as it is
    }
  }
}

}  // namespace

#if defined(__x86_64__)
TEST_CASE("optim: Adam on the host has the bits of LibTorch's kernel on one thread, on any number of its own") {
  const Threads one(1);
  for (unsigned seed = 0; seed < 60; ++seed) {
    check_bits<vernier::AdamWOptions, vernier::AdamW>(seed, seed % 2 == 0 ? 1 : 2);
    check_bits<vernier::AdamOptions, vernier::Adam>(1000 + seed, seed % 2 == 0 ? 2 : 1);
  }
}
#endif

TEST_CASE("optim: Adam spreads inf and nan as its formula says") {
  auto parameter = torch::ones({20}).requires_grad_();
  vernier::AdamW optimizer({parameter}, {.lr = 0.1});
  parameter.mutable_grad() = torch::ones({20});
  parameter.mutable_grad()[3] = NAN;
  parameter.mutable_grad()[17] = INFINITY;
  optimizer.step();
  const auto state = optimizer.state_dict();
  for (int i = 0; i < 20; ++i) {
    CHECK(std::isfinite(parameter[i].item<float>()) == (i != 3 && i != 17));
    CHECK(std::isfinite(state.tensor("0/exp_avg")[i].item<float>()) == (i != 3 && i != 17));
  }
}

}  // namespace optim_adam_test
