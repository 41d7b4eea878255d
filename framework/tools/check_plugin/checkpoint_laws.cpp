// The laws of checkpoint plugins: what a crash leaves, and which snapshot is read.
#include <sys/resource.h>
#include <vernier/error.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "laws.h"
#include "output/recorded_run.h"
#include "trial.h"

namespace vernier {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t first_stop = 3, second_stop = 5;

// The run in this folder, from its newest checkpoint up to a step, with a checkpoint there. False: it keeps nothing.
bool train_until(const Subject& subject, std::int64_t stop, const Trial::Folder& folder) {
  Trial trial(subject.host, subject.config(), 1, folder);
  const bool is_resumed = trial.resume();
  trial.stop_after(stop);
  trial.train();
  return is_resumed;
}

std::int64_t largest_file_in(const std::string& folder) {
  std::uintmax_t most = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) most = std::max(most, entry.file_size());
  }
  return static_cast<std::int64_t>(most);
}

// In a process that the system kills as soon as it makes a file larger than this.
void write_and_die(const Subject& subject, const Trial::Folder& folder, std::int64_t largest) {
  ForkedCall([&] {
    (void)std::signal(SIGXFSZ, SIG_DFL);
    Trial trial(subject.host, subject.config(), 1, folder);
    trial.resume();
    trial.stop_after(second_stop);
    trial.on_last(Event::StepEnd, [&](const Run& run) {
      const auto limit = static_cast<rlim_t>(largest);
      const rlimit limits = {limit, limit};
      if (run.step == second_stop) (void)::setrlimit(RLIMIT_FSIZE, &limits);
    });
    trial.train();
    return std::string();
  }).wait();  // only the files that it leaves count, however it ends
}

// Goes on in the folder, to the end.
Trained rest_of(const Subject& subject, const Trial::Folder& folder) {
  Trial trial(subject.host, subject.config(), 1, folder);
  if (!trial.resume()) throw Error("no checkpoint is there any more");
  const auto step = trial.run().step;
  if (step != first_stop && step != second_stop) throw Error(c10::str("the newest checkpoint is of step ", step));
  trial.keep_losses();
  trial.train();
  return trial.trained();
}

[[noreturn]] void skip() {
  throw LawSkipped("it keeps nothing to go on from: its read() returns nothing");
}

}  // namespace

void check_crash_while_writing(const Subject& subject) {
  const auto whole = train(subject.host, subject.config());
  for (const int part : {0, 2}) {  // at the first byte, and in the middle of the largest file
    const auto folder = std::make_shared<const ScratchFolder>();
    train_until(subject, first_stop, folder);
    const auto largest = largest_file_in(folder->path());
    if (!OutputFolder::is_there(folder->path(), *Trial(subject.host, subject.config()).wiring().checkpoint)) skip();
    write_and_die(subject, folder, part == 0 ? 1 : largest / part);
    std::string wrong;
    try {
      const auto rest = rest_of(subject, folder);
      if (rest.digest != whole.digest) wrong = "the run that was resumed is another one";
    } catch (...) {
      wrong = caught().message;
    }
    if (wrong.empty()) continue;
    throw Error(c10::str("a process was killed while it wrote its second checkpoint, after step ", second_stop, ": ",
                         wrong, "; write beside what is there, and rename it when it is complete"));
  }
}

void check_reads_what_is_asked(const Subject& subject) {
  const auto folder = std::make_shared<const ScratchFolder>();
  train_until(subject, first_stop, folder);
  if (!train_until(subject, second_stop, folder)) skip();
  Trial elsewhere(subject.host, subject.config());
  auto& checkpoint = *elsewhere.wiring().checkpoint;
  auto before = second_stop + 1;
  for (const auto& path : checkpoint.snapshots(folder->path())) {
    const auto name = fs::path(path).filename().string();
    const auto snapshot = read_snapshot(checkpoint, elsewhere.run(), path);
    if (!snapshot) throw Error("read() returns nothing for " + name + ", which snapshots() names");
    const auto step = snapshot->integer("run/step");
    if (before == second_stop + 1 && step != second_stop) {
      throw Error(c10::str("snapshots() names first ", name, ", which is of step ", step,
                           " and not the newest, of step ", second_stop));
    }
    if (step >= before) {
      throw Error(c10::str("read() returns step ", step, " for ", name, ", and ", before,
                           " for the one before it; it must read the snapshot at `from`"));
    }
    before = step;
  }
  if (before > second_stop) throw Error("snapshots() names none of the checkpoints in a run's folder");
  Trial same(subject.host, subject.config(), 1, folder);
  const auto newest = same.wiring().checkpoint->read(same.run(), "");
  const auto step = newest ? newest->integer("run/step") : 0;
  if (step != second_stop) {
    throw Error(c10::str("read() with an empty `from` returns the snapshot of step ", step,
                         " and not the newest, of step ", second_stop));
  }
  std::optional<State> other;
  try {
    other = checkpoint.read(elsewhere.run(), folder->path() + "/no-such-checkpoint");
  } catch (const std::exception&) {  // expected: there is no checkpoint
  }
  if (other) throw Error("read() returns a snapshot for a path where there is none");
}

}  // namespace vernier
