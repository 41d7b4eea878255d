// The tables and sentences about a comparison, for a terminal and for HTML. Their only source is compare.json.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/run_files.h"
#include "common/text/text_table.h"

namespace vernier {

struct ComparisonView {
  std::string heading;
  TextRows speed, losses;
  std::vector<TextRows> metrics;  // one table for each metric of the validations
  std::string order;              // "by accuracy, where higher is better: b 0.98, a 0.95"; "": nobody asked
  std::vector<std::pair<std::string, std::string>> verdicts, notes;  // candidate, sentence
};

// Throws Refused if the text is not a compare.json.
ComparisonView view_of(const nlohmann::ordered_json& comparison);

std::string text_of(const ComparisonView& view);  // at most 100 columns

bool is_comparison(const std::filesystem::path& folder);
nlohmann::ordered_json read_comparison(const std::filesystem::path& folder);

// The first run of each candidate that has one, with the candidate's name.
std::vector<RunFiles> runs_of(const nlohmann::ordered_json& comparison, const std::filesystem::path& folder);

}  // namespace vernier
