// Traces every operation of a forward and a backward pass, and finds the operation that made the first inf or NaN.
//
//   vernier::NonFiniteTracer tracer(*model);
//   tracer.begin_forward();
//   auto loss = criterion(model->forward(input), target);
//   loss.backward();
//   tracer.stop();
//   if (const auto origin = tracer.origin({{"loss", loss}})) std::cout << origin->text();
#pragma once

#include <vernier/layers.h>
#include <vernier/parameter.h>
#include <vernier/tensor.h>
#include <vernier/tensor_range.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

// The operation that made the first inf or NaN from finite inputs.
struct VERNIER_API NonFiniteOrigin {
  // The place where the value was made:
  //   input     in a tensor of the batch, or before the first layer
  //   forward, backward
  //   update    in a parameter that was not finite before the pass or was written in it, so by the step before
  //   buffer    in a buffer that was not finite before the pass
  //   norm      nowhere: every gradient is finite, but their norm is not
  std::string phase;
  std::string layer;      // "h.0.mlp.c_fc"; "" before the first layer
  bool is_after = false;  // true: the operation uses no weight, and `layer` is the last one before it
  // "linear", or with the inner operation: "cross_entropy_loss (log_softmax)". For an update, callback/flight_recorder
  // sets the plugin: "optimizer/adamw".
  std::string operation;
  std::string tensor;     // the tensor's name in the phases input, update, buffer and norm; else ""
  int micro_batch = 0;    // index in the batch
  std::int64_t step = 0;  // update: the step that made it, counted from 1; 0: not known
  std::vector<std::pair<std::string, TensorRange>> inputs, outputs;  // by their names in the operator's schema

  std::string place() const;  // "backward, after h.0.mlp.c_fc: gelu_backward"
  std::string text() const;   // place(), and the ranges of inputs and outputs
};

// The result of an operation that uses a layer's weight.
struct LayerOutput {
  std::string layer, operation;
  int micro_batch;
  TensorRange range;
  torch::Tensor value;  // float32 on the CPU; undefined unless keep_outputs
};

// Follows the operators that this thread calls and the backward passes that it starts, from the constructor to stop().
// Tracing costs several passes over every tensor. Intended infinities, such as a fill with -inf or log(0) of a mask,
// are ignored. They count only if nothing else is bad, or if a NaN is made from them. Tensors are tracked by storage.
// Writes that bypass operators are reported as such. Make all calls on one thread.
class VERNIER_API NonFiniteTracer {
 public:
  // Throws Error if another tracer is active in this process. keep_outputs: outputs() have values.
  explicit NonFiniteTracer(const torch::nn::Module& model, bool keep_outputs = false);
  ~NonFiniteTracer();
  NonFiniteTracer(const NonFiniteTracer&) = delete;
  NonFiniteTracer& operator=(const NonFiniteTracer&) = delete;

  void hold(const std::string& name, const torch::Tensor& tensor);  // names a tensor of the batch, for messages
  void begin_forward();                                             // call it before each micro-batch
  void stop();                                                      // ends tracing; waits for the device

  // Call it after stop(). Walks back from those of the named tensors that are not finite to the operation where that
  // began, and returns the earliest one. Returns nothing if all are finite. Gradients and weights have their
  // parameter's name.
  std::optional<NonFiniteOrigin> origin(const std::vector<std::pair<std::string, torch::Tensor>>& ends) const;

  const std::vector<LayerOutput>& outputs() const;  // after stop(); in the order of the passes
  std::int64_t operations() const;                  // number of traced operations
  double coarsest_epsilon() const;                  // the largest machine epsilon among the dtypes of the passes

  class Seen;

 private:
  struct Guards;
  std::shared_ptr<Seen> seen_;
  std::unique_ptr<Guards> guards_;
};

}  // namespace vernier
