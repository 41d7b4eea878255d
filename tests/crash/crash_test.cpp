// Whatever stops a run that saves every step, resuming works and the rest of it equals that of a run that was never
// stopped, bit for bit. In the manner of https://sqlite.org/testing.html: the k-th system call of the run ends the
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

#include <vernier/abi.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/checksum.h>

#include "disk.h"
#include "form.h"
#include "output/output.h"
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

// Runs the body in a process of its own and returns its result.
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

// The step of the last checkpoint that the run said it saved; that one has to be there from then on, whatever happens.
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

constexpr const char* run_name = "runs/toy";  // below the folder that a case watches

// Does the same as `vernier train` with resume = "auto": makes the run's folder, or goes on in it, and trains to the
// end. Returns the step it began at.
std::int64_t start(SmallRun& small, const fs::path& root) {
  auto& checkpoint = *small.wiring->checkpoint;
  const bool resumes = vernier::OutputFolder::is_there(root / run_name, checkpoint);
  const auto folder = resumes ? vernier::OutputFolder::open_existing(root / run_name, checkpoint, "")
                              : vernier::OutputFolder::open_new(root / run_name, checkpoint);
  small.run.output = folder.path().string();
  if (resumes) small.resume();
  vernier::write_file(folder.path() / "config.toml", "of the run");
  const auto began = small.run.step;
  small.train();
  return began;
}

// The checkpoints that a run leaves: names in their folder, targets of the links, and the content of the newest.
struct Left {
  std::set<std::string> names;
  std::map<std::string, std::string> newest;  // checksums
  std::string losses;
  explicit Left(const fs::path& run = {}) {
    if (run.empty()) return;
    for (const auto& entry : fs::directory_iterator(run / "checkpoints")) {
      auto name = entry.path().filename().string();
      if (entry.is_symlink()) name += " -> " + fs::read_symlink(entry.path()).string();
      names.insert(name);
    }
    const auto path = vernier::checkpoints_in((run / "checkpoints").string()).front();
    for (const auto& [file, said] : vernier::verify_checkpoint(path).files) {
      for (const auto& [name, tensor] : said.tensors) {
        // The scores of those that were just removed are forgotten when that is noticed.
        if (!says(name, "/rolling/score")) newest[name] = tensor.checksum;
      }
    }
    losses = read_text(run / "losses.jsonl");
  }
};

struct Whole {
  std::string toml, digest;
  int steps = 0, calls = 0, saving_calls = 0;
  std::vector<Call> trace;
  Left left;
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
    SmallRun small(from_toml({toml}));
    announce(small, announced.number);
    disk::watch(folder.path().string());
    disk::record();
    start(small, folder.path());
    const int calls = disk::calls();
    const auto trace = disk::stop();
    disk::watch("");
    return small.digest() + " " + std::to_string(small.run.steps) + " " + std::to_string(calls) + " " + to_text(trace);
  });
  CAPTURE(end.text);
  REQUIRE(end.signal == 0);
  REQUIRE(!end.text.starts_with("error"));
  std::istringstream in(end.text);
  in >> whole.digest >> whole.steps >> whole.calls;
  whole.trace = to_trace(in);
  whole.left = Left(folder.path() / run_name);
  REQUIRE(*announced.number == whole.steps);

  const TemporaryFolder other;
  const auto counted = in_child([&] {
    SmallRun small(from_toml({toml}));
    disk::watch(other.path() / run_name / "checkpoints");
    start(small, other.path());
    return std::to_string(disk::calls());
  });
  whole.saving_calls = std::stoi(counted.text);
  REQUIRE(whole.saving_calls > 20);
  return whole;
}

// One whole run of each kind.
struct Wholes {
  Wholes() : folders(saving_runs.size()) {
    for (std::size_t i = 0; i < folders.size(); ++i) runs.push_back(whole_run(saving_runs[i], folders[i]));
  }
  std::vector<TemporaryFolder> folders;
  std::vector<Whole> runs;
};

