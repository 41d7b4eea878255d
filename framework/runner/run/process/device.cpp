#include "device.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <sys/resource.h>
#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/launch_place.h>
#include <vernier/memory.h>
#include <vernier/plugin.h>

#include <boost/dll/runtime_symbol_info.hpp>
#include <boost/dll/shared_library.hpp>
#include <cstdlib>
#include <filesystem>

namespace vernier {

namespace {

// The traces of a driver that the wrapper looks for too.
bool has_nvidia_driver() {
  return std::filesystem::exists("/dev/nvidiactl") || std::filesystem::exists("/proc/driver/nvidia/version") ||
         std::filesystem::exists("/usr/lib/wsl/lib/libcuda.so.1");
}

// Opens libtorch_cuda beside libtorch_cpu; "" or why it cannot be opened. Its kernels register themselves on opening.
std::string open_cuda_library() {
  // cuBLAS is deterministic only with a fixed workspace, and reads this when it starts.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  const auto beside = boost::dll::symbol_location(at::globalContext).parent_path() / "libtorch_cuda.so";
  static auto* library = new boost::dll::shared_library();
  boost::dll::fs::error_code trouble;
  library->load(beside, trouble, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_global);
  return trouble ? ::dlerror() : "";  // `trouble` has no text of the loader
}

}  // namespace

c10::Device open_device(const std::string& wanted) {
  if (wanted == "cpu" || (wanted == "auto" && !has_nvidia_driver())) return c10::kCPU;
  const bool is_cuda = wanted == "auto" || wanted == "cuda" || wanted.starts_with("cuda:");
  if (!is_cuda)
    refuse("is \"" + shortened(wanted) +
           "\", which is not a device; it takes auto, cpu, cuda, or cuda:1 for the second GPU");
  c10::Device device(c10::kCUDA, 0);
  if (wanted.starts_with("cuda:")) {
    try {
      device = c10::Device(wanted);
    } catch (const std::exception&) {
      refuse("is \"" + shortened(wanted) + "\", which is not a device; the second GPU is cuda:1");
    }
  }
  if (!has_nvidia_driver())
    refuse("is \"" + shortened(wanted) +
           "\", and there is no NVIDIA GPU or driver on this machine; use \"cpu\" or \"auto\"");
  if (const auto trouble = open_cuda_library(); !trouble.empty()) {
    const std::string why = "is \"" + shortened(wanted) + "\", and LibTorch's CUDA library cannot be opened (" +
                            trouble + "); VERNIER_CUDA=1 ./vernier gets it whole";
    if (wanted != "auto") refuse(why);
    log(Level::warning, "device", "there is an NVIDIA driver, but `device` " + why + "; training on the CPU");
    return c10::kCPU;
  }
  const auto gpus = at::globalContext().hasCUDA() ? at::accelerator::deviceCount() : c10::DeviceIndex{0};
  if (gpus <= device.index()) {
    if (wanted == "auto") return c10::kCPU;
    refuse("is \"" + shortened(wanted) + "\", and this machine has " + std::to_string(gpus) + " usable GPUs");
  }
  if (!wanted.starts_with("cuda:")) {
    device.set_index(static_cast<c10::DeviceIndex>(local_rank_in_environment() % gpus));
  }
  at::accelerator::setDeviceIndex(device.index());
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  return device;
}

std::int64_t peak_memory(c10::Device device) {
  if (device.is_cuda()) return highest_memory(device);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

bool is_set(const at::Tensor& flag) {
  return *flag.const_data_ptr<float>() != 0.0F;
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

void LateNumbers::send(const at::Tensor& numbers) {
  const c10::Device device = numbers.device();
  if (device.is_cpu()) {
    host_ = numbers.clone();
    return;
  }
  // A new buffer each time: the allocator of pinned memory gives the last one back when its copy is done.
  host_ = at::empty(numbers.sizes(), numbers.options().device(c10::kCPU).pinned_memory(true));
  host_.copy_(numbers, /*non_blocking=*/true);
  copied_.emplace(device.type());
  copied_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

std::optional<std::vector<float>> LateNumbers::receive() {
  if (!host_.defined()) return std::nullopt;
  if (copied_) copied_->synchronize();
  copied_.reset();
  const auto host = std::exchange(host_, {});
  const auto* first = host.const_data_ptr<float>();
  return std::vector<float>(first, first + host.numel());
}

}  // namespace vernier
