#include <vernier/error.h>
#include <vernier/grad_norm.h>
#include <vernier/host.h>
#include <vernier/loss_scale.h>
#include <vernier/run.h>
#include <vernier/unscale.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "amp/loss_scale_operators.h"
#include "host_syncs.h"
#include "long_form.h"
#include "oracle.h"

namespace loss_scale_test {

using vernier::LossScale;
using vernier::LossScaleOptions;
using vernier::Refill;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// splitmix64 and the draws of tests/oracles/scale_rules.py.
struct Case {
  Case(std::uint64_t project, std::uint64_t index) : state(project * 10'000'000 + index) {
    init = std::exp2(static_cast<double>(4 + draw() % 20));
    interval = static_cast<std::int64_t>(1 + draw() % 12);
    hysteresis = static_cast<std::int64_t>(1 + draw() % 4);
    minimum = std::exp2(3.0 - static_cast<double>(draw() % 8));
    growth = std::array{2.0, 1.5, 4.0, 1.001}[draw() % 4];
    backoff = std::array{0.5, 0.75, 0.1, 0.999}[draw() % 4];
    consecutive = draw() % 2 == 1;
    bad = std::array{20, 100, 300, 600}[draw() % 4];
  }
  std::uint64_t draw() {
    auto z = state += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  bool overflows() { return draw() % 1000 < static_cast<std::uint64_t>(bad); }

  std::uint64_t state;
  double init, minimum, growth, backoff;
  std::int64_t interval, hysteresis;
  bool consecutive;
  int bad;
};

LossScaleOptions options_of(const std::string& project, const Case& c) {
  auto options = vernier::loss_scale_preset(project);
  options.init_scale = c.init;
  options.growth_interval = c.interval;
  if (project == "pytorch") {
    options.growth_factor = c.growth;
    options.backoff_factor = c.backoff;
  }
  if (project == "deepspeed" || project == "megatron") {
    options.min_scale = std::min(c.minimum, c.init);
    options.hysteresis = c.hysteresis;
  }
  if (project == "deepspeed" && c.consecutive) options.refill = Refill::good_step;
  if (project == "apex") options.max_scale = 0x1p24;
  return options;
}

// True at the end of a recorded sequence: DeepSpeed raises an error at an overflow at its minimum, and PyTorch's scale
// leaves float32's normal numbers. LossScale stays at either end.
bool ends(const std::string& project, const LossScale& scale) {
  const auto& options = scale.options();
  if (scale.state_dict().integer("_hysteresis") > 1) return false;
  if (project == "deepspeed") return scale.value() <= options.min_scale;
  return options.min_scale == 0 &&
         static_cast<float>(scale.value() * options.backoff_factor) < std::numeric_limits<float>::min();
}

std::uint32_t digest(const std::string& project, LossScale& scale, Case& c) {
  std::uint32_t value = 2166136261;
  for (int step = 0; step < 100; ++step) {
    const bool overflows = c.overflows();
    if (overflows && ends(project, scale)) return (value ^ 0xDEAD) * 16777619;
    scale.update(torch::scalar_tensor(overflows ? 1.0F : 0.0F, torch::kFloat32));
    value = (value ^ std::bit_cast<std::uint32_t>(scale.tensor().item<float>())) * 16777619;
  }
  return value;
}

// The rule once more, in other words: it counts what happened, and shares no tracker with the code under test.
struct Told {
  LossScaleOptions o;
  float scale;
  std::int64_t good = 0, absorbed = 0;

