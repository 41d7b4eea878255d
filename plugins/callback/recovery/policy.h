// The actions against one kind of trouble, and whose turn it is.
#pragma once

#include <vernier/options.h>
#include <vernier/state.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace recovery {

struct Action {
  std::string name;          // skip | drop_samples | lower_learning_rate | rewind | fallback | stop
  std::int64_t at_most = 1;  // how often in a row, before it is the next action's turn
  std::int64_t number = 0;   // how often it has come in a row, this time included
};

class Policy {
 public:
  // Reads the list at `key`, with actions such as "rewind" or "rewind 2". Refuses unknown actions, and actions that can
  // never have their turn.
  Policy(vernier::Options& options, const char* key, std::vector<std::string> fallback, const char* meaning,
         bool may_skip);

  bool empty() const { return actions_.empty(); }
  bool has(const std::string& action) const;
  bool has_only(const std::vector<std::string>& actions) const;
  const std::string& name() const { return name_; }

  // Chooses the action against the trouble of this step, and counts it; nothing where all actions had their turns. The
  // update of the step had `batches` batches from `batch` on. Where `calm` updates were applied since the last trouble,
  // the first action has its turn again; skips are counted anew after each good batch. helps: false for actions to
  // leave out.
  std::optional<Action> next(std::int64_t step, std::int64_t batch, std::int64_t batches, std::int64_t calm,
                             const std::function<bool(const std::string&)>& helps);
  // Called for each update that was applied, with its step.
  void applied(std::int64_t step);
  // The number of troubled updates in a row, up to the last one.
  std::int64_t in_a_row() const { return in_a_row_; }
  void restart();

  vernier::State save() const;
  void load(const vernier::State& state);

 private:
  static const std::pair<const char*, std::int64_t Policy::*> saved[];
  std::string name_;
  std::vector<Action> actions_;
  std::int64_t turn_ = 0, number_ = 0;
  // -2: none. last_step_ is the furthest step that was counted, troubled or calm: a step that comes again after a
  // rewind is not calm.
  std::int64_t last_step_ = -2, last_batch_ = -2;
  std::int64_t calm_ = 0;  // updates applied since the last trouble
  std::int64_t in_a_row_ = 0;
};

}  // namespace recovery