// The rest of the run after whatever happened in the folder.
void check_goes_on(const Whole& whole, const fs::path& root, int announced) {
  const auto end = in_child([&] {
    disk::watch(root.string());  // no call fails here
    SmallRun small(from_toml({whole.toml}));
    const auto began = start(small, root);
    return std::to_string(began) + " " + small.digest() + " " + small.run.output;
  });
  CAPTURE(end.text);
  CHECK(end.signal == 0);
  std::istringstream in(end.text);
  int began = -1;
  std::string digest, output;
  in >> began >> digest >> output;
  CHECK(began >= announced);
  CHECK(digest == whole.digest);
  if (digest != whole.digest) return;
  const Left left(output);
  CHECK(left.losses == whole.left.losses);
  CHECK((left.newest == whole.left.newest));
  if (began < whole.steps) CHECK(left.names == whole.left.names);
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
    SmallRun small(from_toml({whole.toml}));
    announce(small, announced.number);
    disk::watch((folder.path() / below).string(), fault, at);
    const auto result = thrown_by([&] { start(small, folder.path()); });
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

// Each fault at each step-th call, each beginning at another one; in the long form at all of them, in random order.
std::vector<Strike> strikes(const std::vector<Fault>& faults, int calls, int step) {
  std::vector<Strike> all;
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const int first = is_long() ? 1 : 1 + static_cast<int>(i) % step;
    for (int at = first; at <= calls; at += is_long() ? 1 : step) all.emplace_back(faults[i], at);
  }
  if (is_long()) {
    auto random = random_numbers(0);
    std::ranges::shuffle(all, random);
  }
  return all;
}

// calls: how many of a run may be struck.
void strike_everywhere(const Wholes& wholes, const std::string& below, const std::function<int(const Whole&)>& calls,
                       const std::vector<Fault>& faults,
                       const std::function<void(const Whole&, const Struck&, Fault)>& check) {
  Budget budget;
  int most = 0;
  for (const Whole& whole : wholes.runs) most = std::max(most, calls(whole));
  std::size_t tried = 0;
  for (const auto& [fault, at] : strikes(faults, most, 2 * static_cast<int>(faults.size()))) {
    // If one fault strikes the first run, the next strikes the second.
    const auto turn = static_cast<std::size_t>(at) + tried++ / static_cast<std::size_t>(most);
    const Whole& whole = wholes.runs[run_in_turn(turn)];
    if (at > calls(whole)) continue;
    if (!budget.has_more()) return;
    CAPTURE(whole.toml);
    CAPTURE(name_of(fault));
    CAPTURE(at);
    const TemporaryFolder folder;
    const Struck struck = run_with(whole, folder, below, fault, at);
    CAPTURE(struck.call);
    CAPTURE(struck.end.text);
    CHECK(struck.call != "");
    check(whole, struck, fault);
    check_goes_on(whole, folder.path(), struck.announced);
  }
}

const std::string checkpoints = std::string(run_name) + "/checkpoints";

bool says_reason(const std::string& text, Fault fault) {
  const bool is_eio = fault == Fault::eio || fault == Fault::broken;
  return says(text, is_eio ? "Input/output error" : "No space left on device");
}

}  // namespace

TEST_CASE("crash: killed at the k-th system call of a run, before it or half-way through it") {
  const Wholes wholes;
  strike_everywhere(
      wholes, "", [](const Whole& whole) { return whole.calls; }, {Fault::kill, Fault::torn},
      [](const Whole&, const Struck& struck, Fault) { CHECK(struck.end.signal == SIGKILL); });
}

TEST_CASE("crash: a k-th system call that is interrupted or writes half is not noticed") {
  const Wholes wholes;
  const auto calls = [](const Whole& whole) { return whole.saving_calls; };
  strike_everywhere(wholes, checkpoints, calls, {Fault::shortened, Fault::interrupted},
                    [](const Whole& whole, const Struck& struck, Fault) { CHECK(struck.end.text == whole.digest); });
}

