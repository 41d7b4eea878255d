// libvernier_cuda_graph.so: CUDA graphs by LibTorch's CUDAGraph, which gives them memory of their own and lets random
// operators draw new numbers. It is opened where a GPU is, because it needs LibTorch's CUDA library.
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include <map>
#include <memory>

#include "../core/gpu/device_graph.h"

namespace vernier {

namespace {

// The stream and the memory with which a device records. Autograd computes backward on the stream of forward, so all
// graphs are recorded on one stream. One of them runs at a time, so they share memory (PyTorch's documentation, "CUDA
// semantics: sharing memory across captures"). Once all graphs are gone, LibTorch takes no more from a pool, so the
// next graph makes another place.
struct Place {
  explicit Place(c10::DeviceIndex device) : stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)) {}
  c10::cuda::CUDAStream stream;
  at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();

  static std::shared_ptr<Place> of(c10::DeviceIndex device) {
    static std::map<c10::DeviceIndex, std::weak_ptr<Place>> places;
    auto place = places[device].lock();
    if (!place) places[device] = place = std::make_shared<Place>(device);
    return place;
  }
};

struct Graph final : at::cuda::CUDAGraph {
  bool has_ended() const { return capture_ended_; }
  void let_generators_go() {
    for (auto& [state, increment] : captured_generator_states_) state->capturing_ = false;
  }
};

// Returns false if it throws.
template <class Body>
bool succeeds(const Body& body) try {
  body();
  return true;
} catch (const c10::Error&) {
  return false;
}

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(c10::DeviceIndex device) : device_(device), place_(Place::of(device)) {}

  void capture(const std::function<void()>& work) override {
    const c10::cuda::CUDAStreamGuard on(place_->stream);
    at::accelerator::synchronizeDevice(device_);
    at::accelerator::emptyCache();  // the graph's own memory needs the blocks that the same work has cached
    try {
      // Other threads load data, and may ask the driver for anything.
      graph_.capture_begin(place_->pool, cudaStreamCaptureModeThreadLocal);
      work();
      graph_.capture_end();
    } catch (...) {
      give_up();
      throw;
    }
  }

  void replay() override { graph_.replay(); }

 private:
  // After a failure CUDAGraph leaves the stream, both allocators and the generator in the state of a recording, and
  // keeps its memory. A part that was not reached refuses to be ended.
  void give_up() {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(place_->stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
      cudaGraph_t broken = nullptr;
      if (cudaStreamEndCapture(place_->stream, &broken) == cudaSuccess && broken != nullptr) cudaGraphDestroy(broken);
    }
    (void)cudaGetLastError();
    namespace allocator = c10::cuda::CUDACachingAllocator;
    auto* const host = at::getHostAllocator(at::kCUDA);
    const auto pool = place_->pool;
    const bool device_began = succeeds([&] { allocator::endAllocateToPool(device_, pool); });
    const bool host_began = succeeds([&] { host->end_allocate_to_pool(pool); });
    if (!graph_.has_ended()) {
      if (device_began) succeeds([&] { allocator::releasePool(device_, pool); });
      if (host_began) succeeds([&] { host->release_pool(pool); });
    }
    graph_.let_generators_go();
  }

  c10::DeviceIndex device_;
  std::shared_ptr<Place> place_;  // outlives the graph
  Graph graph_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) DeviceGraph* vernier_new_cuda_graph(c10::DeviceIndex device) {
  return new CudaGraph(device);
}

}  // namespace vernier
