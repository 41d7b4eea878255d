#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <vernier/checkpoint_folder.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/roles.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <future>
#include <map>
#include <new>
#include <random>
#include <set>

#include "faulty_disk.h"
#include "file_mode.h"
#include "plugin_library.h"
#include "temporary_folder.h"
#include "thrown.h"

using vernier::Checkpoint;
using vernier::Error;
using vernier::Event;
using vernier::Run;
using vernier::State;
using vernier::Table;
namespace fs = std::filesystem;

namespace {

thread_local int until_no_memory = 0;  // allocations; 0: no end is in sight
thread_local bool stays_out_of_memory = false;

// While it lives, the n-th allocation of this thread fails, and those after it if it lasts.
class NoMemory {
 public:
  NoMemory(int nth, bool lasts) {
    until_no_memory = nth;
    stays_out_of_memory = lasts;
  }
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;
  ~NoMemory() { until_no_memory = 0; }
  bool is_reached() const { return stays_out_of_memory ? until_no_memory == 1 : until_no_memory == 0; }
};

}  // namespace

// In the place of the C++ library's, for the whole program. A sanitizer's own would not fit one of them alone.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  const bool fails = until_no_memory == 1;
  if (until_no_memory > 0 && !(fails && stays_out_of_memory)) --until_no_memory;
  return fails ? nullptr : std::malloc(std::max<std::size_t>(size, 1));
}
void* operator new(std::size_t size) {
  void* bytes = operator new(size, std::nothrow);
  if (bytes == nullptr) throw std::bad_alloc();
  return bytes;
}
void operator delete(void* bytes) noexcept {
  std::free(bytes);
}
void operator delete(void* bytes, std::size_t) noexcept {
  std::free(bytes);
}

namespace {

std::vector<std::string> warnings;
void collect_warnings(vernier::Level level, const std::string&, const std::string& text) {
  if (level == vernier::Level::warning) warnings.push_back(text);
}

// Writes at once, so that a test sees what a save has done; further options override.
Table table(std::int64_t every, std::int64_t keep, Table more = {}) {
  more.try_emplace("every", vernier::Value{every, "test.toml:2"});
  more.try_emplace("keep_last", vernier::Value{keep, "test.toml:3"});
  more.try_emplace("async", vernier::Value{false, "test.toml:4"});
  return more;
}

template <class T>
vernier::Value value(T what) {
  return {what, "test.toml:5"};
}

// A run in a folder of its own, and its checkpoints.
struct Fixture {
  explicit Fixture(std::int64_t keep = 3, Table more = {})
      : plugin(make_plugin<Checkpoint>("checkpoint/rolling", table(10, keep, std::move(more)))) {
    vernier::HostApi::attach(bus, *plugin, false);
    run.name = "test";
    run.output = folder.path().string();
    vernier::HostApi::declare(run.metric_infos,
                              {{"accuracy", vernier::Better::higher}, {"f1", vernier::Better::higher}}, "task/toy");
    warnings.clear();
    vernier::set_log_sink(collect_warnings);
  }
  ~Fixture() { vernier::set_log_sink(nullptr); }

  void write(std::int64_t step) {
    run.step = step;
    plugin->write(snapshot_of(step), run);
  }
  static State snapshot_of(std::int64_t step) {
    State snapshot;
    snapshot.put("run/step", step);
    snapshot.put("model/weight", torch::full({16}, static_cast<double>(step), torch::kFloat32));
    return snapshot;
  }

  // As the trainer does after a step: a validation where there is one, the question, the save. True where it is saved.
  bool after_step(std::int64_t step, std::optional<double> validation_loss = std::nullopt) {
    run.step = step;
    if (validation_loss) {
      for (const char* name : {"validation_loss", "accuracy"}) run.metrics.set(name, *validation_loss);
      vernier::HostApi::emit(bus, Event::Validated, run);
    }
    if (!plugin->due(run)) return false;
    write(step);
    return true;
  }
  void tell(Event event) { vernier::HostApi::emit(bus, event, run); }
  std::string points_to(const char* link) const { return fs::read_symlink(checkpoints() / link).string(); }

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
  std::string file(const char* checkpoint) const { return (checkpoints() / checkpoint / "model.safetensors").string(); }

