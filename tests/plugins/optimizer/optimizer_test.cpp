// adamw and sgd, and what all optimizers share. reference_test.cpp has the rules of the others, groups_test.cpp groups.
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/roles.h>
#include <vernier/rule_optimizer.h>
#include <vernier/safetensors.h>

#include <cmath>

#include "plugin_library.h"
#include "same_tensors.h"
#include "small_run.h"
#include "temporary_folder.h"

namespace optimizer_test {

using vernier::Optimizer;
using vernier::Table;
using vernier::Value;

namespace {

Value number(double value) {
  return {value, "test.toml:2"};
}
// A group of parameters without weight decay.
Value without_decay(const std::string& pattern) {
  const Table group = {{"match", {pattern, "test.toml:3"}}, {"weight_decay", number(0)}};
  return {vernier::Array{{group, "test.toml:3"}}, "test.toml:3"};
}

// An optimizer over named parameters, with gradients that are a fixed function of the step.
struct Fixture {
  explicit Fixture(const std::string& name, Table options = {}, bool prepares = true)
      : plugin(make_plugin<Optimizer>("optimizer/" + name, std::move(options))) {
    torch::manual_seed(7);
    for (const char* parameter : {"h.0.attn.weight", "h.0.attn.bias", "h.0.ln_1.weight", "head.weight"}) {
      const auto tensor = torch::randn({2, 3}).requires_grad_();
      run.parameters.push_back({parameter, tensor, tensor});
    }
    if (prepares) plugin->prepare(run);
  }

  torch::Tensor gradient(std::size_t i) const {
    const double phase = static_cast<double>(run.step) + static_cast<double>(i);
    return torch::full({2, 3}, std::sin(phase) + 0.5);
  }
  void step() {
    for (std::size_t i = 0; i < run.parameters.size(); ++i) run.parameters[i].master.mutable_grad() = gradient(i);
    plugin->step(run);
    run.step += 1;
  }
  void step_with_zero_gradients() {
    for (auto& parameter : run.parameters) parameter.master.mutable_grad() = torch::zeros({2, 3});
    plugin->step(run);
    run.step += 1;
  }
  std::vector<torch::Tensor> weights() const {
    std::vector<torch::Tensor> copies;
    for (const auto& parameter : run.parameters) copies.push_back(parameter.master.detach().clone());
    return copies;
  }

  std::unique_ptr<Optimizer> plugin;
  vernier::TrainerRun run;
};

// A rule with a slot of another shape than the weights, and a member that it remembers.
class Drift final : public vernier::RuleOptimizer {
 public:
  Drift(vernier::Options& options, bool replaces) : RuleOptimizer(options, 0.1), replaces_(replaces) {
    remember("steps", steps_);
  }
  void step(vernier::Run& run) override {
    ++steps_;
    RuleOptimizer::step(run);
  }

 private:
  void update(Update& p) override {
    auto& rows = replaces_ ? p.slot("rows") : p.slot("rows", [] { return torch::zeros({2, 1}); });
    if (replaces_) rows = torch::zeros({2, 1});
    rows.add_(p.grad.sum(1, true));
    p.weight.sub_(p.lr * static_cast<double>(steps_) * rows);
  }

