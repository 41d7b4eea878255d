// recheck: the bits of one computation of a step, and where two of them differ; see recheck.cpp.
#pragma once

#include <vernier/layers.h>
#include <vernier/sdk.h>

#include <optional>
#include <string>
#include <vector>

namespace recheck {

// A part of a step, in the order in which they are computed.
enum class Phase { batch, forward, loss, backward, sums };

// The digest of one tensor.
struct Digest {
  Phase phase;
  std::string name;  // the layer, the parameter, or words
  std::string operation;
  int micro_batch;
  std::string bits;  // XXH3-128
};

// The place of a difference.
struct Place {
  Phase phase = Phase::batch;
  std::string layer;  // or the parameter; "" if it is none
  std::string text;   // "the output of fc1 (linear) in forward"
};

// The digests of all that this rank computes in a step, from the batch to the gradients of its share.
class Bits final : public vernier::Interceptor {
 public:
  bool changes(std::string_view) const override { return false; }
  void prepare(const vernier::Run& run) { layers_ = vernier::Layers(*run.model); }
  void begin_micro_batch(const vernier::Run& run);  // at BatchReady
  void end_forward(const vernier::Run& run);        // at LossReady
  void end_micro_batch(const vernier::Run& run);    // at BackwardDone
  // Called at GradientsReady: adds the loss and the gradients of the whole batch, and the buffers.
  void end(const vernier::Run& run);
  // True at BatchReady if the batch was begun before. One that did not fit into memory has more micro-batches then.
  bool has_begun(const vernier::Run& run) const { return micro_batch_ >= 0 && run.micro_batches == micro_batches_; }
  void stop() {
    guard_.reset();
    micro_batch_ = -1;
  }
  std::vector<Digest> take() {
    stop();
    return std::move(digests_);
  }

  vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override;

 private:
  void add(Phase phase, const std::string& name, const std::string& operation, const torch::Tensor& tensor);
  vernier::Layers layers_;
  std::optional<vernier::Intercept> guard_;
  std::vector<Digest> digests_;
  int micro_batch_ = -1;
  std::int64_t micro_batches_ = 0;  // run.micro_batches of the batch that was begun
};

// One digest over all; `sums` counts where with_sums.
std::string digest_of(const std::vector<Digest>& bits, bool with_sums);
// The first place where they differ, in the order of the computation; nothing where they are the same.
std::optional<Place> difference(const std::vector<Digest>& a, const std::vector<Digest>& b, bool with_sums);

}  // namespace recheck
