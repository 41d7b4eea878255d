// Forward and backward of a micro-batch, recorded as graphs of the device: [run] cuda_graph.
#pragma once

#include <torch/types.h>

#include "gpu/device_graph.h"
#include "wiring/wiring.h"

namespace vernier {

// A pass is what the operators of forward and backward do to micro-batches of one shape. The third one of a shape is
// recorded, on a copy of the micro-batch. What the graphs compute is compared with what the operators compute, bit for
// bit and with other random numbers than the recorded ones; only then the graphs are used. Main thread only.
class CapturedPasses {
 public:
  CapturedPasses(const Wiring& wiring, MakeDeviceGraph make) : wiring_(wiring), graphs_(std::move(make)) {}
  // Called before the first step, and after a swap. Forgets all passes. Logs once why plugins allow no recordings.
  void begin();
  // Frees the memory of all passes. A shape is recorded again when its third micro-batch has come.
  void forget() { shapes_.clear(); }

  // Returns the loss of run.micro_batch, differentiable. compute calls the operators, and is called where no graph
  // stands for them. Backward of a graph adds its gradients to those of Parameter::model, as autograd does.
  torch::Tensor loss(TrainerRun& run, const std::function<torch::Tensor()>& compute);

 private:
  struct Pass;
  struct Result;
  struct Shape {
    int seen = 0;
    std::shared_ptr<Pass> pass;  // null: not recorded
  };
  using Compute = std::function<torch::Tensor()>;
  std::shared_ptr<Pass> captured(TrainerRun& run, const Compute& compute);
  static Result computed_by_operators(TrainerRun& run, const Compute& compute);
  static std::string difference(const Result& a, const Result& b);  // "losses"; "" if there is none
  void record(TrainerRun& run, const Compute& compute, Pass& pass);
  static torch::Tensor replayed(const TrainerRun& run, const std::shared_ptr<Pass>& pass);
  void give_up(const std::string& trouble);

  const Wiring& wiring_;
  MakeDeviceGraph graphs_;  // makes graphs on this device
  MakeDeviceGraph make_;    // the same; null: recordings were given up
  std::map<std::string, Shape> shapes_;
  std::string trouble_;    // the reason that was logged last
  bool is_named_ = false;  // the log has said that graphs are used
};

}  // namespace vernier