TEST_CASE("crash: a disk that fails or is full at the k-th system call of a save") {
  const Wholes wholes;
  const auto calls = [](const Whole& whole) { return whole.saving_calls; };
  const std::vector<Fault> faults = {Fault::eio, Fault::enospc, Fault::broken, Fault::full};
  strike_everywhere(wholes, checkpoints, calls, faults, [&](const Whole& whole, const Struck& struck, Fault fault) {
    CHECK(struck.end.signal == 0);
    const bool is_once = fault == Fault::eio || fault == Fault::enospc;
    if (is_once && &whole == &wholes.runs[that_goes_on]) {
      CHECK(struck.end.text == whole.digest);
      CHECK(struck.announced == whole.steps);  // whatever save failed, a later one or the last was tried
    }
    if (struck.end.text == whole.digest) return;  // a call that may fail: what is old could not be removed
    CHECK(says(struck.end.text, "checkpoints"));
    CHECK(says_reason(struck.end.text, fault));
  });
}

TEST_CASE("crash: a disk that fails or is full while the run's folder is made") {
  const Wholes wholes;
  // Up to the first call of the training, which opens the file of losses.
  const auto calls = [&](const Whole& whole) {
    int count = 0;
    while (!says(whole.trace[static_cast<std::size_t>(count)].name, "losses.jsonl")) count += 1;
    return count;
  };
  const std::vector<Fault> faults = {Fault::eio, Fault::enospc, Fault::broken, Fault::full};
  strike_everywhere(wholes, "", calls, faults, [&](const Whole& whole, const Struck& struck, Fault) {
    CHECK(struck.end.signal == 0);
    if (struck.end.text == whole.digest) return;  // a name that was not brought to the disk is a warning
    CHECK(struck.end.text.starts_with("error: "));
    CHECK(says(struck.end.text, "runs"));
    CHECK(!says(struck.end.text, "\n"));
  });
}

namespace {

using Chance = UnsafeDisk::Chance;

// Choices of which unsynced changes survive.
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
  const Wholes wholes;
  auto random = random_numbers(1);
  std::set<std::string> seen;
  Budget budget;
  bool has_more = true;
  // The long form goes through the runs again and again, and tries a few things each time.
  constexpr unsigned one_in = 50;
  const auto go_through = [&](std::size_t number) {
    const Whole& whole = wholes.runs[number];
    const auto tries = [&](const UnsafeDisk& unsafe, int announced, const Call& last,
                           const UnsafeDisk::Choice& choice) {
      const auto files = unsafe.after_power_loss(choice);
      std::string key = std::to_string(number) + ' ' + std::to_string(announced);
      for (const auto& [name, bytes] : files) key += '\0' + name + '\0' + bytes;
      if (!seen.insert(vernier::checksum_of(key)).second) return;
      if (!is_long() && seen.size() % (2 * saving_runs.size()) != 0) return;
      if (!(has_more = budget.has_more())) return;
      CAPTURE(whole.toml);
      CAPTURE(last.name);
      const TemporaryFolder booted;
      UnsafeDisk::make(files, booted.path());
      check_goes_on(whole, booted.path(), announced);
    };
    const auto root = wholes.folders[number].path();
    UnsafeDisk unsafe(root.string());
    int announced = 0;
    for (const Call& call : whole.trace) {
      unsafe.apply(call);
      if (call.kind == Call::Kind::mark) announced = std::stoi(call.other);
      for (const auto& choice : choices(unsafe.unsafe(), random)) {
        if (has_more && (!is_long() || random() % one_in == 0)) tries(unsafe, announced, call, choice);
      }
    }
    // The trace shows all: what it ends with is what is there.
    CHECK(unsafe.after_power_loss([](std::size_t) { return Chance::there; }) == UnsafeDisk::everything_of(root));
  };
  do {
    for (std::size_t i = 0; i < saving_runs.size() && has_more; ++i) go_through(i);
  } while (is_long() && has_more);
  MESSAGE(seen.size(), " states of a disk after ", wholes.runs[0].trace.size(), " calls of the first run");
  if (!is_long()) CHECK(seen.size() > 300);
}

