// Records the steps of a run that `vernier replay` trains again.
#pragma once

#include <vernier/control.h>
#include <vernier/plugin.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "replay.h"

namespace vernier {

// A layer in one step.
struct LayerView {
  std::string layer;
  TensorRange activation;  // the results of its operations in forward; without elements if it has none
  // Ranges over all its parameters: the gradient as the optimizer gets it, the weight before the update, and the change
  // by the update.
  TensorRange gradient, weight, update;
};

// How closely a step is looked at. capsule: keeps what replay() of the step needs, and the weights after it.
enum class Look { digests, layers, capsule };

// One step.
struct StepView {
  std::int64_t step = 0;  // counted from 1
  double loss = 0;
  bool is_skipped = false;  // its update
  std::string batch;        // XXH3-128 of the batch's tensors
  Fingerprint bits;         // loss, gradients as the optimizer gets them, weights after the update
  std::vector<Notice> notices;
  std::vector<LayerView> layers;          // filled by Look::layers
  std::optional<NonFiniteOrigin> origin;  // filled by Look::layers: where a bad loss or gradient came from
  Capsule capsule;                        // filled by Look::capsule
  Tensors weights;                        // filled by Look::capsule: weights after the update, float32 on the CPU
  std::string digest() const;             // equal for equal steps
};

// Attached as the last listener, so it sees gradients after callbacks have changed them. Observes: the bits of the run
// do not depend on it. Main thread.
class StepRecorder final : public Plugin {
 public:
  using Looks = std::function<Look(std::int64_t step)>;
  // looks: called with the number of each step before it.
  explicit StepRecorder(Looks looks);
  void attach(Bus& bus) override;
  const StepView& last() const { return view_; }  // the step that ended last

 private:
  void begin_micro_batch(Run& run);
  void look_at_gradients(Run& run);
  void look_at_weights(const Run& run);
  void look_at_layers(const Run& run, const Tensors& after);

  Looks looks_;
  Look look_ = Look::digests;
  bool has_begun_ = false;
  std::optional<NonFiniteTracer> tracer_;
  Tensors gradients_, before_;
  StepView view_;
};

}  // namespace vernier