  // Without the links.
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(checkpoints())) {
      if (!entry.is_symlink()) found.insert(entry.path().filename().string());
    }
    return found;
  }
  const vernier::Notice* notice(const std::string& name) const {
    const auto found = std::ranges::find(run.notices, name, &vernier::Notice::name);
    return found == run.notices.end() ? nullptr : &*found;
  }

  TemporaryFolder folder;
  vernier::TrainerRun run;
  vernier::Bus bus;
  std::unique_ptr<Checkpoint> plugin;
};

using Names = std::set<std::string>;

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
  vernier::TrainerRun run;
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

TEST_CASE("rolling: the manifest says what it is, and only its owner reads it") {
  Fixture fixture;
  fixture.run.step = 10;
  auto snapshot = Fixture::snapshot_of(10);
  snapshot.put("run/configuration", std::string(R"({"run":{"steps":20}})"));
  snapshot.put("run/versions", std::string("task/mlp 1.0.0\noptimizer/sgd 1.2.0\n"));
  const auto before = ::umask(0);
  fixture.plugin->write(snapshot, fixture.run);
  ::umask(before);
  const auto stored = vernier::read_checkpoint((fixture.checkpoints() / "step-00000010").string());
  CHECK(stored.manifest.run == "test");
  CHECK(stored.manifest.step == 10);
  CHECK(stored.manifest.configuration == R"({"run":{"steps":20}})");
  REQUIRE(stored.manifest.plugins.size() == 2);
  CHECK(stored.manifest.plugins[1].id == "optimizer/sgd");
  CHECK(stored.manifest.plugins[1].version == "1.2.0");
  CHECK(stored.model.has("weight"));
  CHECK(stored.state.tensors.size() == 1);
  const auto read = fixture.plugin->read(fixture.run, "");
  REQUIRE(read);
  CHECK(read->text("run/configuration") == R"({"run":{"steps":20}})");
  CHECK(read->text("run/versions") == "task/mlp 1.0.0\noptimizer/sgd 1.2.0\n");
  CHECK(mode_of(fixture.checkpoints()) == 0700);
  CHECK(mode_of(fixture.checkpoints() / "step-00000010") == 0700);
  CHECK(mode_of(fixture.file("step-00000010")) == 0600);
}

