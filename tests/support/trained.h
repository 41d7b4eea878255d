// The result of a run with monitor/jsonl: runs with equal results are equal.
#pragma once

#include <ostream>
#include <string>

#include "small_run.h"

struct Trained {
  std::string digest, losses;
  std::int64_t updates;
  bool operator==(const Trained&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Trained& trained) {
  return out << trained.digest << " after " << trained.updates << " updates\n" << trained.losses;
}

inline Trained result_of(const SmallRun& run) {
  return {run.digest(), read_text(run.run.output + "/losses.jsonl"), run.run.updates};
}