  bool replaces_;
  std::int64_t steps_ = 0;
};

void make_drift(Fixture& fixture, bool replaces = false) {
  vernier::Options options("optimizer/drift", {}, "test.toml");
  fixture.plugin = std::make_unique<Drift>(options, replaces);
  fixture.plugin->prepare(fixture.run);
}

void check_close(const torch::Tensor& weight, const torch::Tensor& expected) {
  CHECK(torch::allclose(weight.to(torch::kFloat64), expected, 1e-5, 1e-6));
}

}  // namespace

TEST_CASE("optimizer: adamw follows its paper, with the rate of the schedule") {
  const double lr = 0.02, beta1 = 0.8, beta2 = 0.95, eps = 1e-6, decay = 0.1;
  Fixture fixture("adamw", {{"learning_rate", number(lr)},
                            {"beta1", number(beta1)},
                            {"beta2", number(beta2)},
                            {"eps", number(eps)},
                            {"weight_decay", number(decay)}});
  auto expected = fixture.weights();
  for (auto& weight : expected) weight = weight.to(torch::kFloat64);
  std::vector<torch::Tensor> mean(4, torch::zeros({2, 3}, torch::kFloat64)), square = mean;
  for (int t = 1; t <= 20; ++t) {
    fixture.run.learning_rate_factor = 1.0 / t;
    const double rate = lr / t;
    for (std::size_t i = 0; i < 4; ++i) {
      const auto gradient = fixture.gradient(i).to(torch::kFloat64);
      mean[i] = beta1 * mean[i] + (1 - beta1) * gradient;
      square[i] = beta2 * square[i] + (1 - beta2) * gradient * gradient;
      const auto direction = mean[i] / (1 - std::pow(beta1, t)) / ((square[i] / (1 - std::pow(beta2, t))).sqrt() + eps);
      expected[i] = expected[i] * (1 - rate * decay) - rate * direction;
    }
    fixture.step();
    CHECK(fixture.run.metrics.value("learning_rate").value() == doctest::Approx(rate).epsilon(1e-12));
  }
  for (std::size_t i = 0; i < 4; ++i) check_close(fixture.run.parameters[i].master, expected[i]);
}

TEST_CASE("optimizer: sgd follows its law") {
  for (const bool nesterov : {false, true}) {
    const double lr = 0.05, momentum = 0.9, decay = 0.01;
    Fixture fixture("sgd", {{"learning_rate", number(lr)},
                            {"momentum", number(momentum)},
                            {"weight_decay", number(decay)},
                            {"nesterov", {nesterov, "test.toml:2"}}});
    auto expected = fixture.weights();
    for (auto& weight : expected) weight = weight.to(torch::kFloat64);
    std::vector<torch::Tensor> velocity(4);
    for (int t = 1; t <= 20; ++t) {
      for (std::size_t i = 0; i < 4; ++i) {
        const auto gradient = fixture.gradient(i).to(torch::kFloat64) + decay * expected[i];
        velocity[i] = t == 1 ? gradient : momentum * velocity[i] + gradient;
        expected[i] = expected[i] - lr * (nesterov ? gradient + momentum * velocity[i] : velocity[i]);
      }
      fixture.step();
    }
    for (std::size_t i = 0; i < 4; ++i) check_close(fixture.run.parameters[i].master, expected[i]);
  }
}

TEST_CASE("optimizer: a skipped update changes nothing, not even what it remembers") {
  for (const std::string name : {"adamw", "sgd"}) {
    CAPTURE(name);
    const Table options = name == "sgd" ? Table{{"momentum", number(0.9)}} : Table{};
    Fixture skips(name, options), plain(name, options);
    for (int t = 0; t < 6; ++t) {
      skips.run.skip_update = torch::ones({});
      const auto before = skips.weights();
      skips.step();
      skips.run.step -= 1;
      CHECK(equal(skips.weights(), before));
      skips.run.skip_update = torch::zeros({});
      skips.step();
      plain.step();
      CHECK(equal(skips.weights(), plain.weights()));
    }
  }
}

TEST_CASE("optimizer: a rule keeps slots of any shape, and what it remembers") {
  Fixture whole("sgd", {}, false), resumed("sgd", {}, false);
  make_drift(whole), make_drift(resumed);
  for (int t = 0; t < 3; ++t) whole.step();
  resumed.plugin->load(whole.plugin->save());
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < 4; ++i) resumed.run.parameters[i].master.copy_(whole.run.parameters[i].master);
  resumed.run.step = whole.run.step;
  whole.step(), resumed.step();
  CHECK(equal(resumed.weights(), whole.weights()));

  Fixture replaces("sgd", {}, false);
  make_drift(replaces, true);
  replaces.step();
  CHECK_THROWS_WITH_AS(replaces.step(),
                       doctest::Contains("'h.0.attn.weight/rows' has the shape [2, 1], and the weights have [2, 3]"),
                       vernier::Error);
}

TEST_CASE("optimizer: a parameter without a gradient stays") {
  for (const std::string name : {"adamw", "sgd"}) {
    Fixture fixture(name);
    const auto before = fixture.weights();
    fixture.run.parameters[1].master.mutable_grad() = torch::ones({2, 3});
    fixture.plugin->step(fixture.run);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(torch::equal(fixture.run.parameters[i].master, before[i]) == (i != 1));
    }
  }
}

TEST_CASE("optimizer: what is saved goes through a file, and the next ten steps are the same bits") {
  const std::vector<std::pair<std::string, Table>> kinds = {
      {"adamw", {{"group", without_decay("*.bias")}}},
      {"adamw", {{"amsgrad", {true, "test.toml:2"}}}},
      {"sgd", {{"momentum", number(0.9)}, {"nesterov", {true, "test.toml:2"}}}},
      {"sgd", {}}};
  for (const auto& [name, options] : kinds) {
    CAPTURE(name);
    Fixture fixture(name, options), loaded(name, options);
    for (int t = 0; t < 7; ++t) fixture.step();
    const TemporaryFolder folder;
    vernier::save_safetensors(folder / "state", fixture.plugin->save().tensors);
    vernier::State state;
    state.tensors = vernier::load_safetensors(folder / "state");
    loaded.plugin->load(state);
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < 4; ++i) loaded.run.parameters[i].master.copy_(fixture.run.parameters[i].master);
    }
    loaded.run.step = fixture.run.step;
    for (int t = 0; t < 10; ++t) {
      fixture.step();
      loaded.step();
      CHECK(equal(fixture.weights(), loaded.weights()));
    }
  }
}

