// Files of predictions: a row for each sample.
#pragma once

#include <vernier/data/predictor.h>

#include <memory>
#include <string>
#include <vector>

namespace vernier {

class Predictions {
 public:
  virtual ~Predictions() = default;
  virtual void add(const std::vector<Predictor::Column>& columns) = 0;  // adds a batch; columns never change
  virtual void finish() = 0;                                            // throws Error if a byte was not written
};

// Throws Error unless the path ends in .csv, .npy or .jsonl.
void refuse_unknown_format(const std::string& path);
// Writes to `file`, in the format that the ending of `name` says. CSV: a column with several numbers becomes several,
// "probability_ant" and so on, or "output_0" where the numbers have no names. JSON Lines: an object or a list of them.
// NumPy: float64 [rows, numbers]; labels that are numbers as these, and others are refused. So are two columns of one
// name.
std::unique_ptr<Predictions> write_predictions(const std::string& file, const std::string& name);

}  // namespace vernier
