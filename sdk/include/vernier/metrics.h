// What plugins measure, and what they tell: numbers of a step, and notices of what is out of the ordinary.
#pragma once

#include <torch/types.h>
#include <vernier/abi.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace vernier {

// A number by name. A tensor (0-dim) stays on its device until somebody asks for value(): that is a host sync, paid by
// whoever asks.
class VERNIER_API Metrics {
 public:
  struct Entry {
    std::string name;
    std::variant<std::monostate, double, torch::Tensor> number;
    double value() const;
  };

  void set(const char* name, double value);
  void set(const char* name, torch::Tensor value);
  std::optional<double> value(const char* name) const;  // nothing where it was not set in this step
  std::vector<const Entry*> set_now() const;            // those that were set in this step, in order of first use
  void clear();                                         // by the trainer at the start of each step

 private:
  Entry& entry(const char* name);
  std::vector<Entry> entries_;
};

// Names in use: step_skipped, scale_changed, policy_changed, checkpoint_saved, checkpoint_failed, checkpoint_skipped,
// checkpoint_progress, out_of_memory, recovered, plugin_detached, throttled, non_finite.
struct Notice {
  using Detail = std::variant<std::int64_t, double, std::string>;
  std::string name;
  std::int64_t step = 0;  // updates finished when it was written
  std::vector<std::pair<std::string, Detail>> details;
  VERNIER_API std::string text() const;  // "scale_changed from=65536 to=32768"
};

}  // namespace vernier
