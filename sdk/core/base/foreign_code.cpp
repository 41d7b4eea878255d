#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/foreign_code.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

namespace vernier {

namespace {

std::vector<std::string>& foreign_runs() {
  static std::vector<std::string> runs;
  return runs;
}

// Returns true if a group is the one that Debian makes for each user: it has the user's name and no other member. With
// a umask of 002, the files of a build are writable by this group, and still by nobody else.
bool is_own_group(gid_t id) {
  const passwd* user = ::getpwuid(::geteuid());
  if (user == nullptr || user->pw_gid != id) return false;
  const std::string name = user->pw_name;
  const struct group* found = ::getgrgid(id);
  if (found == nullptr || name != found->gr_name) return false;
  for (char* const* member = found->gr_mem; *member != nullptr; ++member) {
    if (name != *member) return false;
  }
  return true;
}

// Returns the status of the file of this library. Its code runs already, so nothing that its writers change elsewhere
// is a new risk: an environment of Python may belong to a colleague, or to the group of a container.
struct stat status_of_this_library() {
  Dl_info info = {};
  struct stat status = {};
  const auto* here = reinterpret_cast<const void*>(&refuse_foreign_code);
  if (::dladdr(here, &info) == 0 || ::stat(info.dli_fname, &status) != 0) return {};
  return status;
}

[[noreturn]] void refuse_library(const std::string& text) {
  throw Error(text, Error::Kind::plugin);
}

}  // namespace

void refuse_other_writers(const std::string& path, const struct stat& status, const char* what) {
  static const auto own = status_of_this_library();
  if (status.st_uid != ::geteuid() && status.st_uid != 0 && status.st_uid != own.st_uid) {
    refuse_library(path + ": belongs to another user (id " + std::to_string(status.st_uid) +
                   "), who can write to it; chown it, or copy the " + what + " to a folder of your own");
  }
  const auto writers = status.st_mode & (S_IWGRP | S_IWOTH);
  const bool is_own = is_own_group(status.st_gid) || ((own.st_mode & S_IWGRP) != 0 && status.st_gid == own.st_gid);
  if (writers == 0 || (writers == S_IWGRP && is_own)) return;
  refuse_library(path + ": can be written to by others; chmod go-w it, or move the " + what +
                 " to a folder of your own");
}

void refuse_foreign_code(const std::string& what) {
  if (foreign_runs().empty()) return;
  refuse(foreign_runs().back() + ": was not made here by you, and " + what +
         " is code, which would run with all your rights; if you trust who made it, give --trust once");
}

ForeignRun::ForeignRun(std::string run) : run_(std::move(run)) {
  if (!run_.empty()) foreign_runs().push_back(run_);
}
ForeignRun::~ForeignRun() {
  const auto found = std::ranges::find(foreign_runs(), run_);
  if (found != foreign_runs().end()) foreign_runs().erase(found);
}

void open_library(const std::string& file) {
  refuse_foreign_code("the library '" + file + "'");
  std::error_code trouble;
  const auto real = std::filesystem::canonical(file, trouble);
  if (trouble) refuse_library("the library '" + file + "' cannot be opened: " + trouble.message());
  static std::set<std::string> opened;
  if (opened.contains(real)) return;
  // It is opened below the folder that was checked, which stays open: the loader knows the library by this path.
  const int folder = ::open(real.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  struct stat status = {};
  if (folder < 0 || ::fstat(folder, &status) != 0) refuse_library(real.string() + ": " + std::strerror(errno));
  refuse_other_writers(real.parent_path(), status, "library");
  const auto name = real.filename();
  if (::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    refuse_library(real.string() + ": " + std::strerror(errno));
  }
  refuse_other_writers(real, status, "library");
  const auto path = "/proc/self/fd/" + std::to_string(folder) + "/" + name.string();
  if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) == nullptr) {
    refuse_library("the library '" + file + "' cannot be opened: " + ::dlerror());
  }
  opened.insert(real);
}

}  // namespace vernier
