#include "../../../plugins/callback/recovery/outliers.h"

#include <doctest/doctest.h>
#include <torch/nn/module.h>
#include <vernier/grad_norm.h>
#include <vernier/host.h>

#include <cmath>
#include <csignal>
#include <map>
#include <random>

#include "same_tensors.h"
#include "thrown.h"
#include "toy_run.h"

namespace recovery_test {

using toy::Toy;
using vernier::Event;
using vernier::Run;
using vernier::Table;

namespace {

using Numbers = std::vector<std::int64_t>;
using Texts = std::vector<std::string>;

vernier::Value value(std::int64_t data) {
  return {data, "test.toml:2"};
}
vernier::Value value(double data) {
  return {data, "test.toml:2"};
}
vernier::Value value(const Texts& texts) {
  vernier::Array array;
  for (const auto& text : texts) array.push_back({text, "test.toml:2"});
  return {array, "test.toml:2"};
}

// The loss of some batches times a factor, the others as they are. Counted from 0.
struct Faults final : vernier::Callback {
  explicit Faults(std::map<std::int64_t, double> factors) : factors(std::move(factors)) { set_id("callback/faults"); }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::BatchReady, [this](Run& run) { trained.push_back(run.batches_drawn); });
    bus.on(Event::LossReady, [this](Run& run) {
      if (const auto found = factors.find(run.batches_drawn); found != factors.end()) {
        run.micro_batch_loss = run.micro_batch_loss * found->second;
      }
    });
  }
  std::map<std::int64_t, double> factors;
  Numbers trained;
};

// The effect on the run in a step: its batch, its rate, or -1 if it was skipped.
struct Update {
  std::int64_t batch;
  double rate = 1;
  double loss_factor = 1;
};

std::vector<torch::Tensor> by_hand(const std::vector<Update>& updates) {
  toy::Task task;
  vernier::TrainerRun run;
  task.prepare(run);
  for (const auto& [batch, rate, factor] : updates) {
    (task.loss(task.batch(batch % 3)) * factor).backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : run.model->parameters()) {
      parameter.sub_(parameter.grad(), 0.1 * rate);
      parameter.mutable_grad().reset();
    }
  }
  std::vector<torch::Tensor> weights;
  for (const auto& parameter : run.model->parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

std::vector<torch::Tensor> by_hand(const Numbers& batches) {
  std::vector<Update> updates;
  for (const auto batch : batches) updates.push_back({batch});
  return by_hand(updates);
}

struct Recovered : Toy {
  Recovered(Table options, std::map<std::int64_t, double> factors, std::int64_t steps = 6) {
    wiring.callbacks.push_back(make_plugin<vernier::Callback>("callback/recovery", std::move(options)));
    faults = new Faults(std::move(factors));
    wiring.callbacks.emplace_back(faults);
    run.steps = steps;
    look(Event::StepEnd, [this](const Run& now) {
      for (const auto& notice : now.notices) {
        if (notice.name != "recovered") continue;
        told.push_back(c10::str(now.step, ": ", notice.text().substr(10)));
        sentences.push_back(notice.sentence);
      }
    });
  }
  Recovered& train() {
    prepare();
    thrown = thrown_by([&] { trainer->train(run); });
    return *this;
  }
  // Adds a listener to GradientsReady that is called before recovery.
  void before(std::function<void(Run&)> listener) {
    wiring.callbacks.insert(wiring.callbacks.begin(),
                            std::make_unique<toy::Told<vernier::Callback>>(
                                "callback/before", [listener = std::move(listener)](vernier::Bus& bus) {
                                  bus.on(Event::GradientsReady, listener);
                                }));
  }
  Faults* faults;
  Texts told, sentences;
  Thrown thrown;
};

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("recovery: z-scores are those of torch.std_mean over the values before, what is left out left out") {
  for (const std::int64_t window : {2, 7, 20, 41, 128}) {
    CAPTURE(window);
    recovery::Outliers outliers(window);
    outliers.prepare(torch::kCPU);
    std::mt19937_64 random(static_cast<std::uint64_t>(window));
    std::normal_distribution<double> normal;
    std::vector<torch::Tensor> kept;
    for (int i = 0; i < 300; ++i) {
      const auto values = torch::tensor({3 + 0.1 * normal(random), 1e5 + normal(random)}, torch::kFloat64);
      const auto z = outliers.z_scores(values);
      const auto needed = std::min<std::size_t>(window, std::max<std::size_t>(20, window / 2));
      if (kept.size() < needed) {
        CHECK(z.isnan().all().item<bool>());
      } else {
        const auto from = kept.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(kept.size(), window));
        const auto last = torch::stack(std::vector<torch::Tensor>(from, kept.end()));
        CHECK(z.allclose((values - last.mean(0)) / last.std(0), 1e-6, 1e-6));
      }
      const bool keep = random() % 5 != 0;
      outliers.add(values, torch::tensor(keep));
      if (keep) kept.push_back(values);
    }
  }
  recovery::Outliers same(20);
  same.prepare(torch::kCPU);
  const auto one = torch::ones({2}, torch::kFloat64);
  for (int i = 0; i < 30; ++i) same.add(one, torch::tensor(true));
  CHECK(same.z_scores(one * 2).isnan().all().item<bool>());  // no history, no outlier
}

