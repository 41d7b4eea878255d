#include "summary.h"

#include <ATen/Parallel.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "device.h"
#include "output.h"
#include "snapshot.h"

namespace vernier {

using Json = nlohmann::ordered_json;

namespace {

// Infinities and NaN have no number in JSON; a word loses less than null.
Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}
Json number(const std::optional<double>& value) {
  return value ? number(*value) : Json(nullptr);
}

Json options_read(const Options& options) {
  Json read = Json::object();
  for (const auto& option : options.declared()) {
    const auto parsed = Json::parse(option.value, nullptr, /*allow_exceptions=*/false);
    read[option.key] = parsed.is_discarded() ? Json(option.value) : parsed;
  }
  return read;
}

Json configuration(const Options& run_table, const Wiring& wiring) {
  Json all = {{"run", options_read(run_table)}};
  const auto plugins = wiring.plugins();
  for (std::size_t i = 0; i < plugins.size(); ++i) {
    const auto& id = plugins[i]->id();
    const auto role = id.substr(0, id.find('/'));
    const auto& owner = wiring.options[i].owner();  // as the TOML names it, a path too
    Json table = {{"use", owner.substr(owner.find('/') + 1)}};
    table.update(options_read(wiring.options[i]));
    if (role == Callback::role || role == Monitor::role) {
      all[role].push_back(std::move(table));
    } else {
      all[role] = std::move(table);
    }
  }
  return all;
}

Json exchanges(const Wiring& wiring) {
  Json all = Json::array();
  for (const auto& [step, role, from, to] : wiring.exchanged) {
    all.push_back({{"after_step", step}, {"role", role}, {"from", from}, {"to", to}});
  }
  return all;
}

}  // namespace

std::string resolved_configuration(const Options& run_table, const Wiring& wiring) {
  return configuration(run_table, wiring).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_summary_of(const std::string& path, const Run& run) {
  std::ifstream file(path);
  const auto summary = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object()) return false;
  return summary.value("ended_by", Json()) == "done" && summary.value("steps", Json()) == run.step;
}

void count_step(Run& run) {
  run.amp.add({.is_amp = run.overflow.defined()});
  for (const auto* metric : run.metrics.set_now()) {
    if (metric->name == "scale" && (!run.learns_late || run.amp.history().empty())) {
      run.amp.set_scale(run.step + 1, metric->value());
    } else if (metric->name == "underflow") {
      const auto* share = std::get_if<torch::Tensor>(&metric->number);
      run.amp.add_underflow(share != nullptr ? *share : torch::scalar_tensor(metric->value()));
    }
  }
}

void count_scale_changes(Run& run) {
  for (const auto& notice : run.notices) {
    if (notice.name != "scale_changed") continue;
    for (const auto& [key, detail] : notice.details) {
      const auto* number = std::get_if<double>(&detail);
      if (key == "to" && number != nullptr) run.amp.set_scale(run.step + 2, *number);
    }
  }
}

void write_summary(const std::string& path, const Run& run, const RunOptions& options, const Options& run_table,
                   const Wiring& wiring, const Outcome& outcome) {
  const auto rate = [&](std::int64_t count) {
    return number(outcome.seconds > 0 ? static_cast<double>(count) / outcome.seconds : 0.0);
  };
  const auto mean = [&](double all) {
    return number(all / static_cast<double>(std::max<std::int64_t>(1, outcome.steps)));
  };
  Json summary;
  summary["name"] = run.name;
  summary["ended_by"] = outcome.error         ? "error"
                        : outcome.signal == 0 ? "done"
                                              : "signal " + std::to_string(outcome.signal);
  if (outcome.error) summary["error"] = *outcome.error;
  summary["steps"] = run.step;
  summary["updates_applied"] = outcome.updates;
  // A step that failed after its update is not among the steps.
  summary["updates_skipped"] = std::max<std::int64_t>(0, run.step - outcome.updates);
  auto amp = Json::parse(run.amp.json());
  for (const auto* of_loops : {"mean_step_seconds", "memory_saved"}) amp.erase(of_loops);
  summary["amp"] = std::move(amp);
  summary["samples"] = run.samples;
  summary["tokens"] = run.tokens;
  summary["loss"] = {{"final", number(outcome.loss)}, {"best", number(outcome.best_loss)}};
  summary["validation_loss"] = {{"final", number(outcome.validation_loss)},
                                {"best", number(outcome.best_validation_loss)}};
  summary["this_process"] = {{"steps", outcome.steps},
                             {"seconds", number(outcome.seconds)},
                             {"steps_per_second", rate(outcome.steps)},
                             {"samples_per_second", rate(outcome.samples)},
                             {"tokens_per_second", rate(outcome.tokens)},
                             {"per_update",
                              {{"pieces", mean(static_cast<double>(outcome.pieces))},
                               {"samples", mean(static_cast<double>(outcome.samples))},
                               {"seconds", mean(outcome.seconds)}}},
                             {"peak_memory_bytes", peak_memory(run.device)}};
  if (!run.emulated.empty()) summary["this_process"]["emulated"] = run.emulated;
  summary["digest"] = "xxh3-128:" + digest(*run.model);
  summary["device"] = run.device.str();
  summary["threads"] = at::get_num_threads();
  summary["seed"] = options.seed;
  summary["versions"] = {{"vernier", VERNIER_VERSION}, {"libtorch", TORCH_VERSION}, {"plugin_abi", VERNIER_ABI}};
  summary["exchanges"] = exchanges(wiring);
  summary["configuration"] = configuration(run_table, wiring);
  write_file(path, summary.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace vernier
