// The same with `vernier train`: kill -9 at random times, and a disk that fails.
#include <doctest/doctest.h>
#include <unistd.h>
#include <vernier/checkpoint_folder.h>

#include <csignal>
#include <memory>
#include <sstream>

#include "disk.h"
#include "form.h"
#include "program.h"
#include "temporary_folder.h"
#include "thrown.h"

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> training = {"train", "run.toml", "--quiet"};

// The run as a program, as a person starts it.
struct Started {
  explicit Started(const std::string& toml) { folder.write("run.toml", toml); }
  fs::path out() const { return folder.path() / "out"; }

  // The rest of the run, by --resume where there is a checkpoint, else anew.
  Program go_on() const {
    const bool begun = !vernier::checkpoints_in((out() / "checkpoints").string()).empty();
    if (!begun) fs::remove_all(out());
    auto words = training;
    if (begun) words.emplace_back("--resume");
    return Program(words, folder.path());
  }
  void finish() const {
    Program program = go_on();
    const int status = program.wait();
    CHECK_MESSAGE(status == 0, program.err());
  }
  // The weights of the newest checkpoint.
  std::string weights() const { return read_text(out() / "checkpoints" / "latest" / "model.safetensors"); }
  std::string losses() const { return read_text(out() / "losses.jsonl"); }
  // The digest of the model in summary.json; "" if there is none.
  std::string digest() const {
    const auto summary = read_text(out() / "summary.json");
    const auto place = summary.find("xxh3-128:");
    return place == std::string::npos ? "" : summary.substr(place, 41);
  }

  TemporaryFolder folder;
};

// Lines that report an error; before it there may be warnings of what the run goes on without.
int errors_in(const std::string& text) {
  int errors = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("vernier: ")) {
      errors += 1;
    } else {
      const auto who = line.substr(0, line.find(": "));
      const bool is_known = who == "checkpoint/rolling" || who == "output" || who == "summary.json";
      CHECK_MESSAGE((is_known || says(who, "monitor/jsonl")), line);
    }
  }
  return errors;
}

// The i-th of the runs, longer or shorter.
std::string program_run(std::size_t number, int steps) {
  std::string toml = saving_runs[number];
  const auto place = toml.find("steps = ");
  toml.replace(place, toml.find('\n', place) - place, "steps = " + std::to_string(steps) + "\noutput = \"out\"");
  return toml;
}

// Starts or resumes the run so many times, and kills it each time at a random moment.
template <class Random>
void kill_while_it_trains(const Started& killed, int times, Random& random) {
  for (int kill = 0; kill < times; ++kill) {
    Program program = killed.go_on();
    const auto before = fs::exists(killed.out() / "losses.jsonl") ? killed.losses() : "";
    // It trains.
    program.wait_until([&] { return fs::exists(killed.out() / "losses.jsonl") && killed.losses() != before; });
    ::usleep(random() % 300'000);
    program.send(SIGKILL);
    program.wait();
  }
}

}  // namespace

TEST_CASE("crash: vernier train, killed at random times and resumed each time, ends as if it never was") {
  auto random = random_numbers(1);
  Budget budget;
  for (int i = 0; (is_long() || i < 1) && budget.has_more(); ++i) {
    // The one with the most to remember, where there is time for one.
    const auto toml = program_run(is_long() ? run_in_turn(0) : that_goes_on, is_long() ? 1000 : 300);
    const Started whole(toml);
    whole.finish();
    REQUIRE(whole.weights() != "");
    REQUIRE(whole.digest() != "");
    const Started killed(toml);
    kill_while_it_trains(killed, 5, random);
    killed.finish();
    CHECK((killed.weights() == whole.weights()));
    CHECK(killed.digest() == whole.digest());
    CHECK(killed.losses() == whole.losses());
  }
}

namespace {

const std::string saves_often = R"(
[optimizer]
use = "adamw"
[checkpoint]
use = "rolling"
every = 7
[[monitor]]
use = "jsonl"
)";

}  // namespace

TEST_CASE("crash: data that threads prepare ahead go on exactly after kill -9, several times in an epoch" *
          doctest::test_suite("data")) {
  const std::string toml = R"(
[run]
steps = 400
output = "out"
[task]
use = "tabular"
data = "flats.csv"
target = "rent"
workers = 2
prefetch = 3
)" + saves_often;
  const auto started = [&](const std::string& text) {
    auto run = std::make_unique<Started>(text);
    const auto command =
        "sh '" VERNIER_SOURCE_DIR "/examples/data/flats.sh' 1000 > '" + (run->folder / "flats.csv") + "'";
    REQUIRE(std::system(command.c_str()) == 0);
    return run;
  };
  auto random = random_numbers(3);
  const auto whole = started(toml), killed = started(toml);  // an epoch has 29 steps
  whole->finish();
  kill_while_it_trains(*killed, 4, random);
  killed->finish();
  REQUIRE(whole->digest() != "");
  CHECK(killed->digest() == whole->digest());
  CHECK(killed->losses() == whole->losses());
}

