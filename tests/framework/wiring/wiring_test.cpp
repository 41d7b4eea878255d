#include "wiring/wiring.h"
#include <vernier/host.h>

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "built.h"
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

namespace {

struct Word {
  std::string document, word, value, hint;
};

std::vector<Word> words_of_documents() {
  std::ifstream file(VERNIER_SOURCE_DIR "/tests/framework/wiring/words.tsv");
  std::vector<Word> words;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::stringstream fields(line);
    Word word;
    for (auto* field : {&word.document, &word.word, &word.value, &word.hint}) std::getline(fields, *field, '\t');
    words.push_back(word);
  }
  return words;
}

// Makes the plugins of the base with these lines and values of --set, and reads [run].
Thrown taken(const std::string& lines, const std::vector<std::string>& sets = {}) {
  return thrown_by([&] {
    const TemporaryFolder folder;
    const auto file = folder.write("run.toml", base + std::string("[run]\nsteps = 5\n"));
    const auto config = vernier::load_config({file}, sets, lines);
    vernier::wire(config, Host({plugins, fixtures}));
    vernier::Options options("run", std::get<vernier::Table>(config.at("run").data), "");
    vernier::RunOptions(options, "test");
  });
}

// The parts that a hint names: lines of TOML that hold together or each alone, keys, and commands.
struct Named {
  std::vector<std::string> lines, sets, verbs;
};

Named named_in(const std::string& hint, const Word& word) {
  Named named;
  const std::regex snippet(R"(`(\[+\w+\]+) ([^`]+)`( and)?)"), key(R"(did you mean `([\w.]+)`\?)"),
      command(R"(`vernier (\w+) [^`]*`)");
  bool goes_on = false;
  for (auto at = std::sregex_iterator(hint.begin(), hint.end(), snippet); at != std::sregex_iterator(); ++at) {
    const auto lines = (*at)[1].str() + "\n" + std::regex_replace((*at)[2].str(), std::regex(", "), "\n") + "\n";
    goes_on ? void(named.lines.back() += lines) : named.lines.push_back(lines);
    goes_on = (*at)[3].matched;
  }
  std::smatch found;
  if (std::regex_search(hint, found, key)) {
    const std::string name = found[1];
    named.sets.push_back((name.find('.') == std::string::npos ? "precision." + name : name) + "=" + word.value);
  }
  for (auto text = hint; std::regex_search(text, found, command); text = found.suffix())
    named.verbs.push_back(found[1]);
  return named;
}

}  // namespace

// Readers of the first documents type their words in [precision], or at the top of the file, before any table.
TEST_CASE("wiring: words of other trainers get a hint, and what it says is taken") {
  if (!is_all_built()) return;
  const auto words = words_of_documents();
  CHECK(words.size() > 73);
  for (const auto& word : words) {
    CAPTURE(word.document);
    const auto line = word.word + " = " + word.value + "\n";
    for (const bool is_above : {false, true}) {
      const auto text = refusal(is_above ? line + base : base + ("[precision]\n" + line)).text;
      CAPTURE(text);
      CHECK(says(text, is_above ? "` is not a table of a run; " : "` is not an option here; "));
      CHECK_MESSAGE(says(text, word.hint), word.hint);
      const auto named = named_in(text, word);
      for (const auto& lines : named.lines) CHECK_MESSAGE(taken(lines) == Thrown{}, lines);
      for (const auto& set : named.sets) CHECK_MESSAGE(taken("", {set}) == Thrown{}, set);
      for (const auto& verb : named.verbs) {
        CHECK_MESSAGE(std::filesystem::exists(VERNIER_BINARY_DIR "/vernier-" + verb), verb);
      }
      const bool says_more = says(text, "--low-memory") || says(text, "leave it out");
      CHECK((says_more || !named.lines.empty() || !named.sets.empty() || !named.verbs.empty()));
    }
  }
}

TEST_CASE("wiring: [precision] knows each key of [run] and of the scaler, and names its table") {
  vernier::Options scaler("scaler/dynamic", {}, "");
  vernier::HostApi::only_describe(scaler);
  Host({plugins}).make("scaler", "dynamic", scaler);
  for (const auto& options : {vernier::described_run("run"), scaler}) {
    const auto table = options.owner().substr(0, options.owner().find('/'));
    for (const auto& option : vernier::HostApi::declared(options)) {
      const auto text = refusal(base + ("[precision]\n" + option.key + " = 1\n")).text;
      CHECK_MESSAGE((says(text, "`[" + table + "] ") || says(text, "`" + table + "." + option.key + "`")), text);
    }
  }
}

