#include <doctest/doctest.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <vernier/roles.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <vector>

namespace {

// The hash of the headers when VERNIER_ABI was last raised. A plugin that was built with other headers must not be
// opened.
constexpr int recorded_abi = 12;
constexpr std::uint64_t recorded_hash = 0x52a3677911175c53;

// All of them, for a plugin holds objects of any class that is declared there.
std::vector<std::filesystem::path> headers() {
  std::vector<std::filesystem::path> all;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(VERNIER_SOURCE_DIR "/sdk/plugin/include/vernier")) {
    if (entry.is_regular_file()) all.push_back(entry.path());
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::string read(const std::filesystem::path& header) {
  std::ifstream in(header);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Without comments and white space, and without the line that holds the number itself.
std::string code_of(const std::string& text) {
  std::string code;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#define VERNIER_ABI ")) continue;
    bool quoted = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '"' && (i == 0 || line[i - 1] != '\\')) quoted = !quoted;
      if (!quoted && line.compare(i, 2, "//") == 0) break;
      if (quoted || line[i] > ' ') code += line[i];
    }
  }
  return code;
}

// FNV-1a.
std::uint64_t hash_of(const std::string& bytes, std::uint64_t hash = 0xcbf29ce484222325) {
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

std::string hexadecimal(std::uint64_t number) {
  std::ostringstream text;
  text << "0x" << std::hex << std::setw(16) << std::setfill('0') << number;
  return text.str();
}

class Toy final : public vernier::Callback {
 public:
  explicit Toy(vernier::Options&) {}
};

}  // namespace

VERNIER_PLUGIN(Toy, "toy", "1.2.3")

TEST_CASE("abi: what crosses the door does not change without a new VERNIER_ABI") {
  std::uint64_t hash = hash_of("");
  CHECK(headers().size() >= 17);
  for (const auto& header : headers()) {
    CAPTURE(header.string());
    const std::string code = code_of(read(header));
    REQUIRE(!code.empty());
    hash = hash_of(code, hash);
  }
  const std::string remedy = VERNIER_ABI == recorded_abi
                                 ? "the headers changed: bump VERNIER_ABI in abi.h and record " + hexadecimal(hash)
                                 : "VERNIER_ABI was bumped: record it with " + hexadecimal(hash);
  CHECK_MESSAGE((hash == recorded_hash && VERNIER_ABI == recorded_abi), remedy);
}

TEST_CASE("abi: comments and white space are no change, code is") {
  CHECK(code_of("int x;  // one\n\n// two\n") == code_of("int\tx;"));
  CHECK(code_of("a = \"b // c\";") == "a=\"b // c\";");
  CHECK(code_of("int x;") != code_of("int y;"));
  CHECK(code_of("#define VERNIER_ABI 7\nint x;") == "intx;");
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
