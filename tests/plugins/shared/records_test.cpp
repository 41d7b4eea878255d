// Parts that monitors with a writer thread share: the queue, the numbers of a record, the file.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>
#include <vernier/append_file.h>
#include <vernier/error.h>
#include <vernier/host.h>
#include <vernier/record_queue.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include "monitored.h"
#include "shared/hyper_parameters.h"
#include "small_run.h"
#include "temporary_folder.h"
#include "thrown.h"

namespace records_test {

namespace fs = std::filesystem;
using vernier::Collector;
using vernier::Record;
using vernier::RecordQueue;
using vernier::Run;

namespace {

std::map<std::string, double> values(const Record& record) {
  std::map<std::string, double> all;
  for (const auto& entry : record.entries) CHECK(all.emplace(entry.metric->name, entry.value).second);
  return all;
}

// A gate that the writer waits at.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

std::vector<std::string> warnings;
void collect_warnings(vernier::Level level, const std::string&, const std::string& text) {
  if (level >= vernier::Level::warning) warnings.push_back(text);
}
std::string said() {
  std::string all;
  for (const auto& each : warnings) all += each + "\n";
  return all;
}

// A disk that is full at will; is_there() is false where none can be mounted.
class SmallDisk {
 public:
  SmallDisk() : is_there_(::mount("none", folder_.path().c_str(), "tmpfs", 0, "size=256k") == 0) {}
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (is_there_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  bool is_there() const { return is_there_; }
  void fill() const {
    const int file = ::open((folder_ / "filler").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    const std::string page(4096, 'x');
    while (::write(file, page.data(), page.size()) > 0) {
    }
    ::close(file);
  }
  void make_room() const { fs::remove(folder_ / "filler"); }
  const TemporaryFolder& folder() const { return folder_; }
  // The text of all files with this name below it.
  std::string text_of(const std::string& name) const {
    std::string all;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
      if (entry.path().filename() == name) all += read_text(entry.path());
    }
    return all;
  }

 private:
  TemporaryFolder folder_;
  bool is_there_;
};

}  // namespace

TEST_CASE("records: a disk that is full at the start or at the end does not detach a monitor" *
          doctest::test_suite("service")) {
  struct Case {
    std::string id;
    vernier::Table options;
    std::string file;  // the file's text once there is room
  };
  const std::vector<Case> cases = {
      {"monitor/mlflow", {}, "mlflow.db"},
      {"monitor/prometheus", {{"listen", toml_text("")}, {"file", toml_text("m.prom")}}, "m.prom"},
      {"monitor/csv", {}, "metrics.csv"},
  };
  vernier::set_log_sink(collect_warnings);
  for (const auto& each : cases) {
    CAPTURE(each.id);
    warnings.clear();
    const SmallDisk disk;
    if (!disk.is_there()) {
      MESSAGE("no tmpfs can be mounted here: monitors on a full disk are not tried");
      break;
    }
    disk.fill();
    Monitored monitored(disk.folder(), each.id, each.options);
    monitored.train(2);
    disk.make_room();
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    monitored.train(4);
    monitored.plugin->save();
    disk.fill();
    monitored.train(6);
    monitored.end();
    CHECK(monitored.run.notices.empty());
    const bool has_lost = each.id != "monitor/csv";  // csv's lines wait for room
    CHECK_MESSAGE((said().find("No space left on device") != std::string::npos) == has_lost, said());
    CHECK_MESSAGE(said().find("detached") == std::string::npos, said());
    if (each.id != "monitor/prometheus") CHECK_MESSAGE(!disk.text_of(each.file).empty(), said());
  }
  vernier::set_log_sink(nullptr);
}

TEST_CASE("records: a table gets the columns for which there was no room when there is") {
  warnings.clear();
  vernier::set_log_sink(collect_warnings);
  const SmallDisk disk;
  if (disk.is_there()) {
    Monitored monitored(disk.folder(), "monitor/csv");
    monitored.train(20);
    monitored.plugin->save();
    disk.fill();
    monitored.validate(1.5);
    monitored.train(22);
    disk.make_room();
    monitored.end();
    const auto text = disk.text_of("metrics.csv");
    CHECK_MESSAGE(text.substr(0, text.find('\n')).ends_with(",validation_loss"), said(), text);
  }
  vernier::set_log_sink(nullptr);
}

TEST_CASE("records: the queue hands all records over in order, and drain() waits until they are flushed") {
  std::vector<std::int64_t> written;
  std::size_t flushed = 0;
  RecordQueue queue([&](const Record& record) { written.push_back(record.step); }, [&] { flushed = written.size(); });
  for (std::int64_t step = 1; step <= 500; ++step) {
    queue.push([&](Record& record) { record.step = step; });
    if (step % 100 != 0) continue;
    queue.drain();
    CHECK(flushed == static_cast<std::size_t>(step));
  }
  for (std::size_t i = 0; i < written.size(); ++i) CHECK(written[i] == static_cast<std::int64_t>(i + 1));
  CHECK(queue.dropped() == 0);
}

TEST_CASE("records: a writer that is stuck costs records and no time, and they are counted") {
  Gate gate;
  std::vector<std::int64_t> written;
  RecordQueue queue(
      [&](const Record& record) {
        gate.wait();
        written.push_back(record.step);
      },
      [] {});
  constexpr std::int64_t pushed = 3 * RecordQueue::capacity;
  for (std::int64_t step = 1; step <= pushed; ++step) queue.push([&](Record& record) { record.step = step; });
  CHECK(queue.dropped() >= static_cast<std::int64_t>(RecordQueue::capacity));
  gate.open();
  queue.drain();
  CHECK(static_cast<std::int64_t>(written.size()) + queue.dropped() == pushed);
  CHECK(std::ranges::is_sorted(written));
}

TEST_CASE(
    "records: what the writer throws reaches the training thread at the next record, and drain() throws nothing") {
  int writes = 0;
  RecordQueue queue(
      [&](const Record&) {
        writes += 1;
        throw vernier::Error("no room");
      },
      [] {});
  queue.push([](Record&) {});
  queue.drain();
  CHECK_THROWS_WITH(queue.push([](Record&) {}), "no room");
  CHECK_THROWS_WITH(queue.push([](Record&) {}), "no room");
  queue.drain();
  CHECK(writes == 1);
}

TEST_CASE("records: a record has the numbers of the run, from tensors too") {
  vernier::TrainerRun run;
  Collector collector;
  Record record;
  run.loss = torch::full({}, 0.25, torch::kFloat32);
  run.step = 10;
  run.updates = 9;  // the tenth is skipped
  run.samples = 80;
  run.epoch = 2;
  run.metrics.set("learning_rate", 0.5);
  run.metrics.set("half", torch::full({1}, 1.5, torch::kHalf));
  run.metrics.set_time("step_time", 0.125);
  run.notice("step_skipped", {}, "the update is skipped");
  collector.collect(run, Record::Kind::step, record);
  CHECK(record.step == 10);
  CHECK(record.time > 1.6e9);
  CHECK(values(record) == std::map<std::string, double>{{"loss", 0.25},
                                                        {"epoch", 2},
                                                        {"samples", 80},
                                                        {"updates", 9},
                                                        {"skipped_updates", 1},
                                                        {"learning_rate", 0.5},
                                                        {"half", 1.5},
                                                        {"step_time", 0.125}});
  REQUIRE(record.notices.size() == 1);
  CHECK(record.notices[0] == std::pair<std::string, std::string>("step_skipped", "the update is skipped"));

  vernier::HostApi::clear(run.metrics);  // the next step has other metrics, in other places
  run.notices.clear();
  run.metrics.set("half", 2.0);
  run.tokens = 800;
  run.samples = 88;
  run.found_inf = torch::zeros({});
  collector.collect(run, Record::Kind::step, record);
  const auto now = values(record);
  CHECK(now.at("half") == 2);
  CHECK(now.count("learning_rate") == 0);
  CHECK(now.at("tokens") == 800);
  CHECK(now.at("overflows") == 0);
  CHECK(now.at("samples_per_second") > 0);
  CHECK(record.notices.empty());

  collector.collect(run, Record::Kind::validation, record);
  CHECK(record.step == 10);
  CHECK(values(record) == std::map<std::string, double>{{"half", 2}});
  run.results_are_late = true;
  for (const bool may_skip : {false, true}) {
    if (may_skip) run.skip_update = torch::zeros({});  // the last step's result is not known yet
    collector.collect(run, Record::Kind::step, record);
    CHECK(values(record).at("skipped_updates") == (may_skip ? 0 : 1));
  }
}

TEST_CASE("records: a task's metric with the name of one of ours gets another one") {
  vernier::TrainerRun run;
  Collector collector;
  Record record;
  run.loss = torch::full({}, 0.25, torch::kFloat32);
  for (const char* name : {"loss", "step", "time", "epoch", "mine"}) run.metrics.set(name, 7.0);
  collector.collect(run, Record::Kind::step, record);
  const auto all = values(record);
  CHECK(all.at("loss") == 0.25);
  for (const char* name : {"metric_loss", "metric_step", "metric_time", "metric_epoch", "mine"})
    CHECK(all.at(name) == 7);
}

TEST_CASE("records: every metric of a run with many plugins is declared") {
  SmallRun small(from_toml({R"([run]
steps = 6
validate_every = 3
[task]
use = "mlp"
[precision]
use = "fp16"
[scaler]
use = "dynamic"
[accumulation]
micro_batches = 2
[optimizer]
use = "adamw"
[[callback]]
use = "clip_norm"
[checkpoint]
use = "none"
)"}));
  Collector collector;
  std::map<std::string, double> seen;
  const auto look = [&](Record::Kind kind) {
    return [&, kind](Run& run) {
      Record record;
      collector.collect(run, kind, record);
      seen.merge(values(record));
    };
  };
  small.on(vernier::Event::StepEnd, look(Record::Kind::step));
  small.on(vernier::Event::Validated, look(Record::Kind::validation));
  small.train();
  CHECK(seen.size() > 20);
  for (const auto& [name, value] : seen) CHECK_MESSAGE(small.run.metric_info(name) != nullptr, name);
}

TEST_CASE("records: options become hyper-parameters") {
  const TemporaryFolder folder;
  folder.write("config.toml", R"([run]
name = "quick"
deterministic = true
[task]
data = ["README.md", "docs"]
[optimizer]
use = "adamw"
learning_rate = 0.005
[[optimizer.group]]
match = ["*.bias"]
[[callback]]
use = "clip_norm"
max_norm = 2
[[callback]]
use = "clip_norm"
max_norm = 3
)");
  std::map<std::string, std::variant<bool, double, std::string>> all;
  for (const auto& [name, value] : vernier::hyper_parameters(folder.path().string())) all[name] = value;
  CHECK(std::get<std::string>(all.at("run.name")) == "quick");
  CHECK(std::get<bool>(all.at("run.deterministic")));
  CHECK(std::get<std::string>(all.at("task.data")).find("docs") != std::string::npos);
  CHECK(std::get<std::string>(all.at("optimizer.use")) == "adamw");
  CHECK(std::get<double>(all.at("optimizer.learning_rate")) == 0.005);
  CHECK(std::get<double>(all.at("callback.clip_norm.max_norm")) == 2);
  CHECK(std::get<double>(all.at("callback.clip_norm#2.max_norm")) == 3);
  CHECK(all.count("optimizer.group.table.match") == 1);
  CHECK(vernier::hyper_parameters("/nowhere").empty());
}

TEST_CASE("records: the first line of a file is there at once, also after a flush of nothing") {
  const TemporaryFolder folder;
  vernier::AppendFile file(folder / "lines", "lines", nullptr);
  file.flush();
  file.append("first\n");
  CHECK(read_text(folder / "lines") == "first\n");
  file.append("second\n");
  file.flush();
  CHECK(read_text(folder / "lines") == "first\nsecond\n");
}

TEST_CASE("records: digests.jsonl of a resumed run has its lines, also where a rewind has left two for a step") {
  const TemporaryFolder folder;
  const vernier::Table each_step = {{"every", toml_number(1)}};
  vernier::State saved;
  {
    Monitored killed(folder, "monitor/digest", each_step);
    killed.train(3);
    killed.run.step = killed.run.updates = 1;  // a rewind in memory
    killed.train(2);
    saved = killed.plugin->save();
    killed.train(4);
  }
  Monitored resumed(folder, "monitor/digest", each_step, 2, &saved);
  resumed.train(3);
  std::string steps;
  std::istringstream lines(read_text(folder / "digests.jsonl"));
  for (std::string line; std::getline(lines, line);) steps += line.at(std::string("{\"step\":").size());
  CHECK(steps == "12323");
}

TEST_CASE("records: a unit of bytes on a full disk waits, and 1 MB of them at most") {
  std::vector<std::string> warnings;
  vernier::AppendFile file("/dev/full", "records", [&](const std::string& text) { warnings.push_back(text); });
  const std::string unit(100'000, 'x');
  int kept = 0;
  for (int i = 0; i < 20; ++i) kept += file.append(unit) ? 1 : 0;
  CHECK(kept == 11);
  CHECK(file.missing() == 20);
  CHECK(warnings ==
        std::vector<std::string>{
            "/dev/full: cannot be written: No space left on device; records wait in memory until it can be, "
            "and those beyond 1 MB are lost"});
  CHECK_THROWS_WITH(vernier::AppendFile("/nowhere/file", "records", nullptr),
                    "/nowhere/file: cannot be opened: No such file or directory");
}

}  // namespace records_test
