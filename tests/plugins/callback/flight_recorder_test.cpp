// flight_recorder: faults of every kind, named right; bits as without it.
#include <doctest/doctest.h>
#include <torch/nn/modules/linear.h>
#include <vernier/capsule.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <sstream>

#include "small_run.h"
#include "thrown.h"

using vernier::Event;
using vernier::Run;
namespace fs = std::filesystem;

namespace {

// What is put where, at a step counted from 1.
struct Fault {
  std::string where;  // loss, input, activation, activation gradient, gradient, weight
  std::string layer;  // or the parameter
  double value;
  std::int64_t step;
  bool once = false;     // not when the step is repeated
  bool divides = false;  // by 0, instead of becoming `value`
  std::string text() const {
    std::ostringstream out;
    out << where << " of " << layer << (divides ? " is divided by 0" : " becomes ");
    if (!divides) out << value;
    out << " in step " << step;
    return out.str();
  }
};

// Where the memory is hit, not the graph: what was saved for backward sees it, as with a fault of the machine.
void spoil(const torch::Tensor& tensor, double value) {
  const torch::NoGradGuard no_grad;
  tensor.variable_data().view(-1)[tensor.numel() / 2].fill_(value);
}

torch::Tensor ones_and_a_zero(const torch::Tensor& like) {
  auto divisor = torch::ones_like(like, torch::MemoryFormat::Contiguous);
  spoil(divisor, 0);
  return divisor;
}

std::vector<vernier::TensorRange> ranges_of(const vernier::Values& values) {
  std::vector<vernier::TensorRange> all;
  for (const auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) all.push_back(vernier::range_of(value.toTensor()));
  }
  return all;
}

// The operation that a fault was put into, as it was when it was met last.
struct Met {
  std::string operation;
  std::vector<vernier::TensorRange> inputs, outputs;
};

class Injector final : public vernier::Callback, public vernier::Interceptor {
 public:
  explicit Injector(Fault fault) : fault_(std::move(fault)) { set_id("callback/injector"); }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::BatchReady, [this](Run& run) { begin(run); });
    bus.on(Event::LossReady, [this](Run& run) {
      guard_.reset();
      if (is_on_ && fault_.where == "loss") {
        met = {"mul", {vernier::range_of(run.piece_loss)}, {}};
        run.piece_loss = run.piece_loss * fault_.value;
        met.outputs = {vernier::range_of(run.piece_loss)};
      }
    });
    bus.on(Event::GradientsReady, [this](Run&) { is_on_ = false; });
  }
  void prepare(Run& run) override { layers_ = vernier::Layers(*run.model); }
  vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
    const auto inputs = ranges_of(arguments);
    auto results = operation.proceed(std::move(arguments));
    if (is_met_ || operation.layer() != fault_.layer || !results.front().toTensor().is_floating_point()) return results;
    auto output = results.front().toTensor();
    // A block that keeps its input alone has a graph only when it is computed again.
    if (fault_.where == "activation gradient" && !output.requires_grad()) return results;
    is_met_ = true;
    if (fault_.where == "activation") {
      spoil_by_fault(output);
      met = {std::string(operation.name()), inputs, ranges_of(results)};
    }
    if (fault_.where == "activation gradient") output.register_hook([this](const torch::Tensor& g) { return spoiled(g); });
    return results;
  }
  Met met;

 private:
  // In place.
  void spoil_by_fault(const torch::Tensor& tensor) {
    const auto& memory = tensor.variable_data();
    if (fault_.divides) {
      const torch::NoGradGuard no_grad;
      const auto divisor = ones_and_a_zero(memory);
      met = {"div_", {vernier::range_of(memory), vernier::range_of(divisor)}, {}};
      memory.div_(divisor);
      met.outputs = {vernier::range_of(memory)};
    } else {
      spoil(memory, fault_.value);
      met = {"fill_", {}, {vernier::range_of(memory.view(-1)[tensor.numel() / 2])}};
    }
  }
  torch::Tensor spoiled(const torch::Tensor& gradient) {
    if (!is_on_) return gradient;
    if (fault_.divides) {
      const auto divisor = ones_and_a_zero(gradient);
      const auto other = gradient.detach() / divisor;
      met = {"div", {vernier::range_of(gradient), vernier::range_of(divisor)}, {vernier::range_of(other)}};
      return other;
    }
    auto other = gradient.detach().clone();
    spoil(other, fault_.value);
    met = {"fill_", {}, {vernier::range_of(other.view(-1)[other.numel() / 2])}};
    return other;
  }
  void begin(Run& run) {
    is_on_ = false;
    if (run.loss.defined() || run.step + 1 != fault_.step || (fault_.once && times_ > 0)) return;  // the first piece
    ++times_;
    is_on_ = true;
    is_met_ = false;
    if (fault_.where == "input") {
      run.piece.tensors[0] = run.piece.tensors[0].clone();
      spoil_by_fault(run.piece.tensors[0]);
    }
    for (auto& parameter : run.parameters) {
      if (parameter.name != fault_.layer) continue;
      if (fault_.where == "weight") spoil_by_fault(parameter.model);
      if (fault_.where == "gradient" && times_ == 1) {
        parameter.model.register_hook([this](const torch::Tensor& g) { return spoiled(g); });
      }
    }
    if (fault_.where.starts_with("activation")) guard_.emplace(layers_, *this);
  }

  Fault fault_;
  vernier::Layers layers_;
  bool is_on_ = false, is_met_ = false;
  int times_ = 0;
  std::optional<vernier::Intercept> guard_;
};

