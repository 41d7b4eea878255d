#include "reach.h"

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "common/run_files.h"
#include "common/scratch_folder.h"

namespace serve {

namespace fs = std::filesystem;

// Returns the places of the system that a job may read. Of /etc these are a few files, because others have secrets.
std::vector<std::string> places_of_system() {
  return {"/usr",
          "/bin",
          "/lib",
          "/lib32",
          "/lib64",
          "/sbin",
          "/proc",
          "/sys",
          "/etc/ld.so.cache",
          "/etc/localtime",
          "/etc/hosts",
          "/etc/host.conf",
          "/etc/gai.conf",
          "/etc/resolv.conf",
          "/etc/nsswitch.conf",
          "/etc/passwd",
          "/etc/group",
          "/etc/machine-id",
          "/etc/ssl/openssl.cnf"};
}

namespace {

bool is_below(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

// The folders of a program, of the libraries that it loads, and of the plugins that it finds by itself. scratch: a file
// that may be written.
std::vector<std::string> places_of_program(const std::string& program, const fs::path& scratch) {
  const auto folder = fs::weakly_canonical(program).parent_path();
  // In a build, plugins and this program's other files stand beside it; installed, below lib and share.
  std::set<std::string> places = {folder.string(), (folder.parent_path() / "lib").string(),
                                  (folder.parent_path() / "share").string()};
  const char* given = std::getenv("VERNIER_PLUGIN_PATH");
  std::istringstream parts(given == nullptr ? "" : given);
  for (std::string part; std::getline(parts, part, ':');) {
    if (!part.empty()) places.insert(part);
  }
  const char *data = std::getenv("XDG_DATA_HOME"), *home = std::getenv("HOME");
  if (data != nullptr) places.insert(std::string(data) + "/vernier/plugins");
  if (data == nullptr && home != nullptr) places.insert(std::string(home) + "/.local/share/vernier/plugins");
  // The loader prints what it would load of the program that trains, and starts nothing.
  std::error_code none;
  fs::remove(scratch, none);
  const auto process = start_process({"env", "LD_TRACE_LOADED_OBJECTS=1", program + "-train"}, scratch);
  ::waitpid(process, nullptr, 0);
  std::istringstream lines(read_whole(scratch));
  fs::remove(scratch, none);
  for (std::string name, arrow, library, rest; std::getline(lines, rest);) {
    std::istringstream words(rest);
    if (!(words >> name >> arrow >> library) || arrow != "=>" || !library.starts_with('/')) continue;
    const auto place = fs::weakly_canonical(library).parent_path();  // lib/libtorch is a link
    places.insert(place.string());
    // Libraries of CUDA that are opened later stand beside LibTorch's.
    if (name.starts_with("libtorch")) places.insert((place.parent_path().parent_path() / "nvidia").string());
  }
  return {places.begin(), places.end()};
}

}  // namespace

void set_reach(QueueSettings& settings) {
  auto places = places_of_system();
  const vernier::ScratchFolder scratch;
  const auto more = places_of_program(settings.program, fs::path(scratch.path()) / "libraries.txt");
  places.insert(places.end(), more.begin(), more.end());
  for (std::size_t i = 1; i < settings.more.size(); i += 2) places.push_back(settings.more[i]);
  auto& limits = settings.limits;
  limits.readable.clear();
  for (const auto& name : places) {  // a link that is made later is followed to nowhere
    std::error_code is_missing;
    const auto place = fs::canonical(name, is_missing);
    if (!is_missing) limits.readable.push_back(place.string());
  }
  for (const auto* granted : {&limits.data, &limits.writable, &limits.readable}) {
    for (const auto& place : *granted) {
      if (!is_below(settings.folder, place) && !is_below(place, settings.folder)) continue;
      throw vernier::Refused(place + ": jobs may read it, and must not reach the server's folder, " +
                             settings.folder.string() +
                             "; keep the two apart, as in `vernier serve ~/vernier-jobs --data .`");
    }
  }
}

}  // namespace serve
