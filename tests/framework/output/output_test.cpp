#include "output/output.h"
#include "log_lines.h"

#include "common/text/terminal.h"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vernier/plugin.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <fstream>
#include <set>

#include "limited_files.h"
#include "temporary_folder.h"
#include "thrown.h"

using vernier::OutputFolder;
namespace fs = std::filesystem;

namespace {

int flock_fails_with = 0;                 // 0: it does not
std::string unreadable;                   // a folder that the disk does not give
std::set<std::string>* synced = nullptr;  // gets what was brought to the disk

}  // namespace

// In the place of the C library's, for the whole program.
extern "C" __attribute__((visibility("default"))) int flock(int file, int operation) noexcept {
  static auto* const next = reinterpret_cast<int (*)(int, int)>(::dlsym(RTLD_NEXT, "flock"));
  if (flock_fails_with == 0) return next(file, operation);
  errno = flock_fails_with;
  return -1;
}
// std::filesystem opens folders with it.
extern "C" __attribute__((visibility("default"))) int openat(int folder, const char* path, int flags, ...) {
  static auto* const next = reinterpret_cast<int (*)(int, const char*, int, ...)>(::dlsym(RTLD_NEXT, "openat"));
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (unreadable.empty() || path != unreadable) return next(folder, path, flags, mode);
  errno = EIO;
  return -1;
}
extern "C" __attribute__((visibility("default"))) int fsync(int file) {
  static auto* const next = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "fsync"));
  std::error_code none;
  if (synced != nullptr) synced->insert(fs::read_symlink("/proc/self/fd/" + std::to_string(file), none).string());
  return next(file);
}

namespace {

// A checkpoint plugin that leaves it to the default which snapshots a run has.
class ByName final : public vernier::Checkpoint {
  bool due(const vernier::Run&) override { return false; }
  void write(const vernier::State&, vernier::Run&) override {}
  std::optional<vernier::State> read(const vernier::Run&, const std::string&) override { return std::nullopt; }
};
ByName by_name;

// A folder in which a run was: with or without a checkpoint.
void add_run(const fs::path& folder, bool with_checkpoint) {
  fs::create_directories(folder);
  std::ofstream(folder / "log.txt") << "trained\n";
  if (with_checkpoint) fs::create_directories(folder / "checkpoints" / "step-00000010");
}

// The name of the folder that a resumed run has.
std::string resumed(const fs::path& wanted, const std::string& from = "") {
  return OutputFolder::open_existing(wanted, by_name, from).path().filename().string();
}

}  // namespace

TEST_CASE("output: lines are broken at spaces where the terminal ends, and continue indented") {
  const auto wrapped = vernier::wrapped;
  CHECK(wrapped("one two three", 0, 2) == "one two three");  // no terminal
  CHECK(wrapped("one two three", 13, 2) == "one two three");
  CHECK(wrapped("one two three", 12, 2) == "one two\n  three");
  CHECK(wrapped("one two three\nfour five six\n", 7, 2) == "one two\n  three\nfour\n  five\n  six\n");
  CHECK(wrapped("  task  gpt  data=1 width=2", 20, 13) == "  task  gpt  data=1\n          width=2");  // half at most
  CHECK(wrapped("a-word-that-is-longer than the line", 8, 2) == "a-word-that-is-longer\n  than\n  the\n  line");
  CHECK(wrapped("    indented-word", 8, 2) == "    indented-word");
  CHECK(wrapped("é…ü é…ü", 7, 2) == "é…ü é…ü");  // seven characters of more bytes
  CHECK(wrapped("", 7, 2).empty());
  CHECK(vernier::screen_of(::open("/dev/null", O_RDONLY | O_CLOEXEC)).columns == 0);
}

