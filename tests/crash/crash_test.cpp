// Whatever stops a run that saves every step, resuming works and the rest of it equals that of a run that was never
// stopped, bit for bit. In the manner of https://sqlite.org/testing.html: the k-th system call of the saves ends the
// process, fails, or writes half, for every k; what was not synced is lost or reordered; kill -9 at any time.
//
// VERNIER_CRASH=long tries more runs and more of what a disk may have lost; tests/crash/long.sh.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <set>
#include <sstream>

#include <vernier/checkpoint_folder.h>

#include "disk.h"
#include "power_loss.h"
#include "program.h"
#include "small_run.h"
#include "thrown.h"

namespace fs = std::filesystem;
using disk::Call;
using disk::Fault;

namespace {

bool is_long() {
  const char* given = std::getenv("VERNIER_CRASH");
  return given != nullptr && std::string(given) == "long";
}

// Saves every step; the shortest that takes away what it saved first.
const std::string saving_run = "[run]\nsteps = " + std::string(is_long() ? "12" : "4") + R"(
device = "cpu"
threads = 1
[task]
use = "mlp"
inputs = 3
hidden = [4]
classes = 2
samples = 24
[optimizer]
use = "adamw"
[checkpoint]
use = "rolling"
every = 1
keep_last = 2
[[monitor]]
use = "jsonl"
)";

struct End {
  int signal = 0;
  std::string text;
};

