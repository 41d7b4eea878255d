// The backward pass without LibTorch's engine around each node: against loss.backward().
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/unbind.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>
#include <vernier/activation_checkpoint.h>
#include <vernier/fused_kernels.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/backward.h"
#include "fused_choice.h"

namespace backward_test {

namespace {

using Leaves = std::vector<torch::Tensor>;

// The node that calls the nodes now, and the order in which leaves get their gradients.
std::string caller;
std::vector<std::size_t> order;

struct Seen : torch::autograd::Function<Seen> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    caller = torch::autograd::get_current_node()->name();
    return {gradients[0]};
  }
};

struct Failing : torch::autograd::Function<Failing> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0].view({7, 7})};
  }
};

struct WrongShape : torch::autograd::Function<WrongShape> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0].new_ones({3, 5})};
  }
};

class Order final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Order(std::size_t leaf) : leaf_(leaf) {}
  void operator()(const torch::autograd::Variable&) override { order.push_back(leaf_); }

 private:
  std::size_t leaf_;
};

struct Case {
  const char* name;
  std::function<torch::Tensor(Leaves&)> loss;  // three leaves are given, [4, 4] each
  bool needs_engine = false;
};

std::vector<Case> cases() {
  const auto classes = torch::tensor({0, 3, 1, 1});
  return {
      {"products",
       [=](Leaves& of) {
         return at::cross_entropy_loss(at::linear(at::linear(of[0], of[1], of[2][0]).relu(), of[1]), classes);
       }},
      {"several uses of a result",
       [](Leaves& of) {
         const auto y = of[0] * of[1];
         return (y + y * of[2] + y.exp() + y.t()).mean();
       }},
      {"several uses of a leaf", [](Leaves& of) { return (of[0] + of[0] * of[0] + of[0].mm(of[0]) * of[1]).sum(); }},
      {"gradients that share memory", [](Leaves& of) { return (of[0] + of[1] + of[2]).sum(); }},
      {"outputs without a gradient", [](Leaves& of) { return (of[0].unbind()[2] * of[1].unbind()[0]).sum(); }},
      {"a frozen leaf", [](Leaves& of) { return (of[0].mm(of[1].detach()) * of[2]).mean(); }},
      {"an embedding", [=](Leaves& of) { return at::embedding(of[0], classes).mul(of[1]).sum(); }},
      {"writes in place",
       [](Leaves& of) {
         auto y = of[0] * 2;
         y.select(0, 1).mul_(of[1][0]);
         return y.add_(of[2]).pow(2).mean();
       }},
      {"a checkpoint",
       [](Leaves& of) {
         const auto part = [&](const torch::Tensor& x) { return x.mm(of[1]).tanh() + of[1]; };
         return vernier::checkpoint(vernier::Keep::inputs, part, of[0] * of[2]).mean();
       }},
      {"float64 and float32", [](Leaves& of) { return (of[0].to(torch::kFloat64) * of[1] + of[2].exp()).mean(); }},
      {"a hook of a leaf",
       [](Leaves& of) {
         of[0].register_hook([](const torch::Tensor& gradient) { return gradient * 2; });
         return (of[0] * of[1]).mean();
       },
       true},
      {"a hook of a result",
       [](Leaves& of) {
         const auto y = of[0] * of[1];
         y.register_hook([](const torch::Tensor& gradient) { return gradient * 3; });
         return y.exp().mean();
       },
       true},
      {"a result that keeps its gradient",
       [](Leaves& of) {
         const auto y = of[0] * of[1];
         y.retain_grad();
         of.push_back(y);
         return y.exp().mean();
       },
       true},
      {"a backward that throws", [](Leaves& of) { return (Failing::apply(of[0] * of[1]) + of[2]).mean(); }},
      {"a gradient of another shape", [](Leaves& of) { return WrongShape::apply(of[0] * of[1]).mean(); }},
      {"a tensor that was written",
       [](Leaves& of) {
         auto y = of[0].exp();
         const auto loss = (y * of[1]).mean();
         y.add_(1);
         return loss;
       }},
      {"several numbers", [](Leaves& of) { return of[0] * of[1]; }, true},
      {"a leaf", [](Leaves& of) { return of[0].detach().sum().requires_grad_(); }, true},
      {"no graph", [](Leaves& of) { return of[0].detach().sum(); }, true},
  };
}

