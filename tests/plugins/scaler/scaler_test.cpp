// none, static, dynamic and statistical; what all scalers do to a run.
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/grad_scaler.h>
#include <vernier/host.h>
#include <vernier/loss_scale.h>
#include <vernier/roles.h>
#include <vernier/safetensors.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "fake_control.h"
#include "host_syncs.h"
#include "log_lines.h"
#include "output/summary.h"
#include "plugin_library.h"
#include "small_run.h"
#include "temporary_folder.h"
#include "thrown.h"
#include "toy_run.h"

namespace scaler_test {

using vernier::Event;
using vernier::Scaler;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// A scaler as the trainer calls it, on one parameter whose gradient is given.
struct Fixture {
  explicit Fixture(const std::string& name, vernier::Table options = {})
      : plugin(make_plugin<Scaler>("scaler/" + name, std::move(options))), weight(torch::zeros({3})) {
    vernier::HostApi::attach(bus, *plugin, false);
    run.parameters.push_back({"weight", weight, weight});
    run.control = &control;
    plugin->prepare(run);
  }

  // The scale of the step, with a gradient whose true value is `gradient`.
  double step(double gradient) {
    run.notices.clear();
    vernier::HostApi::clear(run.metrics);
    run.found_inf.reset();
    run.grad_scale.reset();
    run.norms.all.reset();
    const auto scale = plugin->scale(torch::ones({}));
    weight.mutable_grad() = torch::full({3}, gradient) * scale;
    plugin->unscale(run);
    plugin->update(run);
    run.step += 1;
    vernier::HostApi::emit(bus, Event::StepEnd, run);
    return scale.item<double>();
  }

  std::unique_ptr<Scaler> plugin;
  torch::Tensor weight;
  vernier::TrainerRun run;
  vernier::Bus bus;
  FakeControl control;
};

std::string refusal_of(vernier::Table options, const std::string& name = "dynamic") {
  try {
    make_plugin<Scaler>("scaler/" + name, std::move(options));
  } catch (const vernier::Error& error) {
    CHECK((error.kind() == vernier::Error::Kind::configuration));
    return error.what();
  }
  return "";
}

vernier::Value number(double value) {
  return {value, "test.toml:2"};
}
vernier::Value whole(std::int64_t value) {
  return {value, "test.toml:3"};
}
vernier::Value text(const char* value) {
  return {std::string(value), "test.toml:4"};
}

std::vector<std::string> names_of(const vernier::Run& run) {
  std::vector<std::string> names;
  for (const auto& notice : run.notices) names.push_back(notice.name);
  return names;
}

vernier::Table small_law() {
  return {{"init_scale", {64.0, ""}}, {"growth_interval", {std::int64_t{3}, ""}}, {"growth_factor", {4.0, ""}}};
}

}  // namespace

TEST_CASE("scaler: none leaves loss and gradients and checks nothing") {
  Fixture fixture("none");
  const auto loss = torch::ones({});
  CHECK(fixture.plugin->scale(loss).is_same(loss));
  CHECK_FALSE(fixture.plugin->scales());
  fixture.step(infinity);
  CHECK_FALSE(fixture.run.found_inf.defined());
  CHECK(fixture.run.metrics.set_now().empty());
}

TEST_CASE("scaler: static scales and unscales exactly by a power of two, and never changes") {
  Fixture fixture("static", {{"scale", {4096.0, ""}}});
  CHECK(fixture.plugin->scales());
  for (const double gradient : {1.0 / 3, infinity, std::nan(""), 1e-20}) {
    CHECK(fixture.step(gradient) == 4096.0);
    const auto unscaled = fixture.run.gradients()[0][0].item<float>();
    if (std::isfinite(gradient)) CHECK(unscaled == static_cast<float>(gradient));
    CHECK(fixture.run.found_inf.item<float>() == (std::isfinite(gradient) ? 0.0F : 1.0F));
    CHECK(fixture.run.metrics.value("scale") == 4096.0);
    CHECK(fixture.run.notices.empty());
  }
}

TEST_CASE("scaler: dynamic's law, step by step") {
  Fixture fixture("dynamic", small_law());
  const std::vector<std::pair<double, double>> gradients_and_scales = {{1, 64},         {1, 64},  {1, 64},
                                                                       {1, 256},  // three in a row
                                                                       {infinity, 256}, {1, 128}, {std::nan(""), 128},
                                                                       {1, 64},         {1, 64},  {infinity, 64},
                                                                       {1, 32},         {1, 32},  {1, 32},
                                                                       {1, 128}};
  for (const auto& [gradient, scale] : gradients_and_scales) {
    CHECK(fixture.step(gradient) == scale);
    CHECK(fixture.run.metrics.value("scale") == scale);
    CHECK(fixture.run.found_inf.item<float>() == (std::isfinite(gradient) ? 0.0F : 1.0F));
  }
}

