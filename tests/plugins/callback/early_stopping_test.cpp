// early_stopping: when it ends a run, with which weights, and what a resumed run does.
#include <doctest/doctest.h>
#include <torch/nn/module.h>
#include <vernier/host.h>
#include <vernier/plugin.h>

#include <set>

#include "files/shards.h"
#include "log_lines.h"
#include "run/preparation.h"
#include "run/state/snapshot.h"
#include "same_tensors.h"
#include "small_run.h"
#include "thrown.h"
#include "toy_run.h"

namespace early_stopping_test {

using vernier::Event;
using vernier::Run;

namespace {

// Validations with these losses, one after each step.
class Measured final : public toy::Task {
 public:
  explicit Measured(std::vector<double> losses) : losses_(std::move(losses)) {}
  std::vector<vernier::MetricInfo> metrics() const override {
    using vernier::Better;
    return {{"accuracy", Better::higher}, {"r2", Better::higher}, {"f1", Better::higher}};
  }
  torch::Tensor validate(Run& run) override {
    validated.push_back(torch::cat({run.parameters[0].model.flatten(), run.parameters[1].model.flatten()}).detach());
    const double loss = losses_.at(static_cast<std::size_t>(run.step - 1));
    for (const char* name : {"accuracy", "r2", "own"}) run.metrics.set(name, -loss);
    return torch::tensor(loss);
  }
  std::vector<torch::Tensor> validated;  // the weights that each validation had

 private:
  std::vector<double> losses_;
};

struct Stopping : toy::Toy {
  Stopping(const std::string& options, const std::vector<double>& losses) {
    wiring.task = std::make_unique<Measured>(losses);
    wiring.callbacks.push_back(make_plugin<vernier::Callback>("callback/early_stopping", from_toml({options})));
    run.steps = static_cast<std::int64_t>(losses.size());
    on(Event::StepEnd, [this](Run& now) {
      now.model->named_buffers()["seen"].add_(1);
      trained.push_back(weights());
    });
  }
  // The step whose weights the model has; 0: of none.
  std::int64_t step_of_weights() const {
    for (std::size_t i = trained.size(); i > 0; --i) {
      if (torch::equal(weights()[0], trained[i - 1][0]) && torch::equal(weights()[1], trained[i - 1][1])) {
        return static_cast<std::int64_t>(i);
      }
    }
    return 0;
  }
  std::vector<std::vector<torch::Tensor>> trained;  // after each step
};

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

constexpr const char* noisy = R"(
[run]
steps = 60
validate_every = 2
[task]
use = "mlp"
samples = 64
batch_size = 4
[optimizer]
use = "adamw"
learning_rate = 0.05
[[monitor]]
use = "jsonl"
[[callback]]
use = "early_stopping"
patience = 3
)";

}  // namespace

TEST_CASE("early_stopping: the step in which the run ends, and the step whose weights it ends with") {
  const struct {
    const char* options;
    std::vector<double> losses;
    std::int64_t ends_after, weights_of;
    bool is_early;
  } cases[] = {
      {"patience = 2", {5, 4, 3, 4, 4, 9, 9}, 5, 3, true},
      {"patience = 2", {5, 4, 5, 3, 4, 2, 1}, 7, 7, false},
      {"patience = 2", {5, 4, 5, 3, 4, 2, 3}, 7, 6, false},  // at the planned end the best ones return too
      {"patience = 2\nrestore_best = false", {5, 4, 3, 4, 4, 9, 9}, 5, 5, true},
      {"patience = 1", {5, 5, 1}, 2, 1, true},
      {"patience = 2\nmin_delta = 0.5", {5, 4.7, 4.6, 1}, 3, 1, true},
      {"patience = 2\nmetric = 'own'\nmode = 'max'", {5, 4, 5, 5, 1}, 4, 2, true},
      {"patience = 2\nmetric = 'accuracy'\nmode = 'max'", {5, 4, 5, 5, 1}, 4, 2, true},
      {"patience = 2\nmetric = 'accuracy'", {5, 4, 5, 5, 1}, 4, 2, true},
      {"patience = 2\nmetric = 'r2'", {inf, 4, inf, 3, 5, 5, 1}, 6, 4, true},
      {"patience = 2", {nan, nan, 1}, 2, 2, true},
      {"patience = 2", {nan, 3, nan, 2, nan, nan, 1}, 6, 4, true},
  };
  for (const auto& [options, losses, ends_after, weights_of, is_early] : cases) {
    CAPTURE(options);
    CAPTURE(losses.size());
    Stopping toy(options, losses);
    const auto outcome = toy.prepare(1).train(toy.run);
    CHECK(toy.run.step == ends_after);
    CHECK(toy.step_of_weights() == weights_of);
    CHECK(outcome.finished.empty() == !is_early);
    const auto& last = toy.memory().last;
    REQUIRE(last);
    CHECK(torch::equal(last->tensor("model/first"), toy.weights()[0]));
    CHECK(toy.run.model->named_buffers()["seen"].item<float>() == static_cast<float>(weights_of));
  }
}

