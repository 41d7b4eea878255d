// Files of predictions: a row for each sample.
#pragma once

#include <vernier/supervised_task.h>

#include <memory>
#include <string>
#include <vector>

namespace vernier {

class Predictions {
 public:
  virtual ~Predictions() = default;
  virtual void add(const std::vector<SupervisedTask::Column>& columns) = 0;  // of a batch; always the same columns
  virtual void finish() = 0;                                                 // throws Error if a byte was not written
};

// Throws Error unless the path ends in .csv, .npy or .jsonl.
void refuse_unknown_format(const std::string& path);
// Writes to `file`, in the format that the ending of `name` says. CSV: a column with several numbers becomes several,
// "output_0" and so on. JSON Lines: a list. NumPy: float64 [rows, numbers], labels as their integers.
std::unique_ptr<Predictions> write_predictions(const std::string& file, const std::string& name);

}  // namespace vernier
