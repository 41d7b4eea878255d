// per_layer: the gradients that come out are those of one scale, whatever the layers' factors.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>
#include <vernier/autocast.h>
#include <vernier/host.h>
#include <vernier/layers.h>

#include <random>

#include "loaded_task.h"
#include "oracle.h"
#include "temporary_folder.h"

namespace per_layer_test {

using vernier::Event;
using vernier::Scaler;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Convolutions with a residual sum, batch normalisation, a weight that is used twice and a bias added in place, which
// no interceptor sees.
class Net final : public torch::nn::Module {
 public:
  explicit Net(torch::ScalarType dtype = torch::kFloat32) {
    const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
      return register_parameter(name, torch::randn(shape).mul_(0.3).to(dtype));
    };
    first = add("first_weight", {8, 3, 3, 3});
    auto twice_module = std::make_shared<Part>();
    auto norm_module = std::make_shared<Part>();
    auto last_module = std::make_shared<Part>();
    register_module("twice", twice_module);
    register_module("norm", norm_module);
    register_module("last", last_module);
    twice = twice_module->register_parameter("weight", torch::randn({8, 8, 3, 3}).mul_(0.2).to(dtype));
    gain = norm_module->register_parameter("weight", torch::rand({8}).add_(0.5).to(dtype));
    shift = norm_module->register_parameter("bias", torch::randn({8}).to(dtype));
    last = last_module->register_parameter("weight", torch::randn({5, 8 * 36}).mul_(0.1).to(dtype));
    bias = last_module->register_parameter("bias", torch::randn({5}).to(dtype));
  }
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& target) const {
    auto h = at::relu(at::conv2d(x, first, {}, 1, 1));
    h = h + at::conv2d(h, twice, {}, 1, 1);
    h = at::batch_norm(h, gain, shift, {}, {}, true, 0.1, 1e-5, false);
    h = h + at::conv2d(at::gelu(h), twice, {}, 1, 1);
    auto logits = at::linear(h.flatten(1), last);
    logits.add_(bias);
    return at::cross_entropy_loss(logits, target);
  }

 private:
  struct Part : torch::nn::Module {};
  torch::Tensor first, twice, gain, shift, last, bias;
};

struct Fixture {
  Fixture(std::shared_ptr<torch::nn::Module> model, vernier::Table options = {})
      : plugin(make_plugin<Scaler>("scaler/per_layer", std::move(options))) {
    run.model = std::move(model);
    for (const auto& entry : run.model->named_parameters()) {
      run.parameters.push_back({entry.key(), entry.value(), entry.value()});
    }
    vernier::HostApi::attach(bus, *plugin, false);
    plugin->prepare(run);
  }

  void set_factors(std::mt19937& random, int range) {
    auto state = plugin->save();
    auto factors = state.tensor("factors").clone();
    for (std::int64_t i = 0; i < factors.numel(); ++i) {
      factors[i] = std::exp2(static_cast<int>(random() % static_cast<unsigned>(2 * range + 1)) - range);
    }
    state.put("factors", factors);
    plugin->load(state);
  }
  torch::Tensor factors() const { return plugin->save().tensor("factors"); }

  // As the trainer does.
  std::vector<torch::Tensor> gradients(const std::function<torch::Tensor()>& loss) {
    for (auto& parameter : run.parameters) parameter.model.mutable_grad().reset();
    run.found_inf.reset();
    vernier::HostApi::emit(bus, Event::BatchReady, run);
    value = loss();
    vernier::HostApi::emit(bus, Event::LossReady, run);
    plugin->scale(value).backward();
    plugin->unscale(run);
    return run.gradients();
  }
  void end_step() {
    plugin->update(run);
    run.step += 1;
    vernier::HostApi::emit(bus, Event::StepEnd, run);
  }

  std::unique_ptr<Scaler> plugin;
  vernier::TrainerRun run;
  vernier::Bus bus;
  torch::Tensor value;
};

std::vector<torch::Tensor> plain_gradients(vernier::Run& run, const torch::Tensor& loss) {
  for (auto& parameter : run.parameters) parameter.model.mutable_grad().reset();
  loss.backward();
  std::vector<torch::Tensor> all;
  for (auto& parameter : run.parameters) all.push_back(parameter.model.grad().clone());
  return all;
}

void check_same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(a[i], b[i]));
  }
}

vernier::Table gpt_options(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i * i) + '\n';
  return {{"data", list<std::string>({folder.write("text", text)})},
          {"layers", value(2)},
          {"heads", value(2)},
          {"width", value(16)},
          {"context", value(16)},
          {"batch_size", value(4)},
          {"sample_bytes", value(0)}};
}

}  // namespace