TEST_CASE("output: a run is never written over") {
  const TemporaryFolder folder;
  const fs::path wanted = folder.path() / "runs" / "toy";
  CHECK(OutputFolder::open_new(wanted, by_name).path() == wanted);
  CHECK(OutputFolder::open_new(wanted, by_name).path() == wanted);  // nothing was written into it
  add_run(wanted, false);
  const LogLines log;
  CHECK(OutputFolder::open_new(wanted, by_name).path() == wanted.string() + "-2");
  CHECK(log.count("toy has a run already, which --resume goes on with; this one is in ") == 1);
  add_run(wanted.string() + "-2", false);
  add_run(wanted.string() + "-4", false);
  CHECK(OutputFolder::open_new(wanted, by_name).path() == wanted.string() + "-3");
}

TEST_CASE("output: a folder in use is left to its run, while it lasts") {
  const TemporaryFolder folder;
  const fs::path wanted = folder.path() / "toy";
  {
    const auto first = OutputFolder::open_new(wanted, by_name);
    const auto second = OutputFolder::open_new(wanted, by_name);
    CHECK(first.path() == wanted);
    CHECK(second.path() == wanted.string() + "-2");
  }
  CHECK(OutputFolder::open_new(wanted, by_name).path() == wanted);
}

TEST_CASE("output: many processes that start at once get a folder each") {
  const TemporaryFolder folder;
  const fs::path wanted = folder.path() / "toy";
  constexpr int count = 8;
  int ready[2], names[2], done[2];
  REQUIRE(::pipe(ready) == 0);
  REQUIRE(::pipe(names) == 0);
  REQUIRE(::pipe(done) == 0);
  for (int i = 0; i < count; ++i) {
    if (::fork() != 0) continue;
    char byte = 0;
    ::close(ready[1]);
    ::close(done[1]);
    (void)!::read(ready[0], &byte, 1);  // until the parent closes it: all go at once
    const auto mine = OutputFolder::open_new(wanted, by_name);
    const std::string name = mine.path().filename().string() + "\n";
    (void)!::write(names[1], name.data(), name.size());
    (void)!::read(done[0], &byte, 1);  // holds its folder until all have theirs
    ::_exit(0);
  }
  ::close(ready[1]);
  ::close(names[1]);
  std::string all;
  std::set<std::string> different;
  char bytes[256];
  while (std::count(all.begin(), all.end(), '\n') < count) {
    const auto got = ::read(names[0], bytes, sizeof bytes);
    REQUIRE(got > 0);
    all.append(bytes, static_cast<std::size_t>(got));
  }
  ::close(done[1]);
  while (::wait(nullptr) > 0) {
  }
  std::istringstream lines(all);
  for (std::string line; std::getline(lines, line);) different.insert(line);
  CHECK(different.size() == count);
  for (const int end : {ready[0], names[0], done[0]}) ::close(end);
}

TEST_CASE("output: a resumed run is the newest with checkpoints, or the one that is named") {
  const TemporaryFolder folder;
  const fs::path wanted = folder.path() / "toy";
  CHECK(thrown_by([&] { resumed(wanted); }) ==
        configuration("there is no checkpoint to resume from in " + wanted.string() +
                      "; leave --resume out to start a new run"));
  add_run(wanted, true);
  CHECK(resumed(wanted) == "toy");
  add_run(wanted.string() + "-2", true);
  add_run(wanted.string() + "-3", false);
  CHECK(resumed(wanted) == "toy-2");
  CHECK(resumed(wanted, wanted.string()) == "toy");
  CHECK(resumed(wanted, (wanted / "checkpoints" / "step-00000010").string()) == "toy");
  CHECK(resumed(wanted, (wanted / "checkpoints").string()) == "toy");
  CHECK(resumed(wanted, wanted.string() + "/") == "toy");
}

TEST_CASE("output: of several runs the one that saved last is resumed, though others are gone") {
  const TemporaryFolder folder;
  const fs::path wanted = folder.path() / "toy";
  add_run(wanted.string() + "-3", true);
  CHECK(resumed(wanted) == "toy-3");
  add_run(wanted, true);
  fs::last_write_time(wanted / "checkpoints", fs::file_time_type::clock::now() + std::chrono::seconds(9));
  CHECK(resumed(wanted) == "toy");
  add_run(wanted.string() + "-old", true);  // no number: another run's
  fs::last_write_time(wanted.string() + "-old/checkpoints",
                      fs::file_time_type::clock::now() + std::chrono::seconds(99));
  CHECK(resumed(wanted) == "toy");
}

