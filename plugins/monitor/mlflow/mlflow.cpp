// mlflow: writes the run into a database of MLflow, which `mlflow ui --backend-store-uri sqlite:///STORE` shows.
//   store = "mlflow.db"       the database; a relative path is in the run's output folder
//   experiment = "Default"    the experiment that the run belongs to; it is made if there is none
//   every = 1                 steps between records; a step with notices and the last planned step always have one
// Metrics are the numbers of docs/reference/metrics.md, parameters the options of the run. One store may have many
// runs, so that MLflow compares them. A resumed run goes on in the same run of the store, without the values after its
// checkpoint; its start, name and tags stay. A run or an experiment that is deleted in MLflow is refused, as MLflow
// does. In names, characters other than letters, digits, "_", "-" and "." become "_". If the disk is full, or MLflow
// has locked the database, values wait in memory. The tables are those of MLflow 2.0 (schema.inc, of alembic
// 97727af70f4d): a later MLflow adds its own when it opens the file. Source: mlflow/store/db_migrations and
// mlflow/store/tracking/sqlalchemy_store.py, MLflow 3.17.
#include <sqlite3.h>
#include <vernier/append_file.h>
#include <vernier/record_monitor.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <system_error>

#include "service/database/sqlite.h"
#include "shared/hyper_parameters.h"

namespace {

namespace fs = std::filesystem;
using serve::DatabaseError;
using serve::execute;
using serve::Statement;
using serve::transaction;
using vernier::Run;

std::string key_of(const std::string& name) {
  std::string key;
  for (const char c : name) {
    const bool is_accepted = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
    key += is_accepted ? c : '_';
  }
  return key == "." || key == ".." ? "_" : key;
}

// 32 hexadecimal digits, as MLflow's own. Not from the generators of the run, whose numbers are those of the training.
std::string new_id() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 32; ++i) id += "0123456789abcdef"[device() % 16];
  return id;
}

constexpr const char* schema =
#include "schema.inc"
    ;

constexpr std::size_t most_waiting = 100'000;  // values

// The database is locked, or its disk is full: this may pass.
bool may_pass(const serve::DatabaseError& error) {
  return error.code == SQLITE_FULL || error.code == SQLITE_IOERR || error.code == SQLITE_BUSY;
}

class Store final : public vernier::RecordSink {
 public:
  // id: of the run that is resumed, "" for a new one; new_id: if that is not in the store.
  Store(fs::path file, const std::string& experiment, const Run& run, const std::string& id, const std::string& new_id,
        vernier::AppendFile::Warn warn)
      : file_(std::move(file)), warn_(std::move(warn)), id_(id) {
    fs::create_directories(file_.parent_path());
    sqlite3* opened = nullptr;
    const int result = ::sqlite3_open(file_.c_str(), &opened);
    database_.reset(opened, &::sqlite3_close);
    try {
      if (result != SQLITE_OK) throw DatabaseError(opened);
      ::sqlite3_busy_timeout(opened, 5000);
      execute(opened, "PRAGMA cache_size = -100");  // KiB: a longer run does not need more
      transaction(opened, [&] {
        make_tables();
        if (id_.empty() || !goes_on(run.step)) begin(experiment, run, new_id);
        write_parameters(run);
      });
      ::sqlite3_busy_timeout(opened, 1000);  // while a run trains, values can wait
    } catch (const DatabaseError& error) {
      if (error.code == SQLITE_FULL) throw std::system_error(ENOSPC, std::generic_category(), file_.string());
      vernier::refuse(file_.string() + ": " + error.what());
    }
  }

  void write(const vernier::Record& record) override {
    for (const auto& [metric, value] : record.entries) {
      const auto time = static_cast<std::int64_t>(record.time * 1e3);
      if (waiting_.size() < most_waiting) {
        waiting_.push_back({key_of(&metric->name), value, time, record.step});
      } else {
        lost_ += 1;
      }
    }
  }

  // Writes the waiting values. After a failure it tries again at most once a second.
  void flush() override {
    const auto now = std::chrono::steady_clock::now();
    if (waiting_.empty() || (is_failing_ && now < next_try_)) return;
    next_try_ = now + std::chrono::seconds(1);
    try {
      transaction(database_.get(), [this] { write_waiting(); });
      waiting_.clear();
      if (is_failing_) warn_(file_.string() + ": can be written again; values that are missing: " + take(lost_));
      is_failing_ = false;
    } catch (const DatabaseError& error) {
      if (!may_pass(error)) throw;
      if (!is_failing_) {
        warn_(c10::str(file_.string(), ": ", error.what(), "; values wait in memory until it can be, and those beyond ",
                       most_waiting, " are lost"));
      }
      is_failing_ = true;
    }
  }

