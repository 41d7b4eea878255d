// All rules but Adam's and SGD's.
#include <ATen/Parallel.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>
#include <vernier/error.h>
#include <vernier/optim.h>

#include <functional>
#include <memory>
#include <string>

#include "optim/formula.h"
#include "oracle.h"

namespace optim_rules_test {

using vernier::FusedOptimizer;
using Parameters = std::vector<torch::Tensor>;

namespace {

using ::same_bits;

struct Threads {
  explicit Threads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
  int before;
};

Parameters random_parameters(const std::vector<std::vector<std::int64_t>>& shapes, at::ScalarType dtype) {
  torch::manual_seed(5);
  Parameters parameters;
  for (const auto& shape : shapes) {
    parameters.push_back(torch::randn(shape, torch::kDouble).to(dtype).requires_grad_());
  }
  return parameters;
}

// The same for the same step and shapes. In every third step, every other parameter has none.
void set_gradients(const Parameters& parameters, int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto gradient = torch::randn(parameters[i].sizes(), torch::kDouble).to(parameters[i].scalar_type());
    parameters[i].mutable_grad() = step % 3 == 2 && i % 2 == 0 ? torch::Tensor() : gradient;
  }
}

using Make = std::function<std::unique_ptr<FusedOptimizer>(Parameters)>;

template <class Optimizer, class Options>
Make ours(Options options) {
  return [options](Parameters parameters) { return std::make_unique<Optimizer>(std::move(parameters), options); };
}

struct Named {
  std::string name;
  Make make;
};

std::vector<Named> all_rules() {
  return {{"RMSprop", ours<vernier::RMSprop>(vernier::RMSpropOptions{.weight_decay = 0.1})},
          {"RMSprop with momentum",
           ours<vernier::RMSprop>(vernier::RMSpropOptions{.eps = 1e-3, .momentum = 0.9, .centered = true})},
          {"Adagrad", ours<vernier::Adagrad>(vernier::AdagradOptions{.lr_decay = 0.1, .weight_decay = 0.1})},
          {"Lion", ours<vernier::Lion>(vernier::LionOptions{.weight_decay = 0.1})},
          {"LAMB", ours<vernier::Lamb>(vernier::LambOptions{})},
          {"Adafactor", ours<vernier::Adafactor>(vernier::AdafactorOptions{.weight_decay = 0.1})},
          {"Muon", ours<vernier::Muon>(vernier::MuonOptions{})},
          {"Adadelta", ours<vernier::Adadelta>(vernier::AdadeltaOptions{.weight_decay = 0.1})},
          {"NAdam", ours<vernier::NAdam>(vernier::NAdamOptions{})},
          {"RAdam", ours<vernier::RAdam>(vernier::RAdamOptions{.beta2 = 0.9})},
          {"Adamax", ours<vernier::Adamax>(vernier::AdamaxOptions{})},
          {"Rprop", ours<vernier::Rprop>(vernier::RpropOptions{})},
          {"ASGD", ours<vernier::ASGD>(vernier::ASGDOptions{.lambd = 0.1, .t0 = 2})}};
}

// Returns the weights after some steps.
Parameters trained(const Make& make, const std::vector<std::vector<std::int64_t>>& shapes, at::ScalarType dtype,
                   int steps) {
  const auto parameters = random_parameters(shapes, dtype);
  const auto optimizer = make(parameters);
  for (int step = 0; step < steps; ++step) {
    set_gradients(parameters, step);
    optimizer->step();
  }
  return parameters;
}

double largest_difference(const Parameters& a, const Parameters& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, (a[i].to(at::kDouble) - b[i].to(at::kDouble)).abs().max().item<double>());
  }
  return largest;
}

const std::vector<std::vector<std::int64_t>> small = {{5, 7}, {7}, {}, {2, 3, 4}, {1, 6}};

// The largest difference of a weight after 100 steps.
template <class Reference, class Options>
double drift(const Make& make, const Options& options, at::ScalarType dtype) {
  const auto parameters = random_parameters(small, dtype);
  Reference reference(parameters, options);
  for (int step = 0; step < 100; ++step) {
    set_gradients(parameters, step);
    reference.step();
  }
  return largest_difference(trained(make, small, dtype, 100), parameters);
}

}  // namespace

