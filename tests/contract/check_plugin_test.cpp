// `vernier check plugin.so`: what it prints for a plugin that keeps the laws, and for plugins that break one each.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "program.h"
#include "run/process/crash.h"
#include "small_run.h"
#include "thrown.h"
#include "tools/check_plugin/laws.h"
#include "tools/check_plugin/subject.h"

namespace check_plugin_test {

using Words = std::vector<std::string>;

namespace {

std::string fixture(const std::string& id) {
  return VERNIER_BINARY_DIR "/fixtures/plugins/" + id + ".so";
}

std::string built(const std::string& id) {
  return VERNIER_BINARY_DIR "/plugins/" + id + ".so";
}

// A sanitizer has a malloc of its own, which the law of growth cannot read.
const bool is_sanitized = !std::string(VERNIER_SANITIZER).empty();
const bool has_no_ranks = !std::filesystem::exists(VERNIER_BINARY_DIR "/plugins/distributed/ddp.so");

struct Checked {
  int status;
  std::string out, err;
};

Checked check(const std::string& library, const Words& options = {}) {
  const TemporaryFolder folder;
  Words words = {"check", library};
  words.insert(words.end(), options.begin(), options.end());
  Program program(words, folder.path());
  const int status = program.wait();
  return {status, program.out(), program.err()};
}

// "name: …", or "" where there is no such line.
std::string line_of(const std::string& law, const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(law + ": ")) return line;
  }
  return "";
}

struct Broken {
  const char *library, *set, *law, *failure;  // failure: how the line goes on behind "FAILED: "
};