TEST_CASE("scaler: dynamic is PyTorch's GradScaler over random infinities") {
  for (const unsigned seed : {1U, 2U, 3U}) {
    std::mt19937 random(seed);
    Fixture fixture("dynamic", small_law());
    vernier::GradScaler reference(torch::kCPU, {.init_scale = 64, .growth_factor = 4, .growth_interval = 3});
    for (int step = 0; step < 200; ++step) {
      CHECK(fixture.plugin->scale(torch::ones({})).item<double>() == reference.get_scale());
      const double gradient = random() % 4 == 0 ? infinity : 0.5;
      const auto gradients = std::vector{torch::full({3}, gradient)};
      reference.unscale_(gradients);
      reference.update();
      fixture.step(gradient);
    }
  }
}

TEST_CASE("scaler: dynamic reports each change of the scale once") {
  Fixture fixture("dynamic", small_law());
  fixture.step(infinity);
  REQUIRE(fixture.run.notices.size() == 1);
  CHECK(fixture.run.notices[0].text() == "scale_changed from=64 to=32");
  for (int i = 0; i < 2; ++i) {
    fixture.step(1);
    CHECK(fixture.run.notices.empty());
  }
  fixture.step(1);
  REQUIRE(fixture.run.notices.size() == 1);
  CHECK(fixture.run.notices[0].text() == "scale_changed from=32 to=128");
}

TEST_CASE("scaler: dynamic's presets are the SDK's, and single options override them") {
  std::mt19937 random(9);
  for (const char* preset : {"pytorch", "deepspeed", "megatron", "apex"}) {
    CAPTURE(preset);
    auto options = vernier::loss_scale_preset(preset);
    options.growth_interval = 3;
    Fixture fixture("dynamic", {{"preset", text(preset)}, {"window", whole(3)}});
    vernier::LossScale scale(torch::kCPU, options);
    for (int step = 0; step < 200; ++step) {
      CHECK(fixture.plugin->scale(torch::ones({})).item<double>() == scale.value());
      const double gradient = random() % 5 == 0 ? infinity : 0.5;
      fixture.step(gradient);
      scale.update(torch::scalar_tensor(std::isfinite(gradient) ? 0.0F : 1.0F));
    }
    CHECK(fixture.control.failure.empty());
  }
}

TEST_CASE("scaler: dynamic reports where the scale becomes low and high, once each time") {
  auto law = small_law();
  law["warn_below"] = number(16);
  law["warn_above"] = number(256);
  Fixture fixture("dynamic", law);
  CHECK((fixture.step(infinity), names_of(fixture.run)) == std::vector<std::string>{"scale_changed"});
  CHECK((fixture.step(infinity), names_of(fixture.run)) == std::vector<std::string>{"scale_changed", "scale_low"});
  CHECK(fixture.run.notices[1].text() == "scale_low scale=16 warn_below=16");
  CHECK(fixture.run.notices[1].sentence == "the loss scale is 16: it has come down to warn_below");
  CHECK((fixture.step(infinity), names_of(fixture.run)) == std::vector<std::string>{"scale_changed"});
  for (int i = 0; i < 8; ++i) fixture.step(1);  // 8, 32, 128
  CHECK((fixture.step(1), names_of(fixture.run)) == std::vector<std::string>{"scale_changed", "scale_high"});
  CHECK(fixture.run.notices[1].text() == "scale_high scale=512 warn_above=256");
  CHECK(fixture.run.notices[1].sentence == "the loss scale is 512: it has come up to warn_above");
}