TEST_CASE("output: where a folder cannot be read, there may be a run in it, and none is begun anew") {
  const TemporaryFolder folder;
  const fs::path wanted = folder.path() / "toy";
  add_run(wanted, true);
  const auto refusal = [](const fs::path& which) {
    return configuration(which.string() +
                         ": cannot be searched for an earlier run: Input/output error; see that it can "
                         "be read, and start again");
  };
  unreadable = folder.path().string();
  CHECK(thrown_by([&] { OutputFolder::is_there(wanted, by_name); }) == refusal(folder.path()));
  CHECK(thrown_by([&] { resumed(wanted); }) == refusal(folder.path()));
  unreadable = wanted.string();
  CHECK(thrown_by([&] { OutputFolder::open_new(wanted, by_name); }) == refusal(wanted));
  unreadable = "";
  CHECK(OutputFolder::is_there(wanted, by_name));
}

TEST_CASE("output: a checkpoint that was moved away resumes into a new folder") {
  const TemporaryFolder folder;
  const fs::path wanted = folder.path() / "toy";
  add_run(wanted, true);
  fs::rename(wanted / "checkpoints" / "step-00000010", folder.path() / "kept");
  std::ofstream(folder.path() / "kept" / "state.safetensors") << "state";
  CHECK(resumed(wanted, folder / "kept") == "toy-2");
}

TEST_CASE("output: a run in work cannot be resumed, and its process is named") {
  const TemporaryFolder folder;
  const fs::path wanted = folder.path() / "toy";
  const auto running = OutputFolder::open_new(wanted, by_name);
  add_run(wanted, true);
  char host[256] = "";
  REQUIRE(::gethostname(host, sizeof host - 1) == 0);
  const auto refusal = configuration(wanted.string() + " is in use by another run (process " +
                                     std::to_string(::getpid()) + " on " + host + "); wait for it, or stop it first");
  CHECK(thrown_by([&] { resumed(wanted); }) == refusal);
  CHECK(thrown_by([&] { resumed(wanted, wanted.string()); }) == refusal);
  fs::resize_file(wanted / ".lock", 0);
  CHECK(thrown_by([&] { resumed(wanted); }) ==
        configuration(wanted.string() + " is in use by another run (process unknown); wait for it, or stop it first"));
}

TEST_CASE("output: where the file system has no locks, a run starts all the same") {
  const TemporaryFolder folder;
  const fs::path wanted = folder.path() / "toy";
  for (const int reason : {ENOLCK, EOPNOTSUPP, ENOSYS}) {
    fs::remove_all(wanted);
    flock_fails_with = reason;
    CHECK(OutputFolder::open_new(wanted, by_name).path() == wanted);
    add_run(wanted, true);
    CHECK(resumed(wanted) == "toy");
    flock_fails_with = 0;
  }
}

TEST_CASE("output: the names of new folders are brought to the disk, also where somebody made one and was killed") {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "runs");
  for (const char* wanted : {"runs/a/toy", "runs/killed/toy"}) {
    if (std::string(wanted) == "runs/killed/toy") fs::create_directories(folder.path() / wanted);
    std::set<std::string> seen;
    synced = &seen;
    const auto made = OutputFolder::open_new(folder.path() / wanted, by_name);
    synced = nullptr;
    CHECK(seen.count(fs::canonical(made.path().parent_path()).string()) == 1);
    if (std::string(wanted) == "runs/a/toy") CHECK(seen.count(fs::canonical(folder.path() / "runs").string()) == 1);
  }
}