TEST_CASE("recovery: by default what is not finite is skipped, with no scaler in the run") {
  Recovered run({}, {{2, not_a_number}, {3, HUGE_VAL}});
  run.train();
  CHECK(run.thrown == Thrown{});
  CHECK(equal(run.weights(), by_hand(Numbers{0, 1, 4, 5})));
  CHECK(run.run.updates == 4);
  CHECK(run.told == Texts{"3: trigger=non_finite loss=nan action=skip time=1 of 10",
                          "4: trigger=non_finite loss=inf action=skip time=2 of 10"});
  CHECK(run.sentences ==
        Texts{"loss is nan; the update is skipped, time 1 of 10", "loss is inf; the update is skipped, time 2 of 10"});
}

TEST_CASE("recovery: a storm ends after the bound, with a checkpoint of weights that no bad update touched") {
  std::map<std::int64_t, double> all;
  for (int i = 2; i < 100; ++i) all[i] = not_a_number;
  Recovered run({}, all, 100);
  run.train();
  CHECK(run.thrown ==
        failed("callback/recovery after step 12: 10 updates in a row were skipped, the last in step 12; "
               "`skips_in_a_row` says stop. The checkpoint has the weights from before it; --resume continues"));
  CHECK(run.memory().steps == Numbers{12});
  CHECK(equal(run.weights(), by_hand(Numbers{0, 1})));
  Recovered again({}, {}, 14);  // the cause is gone: it goes on, and counts anew
  auto& trainer = again.prepare();
  trainer.resume(again.run, *run.memory().last);
  trainer.train(again.run);
  CHECK(equal(again.weights(), by_hand(Numbers{0, 1, 12, 13})));
}

TEST_CASE("recovery: skips are counted in a row, and the bound of the list is its own") {
  CHECK(Recovered({{"non_finite", value(Texts{"skip 2"})}},
                  {{1, not_a_number}, {2, not_a_number}, {4, not_a_number}, {5, not_a_number}}, 8)
            .train()
            .thrown == Thrown{});
  const auto ended =
      Recovered({{"non_finite", value(Texts{"skip 2"})}}, {{1, not_a_number}, {2, not_a_number}, {3, not_a_number}}, 8)
          .train()
          .thrown;
  CHECK(says(ended.text, "callback/recovery after step 4: loss is nan in step 4; no action of `non_finite` is left"));
}

TEST_CASE("recovery: the learning rate is lowered, stays, and comes back in a line") {
  const Table options{{"non_finite", value(Texts{"lower_learning_rate"})},
                      {"rate_factor", value(0.25)},
                      {"rate_steps", value(std::int64_t{3})},
                      {"rate_return", value(std::int64_t{2})}};
  Recovered run(options, {{2, not_a_number}}, 9);
  run.train();
  const double f = 0.25;
  CHECK(
      equal(run.weights(),
            by_hand({{0}, {1}, {3, f}, {4, f}, {5, f + (1 - f) * (1.0 / 3)}, {6, f + (1 - f) * (2.0 / 3)}, {7}, {8}})));
  CHECK(run.told == Texts{"3: trigger=non_finite loss=nan action=lower_learning_rate factor=0.25 time=1 of 3",
                          "8: action=learning rate is back"});
  CHECK(run.sentences == Texts{"loss is nan; the learning rate is 0.25 of its schedule, time 1 of 3",
                               "the learning rate is back on its schedule"});
  Recovered twice(options, {{2, not_a_number}, {4, not_a_number}}, 7);
  twice.train();
  CHECK(equal(twice.weights(), by_hand({{0}, {1}, {3, f}, {5, f * f}, {6, f * f}})));
}

