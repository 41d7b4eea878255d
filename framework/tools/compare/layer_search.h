// The layers that do not bear a number format, found by training.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "common/comparison.h"
#include "common/trials.h"

namespace vernier {

// Trains a candidate with the seeds 1 to `seeds`, or takes the runs that are there. Nothing comes back after a signal.
using TrainRow = std::function<std::optional<Row>(const Candidate& candidate, int seeds)>;

struct LayerSearch {
  Candidate candidate;              // all of its layers in the format
  Row baseline;                     // in float32
  std::vector<std::string> layers;  // layers whose products the format rounds
  int seeds;
  double tolerance = 0;  // tolerance for comparison_of()
};

// The layers that stay in float32, in the order of the loss that each of them costs alone.
struct LayersKept {
  std::vector<std::string> layers;
  bool is_shown;  // false: the loss is worse even without all of them
};

// Returns the measure by which a comparison's losses are judged: validation_loss, or loss where nothing validates.
std::string loss_of(const nlohmann::ordered_json& comparison);

// The verdict of the seeds on a row's losses beside the baseline's. undecided: the median is worse by more than 1 %,
// and the seeds are too few to show it. no: they show it, or the row has no losses.
enum class Acceptable { yes, undecided, no };
struct LossGap {
  Acceptable acceptable;
  double gap;  // the median over the seeds, in the unit of the loss
};
LossGap loss_gap(const Row& baseline, const Row& row, double tolerance = 0);

// Ranks the layers: one run for each, in which it alone is rounded. Then keeps as few of the worst in float32 as the
// seeds need to show no difference, by bisection. Nothing comes back after a signal.
std::optional<LayersKept> search_layers(const LayerSearch& search, const TrainRow& train);

// The rules for [precision] that keep layers in float32, as TOML.
std::string rules_of(const std::vector<std::string>& layers);

// Returns the layers that the run of a format wrote to formats.toml. Throws Refused if there is no such file.
std::vector<std::string> layers_in(const std::filesystem::path& run);

}  // namespace vernier
