#include "library.h"

#include <c10/util/StringUtil.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
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

// No fast-math: infinities and NaN stay what they are. Without errno, a square root is one instruction. Compilers
// prefer vectors of 256 bits on most processors that have 512; loops over elements are faster with all of them.
const char* const flags =
    "-std=c++17 -O3 -march=native -fno-math-errno -fno-trapping-math -fopenmp-simd -fPIC -shared -w"
#ifdef __x86_64__
    " -mprefer-vector-width=512"
#endif
    ;

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

struct Ended {
  int trouble = 0;  // errno, if the program could not be started
  int status = 0;
  std::string said;
};

// Calls the compiler, which speaks English then. said: what it writes to its output, and perhaps its errors.
Ended call(const Words& words, bool with_errors) {
  const int output = ::memfd_create("output", MFD_CLOEXEC);
  if (output < 0) return {errno, 0, ""};
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, 1);
  if (with_errors) {
    posix_spawn_file_actions_adddup2(&files, output, 2);
  } else {
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
  }
  posix_spawnattr_t attributes;  // a group of its own, so that Ctrl-C stops the run after its step and not the compiler
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  pid_t child = 0;
  Ended ended;
  std::string locale = "LC_ALL=C";
  std::vector<char*> variables = {locale.data()};
  for (char** each = environ; *each != nullptr; ++each) {
    if (!std::string_view(*each).starts_with("LC_ALL=")) variables.push_back(*each);
  }
  variables.push_back(nullptr);
  ended.trouble = posix_spawnp(&child, words[0].c_str(), &files, &attributes, arguments.data(), variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  while (ended.trouble == 0 && ::waitpid(child, &ended.status, 0) < 0) {
    if (errno != EINTR) ended.trouble = errno;
  }
  ended.said = content_of(c10::str("/proc/self/fd/", output));
  ::close(output);
  return ended;
}

const std::string remedy = "; install g++, or set CXX to a compiler of C++17";

// The compiler's own words, because $CXX may be ccache or a script, whose file an update of the compiler leaves alone.
std::string identity_of(Words compiler) {
  const auto text = c10::Join(" ", compiler);
  compiler.emplace_back("--version");
  const auto ended = call(compiler, /*with_errors=*/false);
  if (ended.trouble == 0) return text + ' ' + ended.said;
  throw Error("the compiler '" + compiler[0] + "' cannot be started: " + std::strerror(ended.trouble) + remedy);
}

// Throws Error with the first error that the compiler prints.
void compile(const Words& words) {
  const auto ended = call(words, /*with_errors=*/true);
  const auto& said = ended.said;
  if (ended.trouble == 0 && ended.status == 0) return;
  auto line = ended.trouble != 0 ? std::strerror(ended.trouble) : said.substr(0, said.find('\n'));
  if (const auto place = said.find("error: "); place != std::string::npos) {
    line = said.substr(place, said.find('\n', place) - place);
  }
  const std::string how =
      WIFSIGNALED(ended.status) ? c10::str("was ended by signal ", WTERMSIG(ended.status)) : "has failed";
  throw Error("the compiler '" + words[0] + "' " + how + (line.empty() ? "" : ": " + shortened(line)) + remedy);
}

// Returns true if only this user can write in the folder, and only this user or root can replace it.
bool is_private(const fs::path& folder) {
  std::error_code trouble;
  auto part = fs::canonical(folder, trouble);
  if (trouble) return false;
  for (bool is_parent = false;; is_parent = true, part = part.parent_path()) {
    struct stat facts {};
    if (::stat(part.c_str(), &facts) != 0) return false;
    const bool is_own = facts.st_uid == ::geteuid() || (is_parent && facts.st_uid == 0);
    // In a sticky folder such as /tmp, only root and the owners rename an entry.
    const bool is_kept = is_parent && (facts.st_mode & S_ISVTX) != 0;
    if (!is_own || ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !is_kept)) return false;
    if (part == part.root_path()) return true;
  }
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
  std::error_code trouble;
  fs::create_directories(folder, trouble);
  for (const char* part : {"vernier", "compiled"}) {  // private, whatever umask says
    folder /= part;
    if (fs::create_directory(folder, trouble)) fs::permissions(folder, fs::perms::owner_all, trouble);
  }
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
  compile(command);
  const bool is_kept = !folder.empty() && keep(made, kept, checksum_of(content_of(made)));
  try {
    return opened_file(made, id);
  } catch (const Error&) {  // programs in the folder of temporary files may be forbidden
    if (!is_kept) throw;
    return opened_file(kept, id);
  }
}

}  // namespace vernier::compile
