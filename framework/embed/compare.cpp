#include <vernier/compare.h>
#include <vernier/error.h>
#include <vernier/json_text.h>
#include <vernier/memory.h>
#include <vernier/whole_file.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "common/comparison.h"
#include "common/run_files.h"

namespace vernier {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

[[noreturn]] void refuse_comparison(const std::string& why) {
  throw Error("compare: " + why, Error::Kind::configuration);
}

void check(const CompareOptions& options) {
  if (options.candidates.empty()) refuse_comparison("there are no candidates");
  if (options.seeds < 1 || options.seeds > 100)
    refuse_comparison("seeds is " + std::to_string(options.seeds) + ", and must be 1 to 100");
  std::set<std::string> names;
  for (const auto& candidate : options.candidates) {
    const auto& name = candidate.name;
    if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos) {
      refuse_comparison("the name \"" + name + "\" of a candidate cannot be a folder's");
    }
    if (!names.insert(name).second) refuse_comparison("two candidates are called \"" + name + '"');
  }
  std::error_code none;
  if (fs::exists(options.output, none) && !fs::is_empty(options.output, none)) {
    refuse_comparison(options.output + " is not empty; name another folder, or remove it");
  }
}

void train(const CompareOptions& options, const CompareOptions::Candidate& candidate, Trial& trial) {
  auto of_run = candidate.options;
  of_run.quiet = true;
  of_run.writes_folder = true;
  of_run.sets.push_back("run.measure_savings=false");  // the memory of all candidates is compared
  of_run.sets.push_back("run.seed=" + std::to_string(trial.seed));
  of_run.sets.push_back("run.output=" + json_text(Json(fs::absolute(trial.folder).string())));
  count_memory(torch::kCPU);
  const auto of_others = allocated_memory(torch::kCPU).now;  // bytes of the program's own tensors
  try {
    Trainer trainer(of_run);
    if (options.prepare) options.prepare(trainer);
    const auto device = trainer.run().device;
    reset_peak_memory(device);
    // The highest memory of any step, in bytes. accumulation/fit and memory_limit reset the peak of the device.
    std::int64_t peak = 0;
    for (bool goes_on = true; goes_on;) {
      goes_on = trainer.train_step();
      peak = std::max(peak, allocated_memory(device).peak);
    }
    trial.peak_memory = peak - (device.is_cpu() ? of_others : 0);
  } catch (const Error& error) {
    (error.kind() == Error::Kind::configuration ? trial.refusal : trial.error) = error.what();
  }
}

Comparison::MedianRange median_range_in(const Json& json) {
  return {json["median"], json["low"], json["high"]};
}

Comparison::Candidate candidate_in(const Json& json) {
  Comparison::Candidate candidate{json["name"], json["state"], "", {}, {}};
  for (const auto& run : json["runs"]) {
    if (candidate.error.empty()) candidate.error = run.value("error", "");
  }
  for (const auto& [name, range] : json["measures"].items()) {
    if (range.is_object()) candidate.measures[name] = median_range_in(range);
  }
  const auto differences = json.value("against_baseline", Json::object());
  for (const auto& [name, difference] : differences.items()) {
    if (difference.is_object())
      candidate.against_baseline[name] = {median_range_in(difference), difference.value("verdict", "")};
  }
  return candidate;
}

std::optional<double> ratio_to_baseline(const Comparison::Candidate& candidate, const char* measure) {
  const auto found = candidate.against_baseline.find(measure);
  return found == candidate.against_baseline.end() ? std::nullopt : std::optional(found->second.value.median);
}

}  // namespace

const Comparison::Candidate& Comparison::of(const std::string& name) const {
  const auto found = std::ranges::find(candidates, name, &Candidate::name);
  if (found == candidates.end()) refuse_comparison("there is no candidate \"" + name + '"');
  return *found;
}

std::optional<double> Comparison::Candidate::speedup() const {
  return ratio_to_baseline(*this, "samples_per_second");
}

std::optional<double> Comparison::Candidate::memory_savings() const {
  const auto ratio = ratio_to_baseline(*this, "peak_memory_bytes");
  return ratio ? std::optional(100 * (1 - *ratio)) : std::nullopt;
}

Comparison compare(const CompareOptions& options) try {
  check(options);
  const fs::path root = options.output;
  std::vector<Row> rows;
  for (const auto& candidate : options.candidates) {
    Row row{candidate.name, {}};
    for (int seed = 1; seed <= options.seeds; ++seed) {
      row.trials.push_back({seed, root / candidate.name / ("seed-" + std::to_string(seed)), "", ""});
    }
    rows.push_back(std::move(row));
  }
  // The order turns around in each round: what slows the machine down for a while hits all candidates alike.
  for (std::size_t round = 0; round < static_cast<std::size_t>(options.seeds); ++round) {
    for (std::size_t place = 0; place < rows.size(); ++place) {
      const auto index = round % 2 == 0 ? place : rows.size() - 1 - place;
      auto& trial = rows[index].trials[round];
      trial.refusal = rows[index].trials[0].refusal;  // no seed changes that
      if (trial.refusal.empty()) train(options, options.candidates[index], trial);
    }
  }
  const auto json = comparison_of(rows, root);
  Comparison comparison{{}, json_text(json, 2) + "\n"};
  for (const auto& candidate : json["candidates"]) comparison.candidates.push_back(candidate_in(candidate));
  fs::create_directories(root);
  write_whole(root / "compare.json", comparison.json);
  write_whole(root / "compare.csv", csv_of(json));
  return comparison;
} catch (const Refused& refusal) {
  refuse_comparison(refusal.what());
}

}  // namespace vernier