TEST_CASE(
    "scaler: a scale that is low or high from the start is reported in the first step, and not again after a save") {
  const std::vector<std::tuple<double, std::string>> cases = {
      {0.5, "scale_low scale=0.5 warn_below=1"},
      {1.0, "scale_low scale=1 warn_below=1"},
      {2.0, ""},
      {0x1p39, ""},
      {0x1p40, "scale_high scale=1.09951e+12 warn_above=1.09951e+12"},
      {0x1p50, "scale_high scale=1.1259e+15 warn_above=1.09951e+12"}};
  for (const std::string name : {"static", "dynamic", "statistical"}) {
    for (const bool results_are_late : {false, true}) {
      for (const auto& [scale, expected] : cases) {
        CAPTURE(name);
        CAPTURE(scale);
        const auto options = [&](bool warns) {
          vernier::Table table{{name == "static" ? "scale" : "init_scale", number(scale)}};
          if (name == "statistical") table["max_scale"] = number(0x1p60);
          if (!warns) table["warn_below"] = table["warn_above"] = number(0);
          return table;
        };
        Fixture fixture(name, options(true)), early(name, options(true)), late(name, options(true));
        Fixture silent(name, options(false));
        for (auto* each : {&fixture, &early, &late, &silent}) each->run.results_are_late = results_are_late;
        early.plugin->load(fixture.plugin->save());  // before the first step
        const double gradient = 32768 / scale;       // no reason to change the scale
        fixture.step(gradient);
        const auto told = [](const Fixture& of) {
          std::vector<std::string> texts;
          for (const auto& notice : of.run.notices) {
            if (notice.name != "scale_changed") texts.push_back(notice.text());
          }
          return texts;
        };
        CHECK(told(fixture) == (expected.empty() ? std::vector<std::string>{} : std::vector{expected}));
        CHECK((early.step(gradient), told(early)) == told(fixture));
        late.plugin->load(fixture.plugin->save());
        for (auto* each : {&fixture, &late, &silent}) CHECK((each->step(gradient), told(*each)).empty());
      }
    }
  }
}

TEST_CASE("scaler: a change before the first look at the scale is reported, wherever the run was stopped between") {
  const auto told = [](bool is_saved) {
    Fixture first("dynamic", small_law()), second("dynamic", small_law());
    for (auto* each : {&first, &second}) {
      each->run.results_are_late = true;
      each->run.step = 5;  // the scaler has taken over in mid-run, and looks every hundred steps
    }
    for (int i = 0; i < 4; ++i) CHECK((first.step(1), first.run.notices.empty()));
    if (is_saved) second.plugin->load(first.plugin->save());
    auto& last = is_saved ? second : first;
    last.run.step = 100;
    last.step(1);
    REQUIRE(last.run.notices.size() == 1);
    return last.run.notices[0].text();
  };
  CHECK(told(false) == "scale_changed from=64 to=256");
  CHECK(told(true) == told(false));
}

TEST_CASE("scaler: overflows in a row are the run's own, and are counted on after a save") {
  const auto make = [] { return Fixture("static", {{"overflows_in_a_row", whole(3)}}); };
  auto fixture = make();
  const auto overflow = [](Fixture& of) {
    of.run.amp.add_overflow();
    of.step(infinity);
  };
  for (int i = 0; i < 2; ++i) overflow(fixture);
  auto resumed = make();
  resumed.plugin->load(fixture.plugin->save());
  for (int i = 0; i < 2; ++i) resumed.run.amp.add_overflow();  // the runner restores them so
  for (auto* each : {&fixture, &resumed}) {
    CHECK(each->control.failure.empty());
    overflow(*each);
    CHECK(says(each->control.failure, "the gradients of 3 updates in a row"));
  }
  // Without one a row ends.
  auto calm = make();
  for (int i = 0; i < 6; ++i) i % 3 == 2 ? (void)calm.step(1) : overflow(calm);
  CHECK(calm.control.failure.empty());
}

TEST_CASE("scaler: static reports that a run goes on with another scale") {
  Fixture before("static"), after("static", {{"scale", number(1)}});
  before.step(1);
  after.plugin->load(before.plugin->save());
  after.step(1);
  REQUIRE(names_of(after.run) == std::vector<std::string>{"scale_changed", "scale_low"});
  CHECK(after.run.notices[0].text() == "scale_changed from=65536 to=1");
  CHECK((after.step(1), after.run.notices.empty()));
}

TEST_CASE("scaler: each arrival at an end of the range is reported, with all bounds that were reached") {
  auto law = small_law();
  law["min_scale"] = law["warn_below"] = number(16);
  law["max_scale"] = number(200);
  Fixture fixture("dynamic", law);
  const auto told = [&] { return fixture.run.notices.empty() ? "" : fixture.run.notices.back().text(); };
  for (int again = 0; again < 2; ++again) {
    for (const double scale : {64, 32}) CHECK(fixture.step(infinity) == scale);
    CHECK(told() == "scale_low scale=16 warn_below=16 min_scale=16");
    for (int i = 0; i < 3; ++i) CHECK((fixture.step(infinity), fixture.run.notices.empty()));
    for (int i = 0; i < 3; ++i) fixture.step(1);
    CHECK(told() == "scale_changed from=16 to=64");
  }
  for (int i = 0; i < 3; ++i) fixture.step(1);
  CHECK(told() == "scale_high scale=200 max_scale=200");
  for (int i = 0; i < 6; ++i) CHECK((fixture.step(1), fixture.run.notices.empty()));
}

