#include "version.h"

#include <ATen/Context.h>
#include <torch/headeronly/version.h>
#include <vernier/abi.h>

#include <boost/dll/runtime_symbol_info.hpp>
#include <iostream>

#include "files/json.h"

namespace vernier {

namespace {

std::string compiler() {
#ifdef __clang__
  return std::string("clang ") + __clang_version__;
#else
  return std::string("gcc ") + __VERSION__;
#endif
}

// Returns true if this LibTorch was compiled with CUDA; no library is opened to find out.
bool has_cuda() {
  return boost::dll::fs::exists(boost::dll::symbol_location(at::globalContext).parent_path() / "libtorch_cuda.so");
}

}  // namespace

std::string version_line() {
  return std::string("vernier ") + VERNIER_VERSION + ", plugin ABI " + abi_text(VERNIER_ABI) + ", " + VERNIER_BUILD;
}

int print_version(bool as_json) {
  const OrderedJson version = {{"name", "vernier"},         {"version", VERNIER_VERSION},
                               {"plugin_abi", VERNIER_ABI}, {"build", VERNIER_BUILD},
                               {"libtorch", TORCH_VERSION}, {"cuda", has_cuda()},
                               {"compiler", compiler()},    {"cxx11_abi", _GLIBCXX_USE_CXX11_ABI == 1}};
  if (as_json) {
    std::cout << version.dump(2) << '\n';
    return 0;
  }
  std::cout << version_line() << "\ncompiled by " << compiler() << "; LibTorch " << TORCH_VERSION
            << (has_cuda() ? " with CUDA\n" : " without CUDA\n");
  return 0;
}

}  // namespace vernier
