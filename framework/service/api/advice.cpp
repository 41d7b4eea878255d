#include "service/api/advice.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <thread>

#include "common/child.h"
#include "common/scratch_folder.h"
#include "common/text/quoting.h"
#include "service/api/finetuning_jobs.h"
#include "service/http/http_service.h"
#include "service/queue/attempt.h"
#include "service/queue/start_process.h"

namespace serve {

namespace fs = std::filesystem;

namespace {

constexpr const char* seconds_to_measure = "12";
constexpr auto patience = std::chrono::seconds(25);  // a request is answered within 30

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

// Returns what the program printed until it ended; nothing if it took too long.
std::string printed_by(const std::vector<std::string>& words, const fs::path& log) {
  const auto process = start_process(words, log);
  const auto end = std::chrono::steady_clock::now() + patience;
  int status = 0;
  while (::waitpid(process, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      ::kill(-process, SIGKILL);
      ::waitpid(process, &status, 0);
      return "";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return read_whole(log);
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

Json by_rule(const std::string& why) {
  const bool is_fast = has_fast_bf16();
  Json recommendations = Json::array();
  if (is_fast) recommendations.push_back("precision.use = \"bf16\"");
  return {{"should_use_mixed_precision", is_fast},
          {"recommendations", recommendations},
          {"reason", "it was not measured (" + why + "); this server " +
                         (is_fast ? "has fast instructions for bfloat16" : "has no fast instructions for 16 bits")},
          {"settings", is_fast ? Json{{"precision.use", "\"bf16\""}} : Json::object()},
          {"evidence", Json::array()}};
}

Json by_measurement(const Json& found) {
  const auto& advised = found["advice"];
  Json settings = advised.is_object() ? advised.value("settings", Json::object()) : Json::object();
  Json recommendations = Json::array(), evidence = Json::array();
  for (const auto& [key, value] : settings.items()) {
    recommendations.push_back(key + " = " + (value.is_string() ? value.get<std::string>() : value.dump()));
  }
  for (const auto& measured : found["measured"]) {
    Json row = Json::object();
    for (const char* key : {"name", "samples_per_second", "peak_memory_bytes", "objection"}) {
      if (measured.contains(key)) row[key] = measured[key];
    }
    evidence.push_back(row);
  }
  const auto as_written = evidence.empty() ? std::string() : "in float32 " + figures(evidence.front());
  return {{"should_use_mixed_precision", settings.contains("precision.use")},
          {"recommendations", recommendations},
          {"reason", !advised.is_object() ? "nothing that was measured fits: " + as_written
                     : settings.empty()   ? "nothing that was measured is better than " + as_written
                                          : figures(advised) + "; " + as_written},
          {"settings", settings},
          {"evidence", evidence}};
}

}  // namespace

Json advice_on(const std::string& program, const AdviceRequest& request) {
  static std::mutex one;
  const std::unique_lock lock(one, std::try_to_lock);
  if (!lock.owns_lock())
    throw vernier::HttpRefused{503, "the server measures another model; ask again in half a minute"};
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
  const auto printed = printed_by(words, folder / "printed");
  const auto begin = printed.find('{');
  const auto found = begin == std::string::npos ? Json() : Json::parse(printed.substr(begin), nullptr, false);
  if (found.is_object() && found.contains("advice") && found.contains("measured")) return by_measurement(found);
  const auto last = vernier::last_line(printed);
  return by_rule(printed.empty() ? "it took too long" : last);
}

}  // namespace serve
