// Reports of plugins: metrics of a step, and notices of unusual events.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace vernier {

// Numbers by name. A 0-dim tensor stays on its device until value() is called, which is a host sync for its caller.
class VERNIER_API Metrics {
 public:
  struct Entry {
    std::string name;
    std::variant<std::monostate, double, torch::Tensor> number;
    bool is_time = false;  // set by set_time()
    double value() const;
  };

  void set(const char* name, double value);
  void set(const char* name, torch::Tensor value);
  // Measured seconds. They differ between two equal runs, so files that are to be equal leave them out.
  void set_time(const char* name, double seconds);
  std::optional<double> value(const char* name) const;  // nothing if it was not set in this step
  std::vector<const Entry*> set_now() const;            // set in this step, in the order of first use

 private:
  friend struct HostApi;
  void clear();
  Entry& entry(const char* name);
  std::vector<Entry> entries_;
};

// The better direction of a metric; unknown: it is not declared.
enum class Better { unknown, lower, higher };

// The declaration of a metric, by whoever sets it. Monitors, reports and comparisons show it.
struct MetricInfo {
  std::string name;  // "accuracy"; it also declares "accuracy/any.layer"
  Better better = Better::unknown;
  std::string unit = {};     // "s", "bytes", "1/s", "ratio" (0 to 1), "dB"; "": a plain number
  std::string meaning = {};  // a phrase for people, without a full stop: "largest gradient of the update"
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  bool is_count = false;  // counts since the start of the run: it falls only after a rewind
  // Equal runs may have different values. Files that are the same for equal runs, as jsonl's, leave the metric out.
  bool varies = false;
  std::string source = {};  // set by the host: "trainer", or the plugins that declare it
};
using MetricInfos = std::map<std::string, MetricInfo, std::less<>>;  // by name

// An unusual event, for monitors and the log. Names in use: step_skipped, scale_changed, scale_low, scale_high,
// policy_changed, checkpoint_saved, checkpoint_failed, checkpoint_skipped, checkpoint_progress, out_of_memory,
// non_finite, injected, recovered, rewound, commanded, plugin_detached, slow_rank.
struct Notice {
  using Detail = std::variant<std::int64_t, double, std::string>;
  using Details = std::vector<std::pair<std::string, Detail>>;
  std::string name;
  std::int64_t step = 0;      // number of updates finished when it was written
  Details details;            // for programs; `step`, counted from 1, names the step where it is not the current one
  std::string sentence = {};  // for people: "the loss scale changed from 65536 to 32768"; may be empty
  VERNIER_API std::string text() const;  // "scale_changed from=65536 to=32768"
};

}  // namespace vernier
