#include "device_graph.h"

#include <vernier/error.h>
#include <vernier/memory.h>

#include <boost/dll/runtime_symbol_info.hpp>
#include <boost/dll/shared_library.hpp>

namespace vernier {

MakeDeviceGraph cuda_graphs(c10::Device device) {
  // Beside the library of core, as the CUDA kernels are.
  const auto folder = boost::dll::symbol_location(free_memory).parent_path();
  auto file = folder / "libvernier_cuda_graph.so";
  if (!exists(file)) file = folder / "vernier" / "libvernier_cuda_graph.so";
  if (!exists(file)) {
    throw Error(
        "Vernier was built without them, because nvcc or LibTorch's CUDA library was not found: set CUDACXX to nvcc "
        "and LIBTORCH to a LibTorch with CUDA, and build again");
  }
  static const boost::dll::shared_library library(file);
  const auto make = library.get<DeviceGraph*(c10::DeviceIndex)>("vernier_new_cuda_graph");
  return [make, index = device.index()] { return std::unique_ptr<DeviceGraph>(make(index)); };
}

}  // namespace vernier
