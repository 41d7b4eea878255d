#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <vernier/error.h>
#include <vernier/roles.h>
#include <vernier/safetensors.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <set>

#include "faulty_disk.h"
#include "plugin_library.h"
#include "temporary_folder.h"

using vernier::Checkpoint;
using vernier::Error;
using vernier::Run;
using vernier::State;
using vernier::Table;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> warnings;
void collect_warnings(vernier::Level level, const std::string&, const std::string& text) {
  if (level == vernier::Level::warning) warnings.push_back(text);
}

Table table(std::int64_t every, std::int64_t keep) {
  return {{"every", {every, "test.toml:2"}}, {"keep", {keep, "test.toml:3"}}};
}

// A run in a folder of its own, and its checkpoints.
struct Fixture {
  explicit Fixture(std::int64_t keep = 3) : plugin(make_plugin<Checkpoint>("checkpoint/rolling", table(10, keep))) {
    run.name = "test";
    run.output = folder.path().string();
    warnings.clear();
    vernier::set_log_sink(collect_warnings);
  }
  ~Fixture() { vernier::set_log_sink(nullptr); }

  void write(std::int64_t step) {
    run.step = step;
    State snapshot;
    snapshot.put("run/step", step);
    snapshot.put("model/weight", torch::full({16}, static_cast<double>(step), torch::kFloat32));
    plugin->write(snapshot, run);
  }

  // The step of what is read, -1 where there is nothing.
  std::int64_t read(const std::string& from = "") {
    const auto state = plugin->read(run, from);
    if (!state) return -1;
    const auto step = state->integer("run/step");
    CHECK(state->tensor("model/weight").eq(static_cast<double>(step)).all().item<bool>());
    return step;
  }

  std::string refusal(const std::string& from = "") {
    try {
      plugin->read(run, from);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  fs::path checkpoints() const { return folder.path() / "checkpoints"; }
  std::string file(const char* checkpoint) const { return (checkpoints() / checkpoint / "state.safetensors").string(); }

  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(checkpoints())) found.insert(entry.path().filename().string());
    return found;
  }

  TemporaryFolder folder;
  Run run;
  std::unique_ptr<Checkpoint> plugin;
};

using Names = std::set<std::string>;