  vernier::State save() const override {
    vernier::State state;
    state.put("run_id", id_);
    return state;
  }

  void end(const Run& run, bool has_failed) override {
    const char* status = has_failed ? "FAILED" : run.is_stopping() ? "KILLED" : "FINISHED";
    next_try_ = {};
    flush();
    if (const auto missing = lost_ + std::ssize(waiting_); missing > 0) {
      warn_(c10::str(file_.string(), ": values that are missing at its end: ", missing));
    }
    try {
      Statement change(database_.get(), "UPDATE runs SET status = ?, end_time = ? WHERE run_uuid = ?");
      change.bind(std::string(status)).bind(milliseconds()).bind(id_).run();
    } catch (const DatabaseError& error) {
      throw std::system_error(ENOSPC, std::generic_category(), file_.string() + ": " + error.what());
    }
  }

 private:
  struct Value {
    const std::string* key;
    double value;
    std::int64_t time, step;
  };

  static std::int64_t milliseconds() { return static_cast<std::int64_t>(vernier::seconds_since_1970() * 1e3); }
  static std::string take(std::int64_t& number) { return std::to_string(std::exchange(number, 0)); }

  Statement statement(const char* text) const { return Statement(database_.get(), text); }

  // A newer MLflow adds its tables and columns when it opens the file; what is written here stays as it is.
  void make_tables() const {
    auto tables = statement("SELECT count(*), count(CASE WHEN name = 'alembic_version' THEN 1 END) FROM sqlite_master");
    tables.step();
    if (tables.integer(1) > 0) return;
    if (tables.integer(0) > 0) {
      vernier::refuse("'" + file_.string() +
                      "' is a database of another program; name another file as [[monitor]] store");
    }
    execute(database_.get(), schema);
    auto first = statement("INSERT INTO experiments VALUES(0, 'Default', ?, 'active', ?, ?)");
    first.bind(artifacts_of(0)).bind(milliseconds()).bind(milliseconds()).run();
  }

  std::string artifacts_of(std::int64_t experiment) const {
    return (file_.parent_path() / "mlartifacts" / std::to_string(experiment)).string();
  }

  // Start, name, tags and experiment of a run belong to MLflow once the run has begun.
  bool goes_on(std::int64_t last_step) const {
    auto found = statement("SELECT lifecycle_stage FROM runs WHERE run_uuid = ?");
    if (!found.bind(id_).step()) return false;
    if (found.text(0) == "deleted") {
      vernier::refuse("the run " + id_ + " is deleted in MLflow; to go on in it: mlflow runs restore --run-id " + id_);
    }
    for (const auto* change :
         {"UPDATE runs SET status = 'RUNNING', end_time = NULL WHERE run_uuid = ?1",
          "DELETE FROM metrics WHERE run_uuid = ?1 AND step > ?2", "DELETE FROM latest_metrics WHERE run_uuid = ?1",
          "INSERT INTO latest_metrics(key, value, timestamp, step, is_nan, run_uuid) "
          "SELECT key, value, timestamp, step, is_nan, run_uuid FROM (SELECT *, row_number() OVER "
          "(PARTITION BY key ORDER BY step DESC, timestamp DESC, value DESC) AS place "
          "FROM metrics WHERE run_uuid = ?1) WHERE place = 1"}) {
      statement(change).bind(id_).bind(last_step).run();
    }
    return true;
  }

  void begin(const std::string& name, const Run& run, const std::string& id) {
    id_ = id;
    const auto experiment = experiment_of(name);
    statement(
        "INSERT INTO runs(run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time, "
        "source_version, lifecycle_stage, artifact_uri, experiment_id) "
        "VALUES(?, ?, 'LOCAL', 'vernier', '', '', 'RUNNING', ?, '', 'active', ?, ?)")
        .bind(id_)
        .bind(run.name)
        .bind(milliseconds())
        .bind((fs::path(artifacts_of(experiment)) / id_ / "artifacts").string())
        .bind(experiment)
        .run();
    for (const auto& [key, value] : {std::pair<std::string, std::string>{"mlflow.runName", run.name},
                                     {"mlflow.source.name", "vernier"},
                                     {"mlflow.source.type", "LOCAL"}}) {
      statement("INSERT INTO tags(key, value, run_uuid) VALUES(?, ?, ?)").bind(key).bind(value).bind(id_).run();
    }
  }

