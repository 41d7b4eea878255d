// The time that monitors add to a step where only overhead counts: a 32-32-10 network, batches of 8, float32, one
// thread. Bars: all monitors at every step within 30 microseconds; a record within 1 microsecond of the training
// thread.
#include <vernier/host.h>
#include <vernier/record_queue.h>

#include <ATen/Parallel.h>
#include <torch/utils.h>

#include <filesystem>

#include "compare.h"
#include "temporary_folder.h"
#include "vernier_loop.h"

namespace {

using vernier::Event;

// A loop that has begun. Its files are in a folder of the benchmark's.
class Monitored {
 public:
  explicit Monitored(const TemporaryFolder& folder, std::vector<std::string> monitors)
      : loop_(configuration(monitors)) {
    auto& run = loop_.run();
    run.output = folder / std::to_string(monitors.size()) + (monitors.empty() ? "" : "-" + monitors.front());
    run.quiet = true;  // the terminal's time is not ours
    std::filesystem::create_directories(run.output);
    vernier::HostApi::emit(loop_.bus(), Event::RunBegin, run);
  }
  void step() { loop_.step(); }

 private:
  static std::vector<std::string> configuration(const std::vector<std::string>& monitors) {
    std::vector<std::string> sets = {"task.use=mlp", "task.samples=1024", "task.validation=0.0", "optimizer.use=adamw",
                                     "callback.clip_norm.max_norm=1.0"};
    for (const auto& name : monitors) {
      sets.push_back("monitor." + name + (name == "prometheus" ? ".listen=127.0.0.1:0" : ".every=1"));
    }
    return sets;
  }
  VernierLoop loop_;
};

// The time of one record of 20 numbers, without what the writer does with it.
void measure_record() {
  vernier::TrainerRun run;
  run.loss = torch::zeros({});
  for (int i = 0; i < 12; ++i) run.metrics.set(("metric_number_" + std::to_string(i)).c_str(), 0.5);
  vernier::Collector collector;
  std::int64_t written = 0;
  vernier::RecordQueue queue([&](const vernier::Record& record) { written += record.step; }, [] {});
  const auto record = [&] {
    queue.push([&](vernier::Record& into) { collector.collect(run, vernier::Record::Kind::step, into); });
  };
  const auto run_many = [&](int count) {
    for (int i = 0; i < count; ++i) record();
    queue.drain();
  };
  compare("a record of 20 numbers into the queue", {{"record", record, run_many}}, /*rounds=*/200,
          /*steps_a_round=*/500);
}

}  // namespace

int main() {
  at::set_num_threads(1);
  torch::manual_seed(1);
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string&) {});
  measure_record();
  const TemporaryFolder folder;
  const std::vector<std::string> names = {"progress", "jsonl", "csv", "tensorboard", "prometheus", "mlflow"};
  std::vector<std::unique_ptr<Monitored>> loops;
  std::vector<Rival> rivals;
  const auto add = [&](const std::string& name, const std::vector<std::string>& monitors) {
    loops.push_back(std::make_unique<Monitored>(folder, monitors));
    rivals.push_back({name, [loop = loops.back().get()] { loop->step(); }});
  };
  add("no monitor", {});
  for (const auto& name : names) add("monitor/" + name, {name});
  add("all of them", names);
  compare("32-32-10 network, batch 8, clip_norm, one thread", rivals, /*rounds=*/60, /*steps_a_round=*/200);
}
