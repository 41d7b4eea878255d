// vernier::Trainer, compared with the run that the program makes of the same TOML, and with itself.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/wait.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>
#include <vernier/autocast.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/data/supervised_task.h>
#include <vernier/sdk.h>
#include <vernier/trainer.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "log_lines.h"
#include "run/state/snapshot.h"
#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

// README's own plugin, as a class of this file.
#pragma push_macro("VERNIER_PLUGIN")
#undef VERNIER_PLUGIN
#define VERNIER_PLUGIN(...)
namespace readme {
#include "../../../examples/custom_precision/warm_bf16.cpp"
}  // namespace readme
#pragma pop_macro("VERNIER_PLUGIN")

namespace trainer_test {

using vernier::Event;
using vernier::Options;
using vernier::Run;
using vernier::Trainer;
using vernier::TrainerOptions;

namespace {

// Three epochs of four batches.
const std::string base = R"([run]
steps = 12
device = "cpu"
threads = 1
validate_every = 5
[task]
use = "mlp"
samples = 32
validation = 0.1
[precision]
use = "bf16"
[optimizer]
use = "adamw"
learning_rate = 0.01
[[callback]]
use = "clip_norm"
max_norm = 0.5
)";

TrainerOptions options_of(const std::string& toml, const TemporaryFolder& folder) {
  return {.toml = toml, .sets = {"run.output=" + folder / "out"}, .quiet = true};
}

std::string digest_of(Trainer& trainer) {
  return vernier::digest(trainer.model());
}

// The digest that the program's training loop comes to.
std::string digest_of_the_program(const std::vector<std::string>& texts) {
  const TemporaryFolder folder;
  SmallRun run(from_toml(texts), folder.path().string());
  run.train();
  return run.digest();
}

// Writes down each event: "StepEnd 3".
std::unique_ptr<vernier::Monitor> recorder(std::vector<std::string>& events) {
  return std::make_unique<toy::Told<vernier::Monitor>>("monitor/recorder", [&events](vernier::Bus& bus) {
    for (int i = 0; i < vernier::event_count; ++i) {
      const auto event = static_cast<Event>(i);
      bus.on(event, [&events, event](const Run& run) {
        events.push_back(vernier::name_of(event) + (" " + std::to_string(run.step)));
      });
    }
  });
}

std::unique_ptr<vernier::Monitor> on(Event event, std::function<void(const Run&)> look) {
  return std::make_unique<toy::Told<vernier::Monitor>>("monitor/at",
                                                       [event, look](vernier::Bus& bus) { bus.on(event, look); });
}

std::unique_ptr<vernier::Callback> on_step_end(std::function<void(Run&)> act) {
  return std::make_unique<toy::Told<vernier::Callback>>("callback/at",
                                                        [act](vernier::Bus& bus) { bus.on(Event::StepEnd, act); });
}

// A task with data and a loss, made in code.
class Points : public vernier::SupervisedTask {
 public:
  explicit Points(Options& options) : SupervisedTask(options, 8) {}
  void build(Run& run) override {
    const auto x = torch::randn({64, 2});
    const auto [training, held_out] =
        vernier::split(vernier::tensor_dataset({x, (x.prod(1) > 0).to(torch::kLong)}), 0.25, run.seed);
    set_training(training);
    add_validation(held_out);
    set_model(torch::nn::Sequential(torch::nn::Linear(2, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2)));
    set_loss([](const auto& output, const auto& target) { return at::cross_entropy_loss(output, target); });
    add_metric(vernier::accuracy());
  }
};

// Points, and the dtypes in which their layers answer while they train.
class Seen final : public Points {
 public:
  using Points::Points;
  void build(Run& run) override {
    Points::build(run);
    const torch::nn::Linear first(2, 8), second(8, 2);
    set_model(torch::nn::Sequential(first, second).ptr(), [this, first, second](const vernier::Batch& batch) {
      const auto seen = [this](const torch::Tensor& x) {
        has_16_bits = has_16_bits || (torch::GradMode::is_enabled() && x.element_size() == 2);
        return x;
      };
      const auto x = seen(at::linear(batch.tensors[0], first->weight, first->bias));
      return seen(at::linear(x.tanh(), second->weight, second->bias));
    });
  }
  bool has_16_bits = false;  // in this step
};

// The statistics as a program counts them that sees no more than the run: what layers answer, what overflowed,
// PyTorch's rule for the scale, and a clock.
struct Counted {
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  void begin_step(Seen& task) {
    task.has_16_bits = false;
    passes = 0;
    begun = Clock::now();
  }
  void end_backward(const Seen& task, const Run& run) {
    if (++passes <= run.micro_batches) is_mixed = task.has_16_bits;  // adaptive measures in the passes after these
  }
  void end_step(const Run& run) {
    steps += 1;
    mixed += is_mixed ? 1 : 0;
    seconds += seconds_since(begun);
    if (const auto share = run.metrics.value("underflow")) shares.push_back(*share);
    const bool overflowed = run.found_inf.defined() && run.found_inf.item<float>() != 0;
    overflows += overflowed ? 1 : 0;
    if (scale && tracker) {
      const auto before = *scale;
      *tracker = overflowed ? 0 : *tracker + 1;
      if (overflowed) *scale /= 2;
      if (*tracker == growth_interval) *scale *= 2, *tracker = 0;
      changes += *scale != before ? 1 : 0;
    }
  }
  void compare(const vernier::AmpStats& amp) const {
    CHECK(amp.total_steps() == steps);
    CHECK(amp.amp_steps() == mixed);
    CHECK(amp_usage_ratio(amp) == doctest::Approx(static_cast<double>(mixed) / static_cast<double>(steps)));
    CHECK(amp.scaler_updates() == changes);
    CHECK(amp.current_scale() == scale);
    CHECK(amp.growth_tracker() == tracker);
    CHECK(amp.overflow_count() == overflows);
    const auto checked = static_cast<double>(mixed > 0 ? mixed : steps);
    CHECK(overflow_ratio(amp) == doctest::Approx(static_cast<double>(overflows) / checked));
    CHECK_FALSE(amp.avg_memory_savings().has_value());
    REQUIRE(amp.mean_step_seconds().has_value());
    const auto of_steps = static_cast<double>(steps);
    CHECK(*amp.mean_step_seconds() * of_steps >= seconds);  // the steps contain what was timed here
    CHECK(*amp.mean_step_seconds() * of_steps <= seconds_since(all_begun));
    const auto measured = amp.underflow();
    REQUIRE(measured.has_value() == !shares.empty());
    if (!measured) return;
    CHECK(measured->count == std::ranges::count_if(shares, [](double share) { return share > 0; }));
    CHECK(measured->last == shares.back());
    double sum = 0;
    for (const double share : shares) sum += share;
    CHECK(measured->mean == doctest::Approx(sum / static_cast<double>(shares.size())));
  }

