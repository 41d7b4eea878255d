#include <doctest/doctest.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <vernier/roles.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "temporary_folder.h"

namespace {

// The last word that a command prints.
std::string printed_by(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char word[64] = {};
  const int count = std::fscanf(pipe, "%63s", word);
  CHECK(::pclose(pipe) == 0);
  REQUIRE(count == 1);
  return word;
}

const std::string code_hash = "sh " VERNIER_SOURCE_DIR "/sdk/cmake/code_hash.sh ";

std::string hash_of(const std::string& header) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "header.h") << header;
  return printed_by(code_hash + (folder.path() / "header.h").string());
}

class Toy final : public vernier::Callback {
 public:
  explicit Toy(vernier::Options&) {}
};

}  // namespace

VERNIER_PLUGIN(Toy, "toy", "1.2.3")

TEST_CASE("abi: VERNIER_ABI is the hash of the contract's headers") {
  const auto now = printed_by(code_hash + "--abi");
  CHECK_MESSAGE(std::stoul(now, nullptr, 16) == VERNIER_ABI,
                "the headers changed: run `sh sdk/cmake/code_hash.sh --write`, which writes " << now);
}

TEST_CASE("abi: the contract has few headers, and sdk.h brings all of them but the host's") {
  const std::filesystem::path folder = VERNIER_SOURCE_DIR "/sdk/plugin/include/vernier";
  std::size_t count = 0;
  for (const auto& header : std::filesystem::directory_iterator(folder)) {
    if (header.is_directory()) continue;  // draft
    ++count;
    CAPTURE(header.path().string());
    const auto name = header.path().filename().string();
    const bool is_base = name == "abi.h" || name == "tensor.h" || name == "value.h";  // all others include these
    if (name != "sdk.h" && name != "host.h" && !is_base)
      CHECK(read_text(folder / "sdk.h").find("<vernier/" + name + ">") != std::string::npos);
  }
  CHECK(count <= 22);
}

TEST_CASE("abi: a change in draft/ leaves the hash as it was, and one in another header does not") {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const fs::path sdk = VERNIER_SOURCE_DIR "/sdk", copy = folder.path() / "sdk";
  fs::create_directories(copy / "plugin");
  fs::copy(sdk / "cmake", copy / "cmake");
  fs::copy(sdk / "plugin/include", copy / "plugin/include", fs::copy_options::recursive);
  const auto hash = [&] { return printed_by("sh " + (copy / "cmake/code_hash.sh").string() + " --abi"); };
  const auto before = hash();
  const auto headers = copy / "plugin/include/vernier";
  REQUIRE(fs::exists(headers / "draft/capture.h"));
  std::ofstream(headers / "draft/capture.h", std::ios::app) << "int another;\n";
  std::ofstream(headers / "draft/another.h") << "int another;\n";
  CHECK(hash() == before);
  std::ofstream(headers / "task.h", std::ios::app) << "int another;\n";
  CHECK(hash() != before);
}

TEST_CASE("abi: the contract's headers include none of draft/, so plugins without it do not see it") {
  for (const auto& header : std::filesystem::directory_iterator(VERNIER_SOURCE_DIR "/sdk/plugin/include/vernier")) {
    if (header.is_directory()) continue;
    CAPTURE(header.path().string());
    CHECK(read_text(header.path()).find("vernier/draft/") == std::string::npos);
  }
}

TEST_CASE("abi: comments and white space are no change, code is") {
  CHECK(hash_of("int x;  // one\n\n// two\n") == hash_of("int\tx;"));
  CHECK(hash_of("int x;") != hash_of("int y;"));
  CHECK(hash_of("#define VERNIER_ABI 7\nint x;\n") == hash_of("int x;"));
}

TEST_CASE("abi: the first two fields stand where every host looks for them") {
  static_assert(offsetof(vernier::Descriptor, abi) == 0 && sizeof(vernier::Descriptor::abi) == 4);
  static_assert(offsetof(vernier::Descriptor, build) == 4 && sizeof(vernier::Descriptor::build) == 60);
  static_assert(sizeof(VERNIER_BUILD) <= sizeof(vernier::Descriptor::build));
  CHECK(std::string(VERNIER_BUILD).starts_with("torch " TORCH_VERSION " cxx11abi="));
}

// A mixture must be refused: each of them changes the layout of objects or who owns memory.
TEST_CASE("abi: the build names sanitizers and checked containers") {
  const std::string build = VERNIER_BUILD;
#ifdef _GLIBCXX_DEBUG
  CHECK(build.find(" debug") != std::string::npos);
#else
  CHECK(build.find(" debug") == std::string::npos);
#endif
#if defined(__SANITIZE_ADDRESS__) || VERNIER_HAS_FEATURE(address_sanitizer)
  CHECK(build.ends_with(" asan"));
#elif defined(__SANITIZE_THREAD__) || VERNIER_HAS_FEATURE(thread_sanitizer)
  CHECK(build.ends_with(" tsan"));
#else
  CHECK(build.find("san") == std::string::npos);
#endif
}

TEST_CASE("abi: a plugin's macro fills the descriptor") {
  CHECK(vernier_plugin.abi == VERNIER_ABI);
  CHECK(std::string(vernier_plugin.build) == VERNIER_BUILD);
  CHECK(std::string(vernier_plugin.role) == "callback");
  CHECK(std::string(vernier_plugin.name) == "toy");
  CHECK(std::string(vernier_plugin.version) == "1.2.3");
  vernier::Options options("callback/toy", {}, "");
  const std::unique_ptr<vernier::Plugin> made(vernier_plugin.create(options));
  CHECK(dynamic_cast<Toy*>(made.get()) != nullptr);
}

TEST_CASE("abi: the LibTorch that is loaded is that of the headers") {
  CHECK(aoti_torch_abi_version() == TORCH_ABI_VERSION);
}