TEST_CASE("rolling: a notice reports path, seconds and bytes") {
  Fixture fixture;
  fixture.write(10);
  REQUIRE(fixture.run.notices.size() == 1);
  const auto& notice = fixture.run.notices[0];
  CHECK(notice.name == "checkpoint_saved");
  REQUIRE(notice.details.size() == 4);
  CHECK(std::get<std::string>(notice.details[0].second) == (fixture.checkpoints() / "step-00000010").string());
  CHECK(notice.sentence == "saved " + (fixture.checkpoints() / "step-00000010").string());
  CHECK(std::get<double>(notice.details[1].second) > 0);
  CHECK(std::get<std::int64_t>(notice.details[2].second) >
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
  fs::resize_file(fixture.file("step-00000030"), fs::file_size(fixture.file("step-00000030")) - 1);
  fs::remove(fixture.file("step-00000020"));
  CHECK(fixture.read() == 10);
  REQUIRE(warnings.size() == 3);
  CHECK(says(warnings[0], fixture.file("step-00000030") + ": is cut short"));
  CHECK(says(warnings[1], fixture.file("step-00000020") + ": cannot be opened: No such file or directory"));
  CHECK(says(warnings[2], "resuming from " + (fixture.checkpoints() / "step-00000010").string()));

  std::ofstream(fixture.file("step-00000010")) << "damaged";
  CHECK(says(fixture.refusal(), "no checkpoint in " + fixture.checkpoints().string() + " can be read"));
  CHECK(says(fixture.refusal(), "step-00000030"));
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
  CHECK(says(warnings[0], "kept as abandoned-step-00000030"));
}

TEST_CASE("rolling: after going back, the later ones are set aside only once the new one is on the disk") {
  for (const int reason : {ENOSPC, EIO}) {
    for (int nth = 1;; ++nth) {
      CAPTURE(nth);
      Fixture fixture(1);
      fixture.write(30);
      bool has_failed = false, is_reached = false;
      {
        const faulty_disk::Watch watch(fixture.folder.path(), nth, reason);
        has_failed = thrown_by([&] { fixture.write(20); }) != Thrown{};
        is_reached = static_cast<int>(faulty_disk::calls.size()) >= nth;
      }
      const auto newest = fixture.read();
      CHECK((newest == 20 || (has_failed && newest == 30)));
      fixture.write(20);
      CHECK(fixture.names() == Names{"step-00000020", "abandoned-step-00000030"});
      CHECK(fixture.read() == 20);
      if (!is_reached) break;
      REQUIRE(nth < 200);
    }
  }
}

TEST_CASE("rolling: after going back, a checkpoint of the same step is replaced and the later ones set aside") {
  Fixture fixture(2);
  for (const std::int64_t step : {10, 20, 30}) fixture.write(step);
  std::ofstream(fixture.file("step-00000020")) << "of the past that was left";
  fixture.write(20);
  CHECK(fixture.names() == Names{"step-00000020", "abandoned-step-00000030"});
  CHECK(fixture.read() == 20);
  CHECK(fixture.points_to("latest") == "step-00000020");
}

TEST_CASE("rolling: another version of the format is refused, naming both, and no older checkpoint is read instead") {
  Fixture fixture;
  fixture.write(10);
  fixture.write(20);
  const auto manifest = fixture.checkpoints() / "step-00000020" / "manifest.json";
  std::ofstream(manifest) << R"({"format":"vernier.checkpoint","version":3)"
                          << R"(,"checksum":"bf398561e4bc923ec7fb2c106b287ef3"})" << '\n';
  const std::string message =
      manifest.string() +
      ": its format is version 3, and this Vernier reads version 2; read it with the Vernier that wrote it";
  CHECK(fixture.refusal() == message);
  CHECK(fixture.refusal((fixture.checkpoints() / "step-00000020").string()) == message);
}

TEST_CASE("rolling: a path that is not a checkpoint is refused") {
  Fixture fixture;
  for (const std::string& path : {fixture.folder / "none", fixture.run.output}) {
    CHECK(fixture.refusal(path).starts_with(path + ": is neither a checkpoint"));
  }
}

TEST_CASE("rolling: a flight recorder's capsule is refused, and not what has no report") {
  Fixture fixture;
  const auto capsule = fixture.folder / "step-00000010";
  auto state = Fixture::snapshot_of(10);
  state.tensors.erase("model/weight");
  const vernier::Tensors model{{"weight", torch::full({16}, 10.0, torch::kFloat32)}};
  vernier::CheckpointManifest about;
  about.step = 10;
  vernier::write_checkpoint(capsule, about, model, state.tensors);
  CHECK(fixture.read(capsule) == 10);
  state.put("capsule/report", std::string("{}"));
  vernier::write_checkpoint(capsule, about, model, state.tensors);
  CHECK(thrown_by([&] { fixture.plugin->read(fixture.run, capsule); }) ==
        configuration(capsule +
                      ": is a capsule of callback/flight_recorder, kept in the middle of a step; look at it with "
                      "vernier replay " +
                      capsule + ", and resume from a checkpoint of the run"));
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

TEST_CASE("rolling: a folder of checkpoints that is a link, or that others may write to, is neither read nor touched") {
  Fixture fixture;
  fixture.write(10);
  fs::create_directory(fixture.checkpoints() / ".tmp-a1b2c3");
  const auto check_refused = [&](const char* why) {
    CHECK(says(fixture.refusal(), why));
    CHECK(says(thrown_by([&] { fixture.write(20); }).text, why));
    CHECK(fixture.names() == Names{"step-00000010", ".tmp-a1b2c3"});
  };
  fs::permissions(fixture.checkpoints(), fs::perms::group_write, fs::perm_options::add);
  check_refused("can be written to by others");
  fs::permissions(fixture.checkpoints(), fs::perms::group_write, fs::perm_options::remove);
  fs::rename(fixture.checkpoints(), fixture.folder.path() / "elsewhere");
  fs::create_directory_symlink(fixture.folder.path() / "elsewhere", fixture.checkpoints());
  check_refused("is a symbolic link");
  fs::remove(fixture.checkpoints());
  fs::rename(fixture.folder.path() / "elsewhere", fixture.checkpoints());
  CHECK(fixture.read() == 10);
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
  REQUIRE(order.size() == 11);
  CHECK(order[0].starts_with("mkdir"));
  CHECK(order[1].starts_with("mkdtemp .tmp-"));
  CHECK(order[2] == "fsync model.safetensors");
  CHECK(order[3] == "fsync state.safetensors");
  CHECK(order[4] == "fsync " + fixture.folder.path().filename().string());
  CHECK(order[5] == "fsync manifest.json");
  CHECK(order[6].starts_with("fsync .tmp-"));
  CHECK(order[7] == "rename step-00000020");
  CHECK(order[8] == "fsync checkpoints");
  CHECK(order[9] == "rename latest");
  CHECK(order[10] == "fsync checkpoints");
  CHECK(fixture.points_to("latest") == "step-00000020");
}

TEST_CASE("rolling: whichever allocation fails, the process lives, and the newest checkpoint that was whole is") {
  at::set_num_threads(1);
  for (const bool lasts : {false, true}) {
    bool is_reached = true;
    for (int nth = 1; is_reached; nth += lasts ? 7 : 1) {
      CAPTURE(lasts);
      CAPTURE(nth);
      Fixture fixture(1);
      fixture.write(10);
      fixture.run.step = 20;
      const auto snapshot = Fixture::snapshot_of(20);
      {
        const NoMemory missing(nth, lasts);
        try {
          fixture.plugin->write(snapshot, fixture.run);
        } catch (const std::exception&) {
        }
        is_reached = missing.is_reached();
      }
      {
        const NoMemory missing(nth, lasts);
        try {
          fixture.plugin->read(fixture.run, "");
        } catch (const std::exception&) {
        }
      }
      CHECK(fixture.read() >= 10);
      fixture.write(30);
      CHECK(fixture.names() == Names{"step-00000030"});
      REQUIRE(nth < 20000);
    }
  }
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
        CHECK(says(message, fixture.folder.path().string()));  // or the folder of its checkpoints
        CHECK(says(message, std::generic_category().message(reason)));
      }
      CHECK((message.empty() ? fixture.read() == 30 : fixture.read() >= 20));
      for (const auto& warning : warnings) CHECK(says(warning, "cannot be made a link"));
      for (const auto& name : fixture.names()) CHECK(name.starts_with("step-"));
      fixture.write(40);
      CHECK(fixture.names().size() == 2);
      CHECK(fixture.read() == 40);
      if (!reached) break;
      REQUIRE(nth < 200);
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
  CHECK(says(message, fixture.checkpoints().string()));
  CHECK(says(message, "No space left on device"));
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

TEST_CASE("rolling: it is due by the clock, where an epoch ends, and not where neither is asked for") {
  Fixture epochs(3, {{"every", value(std::int64_t{0})}, {"at_epoch_end", value(true)}});
  CHECK_FALSE(epochs.after_step(3));
  epochs.tell(Event::EpochEnd);
  CHECK(epochs.after_step(4));
  CHECK_FALSE(epochs.after_step(5));
  Fixture clock(3, {{"every", value(std::int64_t{0})}, {"every_minutes", value(1e-9)}});
  CHECK(clock.after_step(1));
  Fixture hours(3, {{"every", value(std::int64_t{0})}, {"every_minutes", value(60.0)}});
  CHECK_FALSE(hours.after_step(1));
}

TEST_CASE("rolling: what stays is the newest, the regular and the best, as a plain rule says") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 12; ++trial) {
    CAPTURE(trial);
    const auto last = static_cast<std::int64_t>(1 + random() % 3),
               regular = static_cast<std::int64_t>(random() % 3) * 20, best = static_cast<std::int64_t>(random() % 4);
    const bool highest = random() % 2 == 0;
    Table options = {{"keep_every", value(regular)}, {"keep_best", value(best)}};
    if (best > 0 && highest) options.insert({{"metric", value(std::string("accuracy"))}});
    Fixture fixture(last, std::move(options));
    std::map<std::int64_t, double> saved;  // step and score, as this test sees it; nan: without one
    for (std::int64_t step = 5; step <= 100; step += 5) {
      CAPTURE(step);
      const bool validates = random() % 3 != 0;
      const double loss = random() % 10 == 0 ? std::nan("") : static_cast<double>(random() % 50);
      const bool scored = validates && best > 0 && std::isfinite(loss);
      const auto rank = [&](double score) {  // how many saved ones are at least as good
        return std::ranges::count_if(saved, [&](const auto& other) {
          return !std::isnan(other.second) && (highest ? other.second >= score : other.second <= score);
        });
      };
      const bool is_best = scored && rank(loss) < best;
      const bool is_saved = fixture.after_step(step, validates ? std::optional(loss) : std::nullopt);
      CHECK(is_saved == (is_best || step % 10 == 0));
      if (!is_saved) continue;
      saved[step] = scored ? loss : std::nan("");
      std::set<std::int64_t> stay;
      for (auto each = saved.rbegin(); each != saved.rend() && static_cast<std::int64_t>(stay.size()) < last; ++each) {
        stay.insert(each->first);
      }
      std::vector<std::pair<double, std::int64_t>> order;
      for (const auto& [at, score] : saved) {
        if (!std::isnan(score)) order.emplace_back(highest ? -score : score, at);
        if (regular > 0 && at % regular == 0) stay.insert(at);
      }
      std::ranges::sort(order);
      for (std::size_t i = 0; i < std::min(order.size(), static_cast<std::size_t>(best)); ++i)
        stay.insert(order[i].second);
      std::erase_if(saved, [&](const auto& each) { return stay.count(each.first) == 0; });
      Names expected;
      for (const auto at : stay) expected.insert(vernier::checkpoint_name(at));
      CHECK(fixture.names() == expected);
      CHECK(fixture.points_to("latest") == vernier::checkpoint_name(step));
      if (best > 0 && !order.empty()) CHECK(fixture.points_to("best") == vernier::checkpoint_name(order[0].second));
    }
  }
}

