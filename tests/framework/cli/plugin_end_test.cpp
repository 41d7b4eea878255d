// The program, where a plugin ends the process or makes each step slow: what a person reads, and what is left.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <vernier/abi.h>

#include <csignal>

#include "run_folder.h"
#include "thrown.h"

namespace plugin_end_test {

namespace {

const std::string base = base_run(20) + "[checkpoint]\nevery = 5\nasync = false\n[[callback]]\nuse = \"ends\"\n";

const std::string saved = "; what the run has saved is intact, and --resume continues from its last checkpoint";

struct Place : RunFolder {
  Place() : RunFolder(base) {}
  int train_with(const std::string& how, const std::string& event, const std::string& step) {
    const auto no_core = [] {
      const rlimit none{};
      ::setrlimit(RLIMIT_CORE, &none);
    };
    return train({"--quiet", "--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins", "--set=callback.ends.how=" + how,
                  "--set=callback.ends.event=" + event, "--set=callback.ends.step=" + step},
                 no_core);
  }
  std::string log() const { return read_text(at("out/log.txt")); }
};

// The sanitizers report such a signal themselves, after our line, and exit.
bool died_of(int status, int signal) {
  return std::string(VERNIER_SANITIZER).empty() ? status == -signal : status != 0;
}

struct End {
  std::string how, event, line;
  int signal;
};

const std::vector<End> crashes = {
    {"segv", "GradientsReady",
     "callback/ends at GradientsReady of step 12: crashed with SIGSEGV (invalid memory access)", SIGSEGV},
    {"fpe", "StepEnd", "callback/ends at StepEnd of step 12: crashed with SIGFPE (arithmetic error)", SIGFPE},
    {"ill", "StepEnd",
     "callback/ends at StepEnd of step 12: crashed with SIGILL (illegal instruction; was it built for another "
     "processor?)",
     SIGILL},
    {"sys", "StepEnd", "callback/ends at StepEnd of step 12: crashed with SIGSYS (a system call that is not allowed)",
     SIGSYS},
    {"alarm", "StepEnd", "callback/ends at StepEnd of step 12: crashed with SIGALRM (a timer)", SIGALRM},
    {"abort", "StepBegin", "callback/ends at StepBegin of step 12: crashed with SIGABRT (abort)", SIGABRT},
    {"thread", "UpdateDone",
     "callback/ends at UpdateDone of step 12, in another thread: crashed with SIGSEGV (invalid memory access)",
     SIGSEGV}};

}  // namespace

TEST_CASE("plugin end: a crash is one line with plugin, event and step, and the same signal, the run can be resumed") {
  for (const auto& crash : crashes) {
    CAPTURE(crash.how);
    Place place;
    CHECK(died_of(place.train_with(crash.how, crash.event, "12"), crash.signal));
    const std::string line = "vernier: " + crash.line + saved + "\n";
    CHECK(says(place.err, line));
    if (std::string(VERNIER_SANITIZER).empty()) CHECK(is_one_line(place.err));
    CHECK(place.log().ends_with(line));
    CHECK_FALSE(std::filesystem::exists(place.at("out/summary.json")));
    CHECK(place.train({"--resume", "--allow-inexact", "--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins",
                       "--set=callback.ends.step=1000"}) == 0);
    CHECK(says(place.out, "resumed after step 10\n"));
    CHECK(place.summary()["steps"] == 20);
  }
}

TEST_CASE("plugin end: outside of steps a crash or exit() names the plugin, and says nothing of checkpoints") {
  struct Outside {
    std::string how, event, line;
    int status;
  };
  const std::string segv = ": crashed with SIGSEGV (invalid memory access)\n";
  const std::string exits = ": exit() was called, and ends the process; throw vernier::Error instead\n";
  const std::string abort = ": crashed with SIGABRT (abort): nobody caught boom\n";
  // The thread sanitizer has a status of its own for an exit() inside dlopen, after our line.
  const int exit_in_open = std::string(VERNIER_SANITIZER) == " tsan" ? 66 : 4;
  const Outside all[] = {{"segv", "constructor", " in its constructor" + segv, -SIGSEGV},
                         {"exit", "constructor", " in its constructor" + exits, 4},
                         {"segv", "attach", " in attach" + segv, -SIGSEGV},
                         {"segv", "contradicts", " in contradicts" + segv, -SIGSEGV},
                         {"throw", "contradicts", " in contradicts: boom\n", 3},
                         {"segv", "prepare", " in prepare" + segv, -SIGSEGV},
                         {"segv", "check", " in check" + segv, -SIGSEGV},
                         {"thread", "destructor", " in its destructor, in another thread" + segv, -SIGSEGV},
                         {"throw", "destructor", " in its destructor" + abort, -SIGABRT},
                         {"exit", "destructor", " in its destructor" + exits, 4},
                         {"throw", "open :", " as its library was opened" + abort, -SIGABRT},
                         {"exit", "open :", " as its library was opened" + exits, exit_in_open},
                         {"segv", "close:", segv, -SIGSEGV},
                         {"exit", "close:", exits, 4}};
  for (const auto& [how, event, line, status] : all) {
    CAPTURE(how);
    CAPTURE(event);
    Place place;
    const bool is_static = event.ends_with(":");
    if (is_static) ::setenv("VERNIER_TEST_ENDS", (event + how).c_str(), 1);
    const int ended = place.train_with(how, event, "1000");
    ::unsetenv("VERNIER_TEST_ENDS");
    CHECK((status < 0 ? died_of(ended, -status) : ended == status));
    CHECK_MESSAGE(says(place.err, "vernier: callback/ends" + line), place.err);
    if (std::string(VERNIER_SANITIZER).empty()) CHECK(is_one_line(place.err));
  }
}

TEST_CASE("plugin end: a crash while a checkpoint is loaded names the plugin") {
  Place place;
  REQUIRE(place.train_with("segv", "StepEnd", "1000") == 0);
  CHECK(died_of(
      place.train({"--quiet", "--resume", "--allow-inexact", "--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins",
                   "--set=callback.ends.event=load", "--set=run.steps=30"}),
      SIGSEGV));
  CHECK_MESSAGE(says(place.err, "vernier: callback/ends while it was resumed: crashed with SIGSEGV"), place.err);
}

TEST_CASE("plugin end: a second Ctrl-C says where the run hangs") {
  RunFolder place(base + "how = \"hang\"\nstep = 12\n");
  Program program({"train", "run.toml", "--quiet", "--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins"},
                  place.folder.path());
  REQUIRE(program.wait_until([&] { return std::filesystem::exists(place.at("out/checkpoints/step-00000010")); }));
  ::usleep(100'000);
  program.send(SIGINT);
  ::usleep(100'000);
  program.send(SIGINT);
  CHECK(program.wait() == -SIGINT);
  CHECK(program.err() == "vernier: callback/ends at StepEnd of step 12: interrupted by a second Ctrl-C" + saved + "\n");
}

TEST_CASE("plugin end: exit() in mid-run is not a success") {
  for (const std::string how : {"exit", "quick_exit"}) {
    CAPTURE(how);
    Place place;
    CHECK(place.train_with(how, "StepEnd", "12") == 4);
    const std::string why =
        "callback/ends at StepEnd of step 12: exit() was called, and the run is not done; throw vernier::Error, or "
        "call run.control->finish()";
    CHECK(place.err == "vernier: " + why + "\n");
    CHECK(place.log().ends_with("vernier: " + why + "\n"));
    const auto summary = place.summary();
    CHECK(summary["ended_by"] == "error");
    CHECK(summary["error"] == why);
    CHECK(summary["steps"] == 12);  // its update was done
  }
  Place early;
  CHECK(early.train_with("exit", "prepare", "1") == 4);
  CHECK(says(early.err, "vernier: callback/ends in prepare: exit() was called"));
  // Nothing can be said of _exit(), which ends the process at once, as a kill does.
  Place ends_at_once;
  CHECK(ends_at_once.train_with("_exit", "StepEnd", "12") == 0);
  CHECK(ends_at_once.err.empty());
  CHECK_FALSE(std::filesystem::exists(ends_at_once.at("out/summary.json")));
  CHECK(ends_at_once.train({"--resume", "--allow-inexact", "--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins",
                            "--set=callback.ends.step=1000"}) == 0);
  CHECK(says(ends_at_once.out, "resumed after step 10\n"));
  CHECK(ends_at_once.summary()["steps"] == 20);
  Place forks;
  CHECK(forks.train_with("fork", "StepEnd", "12") == 0);
  CHECK(forks.err.empty());
  // A child that comes back ends, and the run has its steps once.
  Place comes_back;
  const auto status = comes_back.train_with("fork and return", "StepEnd", "12");
  CHECK(status == 0);
  CHECK(says(comes_back.err, "vernier: callback/ends at StepEnd of step 12: called fork(), and its child process"));
  CHECK(is_one_line(comes_back.err));
  CHECK(comes_back.summary()["steps"] == 20);
}

TEST_CASE("plugin end: a plugin that takes much of the steps' time is named, others are not") {
  Place place;
  CHECK(place.train({"--quiet", "--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins", "--set=run.steps=70",
                     "--set=callback.ends.how=sleep"}) == 0);
  CHECK(says(place.err, "callback/ends: took "));
  CHECK(says(place.err, " % of the steps' time"));
  CHECK(is_one_line(place.err));
  const auto slow = place.summary()["this_process"]["slow_plugins"];
  REQUIRE(slow.size() == 1);
  CHECK(slow["callback/ends"] > 0.1);
  CHECK(slow["callback/ends"] <= 1.0);
  Place fast;
  CHECK(fast.train({"--quiet", "--plugin-path", VERNIER_BINARY_DIR "/fixtures/plugins", "--set=run.steps=70",
                    "--set=callback.ends.step=1000"}) == 0);
  CHECK(fast.err.empty());
  CHECK_FALSE(fast.summary()["this_process"].contains("slow_plugins"));
}

}  // namespace plugin_end_test