TEST_CASE("per_layer: with any powers of two the convolutional net's gradients have the bits of no scaling") {
  at::set_num_threads(1);
  std::mt19937 random(1);
  for (const auto dtype : {torch::kFloat32, torch::kFloat64}) {
    for (int i = 0; i < 10; ++i) {
      torch::manual_seed(i);
      const auto net = std::make_shared<Net>(dtype);
      const auto x = torch::randn({4, 3, 6, 6}).to(dtype), target = torch::randint(0, 5, {4});
      Fixture fixture(net);
      const auto expected = plain_gradients(fixture.run, net->loss(x, target));
      const auto loss = net->loss(x, target).detach();
      fixture.set_factors(random, 8);
      check_same(fixture.gradients([&] { return net->loss(x, target); }), expected);
      CHECK(same_bits(fixture.value.detach(), loss));
      CHECK(fixture.run.found_inf.item<float>() == 0);
    }
  }
}

TEST_CASE(
    "per_layer: with any powers of two the GPT's gradients, tied weights among them, have the bits of no scaling" *
    doctest::test_suite("text")) {
  const TemporaryFolder folder;
  std::mt19937 random(2);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    LoadedTask gpt("gpt", gpt_options(folder), seed);
    const auto batch = gpt->next();
    Fixture fixture(gpt.run.model);
    const auto expected = plain_gradients(fixture.run, gpt->loss(batch));
    fixture.set_factors(random, 8);
    check_same(fixture.gradients([&] { return gpt->loss(batch); }), expected);
  }
}

TEST_CASE("per_layer: BatchReady may come again without a LossReady, and nothing is seen outside of forward") {
  at::set_num_threads(1);
  torch::manual_seed(3);
  std::mt19937 random(3);
  const auto net = std::make_shared<Net>();
  const auto x = torch::randn({4, 3, 6, 6}), target = torch::randint(0, 5, {4});
  Fixture fixture(net);
  const auto expected = plain_gradients(fixture.run, net->loss(x, target));
  fixture.set_factors(random, 8);
  vernier::HostApi::emit(fixture.bus, Event::BatchReady, fixture.run);
  vernier::HostApi::emit(fixture.bus, Event::BatchReady, fixture.run);
  check_same(fixture.gradients([&] { return net->loss(x, target); }), expected);
  const auto outside = net->loss(x, target);
  check_same(plain_gradients(fixture.run, outside), expected);
}

TEST_CASE("per_layer: in float16 the weights of a layer with small inputs lose less of their gradients") {
  at::set_num_threads(1);
  torch::manual_seed(4);
  class Two final : public torch::nn::Module {
   public:
    Two() {
      for (auto* weight : {&first, &second}) {
        auto part = std::make_shared<Part>();
        *weight = part->register_parameter("weight", torch::randn({16, 16}).mul_(0.2));
        register_module(weight == &first ? "first" : "second", part);
      }
    }
    struct Part : torch::nn::Module {};
    torch::Tensor first, second;
  };
  const auto net = std::make_shared<Two>();
  const auto x = torch::randn({8, 16}), y = torch::randn({8, 16});
  const auto loss = [&] { return at::mse_loss(at::linear(at::linear(x, net->first).tanh() * 1e-5, net->second), y); };
  const auto lost = [&](Fixture& fixture) {
    const auto exact = plain_gradients(fixture.run, loss());
    const auto ours = fixture.gradients([&] {
      const vernier::Autocast autocast(torch::kCPU, torch::kFloat16);
      return loss();
    });
    return (ours[1] - exact[1]).abs().sum().item<double>() / exact[1].abs().sum().item<double>();
  };
  Fixture without(net, {{"init_scale", value(1.0)}}), with(net, {{"init_scale", value(1.0)}});
  auto state = with.plugin->save();
  state.put("factors", torch::full_like(state.tensor("factors"), 256));
  with.plugin->load(state);
  const auto much = lost(without), little = lost(with);
  MESSAGE("error of the second layer's gradients without factors: ", much, ", with: ", little);
  CHECK(much > 0.01);
  CHECK(little < much / 10);
}

