#include "nccl_library.h"

#include <c10/util/StringUtil.h>
#include <dlfcn.h>
#include <vernier/abi.h>
#include <vernier/error.h>

#include <boost/dll/runtime_symbol_info.hpp>
#include <boost/dll/shared_library.hpp>

namespace ddp {

using vernier::Error;

// This code is in plugins/distributed/ddp.so.
std::filesystem::path nccl_file() {
  const std::filesystem::path plugin = boost::dll::this_line_location().string();
  return plugin.parent_path().parent_path().parent_path() / "libvernier_nccl.so";
}

const NcclLibrary& open_nccl_library(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) {
    throw Error("Vernier was built without NCCL, since nccl.h or a header of CUDA was not found");
  }
  auto* library = new boost::dll::shared_library();  // never unloaded
  boost::dll::fs::error_code trouble;
  library->load(boost::dll::fs::path(file.string()), trouble, boost::dll::load_mode::rtld_now);
  if (trouble) throw Error(file.string() + " cannot be opened: " + ::dlerror());
  const auto& opened = library->get<const NcclLibrary>("vernier_nccl");
  if (opened.abi != VERNIER_ABI) throw Error(file.string() + " is of another build of Vernier; build it anew");
  if (const auto libtorchs = opened.libtorchs(); opened.compiled / 100 != libtorchs / 100) {
    throw Error(c10::str("Vernier was built with the headers of NCCL ", opened.compiled,
                         ", and LibTorch with those of ", libtorchs));
  }
  return opened;
}

}  // namespace ddp