// Runs every step twice.
class Repeater final : public vernier::Callback {
 public:
  Repeater() { set_id("callback/repeater"); }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::GradientsReady, [this](Run& run) {
      const auto before = vernier::fingerprint(run);
      const bool is_untouched = run.control.repeat([] {}, [&] {
        ++times;
        CHECK(before.difference(vernier::fingerprint(run)) == "");
      });
      CHECK(is_untouched);
      CHECK(before.difference(vernier::fingerprint(run)) == "");
    });
  }
  void prepare(Run& run) override { run.control.keep_for_repeat(*this); }
  int times = 0;
};

constexpr const char* recorder = "[[callback]]\nuse = 'flight_recorder'\n";

std::string told(const vernier::Notice& notice, const std::string& key) {
  for (const auto& [name, value] : notice.details) {
    if (name != key) continue;
    if (const auto* text = std::get_if<std::string>(&value)) return *text;
    if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  }
  return "";
}

std::string last_log;

// A run with a fault, and what the recorder said of it.
struct Flight {
  Flight(const std::vector<std::string>& config, const std::optional<Fault>& fault) : run(from_toml(config), output.path()) {
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) {
      if (text.starts_with("step ")) last_log = text;
    });
    if (fault) {
      injector.emplace(*fault);
      injector->prepare(run.run);
      run.wiring->bus.attach(*injector, false);
    }
    run.on(Event::GradientsReady, [this](Run& now) {
      is_bad |= !std::isfinite(now.loss.item<double>()) || !now.non_finite_gradients().empty();
    });
    run.on(Event::StepEnd, [this](Run& now) {
      for (const auto& notice : now.notices) {
        if (notice.name == "non_finite") notices.push_back(notice);
      }
    });
  }
  ~Flight() { vernier::set_log_sink(nullptr); }
  TemporaryFolder output;
  std::optional<Injector> injector;
  SmallRun run;
  bool is_bad = false;
  std::vector<vernier::Notice> notices;
};

std::string gpt(const TemporaryFolder& folder, int steps, const std::string& more = "") {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + '\n';
  return "[run]\nsteps = " + std::to_string(steps) + "\n[task]\nuse = 'gpt'\ndata = ['" + folder.write("text", text) +
         "']\nlayers = 2\nheads = 2\nwidth = 16\ncontext = 8\nbatch_size = 6\nvalidation = 0.0\n" + more +
         "[optimizer]\nuse = 'sgd'\nlearning_rate = 0.01\n[checkpoint]\nuse = 'none'\n";
}

std::string images(const TemporaryFolder& folder, int steps) {
  std::string images("\0\0\x08\x03\0\0\0\x40\0\0\0\x08\0\0\0\x08", 16), labels("\0\0\x08\x01\0\0\0\x40", 8);
  for (int i = 0; i < 64; ++i) {
    labels += static_cast<char>(i % 10);
    for (int pixel = 0; pixel < 64; ++pixel) images += static_cast<char>((i % 10) * 20 + pixel * (i % 3));
  }
  return "[run]\nsteps = " + std::to_string(steps) + "\n[task]\nuse = 'images'\nimages = '" +
         folder.write("images", images) + "'\nlabels = '" + folder.write("labels", labels) +
         "'\nbatch_size = 12\nchannels = 4\n[optimizer]\nuse = 'sgd'\nlearning_rate = 0.01\n[checkpoint]\nuse = 'none'\n";
}

