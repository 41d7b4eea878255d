// Plugins of which a run may have many: callbacks, which may change it, and monitors, which only look.
#pragma once

#include <vernier/metrics.h>
#include <vernier/plugin.h>

#include <cstdint>
#include <vector>

namespace vernier {

// May change the run: clipping, schedules, averages, recovery.
class VERNIER_API Callback : public Plugin {
 public:
  static constexpr const char* role = "callback";
  ~Callback() override;
  // After prepare: the numbers that its evaluate() adds to those of the task.
  virtual std::vector<MetricInfo> measures() const;
  // False if its listener of GradientsReady needs no gradients: an optimizer may have freed them in backward.
  virtual bool needs_gradients() const;
};

// Only looks: its listeners take `const Run&`. A monitor that throws is detached, and training continues.
class VERNIER_API Monitor : public Plugin {
 public:
  static constexpr const char* role = "monitor";
  ~Monitor() override;
  // Called between two steps: from now on it looks every so many steps. Returns false where it has no such interval.
  virtual bool set_every(std::int64_t steps);
};

}  // namespace vernier
