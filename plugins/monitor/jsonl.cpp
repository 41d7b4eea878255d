// jsonl: writes what the run measures, one line of JSON for each step and each validation, for plots and comparisons:
//   {"step":200,"loss":2.25,"scale":32768,"updates":199,"overflows":1,"notices":[{"name":"step_skipped","step":200}]}
//   {"step":200,"validation_loss":2.5}
// Each metric that was set in the step has its key. "updates" counts the applied updates. "overflows" counts the steps
// whose gradients were not finite; it stands from the first step that a scaler checked. "notices" stands where there
// are any. Numbers read back exactly; infinities and NaN, which JSON lacks, are "inf", "-inf" and "nan". A resumed run
// appends to the same file, which becomes the file of a run that was never stopped: it holds nothing about time or
// checkpoints. After a rewind in memory, the steps that come again have a second line, and the first of these has the
// notice "rewound".
// If the disk is full, lines wait in memory until there is room. Those beyond 1 MB are lost; a warning counts them.
//   file = "losses.jsonl"   in the run's output folder
//   every = 1               steps between lines; a step with notices and the last planned step always have a line
// On a GPU each line waits for the device.
#include <vernier/append_file.h>
#include <vernier/json_text.h>
#include <vernier/sdk.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;
using vernier::Event;
using vernier::Run;
using Json = nlohmann::ordered_json;

// A whole number without ".0"; infinities and NaN, which JSON lacks, as words.
Json json_of(double value) {
  constexpr double exact = 0x1p53;  // below this, whole numbers are exact as integers
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const bool is_whole = value == std::trunc(value) && std::abs(value) < exact && !(value == 0 && std::signbit(value));
  return is_whole ? Json(static_cast<std::int64_t>(value)) : Json(value);
}
template <class Value>
Json json_of(const Value& value) {
  return value;
}

class Jsonl final : public vernier::Monitor {
 public:
  explicit Jsonl(vernier::Options& options)
      : name_(options.get("file", "losses.jsonl", "name in the run's output folder")),
        every_(options.get("every", 1, "steps between lines", vernier::at_least(1))) {
    if (name_.empty()) options.refuse("file", "must be the name of a file");
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](const Run& run) { open(run); });
    bus.on(Event::StepEnd, [this](const Run& run) { write_step(run); });
    bus.on(Event::Validated, [this](const Run& run) { write_validation(run); });
    bus.on(Event::RunEnd, [this](const Run& run) { close(run, run.step); });
    bus.on(Event::RunFailed, [this](const Run& run) { close(run, run.step + 1); });
  }

  // Called for each checkpoint: the lines up to it must not be lost if the process is killed after it.
  vernier::State save() const override {
    if (file_) file_->flush();
    vernier::State state;
    state.put("lines", lines_);
    return state;
  }
  // Before RunBegin the run is resumed. Later it is a rewind: the lines stay, and the steps come again.
  void load(const vernier::State& state) override {
    if (!file_ && state.has("lines")) lines_ = state.integer("lines");
  }

  bool set_every(std::int64_t steps) override {
    every_ = steps;
    return true;
  }

 private:
  void open(const Run& run) {
    const auto path = fs::path(run.output) / name_;
    const bool was_there = fs::is_regular_file(path);  // false in another folder, and for what is not a file
    file_ = std::make_unique<vernier::AppendFile>(path, "lines", [this](const std::string& text) { warn(text); });
    const auto counted = lines_;
    lines_ = vernier::keep_lines_of_run(path, run.step, counted);
    if (was_there && lines_ < counted) {
      warn(path.string(), ": has lost ", counted - lines_, " of the ", counted, " lines up to step ", run.step,
           "; the lines of later steps follow");
    }
  }

  void write_step(const Run& run) {
    const auto metrics = run.metrics.set_now();
    const auto notices = notices_of(run);
    if (run.step % every_ != 0 && run.step != run.steps && notices.empty()) return;
    Json line = {{"step", run.step}};
    if (run.loss.defined()) line["loss"] = json_of(run.loss.item<double>());
    add(line, run, metrics);
    line["updates"] = run.updates;
    const bool has_scaler = run.found_inf.defined() || !run.amp.history().empty();  // now, or before a swap
    if (has_scaler) line["overflows"] = run.amp.overflow_count();
    if (!notices.empty()) line["notices"] = notices;
    append(line);
  }

  static void add(Json& line, const Run& run, const std::vector<const vernier::Metrics::Entry*>& metrics) {
    for (const auto* metric : metrics) {
      if (metric->is_time) continue;
      const auto* info = run.metric_info(metric->name);
      if (info == nullptr || !info->varies) line[metric->name] = json_of(metric->value());
    }
  }

  void write_validation(const Run& run) {
    Json line = {{"step", run.step}};
    if (const auto loss = run.metrics.value("validation_loss")) line["validation_loss"] = json_of(*loss);
    add(line, run, run.metrics.set_now());
    append(line);
    file_->flush();
  }

  void close(const Run& run, std::int64_t step) {
    if (!file_) return;  // the run failed before RunBegin
    if (const auto notices = notices_of(run); !notices.empty()) append({{"step", step}, {"notices", notices}});
    file_->flush();
    file_->warn_of_missing();
  }

  void append(const Json& line) {
    if (file_->append(vernier::json_text(line) + '\n')) lines_ += 1;
  }

  static Json notices_of(const Run& run) {
    Json all = Json::array();
    for (const auto& notice : run.notices) {
      if (notice.name.starts_with("checkpoint_")) continue;  // notices about this process, not about the training
      Json one = {{"name", notice.name}};
      for (const auto& [key, detail] : notice.details) {
        one[key] = std::visit([](const auto& value) { return json_of(value); }, detail);
      }
      all.push_back(std::move(one));
    }
    return all;
  }

  std::string name_;
  std::int64_t every_;
  std::unique_ptr<vernier::AppendFile> file_;
  std::int64_t lines_ = -1;  // lines of the file; before RunBegin those of the resumed run, -1 for a new run
};

}  // namespace

VERNIER_PLUGIN(Jsonl, "jsonl", "1.0.0")
