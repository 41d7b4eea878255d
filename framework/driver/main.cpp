// The program `vernier`: it finds the program of a verb and becomes it, as git and cargo do. It has no LibTorch, which
// takes a fifth of a second to start, and which most verbs do not need.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>
#include <vernier/error.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/left_out.h"
#include "common/text/terminal.h"
#include "common/verb.h"
#include "common/version_line.h"
#include "core/synonyms.h"

namespace vernier {

namespace {

namespace fs = std::filesystem;

struct BuiltVerb {
  std::string_view name;
  std::string_view summary;  // its line in --help; empty if handed_on() names the verb, and people do not
  std::string_view program;  // "train": vernier-train runs it
  bool has_libtorch;         // its program loads LibTorch
};

// The verbs that were built with this program: vernier_add_verb() and vernier_share_verb() list them.
constexpr BuiltVerb built_verbs[] = {
#include "built_verbs.inc"
};

constexpr std::string_view program_prefix = "vernier-";
constexpr std::string_view runner = "train";  // its program knows the keys of configurations

const BuiltVerb* built_verb(std::string_view name) {
  const auto* found = std::ranges::find(built_verbs, name, &BuiltVerb::name);
  return found == std::end(built_verbs) ? nullptr : found;
}

// The programs of verbs lie in this folder too, in the build tree and in an installation.
fs::path folder_of_this_program() {
  return fs::read_symlink("/proc/self/exe").parent_path();
}

// Returns the folders in which the loader looks for the libraries of the programs beside this one. Their run path names
// LibTorch's folder, and the one of this program does not.
std::vector<fs::path> library_folders() {
  void* self = ::dlopen(nullptr, RTLD_LAZY);
  Dl_serinfo size = {};
  if (self == nullptr || ::dlinfo(self, RTLD_DI_SERINFOSIZE, &size) != 0) return {};
  std::vector<char> room(size.dls_size);
  auto* found = reinterpret_cast<Dl_serinfo*>(room.data());
  *found = size;
  if (::dlinfo(self, RTLD_DI_SERINFO, found) != 0) return {};
  const auto beside = folder_of_this_program();
  std::vector<fs::path> folders, of_system;
  for (unsigned i = 0; i < found->dls_cnt; ++i) {
    const auto& [name, from] = found->dls_serpath[i];
    const bool is_of_system = from != LA_SER_LIBPATH && from != LA_SER_RUNPATH;  // LD_LIBRARY_PATH, and ../lib
    (is_of_system ? of_system : folders).emplace_back(name);
  }
  // An installation, a wheel, and the build tree.
  const char* const in = fs::exists(beside.parent_path() / "__init__.py") ? "../../torch/lib" : "../lib/libtorch/lib";
  for (const char* place : {in, "lib/libtorch/lib"}) folders.push_back(beside / place);
  folders.insert(folders.end(), of_system.begin(), of_system.end());
  return folders;
}

// Returns the folder with LibTorch's lib and include; empty if the loader finds no LibTorch by its folders.
fs::path libtorch_folder() {
  for (const auto& folder : library_folders()) {
    std::error_code none;
    const auto file = (folder / "libtorch_cpu.so").lexically_normal();
    if (fs::exists(file, none)) return file.parent_path().parent_path();
  }
  return {};
}

// Returns the version in LibTorch's headers, "2.11.0"; "" if they are not there.
std::string version_of(const fs::path& libtorch) {
  for (const char* header : {"headeronly", "csrc/api/include/torch"}) {  // the second: before 2.10
    std::ifstream file(libtorch / "include/torch" / header / "version.h");
    std::string version;
    for (std::string define, name, number; file >> define;) {
      if (define != "#define" || !(file >> name >> number)) continue;
      if (name == "TORCH_VERSION_MAJOR") version = number;
      if (name == "TORCH_VERSION_MINOR" || name == "TORCH_VERSION_PATCH") version += "." + number;
    }
    if (!version.empty()) return version;
  }
  return "";
}

// Returns the folder of VernierConfig.cmake, in the build tree or in an installation.
fs::path cmake_folder() {
  const auto beside = folder_of_this_program();
  for (const auto& prefix : {beside, beside.parent_path()}) {
    if (fs::exists(prefix / "lib/cmake/Vernier/VernierConfig.cmake")) return prefix / "lib/cmake/Vernier";
  }
  throw std::runtime_error("the SDK is not installed: there is no lib/cmake/Vernier beside " + beside.string());
}

// Throws if the loader finds no LibTorch, or one of another minor version, whose symbols are others. The loader itself
// names a symbol and no version.
void refuse_another_libtorch() {
  constexpr std::string_view ours = VERNIER_TEXT(TORCH_VERSION_MAJOR) "." VERNIER_TEXT(TORCH_VERSION_MINOR) ".";
  const auto prefix = folder_of_this_program().parent_path();
  const bool is_wheel = fs::exists(prefix / "__init__.py");
  const std::string remedy = is_wheel ? "; pip install 'torch==" + std::string(ours) + "*'"
                                      : "; link the folder of LibTorch " TORCH_VERSION " as " +
                                            (prefix / "lib/libtorch").string() + " (pip's folder torch is one)";
  const auto folder = libtorch_folder();
  if (folder.empty()) {
    if (::dlopen("libtorch_cpu.so", RTLD_LAZY) != nullptr) return;  // in a folder of /etc/ld.so.conf
    throw std::runtime_error("LibTorch is not found (" + std::string(::dlerror()) + ")" + remedy);
  }
  const auto version = version_of(folder);
  if (version.empty() || version.starts_with(ours)) return;
  throw std::runtime_error("LibTorch " + version + " is in " + folder.string() +
                           ", and this Vernier was built with " TORCH_VERSION + remedy);
}

// Becomes the program of a verb, which lies beside this one or else in PATH. It stays the same process, with its open
// files and signals. Returns if there is no such program. argv: any word, the arguments of the verb, a null pointer.
void become(const std::string& verb, char** argv) {
  if (verb.find('/') != std::string::npos) return;  // a path
  const auto* built = built_verb(verb);
  const auto name = std::string(program_prefix) + std::string(built != nullptr ? built->program : verb);
  const auto program = folder_of_this_program() / name;
  if (built != nullptr && built->has_libtorch && fs::exists(program)) refuse_another_libtorch();
  auto called = std::string(program_prefix) + verb;  // a program of several verbs runs this one
  argv[0] = called.data();
  ::execv(program.c_str(), argv);
  if (errno == ENOENT) ::execvp(name.c_str(), argv);
  // EACCES: also if a folder of PATH may not be read.
  if (errno == ENOENT || errno == ENOTDIR || errno == EACCES) return;
  throw std::runtime_error(name + " cannot be started: " + std::generic_category().message(errno));
}

// Returns the verb that runs in place of this one: the laws of plugins, for example, are tried for
// `vernier check plugin.so`.
std::string_view handed_on(std::string_view verb, std::span<char* const> words) {
  if (verb == "new" && !words.empty()) {
    const std::string_view first = words.front();
    const bool is_kind = first == "plugin" || first == "task" || first == "app";
    if (first == "toml" || (!is_kind && fs::exists(first))) return "new-toml";
  }
  for (const std::string_view word : words) {
    const bool is_library = word.ends_with(".so") && word.find('=') == word.npos;
    if (verb == "check" && is_library) return "check-plugin";
    if (verb == "config" && word == "--schema") return "schema";
  }
  return verb;
}

// Returns the verbs of the programs beside this one, of ours and of others.
std::set<std::string> verbs_beside() {
  std::set<std::string> verbs;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder_of_this_program(), none)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with(program_prefix)) verbs.insert(name.substr(program_prefix.size()));
  }
  for (const auto& [name, summary, program, _] : built_verbs) {
    if (summary.empty()) {
      verbs.erase(std::string(name));
    } else if (verbs.contains(std::string(program))) {
      verbs.emplace(name);
    }
  }
  return verbs;
}