std::string mlp(int steps) {
  return "[run]\nsteps = " + std::to_string(steps) +
         "\n[task]\nuse = 'mlp'\nsamples = 64\nbatch_size = 6\n[optimizer]\nuse = 'sgd'\nlearning_rate = 0.01\n"
         "[checkpoint]\nuse = 'none'\n";
}

const std::vector<std::string> precisions = {
    "[precision]\nuse = 'fp32'\n", "[precision]\nuse = 'bf16'\n",
    "[precision]\nuse = 'fp16'\n[scaler]\nuse = 'dynamic'\ninit_scale = 256\n"};

std::string layer_of(const std::string& parameter) { return parameter.substr(0, parameter.rfind('.')); }

void check_same(const std::vector<std::pair<std::string, vernier::TensorRange>>& told,
                const std::vector<vernier::TensorRange>& met, const std::vector<std::string>& names = {}) {
  REQUIRE(told.size() >= met.size());
  for (std::size_t i = 0; i < met.size(); ++i) {
    const auto& [name, range] = told[i];
    CAPTURE(name);
    if (!names.empty()) CHECK(name == names[i]);
    CHECK((range.dtype == met[i].dtype));
    CHECK(range.elements == met[i].elements);
    CHECK(range.amax == met[i].amax);
    CHECK(range.rms == met[i].rms);
    CHECK(range.zeros == met[i].zeros);
    CHECK(range.infs == met[i].infs);
    CHECK(range.nans == met[i].nans);
    CHECK(range.negative_infs == met[i].negative_infs);
  }
}

vernier::Capsule capsule_of(const Flight& flight, const vernier::Notice& notice) {
  REQUIRE_FALSE(told(notice, "capsule").empty());
  auto capsule = vernier::read_capsule(flight.output.path() / told(notice, "capsule"));
  REQUIRE(capsule.origin);
  CHECK(capsule.origin->phase == told(notice, "phase"));
  CHECK(capsule.origin->operation == told(notice, "operation"));
  CHECK(capsule.origin->tensor == told(notice, "tensor"));
  return capsule;
}

// That an operation has the ranges that it had, its inputs being finite and its outputs not.
void check_ranges(const vernier::Origin& origin, const Met& met) {
  const auto is_finite = [](const auto& named) { return named.second.is_finite(); };
  CHECK(std::ranges::all_of(origin.inputs, is_finite));
  CHECK_FALSE(std::ranges::all_of(origin.outputs, is_finite));
  check_same(origin.inputs, met.inputs);
  check_same(origin.outputs, met.outputs);
}