TEST_CASE("wiring: a hint fits the table in which the word stands") {
  const std::pair<std::string, std::string> cases[] = {
      {"[scaler]\ngrowth_interval = 500", "`[scaler] use = \"dynamic\", growth_interval = 500` does it"},
      {"[scaler]\nenabled = true", "`[scaler] use = \"none\"` turns the scaler off"},
      {"[scaler]\nuse = 'static'\ninit_scale = 8", "`[scaler] use = \"dynamic\", init_scale = 8` does it"},
      {"[scaler]\nuse = 'dynamic'\nloss_scale_window = 9", "did you mean `growth_interval`?"},
      {"[scaler]\nuse = 'dynamic'\ngrowth_interval = 9\nloss_scale_window = 9",
       "`growth_interval` is given, which may say the same; leave this one out"},
      {"[accumulation]\nsteps = 4", "`[accumulation] use = \"target\", gradient_accumulation_steps = 4` does it"},
      {"[accumulation]\nuse = 'target'\ngradient_accumulation_steps = 2\nmicro_batches = 4",
       "splits each batch; leave it out to take several"},
      {"[accumulation]\nuse = 'target'\ngrad_accum_steps = 4", "or give gradient_accumulation_steps"},
      {"[precision]\nuse = 'bf16'\nmixed_precision_cast_inputs = true", "did you mean `cast_inputs`?"},
      {"[precision]\nuse = 'bf16'\nmixed_precision_autocast_mode = 'training'", "did you mean `autocast_mode`?"},
      {"[[callback]]\nuse = 'ema'\nseed = 4", "`vernier plugins callback/ema` lists them"}};
  for (const auto& [lines, hint] : cases) CHECK_MESSAGE(says(refusal(base + lines).text, hint), lines);
}

TEST_CASE("wiring: two names of one interval are refused if their values differ, and taken if they are equal") {
  const std::string dynamic = "[scaler]\nuse = 'dynamic'\n",
                    both = "`window` = 1000 and `growth_interval` = 2000 are two";
  CHECK(says(taken(dynamic + "window = 1000\ngrowth_interval = 2000").text, both));
  CHECK(says(taken(dynamic + "window = 1000", {"scaler.growth_interval=2000"}).text, both));
  CHECK(says(taken(dynamic, {"scaler.growth_interval=2000", "scaler.window=1000"}).text, both));
  CHECK(taken(dynamic + "window = 2000\ngrowth_interval = 2000") == Thrown{});
  CHECK(taken(dynamic + "window = 2000", {"scaler.growth_interval=2000"}) == Thrown{});
}

TEST_CASE("wiring: what does not fit is refused with its line and the remedy") {
  const std::string good = base;
  const auto after_base = [&](const char* text) { return refusal(good + text); };
  CHECK(after_base("[optimiser]\nuse = 'sgd'") ==
        configuration("run.toml:7: `optimiser` is not a table of a run; did you mean [optimizer]?"));
  const std::vector<std::pair<const char*, const char*>> tables = {
      {"[fp16]\nenabled = true", "[precision] use = \"fp16\"` and `[scaler] use = \"dynamic\"` do it"},
      {"[bf16]\nenabled = true", "[precision] use = \"bf16\"` does it"},
      {"[bf16]\nenabled = false", "[precision] use = \"fp32\"` does it"},
      {"[scheduler]\ntype = 'WarmupLR'", "[[callback]] use = \"schedule\", warmup_steps = 100` does it"},
      {"[zero_optimization]\nstage = 1", "[distributed] use = \"zero1\"` does it"}};
  for (const auto& [lines, remedy] : tables) {
    const auto name = std::string(lines).substr(1, std::string(lines).find(']') - 1);
    CHECK(after_base(lines) == configuration("run.toml:7: `" + name + "` is not a table of a run; `" + remedy));
  }
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
    CHECK(train("callback", kind));
    CHECK(says(logged, "RunFailed: callback/throws_at#2 at RunFailed of step 2: " + text + "\n"));
    CHECK(train("monitor", kind));
    CHECK(says(logged,
               "monitor/throws_at at RunFailed of step 2: " + text + " (the monitor is detached, the run goes on)\n"));
  }
}

}  // namespace wiring_test