TEST_CASE("optim: RMSprop and Adagrad follow torch::optim") {
  using Theirs = torch::optim::RMSpropOptions;
  struct Case {
    vernier::RMSpropOptions own;
    Theirs theirs;
  };
  for (const auto& [own, theirs] : {Case{{}, Theirs(0.01)},
                                    Case{{.lr = 0.02, .alpha = 0.9, .eps = 1e-4, .weight_decay = 0.1, .momentum = 0.9},
                                         Theirs(0.02).alpha(0.9).eps(1e-4).weight_decay(0.1).momentum(0.9)},
                                    Case{{.eps = 1e-3, .centered = true}, Theirs(0.01).eps(1e-3).centered(true)}}) {
    const auto make = ours<vernier::RMSprop>(own);
    CHECK(drift<torch::optim::RMSprop>(make, theirs, at::kDouble) <= 1e-12);
    CHECK(drift<torch::optim::RMSprop>(make, theirs, at::kFloat) <= 2e-6);
  }
  const auto make = ours<vernier::Adagrad>(
      vernier::AdagradOptions{.lr = 0.1, .lr_decay = 0.01, .weight_decay = 0.1, .initial_accumulator_value = 0.5});
  const auto theirs = torch::optim::AdagradOptions(0.1).lr_decay(0.01).weight_decay(0.1).initial_accumulator_value(0.5);
  CHECK(drift<torch::optim::Adagrad>(make, theirs, at::kDouble) <= 1e-12);
  CHECK(drift<torch::optim::Adagrad>(make, theirs, at::kFloat) <= 2e-6);
}

TEST_CASE("optim: one step of each rule has the numbers of its formula") {
  const auto step = [](const Make& make, double gradient) {
    auto weight = torch::full({2, 3}, 2.0).requires_grad_();
    const auto optimizer = make({weight});
    weight.mutable_grad() = torch::full({2, 3}, gradient);
    optimizer->step();
    CHECK(weight.eq(weight[0][0]).all().item<bool>());
    return weight[0][0].item<double>();
  };
  using doctest::Approx;
  const vernier::LionOptions lion{.lr = 0.5, .weight_decay = 0.1};
  CHECK(step(ours<vernier::Lion>(lion), 3) == Approx(2 * 0.95 - 0.5));
  CHECK(step(ours<vernier::Lion>(lion), -3) == Approx(2 * 0.95 + 0.5));
  CHECK(step(ours<vernier::Lion>(lion), 0) == Approx(2 * 0.95));
  vernier::LambOptions lamb{.lr = 0.1, .eps = 0, .weight_decay = 0.5};  // Adam's first step is the sign
  CHECK(step(ours<vernier::Lamb>(lamb), 3) == Approx(2 - 0.1 * 2));     // 1 + 0.5 * 2, scaled to 2
  lamb.trust_ratio = false;
  CHECK(step(ours<vernier::Lamb>(lamb), 3) == Approx(2 - 0.1 * 2));
  lamb.weight_decay = 0;
  CHECK(step(ours<vernier::Lamb>(lamb), 3) == Approx(2 - 0.1));
  lamb.trust_ratio = true;
  CHECK(step(ours<vernier::Lamb>(lamb), 3) == Approx(2 - 0.1 * 2));
  CHECK(step(ours<vernier::Adafactor>(vernier::AdafactorOptions{.lr = 0.01}), 5) == Approx(2 - 0.01 * 2));
  CHECK(step(ours<vernier::Adafactor>(vernier::AdafactorOptions{.lr = 0.01, .weight_decay = 0.5}), 5) ==
        Approx(2 * 0.995 - 0.01 * 2));
}

// On the host in float32, RMSprop, Adagrad and Lion have a kernel; in float64 they are formulas of operators.
TEST_CASE("optim: each rule gives the same in float32 as in float64, and in 16 bits up to their rounding") {
  const std::vector<std::vector<std::int64_t>> shapes = {{64, 96}, {9000}, {3}, {}};
  for (const auto& [name, make] : all_rules()) {
    CAPTURE(name);
    const auto exact = trained(make, shapes, at::kDouble, 5);
    const bool is_bfloat16 = name == "Muon";  // in its iterations
    CHECK(largest_difference(trained(make, shapes, at::kFloat, 5), exact) <= (is_bfloat16 ? 1e-4 : 2e-6));
    const auto rounded = trained(make, shapes, at::kBFloat16, 5);
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK((rounded[i].detach() - exact[i].detach()).abs().mean().item<double>() <= 0.02);
    }
  }
}