TEST_CASE("rolling: the scores are remembered over a stop") {
  Fixture first(1, {{"keep_best", value(std::int64_t{1})}}), second(1, {{"keep_best", value(std::int64_t{1})}});
  CHECK(first.after_step(1, 0.5));
  CHECK_FALSE(first.after_step(2, 0.7));
  CHECK(first.after_step(10));
  second.plugin->load(first.plugin->save());
  second.run.output = first.run.output;
  CHECK_FALSE(second.after_step(11, 0.6));
  CHECK(second.after_step(12, 0.4));
  CHECK(first.points_to("best") == "step-00000012");
  CHECK(first.names() == Names{"step-00000012"});
}

TEST_CASE("rolling: the scores of another metric are forgotten, with a warning") {
  const Table best = {{"keep_best", value(std::int64_t{1})}};
  Table by_accuracy = best;
  by_accuracy.insert({"metric", value(std::string("accuracy"))});
  Fixture first(1, best), second(1, by_accuracy);
  CHECK(first.after_step(1, 0.5));
  second.plugin->check(second.run);
  second.plugin->load(first.plugin->save());
  REQUIRE(warnings.size() == 1);
  CHECK(
      says(warnings[0],
           "keep_best goes by the highest accuracy from now on, and forgets the scores by the lowest validation_loss"));
  CHECK(second.after_step(2, 0.4));
}

