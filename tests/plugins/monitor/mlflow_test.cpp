// monitor/mlflow: the tables of a store, what of them belongs to MLflow, and where a resumed run goes on. MLflow itself
// reads such a store in tests/oracles/mlflow_store.py.
#include <doctest/doctest.h>
#include <vernier/error.h>
#include <vernier/host.h>

#include <cmath>
#include <set>

#include "monitored.h"
#include "service/database/sqlite.h"
#include "thrown.h"

namespace mlflow_test {

namespace {

constexpr const char* monitor = "monitor/mlflow";

class Database {
 public:
  explicit Database(const std::string& path) {
    sqlite3* opened = nullptr;
    REQUIRE(::sqlite3_open(path.c_str(), &opened) == SQLITE_OK);
    database_.reset(opened, &::sqlite3_close);
  }
  // The rows of a query: cells with | between them, each row with a blank after it.
  std::string operator()(const std::string& query, int columns = 1) const {
    serve::Statement statement(database_.get(), query);
    std::string rows;
    while (statement.step()) {
      for (int i = 0; i < columns; ++i) rows += (i > 0 ? "|" : "") + statement.text(i);
      rows += " ";
    }
    return rows;
  }
  void change(const std::string& text) const { serve::execute(database_.get(), text); }
  std::string points(const std::string& key) const {
    return (*this)("SELECT value || '@' || step FROM metrics WHERE key = '" + key + "' ORDER BY step, timestamp");
  }

