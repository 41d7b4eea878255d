// flight_recorder: updates that make bad values of finite gradients.
#include <doctest/doctest.h>
#include <vernier/capsule.h>
#include <vernier/error.h>

#include <algorithm>
#include <map>
#include <random>

#include "flight.h"
#include "long_form.h"

namespace flight_recorder_update_test {

namespace fs = std::filesystem;
using namespace flight;

TEST_CASE("flight_recorder: parameters that went bad in an update are named, and the next step stands still") {
  Flight flight({mlp(3), recorder + std::string("check_parameters_every = 1\n")}, std::nullopt);
  std::string name;
  flight.run.on(Event::GradientsReady, [&](Run& run) {
    if (run.step != 0) return;
    const torch::NoGradGuard no_grad;
    name = run.parameters.back().name;
    spoil(run.parameters.back().master, HUGE_VAL);
  });
  flight.run.train();
  REQUIRE_FALSE(flight.notices.empty());
  CHECK(told(flight.notices[0], "step") == "1");
  CHECK(told(flight.notices[0], "phase") == "update");
  CHECK(told(flight.notices[0], "tensor") == name);
  REQUIRE(flight.notices.size() >= 2);
  CHECK(told(flight.notices[1], "step") == "2");
  CHECK(told(flight.notices[1], "update") == "1");
  CHECK(capsule_of(flight, flight.notices[1]).origin->operation == "optimizer/sgd");
}

TEST_CASE("flight_recorder: parameters are looked at where they are, whatever the precision keeps beside them") {
  const std::string inject = "[[callback]]\nuse = 'inject'\nwhere = 'weight'\nlayer = 'layers.0*'\nat_step = 2\n";
  const std::string often = recorder + std::string("check_parameters_every = 1\n");
  for (const auto* rounding : {"nearest", "stochastic", "kahan"}) {
    CAPTURE(rounding);
    const auto precision = "[precision]\nuse = 'bf16'\nlevel = 'O3'\nrounding = '" + std::string(rounding) + "'\n";
    Flight sound({mlp(4), precision, often}, std::nullopt);
    sound.run.train();
    CHECK(sound.notices.empty());
    Flight spoiled({mlp(4), precision, inject + often}, std::nullopt);
    spoiled.run.train();
    REQUIRE_FALSE(spoiled.notices.empty());
    CHECK(told(spoiled.notices[0], "step") == "2");
    CHECK(told(spoiled.notices[0], "phase") == "update");
    CHECK(told(spoiled.notices[0], "tensor").starts_with("layers.0."));
    CHECK(told(spoiled.notices[0], "operation") == "written by no update");
  }
}

namespace {

// Gradient descent that divides a parameter's gradient by 0 in one step.
class DividesByZero final : public vernier::Optimizer {
 public:
  DividesByZero(std::string name, std::int64_t step) : name_(std::move(name)), step_(step) { set_id("optimizer/toy"); }
  void step(Run& run) override {
    const torch::NoGradGuard no_grad;
    if (run.skip_update.defined() && run.skip_update.item<float>() != 0) return;
    for (auto& parameter : run.parameters) {
      const bool is_hit = run.step + 1 == step_ && parameter.name == name_;
      const auto& gradient = parameter.master.grad();
      if (gradient.defined()) parameter.master.sub_(0.01 * (is_hit ? gradient / ones_and_a_zero(gradient) : gradient));
    }
  }

