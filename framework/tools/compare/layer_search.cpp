#include "layer_search.h"

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>
#include <sstream>

#include "common/run_files.h"
#include "common/text/quoting.h"
#include "common/toml_depth.h"

namespace vernier {

namespace {

using Json = nlohmann::ordered_json;

std::string rule(const std::string& match, const char* use) {
  return "{match = " + toml_quoted(match) + ", use = \"" + use + "\"}";
}

Candidate with_rules(const Candidate& candidate, const std::string& name, const std::string& rules) {
  auto changed = candidate;
  changed.name += name;
  changed.sets.push_back("precision.rule=[" + rules + "]");
  return changed;
}

// Seed 1's final loss; infinity where the run has none.
double loss_in(const Row& baseline, const Row& row) {
  const auto comparison = comparison_of({baseline, row}, "");
  const auto median = comparison["candidates"][1]["measures"].value(loss_of(comparison), Json());
  return median.is_object() ? median["median"].get<double>() : HUGE_VAL;
}

}  // namespace

std::string loss_of(const Json& comparison) {
  const auto validation = comparison["candidates"][0]["measures"].value("validation_loss", Json());
  return validation.is_object() ? "validation_loss" : "loss";
}

LossGap loss_gap(const Row& baseline, const Row& row, double tolerance) {
  constexpr double little = 0.01;  // a negligible share of the baseline's loss
  const auto comparison = comparison_of({baseline, row}, "", tolerance);
  const auto measure = loss_of(comparison);
  const auto against = comparison["candidates"][1]["against_baseline"].value(measure, Json());
  if (!against.is_object()) return {Acceptable::no, HUGE_VAL};
  const double gap = against["median"], loss = comparison["candidates"][0]["measures"][measure]["median"];
  if (against.value("verdict", "") == "higher") return {Acceptable::no, gap};
  return {gap > std::max(little * std::abs(loss), tolerance) ? Acceptable::undecided : Acceptable::yes, gap};
}

std::optional<LayersKept> search_layers(const LayerSearch& search, const TrainRow& train) {
  std::vector<std::pair<double, std::string>> ranked;
  for (const auto& layer : search.layers) {
    const auto row =
        train(with_rules(search.candidate, "-only-" + layer, rule(layer, "policy") + ", " + rule("*", "fp32")), 1);
    if (!row) return std::nullopt;
    ranked.emplace_back(-loss_in(search.baseline, *row), layer);
  }
  std::ranges::stable_sort(ranked, {}, &std::pair<double, std::string>::first);
  const auto worst = [&](std::size_t count) {
    std::vector<std::string> layers;
    for (std::size_t i = 0; i < count; ++i) layers.push_back(ranked[i].second);
    return layers;
  };
  // The least number from `low` + 1 on that is enough; all of them at most.
  std::size_t low = 0, high = ranked.size();
  bool is_shown = false;
  while (low + 1 < high) {
    const auto middle = (low + high) / 2;
    std::string rules;
    for (const auto& layer : worst(middle)) rules += (rules.empty() ? "" : ", ") + rule(layer, "fp32");
    const auto row = train(with_rules(search.candidate, "-without-" + std::to_string(middle), rules), search.seeds);
    if (!row) return std::nullopt;
    const bool is_enough = loss_gap(search.baseline, *row, search.tolerance).acceptable == Acceptable::yes;
    is_shown = is_shown || is_enough;
    (is_enough ? high : low) = middle;
  }
  return LayersKept{worst(high), is_shown};
}

std::string rules_of(const std::vector<std::string>& layers) {
  std::string text;
  for (const auto& layer : layers) text += "\n[[precision.rule]]\nmatch = " + toml_quoted(layer) + "\nuse = \"fp32\"\n";
  return text;
}

std::vector<std::string> layers_in(const std::filesystem::path& run) {
  const auto path = (run / "formats.toml").string();
  std::vector<std::string> layers;
  try {
    const auto table = toml::parse(shallow_toml(path));
    if (const auto* const list = table["layers"].as_array()) {
      for (const auto& layer : *list) layers.push_back(layer.value_or(std::string()));
    }
  } catch (const toml::parse_error& error) {
    throw Refused(path + ": " + std::string(error.description()));
  }
  return layers;
}

}  // namespace vernier
