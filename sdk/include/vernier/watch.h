// Watches every operation of a forward and backward pass, and says where the first value came from that is no number.
//
//   vernier::Watch watch(*model);
//   watch.begin_forward();
//   auto loss = criterion(model->forward(input), target);
//   loss.backward();
//   watch.stop();
//   if (const auto origin = watch.origin({{"loss", loss}})) std::cout << origin->text();
#pragma once

#include <torch/nn/module.h>
#include <vernier/layers.h>
#include <vernier/parameter.h>
#include <vernier/tensor_range.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace vernier {

// The operation whose result is the first that is not finite, its inputs being so.
struct VERNIER_API Origin {
  // input: a tensor that came with the batch, or was made before the first layer. forward, backward. update: a parameter
  // that was bad before the pass began, or was written in it: the update of the step before is to blame; or, after
  // begin_update, what that update wrote. buffer: the same of a buffer. norm: gradients are finite, and the norm of them
  // is not.
  std::string phase;
  std::string layer;      // "h.0.mlp.c_fc"; "" before the first
  bool is_after = false;  // the operation uses no weight; `layer` is the last one before it
  // "linear", or "cross_entropy_loss (log_softmax)": the part of it that it was. Of an update, as
  // callback/flight_recorder tells it: the plugin that made it, "optimizer/adamw", and its operation where it was
  // watched, "optimizer/mine: addcdiv_".
  std::string operation;
  std::string tensor;     // update and buffer: its dotted name. Else "", or what kind of end was bad first: "loss"
  int piece = 0;          // of the batch, from 0
  std::int64_t step = 0;  // update: whose it was, counted from 1; 0: not known
  std::vector<std::pair<std::string, TensorRange>> inputs, outputs;  // by the names of the operator's schema

  std::string place() const;  // "backward, after h.0.mlp.c_fc: gelu_backward"
  std::string text() const;   // and the ranges
};

// A tensor that an operation with a layer's weight gave.
struct LayerOutput {
  std::string layer, operation;
  int piece;
  TensorRange range;
  torch::Tensor value;  // float32 on the CPU; where outputs are kept
};

// Follows the operators that this thread calls and the backward passes that it starts. One at a time in a process; they
// cost some passes over every tensor. Infinities that are meant are not blamed: what a fill with -inf spreads, or log(0) of
// a mask, is followed only where nothing else is bad, or a nan is made of it. Identity is the storage: what is written into memory without an operator is
// told as such. The calls must be made on one thread.
class VERNIER_API Watch {
 public:
  explicit Watch(const torch::nn::Module& model, bool keep_outputs = false);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void hold(const std::string& name, const torch::Tensor& tensor);  // names a tensor of the batch, for messages
  void begin_forward();                                             // of each piece
  void begin_update(const std::vector<Parameter>& parameters);      // an optimizer's, after which stop() comes
  void stop();                                                      // nothing more is watched; waits for the device

  // After stop(). Walks back from the named tensors that are not finite to where that began; the earliest. A gradient's
  // name is its parameter's, and so is a weight's. Nothing where all of them are finite.
  std::optional<Origin> origin(const std::vector<std::pair<std::string, torch::Tensor>>& ends) const;

  const std::vector<LayerOutput>& outputs() const;  // after stop(), in the order of the passes
  std::int64_t operations() const;                  // how many were watched
  double coarsest_epsilon() const;  // the largest distance of 1 to the next number in the dtypes that the passes met

  class Seen;

 private:
  struct Guards;
  std::shared_ptr<Seen> seen_;
  std::unique_ptr<Guards> guards_;
};

}  // namespace vernier
