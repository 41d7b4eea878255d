#include "library.h"

#include <c10/util/StringUtil.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vernier/checksum.h>
#include <vernier/error.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace vernier::compile {

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// No fast-math: infinities and NaN stay what they are. Without errno, a square root is one instruction.
const char* const flags =
    "-std=c++17 -O3 -march=native -fno-math-errno -fno-trapping-math -fopenmp-simd -fPIC -shared -w";

Words words_of(const std::string& text) {
  std::istringstream in(text);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

Words compiler() {
  const char* chosen = std::getenv("CXX");
  auto words = words_of(chosen == nullptr ? "" : chosen);
  return words.empty() ? Words{"c++"} : words;
}

std::string content_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const fs::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw Error("'" + file.string() + "' cannot be written: " + std::strerror(errno));
}

// Its first line of the model and the first of its instructions.
std::string processor() {
  std::ifstream in("/proc/cpuinfo");
  std::string text, line;
  while (std::getline(in, line) && !line.empty()) {
    if (line.starts_with("model name") || line.starts_with("flags") || line.starts_with("Features")) text += line;
  }
  return text;
}

// Which file the compiler is: an update of it is another compiler.
std::string identity_of(const Words& compiler) {
  std::string text = c10::Join(" ", compiler);
  const char* path = std::getenv("PATH");
  std::istringstream folders(compiler[0].find('/') == std::string::npos && path != nullptr ? path : "");
  fs::path file = compiler[0];
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((fs::path(folder) / compiler[0]).c_str(), X_OK) != 0) continue;
    file = fs::path(folder) / compiler[0];
    break;
  }
  std::error_code none;
  const auto real = fs::canonical(file, none);
  const auto size = fs::file_size(real, none);
  const auto written = fs::last_write_time(real, none).time_since_epoch().count();
  return c10::str(text, ' ', real.string(), ' ', size, ' ', written);
}

// Its standard error, or "" if it ended well.
std::string run(const Words& words, const fs::path& errors) {
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  posix_spawnattr_t attributes;  // a group of its own, so that Ctrl-C stops the run after its step and not the compiler
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  pid_t child = 0;
  const int trouble = posix_spawnp(&child, words[0].c_str(), &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  const std::string remedy = "; install g++, or set CXX to a compiler of C++17";
  if (trouble != 0) return "the compiler '" + words[0] + "' cannot be started: " + std::strerror(trouble) + remedy;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return std::string("the compiler cannot be waited for: ") + std::strerror(errno);
  }
  if (status == 0) return "";
  const auto said = content_of(errors);
  auto line = said.substr(0, said.find('\n'));
  if (const auto place = said.find("error: "); place != std::string::npos) {
    line = said.substr(place, said.find('\n', place) - place);
  }
  const std::string how = WIFSIGNALED(status) ? c10::str("was ended by signal ", WTERMSIG(status)) : "has failed";
  return "the compiler '" + words[0] + "' " + how + (line.empty() ? "" : ": " + shortened(line)) + remedy;
}

bool is_private(const fs::path& folder) {
  struct stat facts {};
  return ::stat(folder.c_str(), &facts) == 0 && facts.st_uid == ::geteuid() &&
         (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Returns "" if there is no folder in which this user alone writes.
fs::path cache() {
  const char *chosen = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  fs::path folder;
  if (chosen != nullptr && *chosen == '/') {
    folder = chosen;
  } else if (home != nullptr && *home == '/') {
    folder = fs::path(home) / ".cache";
  } else {
    return {};
  }
  folder /= "vernier/compiled";
  std::error_code trouble;
  fs::create_directories(folder, trouble);
  return !trouble && is_private(folder) && ::access(folder.c_str(), W_OK) == 0 ? folder : fs::path();
}

// A folder of this process for one compilation.
struct Scratch {
  Scratch() {
    auto name = (fs::temp_directory_path() / "vernier-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Error("'" + name + "' cannot be made: " + std::strerror(errno));
    folder = name;
  }
  ~Scratch() {
    std::error_code none;
    fs::remove_all(folder, none);
  }
  Scratch(Scratch&&) = delete;
  fs::path folder;
};

Library opened_file(const fs::path& file, const std::string& id) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw Error(std::string("the program cannot be opened: ") + ::dlerror());
  Library library{reinterpret_cast<Function>(::dlsym(handle, "vernier_forward")),
                  reinterpret_cast<Function>(::dlsym(handle, "vernier_backward")), id};
  if (library.forward == nullptr || library.backward == nullptr) throw Error("'" + file.string() + "' has no program");
  return library;
}

// Copies the program into the cache under another name first, because another process may read or write the same one.
// Returns false where that fails, as on a full disk: the next run compiles it again.
bool keep(const fs::path& made, const fs::path& kept, const std::string& checksum) {
  std::error_code trouble;
  const auto part = [](fs::path file) { return file += c10::str(".", ::getpid(), ".part"); };
  const auto sum = fs::path(kept).replace_extension("sum");
  fs::copy_file(made, part(kept), fs::copy_options::overwrite_existing, trouble);
  if (!trouble) fs::rename(part(kept), kept, trouble);
  if (!trouble) {
    std::ofstream(part(sum)) << checksum;
    fs::rename(part(sum), sum, trouble);
  }
  if (!trouble) return true;
  for (const auto& file : {kept, sum}) fs::remove(part(file), trouble);
  return false;
}

}  // namespace

Library opened(const std::string& source) {
  auto command = compiler();
  const auto id = checksum_of(source + flags + identity_of(command) + processor()).substr(0, 16);
  const auto folder = cache(), kept = folder / (id + ".so");
  std::error_code none;
  if (!folder.empty() && fs::exists(kept, none)) {
    const auto checksum = content_of(folder / (id + ".sum"));
    if (!checksum.empty() && checksum == checksum_of(content_of(kept))) return opened_file(kept, id);
  }
  const Scratch scratch;
  const auto text = scratch.folder / "program.cpp", made = scratch.folder / "program.so";
  write(text, source);
  for (const auto& flag : words_of(flags)) command.push_back(flag);
  for (const auto& word : {std::string("-o"), made.string(), text.string()}) command.push_back(word);
  const auto trouble = run(command, scratch.folder / "errors.txt");
  if (!trouble.empty()) throw Error(trouble);
  const bool is_kept = !folder.empty() && keep(made, kept, checksum_of(content_of(made)));
  try {
    return opened_file(made, id);
  } catch (const Error&) {  // programs in the folder of temporary files may be forbidden
    if (!is_kept) throw;
    return opened_file(kept, id);
  }
}

}  // namespace vernier::compile
