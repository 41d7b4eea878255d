// flight_recorder: faults of every kind, named right; bits as without it.
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <vernier/capsule.h>
#include <vernier/error.h>
#include <vernier/host.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "flight.h"
#include "long_form.h"
#include "thrown.h"

namespace flight_recorder_test {

namespace fs = std::filesystem;
using namespace flight;

namespace {

// Runs every step twice.
class Repeater final : public vernier::Callback {
 public:
  Repeater() { set_id("callback/repeater"); }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::GradientsReady, [this](Run& run) {
      const auto before = vernier::fingerprint(run);
      const auto compare = [&] {
        ++times;
        CHECK(before.difference(vernier::fingerprint(run)) == "");
      };
      const bool is_untouched = run.control->rerun([] {}, compare);
      CHECK(is_untouched);
      CHECK(before.difference(vernier::fingerprint(run)) == "");
    });
  }
  void prepare(Run& run) override { run.control->want_rerun(*this); }
  int times = 0;
};

// True where the fault did any harm; then it must have been named.
bool check_named(const std::string& config, const std::string& precision, int micro_batches, const Fault& fault) {
  const auto accumulation = "[accumulation]\nuse = 'fixed'\nmicro_batches = " + std::to_string(micro_batches) + "\n";
  Flight flight({config, precision, accumulation, recorder}, fault);
  flight.run.train();
  const auto what = fault.text();
  CAPTURE(what);
  CAPTURE(precision);
  CAPTURE(micro_batches);
  CAPTURE(last_log);
  if (!flight.is_bad && fault.where != "weight") CHECK(flight.notices.empty());
  if (!flight.is_bad) return false;
  REQUIRE_FALSE(flight.notices.empty());
  const auto& notice = flight.notices.front();
  const auto phase = told(notice, "phase"), layer = told(notice, "layer");
  CHECK(told(notice, "step") == std::to_string(fault.step));
  CHECK(told(notice, "transient") == "0");
  const auto operation = told(notice, "operation");
  const auto& met = flight.injector->met;
  CAPTURE(operation);
  if (fault.where == "weight") {  // written before the step was run again, and once more where it is not divided
    CHECK(phase == "update");
    CHECK(told(notice, "tensor") == fault.layer);
    CHECK(layer == layer_of(fault.layer));
    CHECK(operation == (fault.divides ? "written by no update" : "fill_"));
    return true;
  }
  if (fault.where == "loss") {
    CHECK(phase == "forward");
    CHECK(operation == met.operation);
  } else if (fault.where == "input") {
    CHECK(phase == "input");
    CHECK(notice.text().find(" layer=") == std::string::npos);
    CHECK(operation == met.operation);
  } else if (fault.where == "activation") {
    CHECK(phase == "forward");
    CHECK(layer == fault.layer);
    CHECK(operation == met.operation + (fault.divides ? " (div_)" : " (fill_)"));
  } else {
    CHECK(phase == "backward");
    CHECK(layer == (fault.where == "gradient" ? layer_of(fault.layer) : fault.layer));
    CHECK(operation.ends_with(" (" + met.operation + ")"));
  }
  check_ranges(*capsule_of(flight, notice).origin, met);
  return true;
}

}  // namespace

