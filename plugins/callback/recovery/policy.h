// What is done about one kind of trouble: actions that take turns.
#pragma once

#include <vernier/options.h>
#include <vernier/state.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace recovery {

struct Action {
  std::string name;          // skip | lower_learning_rate | rewind | fallback | stop
  std::int64_t at_most = 1;  // times in a row, before the next one's turn
  std::int64_t number = 0;   // of this time, from 1
};

class Policy {
 public:
  // Reads "rewind" or "rewind 2" from the list at `key`; refuses what is none, or what can never have its turn.
  Policy(vernier::Options& options, const char* key, std::vector<std::string> fallback, const char* meaning,
         bool may_skip);

  bool empty() const { return actions_.empty(); }
  bool has(const std::string& action) const;
  bool has_only(const std::vector<std::string>& actions) const;
  const std::string& name() const { return name_; }

  // Whose turn it is in the trouble of this step, whose update had `batches` of them from `batch` on; nothing where all had
  // theirs. Counts it. Where `calm` updates were applied since the last trouble, the first one's turn comes again; a skip
  // is counted anew after each good batch. helps: false for actions that are passed over.
  std::optional<Action> next(std::int64_t step, std::int64_t batch, std::int64_t batches, std::int64_t calm,
                             const std::function<bool(const std::string&)>& helps);
  // An update was applied, in that step.
  void applied(std::int64_t step);
  // Updates of the trouble in a row that the last one ended.
  std::int64_t in_a_row() const { return in_a_row_; }
  void restart();

  vernier::State save() const;
  void load(const vernier::State& state);

 private:
  std::string name_;
  std::vector<Action> actions_;
  std::int64_t turn_ = 0, number_ = 0;
  // -2: none. The step is the furthest that is counted, in trouble or calm: what comes again is no calm.
  std::int64_t last_step_ = -2, last_batch_ = -2;
  std::int64_t calm_ = 0;  // updates applied since the last trouble
  std::int64_t in_a_row_ = 0;
};

}  // namespace recovery
