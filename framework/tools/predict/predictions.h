// Files of predictions: a row for each sample.
#pragma once

#include <vernier/data/predictor.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace vernier {

class Predictions {
 public:
  virtual ~Predictions() = default;
  // Adds a batch. Throws Error unless each column has a row for each sample, and the form that it had before.
  void add(const std::vector<Predictor::Column>& columns, std::int64_t samples);
  virtual void finish() = 0;  // throws Error if a byte was not written
  std::int64_t rows() const { return count_; }

 private:
  virtual void write_rows(const std::vector<Predictor::Column>& columns) = 0;
  std::vector<std::string> forms_;  // name and shape of a row of each column
  std::int64_t count_ = 0;
};

// Returns an object for each row of a batch of samples, as JSON Lines have it.
std::vector<nlohmann::ordered_json> rows_of(const std::vector<Predictor::Column>& columns, std::int64_t samples);

// The header of an array, of one length for each shape: version 1.0 of numpy.lib.format.
std::string npy_header(const char* type, const std::vector<std::size_t>& shape);

// Throws Error unless the path ends in .csv, .npy, .npz, .jsonl or /.
void refuse_unknown_format(const std::string& path);
// Returns true for a path that ends in /: it becomes a folder, and write_predictions() writes no other file.
bool is_folder_of_pictures(const std::string& path);
// Writes to `file`, in the format that the ending of `name` says. CSV: a column with several numbers becomes several,
// "output_0" and so on. JSON Lines: a number, or lists of them. NumPy: float64 [rows, numbers], or the one column that
// has more dimensions as it is; labels that are numbers as these, and others are refused. .npz: an array for each
// column. A folder: a PNG for each mask, uint8 [rows, height, width]. Two columns of one name are refused.
std::unique_ptr<Predictions> write_predictions(const std::string& file, const std::string& name);

}  // namespace vernier
