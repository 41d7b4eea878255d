// The measurements of the runs of a comparison, and the conclusions that they allow.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace vernier {

// One run of a candidate.
struct Trial {
  std::int64_t seed = 0;  // the seed of the run; in a cross-validation, the number of its fold
  std::filesystem::path folder;
  std::string refusal;                           // the message of vernier, if it refused the configuration
  std::string error;                             // the message of vernier, if it failed otherwise
  std::optional<std::int64_t> peak_memory = {};  // bytes, if several runs share a process; else summary.json has them
};

struct Row {
  std::string name;
  std::vector<Trial> trials;  // the same seeds in every row
};

// Returns true if a run has ended by itself, well or not. Others are trained again.
bool is_complete(const std::filesystem::path& run);

// The run as comparison_of() has it.
nlohmann::ordered_json result_of(const Trial& trial, const std::filesystem::path& root);

// compare.json: docs/guides/compare.md describes it. The first row is the baseline. Folders of runs are written
// relative to root, if it is not empty. tolerance: smaller differences of the losses are not claimed. Throws Refused if
// runs trained different tasks, or a file of a run is damaged. folds: each trial held out another one of so many parts;
// 0: they differ in their seeds.
nlohmann::ordered_json comparison_of(const std::vector<Row>& rows, const std::filesystem::path& root,
                                     double tolerance = 0, int folds = 0);

// Adds the order of the candidates by the median of a metric, the best first, as "judged_by". Throws Refused if the
// runs do not measure it, or nothing says which of its values are better.
void judge_by(nlohmann::ordered_json& comparison, const std::string& metric);

// One line for each candidate.
std::string csv_of(const nlohmann::ordered_json& comparison);

}  // namespace vernier