// True where the fault did any harm; then it must have been named.
bool check_named(const std::string& config, const std::string& precision, int pieces, const Fault& fault) {
  const auto accumulation = "[accumulation]\nuse = 'fixed'\npieces = " + std::to_string(pieces) + "\n";
  Flight flight({config, precision, accumulation, recorder}, fault);
  flight.run.train();
  const auto what = fault.text();
  CAPTURE(what);
  CAPTURE(precision);
  CAPTURE(pieces);
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

TEST_CASE("flight_recorder: what and where faults at random are, in all precisions and several pieces") {
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
  for (int i = 0; i < 400; ++i) {
    Fault fault;
    fault.where = places[draw(places.size())];
    const auto task = fault.where == "input" ? 2 : draw(2);  // the others read whole numbers
    const bool is_parameter = fault.where == "gradient" || fault.where == "weight";
    const auto& names = is_parameter ? parameters[task] : layers[task];
    fault.layer = names[draw(names.size())];
    fault.value = draw(2) == 0 ? HUGE_VAL : std::nan("");
    fault.divides = fault.where != "loss" && draw(2) == 0;
    fault.step = 1 + static_cast<std::int64_t>(draw(3));
    const bool is_bad = check_named(configs[task], precisions[draw(precisions.size())], 1 + static_cast<int>(draw(3)), fault);
    harmful += is_bad && task != 2 ? 1 : 0;
  }
  CHECK(harmful >= 300);
}

TEST_CASE("flight_recorder: layers of blocks that are computed again in backward") {
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
  for (int i = 0; i < 60; ++i) {
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
  CHECK(harmful >= 45);
}

TEST_CASE("flight_recorder: the ring has each layer of a block once that is computed again") {
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
    flight.run.on(Event::StepEnd, [&](Run& run) {
      vetoed += run.found_inf.defined() && run.found_inf.item<float>() != 0 ? 1 : 0;
    });
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

TEST_CASE("flight_recorder: a run of which every step is run twice is, bit for bit, the run of one") {
  const TemporaryFolder folder;
  const std::string fp16 = "[precision]\nuse = 'fp16'\n[scaler]\n";
  const std::string around = "[optimizer]\nuse = 'adamw'\n[accumulation]\nuse = 'fixed'\npieces = 2\n";
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
    twice.wiring->bus.attach(repeater, false);
    twice.train();
    CHECK(repeater.times == 5);
    CHECK(once.run.updates == twice.run.updates);
    CHECK(once.digest() == twice.digest());
  }
}

TEST_CASE("flight_recorder: a run with a fault that is skipped is, bit for bit, the same without it") {
  const TemporaryFolder folder;
  auto all = precisions;
  all.push_back("[precision]\nuse = 'bf16'\nlevel = 'O2'\n");
  all.push_back("[precision]\nuse = 'fp8'\n");
  for (const auto& config : {gpt(folder, 6, "dropout = 0.2\n"), images(folder, 6)}) {
    for (const auto& precision : all) {
      CAPTURE(precision);
      const Fault fault{"loss", "", std::nan(""), 3};
      const std::string options = "[accumulation]\nuse = 'fixed'\npieces = 2\n";
      Flight with({config, precision, options, recorder + std::string("every = 2\n")}, fault);
      with.run.train();
      CHECK(with.notices.size() == 1);
      Flight without({config, precision, options}, fault);
      without.run.on(Event::GradientsReady, [](Run& run) {
        if (run.step == 2) run.found_inf = torch::ones({});
      });
      without.run.train();
      CHECK(with.run.digest() == without.run.digest());
      CHECK(with.run.run.updates == without.run.run.updates);
      CHECK(with.run.run.updates == 5);
    }
  }
}

TEST_CASE("flight_recorder: a fault that does not come again is told as transient") {
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
    if (run.step == 1) run.parameters[0].owned.mutable_grad().mul_(HUGE_VAL);
  });
  vernier::Options options("callback/flight_recorder", {}, "test.toml:1");
  const auto late = built_plugins().make<vernier::Callback>("flight_recorder", options);
  late->prepare(flight.run.run);
  flight.run.wiring->bus.attach(*late, false);
  flight.run.train();
  CHECK(last_log.find("a callback that stands before this one") != std::string::npos);
}