// What the body returns, from a process of its own.
template <class Body>
End in_child(const Body& body) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::close(ends[0]);
    std::string text;
    try {
      text = body();
    } catch (const std::exception& error) {
      text = std::string("error: ") + error.what();
    }
    for (std::size_t done = 0; done < text.size();) {
      const auto count = ::write(ends[1], text.data() + done, text.size() - done);
      if (count > 0) done += static_cast<std::size_t>(count);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  End end;
  char bytes[65536];
  for (ssize_t count = 0; (count = ::read(ends[0], bytes, sizeof bytes)) > 0;) {
    end.text.append(bytes, static_cast<std::size_t>(count));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return end;
}

// A number that outlives the process that wrote it.
struct Shared {
  Shared()
      : number(static_cast<int*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(number, 4096); }
  int* number;
};

// Of the last checkpoint that the run said it saved; that one has to be there from then on, whatever happens.
void announce(SmallRun& small, int* announced) {
  const auto look = [announced](vernier::Run& run) {
    for (const auto& notice : run.notices) {
      if (notice.name != "checkpoint_saved") continue;
      const auto path = std::get<std::string>(notice.details.at(0).second);
      const int step = std::stoi(path.substr(path.rfind('-') + 1));
      if (step == *announced) continue;
      *announced = step;
      disk::mark(std::to_string(step));
    }
  };
  small.on(vernier::Event::StepEnd, look);
  small.on(vernier::Event::RunEnd, look);
}

// Resumes where there is something to resume, and trains to the end: "step it began at, digest of the model".
std::string train(const std::string& toml, const std::string& output) {
  SmallRun small(from_toml({toml}), output);
  small.resume();
  const auto began = small.run.step;
  small.train();
  return std::to_string(began) + " " + small.digest();
}

struct Whole {
  std::string toml, digest, losses;
  int calls = 0, saving_calls = 0;
  std::vector<Call> trace;
};

std::string to_text(const std::vector<Call>& trace) {
  std::ostringstream out;
  for (const Call& call : trace) {
    out << static_cast<int>(call.kind) << ' ' << call.file << ' ' << call.offset << ' ' << call.is_new << ' '
        << call.is_emptied << ' ' << call.name.size() << ' ' << call.other.size() << ' ' << call.bytes.size() << ' '
        << call.name << call.other << call.bytes;
  }
  return out.str();
}

std::vector<Call> to_trace(std::istream& in) {
  std::vector<Call> trace;
  for (int kind = 0; in >> kind;) {
    Call call;
    std::size_t sizes[3] = {};
    in >> call.file >> call.offset >> call.is_new >> call.is_emptied >> sizes[0] >> sizes[1] >> sizes[2];
    in.get();
    std::string* texts[] = {&call.name, &call.other, &call.bytes};
    for (int i = 0; i < 3; ++i) {
      texts[i]->resize(sizes[i]);
      in.read(texts[i]->data(), static_cast<std::streamsize>(sizes[i]));
    }
    call.kind = static_cast<Call::Kind>(kind);
    trace.push_back(std::move(call));
  }
  return trace;
}

// The run that is never stopped, and what it does to the disk.
Whole whole_run(const std::string& toml, const TemporaryFolder& folder) {
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  Whole whole;
  whole.toml = toml;
  const Shared announced;
  const auto end = in_child([&] {
    SmallRun small(from_toml({toml}), folder.path().string());
    announce(small, announced.number);
    disk::watch(folder.path().string());
    disk::record();
    small.train();
    const int calls = disk::calls();
    const auto trace = disk::stop();
    disk::watch("");
    return small.digest() + " " + std::to_string(calls) + " " + to_text(trace);
  });
  CAPTURE(end.text);
  REQUIRE(end.signal == 0);
  REQUIRE(!end.text.starts_with("error"));
  std::istringstream in(end.text);
  in >> whole.digest >> whole.calls;
  whole.trace = to_trace(in);
  whole.losses = read_text(folder.path() / "losses.jsonl");
  REQUIRE(*announced.number >= 3);

  const TemporaryFolder other;
  const auto counted = in_child([&] {
    SmallRun small(from_toml({toml}), other.path().string());
    disk::watch(other / "checkpoints");
    small.train();
    return std::to_string(disk::calls());
  });
  whole.saving_calls = std::stoi(counted.text);
  REQUIRE(whole.saving_calls > 20);
  return whole;
}

// The rest of the run after whatever happened in the folder.
void check_goes_on(const Whole& whole, const fs::path& folder, int announced, bool has_all_losses = true) {
  const auto end = in_child([&] {
    disk::watch(folder.string());  // which spares the disk
    return train(whole.toml, folder.string());
  });
  CAPTURE(end.text);
  CHECK(end.signal == 0);
  std::istringstream in(end.text);
  int began = -1;
  std::string digest;
  in >> began >> digest;
  CHECK(began >= announced);
  CHECK(digest == whole.digest);
  if (has_all_losses) CHECK(read_text(folder / "losses.jsonl") == whole.losses);
}

std::string name_of(Fault fault) {
  return disk::fault_names[static_cast<std::size_t>(fault)];
}

struct Struck {
  End end;
  std::string call;  // "" where the fault was not reached
  int announced = 0;
};

// A run into which a fault strikes at the k-th call below a folder of it.
Struck run_with(const Whole& whole, const TemporaryFolder& folder, const std::string& below, Fault fault, int at) {
  const Shared announced;
  Struck struck;
  struck.end = in_child([&] {
    SmallRun small(from_toml({whole.toml}), folder.path().string());
    announce(small, announced.number);
    disk::watch((folder.path() / below).string(), fault, at);
    const auto result = thrown_by([&] { small.train(); });
    const auto call = disk::struck();
    disk::watch("");
    return call + "\n" + (result == Thrown{} ? small.digest() : "error: " + result.text);
  });
  const auto line = struck.end.text.find('\n');
  struck.call = struck.end.signal != 0 ? "killed" : struck.end.text.substr(0, line);
  struck.end.text.erase(0, line == std::string::npos ? 0 : line + 1);
  struck.announced = *announced.number;
  return struck;
}

// More than one call may be asked at a time: the bounded form takes each step-th, starting elsewhere for each fault.
void strike_everywhere(const Whole& whole, const std::string& below, int calls, Fault fault, int step,
                       const std::function<void(const Struck&)>& check) {
  for (int at = 1 + static_cast<int>(fault) % step; at <= calls; at += step) {
    CAPTURE(at);
    const TemporaryFolder folder;
    const Struck struck = run_with(whole, folder, below, fault, at);
    CAPTURE(struck.call);
    CAPTURE(struck.end.text);
    CHECK(struck.call != "");
    check(struck);
    check_goes_on(whole, folder.path(), struck.announced);
  }
}

}  // namespace

TEST_CASE("crash: killed at the k-th system call of a run, before it or half-way through it") {
  const TemporaryFolder folder;
  const Whole whole = whole_run(saving_run, folder);
  for (const Fault fault : {Fault::kill, Fault::torn}) {
    CAPTURE(name_of(fault));
    strike_everywhere(whole, "", whole.calls, fault, 1,
                      [](const Struck& struck) { CHECK(struck.end.signal == SIGKILL); });
  }
}

TEST_CASE("crash: a k-th system call that is interrupted or writes half is not noticed") {
  const TemporaryFolder folder;
  const Whole whole = whole_run(saving_run, folder);
  for (const Fault fault : {Fault::shortened, Fault::interrupted}) {
    CAPTURE(name_of(fault));
    strike_everywhere(whole, "checkpoints", whole.saving_calls, fault, 1,
                      [&](const Struck& struck) { CHECK(struck.end.text == whole.digest); });
  }
}