  explicit Told(const LossScaleOptions& options) : o(options), scale(static_cast<float>(options.init_scale)) {}
  void update(bool overflow) {
    if (overflow) {
      good = 0;
      if (absorbed + 1 < o.hysteresis) {
        ++absorbed;
        return;
      }
      const auto lower = static_cast<float>(scale * o.backoff_factor);
      scale = std::max(lower, o.min_scale > 0 ? static_cast<float>(o.min_scale) : std::numeric_limits<float>::min());
      return;
    }
    ++good;
    if (o.refill == Refill::good_step) absorbed = 0;
    const auto counted = o.counts_first ? good : good - 1;
    if (counted == 0 || counted % o.growth_interval != 0) return;
    absorbed = 0;
    const auto grown = static_cast<float>(scale * o.growth_factor);
    if (std::isfinite(grown)) scale = o.max_scale > 0 ? std::min(grown, static_cast<float>(o.max_scale)) : grown;
  }
};

LossScaleOptions random_options(std::mt19937& random) {
  LossScaleOptions o;
  const auto draw = [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  o.init_scale = std::exp2(draw(30)) * (draw(2) == 0 ? 1 : 1.37);
  o.growth_factor = std::array{2.0, 1.5, 3.0, 1e9}[static_cast<std::size_t>(draw(4))];
  o.backoff_factor = std::array{0.5, 0.7, 1e-3, 0.99}[static_cast<std::size_t>(draw(4))];
  o.growth_interval = 1 + draw(5);
  if (draw(2) == 0) o.min_scale = o.init_scale * std::exp2(-draw(6));
  if (draw(2) == 0) o.max_scale = o.init_scale * std::exp2(draw(7));
  o.hysteresis = 1 + draw(4);
  o.refill = draw(2) == 0 ? Refill::growth : Refill::good_step;
  o.counts_first = draw(3) > 0;
  return o;
}

// The rule by operators, from the same start.
struct ByOperators {
  explicit ByOperators(const LossScaleOptions& of)
      : options(of),
        state{torch::full({}, of.init_scale, torch::kFloat32), torch::full({}, of.counts_first ? 0 : -1, torch::kInt32),
              torch::full({}, of.hysteresis, torch::kInt32)} {}
  void update(const torch::Tensor& found_inf, const torch::Tensor& passed_over = {}) {
    vernier::update_by_operators(options, state, found_inf, passed_over);
  }
  bool equals(const LossScale& scale) const {
    const auto saved = scale.state_dict();
    return same_bits(state.scale, scale.tensor()) &&
           state.tracker.item<std::int64_t>() == saved.integer("_growth_tracker") &&
           state.left.item<std::int64_t>() == saved.integer("_hysteresis");
  }

  LossScaleOptions options;
  vernier::ScaleTensors state;
};

std::unique_ptr<vernier::TrainerRun> run_with(const std::vector<torch::Tensor>& gradients) {
  auto run = std::make_unique<vernier::TrainerRun>();
  for (const auto& gradient : gradients) {
    const auto weight = torch::zeros_like(gradient);
    weight.mutable_grad() = gradient.clone();
    run->parameters.push_back({"p", weight, weight});
  }
  return run;
}

}  // namespace

TEST_CASE("loss_scale: each preset is its project's own code over random sequences of infs") {
  const Oracle oracle("scale_rules");
  const std::vector<std::string> projects = {"pytorch", "deepspeed", "megatron", "apex"};
  for (std::size_t project = 0; project < projects.size(); ++project) {
    const auto& recorded = oracle[projects[project]];
    REQUIRE(recorded.size(0) == 10'000);
    int differing = 0;
    for (std::int64_t i = 0; i < recorded.size(0); i += is_long() ? 1 : 5) {
      Case c(project, static_cast<std::uint64_t>(i));
      LossScale scale(torch::kCPU, options_of(projects[project], c));
      const auto expected = static_cast<std::uint32_t>(recorded.const_data_ptr<std::int32_t>()[i]);
      differing += digest(projects[project], scale, c) != expected ? 1 : 0;
    }
    CHECK_MESSAGE(differing == 0, projects[project]);
  }
}

TEST_CASE("loss_scale: presets start as their projects do") {
  const auto check = [](const char* name, double init, std::int64_t interval, double min, double max, std::int64_t h) {
    const auto o = vernier::loss_scale_preset(name);
    CHECK(o.init_scale == init);
    CHECK(o.growth_factor == 2);
    CHECK(o.backoff_factor == 0.5);
    CHECK(o.growth_interval == interval);
    CHECK(o.min_scale == min);
    CHECK(o.max_scale == max);
    CHECK(o.hysteresis == h);
  };
  check("pytorch", 65536, 2000, 0, 0, 1);
  check("deepspeed", 65536, 1000, 1, 0, 2);
  check("megatron", 0x1p32, 1000, 1, 0, 2);
  check("apex", 65536, 2000, 0, 0x1p24, 1);
  CHECK_THROWS_AS(vernier::loss_scale_preset("fairseq"), vernier::Error);
}

TEST_CASE("loss_scale: the law in other words, over 10,000 random laws and sequences") {
  std::mt19937 random(1);
  for (int sequence = 0; sequence < 10'000; ++sequence) {
    const auto options = random_options(random);
    LossScale scale(torch::kCPU, options);
    Told told(options);
    const auto bad = std::array{0U, 30U, 300U, 900U}[random() % 4];
    for (int step = 0; step < 60; ++step) {
      const bool overflow = random() % 1000 < bad;
      scale.update(torch::scalar_tensor(overflow ? 1.0F : 0.0F, torch::kFloat32));
      told.update(overflow);
      const float now = *scale.tensor().const_data_ptr<float>();
      REQUIRE(now == told.scale);
      REQUIRE((std::isnormal(now) && now > 0));
    }
  }
}

TEST_CASE("loss_scale: by operators, as on a GPU, it has the same bits") {
  std::mt19937 random(2);
  for (int sequence = 0; sequence < 400; ++sequence) {
    const auto options = random_options(random);
    LossScale plain(torch::kCPU, options);
    ByOperators device(options);
    const auto bad = std::array{0U, 30U, 300U, 900U}[random() % 4];
    for (int step = 0; step < 40; ++step) {
      const auto found_inf = torch::scalar_tensor(random() % 1000 < bad ? 1.0F : 0.0F, torch::kFloat32);
      plain.update(found_inf);
      device.update(found_inf);
      REQUIRE(device.equals(plain));
    }
  }
}

TEST_CASE("loss_scale: a step that is passed over changes nothing, and by operators nothing waits for the device") {
  std::mt19937 random(9);
  for (int sequence = 0; sequence < 200; ++sequence) {
    const auto options = random_options(random);
    LossScale without(torch::kCPU, options), plain(torch::kCPU, options);
    ByOperators device(options);
    for (int step = 0; step < 40; ++step) {
      const auto found_inf = torch::scalar_tensor(random() % 3 == 0 ? 1.0F : 0.0F, torch::kFloat32);
      const bool is_passed_over = random() % 3 == 0;
      const auto passed_over = torch::scalar_tensor(is_passed_over, torch::kBool);
      if (!is_passed_over) without.update(found_inf);
      plain.update(found_inf, passed_over);
      vernier::State saved;
      const int syncs = host_syncs_of([&] {
        device.update(found_inf, passed_over);
        saved = plain.state_dict();
      });
      REQUIRE(syncs == 0);
      REQUIRE(saved.real("scale") == without.value());
      REQUIRE(same_bits(plain.tensor(), without.tensor()));
      for (const char* name : {"_growth_tracker", "_hysteresis"}) {
        REQUIRE(saved.integer(name) == without.state_dict().integer(name));
      }
      REQUIRE(device.equals(without));
    }
  }
}

TEST_CASE("loss_scale: apex's fused kernel is hysteresis that any good step refills") {
  std::mt19937 random(3);
  for (int sequence = 0; sequence < 2'000; ++sequence) {
    LossScaleOptions options;
    options.hysteresis = 1 + static_cast<std::int64_t>(random() % 4);
    options.growth_interval = 1 + static_cast<std::int64_t>(random() % 6);
    options.refill = Refill::good_step;
    LossScale scale(torch::kCPU, options);
    // csrc/update_scale_hysteresis.cu, as a table: overflow and hysteresis left -> scale, tracker, left.
    float expected = 65536;
    std::int64_t tracker = 0, left = options.hysteresis;
    for (int step = 0; step < 60; ++step) {
      const bool overflow = random() % 3 == 0;
      if (overflow) --left;
      if (overflow && left > 0) tracker = 0;
      if (overflow && left <= 0) expected *= 0.5F, tracker = 0;
      if (!overflow && ++tracker == options.growth_interval) expected *= 2, tracker = 0;
      if (!overflow) left = options.hysteresis;
      scale.update(torch::scalar_tensor(overflow ? 1.0F : 0.0F, torch::kFloat32));
      REQUIRE(*scale.tensor().const_data_ptr<float>() == expected);
    }
  }
}

TEST_CASE("loss_scale: in an overflow storm it comes down to its minimum, never 0, inf or nan, and stays there") {
  const std::map<std::string, double> minimum = {
      {"pytorch", 0x1p-126}, {"deepspeed", 1}, {"megatron", 1}, {"apex", 0x1p-126}};
  for (const auto& [name, expected] : minimum) {
    CAPTURE(name);
    LossScale scale(torch::kCPU, vernier::loss_scale_preset(name));
    ByOperators device(scale.options());
    for (int step = 0; step < 500; ++step) {
      scale.update(torch::ones({}));
      device.update(torch::ones({}));
      REQUIRE(std::isnormal(scale.value()));
      REQUIRE(device.equals(scale));
    }
    CHECK(scale.value() == expected);
    LossScale resumed(torch::kCPU, scale.options());
    resumed.load_state_dict(scale.state_dict());
    CHECK(resumed.value() == expected);
  }
}

TEST_CASE("loss_scale: goes on after save and load, and brings a scale into the range of now") {
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    const auto options = random_options(random);
    LossScale one(torch::kCPU, options), other(torch::kCPU, options);
    for (int step = 0; step < 20; ++step) one.update(torch::scalar_tensor(random() % 3 == 0 ? 1.0F : 0.0F));
    other.load_state_dict(one.state_dict());
    for (int step = 0; step < 20; ++step) {
      const auto found_inf = torch::scalar_tensor(random() % 3 == 0 ? 1.0F : 0.0F);
      one.update(found_inf);
      other.update(found_inf);
      REQUIRE(one.value() == other.value());
    }
  }
  vernier::State saved;
  saved.put("scale", 1e30);
  saved.put("_growth_tracker", std::int64_t{5000});  // a GradScaler's count, longer than the present interval
  LossScale apex(torch::kCPU, vernier::loss_scale_preset("apex"));
  apex.load_state_dict(saved);
  CHECK(apex.value() == 0x1p24);
  saved.put("scale", 0.0);
  CHECK_THROWS_AS(apex.load_state_dict(saved), vernier::Error);
}

TEST_CASE("loss_scale: contradictions are refused with the option and the reason") {
  const auto refused = [](auto&& change) {
    LossScaleOptions options;
    change(options);
    CHECK_THROWS_AS(LossScale(torch::kCPU, options), vernier::Error);
    return vernier::contradiction(options).option;
  };
  CHECK(refused([](auto& o) { o.max_scale = o.init_scale - 1; }) == "max_scale");
  CHECK(refused([](auto& o) { o.max_scale = 1; }) == "max_scale");
  CHECK(refused([](auto& o) { o.min_scale = 1e6; }) == "min_scale");
  CHECK(refused([](auto& o) { o.min_scale = 1e-45; }) == "min_scale");
  CHECK(refused([](auto& o) { o.growth_factor = 1; }) == "growth_factor");
  CHECK(refused([](auto& o) { o.backoff_factor = 0; }) == "backoff_factor");
  CHECK(refused([](auto& o) { o.init_scale = 0; }) == "init_scale");
  CHECK(refused([](auto& o) { o.init_scale = infinity; }) == "init_scale");
  CHECK(refused([](auto& o) { o.hysteresis = 0; }) == "hysteresis");
  CHECK(vernier::contradiction({}).option.empty());
}

TEST_CASE("unscale: division that is left to later has the bits of dividing at once, by powers of two PyTorch's") {
  std::mt19937 random(5);
  for (int i = 0; i < 100; ++i) {
    torch::manual_seed(i);
    const auto gradients = std::vector{torch::randn({37}) * std::exp2(i - 50), torch::randn({3, 5}), torch::zeros({0})};
    const auto scale = torch::scalar_tensor(std::exp2(static_cast<double>(random() % 40)), torch::kFloat32);
    const auto made = run_with(gradients);
    auto& run = *made;
    vernier::unscale(run, scale);
    CHECK(run.found_inf.item<float>() == 0);
    REQUIRE(run.grad_scale.defined());
    CHECK(torch::equal(run.parameters[0].master.grad(), gradients[0]));  // not touched yet
    const auto divided = run.gradients();
    CHECK_FALSE(run.grad_scale.defined());
    CHECK_FALSE(run.norms.all.defined());
    for (std::size_t k = 0; k < gradients.size(); ++k) CHECK(same_bits(divided[k], gradients[k] * (1 / scale)));
    CHECK(torch::equal(run.gradients()[0], divided[0]));  // once
  }
}

TEST_CASE("unscale: finds each inf and nan, and divides at once what is not float32") {
  for (const auto dtype : {torch::kFloat32, torch::kFloat16, torch::kBFloat16, torch::kFloat64}) {
    for (const float odd : {infinity, -infinity, NAN, 1.0F}) {
      for (const std::int64_t place : {0, 31, 32, 1000, 20'000}) {
        auto gradient = torch::ones({20'001}, dtype);
        gradient[place] = odd;
        const auto made = run_with({torch::ones({3}, dtype), gradient});
        auto& run = *made;
        vernier::unscale(run, torch::scalar_tensor(4.0F));
        CHECK(run.found_inf.item<float>() == (odd == 1 ? 0.0F : 1.0F));
        CHECK(run.grad_scale.defined() == (dtype == torch::kFloat32));
        CHECK(run.gradients()[0][0].item<float>() == 0.25F);
      }
    }
  }
}

TEST_CASE("underflow_share: counts what float16 loses, without rows that were not in the batch") {
  CHECK_FALSE(vernier::underflow_share({}).defined());
  CHECK(vernier::underflow_share({torch::full({5}, 1.0)}).item<float>() == 0);
  CHECK(vernier::underflow_share({torch::full({5}, 1e-6)}).item<float>() == 1);
  const auto half = torch::tensor({1.0F, 0.0F, 1e-7F, 0x1p-14F});
  CHECK(vernier::underflow_share({half}).item<float>() == 0.5F);
  CHECK(vernier::underflow_share({torch::stack({half, torch::zeros({4})})}).item<float>() == 0.5F);
  CHECK(vernier::underflow_share({half, torch::ones({12})}).item<float>() == doctest::Approx(0.125));
  CHECK(vernier::underflow_share({half.to(torch::kHalf).repeat({300, 1})}).item<float>() == 0.5F);
  // Tensors of nothing but zeros: one may have had no part in the batch; where all are so, all is lost.
  CHECK(vernier::underflow_share({half, torch::zeros({400, 3})}).item<float>() == 0.5F);
  CHECK(vernier::underflow_share({torch::ones({5}), torch::zeros({3})}).item<float>() == 0);
  CHECK(vernier::underflow_share({torch::zeros({3, 3}), torch::zeros({2})}).item<float>() == 1);
}

}  // namespace loss_scale_test