TEST_CASE("scaler: notices of the scale are those of its values, whatever its bounds, and wherever it was saved") {
  std::mt19937 random(11);
  const auto up_to = [&random](unsigned n) { return static_cast<int>(random() % n); };
  int low = 0, high = 0;
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const std::string name = round % 2 == 0 ? "dynamic" : "statistical";
    const double odd = name == "dynamic" ? 1.1 : 1;  // float32 has it only rounded; statistical takes powers of two
    const double start = std::exp2(up_to(20)) * odd, least = start * std::exp2(-up_to(4)),
                 most = start * std::exp2(1 + up_to(4));
    const double below = up_to(3) == 0 ? 0 : start * std::exp2(up_to(7) - 5);
    const double above = below + start * std::exp2(up_to(7) - 2);
    vernier::Table options{{"init_scale", number(start)},
                           {"min_scale", number(least)},
                           {"max_scale", number(most)},
                           {"warn_below", number(below)},
                           {"warn_above", number(above)}};
    if (name == "dynamic") options["growth_interval"] = whole(2);
    if (name == "statistical") options["mean_decay"] = options["deviation_decay"] = number(0.3);
    auto fixture = std::make_unique<Fixture>(name, options);
    const auto at_or_under = [](double scale, double bound) { return scale <= static_cast<float>(bound); };
    const auto at_or_over = [](double scale, double bound) { return scale >= static_cast<float>(bound); };
    for (int step = 0; step < 40; ++step) {
      if (up_to(5) == 0) {  // saved and gone on with
        auto next = std::make_unique<Fixture>(name, options);
        next->plugin->load(fixture->plugin->save());
        next->run.step = fixture->run.step;
        fixture = std::move(next);
      }
      const double scale = fixture->step(up_to(3) == 0 ? infinity : std::exp2(up_to(24) - 20));
      const double next = fixture->plugin->scale(torch::ones({})).item<double>();
      std::vector<std::string> expected;
      if (step == 0 && at_or_under(scale, below)) expected.push_back("scale_low");
      if (step == 0 && at_or_over(scale, above)) expected.push_back("scale_high");
      if (next != scale) expected.push_back("scale_changed");
      const bool is_low = at_or_under(next, below) && !at_or_under(scale, below);
      const bool is_high = at_or_over(next, above) && !at_or_over(scale, above);
      const bool is_least = at_or_under(next, least) && !at_or_under(scale, least);
      const bool is_most = at_or_over(next, most) && !at_or_over(scale, most);
      if (is_low || is_least) expected.push_back("scale_low");
      if (is_high || is_most) expected.push_back("scale_high");
      low += is_low || is_least ? 1 : 0;
      high += is_high || is_most ? 1 : 0;
      CHECK(names_of(fixture->run) == expected);
      if (expected.empty() || names_of(fixture->run) != expected) continue;
      const auto last = fixture->run.notices.back().text();
      const std::vector<std::pair<const char*, bool>> bounds = {
          {"min_scale", is_least}, {"max_scale", is_most}, {"warn_below", is_low}, {"warn_above", is_high}};
      for (const auto& [bound, is_there] : bounds) {
        if (next != scale) CHECK(says(last, bound) == is_there);
      }
    }
  }
  CHECK(low > 100);
  CHECK(high > 100);
}

TEST_CASE("scaler: in an overflow storm the scale stays at its minimum until overflows_in_a_row ends the run") {
  const std::map<std::string, double> minimum = {
      {"none", 0x1p-14}, {"pytorch", 0x1p-126}, {"deepspeed", 1}, {"megatron", 1}, {"apex", 0x1p-126}};
  for (const auto& [preset, expected] : minimum) {
    CAPTURE(preset);
    Fixture fixture("dynamic", {{"preset", text(preset.c_str())}});
    int steps = 0;
    for (; steps < 400 && fixture.control.failure.empty(); ++steps) {
      fixture.run.amp.add_overflow();
      CHECK(std::isnormal(fixture.step(infinity)));
    }
    CHECK(steps == 200);
    CHECK(says(fixture.control.failure, "the gradients of 200 updates in a row overflowed (overflows_in_a_row)"));
    CHECK(fixture.step(1) == expected);
  }
}

