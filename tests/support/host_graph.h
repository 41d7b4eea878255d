// A graph of the CPU, for tests of what a GPU records: a tape, which is repeated on the same memory. As in a CUDA
// graph, numbers of the host are those of the recording, and what does not pass LibTorch's dispatcher is not repeated.
#pragma once

#include <memory>

#include "compile/tape.h"
#include "gpu/device_graph.h"

class HostGraph final : public vernier::DeviceGraph {
 public:
  static inline int made = 0, replays = 0;

  // Forgets the counts.
  static vernier::MakeDeviceGraph maker() {
    made = replays = 0;
    return [] {
      made += 1;
      return std::make_unique<HostGraph>();
    };
  }

  void capture(const std::function<void()>& work) override { tape_.record(work); }
  void replay() override {
    replays += 1;
    for (const auto& call : tape_.calls()) vernier::Tape::repeat(call);
  }

 private:
  vernier::Tape tape_;
};
