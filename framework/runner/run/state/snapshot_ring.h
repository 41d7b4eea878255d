// Snapshots of the run in memory for Control::rewind, and the batches that it drops.
#pragma once

#include <c10/util/StringUtil.h>
#include <vernier/state.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <set>

namespace vernier {

class SnapshotRing {
 public:
  // Joins what several plugins ask for: the smallest distance and the largest number.
  void keep(std::int64_t every, std::int64_t number);
  std::string asked() const { return c10::str(number_, " of each ", every_, " steps"); }
  bool is_due(std::int64_t step) const;
  void add(std::int64_t step, const State& snapshot);  // copies
  void clear() { kept_.clear(); }
  bool empty() const { return kept_.empty(); }
  // The newest that was taken at `step` or before, else the oldest. Forgets the newer ones.
  State back_to(std::int64_t step);

  // By Counters::batches_drawn: the last `count` up to `last` that are not dropped yet.
  void drop(std::int64_t last, std::int64_t count);
  bool is_dropped(std::int64_t batch) const { return dropped_.contains(batch); }

  // The run went back to here from this step; until the next step has reported it.
  void note_rewind(std::optional<std::int64_t> from) { rewound_from_ = from; }
  std::optional<std::int64_t> rewound_from() const { return rewound_from_; }

  State save() const;  // snapshots and dropped batches
  void load(const State& state);

 private:
  struct Kept {
    std::int64_t step;
    State snapshot;
  };
  std::int64_t every_ = 0;
  std::size_t number_ = 0;
  std::deque<Kept> kept_;  // the oldest first
  std::set<std::int64_t> dropped_;
  std::optional<std::int64_t> rewound_from_;
};

}  // namespace vernier