TEST_CASE("flight_recorder: what and where faults at random are, in all precisions and several micro-batches" *
          doctest::test_suite("text")) {
  const TemporaryFolder folder;
  const std::vector<std::string> configs = {gpt(folder, 3), images(folder, 3), mlp(3)};
  std::vector<std::vector<std::string>> layers, parameters;
  for (const auto& config : configs) {
    const SmallRun run(from_toml({config}));
    layers.push_back(vernier::Layers(*run.run.model).names());
    parameters.emplace_back();
    for (const auto& parameter : run.run.parameters) parameters.back().push_back(parameter.name);
  }
  std::mt19937 random(3);
  const auto draw = [&random](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  const std::vector<std::string> places = {"loss", "input", "activation", "activation gradient", "gradient", "weight"};
  int harmful = 0;  // on the GPT and the convolutional net
  const int trials = is_long() ? 400 : 20;
  for (int i = 0; i < trials; ++i) {
    Fault fault;
    fault.where = places[draw(places.size())];
    const auto task = fault.where == "input" ? 2 : draw(2);  // the others read whole numbers
    const bool is_parameter = fault.where == "gradient" || fault.where == "weight";
    const auto& names = is_parameter ? parameters[task] : layers[task];
    fault.layer = names[draw(names.size())];
    fault.value = draw(2) == 0 ? HUGE_VAL : std::nan("");
    fault.divides = fault.where != "loss" && draw(2) == 0;
    fault.step = 1 + static_cast<std::int64_t>(draw(3));
    const bool is_bad =
        check_named(configs[task], precisions[draw(precisions.size())], 1 + static_cast<int>(draw(3)), fault);
    harmful += is_bad && task != 2 ? 1 : 0;
  }
  CHECK(harmful >= trials * 3 / 4);
}

TEST_CASE("flight_recorder: what callback/inject puts in at random is named where inject says it is" *
          doctest::test_suite("text")) {
  const TemporaryFolder folder;
  const std::vector<std::string> configs = {gpt(folder, 3), images(folder, 3), mlp(3)};
  std::mt19937 random(19);
  const auto draw = [&random](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  const std::vector<std::string> places = {"loss", "input", "activation", "activation_gradient", "gradient", "weight"};
  std::map<std::string, int> harmful;
  const int trials = is_long() ? 150 : 30;
  for (int i = 0; i < trials; ++i) {
    const auto& place = places[static_cast<std::size_t>(i) % places.size()];
    const auto task = place == "input" ? 2 : draw(2);
    std::string layer;
    {
      const SmallRun run(from_toml({configs[task]}));
      const bool is_parameter = place == "gradient" || place == "weight";
      const auto names = vernier::Layers(*run.run.model).names();
      layer = is_parameter ? run.run.parameters[draw(run.run.parameters.size())].name : names[draw(names.size())];
    }
    const auto step = 1 + draw(3);
    auto inject = "[[callback]]\nuse = 'inject'\nwhere = '" + place + "'\nwhat = '" + (draw(2) == 0 ? "inf" : "nan") +
                  "'\nat_step = " + std::to_string(step) + "\n";
    if (place != "loss" && place != "input") inject += "layer = '" + layer + "'\n";
    const auto micro_batches = "[accumulation]\nuse = 'fixed'\nmicro_batches = " + std::to_string(1 + draw(3)) + "\n";
    Flight flight({configs[task], precisions[draw(precisions.size())], micro_batches, inject + recorder}, std::nullopt);
    flight.run.train();
    CAPTURE(inject);
    CAPTURE(last_log);
    if (!flight.is_bad) continue;
    harmful[place] += 1;
    REQUIRE_FALSE(flight.notices.empty());
    const auto& notice = flight.notices.front();
    CHECK(told(notice, "step") == std::to_string(step));
    CHECK(told(notice, "transient") == "0");
    const auto* phase = place == "weight"                          ? "update"
                        : place == "input"                         ? "input"
                        : place == "loss" || place == "activation" ? "forward"
                                                                   : "backward";
    CHECK(told(notice, "phase") == phase);
    if (place == "activation" || place == "activation_gradient") CHECK(told(notice, "layer") == layer);
    if (place == "gradient" || place == "weight") CHECK(told(notice, "layer") == layer_of(layer));
    if (place == "weight") CHECK(told(notice, "tensor") == layer);
  }
  for (const auto& place : places) {
    CAPTURE(place);
    CHECK(harmful[place] >= trials / 13);
  }
}

TEST_CASE("flight_recorder: the ring's numbers are those of the tensors") {
  Flight flight({mlp(6), precisions[2], recorder + std::string("every = 2\nring = 2\n")},
                Fault{"loss", "", std::nan(""), 6});
  std::map<std::pair<std::int64_t, std::string>, torch::Tensor> gradients;  // by step, divided by the scale
  flight.run.on(Event::GradientsReady, [&](Run& run) {
    for (const auto& parameter : run.parameters) {
      auto gradient = parameter.master.grad().to(torch::kFloat64);
      if (run.grad_scale.defined()) gradient = gradient / run.grad_scale.to(torch::kFloat64);
      gradients[{run.step + 1, parameter.name}] = gradient.clone();
    }
  });
  flight.run.train();
  REQUIRE(flight.notices.size() == 1);
  CHECK(flight.notices[0].sentence.starts_with("the loss is nan (0x"));
  CHECK(flight.notices[0].sentence.ends_with("; the update is skipped"));
  std::ifstream in(flight.output.path() / "capsules" / "step-00000006" / "report.json");
  const auto report = nlohmann::json::parse(in);
  const auto& ring = report.at("ring");
  REQUIRE(ring.size() == 2);
  int compared = 0;
  for (const auto& sample : ring) {
    const auto step = sample.at("step").get<std::int64_t>();
    CHECK((step == 3 || step == 5));
    for (const auto& one : sample.at("layers")) {
      if (one.at("of") != "gradient") continue;
      const auto& gradient = gradients.at({step, one.at("layer").get<std::string>()});
      CHECK(one.at("elements") == gradient.numel());
      CHECK(one.at("zeros") == gradient.eq(0).sum().item<std::int64_t>());
      CHECK(one.at("infs") == 0);
      CHECK(one.at("amax").get<double>() == doctest::Approx(gradient.abs().max().item<double>()).epsilon(1e-6));
      CHECK(one.at("rms").get<double>() ==
            doctest::Approx(gradient.square().mean().sqrt().item<double>()).epsilon(1e-5));
      ++compared;
    }
  }
  CHECK(compared == 2 * static_cast<int>(flight.run.run.parameters.size()));
}

TEST_CASE("flight_recorder: layers of blocks that are computed again in backward" * doctest::test_suite("text")) {
  const TemporaryFolder folder;
  const std::vector<std::string> configs = {gpt(folder, 3, "recompute = 'full'\n"),
                                            gpt(folder, 3, "recompute = 'selective'\n"),
                                            gpt(folder, 3, "recompute = 'full'\nrecompute_budget = '100%'\n")};
  std::vector<std::string> layers, parameters;
  {
    const SmallRun run(from_toml({configs[0]}));
    layers = vernier::Layers(*run.run.model).names();
    for (const auto& parameter : run.run.parameters) parameters.push_back(parameter.name);
  }
  std::mt19937 random(7);
  const auto draw = [&random](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  const std::vector<std::string> places = {"activation", "activation gradient", "gradient"};
  int harmful = 0;
  const int trials = is_long() ? 60 : 10;
  for (int i = 0; i < trials; ++i) {
    Fault fault;
    fault.where = places[draw(places.size())];
    const auto& names = fault.where == "gradient" ? parameters : layers;
    fault.layer = names[draw(names.size())];
    fault.value = draw(2) == 0 ? HUGE_VAL : std::nan("");
    fault.divides = fault.where != "loss" && draw(2) == 0;
    fault.step = 1 + static_cast<std::int64_t>(draw(3));
    const auto& config = configs[draw(configs.size())];
    harmful += check_named(config, precisions[draw(precisions.size())], 1 + static_cast<int>(draw(3)), fault) ? 1 : 0;
  }
  CHECK(harmful >= trials * 3 / 4);
}

TEST_CASE("flight_recorder: the ring has each layer of a block once that is computed again" *
          doctest::test_suite("text")) {
  const TemporaryFolder folder;
  const auto ring_of = [&folder](const std::string& more) {
    Flight flight({gpt(folder, 3, more), recorder + std::string("every = 1\n")}, Fault{"loss", "", std::nan(""), 3});
    flight.run.train();
    REQUIRE(flight.notices.size() == 1);
    std::ifstream in(flight.output.path() / "capsules" / "step-00000003" / "report.json");
    std::stringstream text;
    text << in.rdbuf();
    const auto report = text.str();
    int count = 0;
    for (auto at = report.find("\"activation\""); at != std::string::npos; at = report.find("\"activation\"", at + 1)) {
      ++count;
    }
    return count;
  };
  const auto plain = ring_of("");
  CHECK(plain > 0);
  CHECK(ring_of("recompute = 'full'\n") == plain);
  CHECK(ring_of("recompute = 'selective'\n") == plain);
}

TEST_CASE("flight_recorder: beside recovery, in both orders") {
  const std::string fault = "[[callback]]\nuse = 'inject'\nwhat = 'nan'\nlayer = 'layers.0'\nat_batch = 4\n";
  const std::string rewinds =
      "[[callback]]\nuse = 'recovery'\nnon_finite = ['rewind']\nrewind_back = 2\nsnapshot_every = 2\n";
  const std::string spikes =
      "[[callback]]\nuse = 'recovery'\nspike = ['skip 1000']\nz_score = 0.1\nwindow = 4\nskips = 1000\n";
  for (const bool is_first : {true, false}) {
    CAPTURE(is_first);
    const auto both = [&](const std::string& recovery) { return is_first ? recorder + recovery : recovery + recorder; };
    {
      Flight flight({mlp(6), fault + both(rewinds)}, std::nullopt);
      int rewound = 0;
      flight.run.on(Event::StepEnd, [&](Run& run) {
        for (const auto& notice : run.notices) rewound += notice.name == "rewound" ? 1 : 0;
      });
      flight.run.train();
      CHECK(rewound == 1);
      CHECK(flight.run.run.step == 6);
      REQUIRE(flight.notices.size() == 1);
      CHECK(told(flight.notices[0], "step") == "4");
      CHECK(told(flight.notices[0], "what") == "gradients");
      CHECK(told(flight.notices[0], "phase") == "backward");
      CHECK(told(flight.notices[0], "transient") == "0");
    }
    Flight flight({mlp(30), both(spikes)}, std::nullopt);
    int vetoed = 0;
    flight.run.on(Event::StepEnd,
                  [&](Run& run) { vetoed += run.skip_update.defined() && run.skip_update.item<float>() != 0 ? 1 : 0; });
    flight.run.train();
    CHECK(vetoed > 0);
    CHECK(flight.notices.empty());
  }
}

TEST_CASE("flight_recorder: where the step cannot be run again, it is skipped and the run goes on") {
  Flight flight({mlp(4), recorder}, Fault{"loss", "", std::nan(""), 2});
  int times = 0;
  flight.run.on(Event::LossReady, [&times](Run& run) {
    if (run.step == 1 && ++times == 2) throw vernier::Error("no room");
  });
  flight.run.train();
  CHECK(times == 2);
  CHECK(flight.run.run.step == 4);
  CHECK(flight.run.run.updates == 3);
  REQUIRE(flight.notices.size() == 1);
  CHECK(told(flight.notices[0], "place") == "not looked into");
  CHECK(last_log.find("no room") != std::string::npos);
  CHECK_FALSE(fs::exists(flight.output.path() / "capsules"));
}

TEST_CASE("flight_recorder: a run of which every step is run twice is, bit for bit, the run of one" *
          doctest::test_suite("text")) {
  const TemporaryFolder folder;
  const std::string fp16 = "[precision]\nuse = 'fp16'\n[scaler]\n";
  const std::string around = "[optimizer]\nuse = 'adamw'\n[accumulation]\nuse = 'fixed'\nmicro_batches = 2\n";
  for (const std::string& precision :
       {std::string("[precision]\nuse = 'fp32'\n"), std::string("[precision]\nuse = 'bf16'\nlevel = 'O2'\n"),
        std::string("[precision]\nuse = 'fp8'\nrecipe = 'delayed'\n"), fp16 + "use = 'static'\nscale = 1024\n",
        fp16 + "use = 'dynamic'\ninit_scale = 256\ngrowth_interval = 2\n",
        fp16 + "use = 'dynamic'\ninit_scale = 16777216\n",  // it overflows
        fp16 + "use = 'statistical'\n"}) {
    CAPTURE(precision);
    const auto config = from_toml({gpt(folder, 5, "dropout = 0.2\n"), around, precision});
    SmallRun once(config);
    once.train();
    Repeater repeater;
    SmallRun twice(config);
    repeater.prepare(twice.run);
    vernier::HostApi::attach(twice.wiring->bus, repeater, false);
    twice.train();
    CHECK(repeater.times == 5);
    CHECK(once.run.updates == twice.run.updates);
    CHECK(once.digest() == twice.digest());
  }
}

TEST_CASE("flight_recorder: a run with a fault that is skipped is, bit for bit, the same without it" *
          doctest::test_suite("text")) {
  const TemporaryFolder folder;
  auto all = precisions;
  all.push_back("[precision]\nuse = 'bf16'\nlevel = 'O2'\n");
  all.push_back("[precision]\nuse = 'fp8'\n");
  for (const auto& config : {gpt(folder, 6, "dropout = 0.2\n"), images(folder, 6)}) {
    for (const auto& precision : all) {
      CAPTURE(precision);
      const Fault fault{"loss", "", std::nan(""), 3};
      const std::string options = "[accumulation]\nuse = 'fixed'\nmicro_batches = 2\n";
      Flight with({config, precision, options, recorder + std::string("every = 2\n")}, fault);
      with.run.train();
      CHECK(with.notices.size() == 1);
      Flight without({config, precision, options}, fault);
      without.run.on(Event::GradientsReady, [](Run& run) {
        if (run.step == 2) run.skip_update = torch::ones({});
      });
      without.run.train();
      CHECK(with.run.digest() == without.run.digest());
      CHECK(with.run.run.updates == without.run.run.updates);
      CHECK(with.run.run.updates == 5);
    }
  }
}

TEST_CASE("flight_recorder: a fault that does not come again is reported as transient") {
  for (const auto* where : {"loss", "activation"}) {
    const Fault fault{where, "layers.0", std::nan(""), 2, /*once=*/true};
    Flight flight({mlp(3), recorder}, fault);
    flight.run.train();
    REQUIRE(flight.notices.size() == 1);
    CHECK(told(flight.notices[0], "transient") == "1");
    CHECK(last_log.find("transient fault") != std::string::npos);
    CHECK(flight.run.run.updates == 2);
  }
}

TEST_CASE("flight_recorder: gradients that a callback changed are no fault of the machine") {
  Flight flight({mlp(3)}, std::nullopt);
  flight.run.on(Event::GradientsReady, [](Run& run) {
    if (run.step == 1) run.parameters[0].master.mutable_grad().mul_(HUGE_VAL);
  });
  vernier::Options options("callback/flight_recorder", {}, "test.toml:1");
  const auto late = built_plugins().make(vernier::Callback::role, "flight_recorder", options);
  late->prepare(flight.run.run);
  vernier::HostApi::attach(flight.run.wiring->bus, *late, false);
  flight.run.train();
  CHECK(last_log.find("a callback that stands before this one") != std::string::npos);
}

TEST_CASE("flight_recorder: the ring is not made anew for each save") {
  const auto make = [] {
    vernier::Options options("callback/flight_recorder", {}, "test.toml:1");
    return built_plugins().make(vernier::Callback::role, "flight_recorder", options);
  };
  const auto first = make(), second = make();
  second->load(first->save());
  for (const auto* plugin : {first.get(), second.get()}) {
    CHECK(plugin->save().tensor("ring").const_data_ptr() == plugin->save().tensor("ring").const_data_ptr());
  }
  CHECK(second->save().text("ring") == first->save().text("ring"));
}

TEST_CASE("flight_recorder: capsules are bounded, private, and read back; the ring is in the report") {
  Flight flight({mlp(8), recorder + std::string("capsules = 2\nevery = 1\nring = 3\n")}, std::nullopt);
  flight.run.on(Event::LossReady, [](Run& run) {
    if (run.step >= 4) run.micro_batch_loss = run.micro_batch_loss * std::nan("");
  });
  flight.run.train();
  CHECK(flight.notices.size() == 4);
  const auto folder = flight.output.path() / "capsules";
  CHECK(fs::status(folder).permissions() == fs::perms::owner_all);
  CHECK(fs::exists(folder / "step-00000005"));
  CHECK(fs::exists(folder / "step-00000006"));
  CHECK_FALSE(fs::exists(folder / "step-00000007"));
  const auto report = folder / "step-00000005" / "report.json";
  CHECK(fs::status(report).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  const auto capsule = vernier::read_capsule(folder / "step-00000005");
  CHECK(capsule.step == 5);
  CHECK(capsule.what == "loss");
  CHECK(capsule.batch.samples == 6);
  CHECK(capsule.state.integer("run/step") == 4);
  CHECK(capsule.seen.difference(capsule.repeated).empty());
  std::ifstream in(report);
  std::stringstream text;
  text << in.rdbuf();
  for (const auto* part :
       {"\"step\": 3", "\"step\": 4", "\"of\": \"activation\"", "\"of\": \"gradient\"", "layers.0"}) {
    CHECK(text.str().find(part) != std::string::npos);
  }
  CHECK(text.str().find("\"step\": 2") == std::string::npos);
}

TEST_CASE("flight_recorder: a fault that the scaler takes for overflows is looked into after a harmless one, too") {
  const auto faults = [](const char* layer, int step, int times) {
    return "[[callback]]\nuse = 'inject'\nlayer = '" + std::string(layer) + "'\nat_step = " + std::to_string(step) +
           "\nevery = 1\ntimes = " + std::to_string(times) + "\n";
  };
  Flight flight({mlp(30), precisions[2], faults("layers.0", 2, 1) + faults("layers.1", 5, 12) + recorder},
                std::nullopt);
  flight.run.train();
  std::vector<std::string> looked;
  for (const auto& notice : flight.notices) looked.push_back(told(notice, "step") + ' ' + told(notice, "layer"));
  CHECK(looked == std::vector<std::string>{"2 layers.0", "14 layers.1"});
}

TEST_CASE("flight_recorder: where the capsule cannot be written, the run goes on") {
  Flight flight({mlp(4), recorder}, Fault{"loss", "", HUGE_VAL, 2});
  std::ofstream(flight.output.path() / "capsules") << "in the way";
  flight.run.train();
  CHECK(flight.run.run.step == 4);
  REQUIRE(flight.notices.size() == 1);
  CHECK(told(flight.notices[0], "capsule").empty());
}

TEST_CASE("flight_recorder: masks are not blamed") {
  // scores + mask of -inf, softmax, and a bad value that comes from elsewhere.
  torch::manual_seed(2);
  torch::nn::Linear first(8, 8), second(8, 8);
  struct Net : torch::nn::Module {
    Net(torch::nn::Linear a, torch::nn::Linear b) {
      register_module("first", a);
      register_module("second", b);
    }
  } net(first, second);
  for (const bool is_additive : {false, true}) {
    vernier::NonFiniteTracer watch(net);
    watch.begin_forward();
    const auto x = torch::randn({4, 8});
    const auto hidden = at::linear(x, first->weight, first->bias);
    auto scores = hidden.matmul(hidden.t());
    const auto upper = torch::ones({4, 4}, torch::kBool).triu(1);
    scores = is_additive ? scores + torch::zeros({4, 4}).masked_fill(upper, -HUGE_VAL)
                         : scores.masked_fill(upper, -HUGE_VAL);
    const auto weights = scores.softmax(-1);
    const auto out = at::linear(weights.matmul(hidden), second->weight, second->bias);
    const auto loss = (out / (out - out.detach())).sum();  // divides by 0
    loss.backward();
    watch.stop();
    const auto origin = watch.origin({{"loss", loss}});
    REQUIRE(origin);
    CHECK(origin->operation == "div");
    CHECK(origin->layer == "second");
    CHECK(origin->is_after);
    CHECK_FALSE(watch.origin({{"x", x}, {"weights", weights}}));
  }
  vernier::NonFiniteTracer watch(net);
  watch.begin_forward();
  const auto scores = torch::randn({3, 3}).masked_fill(torch::ones({3, 3}, torch::kBool), -HUGE_VAL);
  const auto nothing = scores.softmax(-1);  // rows without a single score
  watch.stop();
  const auto origin = watch.origin({{"loss", nothing}});
  REQUIRE(origin);
  CHECK(origin->operation.starts_with("softmax"));
}

namespace {

// Attention in three layers with one mask, made before the first of them in one of the usual ways.
struct Masked : torch::nn::Module {
  explicit Masked(int way) : way_(way) {
    for (int i = 0; i < 3; ++i) {
      auto layer = std::make_shared<Layer>();
      layer->weight = layer->register_parameter("weight", torch::randn({8, 8}) * 0.5);
      layers.push_back(register_module("layer" + std::to_string(i), layer));
    }
    kept_ = register_buffer("kept", (1 - upper()).log());
  }
  static torch::Tensor upper() { return torch::ones({6, 6}).triu(1); }
  torch::Tensor mask(const torch::Tensor& tokens) const {
    if (way_ == 0) return (1 - upper()).log();
    if (way_ == 1) return torch::full({6, 6}, -HUGE_VAL).triu(1);
    if (way_ == 2) return kept_;
    if (way_ == 3) return tokens.ne(0).to(torch::kFloat32).log();  // padding, of the batch
    if (way_ == 4) return 1 / upper();                             // inf where nothing is to be cut
    return upper().to(torch::kBool);
  }
  torch::Tensor masked(const torch::Tensor& scores, const torch::Tensor& mask) const {
    if (way_ == 4) return at::minimum(scores, mask);
    if (way_ == 5) return scores.masked_fill(mask, -HUGE_VAL);
    if (way_ == 6) return at::where(mask, -HUGE_VAL, scores);
    return scores + mask;
  }
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& tokens,
                        const std::function<void(int, torch::Tensor)>& see) {
    const auto made = mask(tokens);
    for (int i = 0; i < 3; ++i) {
      const auto hidden = at::linear(x, layers[static_cast<std::size_t>(i)]->weight);
      see(i, hidden);
      x = x + masked(hidden.matmul(hidden.t()), made).softmax(-1).matmul(hidden);
    }
    return x.square().mean();
  }
  struct Layer : torch::nn::Module {
    torch::Tensor weight;
  };
  std::vector<std::shared_ptr<Layer>> layers;
  torch::Tensor kept_;
  int way_;
};

}  // namespace

TEST_CASE("flight_recorder: a mask is never blamed for what is bad elsewhere, however it was made") {
  std::mt19937 random(12);
  const auto tokens = torch::tensor({4, 2, 9, 1, 0, 0}, torch::kInt64);
  for (int i = 0; i < 210; ++i) {
    torch::manual_seed(i);
    const int way = i % 7;
    Masked net(way);
    vernier::NonFiniteTracer watch(net);
    watch.begin_forward();
    const auto x = torch::randn({6, 8});
    const int bad_layer = static_cast<int>(random() % 3);
    const auto kind = random() % 4;  // 3: none
    const auto loss = net.forward(x, tokens, [&](int layer, const torch::Tensor& hidden) {
      if (layer != bad_layer || kind == 3) return;
      hidden.data_ptr<float>()[hidden.numel() / 2] = kind == 0 ? NAN : kind == 1 ? HUGE_VALF : -HUGE_VALF;
    });
    loss.backward();
    watch.stop();
    std::vector<std::pair<std::string, torch::Tensor>> ends = {{"loss", loss}};
    for (const auto& parameter : net.named_parameters()) ends.emplace_back(parameter.key(), parameter.value().grad());
    const auto origin = watch.origin(ends);
    CAPTURE(way);
    CAPTURE(kind);
    REQUIRE(origin.has_value() == (kind != 3));
    if (!origin) continue;
    const auto text = origin->text();
    CAPTURE(text);
    CHECK(origin->phase == "forward");
    CHECK(origin->layer == "layer" + std::to_string(bad_layer));
    CHECK(origin->operation.starts_with("written by no operation, after linear"));
  }
}

TEST_CASE("flight_recorder: an infinity of a constant is blamed where a nan is made of it") {
  torch::manual_seed(3);
  torch::nn::Linear layer(4, 4);
  const auto origin_of = [&layer](const std::function<torch::Tensor(const torch::Tensor&)>& loss_of) {
    const auto x = torch::tensor({{0.0F, 1.0F, 2.0F, 3.0F}});
    vernier::NonFiniteTracer watch(*layer);
    watch.hold("tensor 0 of the batch", x);
    watch.begin_forward();
    const auto loss = loss_of(x);
    watch.stop();
    const auto origin = watch.origin({{"loss", loss}});
    return origin ? *origin : vernier::NonFiniteOrigin();
  };
  const auto through = [&layer](const torch::Tensor& x) { return at::linear(x, layer->weight, layer->bias); };
  // A feature that has no logarithm, and one that is divided by 0.
  for (const bool is_log : {true, false}) {
    const auto origin = origin_of(
        [&](const torch::Tensor& x) { return at::layer_norm(through(is_log ? x.log() : x.reciprocal()), {4}).sum(); });
    CHECK(origin.phase == "input");
    CHECK(origin.operation.starts_with(is_log ? "log" : "reciprocal"));
  }
  // Scores that overflow beside such a mask, in one operator: its own.
  const auto origin = origin_of([&](const torch::Tensor& x) {
    const auto q = through(x).to(torch::kFloat32).mul(1e30).view({1, 1, 2, 2});
    const auto mask = torch::tensor({{1.0F, 0.0F}, {1.0F, 1.0F}}).log();
    return at::scaled_dot_product_attention(q, q, q, mask).sum();
  });
  CHECK(origin.operation.find("attention") != std::string::npos);
}

}  // namespace flight_recorder_test