// Returns why no program runs a verb, and what to write instead.
std::string why_no_verb(const std::string& verb) {
  if (verb.starts_with("-")) return "say a verb first, and its options after it; see vernier --help";
  if (const auto* built = built_verb(verb); built != nullptr) {
    return "the program " + std::string(program_prefix) + std::string(built->program) + " is missing in " +
           folder_of_this_program().string() + "; build or install it again";
  }
  if (const auto why = left_out(verb); !why.empty()) return why;
  const auto beside = verbs_beside();
  const auto near = nearest(verb, {beside.begin(), beside.end()});
  return "there is no verb \"" + shortened(verb) + "\"" +
         (near.empty() ? "; see vernier --help" : "; did you mean " + near + "?");
}

void print_summaries(std::ostream& out, bool of_runner) {
  constexpr std::size_t column = 14;
  for (const auto& [name, summary, program, _] : built_verbs) {
    if (summary.empty() || (program == runner) != of_runner) continue;
    out << "  " << name << std::string(column - name.size(), ' ') << summary << '\n';
  }
}

void print_usage(std::ostream& page) {
  std::ostringstream out;
  out << "usage: vernier VERB …\n\n";
  print_summaries(out, /*of_runner=*/true);
  out << '\n';
  print_summaries(out, /*of_runner=*/false);
  out << R"(
Any other verb runs the program vernier-VERB of PATH. `vernier VERB --help` has
the options of a verb.

  -h, --help        prints this
  -V, --version     prints the version, and that of LibTorch
  --cmake-dir       prints the folder of VernierConfig.cmake
  --libtorch-dir    prints the folder of LibTorch that the programs load

In the source tree ./vernier builds what is missing and has these verbs too:
  build [TARGET…]        builds the program and its plugins
  test [CTEST OPTIONS]   builds and runs the tests
  bench [NAME…]          builds and runs the benchmarks
  lint [FILE…]           checks layout, language and scripts of the tree
  docs                   makes one site of the documents
  wheel                  packs what is built as a wheel for pip
  gpu-pack               packs what is built for a bare machine with a GPU
)";
  page << help_page(out.str());
}