constexpr Broken broken[] = {
    {"callback/throws_in_constructor", "", "loads", "callback/throws_in_constructor failed in its constructor: boom"},
    {"callback/says_little", "", "documents its options", "`strength` means \"much\"; say what it is in a few words"},
    {"callback/says_little", "", "refuses unknown keys", "it takes no_such_option, where this was to be refused"},
    {"callback/says_little", "", "refuses values of another type", "it takes strength, where this was to be refused"},
    {"callback/lawless", "how=draws", "repeats", "in the second of two equal runs: the loss of step 2 is "},
    {"callback/lawless", "how=rounds", "repeats", "in the second of two equal runs: the loss of step "},
    {"callback/lawless", "how=forgets", "resumes", "stopped after step 1 and resumed: the loss of step 3 is "},
    {"callback/lawless", "how=forgets", "undoes a failed step",
     "after another plugin threw at StepBegin of step 7 and the run was resumed: the loss of step 8 is "},
    {"callback/lawless", "how=exits", "repeats", "the process ended with status "},
    {"callback/lawless", "how=crashes_at_end", "bears failures of others", "the process crashed by signal 6 (Aborted)"},
    {"callback/lawless", "how=throws_when_failed", "bears failures of others",
     "another plugin threw at RunBegin, and this one threw at RunFailed"},
    {"callback/lawless", "how=grad_mode", "leaves the thread as it was",
     "callback/lawless at StepEnd of step 20: it left LibTorch's gradient mode off"},
    {"callback/lawless", "how=default_dtype", "leaves the thread as it was",
     "after step 1 the default dtype is not as it was before"},
    {"callback/lawless", "how=rounds", "leaves the thread as it was",
     "after step 1 the floating-point mode is not as it was before"},
    {"callback/lawless", "how=rounding", "leaves the thread as it was",
     "callback/lawless: in its constructor it changed the floating-point mode of the whole process"},
    {"precision/autocast_stays", "what=enabled", "leaves the thread as it was",
     "after step 1 autocast, on or off, is not as it was before"},
    {"precision/autocast_stays", "what=dtype", "leaves the thread as it was",
     "after step 1 autocast's dtype on the CPU is not as it was before"},
    {"callback/lawless", "how=leaks", "does not grow", "from step 200 to step 1000 the run's memory grew by 8"},
    {"task/forgets_place", "how=forgets", "its loader resumes",
     "after load() into a fresh plugin next() returns another batch than the run that went on, first in call 1"},
    {"scaler/wrong_scale", "how=keeps", "its gradients are the plain ones",
     "in step 1 the gradients after unscale() are 3 of their norm off"},
    {"scaler/wrong_scale", "how=sees_nothing", "its gradients are the plain ones",
     "in step 5 the loss is infinite, and unscale() does not set run.found_inf"},
    {"scaler/wrong_scale", "how=sees_all", "its gradients are the plain ones", "run.found_inf is set in every step"},
    {"accumulation/loses_samples", "how=loses", "its micro-batches cover the batch",
     "accumulation/loses_samples in step 1: it split a batch of 8 samples into 4"},
    {"accumulation/loses_samples", "how=repeats", "its micro-batches cover the batch",
     "in step 1 its micro-batches, 2 of 8 samples together, are not the batch"},
    {"optimizer/ignores_skip", "how=updates", "changes nothing where the update is skipped",
     "in step 5 run.skip_update is 1, and step() changed weights"},
    {"optimizer/ignores_skip", "how=counts", "changes nothing where the update is skipped",
     "in step 5 run.skip_update is 1, and step() changed what save() returns"},
    {"optimizer/ignores_skip", "how=idles", "changes nothing where the update is skipped", "no step changes a weight"},
    {"callback/lawless", "how=forgets_parts", "resumes in micro-batches, at O2 and at O3",
     "in micro-batches, stopped after step 4 and resumed: the loss of step 6 is "},
    {"optimizer/ignores_skip", "how=clones", "resumes in micro-batches, at O2 and at O3",
     "the process crashed by signal "},
    {"callback/lawless", "how=favours", "trains on two ranks", "rank 0: "},
    {"callback/lawless", "how=saves_slowly", "its save() takes no time", "save() takes 5"},
    {"task/forgets_place", "how=ragged", "its loss is one mean, however a batch is split", "in step 1 the loss is "},
    {"scaler/wrong_scale", "how=doubles", "its gradients are the plain ones",
     "in step 1 the gradients after unscale() "},
    {"optimizer/ignores_skip", "how=constant_rate", "obeys the learning rate's factor",
     "with run.learning_rate_factor 1/1024 in place of 1, step 4 moves the weights 1 times as far"},
    {"checkpoint/careless", "how=removes", "loses nothing if it is killed while it writes",
     "a process was killed while it wrote its second checkpoint, after step 5: "},
    {"checkpoint/careless", "how=names_none", "resumes",
     "checkpoint/careless: read() finds a snapshot in the run's folder, and snapshots() names none there"},
    {"checkpoint/careless", "how=oldest_first", "reads the snapshot that is asked for",
     "snapshots() names first 3.kept, which is of step 3 and not the newest, of step 5"},
    {"checkpoint/careless", "how=reads_newest", "reads the snapshot that is asked for",
     "read() returns step 5 for 3.kept, and 5 for the one before it"},
    {"monitor/touches", "", "only looks", "with it the loss of step "},
    {"monitor/throws_at", "event=StepEnd", "only looks", "one of its listeners threw, so it was detached"},
};

}  // namespace

namespace {

// Tries a law on a fixture as the program does, in a process of its own. set: an option, or "".
vernier::Result try_law(const std::string& id, const std::string& law, const std::string& set, unsigned limit = 120) {
  const auto slash = id.find('/');
  vernier::Subject subject{plugins_and_fixtures(), id.substr(0, slash), id.substr(slash + 1), id.substr(slash + 1), {},
                           vernier::small_base()};
  if (!set.empty()) vernier::change(subject, {set});
  const auto found = std::ranges::find_if(vernier::laws(), [&](const auto& each) { return each.name == law; });
  REQUIRE_MESSAGE(found != vernier::laws().end(), law);
  return vernier::ForkedCall(
             [&] {
               vernier::name_crashes();
               found->check(subject);
               return std::string();
             },
             limit)
      .wait();
}

}  // namespace

TEST_CASE("check plugin: each law can be broken, and its line says how") {
  for (const auto& [library, set, law, failure] : broken) {
    CAPTURE(std::string(library));
    CAPTURE(std::string(set));
    if (is_sanitized && std::string(law) == "does not grow") continue;
    if (has_no_ranks && std::string(law) == "trains on two ranks") continue;
    const auto result = try_law(library, law, set);
    CHECK(result.kind == vernier::Result::Kind::failed);
    const bool ends_process = std::string(failure).starts_with("the process ");
    if (is_sanitized && ends_process && says(result.text, "Sanitizer: ")) continue;  // it reports the end itself
    CHECK_MESSAGE(result.text.starts_with(failure), result.text);
  }
}

