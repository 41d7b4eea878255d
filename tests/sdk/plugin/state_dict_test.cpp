// state_dict() and load_state_dict(): of modules, of LibTorch's optimizers, and of a whole loop.
#include <doctest/doctest.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/error.h>
#include <vernier/optim.h>
#include <vernier/safetensors.h>

#include <filesystem>
#include <functional>
#include <memory>

#include "../../../examples/own_loop/train.h"
#include "same_tensors.h"
#include "temporary_folder.h"

namespace state_dict_test {

namespace nn = torch::nn;
namespace optim = torch::optim;
using vernier::Error;
using vernier::State;

namespace {

nn::Sequential make_model(std::uint64_t seed) {
  torch::manual_seed(seed);
  return nn::Sequential(nn::BatchNorm1d(16), nn::Linear(16, 24), nn::ReLU(), nn::Dropout(0.2), nn::Linear(24, 4));
}

State copy_of(const State& state) {
  State copy;
  for (const auto& [name, tensor] : state.tensors) copy.put(name, tensor.clone());
  return copy;
}

// Through the disk.
State written(const State& state) {
  const TemporaryFolder folder;
  vernier::write_checkpoint(folder / "step-00000001", {}, {}, state);
  return vernier::read_checkpoint(folder / "step-00000001").state;
}

// The toolkit's loop in one process for each of `ends`: each begins with other weights and other random numbers, and
// goes on from the newest checkpoint. Returns the last checkpoint.
vernier::StoredCheckpoint train_in_parts(const std::vector<std::int64_t>& ends) {
  torch::manual_seed(1);
  const auto inputs = torch::randn({500, 16});
  const auto labels = inputs.matmul(torch::randn({16, 4})).argmax(1);
  const TemporaryFolder folder;
  std::uint64_t seed = 2;
  for (const auto end : ends) {
    auto model = make_model(seed++);
    train(model, inputs, labels, torch::kCPU, end, folder.path());
  }
  return vernier::read_checkpoint(vernier::checkpoints_in(folder.path()).front());
}

using Weights = std::vector<torch::Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const Weights&, double lr)>;

template <class Optimizer, class Options>
MakeOptimizer with(Options options) {
  return [options](const Weights& weights, double lr) {
    auto own = options;
    own.lr(lr);
    return std::make_unique<Optimizer>(weights, own);
  };
}

Weights make_weights() {
  torch::manual_seed(3);
  return {torch::randn({4, 5}).requires_grad_(), torch::randn({7}).requires_grad_(), torch::randn({}).requires_grad_()};
}

void step(optim::Optimizer& optimizer, const Weights& weights, int number) {
  torch::manual_seed(100 + number);
  for (const auto& weight : weights) weight.mutable_grad() = torch::randn_like(weight);
  if (number < 3) weights[1].mutable_grad().reset();  // its state begins later
  optimizer.step();
}

void check_same(const Weights& a, const Weights& b) {
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(bytes_of(a[i].detach()) == bytes_of(b[i].detach()));
}

}  // namespace

TEST_CASE("state_dict: the toolkit's loop, stopped and resumed, ends as if it was never stopped, bit for bit") {
  const auto whole = train_in_parts({200});
  REQUIRE(whole.manifest.step == 200);
  REQUIRE(whole.state.part("average").integer("updates") == 200);
  REQUIRE(whole.state.part("sampler").integer("epoch") > 1);
  for (const auto& ends : {std::vector<std::int64_t>{50, 200}, {130, 200}, {70, 199, 200}, {50, 100, 150, 200}}) {
    const auto resumed = train_in_parts(ends);
    CHECK(resumed.manifest.step == 200);
    check_equal(resumed.model.tensors, whole.model.tensors);
    check_equal(resumed.state.tensors, whole.state.tensors);
  }
}

TEST_CASE("state_dict: a module's parameters and buffers, shared, come back into another module") {
  auto model = make_model(1), other = make_model(2);
  model->forward(torch::randn({8, 16}));  // moves the statistics
  const auto state = vernier::state_dict(*model);
  REQUIRE(state.tensors.size() == 9);
  CHECK(state.has("1.weight"));
  CHECK(state.integer("0.num_batches_tracked") == 1);
  for (const auto& [name, tensor] : state.tensors) CHECK_FALSE(tensor.requires_grad());
  CHECK(state.tensor("1.weight").const_data_ptr() == model->named_parameters()["1.weight"].const_data_ptr());

  const auto saved = written(state);
  vernier::load_state_dict(*other, saved);
  check_equal(vernier::state_dict(*other).tensors, state.tensors);
  CHECK(other->named_parameters()["1.weight"].requires_grad());
  CHECK(other->named_parameters()["1.weight"].is_leaf());
  other->to(torch::kHalf);
  vernier::load_state_dict(*other, saved);
  CHECK(torch::equal(vernier::state_dict(*other).tensor("1.bias"), state.tensor("1.bias").to(torch::kHalf)));
}

