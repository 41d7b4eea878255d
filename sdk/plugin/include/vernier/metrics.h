// Reports of plugins: metrics of a step, and notices of unusual events.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <cstdint>
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

// Which values of a metric are the better ones; unknown: nobody has said.
enum class Better { unknown, lower, higher };

// A number that validations measure: "accuracy", higher.
struct Measure {
  std::string name;
  Better better = Better::unknown;
};

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