TEST_CASE("optimizer: adamw's memory belongs to names, whatever their order") {
  Fixture fixture("adamw", {{"group", without_decay("*.bias")}});
  for (int t = 0; t < 3; ++t) fixture.step();
  const auto state = fixture.plugin->save();
  CHECK(state.has("h.0.attn.weight/exp_avg"));
  CHECK(state.has("head.weight/step"));
  Fixture loaded("adamw");  // decays all, and so keeps them in another order
  loaded.plugin->load(state);
  for (const auto& [name, tensor] : loaded.plugin->save().tensors) CHECK(torch::equal(tensor, state.tensor(name)));
  Fixture other("adamw", {}, false);
  other.run.parameters[0].name = "h.0.attn.kernel";
  other.plugin->prepare(other.run);
  CHECK_THROWS_AS(other.plugin->load(state), vernier::Error);
}

namespace {

Value word(const std::string& text) {
  return {text, "test.toml:4"};
}

// Large enough for 8 bits.
struct Wide {
  explicit Wide(const std::string& state, torch::ScalarType dtype = torch::kFloat32)
      : plugin(
            make_plugin<Optimizer>("optimizer/adamw", {{"state", word(state)}, {"group", without_decay("*.bias")}})) {
    torch::manual_seed(7);
    for (const char* parameter : {"a.weight", "a.bias", "b.weight"}) {
      const auto size = std::string(parameter) == "a.bias" ? 64 : 64 * 96;
      const auto tensor = torch::randn({size}, dtype).requires_grad_();
      run.parameters.push_back({parameter, tensor, tensor});
    }
    plugin->prepare(run);
  }
  void step(int number) {
    torch::manual_seed(static_cast<std::uint64_t>(number));
    for (auto& parameter : run.parameters) {
      parameter.master.mutable_grad() = torch::randn_like(parameter.master.detach());
    }
    plugin->step(run);
  }
  std::unique_ptr<Optimizer> plugin;
  vernier::TrainerRun run;
};

}  // namespace

TEST_CASE("optimizer: adamw keeps its averages as `state` says, and goes on with them bit for bit") {
  for (const auto& [state, dtype] :
       {std::pair{"float32", torch::kFloat32}, {"bf16", torch::kBFloat16}, {"8bit", torch::kByte}}) {
    CAPTURE(state);
    Wide wide(state);
    for (int step = 0; step < 3; ++step) wide.step(step);
    const auto saved = wide.plugin->save();
    CHECK((saved.tensor("b.weight/exp_avg").scalar_type() == dtype));
    CHECK((saved.tensor("b.weight/exp_avg_sq").scalar_type() == dtype));
    CHECK(saved.has("b.weight/exp_avg_absmax") == (dtype == torch::kByte));
    CHECK((saved.tensor("a.bias/exp_avg").scalar_type() == (dtype == torch::kByte ? torch::kFloat32 : dtype)));

    const TemporaryFolder folder;
    vernier::save_safetensors(folder / "state", saved.tensors);
    vernier::State loaded;
    loaded.tensors = vernier::load_safetensors(folder / "state");
    Wide other(state), from_float32("float32");
    other.plugin->load(loaded);
    from_float32.plugin->load(loaded);  // the loaded state is of another kind
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 3; ++i) other.run.parameters[i].master.copy_(wide.run.parameters[i].master);
    for (int step = 3; step < 8; ++step) {
      wide.step(step);
      other.step(step);
      for (std::size_t i = 0; i < 3; ++i) {
        CHECK(torch::equal(wide.run.parameters[i].master, other.run.parameters[i].master));
      }
    }
  }
}

TEST_CASE("optimizer: a small state for 16-bit weights, or with amsgrad, is refused") {
  CHECK_THROWS_WITH_AS(
      Wide("8bit", torch::kBFloat16),
      "optimizer/adamw: state = \"8bit\" is for float32 weights, and a.weight is BFloat16: leave `state` "
      "out, or keep float32 weights",
      vernier::Error);
  CHECK_THROWS_WITH_AS(
      make_plugin<Optimizer>("optimizer/adamw", {{"state", word("bf16")}, {"amsgrad", {true, "test.toml:5"}}}),
      doctest::Contains("`state` is float32 where amsgrad keeps a third average"), vernier::Error);
}