TEST_CASE("output: what cannot be a folder is refused with the reason") {
  const TemporaryFolder folder;
  folder.write("file", "precious");
  const auto refusal = [](const fs::path& wanted) {
    return thrown_by([&] { OutputFolder::open_new(wanted, by_name); });
  };
  const std::string remedy = "; set [run] output to a folder that can be written to";
  const std::string file = folder / "file";
  CHECK(refusal(file) == configuration("cannot make the run's folder " + file + ": Not a directory" + remedy));
  CHECK(refusal(file + "/toy") ==
        configuration("cannot make the run's folder " + file + "/toy: Not a directory" + remedy));
  CHECK(refusal("/proc/toy").kind == 2);
  CHECK(says(refusal("/proc/toy").text, "cannot make the run's folder /proc/toy: "));
  CHECK(refusal("").kind == 2);
  CHECK(refusal(std::string(5000, 'x')).kind == 2);
  fs::create_symlink(folder.path() / "nowhere", folder.path() / "dangling");
  CHECK(refusal(folder / "dangling").kind == 2);
}

TEST_CASE("output: a run that was killed before its first checkpoint starts anew in its folder, if nothing is lost") {
  const TemporaryFolder folder;
  const fs::path wanted = folder.path() / "toy";
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  const auto name = [&](const std::string& config) {
    return OutputFolder::open_new(wanted, by_name, config).path().filename().string();
  };
  add_run(wanted, false);
  CHECK(name("a = 1\n") == "toy-2");  // who knows what it is
  folder.write("toy/config.toml", "a = 1\n");
  CHECK(name("a = 1\n") == "toy");
  CHECK(name("a = 2\n") == "toy-2");
  CHECK(name("") == "toy-2");
  {
    const auto running = OutputFolder::open_new(wanted, by_name, "a = 1\n");
    CHECK(name("a = 1\n") == "toy-2");
  }
  flock_fails_with = ENOLCK;  // who knows whether it runs
  CHECK(name("a = 1\n") == "toy-2");
  flock_fails_with = 0;
  folder.write("toy/summary.json", "{}");  // it has ended
  CHECK(name("a = 1\n") == "toy-2");
  fs::remove(wanted / "summary.json");
  CHECK(name("a = 1\n") == "toy");
  add_run(wanted, true);
  CHECK(name("a = 1\n") == "toy-2");
}

TEST_CASE("output: what cannot be written is reported with the system's reason, and what was there stays") {
  const TemporaryFolder folder;
  const std::string file = folder.write("summary.json", "old");
  const auto refusal = [](const std::string& path) { return thrown_by([&] { vernier::write_file(path, "new"); }); };
  CHECK(refusal(folder / "none/x") == failed(folder / "none/x" + ": cannot be written: No such file or directory"));
  if (can_limit_files) {
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    const rlimit two_bytes{2, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &two_bytes);
    const auto trouble = refusal(file);
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    CHECK(trouble == failed(file + ": cannot be written: File too large"));
    CHECK(read_text(file) == "old");
  }
  fs::create_symlink("/dev/full", file + "." + std::to_string(::getpid()) + ".partial");
  CHECK(refusal(file) == Thrown{});  // the link is not followed
  CHECK(read_text(file) == "new");
  fs::create_directories(folder.path() / "folder" / "full");
  CHECK(refusal(folder / "folder") == failed(folder / "folder" + ": cannot be written: Is a directory"));
}

TEST_CASE("output: a lock that is a link is not followed") {
  const TemporaryFolder folder;
  folder.write("precious", "kept");
  fs::create_directories(folder.path() / "toy");
  fs::create_symlink(folder.path() / "precious", folder.path() / "toy" / ".lock");
  const auto refusal = thrown_by([&] { OutputFolder::open_new(folder.path() / "toy", by_name); });
  CHECK(refusal.kind == 2);
  CHECK(says(refusal.text, (folder / "toy/.lock") + ": Too many levels of symbolic links"));
  CHECK(fs::file_size(folder.path() / "precious") == 4);
}