  static constexpr std::int64_t growth_interval = 3;
  std::int64_t steps = 0, mixed = 0, overflows = 0, changes = 0;
  double seconds = 0;
  std::int64_t passes = 0;  // backward passes of this step
  bool is_mixed = false;    // this step
  std::optional<double> scale;
  std::optional<std::int64_t> tracker;
  std::vector<double> shares;
  Clock::time_point begun, all_begun = Clock::now();
};

std::int64_t newest_step(const std::string& run) {
  const auto found = vernier::checkpoints_in(run + "/checkpoints");
  return found.empty() ? -1 : vernier::read_checkpoint(found.front()).manifest.step;
}

nlohmann::json summary_in(const TemporaryFolder& folder) {
  return nlohmann::json::parse(read_text(folder / "out/summary.json"));
}

}  // namespace

TEST_CASE("the embedded trainer gives the program's weights, at once, by steps and by epochs, with the same events") {
  const struct {
    const char* name;
    void (*train)(Trainer&);
  } cases[] = {
      {"train()", [](Trainer& trainer) { trainer.train(); }},
      {"train_step()",
       [](Trainer& trainer) {
         for (int step = 1; step <= 12; ++step) CHECK(trainer.train_step());
         CHECK(!trainer.train_step());
       }},
      {"train_epoch()",
       [](Trainer& trainer) {
         for (int epoch = 0; epoch < 3; ++epoch) CHECK(trainer.train_epoch() == 4);
         CHECK(trainer.train_epoch() == 0);
       }},
      {"a step, an epoch, the rest, and validations between",
       [](Trainer& trainer) {
         CHECK(trainer.validate() > 0);
         trainer.train_step();
         CHECK(trainer.train_epoch() == 3);  // the rest of the epoch
         CHECK(trainer.validate() > 0);
         trainer.train();
       }},
  };
  const auto expected = digest_of_the_program({base});
  std::vector<std::string> expected_events;
  for (const auto& [name, train] : cases) {
    CAPTURE(name);
    const TemporaryFolder folder;
    std::vector<std::string> events;
    Trainer trainer(options_of(base, folder));
    trainer.add(recorder(events));
    train(trainer);
    CHECK(digest_of(trainer) == expected);
    if (expected_events.empty()) expected_events = events;
    CHECK(events == expected_events);
    CHECK(events.front() == "RunBegin 0");
    CHECK(std::ranges::count(events, std::string("Validated 5")) == 1);
    CHECK(events.back() == "RunEnd 12");
    CHECK(newest_step(folder / "out") == 12);
    const auto outcome = trainer.outcome();
    CHECK(outcome.steps == 12);
    CHECK(outcome.ended_by == "done");
    CHECK(outcome.loss == trainer.metrics().at("loss"));
    CHECK(outcome.validation_loss == trainer.metrics().at("validation_loss"));
    CHECK(outcome.seconds > 0);
  }
}

TEST_CASE("the embedded trainer takes files, texts and --set alike, and names the run") {
  const TemporaryFolder folder;
  const auto file = folder.write("first.toml", base);
  const auto output = "run.output=" + folder / "out/{name}";
  const struct {
    const char* what;
    TrainerOptions options;
    const char* name;
  } cases[] = {
      {"a file", {.files = {file}, .sets = {output}}, "first"},
      {"a file and a name", {.files = {file}, .sets = {output}, .name = "second"}, "second"},
      {"a text", {.toml = base, .sets = {output}}, "run"},
      {"a text over a file",
       {.files = {file}, .toml = "run.name = \"third\"", .sets = {output}, .name = "no"},
       "third"},
      {"--set alone",
       {.sets = {output, "run.steps=12", "run.device=cpu", "run.threads=1", "run.validate_every=5", "task.use=mlp",
                 "task.samples=32", "task.validation=0.1", "precision.use=bf16", "optimizer.use=adamw",
                 "optimizer.learning_rate=0.01", "callback.clip_norm.max_norm=0.5"},
        .name = "fourth"},
       "fourth"},
  };
  const auto expected = digest_of_the_program({base});
  for (const auto& [what, options, name] : cases) {
    CAPTURE(what);
    Trainer trainer(options);
    trainer.train();
    CHECK(digest_of(trainer) == expected);
    CHECK(trainer.run().name == name);
    CHECK(std::filesystem::exists(folder.path() / "out" / name / "config.toml"));
  }
}

