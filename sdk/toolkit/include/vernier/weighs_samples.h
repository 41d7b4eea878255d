// Tasks whose loss is not a mean over samples, such as language models, whose loss is a mean over tokens.
#pragma once

#include <vernier/batch.h>

namespace vernier {

// A task derives from it beside Task if the samples of a batch count for different amounts in the mean of its loss().
// The trainer then weighs each micro-batch by its amount, so that the loss of an update is one mean over all of them,
// whatever the batches and micro-batches that it is computed in. Main thread only, after Task::prepare.
class VERNIER_API WeighsSamples {
 public:
  virtual ~WeighsSamples();
  // The amount that loss() of this part of a batch, on the host, is a mean over: of texts, the tokens that are learned.
  // 0: the part is left out.
  virtual double weight_of(const Batch& part) const = 0;
};

}  // namespace vernier