TEST_CASE("scaler: dynamic refuses what contradicts itself, with the reason") {
  CHECK(says(refusal_of({{"max_scale", number(65535)}}), "is below init_scale = 65536"));
  CHECK(says(refusal_of({{"max_scale", number(65535)}}), "test.toml:2"));
  CHECK(says(refusal_of({{"preset", text("apex")}, {"init_scale", number(0x1p25)}}), "is below init_scale"));
  CHECK(says(refusal_of({{"min_scale", number(1e6)}}), "is above init_scale"));
  CHECK(says(refusal_of({{"window", whole(5)}, {"growth_interval", whole(6)}}),
             "`window` = 5 and `growth_interval` = 6 are two names of one interval"));
  CHECK(refusal_of({{"window", whole(5)}, {"growth_interval", whole(5)}}).empty());
  CHECK(says(refusal_of({{"refill", text("growth")}}), "hysteresis = 1 has none"));
  CHECK(says(refusal_of({{"hysteresis", whole(5)}, {"overflows_in_a_row", whole(3)}}),
             "would end before the scale is lowered"));
  CHECK(says(refusal_of({{"growth_factor", number(1e300)}}), "beyond 65536"));
  CHECK(says(refusal_of({{"growth_factor", number(HUGE_VAL)}}), "beyond 65536"));
  CHECK(says(refusal_of({{"warn_below", number(8)}, {"warn_above", number(4)}}), "is not below warn_above"));
  CHECK(says(refusal_of({{"preset", text("fairseq")}}), "fairseq"));
  CHECK(refusal_of({{"preset", text("megatron")}, {"refill", text("good_step")}}).empty());
  CHECK(refusal_of({{"preset", text("deepspeed")}, {"hysteresis", whole(1)}}).empty());
}

TEST_CASE("scaler: underflow is measured at its interval") {
  for (const char* name : {"static", "dynamic", "statistical"}) {
    Fixture fixture(name, {{"measure_every", whole(3)}});
    for (int step = 1; step <= 9; ++step) {
      fixture.step(0x1p-40);
      const auto share = fixture.run.metrics.value("underflow");
      CHECK(share.has_value() == (step % 3 == 0));
      if (share && std::string(name) != "statistical") CHECK(*share == 1.0);
    }
  }
}

TEST_CASE("scaler: dynamic goes on after a save as if there had been none") {
  Fixture fixture("dynamic", small_law());
  for (const double gradient : {1.0, infinity, 1.0, 1.0}) fixture.step(gradient);
  const TemporaryFolder folder;
  vernier::save_safetensors(folder / "state", fixture.plugin->save().tensors);
  Fixture loaded("dynamic", small_law());
  vernier::State state;
  state.tensors = vernier::load_safetensors(folder / "state");
  loaded.plugin->load(state);
  for (int step = 0; step < 10; ++step) {
    const double gradient = step == 5 ? infinity : 1;
    CHECK(fixture.step(gradient) == loaded.step(gradient));
    CHECK(fixture.run.notices.size() == loaded.run.notices.size());
  }
}

TEST_CASE("scaler: dynamic goes on with the scale that was saved and the factors of now") {
  Fixture fixture("dynamic", small_law());
  fixture.step(infinity);
  fixture.step(1);
  Fixture loaded("dynamic", {{"growth_interval", {std::int64_t{2}, ""}}, {"growth_factor", {8.0, ""}}});
  loaded.plugin->load(fixture.plugin->save());
  CHECK(loaded.step(1) == 32);
  CHECK(loaded.step(1) == 256);
}

TEST_CASE("scaler: a scale may start at its limits, falls from its ceiling and comes back to it") {
  for (const std::string name : {"dynamic", "statistical"}) {
    CAPTURE(name);
    vernier::Table limits = {{"init_scale", number(65536)}, {"max_scale", number(65536)}};
    limits[name == "dynamic" ? "growth_interval" : "forget_after"] = whole(2);
    Fixture fixture(name, limits);
    for (const double gradient : {1e-3, infinity}) CHECK(fixture.step(gradient) == 65536);
    CHECK(fixture.step(1e-3) == 32768);
    double highest = 0;
    for (int i = 0; i < 40; ++i) highest = std::max(highest, fixture.step(1e-3));
    CHECK(highest == 65536);
    limits["min_scale"] = number(65536);
    Fixture held(name, limits);
    for (const double gradient : {1e-3, infinity, 1e-3}) CHECK(held.step(gradient) == 65536);
  }
  CHECK_NOTHROW(make_plugin<Scaler>("scaler/per_layer", {{"min_scale", number(65536)}}));
}

