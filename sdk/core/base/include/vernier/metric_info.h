// The metrics that have a fixed meaning, in one table. docs/reference/metrics.md is generated from it.
#pragma once

#include <vernier/abi.h>
#include <vernier/metrics.h>

#include <cmath>
#include <span>
#include <string_view>

namespace vernier {

// The meaning of a metric. Monitors show unit and meaning beside its values.
struct MetricInfo {
  const char* name;     // as in Metrics::set(), in jsonl's lines and in csv's header: "data_wait"
  const char* unit;     // "s", "bytes", "1/s", "ratio" (0 to 1), "degrees Celsius", "W", "J", "Hz"; "": a plain number
  const char* meaning;  // a phrase for people, without a full stop
  const char* source;   // who measures it: "trainer", or plugins as "callback/clip_norm"
  // True if it counts since the start of the run: it falls only after a rewind.
  bool is_count = false;
  // True if two equal runs may have different values. Files that are the same for equal runs, as jsonl's, leave it out.
  bool varies = false;
  Better better = Better::unknown;            // of a metric of validations
  double least = -HUGE_VAL, most = HUGE_VAL;  // the range of its values
};

// All of them, in the order of docs/reference/metrics.md. Any thread.
VERNIER_API std::span<const MetricInfo> metric_infos();

// Returns nullptr for other names: a task or a plugin of your own may set any. "top_5" is the metric "top_k". Any
// thread.
VERNIER_API const MetricInfo* metric_info(std::string_view name);

}  // namespace vernier