TEST_CASE("rolling: a metric that no validation measures is refused by name") {
  Fixture fixture(1, {{"keep_best", value(std::int64_t{1})}, {"metric", value(std::string("f1"))}});
  try {
    fixture.after_step(1, 0.5);
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.kind() == Error::Kind::configuration);
    CHECK(says(error.what(), "`metric` is \"f1\", which this run's validation does not measure; it measures"));
  }
}

namespace {

const Table in_background = {{"async", value(true)}};

Table with(Table more) {
  more.insert(in_background.begin(), in_background.end());
  return more;
}

// Makes the next save fail when it is on its way: its folder is there already, and is a file.
void block(const Fixture& fixture, const char* checkpoint) {
  std::ofstream(fixture.checkpoints() / checkpoint) << "in the way";
}

}  // namespace

TEST_CASE("rolling: in the background, what is saved is the state of the step, whatever is trained meanwhile") {
  Fixture fixture(9, in_background);
  auto snapshot = Fixture::snapshot_of(10);
  for (std::int64_t step = 10; step <= 50; step += 10) {
    fixture.run.step = step;
    snapshot.put("run/step", step);
    snapshot.tensors["model/weight"].fill_(static_cast<double>(step));
    fixture.plugin->write(snapshot, fixture.run);
    snapshot.tensors["model/weight"].fill_(-1);
  }
  fixture.tell(Event::RunEnd);
  for (std::int64_t step = 10; step <= 50; step += 10) {
    CHECK(fixture.read((fixture.checkpoints() / vernier::checkpoint_name(step)).string()) == step);
  }
  CHECK(std::ranges::count(fixture.run.notices, "checkpoint_saved", &vernier::Notice::name) == 5);
}