TEST_CASE("recovery: going back, the run is the one without the batches that did it") {
  const Table options{{"non_finite", value(Texts{"rewind"})},
                      {"rewind_back", value(std::int64_t{2})},
                      {"snapshot_every", value(std::int64_t{1})}};
  Recovered run(options, {{3, not_a_number}, {6, HUGE_VAL}}, 8);
  run.train();
  CHECK(run.thrown == Thrown{});
  CHECK(equal(run.weights(), by_hand(Numbers{0, 1, 2, 4, 5, 7, 8, 9})));
  CHECK(run.run.updates == 8);
  CHECK(run.told.size() == 2);
  CHECK(run.told[0] == "4: trigger=non_finite loss=nan action=rewind back=2 drop=1 time=1 of 3");
  CHECK(run.sentences[0] == "loss is nan; the run goes back (steps: 2, batches left out: 1), time 1 of 3");
}

TEST_CASE("recovery: lists go on to the next action, and a rewind drops all batches of the trouble") {
  const Table options{{"non_finite", value(Texts{"skip 2", "rewind 1"})},
                      {"rewind_back", value(std::int64_t{3})},
                      {"snapshot_every", value(std::int64_t{1})},
                      {"snapshots", value(std::int64_t{4})}};
  Recovered run(options, {{3, not_a_number}, {4, not_a_number}, {5, not_a_number}}, 8);
  run.train();
  CHECK(run.thrown == Thrown{});
  CHECK(run.faults->trained == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  CHECK(equal(run.weights(), by_hand(Numbers{0, 1, 2, 6, 7, 8, 9, 10})));
  CHECK(run.told.back() == "6: trigger=non_finite loss=nan action=rewind back=3 drop=3");
  const auto ended = Recovered(options, {{3, not_a_number}, {4, not_a_number}, {5, not_a_number}, {6, not_a_number}}, 8)
                         .train()
                         .thrown;
  CHECK(says(ended.text, "no action of `non_finite` is left"));
}

TEST_CASE("recovery: an update of several batches is one, and an epoch's short one is in a row with the next") {
  const Table options{{"non_finite", value(Texts{"skip 2", "rewind 1"})},
                      {"rewind_back", value(std::int64_t{3})},
                      {"snapshot_every", value(std::int64_t{1})},
                      {"snapshots", value(std::int64_t{4})}};
  Recovered run(options, {{2, not_a_number}, {4, not_a_number}, {5, not_a_number}}, 4);
  run.wiring.task = std::make_unique<toy::Task>(5);
  run.wiring.accumulation = make_plugin<vernier::Accumulation>(
      "accumulation/target", {{"target_effective_batch_size", value(std::int64_t{12})}});
  Numbers updates;
  run.on(Event::StepBegin, [&](Run& now) { updates.push_back(now.batches_drawn); });
  run.train();
  CHECK(run.thrown == Thrown{});
  CHECK(updates == Numbers{0, 2, 4, 5, 7, 9, 10});
  CHECK(run.told.back() == "4: trigger=non_finite loss=nan action=rewind back=3 drop=3");
}

TEST_CASE("recovery: batches that are passed over already are not counted as dropped again") {
  const Table options{{"non_finite", value(Texts{"rewind"})},
                      {"rewind_back", value(std::int64_t{2})},
                      {"rewind_drop", value(std::int64_t{2})},
                      {"snapshot_every", value(std::int64_t{1})}};
  Recovered run(options, {{3, not_a_number}, {4, not_a_number}}, 6);
  run.train();
  CHECK(run.thrown == Thrown{});
  CHECK(run.faults->trained == Numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});  // 2 and 3, then 1 and 4
  CHECK(equal(run.weights(), by_hand(Numbers{0, 5, 6, 7, 8, 9})));
}

TEST_CASE("recovery: a fault that comes again however far it goes back ends the run") {
  const Table options{{"non_finite", value(Texts{"rewind 3"})},
                      {"rewind_back", value(std::int64_t{1})},
                      {"rewind_drop", value(std::int64_t{0})},
                      {"snapshot_every", value(std::int64_t{1})},
                      {"calm_steps", value(std::int64_t{1})}};
  Recovered run(options, {{4, not_a_number}}, 8);
  run.train();
  CHECK(says(run.thrown.text,
             "callback/recovery after step 5: loss is nan in step 5; no action of `non_finite` is left"));
  CHECK(run.told.size() == 3);
  CHECK(run.faults->trained == Numbers{0, 1, 2, 3, 4, 4, 3, 4, 2, 3, 4});  // each time a step further
}