TEST_CASE("scaler: options out of range are refused") {
  const auto refused = [](const std::string& name, const char* key, double value) {
    CHECK_THROWS_AS(make_plugin<Scaler>("scaler/" + name, {{key, {value, "test.toml:2"}}}), vernier::Error);
  };
  refused("static", "scale", 0.0);
  refused("static", "scale", -1.0);
  refused("dynamic", "init_scale", 0.0);
  refused("dynamic", "growth_factor", 1.0);
  refused("dynamic", "backoff_factor", 1.0);
  refused("dynamic", "backoff_factor", 0.0);
  refused("statistical", "init_scale", 1000.0);
  refused("statistical", "max_scale", 1024.0);
  refused("per_layer", "max_factor", 3.0);
  refused("per_layer", "min_scale", 1e6);
}

namespace {

// The largest gradient of a step, in exponents: a walk that drifts over forty powers of two, with noise.
std::vector<double> drifting_exponents(unsigned seed, int steps) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0, 0.4), drift(0, 0.05);
  std::vector<double> exponents;
  double middle = 0;
  for (int i = 0; i < steps; ++i) {
    middle += drift(random) + (i < steps / 2 ? -40.0 / steps : 40.0 / steps);
    exponents.push_back(middle + noise(random));
  }
  return exponents;
}

struct Followed {
  int overflows = 0;
  double unused = 0;  // powers of two between the largest scaled gradient and float16's end, mean of good steps
};

Followed follow(const std::string& name, unsigned seed, vernier::Table options = {}) {
  Fixture fixture(name, std::move(options));
  Followed followed;
  const auto exponents = drifting_exponents(seed, 4000);
  for (const double exponent : exponents) {
    const double scale = fixture.plugin->scale(torch::ones({})).item<double>();
    const bool overflows = std::exp2(exponent) * scale > 65504;
    fixture.step(overflows ? infinity : std::exp2(exponent));
    followed.overflows += overflows ? 1 : 0;
    if (!overflows) followed.unused += (16 - exponent - std::log2(scale)) / 4000;
  }
  return followed;
}

}  // namespace

TEST_CASE("scaler: statistical follows gradients that drift: closer than dynamic, with few overflows") {
  for (const unsigned seed : {1U, 2U, 3U}) {
    CAPTURE(seed);
    const vernier::Table wide = {{"max_scale", number(0x1p60)}};
    const auto ours = follow("statistical", seed, wide), baseline = follow("dynamic", seed);
    MESSAGE("statistical: ", ours.overflows, " overflows, ", ours.unused,
            " powers unused; dynamic: ", baseline.overflows, ", ", baseline.unused);
    CHECK(ours.overflows <= 40);  // 1 %
    CHECK(ours.unused < 6);
    CHECK(ours.unused < 0.7 * baseline.unused);
  }
}

TEST_CASE("scaler: statistical leaves `deviations` free, and forgets an overflow after `forget_after` good steps") {
  const auto followed = [](double deviations, std::int64_t forget_after) {
    return follow("statistical", 1,
                  {{"max_scale", number(0x1p60)},
                   {"deviations", number(deviations)},
                   {"forget_after", {forget_after, "test.toml:2"}}});
  };
  const auto none = followed(0, 10), some = followed(6, 10), unforgetting = followed(0, 100'000);
  CHECK(none.overflows > 2 * some.overflows);
  CHECK(none.overflows > 2 * unforgetting.overflows);
}

TEST_CASE("scaler: statistical's scale is a power of two in its range, and goes on after a save") {
  Fixture one("statistical", {{"max_scale", number(0x1p20)}}), other("statistical", {{"max_scale", number(0x1p20)}});
  std::mt19937 random(6);
  std::normal_distribution<double> exponent(-6, 3);
  const auto gradient = [&] {
    return random() % 40 == 0 ? infinity : random() % 40 == 0 ? 0 : std::exp2(exponent(random));
  };
  for (int step = 0; step < 600; ++step) {
    if (step == 300) other.plugin->load(one.plugin->save());
    const double next = gradient();
    const double scale = one.step(next);
    int power = 0;
    CHECK(std::frexp(scale, &power) == 0.5);
    CHECK(scale <= 0x1p20);
    if (step >= 300) CHECK(other.step(next) == scale);
  }
}

TEST_CASE("scaler: saving does not wait for the device, and names numbers as it always did") {
  for (const char* name : {"static", "dynamic", "statistical"}) {
    CAPTURE(name);
    Fixture fixture(name);
    for (const double gradient : {1.0, infinity, 2.0}) fixture.step(gradient);
    vernier::State state;
    CHECK(host_syncs_of([&] { state = fixture.plugin->save(); }) == 0);
    CHECK(state.integer("overflows_in_a_row") == 0);
    if (std::string(name) == "static") continue;
    CHECK(state.real("scale") == fixture.step(1.0));
    for (const char* entry : {"mean", "weight", "square", "square_weight", "margin", "good"}) {
      if (std::string(name) == "statistical") CHECK(std::isfinite(state.real(entry)));
    }
  }
}

namespace {

// A toy run with a scaler, real optimizer and schedule, whose loss overflows at random steps.
struct Storm : toy::Toy {
  Storm(const std::string& scaler, unsigned seed) {
    wiring.scaler = make_plugin<Scaler>("scaler/" + scaler);
    wiring.optimizer = make_plugin<vernier::Optimizer>("optimizer/adamw");
    wiring.callbacks.push_back(
        make_plugin<vernier::Callback>("callback/schedule", {{"kind", text("linear")}, {"warmup_steps", whole(5)}}));
    run.steps = 60;
    std::mt19937 random(seed);
    std::vector<bool> bad(60);
    for (auto&& each : bad) each = random() % 4 == 0;
    on(Event::LossReady, [bad](vernier::Run& now) {
      if (bad[static_cast<std::size_t>(now.step)]) now.micro_batch_loss = now.micro_batch_loss * infinity;
    });
    look(Event::StepEnd, [this, bad](const vernier::Run& now) {
      const bool skipped = bad[static_cast<std::size_t>(now.step - 1)];
      applied += skipped ? 0 : 1;
      CHECK(now.updates == applied);
      CHECK((!names_of(now).empty() && names_of(now).front() == "step_skipped") == skipped);
      const auto state = wiring.optimizer->save();
      if (state.has("first/step")) CHECK(state.tensor("first/step").item<double>() == static_cast<double>(applied));
      if (!skipped) rates.push_back(now.metrics.value("learning_rate").value());
      if (skipped) CHECK(same(weights(), before));
      before = weights();
    });
  }
  static bool same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
    for (std::size_t i = 0; i < b.size(); ++i) {
      if (!torch::equal(a[i], b[i])) return false;
    }
    return true;
  }
  std::int64_t applied = 0;
  std::vector<double> rates;
  std::vector<torch::Tensor> before;
};

}  // namespace