TEST_CASE("flight_recorder: parameters that went bad in an update are named, and the next step stands still") {
  Flight flight({mlp(3), recorder + std::string("check_parameters_every = 1\n")}, std::nullopt);
  std::string name;
  flight.run.on(Event::GradientsReady, [&](Run& run) {
    if (run.step != 0) return;
    const torch::NoGradGuard no_grad;
    name = run.parameters.back().name;
    spoil(run.parameters.back().owned, HUGE_VAL);
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
    if (run.found_inf.defined() && run.found_inf.item<float>() != 0) return;
    for (auto& parameter : run.parameters) {
      const bool is_hit = run.step + 1 == step_ && parameter.name == name_;
      const auto& gradient = parameter.owned.grad();
      if (gradient.defined()) parameter.owned.sub_(0.01 * (is_hit ? gradient / ones_and_a_zero(gradient) : gradient));
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
  run.on(Event::GradientsReady, [&](Run& now) {
    if (now.step + 1 != fault.step) return;
    if (fault.kind == "rate") now.learning_rate_factor *= 1e60;
    if (fault.kind != "state") return;
    const auto state = run.wiring->optimizer->save();
    const auto found = std::ranges::find(now.parameters, fault.parameter, &vernier::Parameter::name);
    const auto number = found - now.parameters.begin();
    for (const auto& [key, tensor] : state.tensors) {
      const bool is_its = key.starts_with(fault.parameter + "/") || key.starts_with(std::to_string(number) + "/");
      if (!is_its || !tensor.is_floating_point() || key.ends_with("/step")) continue;
      const torch::NoGradGuard no_grad;
      tensor.variable_data().fill_(key.ends_with("_sq") ? -1 : fault.value);
      has_state = true;
    }
  });
  run.on(Event::StepEnd, [&](Run& now) {
    for (const auto& parameter : now.parameters) {
      if (now.step + 1 != fault.step || parameter.latest().isfinite().all().item<bool>()) continue;
      if (!broken) broken.emplace();
      broken->names.push_back(parameter.name);
      const auto& gradient = parameter.owned.grad();
      broken->gradients.push_back(gradient.defined() ? vernier::range_of(gradient) : vernier::TensorRange());
      broken->weights.push_back(vernier::range_of(parameter.latest()));
    }
  });
  run.train();
  CAPTURE(last_log);
  if (!broken) {
    CHECK(flight.notices.empty());
    return false;
  }
  if (!flight.is_bad) return false;  // a weight that forward does not use
  REQUIRE_FALSE(flight.notices.empty());
  const auto& first = flight.notices.front();
  CHECK(told(first, "phase") == "update");
  const bool is_injected = fault.kind == "inject";
  CHECK(told(first, "step") == std::to_string(fault.step + (fault.is_late && !is_injected ? 1 : 0)));
  // Found late, it is that of the bad ones which forward reads first.
  const auto tensor = told(first, "tensor");
  const auto at = static_cast<std::size_t>(std::ranges::find(broken->names, tensor) - broken->names.begin());
  REQUIRE(at < broken->names.size());
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
  check_same(origin.outputs, {broken->weights[at]}, {tensor});
  const auto blamed = id + (fault.is_late ? " or a callback" : "");  // nobody looked between update and step
  if (is_injected && fault.is_late) CHECK(origin.operation == blamed);
  if (is_injected) return true;
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
    check_same(origin.inputs, {broken->gradients[at]}, {"gradient"});
    CHECK(broken->gradients[at].is_finite());
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
  return true;
}

}  // namespace

TEST_CASE("flight_recorder: updates that make bad values of finite gradients, at random") {
  const TemporaryFolder folder;
  const std::vector<std::string> configs = {gpt(folder, 5), images(folder, 5)};
  std::vector<std::vector<std::string>> parameters;
  for (const auto& config : configs) {
    const SmallRun run(from_toml({config}));
    parameters.emplace_back();
    for (const auto& parameter : run.run.parameters) parameters.back().push_back(parameter.name);
  }
  const std::vector<std::string> optimizers = {
      "[optimizer]\nuse = 'adamw'\n", "[optimizer]\nuse = 'adamw'\nstate = 'bf16'\n",
      "[optimizer]\nuse = 'adamw'\nstate = '8bit'\n", "[optimizer]\nuse = 'adamw'\namsgrad = true\n",
      "[optimizer]\nuse = 'sgd'\nmomentum = 0.9\n", "[optimizer]\nuse = 'sgd'\n"};
  auto policies = precisions;
  policies.push_back("[precision]\nuse = 'bf16'\nlevel = 'O2'\n");
  std::mt19937 random(11);
  const auto draw = [&random](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  const std::vector<std::string> kinds = {"rate", "state", "zero", "inject"};
  std::map<std::string, int> harmful;
  for (int i = 0; i < 160; ++i) {
    BadUpdate fault;
    fault.kind = kinds[draw(kinds.size())];
    const auto task = draw(2);
    fault.parameter = parameters[task][draw(parameters[task].size())];
    fault.optimizer = optimizers[draw(optimizers.size() - (fault.kind == "state" ? 1 : 0))];
    fault.precision = policies[draw(policies.size())];
    fault.step = 2 + static_cast<std::int64_t>(draw(3));
    fault.value = draw(2) == 0 ? HUGE_VAL : std::nan("");
    fault.is_late = draw(3) == 0;
    harmful[fault.kind] += check_update(configs[task], fault) ? 1 : 0;
  }
  for (const auto& kind : kinds) {
    CAPTURE(kind);
    CHECK(harmful[kind] >= 25);
  }
}

TEST_CASE("flight_recorder: a float32 weight that is too large for the model's float16 is the precision's") {
  Flight flight({mlp(3), precisions[2], "[precision]\nlevel = 'O2'\n", recorder}, std::nullopt);
  flight.run.on(Event::GradientsReady, [](Run& run) {
    const torch::NoGradGuard no_grad;
    if (run.step == 1) run.parameters[2].owned.view(-1)[3] = 1e5;
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
    if (run.step == 1) found->owned[0] = -HUGE_VAL;  // the unit is switched off
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
    if (now.step + 1 == step) found->owned[0] = value;
  });
}

void skip(SmallRun& run, std::int64_t step) {
  run.on(Event::GradientsReady, [step](Run& now) {
    if (now.step + 1 == step) now.found_inf = torch::ones({});
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
    }
    for (const auto& entry : fs::directory_iterator(output.path() / "capsules")) {
      const auto capsule = vernier::read_capsule(entry.path());
      REQUIRE(capsule.origin);
      all.push_back(capsule.origin->text() + "; " + capsule.cause);
      CHECK(all.back().find("learning_rate") != std::string::npos);
    }
    return all;
  };
  for (const int looks : {0, 2, 5}) {
    CAPTURE(looks);
    const auto whole = flown(looks, {});
    for (const auto& stops : std::vector<std::vector<std::int64_t>>{{1}, {2}, {3}, {4}, {5}, {1, 3, 4, 6}}) {
      CAPTURE(stops.front());
      CHECK(flown(looks, stops) == whole);
    }
  }
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
      if (run.step == 7) run.piece_loss = run.piece_loss * std::nan("");
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

TEST_CASE("flight_recorder: what version 1.0.0 saved is read, and the ring is not made anew for each save") {
  const auto make = [] {
    vernier::Options options("callback/flight_recorder", {}, "test.toml:1");
    return built_plugins().make<vernier::Callback>("flight_recorder", options);
  };
  vernier::State old;
  for (const char* name : {"capsules", "overflows"}) old.put(name, std::int64_t{1});
  old.put("ring", std::string("[]"));
  for (const std::string name : {"", "layers.0.bias"}) {
    old.put("bad_parameter", name);
    const auto plugin = make();
    plugin->load(old);
    const auto state = plugin->save();
    CHECK(state.integer("capsules") == 1);
    CHECK(state.integer("sound_at") == -1);
    CHECK(state.integer("is_new") == (name.empty() ? 0 : 1));
    REQUIRE(state.has("bad_update") == !name.empty());
    if (!name.empty()) CHECK(vernier::origin_from(state.text("bad_update")).tensor == name);
    CHECK(state.tensor("ring").const_data_ptr() == plugin->save().tensor("ring").const_data_ptr());
  }
}

TEST_CASE("flight_recorder: capsules are bounded, private, and read back; the ring is in the report") {
  Flight flight({mlp(8), recorder + std::string("capsules = 2\nevery = 1\nring = 3\n")}, std::nullopt);
  flight.run.on(Event::LossReady, [](Run& run) {
    if (run.step >= 4) run.piece_loss = run.piece_loss * std::nan("");
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
  for (const auto* part : {"\"step\": 3", "\"step\": 4", "\"of\": \"activation\"", "\"of\": \"gradient\"", "layers.0"}) {
    CHECK(text.str().find(part) != std::string::npos);
  }
  CHECK(text.str().find("\"step\": 2") == std::string::npos);
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
    vernier::Watch watch(net);
    watch.begin_forward();
    const auto x = torch::randn({4, 8});
    const auto hidden = at::linear(x, first->weight, first->bias);
    auto scores = hidden.matmul(hidden.t());
    const auto upper = torch::ones({4, 4}, torch::kBool).triu(1);
    scores = is_additive ? scores + torch::zeros({4, 4}).masked_fill(upper, -HUGE_VAL) : scores.masked_fill(upper, -HUGE_VAL);
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
  vernier::Watch watch(net);
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
    if (way_ == 4) return 1 / upper();                              // inf where nothing is to be cut
    return upper().to(torch::kBool);
  }
  torch::Tensor masked(const torch::Tensor& scores, const torch::Tensor& mask) const {
    if (way_ == 4) return at::minimum(scores, mask);
    if (way_ == 5) return scores.masked_fill(mask, -HUGE_VAL);
    if (way_ == 6) return at::where(mask, -HUGE_VAL, scores);
    return scores + mask;
  }
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& tokens, const std::function<void(int, torch::Tensor)>& see) {
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
    vernier::Watch watch(net);
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
    vernier::Watch watch(*layer);
    watch.hold("tensor 0 of the batch", x);
    watch.begin_forward();
    const auto loss = loss_of(x);
    watch.stop();
    const auto origin = watch.origin({{"loss", loss}});
    return origin ? *origin : vernier::Origin();
  };
  const auto through = [&layer](const torch::Tensor& x) { return at::linear(x, layer->weight, layer->bias); };
  // A feature that has no logarithm, and one that is divided by 0.
  for (const bool is_log : {true, false}) {
    const auto origin = origin_of([&](const torch::Tensor& x) {
      return at::layer_norm(through(is_log ? x.log() : x.reciprocal()), {4}).sum();
    });
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
