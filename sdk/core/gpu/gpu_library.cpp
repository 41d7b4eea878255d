// Compiled by itself, with VERNIER_CUDA_LAYOUT (CMakeLists.txt).
#include "gpu_library.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <dlfcn.h>
#include <vernier/error.h>
#include <vernier/plugin.h>

#include <atomic>
#define BOOST_DLL_USE_STD_FS  // core links nothing of Boost
#include <boost/dll/shared_library.hpp>
#include <deque>
#include <filesystem>

#include "gpu_norms.h"

namespace vernier {

namespace {

std::atomic<bool> is_wanted = true;

const gpu::Library* found_for(const c10::Device& device) {
  try {
    const auto& library = open_gpu_library(gpu_library_file());
    if (const auto* trouble = library.trouble(); trouble != nullptr) throw Error(trouble);
    if (const auto wrong = wrong_on_device(library, device); !wrong.empty()) {
      throw Error("its " + wrong + " differs from the CPU's");
    }
    log(Level::info, "cuda",
        "Vernier's CUDA kernels compute optimizers, gradient norms, cross entropy, roundings and casts");
    register_norms_on_gpu();
    return &library;
  } catch (const std::exception& error) {
    log(Level::warning, "cuda",
        c10::str("optimizers, gradient norms, cross entropy, roundings and casts take longer, by LibTorch's operators: "
                 "Vernier's CUDA kernels cannot be used: ",
                 error.what()));
    return nullptr;
  }
}

}  // namespace

const gpu::Library* gpu_library(const c10::Device& device) {
  if (!device.is_cuda() || !is_wanted) return nullptr;
  static const gpu::Library* const library = found_for(device);
  return library;
}

void use_gpu_library(bool on) {
  is_wanted = on;
}

bool uses_gpu_library(const c10::Device& device) {
  return gpu_library(device) != nullptr;
}

const gpu::Library& open_gpu_library(const std::string& file) {
  if (!std::filesystem::exists(file)) {
    throw Error("Vernier was built without them: set CUDACXX to nvcc, and build again with the component cuda");
  }
  static auto* opened = new std::deque<boost::dll::shared_library>();  // never closed
  auto& library = opened->emplace_back();
  std::error_code trouble;
  library.load(file, trouble, boost::dll::load_mode::rtld_now);
  if (trouble) throw Error(file + " cannot be opened: " + dlerror());
  const auto* exported = library.has("vernier_cuda") ? &library.get<const gpu::Library>("vernier_cuda") : nullptr;
  if (exported == nullptr || exported->layout != VERNIER_CUDA_LAYOUT) {
    throw Error(file + " is of another build of Vernier: build it again");
  }
  return *exported;
}

std::string gpu_library_file(const std::string& name) {
  Dl_info here{};
  dladdr(reinterpret_cast<const void*>(&open_gpu_library), &here);
  const auto folder = std::filesystem::path(here.dli_fname).parent_path();
  const auto beside = folder / name;
  return std::filesystem::exists(beside) ? beside : folder / "vernier" / name;
}

gpu::Kind kind_of(c10::ScalarType dtype) {
  if (dtype == c10::kBFloat16) return gpu::Kind::bfloat16;
  return dtype == c10::kHalf ? gpu::Kind::half : gpu::Kind::float32;
}

gpu::Stream stream_of(const c10::Device& device) {
  if (device.is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

void require_launched(gpu::Trouble trouble, const char* kernel) {
  if (trouble != nullptr) throw Error(c10::str("the CUDA kernel ", kernel, " cannot be launched: ", trouble));
}

}  // namespace vernier