TEST_CASE("check plugin: the line of a law that is broken has the command for it") {
  const auto library = fixture("callback/lawless");
  for (const std::string set : {"", " --set how=forgets"}) {
    Words options = {"--law", "resumes"};
    if (!set.empty()) options.insert(options.end(), {"--set", "how=forgets"});
    const auto [status, out, err] = check(library, options);
    CHECK(status == (set.empty() ? 0 : 1));
    CHECK_MESSAGE(says(out, "\n  again: vernier check " + library + set + " --law 'resumes'\n") == !set.empty(), out);
    CHECK_MESSAGE(says(out, "resumes: FAILED: stopped after step 1 and resumed: ") == !set.empty(), out, err);
  }
}

TEST_CASE("check plugin: a law that takes too long fails, and the line says where the time went") {
  const std::string failed = "it took more than 4 seconds", remedy = "; --time-limit SECONDS gives a law more time";
  CHECK(try_law("callback/lawless", "repeats", "how=hangs", 4).text ==
        failed + ", in callback/lawless at StepEnd of step 1" + remedy);
  CHECK(try_law("callback/lawless", "repeats", "how=hangs_deaf", 4).text == failed + remedy);
  const auto zero = check(fixture("callback/lawless"), {"--time-limit", "0"});
  CHECK(zero.status == 2);
  CHECK(says(zero.err, "--time-limit 0: must be 1 to 1000000 seconds"));
}

TEST_CASE("check plugin: memory that a plugin takes once is not growth") {
  if (is_sanitized) return;
  const auto jumps = try_law("callback/lawless", "does not grow", "how=jumps");
  CHECK_MESSAGE(jumps.kind == vernier::Result::Kind::ok, jumps.text);
}

namespace {

// Returns the kilobytes that are tensors in the line of the law "does not grow".
double kilobytes_of_tensors(const std::string& how, std::string& line) {
  line = try_law("callback/lawless", "does not grow", how).text;
  const auto place = line.find(" bytes a step; ");
  REQUIRE_MESSAGE(place != std::string::npos, line);
  std::istringstream number(line.substr(place + 15));
  double kilobytes = 0;
  std::string unit;
  number >> kilobytes >> unit;
  return unit == "MB" ? 1000 * kilobytes : unit == "kB" ? kilobytes : kilobytes / 1000;
}

}  // namespace

TEST_CASE("check plugin: what grows is said: tensors, and entries of save()") {
  if (is_sanitized) return;
  std::string line;
  CHECK(kilobytes_of_tensors("how=leaks", line) < 160);  // the plugin leaks 800 kB that are no tensors
  CHECK(!says(line, "save()"));
  CHECK(kilobytes_of_tensors("how=leaks_tensors", line) >= 320);
  CHECK(!says(line, "save()"));
  CHECK(kilobytes_of_tensors("how=hoards", line) >= 320);
  CHECK_MESSAGE(says(line, " entries more; what the plugin keeps"), line);
}

TEST_CASE("check plugin: a plugin that keeps all laws has a line for each, and the exit status 0") {
  const auto [status, out, err] = check(fixture("callback/grokfast"));
  CHECK(status == 0);
  CHECK(err == "");
  std::string expected = "callback/grokfast, " + fixture("callback/grokfast") + "\n";
  for (const auto& law : vernier::laws()) {
    if (law.role != nullptr && !says(law.role, "callback")) continue;
    const auto line = line_of(law.name, out);
    const bool needs_gpu = line == std::string(law.name) + ": skipped: no GPU here";
    CHECK((!needs_gpu || law.check == vernier::check_host_syncs));
    const bool acts_never = line.starts_with("acts in its run: skipped: in 250 steps it changes no loss, gradient, ");
    const bool needs_ranks = has_no_ranks && line.starts_with("trains on two ranks: skipped: ");
    const bool is_skipped =
        needs_gpu || needs_ranks || acts_never || (is_sanitized && law.check == vernier::check_growth);
    expected += is_skipped ? line + '\n' : std::string(law.name) + ": ok\n";
  }
  CHECK_MESSAGE(out.starts_with(expected + "its listeners take: GradientsReady "), out);
}

