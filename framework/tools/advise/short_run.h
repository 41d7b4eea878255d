// One short training run of a candidate, and what it shows.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "search.h"
#include "tools/common/trials.h"

namespace vernier {

// Results of a short run besides those by which a candidate is judged.
struct ShortRun {
  Measured measured;  // without a choice
  std::string device;
  std::int64_t threads = 0;
  double seconds = 0;        // of the whole process
  double steps_seconds = 0;  // of its steps
};

// Trains for so many seconds from the start of the training, the reading of the data included; one step at least. The
// run keeps no checkpoint, has no monitors but monitor/csv, and leaves nothing in the folder.
ShortRun train_for(int seconds, const Common& common, const Candidate& candidate, const std::filesystem::path& folder,
                   Children& children);

// The numbers of metrics.csv, as monitor/csv writes it.
struct StepNumbers {
  std::vector<double> speeds, losses;  // of the steps that have them
};
StepNumbers read_table(const std::filesystem::path& csv);

// The median of the speeds, without those of the first steps, which are slow. 0 if there is none.
double speed_of(std::vector<double> speeds);

}  // namespace vernier