// Prints what a shell offers, for the scripts in framework/driver/shell: `vernier complete WORD…`.
int complete(int argc, char** argv) {
  std::size_t cut = 0;
  const auto words = joined_pieces({argv + 2, argv + argc}, cut);
  const auto& now = words.back();
  if (words.size() > 1) {
    const auto& before = words[words.size() - 2];
    const bool is_setting = before == "--set" || before == "--sweep" || now.starts_with("--set=");
    const std::string verb = is_setting ? std::string(runner) : words.front();
    // A program of somebody else may not know `complete`, and do its work.
    if (built_verb(verb) == nullptr) return 0;
    std::swap(argv[1], argv[2]);
    become(verb, argv + 1);
    return 0;
  }
  for (const auto& word : now.starts_with("-")
                              ? std::set<std::string>{"--cmake-dir", "--help", "--libtorch-dir", "--version"}
                              : verbs_beside()) {
    if (word.starts_with(now)) std::cout << word.substr(cut) << '\n';
  }
  return 0;
}

int run(int argc, char** argv) {
  if (argc < 2) {
    print_usage(std::cerr);
    return 2;
  }
  std::string help = "--help";
  if (std::string_view(argv[1]) == "help") {  // `vernier help check` is `vernier check --help`
    argv[1] = argc == 2 ? help.data() : argv[2];
    if (argc > 2) argv[2] = help.data();
  }
  const std::string verb(handed_on(argv[1], std::span(argv + 2, argv + argc)));
  if (verb == "complete") return complete(argc, argv);
  if (verb == "--version" || verb == "-V") {
    std::cout << version_line << '\n';
  } else if (verb == "--help" || verb == "-h") {
    print_usage(std::cout);
  } else if (verb == "--cmake-dir") {
    std::cout << cmake_folder().string() << '\n';
  } else if (verb == "--libtorch-dir") {
    refuse_another_libtorch();
    std::cout << libtorch_folder().string() << '\n';
  } else {
    if (!verb.starts_with("-")) become(verb, argv + 1);
    throw std::runtime_error(why_no_verb(verb));
  }
  return 0;
}

}  // namespace

}  // namespace vernier

int main(int argc, char** argv) {
  try {
    return vernier::after_output(vernier::run(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "vernier: " << error.what() << '\n';
    return 2;
  }
}