TEST_CASE("early_stopping: says who ended the run, and why") {
  Stopping toy("patience = 2", {5, 4, 4, 4, 4});
  CHECK(toy.prepare(1).train(toy.run).finished ==
        "callback/early_stopping: validation_loss has not improved on 4 of step 2 in 2 validations");
}

TEST_CASE("early_stopping: a metric that is not measured is refused") {
  Stopping toy("metric = 'f1'", {5, 4});
  CHECK(says(thrown_by([&] { toy.prepare(1).train(toy.run); }).text,
             "`metric` is \"f1\", which this run's validation does not measure; it measures accuracy, r2, own, "
             "validation_loss"));
}

namespace {

// Returns the refusal or the warning of a plugin's check() for a run with these measures, or "".
std::string said_of(const std::string& plugin, const std::string& options, std::int64_t validations,
                    std::optional<std::vector<vernier::MetricInfo>> measures) {
  static std::string warned;
  warned.clear();
  vernier::TrainerRun run;
  run.steps = 100;
  vernier::HostApi::declare(run.metric_infos, vernier::trainer_metrics(), "trainer");
  vernier::HostApi::declare(run.metric_infos,
                            {{"accuracy", vernier::Better::higher, "ratio", "", 0, 1}, {"f1", vernier::Better::higher}},
                            "task/toy");
  run.measures = std::move(measures);
  run.validations = validations;
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) { warned += text; });
  const auto role = plugin.substr(0, plugin.find('/'));
  const auto thrown = thrown_by([&] {
    if (role == "checkpoint") {
      make_plugin<vernier::Checkpoint>(plugin, from_toml({options}))->check(run);
    } else {
      make_plugin<vernier::Callback>(plugin, from_toml({options}))->check(run);
    }
  });
  vernier::set_log_sink(nullptr);
  return thrown.text + warned;
}

constexpr const char* stopping = "callback/early_stopping";
constexpr const char* plateau = "callback/schedule";
constexpr const char* rolling = "checkpoint/rolling";

struct Judge {
  const char *plugin, *options;
  std::int64_t validations;
  const char* says;  // a part; "": nothing
};
const Judge judges[] = {
    {stopping, "", 20, ""},
    {stopping, "patience = 3", 1, "it cannot end this run early: 1 validation is planned, and patience = 3"},
    {stopping, "patience = 3", 4, "lower `patience` or [run] validate_every; the best weights return at the end"},
    {stopping, "patience = 3", 5, ""},
    {stopping, "", 4, ""},
    {stopping, "restore_best = false", 4, "it cannot end this run early: 4 validations are planned, and patience = 10"},
    {stopping, "metric = 'accuracy'", 20, ""},
    {stopping, "metric = 'accuracy'\nmode = 'max'", 20, ""},
    {stopping, "metric = 'accuracy'\nmode = 'min'", 20, "`mode` is \"min\", and higher values of \"accuracy\""},
    {stopping, "mode = 'max'", 20, "`mode` is \"max\", and lower values of \"validation_loss\" are better; leave"},
    {stopping, "metric = 'own'", 20, "`mode` is needed: nothing says which values of \"own\" are better"},
    {stopping, "metric = 'own'\nmode = 'max'", 20, ""},
    {stopping, "metric = 'val_loss'", 20, "did you mean \"validation_loss\"? They measure validation_loss, accuracy"},
    {stopping, "metric = 'acc'", 20, "did you mean \"accuracy\"?"},
    {stopping, "metric = 'dice'", 20, "they measure validation_loss, accuracy, own"},
    {plateau, "kind = 'cosine'", 0, ""},
    {plateau, "kind = 'plateau'\nmetric = 'accuracy'\npatience = 2", 20, ""},
    {plateau, "kind = 'plateau'\nmetric = 'accuracy'\nmode = 'min'", 20, "`mode` is \"min\", and higher"},
    {plateau, "kind = 'plateau'\nmetric = 'acuracy'", 20, "did you mean \"accuracy\"?"},
    {plateau, "kind = 'plateau'\npatience = 2", 4, "cannot lower the learning rate in this run"},
    {plateau, "kind = 'plateau'\npatience = 2", 5, ""},
    {rolling, "keep_best = 1\nmetric = 'accuracy'", 20, ""},
    {rolling, "keep_best = 1\nmetric = 'accuracy'\nmode = 'min'", 20, "`mode` is \"min\", and higher"},
    {rolling, "keep_best = 1\nmetric = 'f1'", 20, "\"f1\" is not a metric of this run's validations"},
    {rolling, "keep_best = 1\nmetric_for_best_model = 'accuracy'", 20, "did you mean `metric`?"},
    {rolling, "save_top_k = 3", 20, "did you mean `keep_best`?"},
    {rolling, "keep_best = 2", 1, "one validation to choose from"},
    {rolling, "every = 101", 20, "every = 101, and the run has 100 steps, so a checkpoint is made at its end alone"},
    {rolling, "metric = 'accuracy'", 20, "`metric` is for `keep_best`, which is 0"},
    {"callback/switch", "metric = 'accuracy'\nabove = 0.9\nto = {precision = {use = 'bf16'}}", 20, ""},
    {"callback/switch", "metric = 'accuracy'\nabove = 90\nto = {precision = {use = 'bf16'}}", 20,
     "`above` is 90, and \"accuracy\" is never above 1"},
    {"callback/switch", "metric = 'f1'\nabove = 0.9\nto = {precision = {use = 'bf16'}}", 20, "\"f1\" is not a metric"},
    {"callback/switch", "metric = 'los'\nbelow = 0.9\nto = {precision = {use = 'bf16'}}", 20, "did you mean \"loss\"?"},
    {"callback/switch", "at_step = 100\nto = {precision = {use = 'bf16'}}", 20, "it never acts: at_step = 100"},
    {"callback/swa", "from = 101", 20, "it never averages: from = 101, and the run has 100 steps"},
    {"callback/swa", "from = 75", 20, ""},
    {"callback/profiler", "first_step = 101", 20, "it records nothing: first_step = 101, and the run has 100 steps"},
    {"callback/unfreeze", "group = [{match = ['a'], from = 100}]", 20, "\"a\" never trains: its group has from = 100"},
};

}  // namespace