  std::int64_t experiment_of(const std::string& name) const {
    auto found = statement("SELECT experiment_id, lifecycle_stage FROM experiments WHERE name = ? ORDER BY 2, 1");
    if (found.bind(name).step()) {
      if (found.text(1) != "deleted") return found.integer(0);
      vernier::refuse("the experiment '" + name +
                      "' is deleted in MLflow; name another, or restore it: mlflow "
                      "experiments restore --experiment-id " +
                      found.text(0));
    }
    auto next = statement("SELECT max(experiment_id) + 1 FROM experiments");
    next.step();
    const auto id = next.integer(0);
    statement(
        "INSERT INTO experiments(experiment_id, name, artifact_location, lifecycle_stage, creation_time, "
        "last_update_time) VALUES(?, ?, ?, 'active', ?, ?)")
        .bind(id)
        .bind(name)
        .bind(artifacts_of(id))
        .bind(milliseconds())
        .bind(milliseconds())
        .run();
    return id;
  }

  void write_parameters(const Run& run) const {
    for (const auto& [name, parameter] : vernier::hyper_parameters(run.output)) {
      const auto* number = std::get_if<double>(&parameter);
      const auto* flag = std::get_if<bool>(&parameter);
      const auto text = number != nullptr ? vernier::shortest(*number)
                        : flag != nullptr ? std::string(*flag ? "True" : "False")
                                          : std::get<std::string>(parameter);
      statement("INSERT OR REPLACE INTO params(key, value, run_uuid) VALUES(?, ?, ?)")
          .bind(::key_of(name))
          .bind(text)
          .bind(id_)
          .run();
    }
  }

  // Numbers that are not finite are written as MLflow writes them.
  void write_waiting() {
    auto metric = statement(
        "INSERT OR IGNORE INTO metrics(key, value, timestamp, step, is_nan, run_uuid) VALUES(?, ?, ?, ?, ?, ?)");
    auto latest = statement(
        "INSERT OR REPLACE INTO latest_metrics(key, value, timestamp, step, is_nan, run_uuid) VALUES(?, ?, ?, ?, ?, "
        "?)");
    constexpr double most = std::numeric_limits<double>::max();
    for (const auto& [key, value, time, step] : waiting_) {
      const bool is_nan = std::isnan(value);
      for (auto* each : {&metric, &latest}) {
        each->bind(*key).bind(is_nan ? 0.0 : std::clamp(value, -most, most)).bind(time).bind(step);
        each->bind(std::int64_t{is_nan}).bind(id_).run();
      }
    }
  }

  // Names that become the same key are numbered.
  const std::string* key_of(const std::string* name) {
    auto& key = keys_[name];
    if (!key.empty()) return &key;
    const auto wanted = ::key_of(*name);
    key = wanted;
    for (int i = 2; !used_.insert(key).second; ++i) key = wanted + "_" + std::to_string(i);
    return &key;
  }

  fs::path file_;
  vernier::AppendFile::Warn warn_;
  std::string id_;
  std::shared_ptr<sqlite3> database_;
  std::map<const std::string*, std::string> keys_;
  std::set<std::string> used_;
  std::vector<Value> waiting_;
  std::int64_t lost_ = 0;
  bool is_failing_ = false;
  std::chrono::steady_clock::time_point next_try_;
};

class MlFlow final : public vernier::RecordMonitor {
 public:
  explicit MlFlow(vernier::Options& options)
      : RecordMonitor(options),
        store_(options.get("store", "mlflow.db", "database; a relative path is in the run's output folder")),
        experiment_(options.get("experiment", "Default", "that the run belongs to")) {
    if (store_.empty()) options.refuse("store", "must be the name of a file");
    if (experiment_.empty()) options.refuse("experiment", "must not be empty");
  }

 protected:
  std::unique_ptr<vernier::RecordSink> open(const Run& run, const vernier::State& saved) override {
    return std::make_unique<Store>(fs::absolute(fs::path(run.output) / store_), experiment_, run,
                                   saved.has("run_id") ? saved.text("run_id") : "", new_id_,
                                   [this](const std::string& text) { warn(text); });
  }

 private:
  std::string store_, experiment_, new_id_ = new_id();
};

}  // namespace

VERNIER_PLUGIN(MlFlow, "mlflow", "1.0.0")