TEST_CASE("scaler: a skipped update freezes weights, schedule and the optimizer's step count") {
  for (const char* scaler : {"static", "dynamic", "statistical", "per_layer"}) {
    CAPTURE(scaler);
    for (const unsigned seed : {1U, 2U, 3U}) {
      Storm storm(scaler, seed), calm(scaler, seed);
      storm.prepare().train(storm.run);
      calm.wiring.callbacks.pop_back();  // no overflow
      calm.wiring.monitors.clear();
      std::vector<double> rates;
      calm.look(Event::StepEnd,
                [&rates](const vernier::Run& now) { rates.push_back(now.metrics.value("learning_rate").value()); });
      calm.prepare().train(calm.run);
      REQUIRE(storm.rates.size() > 20);
      for (std::size_t i = 0; i < storm.rates.size(); ++i) CHECK(storm.rates[i] == rates[i]);
    }
  }
}

TEST_CASE("scaler: whether somebody looks at gradients, and whether the optimizer divides, changes no bit") {
  for (const char* scaler : {"none", "static", "dynamic", "statistical", "per_layer"}) {
    CAPTURE(scaler);
    std::vector<torch::Tensor> first;
    for (const std::string how : {"nobody", "before", "after"}) {
      toy::Toy toy;
      toy.wiring.scaler = make_plugin<Scaler>(std::string("scaler/") + scaler);
      toy.wiring.optimizer = make_plugin<vernier::Optimizer>("optimizer/adamw");
      if (how == "before") toy.on(Event::GradientsReady, [](vernier::Run& run) { run.gradients(); });
      toy.wiring.callbacks.push_back(
          make_plugin<vernier::Callback>("callback/clip_norm", {{"max_norm", number(0.05)}}));
      if (how == "after") toy.on(Event::GradientsReady, [](vernier::Run& run) { run.gradients(); });
      toy.run.steps = 30;
      toy.prepare().train(toy.run);
      if (how == "nobody") first = toy.weights();
      CHECK(Storm::same(toy.weights(), first));
    }
    toy::Toy scaled, plain;  // Descent reads the gradients where they are
    scaled.wiring.scaler = make_plugin<Scaler>(std::string("scaler/") + scaler);
    for (auto* toy : {&scaled, &plain}) toy->prepare().train(toy->run);
    CHECK(Storm::same(scaled.weights(), plain.weights()));
  }
}

