#include "other_verbs.h"

#include <unistd.h>
#include <vernier/error.h>

#include <boost/dll/runtime_symbol_info.hpp>
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace vernier {

namespace fs = std::filesystem;

namespace {

constexpr const char* program_prefix = "vernier-";

// In the build tree and in an installation.
fs::path folder_of_this_program() {
  return boost::dll::program_location().parent_path().string();
}

}  // namespace

void become_other_verb(char** argv) {
  const std::string name = program_prefix + std::string(argv[0]);
  if (name.find('/') != std::string::npos) return;  // a path
  ::execv((folder_of_this_program() / name).c_str(), argv);
  if (errno == ENOENT) ::execvp(name.c_str(), argv);
  // EACCES: also where a folder of PATH may not be read.
  if (errno == ENOENT || errno == ENOTDIR || errno == EACCES) return;
  throw Error(name + " cannot be started: " + std::generic_category().message(errno), Error::Kind::configuration);
}

std::vector<std::string> other_verbs() {
  std::vector<std::string> verbs;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder_of_this_program(), none)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with(program_prefix)) verbs.push_back(name.substr(std::string(program_prefix).size()));
  }
  return verbs;
}

}  // namespace vernier