TEST_CASE("what judges validations says before the first step that it cannot, or must not") {
  using vernier::Better;
  const std::vector<vernier::MetricInfo> all = {
      {"validation_loss", Better::lower}, {"accuracy", Better::higher}, {"own", Better::unknown}};
  for (const auto& [plugin, options, validations, part] : judges) {
    CAPTURE(plugin);
    CAPTURE(options);
    CAPTURE(validations);
    const auto text = said_of(plugin, options, validations, all);
    CHECK_MESSAGE((*part == '\0' ? text.empty() : says(text, part)), text);
    const bool is_of_validations = std::string(part) != "" || validations == 0;
    if (is_of_validations || std::string(plugin) == "callback/swa" || std::string(plugin) == "callback/switch")
      continue;
    const auto nothing = said_of(plugin, options, 0, std::vector<vernier::MetricInfo>());
    CHECK_MESSAGE(says(nothing, "there are none, because no data is held out"), nothing);
  }
}

TEST_CASE("profiler: a run that is resumed behind its first step, and has no table of it, says so") {
  const LogLines log;
  const TemporaryFolder folder;
  const auto plugin = make_plugin<vernier::Callback>("callback/profiler");
  vernier::Bus bus;
  vernier::HostApi::attach(bus, *plugin, false);
  vernier::TrainerRun run;
  run.output = folder.path().string();
  for (const std::int64_t step : {9, 10}) {
    run.step = step;
    vernier::HostApi::emit(bus, Event::RunBegin, run);
    CHECK(LogLines::count("records nothing: first_step = 10, and the run resumes after step 10") == step - 9);
  }
  folder.write("profile.txt", "of the run before");
  vernier::HostApi::emit(bus, Event::RunBegin, run);
  CHECK(LogLines::lines().size() == 1);
}

