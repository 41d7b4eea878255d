#include "device_graph.h"

#include <vernier/error.h>
#include <vernier/plugin.h>

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

namespace {

const boost::dll::shared_library& compile_library() {
  const std::filesystem::path file = gpu_library_file("libvernier_compile.so");
  if (!exists(file)) {
    throw Error("Vernier was built without the component compile: build it again with -DVERNIER_COMPONENTS=all");
  }
  static const boost::dll::shared_library library(file);
  return library;
}

}  // namespace

MakeDeviceGraph compiled_graphs() {
  const auto make = compile_library().get<DeviceGraph*()>("vernier_new_compiled_graph");
  return [make] { return std::unique_ptr<DeviceGraph>(make()); };
}

std::unique_ptr<RecordedPasses> recorded_passes(MakeDeviceGraph make, Recordings kind) {
  const auto make_passes =
      compile_library().get<RecordedPasses*(MakeDeviceGraph, Recordings)>("vernier_new_recorded_passes");
  return std::unique_ptr<RecordedPasses>(make_passes(std::move(make), kind));
}

void compare_engines(const std::string& saved, bool is_compiled, bool allow_inexact) {
  const bool was_compiled = saved.find(' ') != std::string::npos;  // a shape
  if (is_compiled ? !saved.empty() : !was_compiled) return;
  const std::string text = std::string("forward and backward were computed ") +
                           (is_compiled ? "by the operators, and may now be by a compiled program"
                                        : "by a compiled program, and are now by the operators");
  if (!allow_inexact) {
    refuse("the run cannot be resumed bit for bit: " + text +
           "; set [run] engine as it was, or give --allow-inexact to resume all the same");
  }
  log(Level::warning, "resume", text + "; it is resumed all the same");
}

}  // namespace vernier