TEST_CASE("check plugin: the time of its listeners is said by event") {
  const auto line =
      vernier::times_of({plugins_and_fixtures(), "callback", "lawless", "lawless", {}, vernier::small_base()});
  CHECK(says(line, "StepBegin "));
  CHECK(says(line, " us, StepEnd "));
  CHECK(line.ends_with(" % of the time of the steps"));
}

TEST_CASE("check plugin: a library that is none, or fits another build, is refused by the door") {
  const std::pair<const char*, const char*> refused[] = {
      {"callback/no_symbol", ": not a Vernier plugin"},      {"callback/wrong_torch", ": built with torch 9"},
      {"callback/wrong_abi", ": built for plugin ABI"},      {"callback/no_such_file", ": there is no such file"},
      {"callback/undefined_symbol", ": cannot be opened: "},
  };
  for (const auto& [library, why] : refused) {
    const auto [status, out, err] = check(fixture(library));
    CHECK(status == 1);
    CHECK_MESSAGE(says(line_of("loads", out), "loads: FAILED: "), out, err);
    CHECK_MESSAGE(says(out, fixture(library) + why), out);
    CHECK(!says(out, "documents its options"));  // nothing else is tried
  }
}

TEST_CASE("check plugin: options come from --set, or with --task from the plugin's own table in a run") {
  const Words law = {"--law", "loads"};
  const auto without = check(built("accumulation/target"), law);
  CHECK(without.status == 1);
  CHECK_MESSAGE(says(without.out, "target_effective_batch_size"), without.out);
  const auto with = check(built("accumulation/target"), {"--law", "loads", "--set", "target_effective_batch_size=16"});
  CHECK_MESSAGE(with.status == 0, with.out);
  const TemporaryFolder folder;
  const auto run = folder.write("run.toml",
                                "[run]\nepochs = 3\n[task]\nuse = 'mlp'\nsamples = 40\n[optimizer]\nuse = 'sgd'\n"
                                "[[callback]]\nuse = 'clip_norm'\n[[callback]]\nuse = 'lawless'\nhow = 'forgets'\n");
  const auto forgets = check(fixture("callback/lawless"), {"--law", "resumes", "--task", run});
  CHECK(forgets.status == 1);
  CHECK_MESSAGE(says(forgets.out, "resumes: FAILED: stopped after step 1 and resumed"), forgets.out);
  CHECK(says(forgets.out, "samples = 40"));
  CHECK(says(forgets.out, "clip_norm"));
  for (const char* how : {"how=nothing", "callback.lawless.how = nothing"}) {
    const auto set = check(fixture("callback/lawless"), {"--law", "resumes", "--task", run, "--set", how});
    CHECK_MESSAGE(set.status == 0, set.out);
  }
  const auto others = check(fixture("callback/lawless"), {"--law", "resumes", "--task", run, "--set=task.samples=50",
                                                          "--set=callback.clip_norm.max_norm=3"});
  CHECK(says(others.out, "samples = 50"));
  CHECK(says(others.out, "max_norm = 3"));
}

TEST_CASE("check plugin: the run that it prints is one for `vernier check`") {
  const auto failed =
      check(fixture("optimizer/ignores_skip"), {"--law", "changes nothing where the update is skipped"});
  const auto place = failed.out.find("\n# run.toml\n");
  REQUIRE(place != std::string::npos);
  const TemporaryFolder folder;
  const auto run = check(folder.write("run.toml", failed.out.substr(place)));
  CHECK_MESSAGE(run.status == 0, run.err);
  CHECK(says(run.out, "ready: nothing was trained or written"));
}

TEST_CASE("check plugin: a checkpoint that keeps nothing need not resume") {
  const auto none = check(built("checkpoint/none"), {"--law", "resumes"});
  CHECK(none.status == 0);
  CHECK(says(none.out, "resumes: skipped: it keeps nothing to go on from"));
}

