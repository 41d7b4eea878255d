// schedule: every kind against PyTorch, phases, the plateau's memory, and what is refused. schedule_test.cpp has the
// warm-up and the first three kinds.
#include <doctest/doctest.h>
#include <vernier/host.h>

#include "oracle.h"
#include "plugin_library.h"
#include "same_tensors.h"
#include "small_run.h"
#include "thrown.h"

namespace schedule_kinds_test {

using vernier::Event;

namespace {

constexpr std::int64_t updates = 120;  // tests/oracles/schedules.py has as many

struct Schedule {
  explicit Schedule(const std::string& options)
      : plugin(make_plugin<vernier::Callback>("callback/schedule", from_toml({options}))) {
    vernier::HostApi::attach(bus, *plugin, false);
    run.steps = updates;
    vernier::HostApi::declare(run.metric_infos,
                              {{"accuracy", vernier::Better::higher}, {"f1", vernier::Better::higher}}, "task/toy");
  }
  double factor(std::int64_t done) {
    run.updates = done;
    run.learning_rate_factor = 1.0;
    vernier::HostApi::emit(bus, Event::StepBegin, run);
    return run.learning_rate_factor;
  }
  double after(double metric) {
    vernier::HostApi::clear(run.metrics);
    for (const char* name : {"validation_loss", "accuracy"}) run.metrics.set(name, metric);
    vernier::HostApi::emit(bus, Event::Validated, run);
    return factor(0);
  }
  std::unique_ptr<vernier::Callback> plugin;
  vernier::TrainerRun run;
  vernier::Bus bus;
};

std::string refusal(const std::string& options) {
  const auto thrown = thrown_by([&] { Schedule schedule(options); });
  CHECK(thrown.kind == (thrown.text.empty() ? 0 : 2));
  return thrown.text;
}

}  // namespace

TEST_CASE("schedule: the learning rates of PyTorch's schedulers") {
  const std::pair<const char*, const char*> cases[] = {
      {"linear", "kind = 'linear'\ndecay_steps = 40\nstart_factor = 0.25\nfinal_factor = 0.75"},
      {"linear_down", "kind = 'linear'"},
      {"cosine", "kind = 'cosine'"},
      {"cosine_above_zero", "kind = 'cosine'\nfinal_factor = 0.1"},
      {"polynomial", "kind = 'polynomial'\ndecay_steps = 80\npower = 2.5"},
      {"exponential", "kind = 'exponential'\ngamma = 0.97"},
      {"step", "kind = 'step'\nevery = 25\ngamma = 0.5"},
      {"multi_step", "kind = 'multi_step'\nmilestones = [10, 11, 60, 100]\ngamma = 0.3"},
      {"one_cycle", "kind = 'one_cycle'\nfinal_factor = 4e-6"},
      {"one_cycle_linear",
       "kind = 'one_cycle'\nrise = 0.45\nshape = 'linear'\ninitial_factor = 0.1\nfinal_factor = 1e-3"},
      {"cosine_restarts", "kind = 'cosine_restarts'\nperiod = 30"},
      {"cosine_restarts_longer", "kind = 'cosine_restarts'\nperiod = 10\nmultiplier = 2\nfinal_factor = 0.05"},
      {"warmup_then_cosine",
       "phase = [{kind = 'linear', updates = 20, start_factor = 0.1, final_factor = 1.0}, {kind = 'cosine'}]"},
      {"three_phases",
       "phase = [{kind = 'constant', updates = 15}, {kind = 'step', updates = 35, every = 7, gamma = 0.5}, "
       "{kind = 'exponential', gamma = 0.9, updates = 10}]"}};
  const Oracle oracle("schedules");
  for (const auto& [name, options] : cases) {
    CAPTURE(name);
    Schedule schedule(options);
    const auto& expected = oracle[name];
    REQUIRE(expected.numel() == updates);
    for (std::int64_t done = 0; done < updates; ++done) {
      CAPTURE(done);
      CHECK(std::abs(schedule.factor(done) - expected[done].item<double>()) < 1e-12);
    }
  }
}

TEST_CASE("schedule: the plateau is PyTorch's, also if it is saved and loaded after each validation") {
  const std::pair<const char*, const char*> cases[] = {
      {"plateau", "factor = 0.5\npatience = 3"},
      {"plateau_cooldown", "factor = 0.1\npatience = 2\nthreshold = 0.01\ncooldown = 4\nmin_factor = 1e-3"},
      {"plateau_max", "metric = 'accuracy'\nfactor = 0.3\npatience = 1\nthreshold = 0.02\nthreshold_mode = 'absolute'"},
      {"plateau_impatient", "metric = 'accuracy'\nmode = 'max'\nfactor = 0.8\npatience = 0"}};
  const Oracle oracle("schedules");
  for (const auto& [name, options] : cases) {
    CAPTURE(name);
    const auto text = std::string("kind = 'plateau'\n") + options;
    const auto &rates = oracle[name], &metrics = oracle[std::string(name) + ".metrics"];
    CHECK(rates[0].item<double>() != rates[-1].item<double>());
    Schedule schedule(text);
    vernier::State saved = schedule.plugin->save();
    for (std::int64_t i = 0; i < metrics.numel(); ++i) {
      CAPTURE(i);
      const double metric = metrics[i].item<double>(), expected = rates[i].item<double>();
      CHECK(schedule.after(metric) == doctest::Approx(expected).epsilon(1e-12));
      Schedule other(text);
      other.plugin->load(saved);
      CHECK(other.after(metric) == doctest::Approx(expected).epsilon(1e-12));
      saved = other.plugin->save();
      check_equal(saved.tensors, schedule.plugin->save().tensors);
    }
  }
}

TEST_CASE("schedule: points of kinds that PyTorch does not have") {
  const struct {
    const char* options;
    std::int64_t done;
    double factor;
  } points[] = {
      {"kind = 'inverse_sqrt'\nwarmup_steps = 9", 0, 0.1},
      {"kind = 'inverse_sqrt'\nwarmup_steps = 9", 9, 1.0},
      {"kind = 'inverse_sqrt'\nwarmup_steps = 9", 36, 0.5},  // sqrt(9 / 36), as in Vaswani et al.
      {"kind = 'inverse_sqrt'\ntimescale = 4", 12, 0.5},
      {"kind = 'inverse_sqrt'", 30000, 0.5},
      {"kind = 'warmup_stable_decay'\nwarmup_steps = 19", 18, 0.95},
      {"kind = 'warmup_stable_decay'\nwarmup_steps = 20", 109, 1.0},
      {"kind = 'warmup_stable_decay'\nwarmup_steps = 20", 110, 1.0},  // the last tenth of 100 begins
      {"kind = 'warmup_stable_decay'\nwarmup_steps = 20", 115, 0.5},
      {"kind = 'warmup_stable_decay'\nwarmup_steps = 20", 120, 0.0},
      {"kind = 'warmup_stable_decay'\ncooldown_steps = 40\nshape = 'linear'\nfinal_factor = 0.2", 90, 0.8},
      {"kind = 'warmup_stable_decay'\ncooldown_steps = 40\nshape = 'sqrt'", 90, 0.5},
      {"kind = 'warmup_stable_decay'\ncooldown_steps = 40\ndecay_steps = 60\nshape = 'linear'", 50, 0.25},
      {"kind = 'warmup_stable_decay'\ncooldown_steps = 900\nshape = 'linear'", 30, 0.75},
      {"kind = 'one_cycle'\nrise = 1.0", 119, 1.0},
      {"kind = 'one_cycle'\nrise = 0.0", 119, 0.0},
      {"kind = 'plateau'\nwarmup_steps = 4", 1, 0.4},
      {"kind = 'multi_step'\nwarmup_steps = 10\nmilestones = [20]", 19, 1.0},
      {"kind = 'multi_step'\nwarmup_steps = 10\nmilestones = [20]", 20, 0.1},
  };
  for (const auto& [options, done, factor] : points) {
    CAPTURE(options);
    CAPTURE(done);
    CHECK(Schedule(options).factor(done) == doctest::Approx(factor));
  }
}

TEST_CASE("schedule: a phase counts from its beginning, and the last one goes on after its end") {
  Schedule schedule("phase = [{kind = 'linear', updates = 10}, {kind = 'cosine', warmup_steps = 9, updates = 20}]");
  CHECK(schedule.factor(5) == doctest::Approx(0.5));
  CHECK(schedule.factor(10) == doctest::Approx(0.1));
  CHECK(schedule.factor(19) == doctest::Approx(1.0));
  CHECK(schedule.factor(30) == doctest::Approx(0.0));
  CHECK(schedule.factor(1000) == doctest::Approx(0.0));
}

TEST_CASE("schedule: options of other kinds, and what contradicts itself, are refused") {
  const std::pair<const char*, const char*> cases[] = {
      {"kind = 'cosine'\ngamma = 0.5", "`gamma` is for kind = \"exponential\", \"step\" or \"multi_step\""},
      {"kind = 'step'\nevery = 3\npower = 2.0", "`power` is for kind = \"polynomial\""},
      {"kind = 'one_cycle'\nwarmup_steps = 3", "`warmup_steps` is for kind = \"constant\", "},
      {"kind = 'linear'\npatience = 3", "`patience` is for kind = \"plateau\""},
      {"kind = 'exponential'", "`gamma` must be given with kind = \"exponential\""},
      {"kind = 'step'", "`every` must be given"},
      {"kind = 'cosine_restarts'", "`period` must be given"},
      {"kind = 'multi_step'", "`milestones` must be given"},
      {"kind = 'multi_step'\nmilestones = [5, 3]", "`milestones` must be in ascending order"},
      {"kind = 'multi_step'\nmilestones = [0]", "`milestones`"},
      {"kind = 'one_cycle'\nshape = 'sqrt'", "`shape` is \"sqrt\", and must be"},
      {"kind = 'linear'\nphase = [{kind = 'cosine'}]", "`kind` belongs into each [[callback.phase]]"},
      {"final_factor = 0.1\nphase = [{kind = 'cosine'}]", "`final_factor` belongs into each [[callback.phase]]"},
      {"phase = [{kind = 'cosine'}, {kind = 'linear'}]", "`updates` of the phase before must be given"},
      {"phase = [{kind = 'plateau'}]", "`kind` is \"plateau\", which has no length"},
      {"phase = [{kind = 'cosine', gamma = 0.5}]", "`gamma` is for kind"},
      {"phase = [{kind = 'cosine', lenght = 5}]", "`lenght` is not an option here"}};
  for (const auto& [options, part] : cases) {
    CAPTURE(options);
    const auto text = refusal(options);
    CHECK_MESSAGE(says(text, part), text);
    CHECK(says(text, "callback/schedule"));
  }
}

TEST_CASE("schedule: a plateau refuses a metric that is not measured") {
  Schedule schedule("kind = 'plateau'\nmetric = 'f1'");
  CHECK(
      says(thrown_by([&] { schedule.after(1.0); }).text,
           "`metric` is \"f1\", which this run's validation does not measure; it measures validation_loss, accuracy"));
}

}  // namespace schedule_kinds_test
