#include "wiring/wiring.h"
#include <vernier/host.h>

#include <doctest/doctest.h>

#include <atomic>
#include <regex>

#include "common/config/config.h"
#include "run/state/snapshot.h"
#include "run/training_loop.h"
#include "temporary_folder.h"
#include "thrown.h"

namespace wiring_test {

using vernier::Event;
using vernier::Host;
using vernier::Run;
using vernier::Wiring;

namespace {

constexpr const char* plugins = VERNIER_BINARY_DIR "/plugins";
constexpr const char* fixtures = VERNIER_BINARY_DIR "/fixtures/plugins";

// Lines 1 to 6 of every configuration here.
constexpr const char* base = "[task]\nuse = 'mlp'\nsamples = 16\nvalidation = 0.5\n[optimizer]\nuse = 'sgd'\n";

std::unique_ptr<Wiring> wired(const std::string& text) {
  const TemporaryFolder folder;
  return vernier::wire(vernier::load_config({folder.write("run.toml", text)}, {}), Host({plugins, fixtures}));
}

// With the folder of the file left out.
Thrown refusal(const std::string& text) {
  auto thrown = thrown_by([&] { wired(text); });
  if (const auto place = thrown.text.find("run.toml:"); place != std::string::npos) thrown.text.erase(0, place);
  return thrown;
}

// Three steps, an epoch each. Looks at them too: collects the notices that a monitor sees.
struct Short : vernier::Monitor {
  explicit Short(const std::string& text) : wiring(wired(base + std::string("[checkpoint]\nuse = 'none'\n") + text)) {
    run.steps = 3;
    vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  }
  ~Short() override { vernier::set_log_sink(nullptr); }
  void attach(vernier::Bus& bus) override {
    const auto collect = [this](const Run& seen) {
      for (const auto& notice : seen.notices) *notices += notice.text() + "\n";
    };
    bus.on(Event::StepEnd, collect);
    bus.on(Event::RunEnd, collect);
    bus.on(Event::RunFailed, [this](const Run&) { was_told_of_failure = true; });
  }
  Thrown train() {
    return thrown_by([&] {
      vernier::TrainingLoop trainer(*wiring, 1, stop);
      trainer.prepare(run, 0);
      trainer.train(run);
    });
  }
  std::string* notices = nullptr;
  bool was_told_of_failure = false;
  std::atomic<int> stop = 0;
  vernier::TrainerRun run;
  std::unique_ptr<Wiring> wiring;
};

}  // namespace

TEST_CASE("wiring: roles that are not written have their defaults") {
  std::string ids;
  const auto wiring = wired(base);
  for (const auto* plugin : wiring->plugins()) ids += plugin->id() + " ";
  CHECK(ids ==
        "task/mlp precision/fp32 scaler/none accumulation/fixed optimizer/sgd checkpoint/rolling distributed/none ");
}

TEST_CASE("wiring: namesakes are numbered, each has its options") {
  const auto wiring =
      wired(base + std::string("[[callback]]\nuse = 'clip_norm'\nmax_norm = 2\n[[callback]]\nuse = 'clip_norm'\n"));
  REQUIRE(wiring->callbacks.size() == 2);
  CHECK(wiring->callbacks[0]->id() == "callback/clip_norm");
  CHECK(wiring->callbacks[1]->id() == "callback/clip_norm#2");
  CHECK(says(wiring->table(), "  callback      clip_norm    max_norm=2\n"));
  CHECK(says(wiring->table(), "  callback      clip_norm#2 "));
  CHECK(says(wiring->table(), "  task          mlp          samples=16 validation=0.5\n"));
}

TEST_CASE("wiring: validations come by the epoch or by steps") {
  const auto every = [](const std::string& line) {
    const auto table = vernier::load_config({}, {}, "[run]\nsteps = 5\n" + line);
    vernier::Options options("run", std::get<vernier::Table>(table.at("run").data), "test.toml:1");
    return vernier::RunOptions(options, "test").validate_every;
  };
  CHECK(every("") == vernier::each_epoch);
  CHECK(every("validate_every = \"epoch\"") == vernier::each_epoch);
  CHECK(every("validate_every = 0") == 0);
  CHECK(every("validate_every = 20") == 20);
  for (const auto& [line, text] : std::vector<std::pair<std::string, std::string>>{
           {"validate_every = \"epochs\"", "is \"epochs\"; did you mean \"epoch\"? It takes epoch"},
           {"validate_every = -1", "must be at least 0, and is -1 (\"epoch\", or steps between validations"},
           {"validate_every = 1.5", "must be an integer, and is a number (\"epoch\", or steps between"}}) {
    CHECK_THROWS_WITH_AS(every(line), doctest::Contains(text.c_str()), vernier::Error);
  }
}

TEST_CASE("wiring: options that change no number are saved, and not compared when a run is resumed" *
          doctest::test_suite("data")) {
  const auto wiring =
      wired("[task]\nuse = 'tabular'\ndata = 'x.csv'\ntarget = 'y'\nworkers = 3\n[optimizer]\nuse = 'sgd'\n");
  const vernier::Options run("run", {}, "");
  const auto all = vernier::resolved_configuration(run, *wiring);
  const auto compared = vernier::resolved_configuration(run, *wiring, vernier::Keys::compared);
  for (const char* key : {"\"workers\":3", "\"prefetch\":2"}) {
    CAPTURE(key);
    CHECK(says(all, key));
    CHECK_FALSE(says(compared, key));
  }
  CHECK(says(compared, "\"batch_size\":"));
}

// Each is typed where its users type it: in a table, or above all tables.
TEST_CASE("wiring: keys of other trainers get a hint to what does it here, and that exists") {
  const struct {
    const char *table, *key, *hint;
  } cases[] = {{"[run]", "log_frequency", "`every` of a [[monitor]] says how often it logs"},
               {"[run]", "save_scaler_state", "`[checkpoint] use = \"rolling\"`"},
               {"[run]", "memory_efficient", "`--low-memory` or configs/presets/memory.toml does it"},
               {"[precision]", "cache_enabled", "`[precision] weight_casts = \"none\"`"},
               {"[precision]", "log_memory_usage", "`[[callback]] use = \"memory\"`"},
               {"[precision]", "log_precision", "`[[callback]] use = \"layers\"`"},
               {"[run]", "clear_cache", "`[[callback]] use = \"empty_cache\"`"},
               {"[precision]", "loss_scale_window", "`[scaler] growth_interval = 2000`"},
               {"[precision]", "min_loss_scale", "`[scaler] min_scale = 1`"},
               {"[precision]", "max_loss_scale", "`[scaler] max_scale = 16777216`"},
               {"[precision]", "cast_model", "`[precision] level = \"O2\"`"},
               {"[run]", "cast_inputs", "`[precision] cast_inputs = true`"},
               {"[run]", "cast_outputs", "`[precision] cast_outputs = true`"},
               {"[run]", "fallback_dtype", "`[precision] fallback = \"float32\"`"},
               {"[task]", "pin_memory", "where the device is a GPU"},
               {"[run]", "data_parallel", "`[distributed] use = \"ddp\"`"},
               {"[precision]", "enabled", "`[precision] use = \"fp32\"`"},
               {"[precision]", "scaler_enabled", "`[scaler] use = \"none\"`"},
               {"[run]", "handle_overflow", "`[[callback]] use = \"recovery\"`"},
               {"[run]", "use_gradient_accumulation", "`[accumulation] micro_batches = 2`"},
               {"[run]", "effective_batch_size", "`[accumulation] use = \"target\"`"},
               {"[run]", "auto_scale_batch_size", "`[accumulation] use = \"fit\"`"},
               {"[run]", "check_compatibility", "`vernier check`"},
               {"[run]", "gpu_memory_gb", "`vernier advise --memory`"},
               {"[run]", "log_amp_stats", "`[[monitor]] use = \"progress\"`"}};
  const std::regex snippet(R"(`(\[+)(\w+)(\]+) (\w+) = ([^`]+)`)");
  for (const auto& each : cases) {
    CAPTURE(each.key);
    const bool is_run = std::string(each.table) == "[run]";
    const auto line = each.key + std::string(" = 1\n");
    const bool is_task = std::string(each.table) == "[task]";
    const auto of_table = refusal(is_task ? "[task]\n" + line + (base + 7) : base + (each.table + ("\n" + line)));
    if (!is_run) CHECK(says(of_table.text, "` is not an option here; "));
    if (!is_run) CHECK(says(of_table.text, each.hint));
    const auto above = refusal(line + base);
    CHECK(says(above.text, each.hint));
    std::smatch found;
    for (auto text = above.text; std::regex_search(text, found, snippet); text = found.suffix()) {
      const std::string role = found[2], key = found[4], value = found[5];
      auto table = found[1].str() + role + found[3].str() + "\n";
      if (role == "scaler" && key != "use") table += "use = 'dynamic'\n";
      if (role == "precision" && key != "use") table += "use = 'bf16'\n";
      const auto used = refusal(base + table + key + " = " + value + "\n");
      CAPTURE(used);
      CHECK((used == Thrown{} || says(used.text, "`target_effective_batch_size` is needed")));
    }
  }
}

TEST_CASE("wiring: what does not fit is refused with its line and the remedy") {
  const std::string good = base;
  const auto after_base = [&](const char* text) { return refusal(good + text); };
  CHECK(after_base("[optimiser]\nuse = 'sgd'") ==
        configuration("run.toml:7: `optimiser` is not a table of a run; did you mean [optimizer]?"));
  CHECK(after_base("[wandb]\nuse = 'sgd'") == configuration("run.toml:7: `wandb` is not a table of a run"));
  CHECK(refusal("[optimizer]\nuse = 'sgd'") ==
        configuration(
            "the configuration has no [task]; add one with use = \"…\"; `vernier plugins` lists what there is"));
  CHECK(after_base("[[callback]]\nmax_norm = 2") ==
        configuration("run.toml:7: [[callback]] needs use = \"…\"; `vernier plugins` lists what there is"));
  CHECK(after_base("[accumulation]\nmicro_batches = 4") == Thrown{});  // the default takes its options
  CHECK(after_base("[accumulation]\nmicro_batch = 4") ==
        configuration("run.toml:8: accumulation/fixed: `micro_batch` is not an option here; did you mean "
                      "`micro_batches`?"));
  CHECK(after_base("[scaler]\nuse = 2") == configuration("run.toml:8: `use` must be a string, the name of a scaler"));
  CHECK(refusal("task = 'mlp'\n[optimizer]\nuse = 'sgd'") ==
        configuration("run.toml:1: write [task] and below it use = \"…\""));
  CHECK(after_base("[callback]\nuse = 'clip_norm'") ==
        configuration("run.toml:7: there may be several of these: write [[callback]], not [callback]"));
  CHECK(after_base("[[scaler]]\nuse = 'none'") == configuration("run.toml:7: write [scaler] and below it use = \"…\""));
  CHECK(refusal("callback = ['clip_norm']\n" + good) ==
        configuration("run.toml:1: write [[callback]] and below it use = \"…\""));
  CHECK(after_base("[precision]\nuse = 'fp16'") ==
        configuration(
            "run.toml:7: precision/fp16: `use` needs a loss scaler, or small gradients vanish, and the scaler is "
            "scaler/none; add [scaler] use = \"dynamic\""));
  const auto unknown = after_base("[precision]\nuse = 'fp61'");
  CHECK(unknown.kind == 3);
  CHECK(unknown.text.starts_with("run.toml:8: no precision is called \"fp61\"; did you mean \"fp16\"? (there are: "));
  const auto wrong_role = after_base("[[callback]]\nuse = 'wrong_role'");
  CHECK(wrong_role.kind == 3);
  CHECK(says(wrong_role.text, "run.toml:8: "));
  CHECK(says(wrong_role.text, "wrong_role.so: is a monitor"));
}

// All but RunFailed, which comes only if another has failed.
constexpr const char* events[] = {"RunBegin",   "StepBegin", "BatchReady", "LossReady", "GradientsReady",
                                  "UpdateDone", "StepEnd",   "Validated",  "EpochEnd",  "RunEnd"};

TEST_CASE("wiring: a callback that throws at any event ends the run with plugin, event and step") {
  for (const std::string event : events) {
    CAPTURE(event);
    Short toy("[[callback]]\nuse = 'throws_at'\nevent = '" + event + "'\n");
    const std::string place = "callback/throws_at at " + event + " of step " + (event == "RunEnd" ? "3" : "1");
    CHECK(toy.train() == failed(place + ": boom"));
    Short kept("[[callback]]\nuse = 'throws_at'\nkind = 'configuration'\nevent = '" + event + "'\n");
    CHECK(kept.train() == configuration(place + ": boom"));
    Short number("[[callback]]\nuse = 'throws_at'\nkind = 'int'\nevent = '" + event + "'\n");
    CHECK(number.train() == failed(place + ": it threw no std::exception"));
  }
}

TEST_CASE("wiring: a monitor that throws at any event is detached, and the run goes on") {
  const auto digest_of = [](const std::string& monitors, std::string* notices) {
    Short toy(monitors);
    toy.notices = notices;
    vernier::HostApi::attach(toy.wiring->bus, toy, true);
    CHECK(toy.train() == Thrown{});
    CHECK(toy.run.step == 3);
    return vernier::digest(*toy.run.model);
  };
  const auto alone = digest_of("", nullptr);
  for (const std::string event : events) {
    for (const std::string kind : {"std", "configuration", "int"}) {
      CAPTURE(event);
      CAPTURE(kind);
      std::string notices;
      const auto monitor = "[[monitor]]\nuse = 'throws_at'\nkind = '" + kind + "'\nevent = '" + event + "'\n";
      CHECK(digest_of(monitor, &notices) == alone);
      CHECK(notices == (event == "RunEnd" ? "" : "plugin_detached plugin=monitor/throws_at event=" + event + "\n"));
    }
  }
}

TEST_CASE("wiring: what throws at RunFailed hides neither the failure nor the event from the others") {
  static std::string logged;
  const auto train = [](const std::string& role, const std::string& kind) {
    Short toy("[[callback]]\nuse = 'throws_at'\nevent = 'GradientsReady'\nstep = 2\n[[" + role +
              "]]\nuse = 'throws_at'\nevent = 'RunFailed'\nkind = '" + kind + "'\n");
    vernier::HostApi::attach(toy.wiring->bus, toy, true);
    logged.clear();
    vernier::set_log_sink(
        [](vernier::Level, const std::string& who, const std::string& text) { logged += who + ": " + text + "\n"; });
    CHECK(toy.train() == failed("callback/throws_at at GradientsReady of step 2: boom"));
    return toy.was_told_of_failure;
  };
  for (const std::string kind : {"std", "configuration", "int"}) {
    CAPTURE(kind);
    const std::string text = kind == "int" ? "it threw no std::exception" : "boom";
    train("callback", kind);
    CHECK(says(logged, "RunFailed: callback/throws_at#2 at RunFailed of step 2: " + text + "\n"));
    CHECK(train("monitor", kind));
    CHECK(says(logged,
               "monitor/throws_at at RunFailed of step 2: " + text + " (the monitor is detached, the run goes on)\n"));
  }
}

}  // namespace wiring_test
