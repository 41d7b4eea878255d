// mlflow: writes the run into a file store of MLflow, which `mlflow ui --backend-store-uri STORE` shows.
//   store = "mlruns"          the store's folder; a relative path is in the run's output folder
//   experiment = "Default"    the experiment that the run belongs to; it is made if there is none
//   every = 1                 steps between records; a step with notices and the last step always have one
// Metrics are the numbers of docs/reference/metrics.md, parameters the options of the run. One store may have many
// runs, so that MLflow compares them. A resumed run goes on in the same run of the store, without the records after its
// checkpoint. In names, signs that MLflow does not accept become "_". If the disk is full, records wait in memory until
// there is room; those beyond 1 MB for each metric are lost. MLflow 3 opens such a store if MLFLOW_ALLOW_FILE_STORE is
// "true". Source of the format: mlflow/store/tracking/file_store.py of MLflow 2 and 3.
#include <vernier/checksum.h>
#include <vernier/sdk.h>
#include <vernier/whole_file.h>

#include <cctype>
#include <charconv>
#include <filesystem>
#include <map>
#include <random>

#include "shared/records/append_file.h"
#include "shared/records/hyper_parameters.h"
#include "shared/records/record_monitor.h"

namespace {

namespace fs = std::filesystem;
using vernier::AppendFile;
using vernier::Run;
using vernier::shortest;
constexpr auto now = vernier::seconds_since_1970;

std::string milliseconds(double seconds) {
  return std::to_string(static_cast<std::int64_t>(seconds * 1e3));
}

// A scalar of YAML that is a text whatever it has in it.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("''") : c == '\n' ? " " : std::string(1, c);
  return result + "'";
}

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

// A number that depends on the name alone, so that runs that begin at the same time find the same experiment.
std::string experiment_id(const std::string& name) {
  if (name == "Default") return "0";
  const auto number = std::stoull(vernier::checksum_of(name).substr(0, 15), nullptr, 16);
  return std::to_string(number % 900'000'000'000'000'000 + 100'000'000'000'000'000);
}

constexpr int running = 1, finished = 3, failed = 4, killed = 5;  // mlflow.entities.RunStatus

class Store final : public vernier::RecordSink {
 public:
  // id: of the run that is resumed, "" for a new one; new_id: if that is not in the store.
  Store(const fs::path& store, const std::string& experiment, const Run& run, const std::string& id,
        const std::string& new_id, AppendFile::Warn warn)
      : warn_(std::move(warn)), experiment_(experiment_id(experiment)), name_(run.name), begun_(now()) {
    const auto folder = fs::absolute(store).lexically_normal() / experiment_;
    fs::create_directories(folder);
    if (!fs::exists(folder / "meta.yaml")) write_experiment(folder, experiment);
    const bool goes_on = !id.empty() && fs::exists(folder / id / "meta.yaml");
    id_ = goes_on ? id : new_id;
    folder_ = folder / id_;
    for (const char* part : {"metrics", "params", "tags", "artifacts"}) fs::create_directories(folder_ / part);
    write_meta(running);
    vernier::write_whole(folder_ / "tags" / "mlflow.runName", name_);
    vernier::write_whole(folder_ / "tags" / "mlflow.source.name", "vernier");
    for (const auto& [name, parameter] : vernier::hyper_parameters(run.output)) {
      vernier::write_whole(folder_ / "params" / key_of(name), text_of_parameter(parameter));
    }
    if (goes_on) cut(run.step);
  }

  void write(const vernier::Record& record) override {
    for (const auto& [metric, value] : record.entries) {
      file_of(&metric->name)
          .append(milliseconds(record.time) + " " + shortest(value) + " " + std::to_string(record.step) + "\n");
    }
  }

  void flush() override {
    for (auto& [name, file] : files_) file->flush();
  }

  vernier::State save() const override {
    vernier::State state;
    state.put("run_id", id_);
    return state;
  }