TEST_CASE(
    "scaler: where every update overflows the run ends with a checkpoint of the weights from before, and goes on") {
  const NoLog no_log;
  const std::vector<std::string> optimizers{"use = 'sgd'\nmomentum = 0.9\n", "use = 'adamw'\n"};
  const std::vector<std::string> precisions{"use = 'fp32'", "use = 'fp16'", "use = 'fp16'\nlevel = 'O2'"};
  std::size_t i = 0;
  for (const std::string name : {"dynamic", "static", "statistical", "per_layer"}) {
    for (const auto& precision : precisions) {
      if (name == "per_layer" && precision.find("O2") != std::string::npos) continue;  // per_layer refuses O2
      CAPTURE(name);
      CAPTURE(precision);
      const TemporaryFolder output;
      const auto base =
          "[run]\nsteps = 12\n[task]\nuse = 'mlp'\nsamples = 64\n[optimizer]\n" + optimizers[i++ % 2] +
          "[precision]\n" + precision + "\n[scaler]\nuse = '" + name + (name == "static" ? "'\nscale = 256" : "'") +
          "\noverflows_in_a_row = 5\n[[callback]]\nuse = 'inject'\nwhere = 'gradient'\nlayer = '*'\nat_step = ";
      const auto faulty = [&](const char* times) { return from_toml({base + "3\nevery = 1\ntimes = " + times}); };
      SmallRun calm(from_toml({base + "99\n"}));  // the state after two updates
      calm.stop_after(2);
      calm.train();
      {
        SmallRun storm(faulty("100\n"), output.path().string());
        storm.on(vernier::Event::StepEnd, [](vernier::Run& run) {
          if (const auto scale = run.metrics.value("scale")) CHECK(std::isnormal(*scale));
        });
        CHECK(says(thrown_by([&] { storm.train(); }).text, "the gradients of 5 updates in a row overflowed"));
        CHECK(storm.run.step == 7);
        CHECK(storm.run.updates == 2);
      }
      SmallRun mended(faulty("5\n"), output.path().string());
      const auto snapshot = mended.wiring->checkpoint->read(mended.run, "");
      REQUIRE(snapshot);
      const auto before = calm.run.control->snapshot();
      for (const auto& [key, tensor] : snapshot->tensors) {
        CAPTURE(key);
        const bool is_weight =
            key.starts_with("model/") || key.starts_with("plugin/precision/") || key.starts_with("plugin/optimizer/");
        if (is_weight) CHECK(torch::equal(tensor, before.tensor(key)));
      }
      mended.trainer->resume(mended.run, *snapshot, /*allow_inexact=*/true);
      CHECK(mended.train().updates == 7);
      CHECK(mended.run.step == 12);
    }
  }
}

TEST_CASE("scaler: the counts in summary.json are those of the whole run, wherever it was stopped") {
  const NoLog no_log;
  const auto config = from_toml(
      {"[run]\nsteps = 14\n[task]\nuse = 'mlp'\nsamples = 64\n[optimizer]\nuse = 'sgd'\n[precision]\nuse = 'fp16'\n"
       "[scaler]\nuse = 'dynamic'\ninit_scale = 16777216\ngrowth_interval = 3\nmeasure_every = 4\n"});
  const auto amp_of = [](SmallRun& run) {
    const auto outcome = run.train();
    vernier::Options table("run", {{"steps", whole(14)}}, "test.toml:1");
    const vernier::RunOptions options(table, "test");
    const auto path = run.run.output + "/summary.json";
    vernier::write_summary(path, run.run, options, table, *run.wiring, outcome);
    auto amp = nlohmann::json::parse(read_text(path)).at("amp");
    amp.erase("mean_step_seconds");
    return amp;
  };
  const TemporaryFolder whole_output;
  SmallRun whole(config, whole_output.path().string());
  const auto expected = amp_of(whole);
  CHECK(expected["total_steps"] == 14);
  CHECK(expected["amp_steps"] == 14);
  CHECK(expected["overflow_count"] == 14 - whole.run.updates);
  CHECK(expected["overflow_count"] >= 3);
  CHECK(expected["scaler_updates"] >= 4);
  CHECK(expected["growth_tracker"].is_number_integer());
  CHECK(expected["growth_tracker"] < 3);
  CHECK(expected["underflow"]["mean"].is_number());
  for (const std::int64_t stop : {1, 2, 4, 5, 9, 13}) {
    CAPTURE(stop);
    const TemporaryFolder output;
    {
      SmallRun first(config, output.path().string());
      first.stop_after(stop);
      CHECK(amp_of(first)["total_steps"] == stop);
    }
    SmallRun second(config, output.path().string());
    REQUIRE(second.resume());
    CHECK(amp_of(second) == expected);
  }
}

}  // namespace scaler_test