TEST_CASE("early_stopping: masters get the best weights too, and a stopped and resumed run is the one that was not") {
  for (const std::string precision :
       {"use = 'fp32'", "use = 'bf16'\nlevel = 'O2'", "use = 'bf16'\nlevel = 'O3'\nrounding = 'kahan'"}) {
    CAPTURE(precision);
    const auto config = from_toml({noisy, "[precision]\n" + precision + "\n"});
    const TemporaryFolder whole_output;
    SmallRun whole(config, whole_output.path().string());
    // All bits of the weights: those of the model, and the rest that Kahan's summation keeps.
    const auto weights = [&] {
      auto all = whole.wiring->precision->save().part("compensation");
      for (const auto& parameter : whole.run.parameters) all.put("model/" + parameter.name, parameter.model.detach());
      return vernier::to_bytes(all);
    };
    std::set<std::string> seen;
    whole.on(Event::StepEnd, [&](Run&) { seen.insert(weights()); });
    whole.train();
    REQUIRE(whole.run.step < 60);
    CHECK(seen.contains(weights()));
    for (const auto& parameter : whole.run.parameters) {
      CHECK(torch::equal(parameter.model, parameter.best().to(parameter.model.scalar_type())));
    }
    for (const std::int64_t stop : {1, 5, 6, static_cast<int>(whole.run.step) - 1}) {
      CAPTURE(stop);
      const TemporaryFolder output;
      {
        SmallRun first(config, output.path().string());
        first.stop_after(stop);
        first.train();
        CHECK(first.run.step == stop);
      }
      SmallRun second(config, output.path().string());
      REQUIRE(second.resume());
      second.train();
      CHECK(second.run.step == whole.run.step);
      CHECK(second.digest() == whole.digest());
    }
  }
}

namespace {

struct Averaging : Stopping {
  // plugins: with their options, some before and some behind early_stopping.
  Averaging(const std::vector<std::pair<std::string, std::string>>& plugins, const std::vector<double>& losses)
      : Stopping("patience = 2", losses) {
    bool is_before = true;
    for (const auto& [id, options] : plugins) {
      if (id == "callback/early_stopping") {
        is_before = false;
      } else if (id.starts_with("optimizer/")) {
        wiring.optimizer = make_plugin<vernier::Optimizer>(id, from_toml({options}));
      } else {
        auto plugin = make_plugin<vernier::Callback>(id, from_toml({options}));
        auto& all = wiring.callbacks;
        all.insert(is_before ? all.begin() : all.end(), std::move(plugin));
      }
    }
  }
  std::vector<torch::Tensor>& validated() { return static_cast<Measured&>(*wiring.task).validated; }
  // The weights that evaluate, export, predict and generate have.
  torch::Tensor evaluated() {
    trainer->validation().evaluate(run, [&] {
      validated().push_back(torch::cat({run.parameters[0].model.flatten(), run.parameters[1].model.flatten()}));
      return torch::Tensor();
    });
    return validated().back();
  }
};

}  // namespace

TEST_CASE("early_stopping: the model that was the best is validated, evaluated, saved and read, with any average") {
  const std::pair<std::string, std::string> stopping = {"callback/early_stopping", ""};
  const std::pair<std::string, std::string> ema = {"callback/ema", "decay = 0.5"}, late = {"callback/ema", "start = 3"};
  const std::pair<std::string, std::string> swa = {"callback/swa", "from = 1"}, late_swa = {"callback/swa", "from = 4"};
  const auto asgd = [](const char* t0) {
    return std::pair<std::string, std::string>("optimizer/asgd", "learning_rate = 0.1\nt0 = " + std::string(t0));
  };
  const std::vector<std::vector<std::pair<std::string, std::string>>> cases = {
      {},
      {stopping, ema},
      {ema},
      {stopping, late},
      {late},
      {stopping, {"callback/ema", "decay = 0.5\nvalidate = 'both'"}},
      {stopping, {"callback/ema", "decay = 0.5\nvalidate = 'trained'"}},
      {swa},
      {late_swa},
      {ema, stopping, swa},
      {asgd("0")},
      {asgd("1")},
      {asgd("3")},
      {asgd("100")},
      {asgd("1"), stopping, ema},
  };
  const std::vector<double> losses = {5, 4, 3, 4, 4, 9};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    Averaging run(cases[i], losses);
    const auto outcome = run.prepare(1).train(run.run);
    CHECK(run.run.step == 5);
    REQUIRE(run.validated().size() >= 5);
    const auto best = run.validated()[run.validated().size() == 5 ? 2 : 5];  // `both` validates twice
    CHECK(outcome.validation_loss == 3);
    CHECK(torch::equal(run.evaluated(), best));
    REQUIRE(run.memory().last);
    const auto saved = *run.memory().last;
    Averaging used(cases[i], losses);  // the verbs do so too
    used.prepare(1);
    vernier::restore_weights(saved, used.run, used.wiring.plugins());
    CHECK(torch::equal(used.evaluated(), best));
    Averaging resumed(cases[i], losses);
    resumed.prepare(1);
    vernier::restore_snapshot(saved, resumed.run, resumed.wiring.plugins(), "", /*allow_inexact=*/true);
    CHECK(torch::equal(resumed.evaluated(), best));
  }
}

}  // namespace early_stopping_test