TEST_CASE("recovery: a spike is what is far above its recent values") {
  const Table options{{"spike", value(Texts{"skip"})}, {"window", value(std::int64_t{20})}};
  std::map<std::int64_t, double> factors{{30, 1e4}, {31, 1e4}, {50, 1e-4}};
  std::mt19937 random(3);
  for (int i = 0; i < 70; ++i) {
    if (factors.count(i) == 0) factors[i] = 1 + 0.01 * static_cast<double>(random() % 100);
  }
  Recovered run(options, factors, 60);
  run.train();
  std::vector<Update> expected;
  for (int i = 0; i < 60; ++i) {
    if (i != 30 && i != 31) expected.push_back({i, 1, factors[i]});
  }
  CHECK(run.told.size() == 2);
  CHECK(run.told[0].starts_with("31: trigger=spike loss="));
  CHECK(run.told[1].starts_with("32: trigger=spike loss="));  // the first has not widened the range
  CHECK(equal(run.weights(), by_hand(expected)));
}

TEST_CASE("recovery: lowered at a spike, its own update is applied at the lower rate") {
  const Table options{{"spike", value(Texts{"lower_learning_rate"})},
                      {"window", value(std::int64_t{4})},
                      {"z_score", value(50.0)},
                      {"rate_steps", value(std::int64_t{2})},
                      {"rate_return", value(std::int64_t{0})}};
  std::map<std::int64_t, double> factors;
  for (int i = 0; i < 12; ++i) factors[i] = i == 8 ? 100 : 1 + 0.1 * (i % 2);
  Recovered run(options, factors, 12);
  run.train();
  std::vector<Update> expected;
  for (int i = 0; i < 12; ++i) expected.push_back({i, i == 8 || i == 9 ? 0.5 : 1.0, factors[i]});
  CHECK(run.told.size() == 2);
  CHECK(equal(run.weights(), by_hand(expected)));
}

TEST_CASE("recovery: weights that are not finite are named; a skip does not help, and no checkpoint is made of them") {
  const auto spoil = [](Recovered& run, std::int64_t step) {
    run.on(Event::StepEnd, [step](Run& now) {
      if (now.batches_drawn - 1 == step) now.parameters[1].model.detach()[0][0] = not_a_number;
    });
  };
  Recovered run({}, {});
  spoil(run, 2);
  run.train();
  CHECK(says(run.thrown.text,
             "weights are not finite in step 4: second; no action of `non_finite` is left that could help."));
  CHECK(run.memory().steps.empty());

  Recovered skipped({{"non_finite", value(Texts{})}, {"skips", value(std::int64_t{2})}}, {});
  skipped.before([](Run& now) { now.skip_update = torch::ones({}, torch::kFloat32); });
  spoil(skipped, 0);
  skipped.train();
  CHECK(says(skipped.thrown.text,
             "2 updates in a row were skipped, the last in step 2; `skips_in_a_row` says stop; weights are not finite: "
             "second. No checkpoint is made of these weights."));
  CHECK(skipped.memory().steps.empty());

  Recovered back({{"non_finite", value(Texts{"skip", "rewind"})},
                  {"rewind_back", value(std::int64_t{1})},
                  {"rewind_drop", value(std::int64_t{2})},
                  {"snapshot_every", value(std::int64_t{1})}},
                 {});
  spoil(back, 2);
  back.train();
  CHECK(back.thrown == Thrown{});
  CHECK(back.told.size() == 2);  // the newest copy has them too
  CHECK(equal(back.weights(), by_hand(Numbers{0, 1, 5, 6, 7, 8})));
}

TEST_CASE("recovery: another listener's veto is not a scaler; gradients that are not finite are met beside it") {
  Recovered run({}, {});
  run.before([](Run& now) {
    now.skip_update = torch::zeros({}, torch::kFloat32);
    if (now.step == 2) now.parameters[0].master.grad().fill_(not_a_number);
  });
  run.train();
  CHECK(run.thrown == Thrown{});
  CHECK(run.told == Texts{"3: trigger=non_finite gradients=first action=skip time=1 of 10"});
  CHECK(equal(run.weights(), by_hand(Numbers{0, 1, 3, 4, 5})));
}

TEST_CASE("recovery: the norm that the scaler has found is taken, and the gradients stay scaled") {
  Recovered run({{"spike", value(Texts{"skip"})}}, {});
  run.before([](Run& now) {
    const auto gradients = now.gradients();
    for (const auto& gradient : gradients) gradient.mul_(4);
    now.grad_scale = torch::full({}, 4.0, torch::kFloat32);
    now.norms.all = vernier::grad_norm(gradients).to(torch::kFloat64);
  });
  int steps = 0;
  run.on(Event::GradientsReady, [&steps](Run& now) {
    CHECK(now.norms.all.defined());
    CHECK(now.grad_scale.defined());
    const auto norm = vernier::grad_norm(now.gradients()).item<double>();  // the optimizer will use these
    CHECK(now.metrics.value("grad_norm").value() == doctest::Approx(norm));
    CHECK(now.gradient_norm().item<double>() == doctest::Approx(norm));
    steps += 1;
  });
  run.train();
  CHECK(run.thrown == Thrown{});
  CHECK(steps == 6);
  CHECK(equal(run.weights(), by_hand(Numbers{0, 1, 2, 3, 4, 5})));
}

