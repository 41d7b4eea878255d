// A step kept on disk so that it can be run again: a checkpoint (checkpoint_folder.h) of the step's beginning that has the
// batch too, and report.json. callback/flight_recorder writes it, `vernier replay` runs it.
#pragma once

#include <vernier/batch.h>
#include <vernier/run.h>
#include <vernier/state.h>
#include <vernier/watch.h>

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace vernier {

// The ranges of a step's layers, "activation" or "gradient".
struct LayerSample {
  std::string layer, kind;
  TensorRange range;
};
struct StepSample {
  std::int64_t step = 0;  // counted from 1, as all messages do
  std::vector<LayerSample> layers;
};

// The bits of a loss and of gradients, to be compared; of weights too, where an update was looked at.
struct VERNIER_API Fingerprint {
  std::string loss;                              // "7.25 (0x40e80000)"
  std::map<std::string, std::string> gradients;  // XXH3-128 by the parameters' names; without those that have none
  std::map<std::string, std::string> weights;    // likewise, after the update; empty where it was not looked at
  // What differs in words: "the loss", "the gradients of h.0.ln_1.weight and 3 more"; "" where all is the same.
  std::string difference(const Fingerprint& other) const;
};
VERNIER_API Fingerprint fingerprint(const Run& run);  // of run.loss and the gradients that the optimizer would use
// As the optimizer has them, and as forward has them where that is another tensor.
VERNIER_API std::vector<std::pair<std::string, torch::Tensor>> weights_of(const Run& run);
VERNIER_API std::map<std::string, std::string> digests_of_weights(const Run& run);

struct VERNIER_API Capsule {
  std::int64_t step = 0;  // counted from 1
  std::string what;       // "loss", "gradients", "parameter"
  bool is_transient = false;      // the repeat was finite
  std::optional<Origin> origin;
  Fingerprint seen, repeated;     // in the step itself, and when it was repeated
  std::string cause;              // in words
  std::deque<StepSample> ring;    // of the steps before
  Batch batch;                    // on the host
  State state;                    // all that the run depended on when the step began

  std::string report() const;  // JSON
};

// Whole or not at all, for the user alone (0600, 0700). The folder above it must exist. Throws Error.
VERNIER_API void write_capsule(const std::string& path, const Capsule& capsule, const std::string& run);
// Of any origin: checked as a checkpoint is. `ring` stays in the report's text and is not read back.
VERNIER_API Capsule read_capsule(const std::string& path);

// A ring of samples, or an origin, as JSON, for Plugin::save; and back.
VERNIER_API std::string text_of(const std::deque<StepSample>& ring);
VERNIER_API std::deque<StepSample> ring_from(const std::string& text);
VERNIER_API std::string text_of(const Origin& origin);
VERNIER_API Origin origin_from(const std::string& text);

}  // namespace vernier