TEST_CASE("crash: a disk that fails or is full at the k-th system call of a save") {
  const TemporaryFolder folder;
  const Whole whole = whole_run(saving_run, folder);
  for (const Fault fault : {Fault::eio, Fault::enospc, Fault::broken, Fault::full}) {
    CAPTURE(name_of(fault));
    const bool is_eio = fault == Fault::eio || fault == Fault::broken;
    strike_everywhere(whole, "checkpoints", whole.saving_calls, fault, 1, [&](const Struck& struck) {
      CHECK(struck.end.signal == 0);
      if (struck.end.text == whole.digest) return;  // a call that may fail: what is old could not be removed
      CHECK(says(struck.end.text, "checkpoints"));
      CHECK(says(struck.end.text, is_eio ? "Input/output error" : "No space left on device"));
    });
  }
}

TEST_CASE("crash: power is lost, and with it what was not synced, in any order") {
  const TemporaryFolder folder;
  const Whole whole = whole_run(saving_run, folder);
  using Chance = UnsafeDisk::Chance;
  std::mt19937 random(1);
  std::set<std::string> seen;
  UnsafeDisk unsafe(folder.path().string());
  int announced = 0, states = 0;
  const auto tries = [&](const std::string& call, const UnsafeDisk::Choice& choice) {
    const auto files = unsafe.after_power_loss(choice);
    std::string key = std::to_string(announced);
    for (const auto& [name, bytes] : files) key += '\0' + name + '\0' + bytes;
    if (!seen.insert(key).second) return;
    ++states;
    CAPTURE(call);
    const TemporaryFolder booted;
    UnsafeDisk::make(files, booted.path());
    check_goes_on(whole, booted.path(), announced, false);
  };
  for (const Call& call : whole.trace) {
    unsafe.apply(call);
    if (call.kind == Call::Kind::mark) announced = std::stoi(call.other);
    const std::string after = std::to_string(static_cast<int>(call.kind)) + " " + call.name;
    const auto count = unsafe.unsafe();
    tries(after, [](std::size_t) { return Chance::gone; });
    tries(after, [](std::size_t) { return Chance::there; });
    tries(after, [](std::size_t) { return Chance::zeros; });
    // The last few alone, or missing alone: older ones were tried when they were the last.
    for (std::size_t one = count - std::min<std::size_t>(count, is_long() ? 12 : 3); one < count; ++one) {
      tries(after, [one](std::size_t i) { return i == one ? Chance::gone : Chance::there; });
      tries(after, [one](std::size_t i) { return i == one ? Chance::there : Chance::gone; });
      tries(after, [one](std::size_t i) { return i == one ? Chance::half : Chance::there; });
    }
    for (int i = 0; i < (is_long() ? 20 : 2); ++i) {
      tries(after, [&](std::size_t) { return static_cast<Chance>(random() % 4); });
    }
  }
  // The trace tells all: what it ends with is what is there.
  CHECK(unsafe.after_power_loss([](std::size_t) { return Chance::there; }) == UnsafeDisk::everything_of(folder.path()));
  MESSAGE(states, " states of a disk after ", whole.trace.size(), " calls");
  CHECK(states > 100);
}

TEST_CASE("crash: what stands where a checkpoint goes is damaged, and the disk fails while it is replaced") {
  const TemporaryFolder folder;
  const Whole whole = whole_run(saving_run, folder);
  // To be resumed from step 2, after which step 3 is saved in the place of a damaged one.
  const auto damage = [&](const fs::path& place) {
    fs::remove_all(place / "checkpoints" / "step-00000004");
    fs::resize_file(place / "checkpoints" / "step-00000003" / "model.safetensors", 100);
  };
  const auto prepared = [&](const TemporaryFolder& place) {
    const auto end = in_child([&] {
      SmallRun small(from_toml({whole.toml, "[run]\nsteps = 3\n"}), place.path().string());
      disk::watch(place.path().string());
      small.train();
      return std::string();
    });
    CHECK(end.signal == 0);
    damage(place.path());
  };
  for (const Fault fault : {Fault::kill, Fault::torn, Fault::eio, Fault::full}) {
    CAPTURE(name_of(fault));
    for (int at = 1;; ++at) {
      CAPTURE(at);
      const TemporaryFolder place;
      prepared(place);
      const auto end = in_child([&] {
        SmallRun small(from_toml({whole.toml}), place.path().string());
        small.resume();
        disk::watch(place / "checkpoints", fault, at);
        const auto result = thrown_by([&] { small.train(); });
        const auto call = disk::struck();
        disk::watch("");
        return call;
      });
      const bool was_struck = end.signal != 0 || !end.text.empty();
      CAPTURE(end.text);
      check_goes_on(whole, place.path(), 2);
      if (!was_struck) break;
      at += is_long() ? 0 : 2;
    }
  }
}

