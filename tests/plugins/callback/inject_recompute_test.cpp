// Faults of callback/inject in layers that are computed again in backward.
#include <ATen/ops/linear.h>
#include <doctest/doctest.h>
#include <vernier/activation_checkpoint.h>
#include <vernier/host.h>

#include "flight.h"
#include "long_form.h"
#include "thrown.h"

namespace inject_recompute_test {

using vernier::Event;
using vernier::Run;

namespace {

// The results of each step: the loss, gradients and weights by name, and notices.
struct Seen {
  std::vector<torch::Tensor> losses;
  std::vector<vernier::Tensors> gradients, weights;
  std::vector<std::string> notices;
};

void listen(SmallRun& run, Seen& seen) {
  run.on(Event::GradientsReady, [&](Run& now) {
    seen.losses.push_back(now.loss.clone());
    for (auto* each : {&seen.gradients, &seen.weights}) each->emplace_back();
    for (const auto& parameter : now.parameters) {
      seen.gradients.back()[parameter.name] = parameter.master.grad().clone();
      seen.weights.back()[parameter.name] = parameter.best().detach().clone();
    }
  });
  run.on(Event::StepEnd, [&](Run& now) {
    for (const auto& notice : now.notices) {
      if (notice.name == "injected") seen.notices.push_back(c10::str(now.step, " ", notice.text()));
    }
  });
}

Seen train(const TemporaryFolder& folder, const std::string& recompute, const std::string& fault,
           const std::string& more = "") {
  SmallRun run(from_toml({flight::gpt(folder, 4, recompute) + "[accumulation]\nuse = 'fixed'\nmicro_batches = 2\n" +
                          "[[callback]]\nuse = 'inject'\n" + fault + more}));
  Seen seen;
  listen(run, seen);
  run.train();
  return seen;
}

// NaN has several; these runs compute the same one.
bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.reshape({-1}).view(torch::kByte).equal(b.reshape({-1}).view(torch::kByte));
}

bool equal(const vernier::Tensors& a, const vernier::Tensors& b) {
  return std::ranges::equal(
      a, b, [](const auto& x, const auto& y) { return x.first == y.first && same_bits(x.second, y.second); });
}

void check_equal(const Seen& a, const Seen& b) {
  CHECK(a.notices == b.notices);
  REQUIRE(a.losses.size() == b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(a.losses[i], b.losses[i]));
    CHECK(equal(a.gradients[i], b.gradients[i]));
    CHECK(equal(a.weights[i], b.weights[i]));
  }
}

// Loss and input's gradient of four blocks with one weight, of which all but one are computed again.
std::pair<torch::Tensor, torch::Tensor> of_four_calls(const std::string& where, int kept, bool recomputes) {
  SmallRun small(
      from_toml({"[run]\nsteps = 1\n[task]\nuse = 'mlp'\ninputs = 6\nhidden = [6]\n[optimizer]\nuse = 'sgd'\n"
                 "[checkpoint]\nuse = 'none'\n[[callback]]\nuse = 'inject'\nwhat = 'spike'\nfactor = 3\n"
                 "where = '" +
                 where + "'\nlayer = 'layers.0'\nat_step = 1\n"}));
  auto& run = small.run;
  const auto parameters = run.model->named_parameters();
  const auto block = [&](const torch::Tensor& x) {
    return torch::tanh(torch::linear(x, parameters["layers.0.weight"], parameters["layers.0.bias"]));
  };
  const auto input = torch::linspace(-1, 1, 12).reshape({2, 6}).requires_grad_();
  vernier::HostApi::emit(small.wiring->bus, Event::StepBegin, run);
  vernier::HostApi::emit(small.wiring->bus, Event::BatchReady, run);
  auto x = input;
  for (int i = 0; i < 4; ++i) x = recomputes && i != kept ? vernier::checkpoint(block, x) : block(x);
  run.micro_batch_loss = x.pow(2).mean();
  vernier::HostApi::emit(small.wiring->bus, Event::LossReady, run);
  run.micro_batch_loss.backward();
  vernier::HostApi::emit(small.wiring->bus, Event::GradientsReady, run);
  CHECK(run.notices.size() == 1);
  return {run.micro_batch_loss.detach(), input.grad()};
}

}  // namespace