TEST_CASE("rolling: in the background, a failure ends the run at the next step, by name and reason") {
  Fixture fixture(3, in_background);
  fixture.write(10);
  fixture.tell(Event::RunEnd);
  block(fixture, "step-00000020");
  fixture.write(20);
  std::string message;
  for (int i = 0; i < 10000 && message.empty(); ++i) {
    ::usleep(1000);
    try {
      fixture.tell(Event::StepBegin);
    } catch (const Error& error) {
      message = error.what();
    }
  }
  CHECK(says(message, (fixture.checkpoints() / "step-00000020").string() + ": is there, and is not a checkpoint"));
  CHECK(fixture.read() == 10);
}

TEST_CASE("rolling: in the background, what failed for a moment is tried once more, and no more than once") {
  for (const Event when : {Event::StepBegin, Event::RunEnd, Event::RunFailed}) {
    CAPTURE(static_cast<int>(when));
    Fixture fixture(3, in_background);
    fixture.write(10);
    fixture.tell(Event::RunEnd);
    {
      const faulty_disk::Watch watch(fixture.checkpoints(), 4, EIO);
      fixture.write(20);
      for (int i = 0; i < 10000 && fixture.run.notices.size() == 1; ++i) {
        ::usleep(1000);
        fixture.tell(when);
      }
    }
    REQUIRE(warnings.size() == 1);
    CHECK(says(warnings[0], fixture.checkpoints().string()));
    CHECK(says(warnings[0], "Input/output error (the second try went well)"));
    CHECK(fixture.read() == 20);
    CHECK(fixture.names() == Names{"step-00000010", "step-00000020"});
    block(fixture, "step-00000030");
    fixture.write(30);
    const auto path = (fixture.checkpoints() / "step-00000030").string() + ": is there, and is not a checkpoint";
    CHECK(says(thrown_by([&] { fixture.tell(Event::RunEnd); }).text, path + " (twice)"));
    CHECK(warnings.size() == 1);
  }
}

