// monitor/mlflow: the files of a store, and where a resumed run goes on.
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/host.h>

#include "monitored.h"
#include "thrown.h"

namespace mlflow_test {

namespace {

namespace fs = std::filesystem;

// The folders of the runs of an experiment.
std::vector<fs::path> runs_in(const fs::path& experiment) {
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(experiment)) {
    if (entry.is_directory()) runs.push_back(entry.path());
  }
  return runs;
}

// "value step" of each line of a metric, without the time.
std::string points(const fs::path& run, const std::string& metric) {
  std::ifstream in(run / "metrics" / metric);
  std::string points;
  for (std::string time, value, step; in >> time >> value >> step;) {
    CHECK(time.size() == 13);  // milliseconds since 1970
    points += value + "@" + step + " ";
  }
  return points;
}

}  // namespace

TEST_CASE("mlflow: a run is an experiment's folder with metrics, parameters and its state") {
  const TemporaryFolder folder;
  folder.write("config.toml", "[run]\nname = \"quick\"\n[optimizer]\nuse = \"adamw\"\nlearning_rate = 0.5\n");
  Monitored monitored(folder, "monitor/mlflow");
  monitored.run.metrics.set("top/5 share", 0.25);
  monitored.run.metrics.set("top_5 share", 0.5);
  monitored.train(2);
  monitored.validate(1.5);
  const auto experiment = folder.path() / "mlruns" / "0";
  const auto runs = runs_in(experiment);
  REQUIRE(runs.size() == 1);
  const auto id = runs[0].filename().string();
  CHECK(id.size() == 32);
  CHECK(says(read_text(experiment / "meta.yaml"), "name: 'Default'\n"));
  CHECK(says(read_text(runs[0] / "meta.yaml"), "\nrun_id: '" + id + "'\nrun_name: 'quick'\n"));
  CHECK(says(read_text(runs[0] / "meta.yaml"), "\nend_time: null\n"));
  CHECK(says(read_text(runs[0] / "meta.yaml"), "\nstatus: 1\n"));
  monitored.end();
  CHECK(says(read_text(runs[0] / "meta.yaml"), "\nstatus: 3\n"));
  CHECK(points(runs[0], "loss") == "0@1 1@2 ");
  CHECK(points(runs[0], "validation_loss") == "1.5@2 ");
  CHECK(points(runs[0], "top_5_share") == "0.25@1 0.25@2 ");
  CHECK(points(runs[0], "top_5_share_2") == "0.5@1 0.5@2 ");
  CHECK(read_text(runs[0] / "params" / "optimizer.learning_rate") == "0.5");
  CHECK(read_text(runs[0] / "tags" / "mlflow.runName") == "quick");
}

TEST_CASE("mlflow: a resumed run goes on in its folder, without what came after its checkpoint") {
  const TemporaryFolder folder;
  vernier::State saved;
  {
    Monitored killed(folder, "monitor/mlflow");
    killed.train(4);
    saved = killed.plugin->save();
    killed.train(6);
    killed.plugin->save();
  }
  const auto runs = runs_in(folder.path() / "mlruns" / "0");
  REQUIRE(runs.size() == 1);
  CHECK(points(runs[0], "loss") == "0@1 1@2 2@3 3@4 4@5 5@6 ");
  std::ofstream(runs[0] / "metrics" / "loss", std::ios::app) << "17000";
  Monitored resumed(folder, "monitor/mlflow", {}, 4, &saved);
  resumed.train(5);
  vernier::HostApi::emit(resumed.bus, vernier::Event::RunFailed, resumed.run);
  CHECK(runs_in(folder.path() / "mlruns" / "0").size() == 1);
  CHECK(points(runs[0], "loss") == "0@1 1@2 2@3 3@4 4@5 ");
  CHECK(says(read_text(runs[0] / "meta.yaml"), "\nstatus: 4\n"));
}

TEST_CASE("mlflow: runs share a store and an experiment by its name") {
  const TemporaryFolder folder, store;
  const vernier::Table options = {{"store", toml_text(store.path().string())}, {"experiment", toml_text("it's mine")}};
  for (int i = 0; i < 2; ++i) {
    Monitored monitored(folder, "monitor/mlflow", options);
    monitored.step();
    monitored.end();
  }
  const auto experiments = runs_in(store.path());
  REQUIRE(experiments.size() == 1);
  CHECK(experiments[0].filename().string().size() == 18);
  CHECK(says(read_text(experiments[0] / "meta.yaml"), "name: 'it''s mine'\n"));
  CHECK(runs_in(experiments[0]).size() == 2);
}

TEST_CASE("mlflow: a store that cannot be made detaches it with a reason, and empty names are refused") {
  static std::vector<std::string> warnings;
  warnings.clear();
  vernier::set_log_sink([](vernier::Level, const std::string&, const std::string& text) { warnings.push_back(text); });
  const TemporaryFolder folder;
  folder.write("mlruns", "a file");
  Monitored monitored(folder, "monitor/mlflow");
  monitored.train(2);
  monitored.end();
  vernier::set_log_sink(nullptr);
  REQUIRE(warnings.size() == 1);
  CHECK(says(warnings[0], "(the monitor is detached, the run goes on)"));
  for (const char* key : {"store", "experiment"}) {
    CHECK(thrown_by([&] { make_plugin<vernier::Monitor>("monitor/mlflow", {{key, toml_text("")}}); }).kind == 2);
  }
}

}  // namespace mlflow_test