namespace {

// The run as a program, as a person starts it.
struct Started {
  explicit Started(const std::string& toml) { folder.write("run.toml", toml); }
  fs::path out() const { return folder.path() / "out"; }

  // The rest of the run, by --resume where there is a checkpoint, else anew.
  void finish() const {
    const bool begun = !vernier::checkpoints_in((out() / "checkpoints").string()).empty();
    if (!begun) fs::remove_all(out());
    std::vector<std::string> words = {"train", "run.toml", "--quiet"};
    if (begun) words.emplace_back("--resume");
    Program program(words, folder.path());
    const int status = program.wait();
    CHECK_MESSAGE(status == 0, program.err());
  }
  // Of the newest checkpoint.
  std::string weights() const { return read_text(out() / "checkpoints" / "latest" / "model.safetensors"); }
  std::string losses() const { return read_text(out() / "losses.jsonl"); }
  // Of the model, as summary.json has it; "" where there is none.
  std::string digest() const {
    const auto summary = read_text(out() / "summary.json");
    const auto place = summary.find("xxh3-128:");
    return place == std::string::npos ? "" : summary.substr(place, 41);
  }

  TemporaryFolder folder;
};

std::string program_run(int steps) {
  std::string toml = saving_run;
  const auto place = toml.find("steps = ");
  toml.replace(place, toml.find('\n', place) - place, "steps = " + std::to_string(steps) + "\noutput = \"out\"");
  return toml;
}

double minutes() {
  const char* given = std::getenv("VERNIER_CRASH_MINUTES");
  return given != nullptr ? std::strtod(given, nullptr) : 0;
}

}  // namespace

TEST_CASE("crash: vernier train, killed at random times and resumed each time, ends as if it never was") {
  const auto toml = program_run(is_long() ? 1000 : 300);
  const Started whole(toml);
  whole.finish();
  REQUIRE(whole.weights() != "");
  REQUIRE(whole.digest() != "");
  std::mt19937 random(is_long() ? std::random_device()() : 1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double, std::ratio<60>>(minutes());
  do {
    const Started killed(toml);
    for (int i = 0; i < 5; ++i) {
      const bool begun = !vernier::checkpoints_in((killed.out() / "checkpoints").string()).empty();
      if (!begun) fs::remove_all(killed.out());
      std::vector<std::string> words = {"train", "run.toml", "--quiet"};
      if (begun) words.emplace_back("--resume");
      Program program(words, killed.folder.path());
      program.wait_for(killed.out() / "losses.jsonl");  // it trains
      ::usleep(random() % 300'000);
      program.send(SIGKILL);
      program.wait();
    }
    killed.finish();
    CHECK((killed.weights() == whole.weights()));
    CHECK(killed.digest() == whole.digest());
    CHECK(killed.losses() == whole.losses());
  } while (std::chrono::steady_clock::now() < end);
}

TEST_CASE("crash: vernier train over a disk that fails at the k-th system call") {
  const auto toml = program_run(3);
  const Started whole(toml);
  whole.finish();
  std::mt19937 random(2);
  for (int i = 0; i < (is_long() ? 100 : 8); ++i) {
    const Started struck(toml);
    const std::string fault = disk::fault_names[1 + random() % 6];
    const std::string order =
        fault + " " + std::to_string(1 + random() % 100) + " " + (struck.out() / "checkpoints").string();
    CAPTURE(order);
    ::setenv("VERNIER_DISK", order.c_str(), 1);
    ::setenv("LD_PRELOAD", VERNIER_BINARY_DIR "/libdisk_faults.so", 1);
    {
      Program program({"train", "run.toml", "--quiet"}, struck.folder.path());
      ::unsetenv("LD_PRELOAD");
      ::unsetenv("VERNIER_DISK");
      const int status = program.wait();
      CAPTURE(program.err());
      CHECK((status == 0 || status == 4 || status == -SIGKILL));
      if (status == 4) CHECK(std::ranges::count(program.err(), '\n') == 1);
    }
    struck.finish();
    CHECK((struck.weights() == whole.weights()));
    CHECK(struck.digest() == whole.digest());
    CHECK(struck.losses() == whole.losses());
  }
}
