// A step on disk that can be run again: a checkpoint (checkpoint_folder.h) of the beginning of the step, with the batch
// and a report.json. callback/flight_recorder writes it, and `vernier replay` runs it. Main thread only.
#pragma once

#include <vernier/batch.h>
#include <vernier/non_finite_tracer.h>
#include <vernier/run.h>
#include <vernier/state.h>

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace vernier {

// The ranges of values in the layers of one step.
struct LayerSample {
  std::string layer, kind;  // kind: "activation" or "gradient"
  TensorRange range;
};
struct StepSample {
  std::int64_t step = 0;  // counted from 1, as in all messages
  std::vector<LayerSample> layers;
};

// The bits of a loss and of gradients, for comparison. Has the weights too if the update was observed.
struct VERNIER_API Fingerprint {
  std::string loss;                              // "7.25 (0x40e80000)"
  std::map<std::string, std::string> gradients;  // XXH3-128 by parameter; without parameters that have none
  std::map<std::string, std::string> weights;    // the same after the update; empty if it was not observed
  // The differences in words: "the loss", "the gradients of h.0.ln_1.weight and 3 more". "" if there are none.
  std::string difference(const Fingerprint& other) const;
};
// The fingerprint of run.loss and the gradients that the optimizer uses. Valid from GradientsReady on. Waits for the
// device.
VERNIER_API Fingerprint fingerprint(const Run& run);
// The optimizer's weights, and the model's where they are other tensors.
VERNIER_API std::vector<std::pair<std::string, torch::Tensor>> weights_of(const Run& run);
VERNIER_API std::map<std::string, std::string> digests_of_weights(const Run& run);

struct VERNIER_API Capsule {
  std::int64_t step = 0;      // counted from 1
  std::string what;           // "loss", "gradients", "parameter"
  bool is_transient = false;  // the rerun was finite
  std::optional<NonFiniteOrigin> origin;
  Fingerprint seen, repeated;   // seen: the step itself; repeated: its rerun
  std::string cause;            // in words
  std::string samples;          // the same: which of the batch do it; "" if nobody has searched
  std::deque<StepSample> ring;  // samples of the steps before
  Batch batch;                  // on the host
  State state;                  // state of the run when the step began

  std::string report() const;  // JSON
};

// Writes a capsule, complete or not at all, with modes 0600 and 0700. The parent folder must exist. Throws Error.
VERNIER_API void write_capsule(const std::string& path, const Capsule& capsule, const std::string& run);
// Reads a capsule from any source, with the checks of read_checkpoint. `ring` is only in the report and stays empty.
VERNIER_API Capsule read_capsule(const std::string& path);

// Samples and origins as JSON, for Plugin::save and Plugin::load.
VERNIER_API std::string text_of(const std::deque<StepSample>& ring);
VERNIER_API std::deque<StepSample> ring_from(const std::string& text);
VERNIER_API std::string text_of(const NonFiniteOrigin& origin);
VERNIER_API NonFiniteOrigin origin_from(const std::string& text);

}  // namespace vernier