TEST_CASE("per_layer: an overflow that began in a layer lowers its factor alone, another the scale of the loss") {
  at::set_num_threads(1);
  torch::manual_seed(5);
  const auto net = std::make_shared<Net>();
  const auto x = torch::randn({4, 3, 6, 6}), target = torch::randint(0, 5, {4});
  const vernier::Layers layers(*net);
  const auto index = [&layers](const char* name) {
    return std::find(layers.names().begin(), layers.names().end(), name) - layers.names().begin();
  };
  Fixture fixture(net, {{"init_scale", value(1.0)}, {"warn_below", value(0.0)}});
  // The layer's weight has an inf in the gradient of its product, where float16 ends: an output gradient near the end,
  // doubled by the factor.
  auto state = fixture.plugin->save();
  auto factors = state.tensor("factors").clone();
  factors[index("twice")] = 256;
  state.put("factors", factors);
  fixture.plugin->load(state);
  const auto loss = [&] {
    const vernier::Autocast autocast(torch::kCPU, torch::kFloat16);
    return net->loss(x * 3000, target) * 3000;
  };
  fixture.gradients(loss);
  REQUIRE(fixture.run.found_inf.item<float>() == 1);
  fixture.end_step();
  const auto after = fixture.factors();
  CHECK(after[index("twice")].item<float>() == 128);
  for (const char* name : {"", "norm", "last"}) CHECK(after[index(name)].item<float>() == 1);
  CHECK(fixture.run.notices.empty());  // the loss's scale stands

  fixture.run.notices.clear();
  fixture.gradients([&] { return net->loss(x, target) * infinity; });
  fixture.end_step();
  CHECK(torch::equal(fixture.factors(), after));
  REQUIRE(fixture.run.notices.size() == 1);
  CHECK(fixture.run.notices[0].text() == "scale_changed from=1 to=0.5");
}

TEST_CASE("per_layer: reports that the loss's scale starts low, and that it comes to its end") {
  torch::manual_seed(5);
  const auto net = std::make_shared<Net>();
  const auto x = torch::randn({4, 3, 6, 6}), target = torch::randint(0, 5, {4});
  Fixture fixture(net, {{"init_scale", value(1.0)}, {"min_scale", value(0.25)}});
  const std::vector<std::vector<std::string>> expected = {
      {"scale_low scale=1 warn_below=1", "scale_changed from=1 to=0.5"},
      {"scale_changed from=0.5 to=0.25", "scale_low scale=0.25 min_scale=0.25"},
      {},
  };
  for (const auto& texts : expected) {
    fixture.run.notices.clear();
    fixture.gradients([&] { return net->loss(x, target) * infinity; });
    fixture.end_step();
    std::vector<std::string> told;
    for (const auto& notice : fixture.run.notices) told.push_back(notice.text());
    CHECK(told == texts);
  }
}

TEST_CASE("per_layer: factors double after a row of good steps, up to their end; groups share one") {
  torch::manual_seed(6);
  const auto net = std::make_shared<Net>();
  const auto x = torch::randn({4, 3, 6, 6}), target = torch::randint(0, 5, {4});
  Fixture fixture(net,
                  {{"growth_interval", value(2)}, {"max_factor", value(4.0)}, {"group", list<std::string>({"*t*"})}});
  REQUIRE(fixture.factors().numel() == 3);  // twice and last; the model's own; norm
  const std::vector<float> first = {1, 2, 2, 4, 4, 4}, last = {2, 2, 4, 4, 4, 4};  // half a turn apart
  for (std::size_t i = 0; i < first.size(); ++i) {
    fixture.gradients([&] { return net->loss(x, target); });
    fixture.end_step();
    CHECK(fixture.factors().equal(torch::tensor({first[i], first[i], last[i]})));
  }
  Fixture in_turn(net, {{"growth_interval", value(30)}, {"group", list<std::string>({"*t*"})}});
  for (int i = 0; i < 30; ++i) {
    const auto before = in_turn.factors().clone();
    in_turn.gradients([&] { return net->loss(x, target); });
    in_turn.end_step();
    CHECK(in_turn.factors().ne(before).sum().item<int>() <= 1);
  }
  CHECK(in_turn.factors().eq(2).all().item<bool>());
  CHECK(refusal([&] {
          Fixture(net, {{"group", list<std::string>({"nothing"})}});
        }).find("no layer") != std::string::npos);
  const auto shadowed = refusal([&] { Fixture(net, {{"group", list<std::string>({"*", "last"})}}); });
  CHECK(shadowed.find("\"last\", and all its layers belong to patterns that stand before it") != std::string::npos);
  CHECK(refusal([&] { Fixture(std::make_shared<Net>(torch::kHalf)); }).find("level O1") != std::string::npos);
}

}  // namespace per_layer_test