TEST_CASE("check plugin: a law that is declined is shown as such, and a name that another plugin has is said") {
  const auto declined = check(fixture("task/mutant"), {"--set", "mutant=refuses_parts", "--law",
                                                       "its loss is one mean, however a batch is split"});
  CHECK(declined.status == 0);
  CHECK_MESSAGE(says(declined.out, "is split: declined: task/mutant: samples are each other's negatives; set "),
                declined.out);
  const TemporaryFolder folder;
  std::filesystem::copy_file(built("callback/ema"), folder / "ema.so");
  const auto hidden = check(folder / "ema.so", {"--law", "loads"});
  CHECK_MESSAGE(says(hidden.out, "its name is that of " + built("callback/ema") + " too: `use = \"ema\"` takes"),
                hidden.out);
  CHECK(!says(check(built("callback/ema"), {"--law", "loads"}).out, "its name is"));
}

TEST_CASE("check plugin: wrong usage ends with 2, and a law that is misspelt with the nearest") {
  const auto law = check(fixture("callback/fits"), {"--law", "resume"});
  CHECK(law.status == 2);
  CHECK(says(law.err, "there is no law \"resume\"; did you mean \"resumes\"?"));
  const auto set = check(fixture("callback/fits"), {"--set", "strength"});
  CHECK(set.status == 2);
  CHECK(says(set.err, "--set strength: write --set key=value"));
  for (const std::string key : {"run.steps", "callback.fits.use"}) {
    const auto chosen = check(fixture("callback/fits"), {"--law", "loads", "--set", key + "=3"});
    CHECK(chosen.status == 2);
    CHECK_MESSAGE(says(chosen.err, "--set " + key + ": the check chooses it; leave it out"), chosen.err);
  }
  const auto device = check(fixture("callback/fits"), {"--law", "loads", "--device", "elsewhere"});
  CHECK(device.status == 1);
  CHECK_MESSAGE(says(device.out, "\"elsewhere\", which is not a device"), device.out);
  CHECK(check(fixture("callback/fits"), {"--colour"}).status == 2);
  const auto help = check(fixture("callback/fits"), {"--help"});
  CHECK(help.status == 0);
  CHECK(help.out.starts_with("usage: vernier check PLUGIN.so"));
}

TEST_CASE("check plugin: with --sanitize, what a plugin does to memory is seen") {
  if (std::string(VERNIER_SANITIZER) == " tsan") return;  // one program cannot hold both sanitizers
  struct Case {
    const char *how, *finding;
  };
  constexpr Case cases[] = {{"nothing", "repeats: ok"},
                            {"overflow", "repeats: FAILED: AddressSanitizer: heap-buffer-overflow"},
                            {"use_after_free", "repeats: FAILED: AddressSanitizer: heap-use-after-free"},
                            {"signed_overflow", "runtime error: signed integer overflow"}};
#ifdef VERNIER_SANITIZER_FOLDER
  ::setenv("LD_LIBRARY_PATH", VERNIER_SANITIZER_FOLDER, /*overwrite=*/1);
#endif
  const auto sanitized = fixture("callback/sanitized");
  for (const auto& [how, finding] : cases) {
    CAPTURE(std::string(how));
    const auto checked = check(sanitized, {"--sanitize", "--law", "repeats", "--set", std::string("how=") + how});
    CHECK(checked.status == (std::string(how) == "nothing" ? 0 : 1));
    CHECK_MESSAGE(says(checked.out, finding), checked.out, checked.err);
#ifndef VERNIER_SANITIZER_FOLDER  // clang's runtime starts llvm-symbolizer for the line, which may be missing
    CHECK(says(checked.out, "sanitized.cpp") == (checked.status == 1));
#endif
  }
  if (is_sanitized) return;
  const auto without = check(fixture("callback/fits"), {"--sanitize"});
  CHECK(without.status == 2);
  CHECK(says(without.err, "built without the address sanitizer; configure its project with"));
}

TEST_CASE("check plugin: a number that a plugin reads on the host in each step is counted") {
  const auto reads = [](const std::string& how) {
    const auto config =
        from_toml({vernier::to_toml(vernier::small_base()), "[[callback]]\nuse = 'lawless'\nhow = '" + how + "'\n"});
    return vernier::host_reads(plugins_and_fixtures(), config, "cpu");
  };
  CHECK(reads("reads") - reads("nothing") == 20);
}

}  // namespace check_plugin_test
