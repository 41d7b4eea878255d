#include "summary.h"

#include <vernier/draft/gradient_parts.h>
#include <vernier/json_in.h>

#include <ATen/Parallel.h>

#include <cmath>
#include <fstream>

#include "files/json.h"
#include "output.h"

namespace vernier {

namespace {

OrderedJson number(double value) {
  return json_number(value);
}
OrderedJson number(const std::optional<double>& value) {
  return value ? number(*value) : OrderedJson(nullptr);
}

const char* word_of(Better better) {
  return better == Better::higher ? "higher" : "lower";
}

// The metrics of the validations, but the loss: last and best values, and which are better.
OrderedJson validation(const Run& run, const Outcome& outcome) {
  OrderedJson all = OrderedJson::object();
  for (const auto& [name, measured] : outcome.measured) {
    const auto better = better_of(run, name);
    all[name] = {{"final", number(measured.last)}, {"best", number(measured.best)}};
    if (better != Better::unknown) all[name]["better"] = word_of(better);
  }
  return all;
}

// The declarations of the plugins' metrics, for programs. docs/reference/metrics.md has those of the trainer.
OrderedJson metrics_of_plugins(const Run& run) {
  OrderedJson all = OrderedJson::object();
  for (const auto& [name, info] : run.metric_infos) {
    if (info.source.starts_with("trainer")) continue;
    auto& one = all[name] = {{"unit", info.unit}, {"meaning", info.meaning}, {"source", info.source}};
    if (info.better != Better::unknown) one["better"] = word_of(info.better);
    if (std::isfinite(info.least)) one["least"] = info.least;
    if (std::isfinite(info.most)) one["most"] = info.most;
  }
  return all;
}

// The newest values of metrics of plugins that differ between equal runs, which losses.jsonl leaves out.
OrderedJson varying_metrics(const Run& run) {
  OrderedJson all = OrderedJson::object();
  for (const auto& [name, info] : run.metric_infos) {
    const auto value = run.metrics.value(name.c_str());
    if (info.varies && value && !info.source.starts_with("trainer")) all[name] = number(*value);
  }
  return all;
}

OrderedJson swaps(const Wiring& wiring) {
  OrderedJson all = OrderedJson::array();
  for (const auto& [step, role, from, to] : wiring.swaps) {
    all.push_back({{"after_step", step}, {"role", role}, {"from", from}, {"to", to}});
  }
  return all;
}

}  // namespace

std::string ended_by(const Outcome& outcome) {
  if (outcome.error) return "error";
  if (outcome.signal == stopped_by_program) return "stopped";
  if (outcome.signal != 0) return "signal " + std::to_string(outcome.signal);
  if (outcome.is_out_of_time) return "time_limit";
  if (!outcome.diverged.empty()) return "diverged";
  return outcome.finished.empty() ? "done" : "finished";
}

bool is_summary_of(const std::string& path, const Run& run) {
  std::ifstream file(path);
  const auto summary = json_in<OrderedJson>(file);
  if (!summary.is_object()) return false;
  const auto end = summary.value("ended_by", OrderedJson());
  return (end == "done" || end == "finished") && summary.value("steps", OrderedJson()) == run.step;
}

void write_summary(const std::string& path, const Run& run, const RunOptions& options, const Options& run_table,
                   const Wiring& wiring, const Outcome& outcome) {
  const auto rate = [&](std::int64_t count) {
    return number(outcome.seconds > 0 ? static_cast<double>(count) / outcome.seconds : 0.0);
  };
  const auto mean = [&](double all) {
    return number(all / static_cast<double>(std::max<std::int64_t>(1, outcome.steps)));
  };
  OrderedJson times = OrderedJson::object();
  for (const auto& [part, seconds] : outcome.times) times[part] = number(seconds);
  OrderedJson summary;
  summary["name"] = run.name;
  summary["ended_by"] = ended_by(outcome);
  if (!outcome.finished.empty()) summary["finished_by"] = outcome.finished;
  if (outcome.error || !outcome.diverged.empty()) summary["error"] = outcome.error.value_or(outcome.diverged);
  summary["steps"] = run.step;
  summary["updates_applied"] = outcome.updates;
  // A step that failed after its update is not among the steps.
  summary["updates_skipped"] = std::max<std::int64_t>(0, run.step - outcome.updates);
  summary["amp"] = OrderedJson::parse(run.amp.json());
  summary["samples"] = run.samples;
  summary["tokens"] = run.tokens;
  summary["loss"] = {{"final", number(outcome.loss)}, {"best", number(outcome.best_loss)}};
  summary["validation_loss"] = {{"final", number(outcome.validation_loss)},
                                {"best", number(outcome.best_validation_loss)}};
  summary["validation"] = validation(run, outcome);
  summary["metrics"] = metrics_of_plugins(run);
  summary["this_process"] = {{"steps", outcome.steps},
                             {"seconds", number(outcome.seconds)},
                             {"times", times},
                             {"steps_per_second", rate(outcome.steps)},
                             {"samples_per_second", rate(outcome.samples)},
                             {"tokens_per_second", rate(outcome.tokens)},
                             {"per_update",
                              {{"micro_batches", mean(static_cast<double>(outcome.micro_batches))},
                               {"samples", mean(static_cast<double>(outcome.samples))},
                               {"seconds", mean(outcome.seconds)}}},
                             {"peak_memory_bytes", peak_memory(run.device)},
                             {"metrics", varying_metrics(run)}};
  if (!outcome.slow_plugins.empty()) summary["this_process"]["slow_plugins"] = outcome.slow_plugins;
  if (!run.emulated.empty()) summary["this_process"]["emulated"] = run.emulated;
  try {
    if (!outcome.error || !draft::GradientParts::exist()) summary["digest"] = "xxh3-128:" + digest(*run.model);
  } catch (const Error& error) {
    log(Level::warning, path, std::string("has no digest of the weights: ") + error.what());
  }
  summary["device"] = run.device.str();
  summary["threads"] = at::get_num_threads();
  if (const auto ranks = wiring.distributed->ranks(); ranks > 1) summary["ranks"] = ranks;
  summary["seed"] = options.seed;
  summary["versions"] = {{"vernier", VERNIER_VERSION}, {"libtorch", TORCH_VERSION}, {"plugin_abi", VERNIER_ABI}};
  summary["swaps"] = swaps(wiring);
  summary["configuration"] = OrderedJson::parse(resolved_configuration(run_table, wiring));
  write_file(path, json_text(summary, 2) + "\n");
}

}  // namespace vernier