TEST_CASE("objects fill roles as plugins do") {
  toy::Toy toy;
  toy.wiring.accumulation = std::make_unique<toy::MicroBatches>(std::vector<std::int64_t>{2, 4});
  toy.prepare().train(toy.run);

  const TemporaryFolder folder;
  Trainer trainer(options_of("[run]\nsteps = 6\nthreads = 1\ndevice = \"cpu\"\n", folder));
  auto memory = std::make_unique<toy::Memory>();
  auto* saved = memory.get();
  memory->every = 4;
  trainer.use(std::make_unique<toy::Task>());
  trainer.use(make_plugin<vernier::Precision>("precision/fp32"));
  trainer.use(make_plugin<vernier::Scaler>("scaler/none"));
  trainer.use(std::make_unique<toy::MicroBatches>(std::vector<std::int64_t>{2, 4}));
  trainer.use(std::make_unique<toy::Descent>());
  trainer.use(std::move(memory));
  std::int64_t updates = 0;
  trainer.add(on(Event::UpdateDone, [&](const Run&) { updates += 1; }));
  trainer.train();
  CHECK(digest_of(trainer) == vernier::digest(*toy.run.model));
  CHECK(saved->steps == std::vector<std::int64_t>{4, 6});
  CHECK(updates == 6);
  const auto configuration = summary_in(folder)["configuration"];
  CHECK(configuration["task"] == nlohmann::json{{"use", "toy"}});
  CHECK(configuration["monitor"][0] == nlohmann::json{{"use", "at"}});
}

TEST_CASE("an object's options are part of the run, and a resumed run must have the same") {
  const TemporaryFolder folder;
  const std::string toml = base.substr(0, base.find("[task]")) + base.substr(base.find("[precision]"));
  const auto train = [&](std::int64_t batch_size, bool resumes, std::int64_t steps) {
    Options options("task/points", {{"batch_size", {batch_size, ""}}}, "here");
    Trainer trainer(options_of(toml, folder));
    trainer.use(std::make_unique<Points>(options), options);
    if (resumes) trainer.resume();
    for (std::int64_t step = 0; step < steps; ++step) trainer.train_step();
    trainer.save();
    return trainer.train_step() ? std::string() : digest_of(trainer);
  };
  const auto whole = train(16, false, 12);
  CHECK(!whole.empty());
  std::filesystem::remove_all(folder / "out");
  CHECK(train(16, false, 7).empty());
  CHECK(newest_step(folder / "out") == 7);
  const auto other = thrown_by([&] { train(12, true, 5); });
  CHECK(other.kind == 2);
  CHECK(says(other.text, "task.batch_size was 16 and is 12"));
  CHECK(train(16, true, 5) == whole);
}

TEST_CASE("a trainer that is stopped, or destroyed after save(), is resumed bit for bit") {
  const auto expected = digest_of_the_program({base});
  const struct {
    const char* name;
    void (*end)(Trainer&);
  } cases[] = {
      {"save()", [](Trainer& trainer) { trainer.save(); }},
      {"save() twice", [](Trainer& trainer) { trainer.save(), trainer.save(); }},
      {"stop()",
       [](Trainer& trainer) {
         trainer.stop();
         CHECK(!trainer.train_step());
       }},
      {"stop() and train()",
       [](Trainer& trainer) {
         trainer.stop();
         CHECK(trainer.train().ended_by == "stopped");
       }},
  };
  for (const auto& [name, end] : cases) {
    CAPTURE(name);
    const TemporaryFolder folder;
    {
      Trainer trainer(options_of(base, folder));
      for (int step = 0; step < 7; ++step) trainer.train_step();
      end(trainer);
    }
    CHECK(newest_step(folder / "out") == 7);
    Trainer trainer(options_of(base, folder));
    trainer.resume();
    CHECK(trainer.run().step == 7);
    CHECK(trainer.train().ended_by == "done");
    CHECK(digest_of(trainer) == expected);
    Trainer again(options_of(base, folder));
    again.resume(folder / "out/checkpoints/step-00000007");
    again.train();
    CHECK(digest_of(again) == expected);
    auto options = options_of(base, folder);
    options.sets.push_back("run.resume=auto");
    Trainer complete(options);
    CHECK(complete.run().step == 12);
    CHECK(complete.train().ended_by == "done");
    CHECK(complete.outcome().loss == again.outcome().loss);
    CHECK(!std::filesystem::exists(folder / "out-2"));
  }
}

