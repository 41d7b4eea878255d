// Work of a device that is recorded once and then repeated by one call of the host: on a GPU, a CUDA graph.
#pragma once

#include <c10/core/Device.h>
#include <vernier/abi.h>

#include <functional>
#include <memory>

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
};

// Returns a graph of a device. Graphs of one maker share memory, so what one has computed is valid until another one is
// replayed, except for tensors that somebody holds.
using MakeDeviceGraph = std::function<std::unique_ptr<DeviceGraph>()>;

// Returns what makes CUDA graphs for the opened device. Throws Error where Vernier was built without them.
VERNIER_API MakeDeviceGraph cuda_graphs(c10::Device device);

}  // namespace vernier