TEST_CASE("rolling: a failure may be gone on from, but not at the end of the run") {
  for (const bool async : {false, true}) {
    CAPTURE(async);
    Fixture fixture(3, {{"on_failure", value(std::string("continue"))}, {"async", value(async)}});
    fixture.write(10);
    fixture.tell(Event::RunEnd);
    block(fixture, "step-00000020");
    fixture.write(20);
    fixture.write(30);
    fixture.tell(Event::RunEnd);
    REQUIRE(fixture.notice("checkpoint_failed") != nullptr);
    CHECK(
        says(std::get<std::string>(fixture.notice("checkpoint_failed")->details[0].second), "step-00000020: is there"));
    REQUIRE(warnings.size() >= 1);
    CHECK(says(warnings[0], "the next save tries again"));
    CHECK(fixture.read() == 30);
    block(fixture, "step-00000040");
    fixture.write(40);
    CHECK_THROWS_AS(fixture.tell(Event::RunEnd), Error);
    fixture.tell(Event::RunFailed);
    CHECK(fixture.read((fixture.checkpoints() / "step-00000030").string()) == 30);
  }
}

TEST_CASE("rolling: never two at once, the second waits for the first") {
  Fixture fixture(9, in_background);
  faulty_disk::Hold disk(fixture.folder.path());
  fixture.write(10);
  fixture.tell(Event::StepEnd);
  const auto* progress = fixture.notice("checkpoint_progress");
  REQUIRE(progress != nullptr);
  CHECK(std::get<double>(progress->details[0].second) >= 0);
  CHECK(std::get<double>(progress->details[0].second) <= 1);
  std::atomic<bool> is_let_go = false;
  const auto later = std::async(std::launch::async, [&] {
    ::usleep(100'000);
    is_let_go = true;
    disk.let_go();
  });
  CHECK(fixture.after_step(20));
  CHECK(is_let_go);
  CHECK(fixture.notice("checkpoint_saved") != nullptr);
  fixture.tell(Event::RunEnd);
  CHECK(fixture.names() == Names{"step-00000010", "step-00000020"});
  CHECK(fixture.notice("checkpoint_skipped") == nullptr);
}

TEST_CASE("rolling: never two at once, the second is left out with a notice, but not the last of a run") {
  Fixture fixture(9, with({{"in_flight", value(std::string("skip"))}}));
  {
    const faulty_disk::Hold disk(fixture.folder.path());
    fixture.write(10);
    CHECK_FALSE(fixture.after_step(20));
    fixture.tell(Event::StepBegin);
    CHECK(fixture.notice("checkpoint_skipped") != nullptr);
  }
  fixture.write(21);  // rolling is not asked whether a checkpoint is due
  fixture.tell(Event::RunEnd);
  CHECK(fixture.names() == Names{"step-00000010", "step-00000021"});
  CHECK(fixture.read() == 21);
}

TEST_CASE("none: writes nothing, reads nothing and says so") {
  const TemporaryFolder folder;
  vernier::TrainerRun run;
  run.output = folder.path().string();
  const auto plugin = make_plugin<Checkpoint>("checkpoint/none");
  warnings.clear();
  vernier::set_log_sink(collect_warnings);
  plugin->prepare(run);
  vernier::set_log_sink(nullptr);
  REQUIRE(warnings.size() == 1);
  CHECK(says(warnings[0], "cannot be resumed"));
  CHECK_FALSE(plugin->due(run));
  plugin->write({}, run);
  CHECK(fs::is_empty(folder.path()));
  CHECK_FALSE(plugin->read(run, ""));
  CHECK_THROWS_AS(plugin->read(run, "runs/other"), Error);
}