TEST_CASE("crash: what stands where a checkpoint goes is damaged, and the disk fails while it is replaced") {
  const Wholes wholes;
  // To be resumed from step 2, after which step 3 is saved in the place of a damaged one.
  const auto prepared = [](const Whole& whole, const TemporaryFolder& root) {
    const auto end = in_child([&] {
      SmallRun small(from_toml({whole.toml, "[run]\nsteps = 3\n[checkpoint]\nkeep_last = 2\n"}));
      disk::watch(root.path().string());
      start(small, root.path());
      return std::string();
    });
    CHECK(end.signal == 0);
    fs::resize_file(root.path() / checkpoints / "step-00000003" / "model.safetensors", 100);
  };
  // Goes on from there; returns how many calls it made, and whether one was struck.
  const auto go_on = [](const Whole& whole, const TemporaryFolder& root, bool cannot_exchange, Fault fault, int at) {
    return in_child([&] {
      SmallRun small(from_toml({whole.toml}));
      disk::cannot_exchange(cannot_exchange);
      disk::watch(root / checkpoints, fault, at);
      const auto result = thrown_by([&] { start(small, root.path()); });
      const auto told = std::to_string(disk::calls()) + " " + disk::struck();
      disk::watch("");
      return told;
    });
  };
  Budget budget;
  std::size_t tried = 0;
  std::map<std::pair<std::size_t, bool>, int> calls;
  const auto calls_of = [&](std::size_t number, bool cannot_exchange) {
    auto& known = calls[{number, cannot_exchange}];
    if (known == 0) {
      const TemporaryFolder undisturbed;
      prepared(wholes.runs[number], undisturbed);
      known = std::stoi(go_on(wholes.runs[number], undisturbed, cannot_exchange, Fault::none, 0).text);
      REQUIRE(known > 20);
    }
    return known;
  };
  for (const auto& [fault, at] : strikes({Fault::kill, Fault::torn, Fault::eio, Fault::full}, 200, 6)) {
    const bool cannot_exchange = tried % 2 == 1;
    const std::size_t number = run_in_turn(tried++);
    if (at > calls_of(number, cannot_exchange)) continue;
    if (!budget.has_more()) return;
    const Whole& whole = wholes.runs[number];
    CAPTURE(whole.toml);
    CAPTURE(name_of(fault));
    CAPTURE(at);
    CAPTURE(cannot_exchange);
    const TemporaryFolder root;
    prepared(whole, root);
    const auto end = go_on(whole, root, cannot_exchange, fault, at);
    CAPTURE(end.text);
    CHECK((end.signal != 0 || !end.text.ends_with(' ')));
    check_goes_on(whole, root.path(), 2);
  }
}