TEST_CASE("state_dict: a module refuses the state of another one, and keeps its own") {
  auto model = make_model(1);
  const auto good = copy_of(vernier::state_dict(*model));
  const auto refused = [&](const State& state, const char* why) {
    CHECK_THROWS_WITH_AS(vernier::load_state_dict(*model, state), why, Error);
    check_equal(vernier::state_dict(*model).tensors, good.tensors);
  };
  const auto others = copy_of(vernier::state_dict(*make_model(2)));
  auto state = others;
  state.tensors.erase("4.bias");
  refused(state, "the saved state has no '4.bias', which the module has");
  state = others;
  state.put("5.weight", torch::ones({2}));
  refused(state, "the saved state has '5.weight', which the module does not have");
  state = others;
  state.put("4.bias", torch::ones({5}));
  refused(state, "the saved state has '4.bias' as [5], the module as [4]");
}

TEST_CASE("state_dict: LibTorch's optimizers, written and loaded at any step, take the same next steps") {
  const std::vector<MakeOptimizer> all = {
      with<optim::SGD>(optim::SGDOptions(1).momentum(0.9).nesterov(true)),
      with<optim::SGD>(optim::SGDOptions(1)),
      with<optim::Adam>(optim::AdamOptions().amsgrad(true).betas({0.8, 0.99})),
      with<optim::AdamW>(optim::AdamWOptions().weight_decay(0.1)),
      with<optim::RMSprop>(optim::RMSpropOptions().momentum(0.5).centered(true)),
      with<optim::Adagrad>(optim::AdagradOptions().lr_decay(0.01)),
  };
  for (std::size_t kind = 0; kind < all.size(); ++kind) {
    for (const int saved_after : {0, 2, 5}) {
      CAPTURE(kind);
      CAPTURE(saved_after);
      const auto weights = make_weights();
      const auto optimizer = all[kind](weights, 0.01);
      for (int n = 0; n < saved_after; ++n) step(*optimizer, weights, n);
      Weights copies;
      for (const auto& weight : weights) copies.push_back(weight.detach().clone().requires_grad_());
      const auto other = all[kind](copies, 0.5);  // another learning rate and, from a step, another state
      step(*other, copies, 50);
      for (std::size_t i = 0; i < 3; ++i) copies[i].set_data(weights[i].detach().clone());
      vernier::load_state_dict(*other, written(vernier::state_dict(*optimizer)));
      for (int n = saved_after; n < saved_after + 6; ++n) {
        step(*optimizer, weights, n);
        step(*other, copies, n);
        check_same(weights, copies);
      }
    }
  }
}

TEST_CASE("state_dict: an optimizer refuses the state of another one, and keeps its own") {
  const auto weights = make_weights(), others = make_weights();
  optim::AdamW optimizer(weights, optim::AdamWOptions(0.01)), same(others, optim::AdamWOptions(0.01));
  step(optimizer, weights, 5);
  step(same, others, 5);
  const auto refused = [&](const State& state, const char* why) {
    CHECK_THROWS_WITH_AS(vernier::load_state_dict(optimizer, state), doctest::Contains(why), Error);
  };
  refused({}, "has no 'class'");
  refused(vernier::state_dict(optim::Adam(make_weights(), optim::AdamOptions(0.01))),
          "the saved state is of torch::optim::Adam, this optimizer is torch::optim::AdamW");
  auto fewer = make_weights();
  fewer.pop_back();
  refused(vernier::state_dict(optim::AdamW(fewer, optim::AdamWOptions(0.01))), "in other groups or of other shapes");
  auto state = vernier::state_dict(same);
  const auto archive = state.text("archive");
  state.put("archive", archive.substr(0, archive.size() / 2));
  refused(state, "cannot be read");
  for (int n = 6; n < 9; ++n) {
    step(optimizer, weights, n);
    step(same, others, n);
    check_same(weights, others);
  }
}

TEST_CASE("state_dict: the learning rates of a fused optimizer come back, for each group") {
  const auto weights = make_weights();
  using Group = vernier::AdamW::Group;
  const std::vector<Group> groups = {Group{{weights[0]}, {.lr = 0.1}}, Group{{weights[1]}, {.lr = 0.2}}};
  vernier::AdamW optimizer(groups), other(groups);
  optimizer.set_lr(0.3, 1);
  const auto state = written(optimizer.state_dict());
  CHECK(state.real("param_groups/1/lr") == 0.3);
  other.load_state_dict(state);
  CHECK(other.lr(0) == 0.1);
  CHECK(other.lr(1) == 0.3);
  vernier::AdamW one(Weights{weights[0], weights[1]}, {.lr = 0.7});
  CHECK_THROWS_WITH_AS(one.load_state_dict(state), doctest::Contains("'param_groups/1/lr'"), Error);
  CHECK_THROWS_WITH_AS(other.load_state_dict(one.state_dict()), doctest::Contains("'param_groups/1/lr'"), Error);
  CHECK(one.lr() == 0.7);
  CHECK(other.lr(0) == 0.1);
}

}  // namespace state_dict_test