// All that can be seen of a backward pass, twice: gradients are added to those that are there.
struct Outcome {
  std::vector<torch::Tensor> gradients;
  std::vector<std::size_t> order;
  std::string error, caller;
};

Outcome outcome_of(const Case& each, const std::function<void(const torch::Tensor&)>& backward) {
  torch::manual_seed(1);
  order.clear();
  caller.clear();
  Outcome outcome;
  Leaves leaves;
  for (std::size_t i = 0; i < 3; ++i) {
    leaves.push_back(torch::randn({4, 4}).requires_grad_());
    torch::autograd::impl::set_post_acc_grad_hooks(leaves[i], std::make_unique<Order>(i));
  }
  try {
    torch::Tensor loss;
    for (int i = 0; i < 2; ++i) {
      loss = each.loss(leaves);
      if (loss.grad_fn() != nullptr) loss = Seen::apply(loss);
      backward(loss);
    }
    backward(loss);  // its graph is gone
  } catch (const std::exception& error) {
    outcome.error = std::string(error.what()).substr(0, 200);
  }
  for (const auto& leaf : leaves) outcome.gradients.push_back(leaf.grad());
  outcome.order = order;
  outcome.caller = caller;
  return outcome;
}

}  // namespace

TEST_CASE("backward: gradients, their order and errors are those of loss.backward()") {
  const fused_test::Fused on;
  for (const auto& each : cases()) {
    CAPTURE(each.name);
    const auto wanted = outcome_of(each, [](const torch::Tensor& loss) { loss.backward(); });
    const auto given = outcome_of(each, vernier::backward);
    CHECK(given.order == wanted.order);
    CHECK(given.error == wanted.error);
    REQUIRE(given.gradients.size() == wanted.gradients.size());
    for (std::size_t i = 0; i < given.gradients.size(); ++i) {
      REQUIRE(given.gradients[i].defined() == wanted.gradients[i].defined());
      if (given.gradients[i].defined()) CHECK(given.gradients[i].equal(wanted.gradients[i]));
    }
    CHECK(wanted.caller != "VernierWholeGraph");
    CHECK((given.caller == "VernierWholeGraph") == !each.needs_engine);
  }
}

TEST_CASE("backward: a node that nothing follows, as of a recording, sees and throws what it does in loss.backward()") {
  struct Alone final : torch::autograd::Node {
    torch::autograd::variable_list apply(torch::autograd::variable_list&& slopes) override {
      seen +=
          c10::str(slopes.at(0).item<double>(), at::GradMode::is_enabled() ? " with a graph, " : " without a graph, ",
                   torch::autograd::get_current_node() ? "in the engine\n" : "alone\n");
      if (fails) throw std::runtime_error("this node fails");
      return {};
    }
    std::string seen;
    bool fails = false;
  };
  const fused_test::Fused on;
  for (const bool has_hook : {false, true}) {
    CAPTURE(has_hook);
    const auto node = std::make_shared<Alone>();
    auto loss = torch::full({}, 3.0);
    torch::autograd::set_history(loss, node);
    if (has_hook) loss.register_hook([](const torch::Tensor& slope) { return slope * 2; });
    loss.backward();
    vernier::backward(loss);
    const std::string slope = has_hook ? "2" : "1", call = slope + " without a graph, ";
    CHECK(node->seen == call + "in the engine\n" + call + (has_hook ? "in the engine\n" : "alone\n"));
    node->fails = true;
    CHECK_THROWS_WITH_AS(vernier::backward(loss), doctest::Contains("this node fails"), std::runtime_error);
  }
}

TEST_CASE("backward: it is LibTorch's where the kernels of this library are not in use") {
  const auto loss_of = cases().front();
  const auto given = fused_test::plain([&] {
    (void)outcome_of(loss_of, vernier::backward);
    return torch::Tensor();
  });
  CHECK(!given.defined());
  CHECK(caller != "VernierWholeGraph");
}

}  // namespace backward_test