namespace {

// A checkpoint of a loop of somebody's own, who writes it always to the same place.
void write_version(const std::string& place, std::int64_t version) {
  vernier::Tensors model = {{"weight", torch::full({5}, version, torch::kFloat32)}};
  vernier::write_checkpoint(place, {.step = version}, model, {{"version", torch::scalar_tensor(version)}});
}

// Returns the version that a program started anew would find; -1 if there is none.
std::int64_t version_at(const std::string& place) {
  if (!vernier::is_checkpoint(place)) return -1;
  const auto stored = vernier::read_checkpoint(place);
  const auto weight = stored.model.tensor("weight");
  CHECK(weight.equal(torch::full({5}, stored.manifest.step, torch::kFloat32)));
  CHECK(weight[0].item<float>() == stored.state.tensor("version").item<float>());
  return stored.manifest.step;
}

// Version 2 takes the place of version 1, and the fault strikes at the call of that number. Returns whether it struck.
// there: set to 2 where the new version must be there from now on.
bool replaced_with(Fault fault, int at, const TemporaryFolder& root, int& there) {
  const std::string place = root / "last";
  if (fault == Fault::kill || fault == Fault::torn) {
    const auto end = in_child([&] {
      disk::watch(root.path().string(), fault, at);
      write_version(place, 2);
      return std::string();
    });
    if (end.signal == 0) there = 2;
    return end.signal != 0;
  }
  disk::watch(root.path().string(), fault, at);
  const auto thrown = thrown_by([&] { write_version(place, 2); });
  const bool was_struck = !disk::struck().empty();
  disk::watch(root.path().string());
  if (thrown == Thrown{}) {
    there = 2;
    disk::mark("2");
  }
  return was_struck;
}

// After a loss of power at any call, a program finds the version of the last mark or a later one.
void check_power_losses(const std::vector<Call>& trace, const std::string& root, std::mt19937& random,
                        std::set<std::string>& seen) {
  UnsafeDisk unsafe(root);
  int least = -1;
  for (const Call& call : trace) {
    unsafe.apply(call);
    if (call.kind == Call::Kind::mark) least = std::stoi(call.other);
    for (const auto& choice : choices(unsafe.unsafe(), random)) {
      const auto files = unsafe.after_power_loss(choice);
      std::string key = std::to_string(least);
      for (const auto& [name, bytes] : files) {
        if (!name.starts_with(".tmp-")) key += '\0' + name + '\0' + bytes;
      }
      if (least < 0 || !seen.insert(vernier::checksum_of(key)).second) continue;
      CAPTURE(call.name);
      const TemporaryFolder booted;
      UnsafeDisk::make(files, booted.path());
      CHECK(version_at(booted / "last") >= least);
    }
  }
}

}  // namespace

// Version 1 is there, version 2 takes its place, and version 3 that of either. At every moment one of them must be.
TEST_CASE("crash: a whole checkpoint is replaced, on file systems that can exchange two folders and that cannot") {
  if (std::string(VERNIER_SANITIZER) == " tsan") return;  // it does not follow the threads of a forked process
  auto random = random_numbers(2);
  std::set<std::string> seen;
  for (const bool cannot_exchange : {false, true}) {
    CAPTURE(cannot_exchange);
    disk::cannot_exchange(cannot_exchange);
    for (const Fault fault : {Fault::kill, Fault::torn, Fault::eio, Fault::enospc, Fault::broken, Fault::full}) {
      CAPTURE(name_of(fault));
      bool was_struck = true;
      for (int at = 1; was_struck; ++at) {
        CAPTURE(at);
        const TemporaryFolder root;
        const std::string place = root / "last";
        disk::watch(root.path().string());
        disk::record();
        write_version(place, 1);
        disk::mark("1");
        int there = 1;  // the oldest that may be there
        was_struck = replaced_with(fault, at, root, there);
        const auto found = version_at(place);
        CHECK(found >= there);
        CHECK(found <= 2);
        // The next writer, with what clears up before it and without.
        if (at % 2 == 0) vernier::remove_unfinished_checkpoints(root.path().string());
        CHECK(version_at(place) == found);
        write_version(place, 3);
        disk::mark("3");
        const auto trace = disk::stop();
        disk::watch("");
        CHECK(version_at(place) == 3);
        vernier::remove_unfinished_checkpoints(root.path().string());
        CHECK(std::distance(fs::directory_iterator(root.path()), {}) == 1);
        if (fault == Fault::kill || fault == Fault::torn) continue;  // the trace lacks the calls of the other process
        check_power_losses(trace, root.path().string(), random, seen);
      }
    }
  }
  disk::cannot_exchange(false);
  MESSAGE(seen.size(), " states of a disk");
}
