// flight_recorder: updates that make bad values of finite gradients.
#include <doctest/doctest.h>
#include <vernier/error.h>

#include <algorithm>
#include <map>
#include <random>

#include "flight.h"
#include "long_form.h"
#include "trace/capsule.h"

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
  // once: not when the update is done again.
  DividesByZero(std::string name, std::int64_t step, bool once = false)
      : name_(std::move(name)), step_(step), once_(once) {
    set_id("optimizer/toy");
  }
  void step(Run& run) override {
    const torch::NoGradGuard no_grad;
    if (run.skip_update.defined() && run.skip_update.item<float>() != 0) return;
    for (auto& parameter : run.parameters) {
      const bool is_hit = run.step + 1 == step_ && parameter.name == name_ && !(once_ && has_hit_);
      has_hit_ |= is_hit;
      const auto& gradient = parameter.master.grad();
      if (gradient.defined()) parameter.master.sub_(0.01 * (is_hit ? gradient / ones_and_a_zero(gradient) : gradient));
    }
  }

 private:
  std::string name_;
  std::int64_t step_;
  bool once_, has_hit_ = false;
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
  if (fault.kind == "state" && !is_8_bit) {  // what 8 bits keep of a nan is a code, which has no range
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
      if (now.step + 1 != fault.step || parameter.best().isfinite().all().item<bool>()) continue;
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

TEST_CASE("flight_recorder: updates that make bad values of finite gradients, at random") {
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
  const auto flown = [](int looks, const std::vector<std::int64_t>& stops, bool undoes = false) {
    const TemporaryFolder output;
    const std::string around = "[checkpoint]\nuse = 'rolling'\n[[callback]]\nuse = 'schedule'\nkind = 'linear'\n";
    const auto config = from_toml({mlp(8), around + recorder + "check_parameters_every = " + std::to_string(looks) +
                                               (undoes ? "\nundo_update = true\n[optimizer]\nuse = 'adamw'\n" : "")});
    std::vector<std::string> all;
    std::string digest;
    for (std::size_t i = 0; i <= stops.size(); ++i) {
      SmallRun run(config, output.path().string());
      if (!undoes) spoil_bias_in(run, 4, HUGE_VAL);
      run.on(Event::GradientsReady, [undoes](Run& now) {
        if (undoes && now.step == 3) now.learning_rate_factor *= 1e60;
      });
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
      if (undoes) CHECK(capsule.cause == "the repeat has the same bits");
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
  const auto whole = flown(2, {}, /*undoes=*/true);
  for (std::int64_t stop = 1; stop < 8; ++stop) CHECK(flown(2, {stop}, true) == whole);
}

TEST_CASE("flight_recorder: steps that a known bad weight breaks are skipped, and looked into once") {
  for (const bool is_looking : {true, false}) {
    CAPTURE(is_looking);
    const auto looks = std::string("check_parameters_every = ") + (is_looking ? "1\n" : "0\n");
    Flight flight({mlp(9), recorder + looks}, std::nullopt);
    spoil_bias_in(flight.run, 2, HUGE_VAL);
    flight.run.on(Event::StepBegin, [](Run& run) {
      const torch::NoGradGuard no_grad;
      if (run.step != 6) return;
      for (auto& parameter : run.parameters) parameter.model.nan_to_num_(0, 0, 0);
    });
    flight.run.on(Event::LossReady, [](Run& run) {
      if (run.step == 7) run.micro_batch_loss = run.micro_batch_loss * std::nan("");
    });
    flight.run.train();
    std::vector<std::string> kept;
    for (const auto& notice : flight.notices) {
      if (!told(notice, "capsule").empty()) kept.push_back(told(notice, "step"));
    }
    CHECK(kept == std::vector<std::string>{"3", "8"});  // once mended, another fault is another one
    REQUIRE(flight.notices.size() == (is_looking ? 6 : 5));
    CHECK(told(flight.notices[is_looking ? 3 : 2], "place").find("layers.0.bias: optimizer/sgd") != std::string::npos);
    CHECK(flight.run.run.updates == 4);
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
  CHECK(flight.run.run.step == 4);
  REQUIRE_FALSE(flight.notices.empty());
  CHECK(told(flight.notices[0], "tensor") == "layers.0.bias");
  CHECK(told(flight.notices[0], "operation") == "optimizer");
  CHECK(told(flight.notices[0], "update") == "2");
}

namespace {

constexpr const char* undoing = "[[callback]]\nuse = 'flight_recorder'\nundo_update = true\n";

// What an update makes of the weights, and the run in which it is skipped. A spoiled state stays spoiled.
struct ByHand {
  Broken broken;
  std::vector<vernier::TensorRange> before;
  std::string digest;
};

ByHand by_hand(const std::vector<std::string>& config, const BadUpdate& fault) {
  ByHand hand;
  for (const bool is_skipped : {false, true}) {
    Flight flight(config, std::nullopt);
    auto& run = flight.run;
    if (fault.kind == "zero") run.wiring->optimizer = std::make_unique<DividesByZero>(fault.parameter, fault.step);
    run.on(Event::GradientsReady, [&](Run& now) {
      put_in(now, *run.wiring->optimizer, fault);
      const bool is_hit = fault.kind == "state" ? now.step + 1 >= fault.step : now.step + 1 == fault.step;
      if (is_hit && is_skipped) now.skip_update = torch::ones({});
      if (now.step + 1 != fault.step || is_skipped) return;
      now.gradients();
      for (const auto& parameter : now.parameters) {
        const auto& gradient = parameter.master.grad();
        hand.broken.gradients.push_back(gradient.defined() ? vernier::range_of(gradient) : vernier::TensorRange());
        hand.before.push_back(vernier::range_of(parameter.best()));
      }
    });
    run.on(Event::StepEnd, [&](Run& now) {
      if (now.step + 1 != fault.step || is_skipped) return;
      for (const auto& parameter : now.parameters) {
        hand.broken.names.push_back(parameter.name);
        hand.broken.weights.push_back(vernier::range_of(parameter.best()));
      }
    });
    run.train();
    hand.digest = run.digest();
  }
  return hand;
}

// at: the parameter's number. id: the optimizer's.
void check_origin(const vernier::NonFiniteOrigin& origin, const ByHand& hand, std::size_t at, const BadUpdate& fault,
                  const std::string& id) {
  if (fault.kind == "zero") {
    CHECK(origin.operation == "optimizer/toy: div");
    REQUIRE(origin.inputs.size() == 2);
    CHECK(origin.inputs[1].second.zeros == 1);
    CHECK_FALSE(origin.outputs.at(0).second.is_finite());
    return;
  }
  // Vernier's own pass is not an operator that could be seen. A state that was bad before is not an operator's fault.
  const bool has_amsgrad = fault.optimizer.find("amsgrad") != std::string::npos;
  const bool is_fused = (id == "optimizer/adamw" && !has_amsgrad) || fault.kind == "state";
  CHECK(origin.operation == id + (is_fused ? "" : has_amsgrad ? ": _fused_adamw_" : ": _fused_sgd_"));
  const auto as_list = [&](const char* name) { return c10::str(name, "[", origin.inputs.at(0).first.substr(5)); };
  check_same(origin.outputs, {hand.broken.weights[at]}, {is_fused ? hand.broken.names[at] : origin.inputs.at(0).first});
  check_same(origin.inputs, {hand.before[at]}, {is_fused ? std::string("weight") : as_list("self")});
  const auto gradient = std::ranges::find(origin.inputs, is_fused ? std::string("gradient") : as_list("grads"),
                                          [](const auto& input) { return input.first; });
  REQUIRE(gradient != origin.inputs.end());
  if (fault.precision.find("fp16") == std::string::npos) check_same({*gradient}, {hand.broken.gradients[at]});
  CHECK(origin.inputs.back().first == "learning_rate");
  if (fault.kind == "rate") CHECK(origin.inputs.back().second.amax > 1e50);
}

// With undo_update the run is the one that skips such updates; what was wrong is told with what they were made from.
bool check_undone(const std::string& config, const BadUpdate& fault) {
  CAPTURE(fault.kind);
  CAPTURE(fault.parameter);
  CAPTURE(fault.optimizer);
  CAPTURE(fault.precision);
  CAPTURE(fault.step);
  const std::vector<std::string> around = {config, fault.optimizer, fault.precision};
  const auto hand = by_hand(around, fault);
  const auto bad = std::ranges::find_if(hand.broken.weights, [](const auto& range) { return !range.is_finite(); });
  if (bad == hand.broken.weights.end()) return false;
  const auto at = static_cast<std::size_t>(bad - hand.broken.weights.begin());

  auto with = around;
  with.push_back(undoing);
  Flight flight(with, std::nullopt);
  auto& run = flight.run;
  if (fault.kind == "zero") run.wiring->optimizer = std::make_unique<DividesByZero>(fault.parameter, fault.step);
  const auto id = run.wiring->optimizer->id();
  run.on(Event::GradientsReady, [&](Run& now) { put_in(now, *run.wiring->optimizer, fault); });
  run.train();
  CAPTURE(last_log);
  CHECK_FALSE(flight.is_bad);
  CHECK(run.digest() == hand.digest);
  CHECK(run.run.updates == (fault.kind == "state" ? fault.step - 1 : run.run.steps - 1));
  REQUIRE_FALSE(flight.notices.empty());
  if (fault.kind != "state") CHECK(flight.notices.size() == 1);
  const auto& notice = flight.notices.front();
  CHECK(told(notice, "step") == std::to_string(fault.step));
  CHECK(told(notice, "what") == "parameter");
  CHECK(told(notice, "phase") == "update");
  CHECK(told(notice, "tensor") == hand.broken.names[at]);
  CHECK(told(notice, "layer") == layer_of(hand.broken.names[at]));
  CHECK(told(notice, "update") == std::to_string(fault.step));
  CHECK(told(notice, "transient") == "0");
  const auto capsule = capsule_of(flight, notice);
  CHECK(capsule.step == fault.step);
  CHECK(capsule.cause == "the repeat has the same bits");
  CHECK(capsule.seen.weights == capsule.repeated.weights);
  CHECK(capsule.repeated.weights.size() == hand.broken.names.size());
  check_origin(*capsule.origin, hand, at, fault, id);
  return true;
}

}  // namespace

TEST_CASE(
    "flight_recorder: with undo_update bad updates at random are undone, and named with what they were made from") {
  const TemporaryFolder folder;
  const std::vector<std::string> configs = {gpt(folder, 5), images(folder, 5)};
  const std::vector<std::vector<std::string>> parameters = {names_of_parameters(configs[0]),
                                                            names_of_parameters(configs[1])};
  std::mt19937 random(13);
  const std::vector<std::string> kinds = {"rate", "state", "zero"};
  std::map<std::string, int> harmful;
  const int trials = is_long() ? 90 : 36;
  for (int i = 0; i < trials; ++i) {
    const auto task = random() % 2;
    const auto fault = drawn(random, parameters[task], kinds);
    harmful[fault.kind] += check_undone(configs[task], fault) ? 1 : 0;
  }
  for (const auto& kind : kinds) {
    CAPTURE(kind);
    CHECK(harmful[kind] >= trials * 2 / 9);
  }
}

TEST_CASE("flight_recorder: an update that is bad once is undone and told as transient") {
  Flight flight({mlp(4), undoing}, std::nullopt);
  flight.run.wiring->optimizer = std::make_unique<DividesByZero>("layers.1.weight", 2, /*once=*/true);
  flight.run.train();
  REQUIRE(flight.notices.size() == 1);
  CHECK(told(flight.notices[0], "transient") == "1");
  CHECK(told(flight.notices[0], "tensor") == "layers.1.weight");
  CHECK(told(flight.notices[0], "operation") == "optimizer/toy");
  CHECK(last_log.find("the same update again is finite: a transient fault") != std::string::npos);
  CHECK(last_log.find("the update is undone") != std::string::npos);
  CHECK(flight.run.run.updates == 3);
}

TEST_CASE("flight_recorder: an update of gradients that the repeat does not have is a transient fault of the step") {
  const std::string spike =
      "[[callback]]\nuse = 'inject'\nwhat = 'spike'\nfactor = 1e36\nlayer = 'layers.0'\nat_step = 3\n"
      "transient = ";
  for (const bool is_transient : {true, false}) {
    CAPTURE(is_transient);
    Flight flight({mlp(5), spike + (is_transient ? "true\n" : "false\n") + undoing}, std::nullopt);
    flight.run.on(Event::GradientsReady, [](Run& run) {
      if (run.step == 2) run.learning_rate_factor *= 1e6;
    });
    flight.run.train();
    REQUIRE_FALSE(flight.notices.empty());
    CHECK(told(flight.notices[0], "step") == "3");
    CHECK(told(flight.notices[0], "what") == "parameter");
    CHECK(told(flight.notices[0], "transient") == (is_transient ? "1" : "0"));
    const auto capsule = capsule_of(flight, flight.notices[0]);
    const auto* cause = is_transient ? "the same step again differs in the gradients of layers.0.weight"
                                     : "the repeat has the same bits";
    CHECK(capsule.cause.find(cause) == 0);
    CHECK(capsule.repeated.weights.empty() == is_transient);
  }
}

TEST_CASE(
    "flight_recorder: with undo_update gradients are looked at in each step of a look, so that no update is blamed") {
  Flight flight({mlp(6), "[[callback]]\nuse = 'inject'\nwhat = 'nan'\nlayer = 'layers.0'\nat_step = 2\n",
                 undoing + std::string("check_every = 5\n")},
                std::nullopt);
  flight.run.train();
  REQUIRE(flight.notices.size() == 1);
  CHECK(told(flight.notices[0], "step") == "2");
  CHECK(told(flight.notices[0], "phase") == "backward");
  CHECK(flight.run.run.updates == 5);
}

TEST_CASE("flight_recorder: with undo_update a cast that overflows is the precision's, and its operation is told") {
  Flight flight({mlp(3), precisions[2], "[precision]\nlevel = 'O2'\n", undoing}, std::nullopt);
  flight.run.on(Event::GradientsReady, [](Run& run) {
    const torch::NoGradGuard no_grad;
    if (run.step == 1) run.parameters[2].master.view(-1)[3] = 1e5;
  });
  flight.run.train();
  REQUIRE_FALSE(flight.notices.empty());
  CHECK(told(flight.notices[0], "step") == "2");
  CHECK(told(flight.notices[0], "operation") == "precision/fp16: copy_");
  const auto origin = *capsule_of(flight, flight.notices[0]).origin;
  CHECK(origin.tensor == flight.run.run.parameters[2].name);
  REQUIRE_FALSE(origin.inputs.empty());
  CHECK(origin.inputs.back().second.amax > 9e4);
  CHECK(origin.outputs.at(0).second.infs == 1);
}

TEST_CASE(
    "flight_recorder: undo_update beyond `capsules`, in steps without a look, and where nothing can be repeated") {
  const auto spoil_rate = [](SmallRun& run, std::int64_t from, std::int64_t to) {
    run.on(Event::GradientsReady, [=](Run& now) {
      if (now.step + 1 >= from && now.step + 1 <= to) now.learning_rate_factor *= 1e60;
    });
  };
  {
    Flight flight({mlp(6), undoing + std::string("capsules = 1\n")}, std::nullopt);
    spoil_rate(flight.run, 2, 4);
    flight.run.train();
    CHECK(flight.run.run.updates == 3);
    REQUIRE(flight.notices.size() == 3);
    CHECK_FALSE(told(flight.notices[0], "capsule").empty());
    CHECK(told(flight.notices[1], "capsule").empty());
    CHECK(told(flight.notices[1], "place").find("optimizer/sgd") != std::string::npos);
  }
  {  // the second look finds what the second step made: that was not this update
    Flight flight({mlp(6), undoing + std::string("check_parameters_every = 3\n")}, std::nullopt);
    spoil_rate(flight.run, 2, 2);
    flight.run.train();
    REQUIRE_FALSE(flight.notices.empty());
    CHECK(told(flight.notices[0], "step") == "3");
    CHECK(flight.is_bad);
  }
  {
    Flight flight({mlp(4), undoing}, std::nullopt);
    spoil_rate(flight.run, 2, 2);
    int times = 0;
    flight.run.on(Event::LossReady, [&times](Run& run) {
      if (run.step == 1 && ++times == 2) throw vernier::Error("no room");
    });
    flight.run.train();
    CHECK(times == 2);
    CHECK_FALSE(flight.is_bad);
    CHECK(flight.run.run.updates == 3);
    REQUIRE(flight.notices.size() == 1);
    CHECK(told(flight.notices[0], "place").find("optimizer/sgd") != std::string::npos);
    CHECK(last_log.find("no room") != std::string::npos);
  }
  {  // one that a callback made bad is not the updates', which go on
    Flight flight({mlp(9), undoing}, std::nullopt);
    spoil_bias_in(flight.run, 2, -HUGE_VAL);  // the unit is switched off: the loss does not see it
    flight.run.train();
    CHECK_FALSE(flight.is_bad);
    REQUIRE_FALSE(flight.notices.empty());
    CHECK(told(flight.notices[0], "step") == "2");
    CHECK(told(flight.notices[0], "operation") == "written by no update");
    CHECK(flight.run.run.updates == 7);  // without the second and, looked into, the third
  }
  CHECK_THROWS_WITH(Flight({mlp(4), undoing + std::string("check_parameters_every = 0\n")}, std::nullopt),
                    doctest::Contains("undo_update"));
}

}  // namespace flight_recorder_update_test