namespace {

constexpr const char* base = R"(
[run]
steps = 6
[task]
use = "mlp"
hidden = [192]
samples = 50
batch_size = 16
)";

std::string digest_after(const std::string& options) {
  const TemporaryFolder output;
  SmallRun run(from_toml({base, options}), output.path().string());
  run.train();
  CHECK(run.run.step == 6);
  for (const auto& parameter : run.run.parameters) {
    CHECK(parameter.model.grad().defined() == (options.find("in_backward = true") == std::string::npos));
  }
  return run.digest();
}

std::string refusal_of(const std::string& options) {
  try {
    SmallRun run(from_toml({base, options}));
  } catch (const vernier::Error& error) {
    CHECK(error.kind() == vernier::Error::Kind::configuration);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("optimizer: with in_backward a run has the same bits, in micro-batches too, and keeps no gradient") {
  for (const std::string optimizer :
       {"use = 'adamw'\n", "use = 'adamw'\nstate = '8bit'\n", "use = 'sgd'\nmomentum = 0.9\n", "use = 'adagrad'\n",
        "use = 'rmsprop'\nmomentum = 0.9\n", "use = 'adafactor'\n",
        "use = 'muon'\ngroup = [{match = '*.bias', adamw_learning_rate = 1e-4}]\n"}) {
    for (const std::string others :
         {"", "[accumulation]\nmicro_batches = 3\n[[callback]]\nuse = 'schedule'\nkind = 'linear'\nwarmup_steps = 3\n",
          "[precision]\nuse = 'bf16'\n"}) {
      CAPTURE(optimizer);
      CAPTURE(others);
      const auto plain = "[optimizer]\n" + optimizer;
      CHECK(digest_after(plain + "in_backward = true\n" + others) == digest_after(plain + others));
    }
  }
}

TEST_CASE("optimizer: in_backward is refused beside what has to see all gradients") {
  for (const std::string name : {"adamw", "sgd"}) {
    const auto own = "[optimizer]\nuse = '" + name + "'\nin_backward = true\n";
    CHECK(refusal_of(own) == "");
    CHECK(refusal_of(own + "[[callback]]\nuse = 'memory'\n") == "");
    const auto refused = [&](const std::string& others, const std::string& why) {
      const auto text = refusal_of(own + others);
      CAPTURE(text);
      CHECK(text.find("optimizer/" + name) != std::string::npos);
      CHECK(text.find(why) != std::string::npos);
    };
    refused("[scaler]\nuse = 'dynamic'\n", "`in_backward` updates weights before scaler/dynamic can see");
    refused("[[callback]]\nuse = 'clip_norm'\n",
            "`in_backward` frees each gradient as it is used, and callback/clip_norm");
    refused("[[callback]]\nuse = 'recovery'\n", "callback/recovery wants to see them all");
    refused("[precision]\nuse = 'bf16'\nlevel = 'O2'\n", "the precision keeps others for it (");
  }
}

TEST_CASE("optimizer: options that no reference has change the weights") {
  const Table by_adamw = {{"match", {std::string("*"), "test.toml:3"}}, {"adamw", {true, "test.toml:3"}}};
  const Table muon = {{"group", {vernier::Array{{by_adamw, "test.toml:3"}}, "test.toml:3"}}};
  for (const auto& [name, key, other] : {std::tuple{"adafactor", "eps1", 10.0},
                                         {"adafactor", "eps2", 10.0},
                                         {"muon", "adamw_beta1", 0.5},
                                         {"muon", "adamw_beta2", 0.5},
                                         {"muon", "adamw_eps", 0.1}}) {
    CAPTURE(key);
    const auto table = std::string(name) == "muon" ? muon : Table();
    auto changed = table;
    changed[key] = number(other);
    Fixture with_defaults(name, table), fixture(name, changed);
    for (int step = 0; step < 3; ++step) {
      with_defaults.step();
      fixture.step();
    }
    CHECK_FALSE(torch::equal(with_defaults.run.parameters[0].master, fixture.run.parameters[0].master));
  }
}

TEST_CASE("optimizer: options out of range are refused") {
  const auto refused = [](const std::string& name, Table table) {
    CHECK_THROWS_AS(make_plugin<Optimizer>("optimizer/" + name, std::move(table)), vernier::Error);
  };
  for (const std::string name : {"adamw", "sgd"}) refused(name, {{"learning_rate", number(-1)}});
  refused("adamw", {{"beta1", number(1)}});
  refused("adamw", {{"eps", number(-1e-8)}});
  refused("sgd", {{"nesterov", {true, "test.toml:2"}}});
  refused("sgd", {{"momentum", number(0.9)}, {"dampening", number(0.1)}, {"nesterov", {true, "test.toml:2"}}});
}

}  // namespace optimizer_test
