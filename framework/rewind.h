// Copies of the run in memory, to which it can go back (Control::rewind).
#pragma once

#include <vernier/state.h>

#include <cstdint>
#include <deque>
#include <set>

namespace vernier {

class Rewind {
 public:
  // What several plugins ask for is joined: the closest distance and the largest number.
  void keep(std::int64_t every, std::int64_t keep);
  bool due(std::int64_t step) const;
  void add(std::int64_t step, const State& snapshot);  // copies
  void forget() { kept_.clear(); }                     // what other plugins than now have made
  bool empty() const { return kept_.empty(); }

  // The newest that was taken at `step` or before, else the oldest. What is newer is forgotten: it will come again.
  State back_to(std::int64_t step);

  // Batches to be passed over, by Run::drawn: the last `count` up to `last` that are not dropped yet.
  void drop(std::int64_t last, std::int64_t count);
  bool is_dropped(std::int64_t batch) const { return dropped_.count(batch) != 0; }

  State save() const;
  void load(const State& state);

 private:
  struct Kept {
    std::int64_t step;
    State snapshot;
  };
  std::int64_t every_ = 0;
  std::size_t keep_ = 0;
  std::deque<Kept> kept_;  // the oldest first
  std::set<std::int64_t> dropped_;
};

}  // namespace vernier