 private:
  std::shared_ptr<sqlite3> database_;
};

// A run of six steps that was killed, and what its checkpoint of step 4 has.
struct Killed {
  Killed() {
    Monitored killed(folder, monitor);
    killed.train(4);
    saved = killed.plugin->save();
    killed.train(6);
    killed.plugin->save();
  }
  std::string resumed() {
    Monitored monitored(folder, monitor, {}, 4, &saved);
    monitored.train(5);
    monitored.end();
    return (Database(folder / "mlflow.db"))("SELECT status FROM runs");
  }
  TemporaryFolder folder;
  vernier::State saved;
};

std::vector<std::string> warnings;
struct Warnings {
  Warnings() {
    warnings.clear();
    vernier::set_log_sink([](vernier::Level level, const std::string&, const std::string& text) {
      if (level >= vernier::Level::warning) warnings.push_back(text);
    });
  }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  ~Warnings() { vernier::set_log_sink(nullptr); }
};

}  // namespace

TEST_CASE("mlflow: a run has metrics with steps, parameters, tags and its state") {
  const TemporaryFolder folder;
  folder.write("config.toml", "[run]\nname = \"quick\"\n[optimizer]\nuse = \"adamw\"\nlearning_rate = 0.5\n");
  Monitored monitored(folder, monitor);
  monitored.run.metrics.set("top/5 share", 0.25);
  monitored.run.metrics.set("top_5 share", 0.5);
  monitored.train(2);
  monitored.plugin->save();
  const Database store(folder / "mlflow.db");
  CHECK(store("SELECT status, end_time IS NULL FROM runs", 2) == "RUNNING|1 ");
  monitored.run.metrics.set("odd", NAN);
  monitored.step(3);
  monitored.run.metrics.set("odd", -INFINITY);
  monitored.step(3);
  monitored.validate(1.5);
  monitored.end();
  CHECK(store("SELECT name, status, lifecycle_stage, length(run_uuid), experiment_id, end_time >= start_time FROM runs",
              6) == "quick|FINISHED|active|32|0|1 ");
  CHECK(store.points("loss") == "0.0@1 1.0@2 3.0@3 3.0@4 ");
  CHECK(store.points("validation_loss") == "1.5@4 ");
  CHECK(says(store.points("top_5_share"), "0.25@1 0.25@2 "));
  CHECK(says(store.points("top_5_share_2"), "0.5@1 0.5@2 "));
  CHECK(store("SELECT value, is_nan FROM metrics WHERE key = 'odd' ORDER BY step", 2) ==
        "0.0|1 -1.79769313486232e+308|0 ");
  CHECK(store("SELECT value, step FROM latest_metrics WHERE key = 'loss'", 2) == "3.0|4 ");
  CHECK(store("SELECT count(*) FROM metrics WHERE timestamp < 1600000000000") == "0 ");  // milliseconds since 1970
  CHECK(store("SELECT value FROM params WHERE key = 'optimizer.learning_rate'") == "0.5 ");
  CHECK(store("SELECT key, value FROM tags ORDER BY key", 2) ==
        "mlflow.runName|quick mlflow.source.name|vernier mlflow.source.type|LOCAL ");
  CHECK(store("SELECT artifact_uri LIKE '/%/mlartifacts/0/%/artifacts' FROM runs") == "1 ");
}

// The schema of a file is that of a version that MLflow knows, so that MLflow migrates it.
TEST_CASE("mlflow: the tables are those that MLflow makes") {
  const TemporaryFolder folder;
  Monitored(folder, monitor).end();
  const Database store(folder / "mlflow.db");
  CHECK(store("SELECT version_num FROM alembic_version") == "97727af70f4d ");
  CHECK(store("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name") ==
        "alembic_version experiment_tags experiments latest_metrics metrics model_version_tags model_versions params "
        "registered_model_tags registered_models runs tags ");
  CHECK(store("SELECT name FROM pragma_table_info('runs')") ==
        "run_uuid name source_type source_name entry_point_name user_id status start_time end_time source_version "
        "lifecycle_stage artifact_uri experiment_id deleted_time ");
  CHECK(store("SELECT name FROM pragma_table_info('metrics')") == "key value timestamp run_uuid step is_nan ");
  CHECK(store("SELECT experiment_id, name, lifecycle_stage FROM experiments", 3) == "0|Default|active ");
}

TEST_CASE("mlflow: a resumed run goes on in its run, without what came after its checkpoint") {
  Killed run;
  const Database store(run.folder / "mlflow.db");
  CHECK(store.points("loss") == "0.0@1 1.0@2 2.0@3 3.0@4 4.0@5 5.0@6 ");
  // All of these are MLflow's once the run has begun.
  store.change(
      "UPDATE runs SET name = 'best', start_time = 17; UPDATE tags SET value = 'best' WHERE key = 'mlflow.runName';"
      "INSERT INTO tags SELECT 'mine', 'kept', run_uuid FROM runs");
  store.change("ALTER TABLE experiments ADD COLUMN workspace TEXT NOT NULL DEFAULT 'default'");  // newer
  CHECK(run.resumed() == "FINISHED ");
  CHECK(store.points("loss") == "0.0@1 1.0@2 2.0@3 3.0@4 4.0@5 ");
  CHECK(store("SELECT value, step FROM latest_metrics WHERE key = 'loss'", 2) == "4.0|5 ");
  CHECK(store("SELECT name, start_time FROM runs", 2) == "best|17 ");
  CHECK(store("SELECT value FROM tags WHERE key IN ('mlflow.runName', 'mine') ORDER BY value") == "best kept ");
}

TEST_CASE("mlflow: what is deleted in MLflow stays so, and the run goes on without the monitor") {
  struct Case {
    const char *change, *status, *says;  // says: "" where a new run begins
  };
  const Case cases[] = {
      {"UPDATE runs SET lifecycle_stage = 'deleted', status = 'FAILED'", "FAILED ", "mlflow runs restore --run-id "},
      {"DELETE FROM runs", "FINISHED ", ""},  // mlflow gc
      {"DELETE FROM runs; UPDATE experiments SET lifecycle_stage = 'deleted'", "",
       "mlflow experiments restore --experiment-id 0"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.change);
    Killed run;
    const Database store(run.folder / "mlflow.db");
    store.change(each.change);
    const auto rows = store("SELECT count(*) FROM metrics");
    const Warnings collected;
    CHECK(run.resumed() == each.status);
    REQUIRE(warnings.size() == (*each.says == '\0' ? 0U : 1U));
    if (warnings.empty()) continue;
    CHECK(says(warnings[0], each.says));
    CHECK(says(warnings[0], "(the monitor is detached, the run goes on)"));
    CHECK(store("SELECT count(*) FROM metrics") == rows);
  }
}

TEST_CASE("mlflow: runs share a store and an experiment by its name, also two at once beside a reader") {
  const TemporaryFolder folder, other;
  const auto file = other.path() / "new" / "store.db";
  const vernier::Table options = {{"store", toml_text(file.string())}, {"experiment", toml_text("it's mine")}};
  Monitored first(folder, monitor, options), second(folder, monitor, options);
  const Database store(file.string());
  for (int i = 0; i < 50; ++i) {
    first.step();
    second.step();
    if (i % 10 == 0) first.plugin->save(), second.plugin->save();
    CHECK_FALSE(store("SELECT count(*) FROM metrics").empty());
  }
  first.end();
  second.end();
  CHECK(store("SELECT experiment_id, name FROM experiments ORDER BY 1", 2) == "0|Default 1|it's mine ");
  CHECK(store("SELECT count(*), max(step), experiment_id FROM runs JOIN metrics USING (run_uuid) "
              "WHERE key = 'loss' GROUP BY run_uuid",
              3) == "50|50|1 50|50|1 ");
}

TEST_CASE("mlflow: values wait while another program has locked the database") {
  const TemporaryFolder folder;
  const Warnings collected;
  Monitored monitored(folder, monitor);
  const Database store(folder / "mlflow.db");
  store.change("BEGIN IMMEDIATE");
  monitored.train(3);
  monitored.plugin->save();
  CHECK(says(warnings.at(0), "database is locked"));
  store.change("COMMIT");
  monitored.train(4);
  monitored.end();
  CHECK(store.points("loss") == "0.0@1 1.0@2 2.0@3 3.0@4 ");
}

TEST_CASE("mlflow: a store that cannot be used detaches it with a reason, and empty names are refused") {
  const std::pair<const char*, std::string> cases[] = {
      {"a file", "not a database"},                                       // another form
      {"SQLite", "is a database of another program; name another file"},  // with a table of its own
      {"", "Is a directory"},
  };
  for (const auto& [content, reason] : cases) {
    CAPTURE(reason);
    const TemporaryFolder folder;
    if (std::string(content) == "SQLite") {
      Database(folder / "mlflow.db").change("CREATE TABLE mine(a)");
    } else if (*content != '\0') {
      folder.write("mlflow.db", std::string(content) + std::string(4096, 'x'));
    } else {
      std::filesystem::create_directory(folder.path() / "mlflow.db");
    }
    const Warnings collected;
    Monitored monitored(folder, monitor);
    monitored.train(2);
    monitored.end();
    REQUIRE(warnings.size() == 1);
    CHECK_MESSAGE((says(warnings[0], reason) || says(warnings[0], "unable to open database file")), warnings[0]);
    CHECK(says(warnings[0], "(the monitor is detached, the run goes on)"));
  }
  for (const char* key : {"store", "experiment"}) {
    CHECK(thrown_by([&] { make_plugin<vernier::Monitor>(monitor, {{key, toml_text("")}}); }).kind == 2);
  }
}

}  // namespace mlflow_test
