#include "sanitize.h"

#include <dlfcn.h>
#include <unistd.h>
#include <vernier/error.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

namespace vernier {

namespace {

// Options of the user stay in force: the last of two equal options counts.
void put_before(const char* variable, const std::string& options) {
  const char* own = std::getenv(variable);
  ::setenv(variable, (own != nullptr ? options + ":" + own : options).c_str(), /*overwrite=*/1);
}

std::string runtime_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) refuse(printable(file.string()) + ": cannot be read");
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  static const std::regex name(R"(lib(asan\.so\.[0-9]+|clang_rt\.asan[-_a-z0-9]*\.so))");
  std::smatch found;
  if (!std::regex_search(bytes, found, name)) {
    refuse(printable(file.string()) +
           ": built without the address sanitizer; configure its project with "
           "-DCMAKE_CXX_FLAGS='-g -fsanitize=address,undefined' (clang: and -shared-libsan), and build it");
  }
  return found.str();
}

}  // namespace

void start_sanitized(const std::filesystem::path& file, char** argv) {
  const auto runtime = runtime_of(file);
  if (::dlsym(RTLD_DEFAULT, "__asan_init") != nullptr) return;
  const char* preloaded = std::getenv("LD_PRELOAD");
  if (preloaded != nullptr && std::string(preloaded).starts_with(runtime)) {
    refuse(runtime + ", which the plugin needs, cannot be loaded; install it, or add its folder to LD_LIBRARY_PATH");
  }
  ::setenv("LD_PRELOAD", (runtime + (preloaded != nullptr ? std::string(":") + preloaded : "")).c_str(), 1);
  // LibTorch and its libraries keep memory until the end, which is not a leak of the plugin: the law of growth sees
  // those.
  put_before("ASAN_OPTIONS", "detect_leaks=0");
  put_before("UBSAN_OPTIONS", "halt_on_error=1");
  ::execv("/proc/self/exe", argv);
  throw Error("the program cannot be started again with " + runtime);
}

std::string finding_in(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("SUMMARY: ")) return line.substr(std::string("SUMMARY: ").size());
    if (line.find(": runtime error: ") != std::string::npos) return line;
  }
  return "";
}

}  // namespace vernier