mode_t mode_of(const fs::path& path) {
  struct stat status = {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return status.st_mode & 0777;
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("rolling: the newest checkpoints stay and are read") {
  Fixture fixture(2);
  CHECK(fixture.read() == -1);
  for (const std::int64_t step : {10, 20, 30}) fixture.write(step);
  CHECK(fixture.names() == Names{"step-00000020", "step-00000030"});
  CHECK(fixture.read() == 30);
  CHECK(fixture.read((fixture.checkpoints() / "step-00000020").string()) == 20);
  CHECK(fixture.read(fixture.run.output) == 30);
  fixture.write(123456789);
  CHECK(fixture.names() == Names{"step-00000030", "step-123456789"});
  CHECK(fixture.read() == 123456789);
}

TEST_CASE("rolling: it is due at multiples of every") {
  Run run;
  const auto due = [&](Checkpoint& plugin, std::int64_t step) {
    run.step = step;
    return plugin.due(run);
  };
  const auto often = make_plugin<Checkpoint>("checkpoint/rolling", table(10, 1));
  CHECK_FALSE(due(*often, 9));
  CHECK(due(*often, 10));
  const auto at_the_end = make_plugin<Checkpoint>("checkpoint/rolling", table(0, 1));
  CHECK_FALSE(due(*at_the_end, 10));
  const auto by_default = make_plugin<Checkpoint>("checkpoint/rolling");
  CHECK_FALSE(due(*by_default, 499));
  CHECK(due(*by_default, 500));
  CHECK_THROWS_AS(make_plugin<Checkpoint>("checkpoint/rolling", table(-1, 1)), Error);
  CHECK_THROWS_AS(make_plugin<Checkpoint>("checkpoint/rolling", table(1, 0)), Error);
}

TEST_CASE("rolling: the file says what it is, and only its owner reads it") {
  Fixture fixture;
  const auto before = ::umask(0);
  fixture.write(10);
  ::umask(before);
  const auto file = vernier::read_safetensors(fixture.file("step-00000010"));
  CHECK(
      file.metadata ==
      vernier::Metadata{{"format", "vernier.checkpoint 1"}, {"step", "10"}, {"run", "test"}, {"torch", TORCH_VERSION}});
  CHECK(mode_of(fixture.checkpoints()) == 0700);
  CHECK(mode_of(fixture.checkpoints() / "step-00000010") == 0700);
  CHECK(mode_of(fixture.file("step-00000010")) == 0600);
}

TEST_CASE("rolling: a notice tells path, seconds and bytes") {
  Fixture fixture;
  fixture.write(10);
  REQUIRE(fixture.run.notices.size() == 1);
  const auto& notice = fixture.run.notices[0];
  CHECK(notice.name == "checkpoint_saved");
  REQUIRE(notice.details.size() == 3);
  CHECK(std::get<std::string>(notice.details[0].second) == (fixture.checkpoints() / "step-00000010").string());
  CHECK(std::get<double>(notice.details[1].second) > 0);
  CHECK(std::get<std::int64_t>(notice.details[2].second) ==
        static_cast<std::int64_t>(fs::file_size(fixture.file("step-00000010"))));
}

TEST_CASE("rolling: a checkpoint of the same step is replaced") {
  Fixture fixture;
  fixture.write(10);
  std::ofstream(fixture.file("step-00000010")) << "damaged";
  fixture.write(10);
  CHECK(fixture.read() == 10);
  CHECK(fixture.names() == Names{"step-00000010"});
  CHECK(mode_of(fixture.file("step-00000010")) == 0600);
}

TEST_CASE("rolling: where the newest is damaged the one before is read, with the reason") {
  Fixture fixture;
  for (const std::int64_t step : {10, 20, 30}) fixture.write(step);
  fs::resize_file(fixture.file("step-00000030"), 100);
  fs::remove(fixture.file("step-00000020"));
  CHECK(fixture.read() == 10);
  REQUIRE(warnings.size() == 3);
  CHECK(mentions(warnings[0], fixture.file("step-00000030") + ": is cut short"));
  CHECK(mentions(warnings[1], fixture.file("step-00000020") + ": cannot be opened: No such file or directory"));
  CHECK(mentions(warnings[2], "resuming from " + (fixture.checkpoints() / "step-00000010").string()));

  std::ofstream(fixture.file("step-00000010")) << "damaged";
  CHECK(mentions(fixture.refusal(), "no checkpoint in " + fixture.checkpoints().string() + " can be read"));
  CHECK(mentions(fixture.refusal(), "step-00000030"));
}

TEST_CASE("rolling: a damaged newest one does not push out good ones") {
  Fixture fixture(1);
  fixture.write(30);
  fs::resize_file(fixture.file("step-00000030"), 100);
  fixture.write(20);
  CHECK(fixture.names() == Names{"step-00000020", "abandoned-step-00000030"});
  CHECK(fixture.read() == 20);
}

TEST_CASE("rolling: checkpoints that a run went back from are kept aside") {
  Fixture fixture(2);
  for (const std::int64_t step : {10, 20, 30}) fixture.write(step);
  fixture.write(25);
  CHECK(fixture.names() == Names{"step-00000020", "step-00000025", "abandoned-step-00000030"});
  CHECK(fixture.read() == 25);
  CHECK(fixture.read((fixture.checkpoints() / "abandoned-step-00000030").string()) == 30);
  REQUIRE(warnings.size() == 1);
  CHECK(mentions(warnings[0], "kept as abandoned-step-00000030"));
}

TEST_CASE("rolling: a newer format is refused, naming both, and not fallen back from") {
  Fixture fixture;
  fixture.write(10);
  fixture.write(20);
  vernier::save_safetensors(fixture.file("step-00000020"), {}, {{"format", "vernier.checkpoint 2"}});
  const std::string message = fixture.file("step-00000020") +
                              ": its format is 'vernier.checkpoint 2', this version reads 'vernier.checkpoint 1'; "
                              "resume with the version that wrote it";
  CHECK(fixture.refusal() == message);
  CHECK(fixture.refusal((fixture.checkpoints() / "step-00000020").string()) == message);
  vernier::save_safetensors(fixture.file("step-00000020"), {});
  CHECK(
      mentions(fixture.refusal((fixture.checkpoints() / "step-00000020").string()), "was not written as a checkpoint"));
}

TEST_CASE("rolling: a path that is no checkpoint is refused") {
  Fixture fixture;
  for (const std::string& path : {fixture.folder / "none", fixture.run.output}) {
    CHECK(fixture.refusal(path).starts_with(path + ": is neither a checkpoint"));
  }
}

TEST_CASE("rolling: what killed processes left is cleared away") {
  Fixture fixture;
  fs::create_directories(fixture.checkpoints() / ".tmp-a1b2c3");
  std::ofstream(fixture.checkpoints() / ".tmp-a1b2c3" / "state.safetensors") << "half";
  const TemporaryFolder elsewhere;
  std::ofstream(elsewhere / "precious") << "kept";
  fs::create_directory_symlink(elsewhere.path(), fixture.checkpoints() / ".tmp-link");
  fixture.write(10);
  CHECK(fixture.names() == Names{"step-00000010"});
  CHECK(fs::exists(elsewhere / "precious"));
}

TEST_CASE("rolling: bytes are on the disk before names") {
  Fixture fixture;
  fixture.write(10);
  std::vector<std::string> order;
  {
    const faulty_disk::Watch watch(fixture.folder.path());
    fixture.write(20);
    for (const auto& call : faulty_disk::calls) {
      if (!call.starts_with("write") && !call.starts_with("close")) order.push_back(call);
    }
  }
  REQUIRE(order.size() == 6);
  CHECK(order[0].starts_with("mkdir"));
  CHECK(order[1].starts_with("mkdtemp .tmp-"));
  CHECK(order[2] == "fsync state.safetensors");
  CHECK(order[3].starts_with("fsync .tmp-"));
  CHECK(order[4] == "rename step-00000020");
  CHECK(order[5] == "fsync checkpoints");
}

TEST_CASE("rolling: whichever system call fails, a whole checkpoint is there and nothing else") {
  for (const int reason : {ENOSPC, EIO}) {
    for (int nth = 1;; ++nth) {
      CAPTURE(nth);
      Fixture fixture(2);
      fixture.write(10);
      fixture.write(20);
      std::string message;
      bool reached = false;
      {
        const faulty_disk::Watch watch(fixture.folder.path(), nth, reason);
        try {
          fixture.write(30);
        } catch (const Error& error) {
          message = error.what();
        }
        reached = static_cast<int>(faulty_disk::calls.size()) >= nth;
      }
      if (!message.empty()) {
        CHECK(mentions(message, fixture.checkpoints().string()));
        CHECK(mentions(message, std::generic_category().message(reason)));
      }
      CHECK((message.empty() ? fixture.read() == 30 : fixture.read() >= 20));
      CHECK(warnings.empty());
      for (const auto& name : fixture.names()) CHECK(name.starts_with("step-"));
      fixture.write(40);
      CHECK(fixture.names().size() == 2);
      CHECK(fixture.read() == 40);
      if (!reached) break;
      REQUIRE(nth < 100);
    }
  }
}

TEST_CASE("rolling: the first checkpoint of a run needs its folder") {
  for (int nth = 1; nth <= 2; ++nth) {
    Fixture fixture;
    const faulty_disk::Watch watch(fixture.folder.path(), nth, EACCES);
    CHECK_THROWS_AS(fixture.write(10), Error);
  }
}

TEST_CASE("rolling: a full disk ends in an error, the last good one stays") {
  Fixture fixture;
  if (::mount("none", fixture.folder.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    MESSAGE("no tmpfs can be mounted here: a disk that fills up is not tried");
    return;
  }
  fixture.write(10);
  State large;
  large.put("weight", torch::ones({1 << 16}));
  fixture.run.step = 20;
  std::string message;
  try {
    fixture.plugin->write(large, fixture.run);
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(mentions(message, fixture.checkpoints().string()));
  CHECK(mentions(message, "No space left on device"));
  CHECK(fixture.names() == Names{"step-00000010"});
  CHECK(fixture.read() == 10);
  ::umount(fixture.folder.path().c_str());
}

TEST_CASE("rolling: killed at any moment, the newest is whole") {
  std::mt19937 random(1);
  Fixture fixture(2);
  fixture.write(1);
  for (int trial = 0; trial < 20; ++trial) {
    CAPTURE(trial);
    const std::int64_t before = fixture.read();
    const pid_t child = ::fork();
    if (child == 0) {
      for (std::int64_t step = before + 1;; ++step) fixture.write(step);
    }
    ::usleep(1000 + random() % 10000);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    warnings.clear();
    CHECK(fixture.read() >= before);
    CHECK(warnings.empty());
  }
  fixture.write(1'000'000);
  CHECK(fixture.names().size() == 2);
}

TEST_CASE("none: writes nothing, reads nothing and says so") {
  const TemporaryFolder folder;
  Run run;
  run.output = folder.path().string();
  const auto plugin = make_plugin<Checkpoint>("checkpoint/none");
  warnings.clear();
  vernier::set_log_sink(collect_warnings);
  plugin->prepare(run);
  vernier::set_log_sink(nullptr);
  REQUIRE(warnings.size() == 1);
  CHECK(mentions(warnings[0], "cannot be resumed"));
  CHECK_FALSE(plugin->due(run));
  plugin->write({}, run);
  CHECK(fs::is_empty(folder.path()));
  CHECK_FALSE(plugin->read(run, ""));
  CHECK_THROWS_AS(plugin->read(run, "runs/other"), Error);
}
