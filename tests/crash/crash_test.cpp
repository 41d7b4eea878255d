// Whatever stops a run that saves every step, resuming works and the rest of it equals that of a run that was never
// stopped, bit for bit. In the manner of https://sqlite.org/testing.html: the k-th system call of the saves ends the
// process, fails, or writes half, for every k; what was not synced is lost or reordered; kill -9 at any time.
//
// program_test.cpp does it to the program; form.h says how much of it.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <set>
#include <sstream>

#include <vernier/checkpoint_folder.h>
#include <vernier/checksum.h>

#include "disk.h"
#include "form.h"
#include "power_loss.h"
#include "small_run.h"
#include "thrown.h"

namespace fs = std::filesystem;
using disk::Call;
using disk::Fault;

namespace {

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

// A fault at a call, the first of which is 1.
using Strike = std::pair<Fault, int>;

// Each fault at each step-th call; in the long form at all of them, in random order.
std::vector<Strike> strikes(const std::vector<Fault>& faults, int calls, int step = 1) {
  std::vector<Strike> all;
  for (const Fault fault : faults) {
    for (int at = 1; at <= calls; at += is_long() ? 1 : step) all.emplace_back(fault, at);
  }
  if (is_long()) {
    auto random = random_numbers(0);
    std::ranges::shuffle(all, random);
  }
  return all;
}

void strike_everywhere(const Whole& whole, const std::string& below, int calls, const std::vector<Fault>& faults,
                       const std::function<void(const Struck&, Fault)>& check) {
  Budget budget;
  for (const auto& [fault, at] : strikes(faults, calls)) {
    if (!budget.has_more()) return;
    CAPTURE(name_of(fault));
    CAPTURE(at);
    const TemporaryFolder folder;
    const Struck struck = run_with(whole, folder, below, fault, at);
    CAPTURE(struck.call);
    CAPTURE(struck.end.text);
    CHECK(struck.call != "");
    check(struck, fault);
    check_goes_on(whole, folder.path(), struck.announced);
  }
}

}  // namespace

TEST_CASE("crash: killed at the k-th system call of a run, before it or half-way through it") {
  const TemporaryFolder folder;
  const Whole whole = whole_run(saving_run, folder);
  strike_everywhere(whole, "", whole.calls, {Fault::kill, Fault::torn},
                    [](const Struck& struck, Fault) { CHECK(struck.end.signal == SIGKILL); });
}

TEST_CASE("crash: a k-th system call that is interrupted or writes half is not noticed") {
  const TemporaryFolder folder;
  const Whole whole = whole_run(saving_run, folder);
  strike_everywhere(whole, "checkpoints", whole.saving_calls, {Fault::shortened, Fault::interrupted},
                    [&](const Struck& struck, Fault) { CHECK(struck.end.text == whole.digest); });
}

TEST_CASE("crash: a disk that fails or is full at the k-th system call of a save") {
  const TemporaryFolder folder;
  const Whole whole = whole_run(saving_run, folder);
  const std::vector<Fault> faults = {Fault::eio, Fault::enospc, Fault::broken, Fault::full};
  strike_everywhere(whole, "checkpoints", whole.saving_calls, faults, [&](const Struck& struck, Fault fault) {
    CHECK(struck.end.signal == 0);
    if (struck.end.text == whole.digest) return;  // a call that may fail: what is old could not be removed
    CHECK(says(struck.end.text, "checkpoints"));
    const bool is_eio = fault == Fault::eio || fault == Fault::broken;
    CHECK(says(struck.end.text, is_eio ? "Input/output error" : "No space left on device"));
  });
}