TEST_CASE("recovery: the norm that a callback before it has computed is taken") {
  Recovered run({}, {});
  run.before([](Run& now) { now.norms.before_clipping = torch::full({}, now.step == 2 ? not_a_number : 1.0); });
  run.on(Event::GradientsReady, [](Run& now) { CHECK_FALSE(now.metrics.value("grad_norm").has_value()); });
  run.train();
  CHECK(run.told == Texts{"3: trigger=non_finite grad_norm=nan action=skip time=1 of 10"});
  CHECK(equal(run.weights(), by_hand(Numbers{0, 1, 3, 4, 5})));
}

TEST_CASE("recovery: a run that goes on with `spike`, or with another window, starts its history anew") {
  Recovered without({}, {}, 2);
  without.train();
  CHECK(without.thrown == Thrown{});
  std::optional<vernier::State> saved = without.memory().last;
  std::int64_t steps = 2;
  for (const std::int64_t window : {20, 30}) {
    CAPTURE(window);
    REQUIRE(saved);
    Recovered run({{"spike", value(Texts{"skip"})}, {"window", value(window)}}, {}, steps += 2);
    auto& trainer = run.prepare();
    CHECK(thrown_by([&] {
            trainer.resume(run.run, *saved, /*allow_inexact=*/true);
            trainer.train(run.run);
          }) == Thrown{});
    CHECK(run.run.step == steps);
    saved = run.memory().last;
    if (window == 30) CHECK(equal(run.weights(), by_hand(Numbers{0, 1, 2, 3, 4, 5})));
  }
}

TEST_CASE("recovery: random faults and lists, stopped at any step and resumed, end in the same bits") {
  std::mt19937 random(11);
  const std::vector<Texts> lists{{"skip"},
                                 {"rewind"},
                                 {"lower_learning_rate"},
                                 {"skip 1", "rewind 2", "lower_learning_rate"},
                                 {"lower_learning_rate 1", "rewind"}};
  for (int i = 0; i < 12; ++i) {
    const Table options{{"non_finite", value(lists[random() % lists.size()])},
                        {"spike", value(lists[random() % lists.size()])},
                        {"window", value(std::int64_t{4})}};
    auto with = options;
    const auto uses = [&](const std::string& action) {
      return std::ranges::any_of(options, [&](const auto& entry) {
        const auto* list = std::get_if<vernier::Array>(&entry.second.data);
        return list != nullptr && std::ranges::any_of(*list, [&](const auto& text) {
                 return std::get<std::string>(text.data).starts_with(action);
               });
      });
    };
    if (uses("rewind")) {
      with["rewind_back"] = value(static_cast<std::int64_t>(1 + random() % 3));
      with["snapshot_every"] = value(static_cast<std::int64_t>(1 + random() % 3));
      with["snapshots"] = value(std::int64_t{4});
    }
    if (uses("lower")) with["rate_steps"] = with["rate_return"] = value(std::int64_t{2});
    std::map<std::int64_t, double> factors;
    for (int k = 0; k < 3; ++k)
      factors[static_cast<std::int64_t>(random() % 12)] = random() % 2 == 0 ? not_a_number : 1e5;
    Recovered whole(with, factors, 12);
    whole.train();
    if (whole.thrown != Thrown{}) continue;
    const auto passes = static_cast<std::int64_t>(whole.faults->trained.size());
    for (std::int64_t stop = 1; stop <= passes; ++stop) {
      CAPTURE(stop);
      Recovered first(with, factors, 12), second(with, factors, 12);
      std::int64_t count = 0;
      first.look(Event::StepEnd, [&](const Run&) {
        if (++count == stop) first.stop = SIGINT;
      });
      first.train();
      second.look(Event::StepEnd, [](const Run&) {});
      auto& trainer = second.prepare();
      trainer.resume(second.run, *first.memory().last);
      CHECK(thrown_by([&] { trainer.train(second.run); }) == Thrown{});
      CHECK(equal(second.weights(), whole.weights()));
      CHECK(second.run.batches_drawn == whole.run.batches_drawn);
      auto told = first.told;
      told.insert(told.end(), second.told.begin(), second.told.end());
      CHECK(told == whole.told);
    }
  }
}

}  // namespace recovery_test