 private:
  std::string name_;
  std::int64_t step_;
};

// What stands in a run after the update that broke a parameter, as a test sees it.
struct Broken {
  std::vector<std::string> names;
  std::vector<vernier::TensorRange> gradients, weights;
};

// An update that makes bad values of finite gradients: of what kind, and where it is to be looked for.
struct BadUpdate {
  std::string kind;  // rate, state, zero, inject
  std::string parameter, optimizer, precision;
  std::int64_t step;
  double value;
  bool is_late;  // nobody looks at the parameters: the next loss tells
};

// What makes the update bad: true where there was a state to spoil.
bool put_in(Run& now, const vernier::Optimizer& optimizer, const BadUpdate& fault) {
  if (now.step + 1 != fault.step) return false;
  if (fault.kind == "rate") now.learning_rate_factor *= 1e60;
  if (fault.kind != "state") return false;
  const auto state = optimizer.save();
  const auto found = std::ranges::find(now.parameters, fault.parameter, &vernier::Parameter::name);
  const auto number = found - now.parameters.begin();
  bool has_state = false;
  for (const auto& [key, tensor] : state.tensors) {
    const bool is_its = key.starts_with(fault.parameter + "/") || key.starts_with(std::to_string(number) + "/");
    if (!is_its || !tensor.is_floating_point() || key.ends_with("/step")) continue;
    const torch::NoGradGuard no_grad;
    tensor.variable_data().fill_(key.ends_with("_sq") ? -1 : fault.value);
    has_state = true;
  }
  return has_state;
}

// At random, of those that such parameters may have.
BadUpdate drawn(std::mt19937& random, const std::vector<std::string>& parameters,
                const std::vector<std::string>& kinds) {
  static const std::vector<std::string> optimizers = {"[optimizer]\nuse = 'adamw'\n",
                                                      "[optimizer]\nuse = 'adamw'\nstate = 'bf16'\n",
                                                      "[optimizer]\nuse = 'adamw'\nstate = '8bit'\n",
                                                      "[optimizer]\nuse = 'adamw'\namsgrad = true\n",
                                                      "[optimizer]\nuse = 'sgd'\nmomentum = 0.9\n",
                                                      "[optimizer]\nuse = 'sgd'\n"};
  auto policies = precisions;
  policies.push_back("[precision]\nuse = 'bf16'\nlevel = 'O2'\n");
  const auto draw = [&random](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  BadUpdate fault;
  fault.kind = kinds[draw(kinds.size())];
  fault.parameter = parameters[draw(parameters.size())];
  fault.optimizer = optimizers[draw(optimizers.size() - (fault.kind == "state" ? 1 : 0))];
  fault.precision = policies[draw(policies.size())];
  fault.step = 2 + static_cast<std::int64_t>(draw(3));
  fault.value = draw(2) == 0 ? HUGE_VAL : std::nan("");
  fault.is_late = draw(3) == 0;
  return fault;
}

std::vector<std::string> names_of_parameters(const std::string& config) {
  const SmallRun run(from_toml({config}));
  std::vector<std::string> names;
  for (const auto& parameter : run.run.parameters) names.push_back(parameter.name);
  return names;
}

// That the recorder told what was wrong with it. has_state: there was a state to spoil.
void check_told(const Flight& flight, const BadUpdate& fault, const Broken& broken, const std::string& id,
                bool has_state) {
  REQUIRE_FALSE(flight.notices.empty());
  const auto& first = flight.notices.front();
  CHECK(told(first, "phase") == "update");
  const bool is_injected = fault.kind == "inject";
  CHECK(told(first, "step") == std::to_string(fault.step + (fault.is_late && !is_injected ? 1 : 0)));
  // Found late, it is that of the bad ones which forward reads first.
  const auto tensor = told(first, "tensor");
  const auto at = static_cast<std::size_t>(std::ranges::find(broken.names, tensor) - broken.names.begin());
  REQUIRE(at < broken.names.size());
  if (!fault.is_late) CHECK(at == 0);
  if (fault.kind != "rate") CHECK(tensor == fault.parameter);
  CHECK(told(first, "layer") == layer_of(tensor));
  if (is_injected && !fault.is_late) CHECK(told(first, "operation") == "written by no update");
  const bool has_capsule = !told(first, "capsule").empty();
  CHECK(has_capsule == (fault.is_late || is_injected));
  const auto& notice = has_capsule ? first : flight.notices.at(1);
  const auto capsule = capsule_of(flight, notice);
  const auto& origin = *capsule.origin;
  CHECK(capsule.step == fault.step + (is_injected ? 0 : 1));
  check_same(origin.outputs, {broken.weights[at]}, {tensor});
  const auto blamed = id + (fault.is_late ? " or a callback" : "");  // nobody looked between update and step
  if (is_injected && fault.is_late) CHECK(origin.operation == blamed);
  if (is_injected) return;
  CHECK(origin.operation == blamed);
  CHECK(told(first, "operation") == blamed);
  CHECK(origin.step == (fault.is_late ? 0 : fault.step));
  CHECK(told(first, "update") == (fault.is_late ? "" : std::to_string(fault.step)));
  const auto* cause = fault.is_late ? "the weights were bad before step" : "the update of step";
  CHECK(capsule.cause.find(cause) != std::string::npos);
  const auto has = [&](const std::string& name) {
    return std::ranges::any_of(origin.inputs, [&](const auto& input) { return input.first == name; });
  };
  CHECK(has("gradient") == !fault.is_late);
  if (!fault.is_late) {
    check_same(origin.inputs, {broken.gradients[at]}, {"gradient"});
    CHECK(broken.gradients[at].is_finite());
  }
  CHECK(has("learning_rate") == (fault.kind != "zero"));
  const bool is_8_bit = fault.optimizer.find("8bit") != std::string::npos;
  if (id == "optimizer/adamw") CHECK((has("exp_avg_sq") || (is_8_bit && has("exp_avg_sq_absmax"))));
  if (fault.kind == "state") REQUIRE(has_state);
  if (fault.kind == "state" && !is_8_bit) {  // 8 bits keep a code for a nan, and it has no range
    CHECK(std::ranges::any_of(origin.inputs, [](const auto& input) { return !input.second.is_finite(); }));
  }
  if (fault.kind == "rate") {
    CHECK(origin.inputs.back().first == "learning_rate");
    CHECK(origin.inputs.back().second.amax > 1e50);
  }
}

bool check_update(const std::string& config, const BadUpdate& fault) {
  CAPTURE(fault.kind);
  CAPTURE(fault.parameter);
  CAPTURE(fault.optimizer);
  CAPTURE(fault.precision);
  CAPTURE(fault.step);
  CAPTURE(fault.is_late);
  std::string inject;
  if (fault.kind == "inject") {
    inject = "[[callback]]\nuse = 'inject'\nwhere = 'weight'\nlayer = '" + fault.parameter +
             "'\nat_step = " + std::to_string(fault.step) + "\n";
  }
  const auto looks = recorder + std::string(fault.is_late ? "check_parameters_every = 0\n" : "");
  Flight flight({config, fault.optimizer, fault.precision, inject + looks}, std::nullopt);
  auto& run = flight.run;
  if (fault.kind == "zero") run.wiring->optimizer = std::make_unique<DividesByZero>(fault.parameter, fault.step);
  const auto id = run.wiring->optimizer->id();
  std::optional<Broken> broken;
  bool has_state = false;
  run.on(Event::GradientsReady, [&](Run& now) { has_state |= put_in(now, *run.wiring->optimizer, fault); });
  run.on(Event::StepEnd, [&](Run& now) {
    for (const auto& parameter : now.parameters) {
      if (now.step != fault.step || parameter.best().isfinite().all().item<bool>()) continue;
      if (!broken) broken.emplace();
      broken->names.push_back(parameter.name);
      const auto& gradient = parameter.master.grad();
      broken->gradients.push_back(gradient.defined() ? vernier::range_of(gradient) : vernier::TensorRange());
      broken->weights.push_back(vernier::range_of(parameter.best()));
    }
  });
  run.train();
  CAPTURE(last_log);
  if (!broken) {
    CHECK(flight.notices.empty());
    return false;
  }
  if (!flight.is_bad) return false;  // a weight that forward does not use
  check_told(flight, fault, *broken, id, has_state);
  return true;
}

}  // namespace

TEST_CASE("flight_recorder: updates that make bad values of finite gradients, at random" *
          doctest::test_suite("text")) {
  const TemporaryFolder folder;
  const std::vector<std::string> configs = {gpt(folder, 5), images(folder, 5)};
  const std::vector<std::vector<std::string>> parameters = {names_of_parameters(configs[0]),
                                                            names_of_parameters(configs[1])};
  std::mt19937 random(11);
  const std::vector<std::string> kinds = {"rate", "state", "zero", "inject"};
  std::map<std::string, int> harmful;
  const int trials = is_long() ? 160 : 64;
  for (int i = 0; i < trials; ++i) {
    const auto task = random() % 2;
    const auto fault = drawn(random, parameters[task], kinds);
    harmful[fault.kind] += check_update(configs[task], fault) ? 1 : 0;
  }
  for (const auto& kind : kinds) {
    CAPTURE(kind);
    CHECK(harmful[kind] >= trials * 5 / 32);
  }
}

TEST_CASE("flight_recorder: a float32 weight that is too large for the model's float16 is the precision's") {
  Flight flight({mlp(3), precisions[2], "[precision]\nlevel = 'O2'\n", recorder}, std::nullopt);
  flight.run.on(Event::GradientsReady, [](Run& run) {
    const torch::NoGradGuard no_grad;
    if (run.step == 1) run.parameters[2].master.view(-1)[3] = 1e5;
  });
  flight.run.train();
  REQUIRE(flight.notices.size() >= 2);
  CHECK(told(flight.notices[0], "step") == "2");
  CHECK(told(flight.notices[0], "phase") == "update");
  CHECK(told(flight.notices[0], "tensor") == flight.run.run.parameters[2].name);
  const auto origin = *capsule_of(flight, flight.notices[1]).origin;
  CHECK(origin.operation == "precision/fp16");
  REQUIRE(origin.inputs.size() == 1);
  CHECK(origin.inputs[0].second.is_finite());
  CHECK(origin.inputs[0].second.amax > 9e4);
  REQUIRE(origin.outputs.size() == 1);
  CHECK(origin.outputs[0].second.infs == 1);
}

TEST_CASE("flight_recorder: a bad weight that the loss does not see is told once, and the run goes on") {
  Flight flight({mlp(8), recorder}, std::nullopt);
  flight.run.on(Event::GradientsReady, [](Run& run) {
    const torch::NoGradGuard no_grad;
    const auto found = std::ranges::find(run.parameters, "layers.0.bias", &vernier::Parameter::name);
    REQUIRE(found != run.parameters.end());
    if (run.step == 1) found->master[0] = -HUGE_VAL;  // the unit is switched off
  });
  flight.run.train();
  CHECK_FALSE(flight.is_bad);
  REQUIRE(flight.notices.size() == 2);
  CHECK(told(flight.notices[0], "step") == "2");
  CHECK(told(flight.notices[1], "step") == "3");
  CHECK(told(flight.notices[1], "what") == "parameter");
  CHECK(told(flight.notices[1], "transient") == "0");
  for (const auto& notice : flight.notices) {
    CHECK(told(notice, "phase") == "update");
    CHECK(told(notice, "tensor") == "layers.0.bias");
    CHECK(told(notice, "update") == "2");
  }
  CHECK(flight.run.run.updates == 7);
  const auto capsule = capsule_of(flight, flight.notices[1]);
  CHECK(capsule.origin->outputs.at(0).second.negative_infs == 1);
}

namespace {

// Breaks the bias of a hidden unit just before the update of a step, counted from 1.
void spoil_bias_in(SmallRun& run, std::int64_t step, double value) {
  run.on(Event::GradientsReady, [=](Run& now) {
    const torch::NoGradGuard no_grad;
    const auto found = std::ranges::find(now.parameters, "layers.0.bias", &vernier::Parameter::name);
    REQUIRE(found != now.parameters.end());
    if (now.step + 1 == step) found->master[0] = value;
  });
}

void skip(SmallRun& run, std::int64_t step) {
  run.on(Event::GradientsReady, [step](Run& now) {
    if (now.step + 1 == step) now.skip_update = torch::ones({});
  });
}

}  // namespace

TEST_CASE("flight_recorder: a skipped step does not clear the updates since the last look") {
  Flight flight({mlp(4), recorder + std::string("check_parameters_every = 3\n")}, std::nullopt);
  spoil_bias_in(flight.run, 1, -HUGE_VAL);  // the unit is switched off: the loss does not see it
  skip(flight.run, 3);
  flight.run.train();
  REQUIRE_FALSE(flight.notices.empty());
  CHECK(told(flight.notices[0], "step") == "3");
  CHECK(told(flight.notices[0], "tensor") == "layers.0.bias");
  CHECK(told(flight.notices[0], "operation") == "optimizer/sgd or a callback");
  CHECK(told(flight.notices[0], "update").empty());
}

TEST_CASE("flight_recorder: a run that was stopped tells what the unstopped one tells") {
  const auto flown = [](int looks, const std::vector<std::int64_t>& stops) {
    const TemporaryFolder output;
    const std::string around = "[checkpoint]\nuse = 'rolling'\n[[callback]]\nuse = 'schedule'\nkind = 'linear'\n";
    const auto config = from_toml({mlp(8), around + recorder + "check_parameters_every = " + std::to_string(looks)});
    std::vector<std::string> all;
    std::string digest;
    for (std::size_t i = 0; i <= stops.size(); ++i) {
      SmallRun run(config, output.path().string());
      spoil_bias_in(run, 4, HUGE_VAL);
      skip(run, 5);
      run.on(Event::StepEnd, [&](Run& now) {
        for (const auto& notice : now.notices) all.push_back(notice.text());
      });
      if (i > 0) CHECK(run.resume());
      if (i < stops.size()) run.stop_after(stops[i]);
      run.train();
      digest = run.digest();
    }
    for (const auto& entry : fs::directory_iterator(output.path() / "capsules")) {
      const auto capsule = vernier::read_capsule(entry.path());
      REQUIRE(capsule.origin);
      all.push_back(capsule.origin->text() + "; " + capsule.cause);
      CHECK(all.back().find("learning_rate") != std::string::npos);
    }
    all.push_back(digest);
    return all;
  };
  for (const int looks : {0, 2, 5}) {
    CAPTURE(looks);
    const auto whole = flown(looks, {});
    // From step 5 on there is no checkpoint: the weights are bad, and the loss shows it.
    for (const auto& stops : std::vector<std::vector<std::int64_t>>{{1}, {2}, {3}, {4}, {1, 3, 4}}) {
      CAPTURE(stops.front());
      CHECK(flown(looks, stops) == whole);
    }
  }
}

TEST_CASE("flight_recorder: a bad weight is looked into once, and ends the run") {
  for (const bool is_looking : {true, false}) {
    CAPTURE(is_looking);
    const auto looks = std::string("check_parameters_every = ") + (is_looking ? "1\n" : "0\n");
    Flight flight({mlp(9), recorder + looks}, std::nullopt);
    spoil_bias_in(flight.run, 2, HUGE_VAL);
    flight.run.train();
    std::vector<std::string> kept;
    for (const auto& notice : flight.notices) {
      if (!told(notice, "capsule").empty()) kept.push_back(told(notice, "step"));
    }
    CHECK(kept == std::vector<std::string>{"3"});
    CHECK(flight.run.run.step == 3);
    CHECK(flight.run.run.updates == 2);
  }
}

TEST_CASE("flight_recorder: what cannot be told of an update does not end the run") {
  struct Mute final : vernier::Callback {
    Mute() { set_id("callback/mute"); }
    vernier::State save() const override {
      if (is_mute) throw vernier::Error("nothing to be had");
      return {};
    }
    bool is_mute = false;
  };
  Flight flight({mlp(4), recorder}, std::nullopt);
  auto mute = std::make_unique<Mute>();
  auto& is_mute = mute->is_mute;
  flight.run.wiring->callbacks.push_back(std::move(mute));
  spoil_bias_in(flight.run, 2, HUGE_VAL);
  flight.run.on(Event::GradientsReady, [&](Run& run) { is_mute = run.step == 1; });
  flight.run.on(Event::StepEnd, [&](Run&) { is_mute = false; });
  flight.run.train();
  CHECK(flight.run.run.step == 3);  // the weight stays broken, so the run ends
  REQUIRE_FALSE(flight.notices.empty());
  CHECK(told(flight.notices[0], "tensor") == "layers.0.bias");
  CHECK(told(flight.notices[0], "operation") == "optimizer");
  CHECK(told(flight.notices[0], "update") == "2");
}

}  // namespace flight_recorder_update_test
