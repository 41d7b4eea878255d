// libvernier_cuda_graph.so: CUDA graphs by LibTorch's CUDAGraph, which gives them memory of their own and lets random
// operators draw new numbers. It is opened where a GPU is, because it needs LibTorch's CUDA library.
#include <ATen/DeviceAccelerator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include "device_graph.h"

namespace vernier {

namespace {

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(c10::DeviceIndex device) : device_(device) {}

  void capture(const std::function<void()>& work) override {
    const c10::cuda::CUDAStreamGuard on(stream());
    at::accelerator::synchronizeDevice(device_);
    at::accelerator::emptyCache();  // what the same work has left there is needed in the graph's memory
    // Other threads load data, and may ask the driver for anything.
    graph_.capture_begin(pool(), cudaStreamCaptureModeThreadLocal);
    try {
      work();
      graph_.capture_end();
    } catch (...) {
      give_up();
      throw;
    }
  }

  void replay() override { graph_.replay(); }

 private:
  // Autograd computes backward on the stream of forward, so all graphs are recorded on one stream. One of them runs at
  // a time, so they may share memory (PyTorch's documentation, "CUDA semantics: sharing memory across captures").
  c10::cuda::CUDAStream stream() const {
    static const auto one = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_);
    return one;
  }
  static at::cuda::MempoolId_t pool() {
    static const auto one = at::cuda::graph_pool_handle();
    return one;
  }

  // After a failure CUDAGraph leaves the stream, the allocator and the generator in the state of a recording.
  void give_up() {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream(), &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
      cudaGraph_t broken = nullptr;
      if (cudaStreamEndCapture(stream(), &broken) == cudaSuccess && broken != nullptr) cudaGraphDestroy(broken);
    }
    (void)cudaGetLastError();
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool());
    } catch (const c10::Error&) {  // capture_end() had got so far
    }
    auto* generator = at::check_generator<at::CUDAGeneratorImpl>(at::cuda::detail::getDefaultCUDAGenerator(device_));
    auto fresh = c10::make_intrusive<at::CUDAGeneratorState>(generator->current_seed());
    generator->graphsafe_set_state(c10::make_intrusive<at::CUDAGeneratorImpl>(device_, std::move(fresh)));
  }

  c10::DeviceIndex device_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) DeviceGraph* vernier_new_cuda_graph(c10::DeviceIndex device) {
  return new CudaGraph(device);
}

}  // namespace vernier