namespace {

using Chance = UnsafeDisk::Chance;

// What may be there of so many changes that were not synced.
std::vector<UnsafeDisk::Choice> choices(std::size_t count, std::mt19937& random) {
  std::vector<UnsafeDisk::Choice> all;
  for (const Chance each : {Chance::gone, Chance::there, Chance::zeros}) {
    all.push_back([each](std::size_t) { return each; });
  }
  // The last few alone, or missing alone: older ones were tried when they were the last.
  for (std::size_t one = count - std::min<std::size_t>(count, is_long() ? 12 : 3); one < count; ++one) {
    all.push_back([one](std::size_t i) { return i == one ? Chance::gone : Chance::there; });
    all.push_back([one](std::size_t i) { return i == one ? Chance::there : Chance::gone; });
    all.push_back([one](std::size_t i) { return i == one ? Chance::half : Chance::there; });
  }
  for (int i = 0; i < (is_long() ? 20 : 2); ++i) {
    all.push_back([&random](std::size_t) { return static_cast<Chance>(random() % 4); });
  }
  return all;
}

}  // namespace

TEST_CASE("crash: power is lost, and with it what was not synced, in any order") {
  const TemporaryFolder folder;
  const Whole whole = whole_run(saving_run, folder);
  auto random = random_numbers(1);
  std::set<std::string> seen;
  Budget budget;
  bool has_more = true;
  const auto tries = [&](const UnsafeDisk& unsafe, int announced, const Call& last, const UnsafeDisk::Choice& choice) {
    const auto files = unsafe.after_power_loss(choice);
    std::string key = std::to_string(announced);
    for (const auto& [name, bytes] : files) key += '\0' + name + '\0' + bytes;
    if (!seen.insert(vernier::checksum_of(key)).second || !(has_more = budget.has_more())) return;
    CAPTURE(last.name);
    const TemporaryFolder booted;
    UnsafeDisk::make(files, booted.path());
    check_goes_on(whole, booted.path(), announced, false);
  };
  // The long form goes through the run again and again, and tries a few things each time.
  constexpr unsigned one_in = 50;
  do {
    UnsafeDisk unsafe(folder.path().string());
    int announced = 0;
    for (const Call& call : whole.trace) {
      unsafe.apply(call);
      if (call.kind == Call::Kind::mark) announced = std::stoi(call.other);
      for (const auto& choice : choices(unsafe.unsafe(), random)) {
        if (has_more && (!is_long() || random() % one_in == 0)) tries(unsafe, announced, call, choice);
      }
    }
    // The trace tells all: what it ends with is what is there.
    CHECK(unsafe.after_power_loss([](std::size_t) { return Chance::there; }) ==
          UnsafeDisk::everything_of(folder.path()));
  } while (is_long() && has_more);
  MESSAGE(seen.size(), " states of a disk after ", whole.trace.size(), " calls");
  if (!is_long()) CHECK(seen.size() > 100);
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
  // Goes on from there; returns how many calls it made, and whether one was struck.
  const auto go_on = [&](const TemporaryFolder& place, Fault fault, int at) {
    return in_child([&] {
      SmallRun small(from_toml({whole.toml}), place.path().string());
      small.resume();
      disk::watch(place / "checkpoints", fault, at);
      const auto result = thrown_by([&] { small.train(); });
      const auto told = std::to_string(disk::calls()) + " " + disk::struck();
      disk::watch("");
      return told;
    });
  };
  const TemporaryFolder undisturbed;
  prepared(undisturbed);
  const int calls = std::stoi(go_on(undisturbed, Fault::none, 0).text);
  REQUIRE(calls > 20);
  Budget budget;
  for (const auto& [fault, at] : strikes({Fault::kill, Fault::torn, Fault::eio, Fault::full}, calls, 3)) {
    if (!budget.has_more()) return;
    CAPTURE(name_of(fault));
    CAPTURE(at);
    const TemporaryFolder place;
    prepared(place);
    const auto end = go_on(place, fault, at);
    CAPTURE(end.text);
    CHECK((end.signal != 0 || !end.text.ends_with(' ')));
    check_goes_on(whole, place.path(), 2);
  }
}