TEST_CASE("optim: the bits of each rule do not depend on the number of threads") {
  const std::vector<std::vector<std::int64_t>> shapes = {{300, 200}, {70000}, {200, 500}, {3, 40000}, {5}, {}};
  for (const auto& [name, make] : all_rules()) {
    CAPTURE(name);
    const auto with = [&, &make = make](int threads) {
      const Threads some(threads);
      return trained(make, shapes, at::kFloat, 4);
    };
    const auto one = with(1);
    for (const int threads : {2, 3}) {
      const auto several = with(threads);
      for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i].detach(), several[i].detach()));
    }
  }
}

// On a GPU only the device knows whether an update is skipped.
TEST_CASE("optim: a formula changes nothing where found_inf is set on the device, and is given divided gradients") {
  const vernier::Formula formula = [](vernier::FormulaUpdate& update, double lr) {
    update.slots[0] = update.slots[0] + update.gradient;
    update.parameter = update.parameter - lr * update.step * update.slots[0];
  };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf}) {
    for (const float found_inf : {0.0F, 1.0F}) {
      const vernier::UpdateLists lists{{torch::full({3}, 8, dtype), torch::full({}, 16, dtype)},
                                       {torch::full({3}, 6, dtype), torch::full({}, 6, dtype)},
                                       {torch::full({}, 2.0F), torch::full({}, 4.0F)},
                                       {{torch::ones({3}, dtype), torch::ones({}, dtype)}},
                                       {0, 1}};
      vernier::apply_formula(lists, formula, 0.5, torch::full({}, 2.0F), torch::full({}, found_inf));
      const bool is_skipped = found_inf != 0;
      CHECK(lists.slots[0][0].eq(is_skipped ? 1 : 4).all().item<bool>());
      CHECK(lists.parameters[0].eq(is_skipped ? 8 : 4).all().item<bool>());
      CHECK(lists.parameters[1].eq(is_skipped ? 16 : 8).all().item<bool>());
      CHECK((lists.parameters[0].scalar_type() == dtype));
    }
  }
}

TEST_CASE("optim: what a formula throws reaches the caller, from any thread") {
  const Threads two(2);
  const vernier::UpdateLists lists{
      {torch::ones({3}), torch::ones({3})}, {torch::ones({3}), torch::ones({3})}, {}, {}, {}};
  const vernier::Formula formula = [](vernier::FormulaUpdate&, double) { throw vernier::Error("boom"); };
  CHECK_THROWS_WITH_AS(vernier::apply_formula(lists, formula, 0.5, {}, {}), "boom", vernier::Error);
}

TEST_CASE("optim: channels_last weights are updated as contiguous ones") {
  for (const auto& [name, make] : all_rules()) {
    CAPTURE(name);
    torch::manual_seed(1);
    const auto weight = torch::randn({4, 3, 5, 5}), gradient = torch::randn({4, 3, 5, 5});
    auto plain = weight.clone().requires_grad_();
    auto last = weight.contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    const auto a = make({plain}), b = make({last});
    for (int step = 0; step < 3; ++step) {
      plain.mutable_grad() = gradient.clone();
      last.mutable_grad() = gradient.clone();
      a->step();
      b->step();
    }
    CHECK(largest_difference({plain}, {last}) <= 1e-6);
  }
}

TEST_CASE("optim: RMSprop with a constant gradient, whose variance rounds below 0, stays finite") {
  auto weight = torch::zeros({64}).requires_grad_();
  vernier::RMSprop optimizer({weight}, {.alpha = 0.5, .centered = true});
  for (int step = 0; step < 60; ++step) {
    weight.mutable_grad() = torch::linspace(0.1, 1, 64);
    optimizer.step();
  }
  CHECK(weight.isfinite().all().item<bool>());
}

