// The series of a source, which task/sequence forecasts, and their windows.
#pragma once

#include <vernier/data/data_source.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

struct Window {
  std::int64_t context = 1, horizon = 0, stride = 1;
};

// Steps from begin to end - 1 of one series, counted over all series.
using Steps = std::pair<std::int64_t, std::int64_t>;

// The series of a source, one after the other.
class Series {
 public:
  explicit Series(vernier::Source source);
  // names: of the same file, a word for each row; rows with the same word are a series, in their order in the file.
  Series(vernier::Source source, const vernier::Source& names);

  const std::string& name() const { return source_.name; }
  const std::vector<std::string>& columns() const { return source_.columns; }
  const torch::Tensor& values() const { return values_; }           // [all steps, features]
  const std::vector<Steps>& all() const { return all_; }            // steps of each series
  const std::vector<std::string>& names() const { return names_; }  // name of each series; none: it is a single one
  std::string fingerprint() const;
  // The steps of each series to train on, and the last `share` of each, which are held out, after the context before
  // them; or those of split_last() in folds. Leaves out series too short for a window.
  std::pair<std::vector<Steps>, std::vector<Steps>> divide(double share, const Window& window) const;
  torch::Tensor values_in(const std::vector<Steps>& parts) const;  // [steps, features]

  // Sample: {inputs, outputs} of a window within one of the parts. outputs: the features that are predicted.
  vernier::DatasetPtr windows(const std::vector<Steps>& parts, const Window& window,
                              const std::vector<std::int64_t>& outputs) const;
  // Sample: {inputs, the step that follows them, the number of the series}, for windows without a horizon.
  vernier::DatasetPtr inputs(const Window& window) const;

 private:
  std::function<std::string(std::int64_t)> names_of_windows(std::int64_t length) const;
  torch::Tensor starts_in(const std::vector<Steps>& parts, const Window& window) const;

  vernier::Source source_;
  torch::Tensor values_, rows_;  // rows_: of the source, by step
  std::vector<Steps> all_;
  std::vector<std::string> names_;
};
