// Records of a step or a validation, for monitors with a writer thread.
#pragma once

#include <c10/core/Event.h>
#include <vernier/metrics.h>
#include <vernier/run.h>

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

// How many values of a tensor lie in each of some equal intervals. Values that are not finite are left out.
struct Histogram {
  std::string name;  // "weights/h.0.mlp.c_fc.weight"
  double min = 0, max = 0, count = 0, sum = 0, sum_of_squares = 0;
  std::vector<double> counts;  // counts in equal intervals between min and max
};

VERNIER_API double seconds_since_1970();
VERNIER_API std::string shortest(double value);  // the shortest text that reads back exactly, or "inf", "-inf", "nan"

// Returns how many updates were skipped, but for the last one where its result has not reached the host yet.
VERNIER_API std::int64_t skipped_updates(const Run& run);

// True for the notice of a background save. It comes in every step and is not worth a record.
inline bool is_progress(const Notice& notice) {
  return notice.name == "checkpoint_progress";
}

struct VERNIER_API Record {
  enum class Kind { step, validation, end };
  struct Entry {
    const MetricInfo* metric;  // with the name that it has in records; lives as long as the Collector
    double value;
  };
  // Values that are on their way from a device until the writer thread resolves the record.
  struct Late {
    torch::Tensor values;              // 1-D, float64, pinned
    std::vector<std::size_t> entries;  // indices of these values in `entries`
  };

  Kind kind = Kind::step;
  std::int64_t step = 0;  // from 1, as progress and jsonl count
  double time = 0;        // seconds since 1970
  std::vector<Entry> entries;
  Late late;
  std::optional<c10::Event> arrived;                         // when `late` is there
  std::vector<std::pair<std::string, std::string>> notices;  // name, text
  std::vector<Histogram> histograms;

  // Writer thread: waits for the device, and fills in the entries that are late.
  void resolve();
};

// Fills records from a run, in one place for all monitors: docs/reference/metrics.md lists the numbers. Training
// thread. It reads tensors of a CPU at once. Tensors of a device are copied on the device, so that a later step cannot
// change them, and the host does not wait.
class VERNIER_API Collector {
 public:
  // At StepEnd, Validated, or RunEnd and RunFailed. The record keeps the memory that it has.
  void collect(const Run& run, Record::Kind kind, Record& into);

 private:
  struct Rates {
    std::chrono::steady_clock::time_point at;
    std::int64_t samples = 0, tokens = 0;
    bool is_known = false;
  };
  void add_step(const Run& run, Record& into);
  void add_metrics(const Run& run, Record& into);
  void add_rates(const Run& run, Record& into);
  void add_tensor(const MetricInfo& metric, const torch::Tensor& value, Record& into);
  const MetricInfo& kept(const Run& run, const std::string& name, std::size_t slot);

  std::vector<MetricInfo> counts_;                                    // metrics that come from the run's counts
  std::deque<std::pair<std::string, MetricInfo>> metrics_;            // by the name that a plugin set
  std::vector<const std::pair<std::string, MetricInfo>*> last_seen_;  // the last metric at each place in the step
  std::vector<std::pair<torch::Tensor, std::size_t>> on_device_;  // values of the current record that are on a device
  Rates rates_;
};

}  // namespace vernier
