#include "device_graph.h"

#include <vernier/error.h>

#define BOOST_DLL_USE_STD_FS  // core links nothing of Boost
#include <boost/dll/shared_library.hpp>
#include <filesystem>

#include "gpu/gpu_library.h"

namespace vernier {

MakeDeviceGraph cuda_graphs(c10::Device device) {
  const std::filesystem::path file = gpu_library_file("libvernier_cuda_graph.so");
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
