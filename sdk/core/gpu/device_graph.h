// Work of a device that is recorded once and then repeated by one call of the host: on a GPU, a CUDA graph; on a CPU, a
// compiled program.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <vernier/host.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace vernier {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Calls work, whose operators the device need not execute, and records them with the memory that they use. work must
  // not wait for the device. Throws what work throws, and c10::Error if the device cannot record it; the device and the
  // random generators then go on as if nothing had been recorded, and the graph is of no use.
  virtual void capture(const std::function<void()>& work) = 0;
  // Repeats the operators on the same memory, in the order of the current stream. Random operators draw new numbers:
  // those that they would draw if they were called.
  virtual void replay() = 0;

  // Called on the graph of forward before each comparison with the operators, once that of backward is captured.
  // results: the tensors that are read after replays. Returns how far each may be from what the operators compute with
  // the numbers that are in memory now; empty: their bits are the same. Throws Error if they cannot be computed.
  virtual std::vector<double> bounds(DeviceGraph& /*backward*/, const std::vector<at::Tensor>& /*results*/) {
    return {};
  }
  // After bounds(): equal for programs that compute the same bits. "" for those of the operators.
  virtual std::string id() const { return ""; }
};

// Returns a graph of a device. Graphs of one maker share memory, so what one has computed is valid until another one is
// replayed, except for tensors that somebody holds.
using MakeDeviceGraph = std::function<std::unique_ptr<DeviceGraph>()>;

// Returns what makes CUDA graphs for the opened device. Throws Error where Vernier was built without them.
VERNIER_API MakeDeviceGraph cuda_graphs(c10::Device device);
// Returns what makes compiled programs for a CPU. Two graphs make one program, which computes other last bits than the
// operators. Throws Error where Vernier was built without them.
VERNIER_API MakeDeviceGraph compiled_graphs();

// How recordings compare with the operators.
enum class Recordings { exact, faster };  // exact: the same bits; faster: other last bits, used if they take less time

// A pass is what the operators of forward and backward do to micro-batches of one shape. The third one of a shape is
// recorded, on a copy of the micro-batch. What the graphs compute is compared with what the operators compute, with
// other random numbers than the recorded ones; only then the graphs are used. Graphs with other last bits are compared
// on three micro-batches, within bounds, and timed. Main thread only.
class RecordedPasses {
 public:
  using Compute = std::function<at::Tensor()>;
  virtual ~RecordedPasses() = default;
  // Called before the first step, and after a swap. Forgets all passes. trouble: why plugins allow no recordings, which
  // is logged once; "" if they do.
  virtual void begin(const std::string& trouble) = 0;
  // Frees the memory of all passes. A shape is recorded again when its third micro-batch has come.
  virtual void forget() = 0;
  // Returns the loss of run.micro_batch, differentiable. compute calls the operators, and is called where no graph
  // stands for them. Backward of a graph adds its gradients to those of Parameter::model, as autograd does.
  virtual at::Tensor loss(TrainerRun& run, const Compute& compute) = 0;
  // For a checkpoint: which shapes were seen how often, and which programs stand for the operators; "" if the bits of
  // the run are the operators'.
  virtual std::string save() const = 0;
  // Called when a run is resumed, after begin(). Its programs must be the saved ones, or the next loss() throws Error.
  virtual void load(const std::string& saved, bool allow_inexact) = 0;
};

// Throws Error where Vernier was built without the component compile.
VERNIER_API std::unique_ptr<RecordedPasses> recorded_passes(MakeDeviceGraph make, Recordings kind);

// Refuses to resume with another engine than the run had, a compiled program or the operators. With allow_inexact it
// only logs that. saved: what RecordedPasses::save() gave.
VERNIER_API void compare_engines(const std::string& saved, bool is_compiled, bool allow_inexact);

}  // namespace vernier