TEST_CASE("crash: a run by compiled programs, killed at random times, ends as if it never was" *
          doctest::test_suite("compile")) {
  const TemporaryFolder cache;
  ::setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  // Three micro-batches of two shapes; the last batch of an epoch has others.
  const std::string toml = "[run]\nsteps = " + std::string(is_long() ? "3000" : "700") + R"(
output = "out"
threads = 1
engine = "compiled"
validate_every = 50
[task]
use = "mlp"
samples = 50
batch_size = 11
[accumulation]
micro_batches = 3
)" + saves_often;
  auto random = random_numbers(4);
  const Started whole(toml);
  whole.finish();
  CHECK(says(read_text(whole.out() / "log.txt"), "engine: a recording computes forward and backward"));
  for (int i = 0; i < (is_long() ? 10 : 1); ++i) {
    const Started killed(toml);
    kill_while_it_trains(killed, is_long() ? 4 : 2, random);
    killed.finish();
    REQUIRE(whole.digest() != "");
    CHECK(killed.digest() == whole.digest());
    CHECK((killed.losses() == whole.losses()));
  }
  ::unsetenv("XDG_CACHE_HOME");
}

TEST_CASE("crash: vernier train without room for one of its files") {
  const auto toml = program_run(that_goes_on, 3);
  const Started whole(toml);
  whole.finish();
  // Room for its folder, and from the k-th call on none for this file.
  const auto train_without_room = [&](const Started& struck, const std::string& file, int k) {
    ::setenv("VERNIER_DISK", ("full " + std::to_string(k) + " " + (struck.out() / file).string()).c_str(), 1);
    ::setenv("LD_PRELOAD", VERNIER_BINARY_DIR "/libdisk_faults.so", 1);
    Program program(training, struck.folder.path());
    ::unsetenv("LD_PRELOAD");
    ::unsetenv("VERNIER_DISK");
    const int status = program.wait();
    return std::pair(status, program.err());
  };
  for (const int k : {1, 2}) {
    const Started struck(toml);
    const auto [status, err] = train_without_room(struck, "summary.json.*.partial", k);
    CHECK(status == 4);
    CHECK(err ==
          "vernier: out/summary.json: cannot be written: No space left on device; see to that, and resume the run to "
          "have this file written\n");
    CHECK_FALSE(fs::exists(struck.out() / "summary.json"));
    CHECK_FALSE(has_partial(struck.out()));
    struck.finish();
    CHECK(struck.digest() == whole.digest());
    CHECK(struck.losses() == whole.losses());
  }
  for (const int k : {2, 6}) {
    const Started struck(toml);
    const auto [status, err] = train_without_room(struck, "losses.jsonl", k);
    CHECK(status == 0);
    CHECK(says(err, "losses.jsonl: cannot be written: No space left on device"));
    CHECK(says(err, "losses.jsonl: lines that are missing at its end: "));
    CHECK(struck.digest() == whole.digest());
    CHECK(whole.losses().starts_with(struck.losses()));
    CHECK((struck.losses().empty() || struck.losses().ends_with('\n')));
  }
}

TEST_CASE("crash: vernier train over a disk that fails at the k-th system call") {
  std::vector<std::unique_ptr<Started>> wholes;
  for (std::size_t number = 0; number < saving_runs.size(); ++number) {
    wholes.push_back(std::make_unique<Started>(program_run(number, 3)));
    wholes.back()->finish();
  }
  auto random = random_numbers(2);
  Budget budget;
  for (std::size_t i = 0; (is_long() || i < 9) && budget.has_more(); ++i) {
    const auto number = run_in_turn(i);
    const Started& whole = *wholes[number];
    const Started struck(program_run(number, 3));
    const std::string fault = disk::fault_names[1 + random() % 6];
    // Counts calls of the saves, or all calls on its folder, which is made first.
    const bool is_save = i % 3 != 1;
    const auto below = is_save ? struck.out() / "checkpoints" : struck.out();
    const std::string order = fault + " " + std::to_string(1 + random() % (is_save ? 100 : 25)) + " " + below.string();
    CAPTURE(number);
    CAPTURE(order);
    ::setenv("VERNIER_DISK", order.c_str(), 1);
    ::setenv("LD_PRELOAD", VERNIER_BINARY_DIR "/libdisk_faults.so", 1);
    bool has_lost_its_monitor = false;  // the run goes on without it
    {
      Program program(training, struck.folder.path());
      ::unsetenv("LD_PRELOAD");
      ::unsetenv("VERNIER_DISK");
      const int status = program.wait();
      CAPTURE(program.err());
      CHECK((status == 0 || status == 4 || status == -SIGKILL || (status == 2 && !is_save)));
      if (status == 2 || status == 4) CHECK(errors_in(program.err()) == 1);
      has_lost_its_monitor = says(program.err(), "monitor/jsonl");
      CHECK((!is_save || !has_lost_its_monitor));
    }
    struck.finish();
    CHECK((struck.weights() == whole.weights()));
    CHECK(struck.digest() == whole.digest());
    if (!has_lost_its_monitor) CHECK(struck.losses() == whole.losses());
  }
}
