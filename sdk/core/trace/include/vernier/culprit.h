// Finds the samples of a batch that make a step bad: their loss or gradients are not finite, or far too large. Parts of
// the batch are computed on the side, by Control::rerun, and halved until single samples are left. callback/recovery
// and callback/flight_recorder use it.
//
// For one guilty sample of n it takes at most 2 log2(n) + 4 reruns. That is group testing by halves; see "Delta
// Debugging" (Zeller and Hildebrandt, IEEE TSE 2002) for the general case.
#pragma once

#include <vernier/plugin.h>
#include <vernier/run.h>
#include <vernier/step_result.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

class Task;

// Says whether a step is bad. `is_bad` is called when the gradients of a part of the batch are there. The loss and the
// gradients are then those that the part has in the whole batch: its mean times its share.
struct Symptom {
  std::string what;  // "the loss nan"; completes "sample 3 alone makes …"
  std::function<bool(Run& run, double share)> is_bad;
  std::string good = "finite";  // completes "the other 63 are …"
};
// Loss or gradients that are not finite. Under a loss scaler, gradients count only where the loss is finite. Valid at
// GradientsReady.
VERNIER_API Symptom not_finite(Run& run);

struct VERNIER_API Culprits {
  bool is_transient = false;          // the same batch once more is good: no sample is to blame
  bool is_everywhere = false;         // every part that was tried is bad: no single sample is to blame
  bool is_complete = true;            // false: so many are guilty that the search was ended
  std::vector<std::int64_t> rows;     // guilty samples, as rows of the batch, those of all ranks in order
  std::vector<std::int64_t> indices;  // Batch::indices of them; empty if the task gives none
  std::vector<std::string> names;     // their names: "sample 40217 ('reviews.jsonl' line 40218)"
  std::vector<std::string> together;  // parts that are bad, although each of their samples alone is good
  bool is_rest_good = false;          // the batch without the guilty samples is good
  std::int64_t samples = 0;           // size of the batch
  std::int64_t reruns = 0;            // computed parts, the whole batch included
  std::string what, good, caveat;     // the symptom in words; what makes the answer less than certain

  // "sample 40217 ('reviews.jsonl' line 40218) alone makes the loss inf; the other 63 are finite"
  std::string text() const;
  // "40217 881": the indices, or else the rows, of the guilty ones, for notices and files.
  std::string numbers() const;
};

// A part of a plugin that called Control::want_rerun. Main thread only.
class VERNIER_API CulpritSearch {
 public:
  // Called in Plugin::contradicts for each other plugin: remembers the task, which names samples.
  void meet(const Plugin& other) const;
  void attach(Bus& bus);  // in Plugin::attach

  // Called at GradientsReady of a bad step, on all ranks at the same moment; the run is unchanged afterwards.
  // is_repeated: the whole batch was computed once more already, and was bad again.
  Culprits find(Run& run, const Symptom& symptom, bool is_repeated = false);
  // After find(): makes the update from the batch without the guilty samples, or from the repeat if the fault was
  // transient. Returns false, and changes nothing, if that is not good.
  bool leave_out(Run& run) const;
  void forget() { good_.clear(); }  // frees the memory of what leave_out() would use

 private:
  struct Search;
  mutable const Task* task_ = nullptr;
  Search* search_ = nullptr;  // while it runs
  StepResult good_;
};

}  // namespace vernier