TEST_CASE("stop() from another thread ends the run with a checkpoint") {
  const TemporaryFolder folder;
  std::int64_t stopped_after = 0;
  {
    Trainer trainer(options_of(base + "[[monitor]]\nuse = \"jsonl\"\n", folder));
    std::atomic<std::int64_t> steps = 0;
    trainer.add(on(Event::StepEnd, [&](const Run& run) {
      steps = run.step;
      if (run.step == 6) {
        std::thread([&] { trainer.stop(); }).join();
      }
    }));
    const auto outcome = trainer.train();
    stopped_after = steps;
    CHECK(outcome.ended_by == "stopped");
    CHECK(outcome.steps == stopped_after);
  }
  CHECK(stopped_after == 6);
  CHECK(newest_step(folder / "out") == 6);
  CHECK(summary_in(folder)["ended_by"] == "stopped");
  Trainer early(options_of(base, folder));
  early.stop();
  CHECK(early.train().ended_by == "stopped");
  CHECK(early.outcome().steps == 0);
  CHECK(thrown_by([&] { early.model(); }) == failed("there is no model: stop() was called before it was made"));
  CHECK(!std::filesystem::exists(folder / "out-2"));
}

TEST_CASE("mixed precision is switched off and on as callback/switch does it, and the run resumes") {
  const auto expected = digest_of_the_program({base, R"([[callback]]
use = "switch"
at_step = 4
[callback.to]
precision = {use = "fp32"}
[[callback]]
use = "switch"
at_step = 8
[callback.to]
precision = {use = "bf16"}
)"});
  CHECK(expected != digest_of_the_program({base}));
  const TemporaryFolder folder;
  {
    Trainer trainer(options_of(base, folder));
    for (int step = 0; step < 4; ++step) trainer.train_step();
    trainer.use_mixed_precision(true);  // it is
    trainer.use_mixed_precision(false);
    trainer.use_mixed_precision(false);
    for (int step = 4; step < 6; ++step) trainer.train_step();
    CHECK(trainer.amp().amp_steps() == 4);
    trainer.save();
  }
  Trainer trainer(options_of(base, folder));
  trainer.resume();
  for (int step = 6; step < 8; ++step) trainer.train_step();
  trainer.use_mixed_precision(true);
  trainer.train();
  CHECK(digest_of(trainer) == expected);
  CHECK(trainer.amp().amp_steps() == 8);
  const auto swaps = summary_in(folder)["swaps"];
  REQUIRE(swaps.size() == 2);
  CHECK(swaps[0] ==
        nlohmann::json{{"after_step", 4}, {"role", "precision"}, {"from", "precision/bf16"}, {"to", "precision/fp32"}});
  CHECK(swaps[1]["after_step"] == 8);
}

TEST_CASE("swap() takes TOML, and a refused one leaves the run as it was") {
  const auto expected = digest_of_the_program({base});
  const TemporaryFolder folder;
  Trainer trainer(options_of(base, folder));
  trainer.train_step();
  const struct {
    const char* toml;
    const char* text;
  } cases[] = {
      {"[precision]\nuse = \"fp16\"", "precision/fp16: `use` needs a loss scaler"},
      {"[precision]\nuse = \"bf17\"", "TOML text:2: no precision is called \"bf17\"; did you mean \"bf16\"?"},
      {"[precision\n", "TOML text:1: "},
      {"[task]\nuse = \"gpt\"", "TOML text:1: `task` cannot be swapped while a run runs"},
      {"include = \"other.toml\"", "TOML text:1: `include` is for files only"},
  };
  for (const auto& [toml, text] : cases) {
    CAPTURE(toml);
    const auto thrown = thrown_by([&, toml = toml] { trainer.swap(toml); });
    CHECK(thrown.kind >= 2);
    INFO(thrown.text);
    CHECK(says(thrown.text, text));
  }
  trainer.train();
  CHECK(digest_of(trainer) == expected);
  CHECK(thrown_by([&] { trainer.swap("[precision]\nuse = \"fp32\""); }) ==
        configuration("the run has ended: nothing is swapped"));
}

TEST_CASE("a swap that would destroy an object, or needs it made anew, is refused") {
  const std::string toml = "[run]\nsteps = 6\nthreads = 1\ndevice = \"cpu\"\n";
  const struct {
    const char* what;
    void (*use)(Trainer&);
    void (*swap)(Trainer&);
    Thrown thrown;
  } cases[] = {
      {"the precision is an object, and could not be switched on again",
       [](Trainer& trainer) { trainer.use(make_plugin<vernier::Precision>("precision/bf16")); },
       [](Trainer& trainer) { trainer.use_mixed_precision(false); },
       configuration("precision/bf16 is an object of the program, which could not come back; switch it off itself")},
      {"there is no mixed precision to switch on", [](Trainer&) {},
       [](Trainer& trainer) { trainer.use_mixed_precision(true); },
       configuration("the precision of the configuration is fp32, which is not mixed; name another with swap()")},
      {"the optimizer is an object, and the master weights become others", [](Trainer&) {},
       [](Trainer& trainer) { trainer.swap("[precision]\nuse = \"bf16\"\nlevel = \"O2\""); },
       configuration("optimizer/descent is an object of the program, and cannot be made anew for other weights; give "
                     "[optimizer] a table, or keep the precision; nothing was swapped after step 1")},
  };
  for (const auto& [what, use, swap, thrown] : cases) {
    CAPTURE(what);
    std::string digests[2];
    for (const bool swaps : {false, true}) {
      const TemporaryFolder folder;
      Trainer trainer(options_of(toml, folder));
      trainer.use(std::make_unique<toy::Task>());
      trainer.use(std::make_unique<toy::Descent>());
      use(trainer);
      trainer.train_step();
      if (swaps) CHECK(thrown_by([&, swap = swap] { swap(trainer); }) == thrown);
      trainer.train();
      digests[swaps ? 1 : 0] = digest_of(trainer);
    }
    CHECK(digests[0] == digests[1]);  // it goes on as if nobody had asked
  }
}

TEST_CASE("the statistics of mixed precision are those that a listener counts, in each step") {
  const std::string dynamic = "[scaler]\nuse = \"dynamic\"\ngrowth_interval = 3\nmeasure_every = 4\n";
  const auto precision = [](const std::string& name, const std::string& more = "") {
    return "[precision]\nuse = \"" + name + "\"\n" + more;
  };
  const std::string off = "[precision]\nuse = \"fp32\"\n[scaler]\nuse = \"none\"\n";
  const struct {
    std::string toml;
    std::int64_t mixed;     // mixed steps among 12; -1: this machine decides
    std::string swap = {};  // after step 6
    bool is_readme = false;
  } cases[] = {
      {precision("fp32"), 0},
      {precision("fp32", "rule = [{op = \"linear\", use = \"bf16\"}]\n"), 12},
      {precision("fp32", "rule = [{op = \"linear\", use = \"fp32\"}]\n"), 0},
      {precision("bf16"), 12},
      {precision("bf16", "level = \"O0\"\n"), 0},
      {precision("bf16", "level = \"O2\"\n"), 12},
      {precision("bf16", "level = \"O3\"\n"), 12},
      {precision("bf16", "autocast_mode = \"training\"\n"), 12},
      {precision("bf16", "autocast_mode = \"inference\"\n"), 0},
      {precision("fp8"), 12},
      {precision("fp16") + dynamic, 12},
      {precision("fp16", "level = \"O0\"\n") + dynamic, 0},
      {precision("fp16", "level = \"O2\"\n") + dynamic, 12},
      {precision("fp16", "level = \"O3\"\n") + dynamic, 12},
      {precision("fp16") + dynamic + "[accumulation]\nuse = \"fixed\"\nmicro_batches = 3\n", 12},
      {precision("adaptive"), -1},
      {precision("adaptive", "candidates = []\n"), 0},
      {precision("adaptive", "min_gain = -1000\nerror_budget = 1\n"), 9},  // after three steps in float32
      {"", 7, "", true},
      {"[accumulation]\nuse = \"fixed\"\nmicro_batches = 3\n", 7, "", true},
      {precision("fp16") + dynamic, 6, off},
      {precision("fp16") + dynamic, 12, "[precision]\nuse = \"bf16\"\n[scaler]\nuse = \"none\"\n"},
      {precision("fp32"), 6, precision("fp16") + dynamic},
      {precision("fp16") + dynamic, 12, "[scaler]\nuse = \"static\"\nscale = 512.0\n"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.toml);
    CAPTURE(each.swap);
    const TemporaryFolder folder;
    const std::string run = "[run]\nsteps = 12\ndevice = \"cpu\"\nthreads = 1\nvalidate_every = 5\n";
    Trainer trainer(options_of(run + "[optimizer]\nuse = \"sgd\"\nlearning_rate = 0.01\n" + each.toml, folder));
    Options task_options("task/seen", {}, "test");
    auto made = std::make_unique<Seen>(task_options);
    auto& task = *made;
    trainer.use(std::move(made), task_options);
    if (each.is_readme) {
      Options options("precision/warm_bf16", {{"warmup_steps", {std::int64_t{5}, ""}}}, "test");
      trainer.use<vernier::Precision>(std::make_unique<readme::WarmBf16>(options), options);
    }
    Counted counted;
    const auto counts = [&](const std::string& toml) {
      const bool is_dynamic = says(toml, "dynamic"), is_static = says(toml, "static");
      const auto before = counted.scale;
      counted.scale = is_dynamic ? std::optional(65536.0) : is_static ? std::optional(512.0) : std::nullopt;
      counted.tracker = is_dynamic ? std::optional<std::int64_t>(0) : std::nullopt;
      counted.changes += before && counted.scale && counted.scale != before ? 1 : 0;
    };
    counts(each.toml);
    trainer.add(on(Event::StepBegin, [&](const Run&) { counted.begin_step(task); }));
    trainer.add(on(Event::BackwardDone, [&](const Run& now) { counted.end_backward(task, now); }));
    trainer.add(on(Event::StepEnd, [&](const Run& now) { counted.end_step(now); }));
    trainer.add(std::make_unique<toy::Told<vernier::Callback>>("callback/bad", [](vernier::Bus& bus) {
      bus.on(Event::LossReady, [](Run& now) {  // these steps overflow, if a scaler looks
        const bool is_bad = now.step == 1 || now.step == 8 || now.step == 9;
        if (is_bad) now.micro_batch_loss = now.micro_batch_loss * HUGE_VAL;
      });
      bus.on(Event::GradientsReady, [](Run& now) {
        if (now.step == 1 || now.step == 8 || now.step == 9) now.skip_when(torch::ones({}));
      });
    }));
    while (trainer.train_step()) {
      counted.compare(trainer.amp());
      if (trainer.run().step == 6 && !each.swap.empty()) {
        trainer.swap(each.swap);
        counts(each.swap);
        CHECK(trainer.amp().current_scale() == counted.scale);
        CHECK(trainer.amp().growth_tracker() == counted.tracker);
      }
    }
    counted.compare(trainer.amp());
    CHECK(counted.steps == 12);
    if (each.mixed >= 0) CHECK(counted.mixed == each.mixed);
    if (says(each.toml + each.swap, "dynamic")) CHECK(counted.overflows > 0);
    CHECK(summary_in(folder)["amp"] == nlohmann::json::parse(trainer.amp().json()));
  }
}

TEST_CASE("the statistics begin anew where the program wants it, with the scale as it is") {
  const TemporaryFolder folder;
  auto options = options_of(base, folder);
  options.sets = {"run.output=" + folder / "out", "precision.use=fp16", "scaler.use=dynamic",
                  "scaler.growth_interval=5", "scaler.init_scale=1024"};
  Trainer trainer(options);
  for (int step = 0; step < 7; ++step) trainer.train_step();
  CHECK(trainer.amp().total_steps() == 7);
  trainer.reset_amp();
  CHECK(trainer.amp().total_steps() == 0);
  CHECK(trainer.amp().scaler_updates() == 0);
  CHECK(trainer.amp().current_scale() == 2048);
  CHECK(trainer.amp().growth_tracker() == 2);
  trainer.train();
  CHECK(trainer.amp().total_steps() == 5);
  CHECK(trainer.amp().amp_steps() == 5);
  CHECK(trainer.amp().current_scale() == 4096);
  CHECK(trainer.run().step == 12);
}

TEST_CASE("validate_step() has loss and accuracy of a batch, in the run's precision, and changes no number") {
  std::string digests[2];
  for (const bool looks : {false, true}) {
    const TemporaryFolder folder;
    Trainer trainer(
        options_of("[run]\nsteps = 12\ndevice = \"cpu\"\nthreads = 1\n[precision]\nuse = \"bf16\"\n"
                   "[optimizer]\nuse = \"adamw\"\nlearning_rate = 0.05\n",
                   folder));
    Options options("task/points", {}, "test");
    trainer.use(std::make_unique<Points>(options), options);
    while (trainer.train_step()) {
      if (!looks) continue;
      const auto steps = trainer.amp().amp_steps();
      const auto& batch = trainer.run().batch;
      const auto loss = trainer.validate_step(batch);
      REQUIRE(loss.has_value());
      const auto metrics = trainer.metrics();
      CHECK(metrics.at("validation_loss") == *loss);
      const torch::NoGradGuard no_grad;
      const vernier::Autocast autocast(torch::kCPU, torch::kBFloat16);
      const auto output = dynamic_cast<torch::nn::SequentialImpl&>(trainer.model()).forward(batch.tensors[0]);
      const auto right = output.argmax(1).eq(batch.tensors[1]).to(torch::kDouble).mean().item<double>();
      CHECK(metrics.at("accuracy") == doctest::Approx(right));
      CHECK(*loss ==
            doctest::Approx(at::cross_entropy_loss(output.to(torch::kFloat32), batch.tensors[1]).item<double>()));
      CHECK(trainer.amp().amp_steps() == steps);
    }
    digests[looks ? 1 : 0] = digest_of(trainer);
  }
  CHECK(digests[0] == digests[1]);
}

TEST_CASE("[run] measure_savings is refused, with the way out") {
  const TemporaryFolder folder;
  auto options = options_of(base, folder);
  options.sets.emplace_back("run.measure_savings=true");
  Trainer trainer(options);
  const auto thrown = thrown_by([&] { trainer.train(); });
  CHECK(thrown.kind == 2);
  CAPTURE(thrown.text);
  CHECK(says(thrown.text, "`measure_savings` needs a process of its own"));
  CHECK(says(thrown.text, "`vernier check FILE --savings` prints the figure"));
}

TEST_CASE("what a trainer is not given, or given twice, is refused before anything is made") {
  const TemporaryFolder folder;
  const struct {
    const char* what;
    const char* toml;
    void (*use)(Trainer&);
    const char* text;
  } cases[] = {
      {"an unknown key", "task.use = \"mlp\"\noptimizer.lr = 1", nullptr, "TOML text:2: optimizer/sgd"},
      {"no task", "", nullptr, "the configuration has no [task]"},
      {"an object and a table", "[task]\nuse = \"mlp\"", [](Trainer& to) { to.use(std::make_unique<toy::Task>()); },
       "TOML text:1: [task] is given, and the program uses task/toy, an object of its own; leave one of them out"},
      {"two objects", "",
       [](Trainer& to) {
         to.use(std::make_unique<toy::Task>());
         to.use(std::make_unique<toy::Task>());
       },
       "the program uses two objects as task, and there is one task; leave one of them out"},
      {"no object", "", [](Trainer& to) { to.use(std::unique_ptr<toy::Task>()); },
       "the program uses an object as task that is null; make it first"},
      {"an object with a key that it does not read", "",
       [](Trainer& to) {
         Options options("task/points", {{"batchsize", {std::int64_t{4}, ""}}}, "here");
         to.use(std::make_unique<Points>(options), options);
       },
       "batchsize"},
      {"a folder that is missing", "", [](Trainer&) {}, "TrainerOptions::plugin_paths: /none: there is no such folder"},
  };
  for (const auto& [what, toml, use, text] : cases) {
    CAPTURE(what);
    auto options = options_of("", folder);
    options.toml = toml;
    options.sets.insert(options.sets.end(), {"run.steps=3", "run.device=cpu", "optimizer.use=sgd"});
    if (std::string(text).find("/none") != std::string::npos) options.plugin_paths = {"/none"};
    const auto thrown = thrown_by([&, use = use] {
      Trainer trainer(options);
      if (use != nullptr) use(trainer);
      trainer.train_step();
    });
    INFO(thrown.text);
    CHECK(thrown.kind == 2);
    CHECK(says(thrown.text, text));
    CHECK(!std::filesystem::exists(folder / "out"));
  }
}

TEST_CASE("calls in the wrong order are refused, and say what is the right one") {
  const TemporaryFolder folder;
  Trainer trainer(options_of(base, folder));
  trainer.train_step();
  CHECK(thrown_by([&] { trainer.add(on(Event::StepEnd, [](const Run&) {})); }) ==
        configuration("the monitor comes too late: use() and add() stand before the first use of the trainer"));
  CHECK(thrown_by([&] { trainer.resume(); }) == configuration("resume() stands before the first step, and once"));
  const torch::NoGradGuard no_grad;
  trainer.model().parameters()[0].fill_(NAN);
  CHECK(thrown_by([&] { trainer.save(); }) ==
        failed("trainer after step 1: no checkpoint is made: layers.0.weight is not finite"));
}

TEST_CASE("one trainer at a time is between its first use and the end of its run") {
  const TemporaryFolder folder;
  auto first = std::make_unique<Trainer>(options_of(base, folder));
  first->train_step();
  const auto second = [&] {
    Trainer trainer(options_of(base, folder));
    trainer.train();
    return digest_of(trainer);
  };
  const auto thrown = thrown_by(second);
  CHECK(thrown.kind == 2);
  CHECK(says(thrown.text, "another vernier::Trainer of this process has not ended its run"));
  first->train();
  const auto expected = digest_of(*first);
  CHECK(second() == expected);
  CHECK(first->validate() == first->outcome().validation_loss);  // after its end, and after another run
  first = std::make_unique<Trainer>(options_of(base, folder));
  first->train_step();
  first.reset();
  CHECK(second() == expected);
}

TEST_CASE("a run that fails is saved, says so, and leaves the process to the next trainer") {
  const TemporaryFolder folder;
  Trainer trainer(options_of(base, folder));
  class Trouble final : public vernier::Callback {
   public:
    void attach(vernier::Bus& bus) override {
      bus.on(Event::StepBegin, [](Run& run) {
        if (run.step == 4) throw std::out_of_range("no such thing");
      });
    }
  };
  trainer.add(std::make_unique<Trouble>());
  const std::string why = "callback/object at StepBegin of step 5: no such thing";
  CHECK(thrown_by([&] { trainer.train(); }) == failed(why));
  CHECK(trainer.outcome().ended_by == "error");
  CHECK(trainer.outcome().why == why);
  CHECK(!trainer.train_step());
  CHECK(newest_step(folder / "out") == 4);
  CHECK(summary_in(folder)["error"] == why);
  Trainer next(options_of(base, folder));
  CHECK(next.train().ended_by == "done");
}

TEST_CASE("a checkpoint at a path is complete, and continues the run; without a folder save() says so") {
  const TemporaryFolder folder;
  const auto path = folder / "at-four";
  auto options = options_of(base, folder);
  options.writes_folder = false;
  {
    Trainer trainer(options);
    for (int step = 0; step < 4; ++step) trainer.train_step();
    CHECK(
        thrown_by([&] { trainer.save(); }) ==
        configuration("save() has nowhere to write to, since TrainerOptions::writes_folder is false; give it a path"));
    trainer.save(path);
    Thrown elsewhere;
    std::thread([&] { elsewhere = thrown_by([&] { trainer.train_step(); }); }).join();
    CHECK(says(elsewhere.text, "is used on the thread that made it"));
    CHECK(trainer.run().step == 4);
    trainer.train();
  }
  Trainer resumed(options_of(base, folder));
  resumed.resume(path);
  CHECK(resumed.run().step == 4);
  resumed.train();
  CHECK(digest_of(resumed) == digest_of_the_program({base}));
}

TEST_CASE("the folder has what the program writes; without it nothing is written") {
  const TemporaryFolder folder;
  {
    Trainer trainer(options_of(base, folder));
    trainer.train_step();
    vernier::log(vernier::Level::info, "test", "a line");
    trainer.train();
    vernier::log(vernier::Level::info, "test", "a line after the end");
  }
  CHECK(says(read_text(folder / "out/log.txt"), "info test: a line\n"));
  CHECK(!says(read_text(folder / "out/log.txt"), "after the end"));
  CHECK(says(read_text(folder / "out/config.toml"), "bf16"));
  CHECK(summary_in(folder)["ended_by"] == "done");
  CHECK(summary_in(folder)["digest"] == "xxh3-128:" + digest_of_the_program({base}));

  auto options = options_of(base, folder);
  options.sets = {"run.output=" + folder / "nothing", "monitor.jsonl.every=1", "monitor.csv.every=1",
                  "monitor.digest.every=1"};
  options.writes_folder = false;
  std::string scratch;
  for (const bool is_there : {false, true}) {  // the folder of an earlier run
    if (is_there) folder.write("nothing/losses.jsonl", "{\"step\":1,\"loss\":2}\n");
    Trainer trainer(options);
    trainer.train();
    CHECK(digest_of(trainer) == digest_of_the_program({base}));
    CHECK(std::filesystem::exists(folder / "nothing") == is_there);
    scratch = trainer.run().output;
    CHECK(std::filesystem::exists(scratch + "/losses.jsonl"));
  }
  CHECK(!std::filesystem::exists(scratch));
  CHECK(read_text(folder / "nothing/losses.jsonl") == "{\"step\":1,\"loss\":2}\n");
  CHECK(!std::filesystem::exists(folder / "nothing/metrics.csv"));
  options.sets.push_back("checkpoint.use=rolling");
  const auto thrown = thrown_by([&] { Trainer(options).train(); });
  CHECK(thrown.kind == 2);
  CHECK(says(thrown.text, "[checkpoint] has no folder to write to"));
}

namespace {

// Calls body in a forked process, which ends at once. Returns the text of the error, or "" if none was thrown.
std::string in_child(const std::function<void()>& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const auto text = thrown_by(body).text;
    (void)!::write(ends[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  pollfd end{ends[0], POLLIN, 0};
  const bool is_heard = ::poll(&end, 1, 60'000) == 1;  // an end of the child is heard too
  char text[1000];
  const auto length = is_heard ? ::read(ends[0], text, sizeof text) : -1;
  ::close(ends[0]);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return is_heard ? std::string(text, static_cast<std::size_t>(std::max<ssize_t>(length, 0))) : "it hangs";
}

}  // namespace

TEST_CASE("a forked process hears at once that the trainer is not in it, from every function") {
  const TemporaryFolder folder;
  auto trainer = std::make_unique<Trainer>(options_of(base, folder));
  trainer->train_step();
  const std::pair<std::string, std::function<void()>> functions[] = {
      {"constructor", [] { Trainer another({.toml = base}); }},
      {"use", [&] { trainer->add(on(Event::StepEnd, [](const Run&) {})); }},
      {"resume", [&] { trainer->resume(); }},
      {"train_step", [&] { trainer->train_step(); }},
      {"train_epoch", [&] { trainer->train_epoch(); }},
      {"train", [&] { trainer->train(); }},
      {"outcome", [&] { trainer->outcome(); }},
      {"stop", [&] { trainer->stop(); }},
      {"validate", [&] { trainer->validate(); }},
      {"validate_step", [&] { trainer->validate_step({}); }},
      {"metrics", [&] { trainer->metrics(); }},
      {"save", [&] { trainer->save(); }},
      {"swap", [&] { trainer->swap("[precision]\nuse = 'fp32'"); }},
      {"use_mixed_precision", [&] { trainer->use_mixed_precision(false); }},
      {"run", [&] { trainer->run(); }},
      {"model", [&] { trainer->model(); }},
      {"amp", [&] { trainer->amp(); }},
      {"reset_amp", [&] { trainer->reset_amp(); }},
      {"destructor", [&] { trainer.reset(), throw std::runtime_error("this process was forked"); }}};
  for (const auto& [name, function] : functions) {
    CAPTURE(name);
    CHECK(in_child(function).starts_with("this process was forked"));
  }
  CHECK(trainer->train().steps == 12);  // the process itself goes on
  CHECK(in_child([&] { Trainer({.toml = base}).train(); }).starts_with("this process was forked"));
}

TEST_CASE("a run of objects that came without Options says so where it is resumed, and one with them is compared") {
  for (const bool has_options : {false, true}) {
    CAPTURE(has_options);
    const TemporaryFolder folder;
    const auto make = [&](std::int64_t batch_size) {
      auto trainer = std::make_unique<Trainer>(options_of(
          "[run]\nsteps = 4\ndevice = \"cpu\"\nthreads = 1\n[optimizer]\nuse = \"sgd\"\nlearning_rate = 0.01", folder));
      Options options("task/points", {{"batch_size", {batch_size, ""}}}, "test");
      auto points = std::make_unique<Points>(options);
      has_options ? trainer->use(std::move(points), options) : trainer->use(std::move(points));
      trainer->add(on(Event::StepEnd, [](const Run&) {}));  // a monitor may differ
      return trainer;
    };
    auto first = make(8);
    first->train_step();
    first->save();
    first.reset();
    const LogLines log;
    const auto refused = thrown_by([&] { make(16)->resume(); });
    CHECK(refused.kind == (has_options ? 2 : 0));
    CHECK(says(refused.text, "batch_size") == has_options);
    CHECK(LogLines::count("resume: task/object: came without Options") == (has_options ? 0 : 1));
  }
}

TEST_CASE("a listener cannot train, save or swap by the trainer that calls it") {
  const std::function<void(Trainer&)> calls[] = {[](Trainer& trainer) { trainer.train_step(); },
                                                 [](Trainer& trainer) { trainer.save(); },
                                                 [](Trainer& trainer) { trainer.swap("[scaler]\nuse = 'none'"); }};
  for (const auto& call : calls) {
    const TemporaryFolder folder;
    Trainer trainer(options_of(base, folder));
    trainer.add(on_step_end([&](Run&) { call(trainer); }));
    CHECK(says(thrown_by([&] { trainer.train_step(); }).text,
               "a function of vernier::Trainer is called by a listener of callback/at, within a step"));
  }
}

}  // namespace trainer_test