TEST_CASE("optim: Muon makes matrices orthogonal, and leaves the others to AdamW") {
  torch::manual_seed(1);
  Parameters parameters = {torch::zeros({40, 8}), torch::zeros({8}), torch::zeros({2, 3, 4}), torch::zeros({4, 8})};
  for (auto& parameter : parameters) {
    parameter.requires_grad_();
    parameter.mutable_grad() = torch::randn(parameter.sizes());
  }
  vernier::MuonOptions muon{.lr = 1, .weight_decay = 0, .adamw_lr = 0.25}, adamw = muon;
  adamw.adamw = true;
  const std::vector<vernier::Muon::Group> groups{{{parameters[0], parameters[1], parameters[2]}, muon},
                                                 {{parameters[3]}, adamw}};
  vernier::Muon optimizer(groups);
  optimizer.step();
  const auto update = parameters[0].detach() / std::sqrt(40.0 / 8);
  const auto singular = std::get<1>(at::linalg_svd(update));
  CHECK(singular.min().item<double>() > 0.5);
  CHECK(singular.max().item<double>() < 1.5);
  for (const std::size_t i : {1, 2, 3}) {
    CHECK(torch::allclose(parameters[i], -0.25 * parameters[i].grad().sign(), 1e-4, 1e-4));
  }
  const auto state = optimizer.state_dict();
  CHECK(state.has("0/momentum_buffer"));
  for (const char* entry : {"1/exp_avg", "2/exp_avg_sq", "3/step"}) CHECK(state.has(entry));
  const auto before = parameters[3].detach().clone();
  optimizer.set_lr(0.5);  // AdamW's is halved with it
  optimizer.step();
  CHECK((parameters[3].detach() - before).abs().max().item<double>() == doctest::Approx(0.125).epsilon(1e-3));
}

TEST_CASE("optim: Adafactor keeps rows and columns of matrices, and each element of the rest") {
  Parameters parameters = {torch::ones({5, 7}), torch::ones({2, 5, 7}), torch::ones({9})};
  for (auto& parameter : parameters) {
    parameter.requires_grad_();
    parameter.mutable_grad() = torch::ones_like(parameter.detach());
  }
  vernier::Adafactor optimizer(parameters);
  optimizer.step();
  const auto state = optimizer.state_dict();
  const std::vector<std::pair<const char*, std::vector<std::int64_t>>> expected = {{"0/row_var", {5, 1}},
                                                                                   {"0/col_var", {1, 7}},
                                                                                   {"1/row_var", {2, 5, 1}},
                                                                                   {"1/col_var", {2, 1, 7}},
                                                                                   {"2/variance", {9}}};
  for (const auto& [entry, sizes] : expected) CHECK(state.tensor(entry).sizes().vec() == sizes);
  CHECK_FALSE(state.has("0/variance"));
}

TEST_CASE("optim: options of these rules that are out of range are refused") {
  const Parameters good = {torch::ones({3, 3}).requires_grad_()};
  const auto refused = [&]<class Options>(const Options& options, const char* why) {
    CHECK_THROWS_WITH_AS(vernier::Fused<Options>(good, options), doctest::Contains(why), vernier::Error);
  };
  refused(vernier::RMSpropOptions{.alpha = 1}, "alpha = 1 is out of range: it must be at least 0 and below 1");
  refused(vernier::RMSpropOptions{.momentum = -1}, "momentum");
  refused(vernier::AdagradOptions{.lr_decay = -1}, "lr_decay");
  refused(vernier::AdagradOptions{.initial_accumulator_value = -1}, "initial_accumulator_value");
  refused(vernier::LionOptions{.beta1 = 1}, "beta1");
  refused(vernier::LambOptions{.eps = -1}, "eps");
  refused(vernier::AdafactorOptions{.beta2_decay = 0.5}, "beta2_decay");
  refused(vernier::AdafactorOptions{.clipping_threshold = 0.5}, "clipping_threshold");
  refused(vernier::AdadeltaOptions{.rho = 2}, "rho = 2 is out of range: it must be 0 to 1");
  refused(vernier::NAdamOptions{.momentum_decay = -1}, "momentum_decay");
  refused(vernier::RAdamOptions{.beta2 = 1}, "beta2");
  refused(vernier::AdamaxOptions{.eps = -1}, "eps");
  refused(vernier::RpropOptions{.lr = 0}, "lr = 0 is out of range: it must be above 0");
  refused(vernier::RpropOptions{.eta_plus = 1}, "eta_plus");
  refused(vernier::RpropOptions{.step_min = 1, .step_max = 0.5}, "step_max");
  refused(vernier::ASGDOptions{.t0 = -1}, "t0");
  refused(vernier::MuonOptions{.lr = 0}, "lr = 0 is out of range: it must be above 0");
  refused(vernier::MuonOptions{.ns_steps = 100}, "ns_steps = 100 is out of range: it must be 1 to 99");
}

}  // namespace optim_rules_test