TEST_CASE("inject: losses, gradients and weights have the same bits whatever is computed again" *
          doctest::test_suite("text")) {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> places{
      {"activation", "h.1.mlp.c_fc"},      {"activation", "h.0.attn.c_proj"},
      {"activation", "h.*.ln_2"},          {"activation_gradient", "h.1.mlp.c_fc"},
      {"activation_gradient", "h.*.ln_1"}, {"gradient", "h.0.mlp.c_fc"},
      {"weight", "h.1.mlp.c_proj"},        {"loss", ""}};
  const auto untouched = train(folder, "", "what = 'slow'\nmilliseconds = 0\nat_step = 2\n");
  std::size_t turn = 0;
  for (const std::string kind : {"nan", "spike", "underflow"}) {
    for (const auto& [where, layer] : places) {
      for (const std::string elements : {"", "elements = 3\n"}) {
        if (where == "loss" && !elements.empty()) continue;
        const auto fault = "what = '" + kind + "'\nwhere = '" + where + "'\nat_step = 2\n" + elements +
                           (layer.empty() ? "" : "layer = '" + layer + "'\n");
        CAPTURE(fault);
        ++turn;  // in the short form each fault is computed again in one way, for another kind in the other
        const auto none = train(folder, "", fault);
        CHECK(none.notices.size() == (layer.find('*') == std::string::npos ? 1 : 2));
        CHECK_FALSE(equal(none.gradients[1], untouched.gradients[1]));
        for (const std::string recompute : {"full", "selective"}) {
          if (!is_long() && (turn % 2 == 0) != (recompute == "full")) continue;
          CAPTURE(recompute);
          check_equal(train(folder, "recompute = '" + recompute + "'\n", fault), none);
        }
      }
    }
  }
}

TEST_CASE("inject: two faults in a block that is computed again, in 16 bits and with some blocks kept" *
          doctest::test_suite("text")) {
  const TemporaryFolder folder;
  const std::string first = "what = 'spike'\nwhere = 'activation'\nlayer = 'h.1.ln_1'\nat_step = 2\nelements = 5\n";
  const std::string second =
      "[[callback]]\nuse = 'inject'\nwhat = 'spike'\nwhere = 'activation_gradient'\nlayer = 'h.*.mlp.c_fc'\n"
      "at_step = 2\n";
  for (const std::string precision : {"", "[precision]\nuse = 'bf16'\n", "[precision]\nuse = 'fp8'\n"}) {
    CAPTURE(precision);
    const auto none = train(folder, "", first, second + precision);
    CHECK(none.notices.size() == 3);
    for (const std::string how : {"'full'", "'selective'", "'full'\nrecompute_every = 2"}) {
      CAPTURE(how);
      check_equal(train(folder, "recompute = " + how + "\n", first, second + precision), none);
    }
  }
}

TEST_CASE("inject: of a layer that is used several times, the call that had the fault has it again, and no other") {
  for (const std::string where : {"activation", "activation_gradient"}) {
    const auto [loss, gradient] = of_four_calls(where, 0, /*recomputes=*/false);
    for (const int kept : {0, 3}) {
      CAPTURE(where);
      CAPTURE(kept);
      const auto [loss_again, gradient_again] = of_four_calls(where, kept, /*recomputes=*/true);
      CHECK(loss_again.equal(loss));
      CHECK(gradient_again.equal(gradient));
    }
  }
}

TEST_CASE("inject: an activation to which no gradient comes ends the run, also where nothing is computed again" *
          doctest::test_suite("text")) {
  const TemporaryFolder folder;
  const std::string fault = "what = 'nan'\nwhere = 'activation_gradient'\nlayer = 'h.0.ln_1'\nat_step = 2\n";
  for (const std::string recompute : {"", "recompute = 'full'\n"}) {
    SmallRun run(from_toml({flight::gpt(folder, 3, recompute) + "[[callback]]\nuse = 'inject'\n" + fault}));
    run.on(Event::LossReady, [](Run& now) {
      if (now.step == 1) now.micro_batch_loss = now.parameters[0].model.sum();  // forward counts for nothing
    });
    CHECK(says(thrown_by([&] { run.train(); }).text, "backward gave no gradient for `h.0.ln_1` in this step"));
  }
}

}  // namespace inject_recompute_test