  void end(const Run& run, bool has_failed) override {
    write_meta(has_failed ? failed : run.is_stopping() ? killed : finished);
    for (const auto& [key, file] : by_key_) file->warn_of_missing();
  }

 private:
  static std::string text_of_parameter(const std::variant<bool, double, std::string>& parameter) {
    if (const auto* number = std::get_if<double>(&parameter)) return shortest(*number);
    if (const auto* flag = std::get_if<bool>(&parameter)) return *flag ? "True" : "False";
    return std::get<std::string>(parameter);
  }

  static void write_experiment(const fs::path& folder, const std::string& name) {
    const auto time = milliseconds(now());
    vernier::write_whole(folder / "meta.yaml",
                         "artifact_location: " + quoted("file://" + folder.string()) + "\ncreation_time: " + time +
                             "\nexperiment_id: " + quoted(folder.filename().string()) + "\nlast_update_time: " + time +
                             "\nlifecycle_stage: active\nname: " + quoted(name) + "\n");
  }

  void write_meta(int status) const {
    vernier::write_whole(
        folder_ / "meta.yaml",
        "artifact_uri: " + quoted("file://" + (folder_ / "artifacts").string()) +
            "\nend_time: " + (status == running ? "null" : milliseconds(now())) +
            "\nentry_point_name: ''\nexperiment_id: " + quoted(experiment_) + "\nlifecycle_stage: active\nrun_id: " +
            quoted(id_) + "\nrun_name: " + quoted(name_) + "\nrun_uuid: " + quoted(id_) +
            "\nsource_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: " + milliseconds(begun_) +
            "\nstatus: " + std::to_string(status) + "\ntags: []\nuser_id: ''\n");
  }

  // A line is "time value step".
  void cut(std::int64_t last_step) const {
    for (const auto& file : fs::directory_iterator(folder_ / "metrics")) {
      vernier::keep_lines(file.path(), [&](std::string_view line, std::int64_t) {
        const auto space = line.rfind(' ');
        std::int64_t step = last_step + 1;
        if (space != line.npos) std::from_chars(line.data() + space + 1, line.data() + line.size(), step);
        return step <= last_step;
      });
    }
  }

  AppendFile& file_of(const std::string* name) {
    auto& file = files_[name];
    if (file == nullptr) {
      const auto wanted = key_of(*name);
      auto key = wanted;
      for (int i = 2; by_key_.count(key) != 0; ++i) key = wanted + "_" + std::to_string(i);
      by_key_[key] = file = std::make_shared<AppendFile>(folder_ / "metrics" / key, "records", warn_);
    }
    return *file;
  }

  AppendFile::Warn warn_;
  std::string experiment_, name_, id_;
  fs::path folder_;
  double begun_;
  std::map<const std::string*, std::shared_ptr<AppendFile>> files_;
  std::map<std::string, std::shared_ptr<AppendFile>> by_key_;
};

class MlFlow final : public vernier::RecordMonitor {
 public:
  explicit MlFlow(vernier::Options& options)
      : RecordMonitor(options),
        store_(options.get("store", "mlruns", "folder; a relative path is in the run's output folder")),
        experiment_(options.get("experiment", "Default", "that the run belongs to")) {
    if (store_.empty()) options.refuse("store", "must be the name of a folder");
    if (experiment_.empty()) options.refuse("experiment", "must not be empty");
  }

 protected:
  std::unique_ptr<vernier::RecordSink> open(const Run& run, const vernier::State& saved) override {
    return std::make_unique<Store>(fs::path(run.output) / store_, experiment_, run,
                                   saved.has("run_id") ? saved.text("run_id") : "", new_id_,
                                   [this](const std::string& text) { warn(text); });
  }

 private:
  std::string store_, experiment_, new_id_ = new_id();
};

}  // namespace

VERNIER_PLUGIN(MlFlow, "mlflow", "1.0.0")
