#include "service/api/advice.h"

#include <vernier/json_in.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <optional>

#include "common/scratch_folder.h"
#include "common/text/quoting.h"
#include "common/trials.h"
#include "service/api/finetuning_jobs.h"
#include "service/http/http_service.h"
#include "service/queue/attempt.h"
#include "service/queue/start_process.h"

namespace serve {

namespace fs = std::filesystem;

namespace {

constexpr const char* seconds_to_measure = "12";
constexpr auto patience = std::chrono::seconds(50);  // a request is answered within 60
constexpr double worth = 1.02;                       // a smaller gain is noise

void write_run(const fs::path& folder, const AdviceRequest& request) {
  std::ofstream texts(folder / "texts.jsonl"), run(folder / "run.toml");
  for (int i = 0; i < 400; ++i) {
    texts << "{\"text\": \"Text " << i << " is about the weather of day " << i * 7 % 365
          << ", which was much like that of " << i * 13 % 365 << ", and nobody minded.\"}\n";
  }
  run << "[run]\nsteps = 1000\nthreads = 1\n[task]\nuse = \"" << task_of_model(request.model)
      << "\"\nfolder = " << vernier::toml_quoted(request.model.string()) << "\ndata = ["
      << vernier::toml_quoted((folder / "texts.jsonl").string())
      << "]\ncontext = 128\nvalidation_share = 0\n[optimizer]\nuse = \"adamw\"\n";
}

bool has_fast_bf16() {
  if (fs::exists("/dev/nvidia0")) return true;
  const auto processor = read_whole("/proc/cpuinfo");
  const auto has = [&](const char* word) { return processor.find(word) != std::string::npos; };
  return has("amx_bf16") || (has("avx512_bf16") && !has("GenuineIntel"));  // Intel's AVX512-BF16 gains no speed
}

std::string figures(const Json& measured) {
  char text[96];
  std::snprintf(text, sizeof text, "%.3g samples/s at %.0f MB", measured.value("samples_per_second", 0.0),
                measured.value("peak_memory_bytes", 0.0) / 1e6);
  return measured.value("name", "") + ": " + text;
}

// The keys of a training request that do what these settings of a configuration do; nothing if a request cannot say
// one of them.
std::optional<Json> request_of(const Json& settings) {
  Json request = Json::object();
  for (const auto& [key, value] : settings.items()) {
    auto word = value.get<std::string>();
    std::erase(word, '"');
    if (key == "precision.use") {
      request["mixed_precision_config"]["dtype"] = word == "bf16" ? "bfloat16" : word == "fp16" ? "float16" : word;
    } else if (key == "precision.level") {
      request["mixed_precision_config"]["level"] = word;
    } else if (key == "task.recompute" && word != "selective") {
      request["training_config"]["gradient_checkpointing"] = word == "full";
    } else if (key != "scaler.use" && (key != "precision.rounding" || word != "nearest")) {
      return std::nullopt;
    }
  }
  return request;
}

bool is_16_bit(const Json& settings) {
  return settings.contains("precision.use") && settings["precision.use"] != "\"fp32\"";
}

// The answer that recommends these settings of a configuration.
Json answer_with(const Json& settings, const std::string& reason, const Json& found) {
  const bool is_mixed = is_16_bit(settings);
  auto request = request_of(settings).value_or(Json::object());
  if (!is_mixed) request["use_mixed_precision"] = false;  // a request without it trains in float16
  Json recommendations = Json::array(), evidence = Json::array();
  for (const auto& [key, value] : request.items()) {
    const auto parts = value.is_object() ? value : Json{{"", value}};
    for (const auto& [name, part] : parts.items()) {
      recommendations.push_back(key + (name.empty() ? "" : "." + name) + " = " + part.dump());
    }
  }
  for (const auto& measured : found.value("measured", Json::array())) {
    Json row = Json::object();
    for (const char* key : {"name", "samples_per_second", "peak_memory_bytes", "objection"}) {
      if (measured.contains(key)) row[key] = measured[key];
    }
    evidence.push_back(row);
  }
  return {{"should_use_mixed_precision", is_mixed},
          {"recommendations", recommendations},
          {"request", request},
          {"reason", reason},
          {"settings", settings},
          {"warnings", found.value("warnings", Json::array())},
          {"evidence", evidence}};
}

Json by_rule(const std::string& why, const Json& found) {
  const bool is_fast = has_fast_bf16();
  return answer_with(is_fast ? Json{{"precision.use", "\"bf16\""}} : Json::object(),
                     "it was not measured (" + why + "); this server " +
                         (is_fast ? "has fast instructions for bfloat16" : "has no fast instructions for 16 bits"),
                     found);
}

// Recommends the fastest that fits and that a request can say; float32 only if another precision was measured beside
// it.
Json by_measurement(const Json& found) {
  const Json* best = nullptr;
  bool is_comparison = false;
  std::string trouble = "there was no time for 16 bits";
  for (const auto& measured : found["measured"]) {
    const double speed = measured.value("samples_per_second", 0.0);
    const auto objection = measured.value("objection", "");
    const bool is_low = is_16_bit(measured["settings"]);
    if (is_low && speed > 0) is_comparison = true;
    if (is_low && speed == 0) trouble = objection;
    if (speed == 0 || !objection.empty() || !request_of(measured["settings"])) continue;
    if (best == nullptr || speed > worth * best->value("samples_per_second", 0.0)) best = &measured;
  }
  if (!is_comparison) return by_rule(trouble, found);
  const auto& first = found["measured"][0];
  const auto as_written = "in float32 " + figures(first);
  if (best == nullptr) {
    auto answer = answer_with(Json::object(), "nothing that was measured fits: " + as_written, found);
    answer.update({{"recommendations", Json::array()}, {"request", Json::object()}});
    return answer;
  }
  return answer_with(
      (*best)["settings"],
      best == &first ? "nothing that was measured is better than " + as_written : figures(*best) + "; " + as_written,
      found);
}

}  // namespace

Json advice_on(const std::string& program, const AdviceRequest& request) {
  static std::mutex one;
  const std::unique_lock lock(one, std::try_to_lock);
  if (!lock.owns_lock())
    throw vernier::HttpRefused{503, "the server is busy measuring another model; ask again in a minute"};
  const vernier::ScratchFolder scratch;
  const fs::path folder = scratch.path();
  write_run(folder, request);
  std::vector<std::string> words = {program,
                                    "advise",
                                    (folder / "run.toml").string(),
                                    "--seconds",
                                    seconds_to_measure,
                                    "--json",
                                    "--quiet",
                                    "--output",
                                    (folder / "advice.toml").string(),
                                    "--batch",
                                    std::to_string(request.batch_size)};
  if (request.gigabytes > 0) {
    words.insert(words.end(), {"--memory", std::to_string(std::llround(request.gigabytes * 1000)) + "MB"});
  }
  const auto [status, printed] = finished_process(words, folder / "printed", patience);
  const auto begin = printed.find('{');
  const auto found = begin == std::string::npos ? Json() : vernier::json_in<Json>(printed.substr(begin));
  if (found.is_object() && found.contains("measured")) return by_measurement(found);
  return by_rule(status == 124 ? "it took too long" : vernier::reason_of({status, "", printed}), Json::object());
}

}  // namespace serve
