// The reach of a job: by its configuration, by links, and by the code of a model.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/fsverity.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <functional>
#include <optional>
#include <set>

#include "common/run_files.h"
#include "job_server.h"
#include "program.h"
#include "service/api/job_check.h"
#include "service/queue/attempt.h"
#include "service/queue/reach.h"
#include "service/queue/sandbox.h"

namespace sandbox_test {

using namespace job_server;

namespace {

using Attempts = std::vector<std::pair<std::string, std::function<bool()>>>;

// Runs each attempt in a child inside the sandbox. Returns the names of those that were not refused.
std::vector<std::string> not_refused(const serve::Sandbox& sandbox, const Attempts& attempts) {
  std::vector<std::string> through;
  for (const auto& [name, attempt] : attempts) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(sandbox.enter() && !attempt() ? 0 : 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) through.push_back(name);
  }
  return through;
}

bool opens(const std::string& file, int flags) {
  return ::open(file.c_str(), flags, 0600) >= 0;
}

// A server's folder with two jobs, data, and links out of the data. The sandbox is that of job 1.
struct Place {
  Place() {
    for (const char* folder : {"data", "server/jobs/1", "server/jobs/2", "out"}) fs::create_directories(here / folder);
    temporary.write("server/tokens", "admin secret\n");
    temporary.write("data/text", "text");
    temporary.write("server/jobs/1/mine", "mine");
    fs::create_symlink(here / "server/tokens", here / "data/link");
    fs::create_directory_symlink(here / "server", here / "data/folder");
    fs::create_directory_symlink(here / "server", here / "late-data");
    sandbox.emplace(serve::SandboxPaths{.data = {path("data"), path("late-data")},
                                        .readable = serve::places_of_system(),
                                        .writable = {path("server/jobs/1"), path("out")}});
    fs::create_symlink(here / "server/tokens", here / "data/late");
  }
  std::string path(const char* name) const { return (here / name).string(); }

  TemporaryFolder temporary;
  fs::path here = fs::canonical(temporary.path());
  std::optional<serve::Sandbox> sandbox;
};

// Listens at a port of this machine.
std::pair<int, sockaddr_in> listening() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const int file = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool listens = file >= 0 && ::bind(file, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                       ::listen(file, 1) == 0 && ::getsockname(file, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  return {listens ? file : -1, address};
}

Attempts attempts_at_the_server(const Place& place) {
  const auto path = [&place](const char* name) { return place.path(name); };
  const auto tokens = path("server/tokens");
  return {{"read", [=] { return opens(tokens, O_RDONLY); }},
          {"write", [=] { return opens(tokens, O_WRONLY); }},
          {"append", [=] { return opens(tokens, O_WRONLY | O_APPEND); }},
          {"open and cut", [=] { return opens(tokens, O_WRONLY | O_TRUNC); }},
          {"truncate", [=] { return ::truncate(tokens.c_str(), 0) == 0; }},
          {"link in the data", [=] { return opens(path("data/link"), O_RDONLY); }},
          {"link made later", [=] { return opens(path("data/late"), O_RDONLY); }},
          {"link to the folder", [=] { return opens(path("data/folder/tokens"), O_RDONLY); }},
          {"data folder that became a link", [=] { return opens(path("late-data/tokens"), O_RDONLY); }},
          {"list", [=] { return opens(path("server"), O_RDONLY | O_DIRECTORY); }},
          {"dots", [=] { return opens(path("server/jobs/1/../../tokens"), O_RDONLY); }},
          {"other job", [=] { return opens(path("server/jobs/2/x"), O_WRONLY | O_CREAT); }},
          {"new file", [=] { return opens(path("server/new"), O_WRONLY | O_CREAT); }},
          {"remove", [=] { return ::unlink(tokens.c_str()) == 0; }},
          {"rename in", [=] { return ::rename(tokens.c_str(), path("server/jobs/1/x").c_str()) == 0; }},
          {"rename out", [=] { return ::rename(path("server/jobs/1/mine").c_str(), tokens.c_str()) == 0; }},
          {"hard link", [=] { return ::link(tokens.c_str(), path("server/jobs/1/x").c_str()) == 0; }},
          {"folder", [=] { return ::mkdir(path("server/x").c_str(), 0700) == 0; }},
          {"own link", [=] {
             const auto link = path("server/jobs/1/link");
             return ::symlink(tokens.c_str(), link.c_str()) == 0 && opens(link, O_RDONLY);
           }}};
}

Attempts attempts_elsewhere(const Place& place) {
  const auto path = [&place](const char* name) { return place.path(name); };
  const auto tokens = path("server/tokens"), text = path("data/text"), server = std::to_string(::getpid());
  return {{"proc", [=] { return opens("/proc/" + server + "/root" + tokens, O_RDONLY); }},
          {"cwd of the server", [=] { return opens("/proc/" + server + "/cwd/CMakeCache.txt", O_RDONLY); }},
          {"memory of the server", [=] { return opens("/proc/" + server + "/mem", O_RDONLY); }},
          {"data, to write", [=] { return opens(text, O_WRONLY); }},
          {"data, new", [=] { return opens(path("data/new"), O_WRONLY | O_CREAT); }},
          {"data, removed", [=] { return ::unlink(text.c_str()) == 0; }},
          {"passwords", [=] { return opens("/etc/shadow", O_RDONLY); }},
          {"home", [=] { return opens("/root", O_RDONLY | O_DIRECTORY); }},
          {"temporary folder", [=] { return opens("/tmp", O_RDONLY | O_DIRECTORY); }}};
}

// Calls that Landlock leaves open, at the server's file, at data and at one's own file; and talks with others.
Attempts calls_of_a_job(const Place& place) {
  const auto mine = place.path("server/jobs/1/mine"), tokens = place.path("server/tokens");
  const timespec times[2] = {};
  Attempts all;
#if !defined(__x86_64__)
  return all;  // the filter is for this processor alone
#endif
  for (const auto& file : {tokens, place.path("data/text"), mine}) {
    all.insert(all.end(),
               {{"chmod " + file, [=] { return ::chmod(file.c_str(), 0644) == 0; }},
                {"fchmodat " + file, [=] { return ::fchmodat(AT_FDCWD, file.c_str(), 0644, 0) == 0; }},
                {"fchmodat2 " + file, [=] { return ::syscall(452, AT_FDCWD, file.c_str(), 0644, 0) == 0; }},
                {"chown " + file, [=] { return ::chown(file.c_str(), ::getuid(), ::getgid()) == 0; }},
                {"lchown " + file, [=] { return ::lchown(file.c_str(), ::getuid(), ::getgid()) == 0; }},
                {"fchownat " + file, [=] { return ::fchownat(AT_FDCWD, file.c_str(), ::getuid(), -1, 0) == 0; }},
                {"utimensat " + file, [=] { return ::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0; }},
                {"utimes " + file, [=] { return ::utimes(file.c_str(), nullptr) == 0; }},
                {"setxattr " + file, [=] { return ::setxattr(file.c_str(), "user.x", "y", 1, 0) == 0; }}});
  }
  const auto opened = [=](auto call) {
    return [=] {
      const int file = ::open(mine.c_str(), O_RDONLY);
      return file >= 0 && call(file) == 0;
    };
  };
  const auto makes = [](int family, int type) { return [=] { return ::socket(family, type | SOCK_CLOEXEC, 0) >= 0; }; };
  const auto server = ::getpid();
  // Refused for the filter's reason, which is not that of a bad argument.
  for (const int call :
       {SYS_open_by_handle_at, SYS_pidfd_getfd, SYS_mount, SYS_mount_setattr, SYS_fsopen, SYS_unshare, SYS_setns,
        SYS_shmget, SYS_msgget, SYS_semget, SYS_mq_open, SYS_userfaultfd, SYS_bpf, SYS_perf_event_open, SYS_ptrace,
        SYS_process_vm_readv, SYS_init_module, SYS_kexec_load, SYS_clock_settime}) {
    all.push_back(
        {"call " + std::to_string(call), [=] { return ::syscall(call, -1, 0, 0, 0, 0, 0) >= 0 || errno != EPERM; }});
  }
  for (const unsigned long request : {FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION, FS_IOC_ENABLE_VERITY}) {
    all.push_back({"ioctl " + std::to_string(request), [=] {
                     const int file = ::open(mine.c_str(), O_RDONLY);
                     return file < 0 || ::ioctl(file, request, nullptr) == 0 || errno != EPERM;
                   }});
  }
  all.insert(all.end(), {{"fchmod", opened([](int file) { return ::fchmod(file, 0644); })},
                         {"fchown", opened([](int file) { return ::fchown(file, ::getuid(), ::getgid()); })},
                         {"futimens", opened([](int file) { return ::futimens(file, nullptr); })},
                         {"a socket of files", makes(AF_UNIX, SOCK_STREAM)},
                         {"datagrams", makes(AF_INET, SOCK_DGRAM)},
                         {"raw packets", makes(AF_INET, SOCK_RAW)},
                         {"netlink", makes(AF_NETLINK, SOCK_RAW)},
                         {"connect",
                          [] {
                            const auto [listens, address] = listening();
                            const int file = ::socket(AF_INET, SOCK_STREAM, 0);
                            return ::connect(file, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
                          }},
                         {"connect by sending",
                          [] {
                            const auto [listens, address] = listening();
                            const int file = ::socket(AF_INET, SOCK_STREAM, 0);
                            const auto* to = reinterpret_cast<const sockaddr*>(&address);
                            return ::sendto(file, "x", 1, MSG_FASTOPEN, to, sizeof address) == 1;
                          }},
                         {"io_uring", [] { return ::syscall(SYS_io_uring_setup, 1, nullptr) >= 0 || errno != EPERM; }},
                         {"keys", [] { return ::syscall(SYS_keyctl, 0, -3, 1) >= 0 || errno != EPERM; }},
                         {"limits of the server", [=] {
                            rlimit limit{};
                            return ::prlimit(server, RLIMIT_NOFILE, nullptr, &limit) == 0;
                          }}});
  return all;
}

Attempts work_of_a_job(const Place& place) {
  const auto path = [&place](const char* name) { return place.path(name); };
  return {{"read data", [=] { return opens(path("data/text"), O_RDONLY); }},
          {"list data", [=] { return opens(path("data"), O_RDONLY | O_DIRECTORY); }},
          {"own file", [=] { return opens(path("server/jobs/1/new"), O_RDWR | O_CREAT); }},
          {"own folders",
           [=] {
             return ::mkdir(path("server/jobs/1/a").c_str(), 0700) == 0 &&
                    ::mkdir(path("server/jobs/1/b").c_str(), 0700) == 0 &&
                    ::rename(path("server/jobs/1/new").c_str(), path("server/jobs/1/b/new").c_str()) == 0;
           }},
          {"output data", [=] { return opens(path("out/new"), O_WRONLY | O_CREAT); }},
          {"/dev/null", [=] { return opens("/dev/null", O_RDWR); }},
          {"listen", [] { return listening().first >= 0; }},
          {"own limits",
           [] {
             rlimit limit{};
             return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
           }},
          {"child", [] {
             int pair[2];
             const pid_t child = ::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 ? ::fork() : -1;
             if (child == 0) ::_exit(0);
             return child > 0 && ::waitpid(child, nullptr, 0) == child;
           }}};
}

// Every option of every plugin, and those of [run], with its table: from the schema that the plugins themselves give.
std::set<std::pair<std::string, std::string>> all_options() {
  const TemporaryFolder folder;
  Program program({"config", "--schema"}, folder.path());
  REQUIRE(program.wait() == 0);
  std::set<std::pair<std::string, std::string>> all;
  const std::function<void(const std::string&, const Json&)> walk = [&](const std::string& table, const Json& node) {
    if (node.is_array()) {
      for (const auto& each : node) walk(table, each);
    }
    if (!node.is_object()) return;
    for (const auto& [key, value] : node.items()) {
      if (key == "properties" && value.is_object()) {
        for (const auto& [option, schema] : value.items()) {
          all.emplace(table, option);
          walk(table, schema);
        }
      } else {
        walk(table, value);
      }
    }
  };
  const auto schema = Json::parse(program.out());
  for (const auto& [table, node] : schema.at("properties").items()) walk(table, node);
  return all;
}

bool is_refused(const std::string& table, const std::string& option, const Json& value, const fs::path& data) {
  Json inside = {{"use", "x"}};
  inside[option] = value;
  const bool is_list = table == "callback" || table == "monitor";
  const Json config = {{table, is_list ? Json::array({inside}) : inside}};
  try {
    const auto text = serve::checked_configuration(config, {data});
    serve::checked_configuration(text, {data});  // the attempt reads it again
    return false;
  } catch (const serve::NotAllowed&) {
    return true;
  }
}

}  // namespace

TEST_CASE("sandbox: the kernel refuses a job all but its own folder and its data") {
  if (!serve::Sandbox::is_possible()) {
    MESSAGE("skipped: this kernel has no Landlock");
    return;
  }
  const Place place;
  for (const auto& attempts : {attempts_at_the_server(place), attempts_elsewhere(place), calls_of_a_job(place)}) {
    const auto through = not_refused(*place.sandbox, attempts);
    CAPTURE(Json(through).dump());
    CHECK(through.empty());
  }
  const auto good = work_of_a_job(place);
  CHECK(not_refused(*place.sandbox, good).size() == good.size());
  CHECK(read_text(place.path("server/tokens")) == "admin secret\n");
}

TEST_CASE("sandbox: no option of any plugin can name the server's folder, a link to it, or a link made later") {
  const TemporaryFolder temporary;
  const auto here = fs::canonical(temporary.path());
  fs::create_directories(here / "server/jobs/2");
  fs::create_directories(here / "data");
  temporary.write("server/tokens", "admin secret\n");
  fs::create_directory_symlink(here / "server", here / "data/link");
  fs::create_symlink(here / "server/tokens", here / "data/tokens.csv");
  const auto late = here / "data/late";
  int refused = 0, tried = 0;
  const auto options = all_options();
  REQUIRE(options.size() > 100);
  for (const auto& [table, option] : options) {
    CAPTURE(table);
    CAPTURE(option);
    for (const auto& place : {here / "server", here / "server/tokens", here / "server/jobs/2/run",
                              here / "data/link/tokens", here / "data/tokens.csv", late / "tokens"}) {
      for (const Json& value : {Json(place.string()), Json::array({place.string()}), Json{{"file", place.string()}},
                                Json(place.string() + ":x"), Json((here / "data/x.csv:").string() + place.string())}) {
        if (place.parent_path() == late) {  // allowed when it is submitted
          fs::create_directory(late);
          fs::remove(late);
          fs::create_directory_symlink(here / "server", late);
        }
        tried += 1;
        refused += is_refused(table, option, value, here / "data") ? 1 : 0;
        fs::remove(late);
      }
    }
  }
  MESSAGE(options.size(), " options, ", refused, " of ", tried, " refused");
  CHECK(refused == tried);
}

// The places of a set-up: those that options and variables name, the program's own, and the system's.
struct Setup {
  Setup() {
    for (const char* folder :
         {"place/in", "prefix/bin", "prefix/lib/x", "prefix/share/x", "home/vernier/plugins/x", "apart"})
      fs::create_directories(here / folder);
    temporary.write("prefix/bin/vernier", "");
    fs::create_directory_symlink(here, here / "apart/link");
  }
  fs::path here_of(const std::string& name) const { return name[0] == '/' ? fs::path(name) : here / name; }
  // Returns the places that jobs may read; nothing where the server is refused.
  std::optional<serve::Work> limits(const std::string& kind, const fs::path& server, const fs::path& place) const {
    serve::QueueSettings settings;
    settings.folder = fs::weakly_canonical(server);
    settings.program = here / "prefix/bin/vernier";
    ::setenv("XDG_DATA_HOME", (here / "home").c_str(), 1);
    ::setenv("VERNIER_PLUGIN_PATH", kind == "VERNIER_PLUGIN_PATH" ? place.c_str() : "", 1);
    // As main.cpp has the options.
    if (kind == "data") settings.limits.data = {fs::canonical(place)};
    if (kind == "output") settings.limits.data = settings.limits.writable = {fs::canonical(place)};
    if (kind == "plugins") settings.more = {"--plugin-path", place};
    std::optional<serve::Work> found;
    try {
      serve::set_reach(settings);
      found = settings.limits;
    } catch (const vernier::Refused& refused) {
      CHECK(std::string(refused.what()).find("must not reach the server's folder") != std::string::npos);
    }
    ::unsetenv("XDG_DATA_HOME");
    ::unsetenv("VERNIER_PLUGIN_PATH");
    return found;
  }

  TemporaryFolder temporary;
  fs::path here = fs::canonical(temporary.path());
};

TEST_CASE("sandbox: a server is refused in, at and above each place that jobs may read, also through a link") {
  const Setup setup;
  const struct {
    std::string kind, place;
    std::vector<std::string> servers;  // above, equal, below, and by links
  } rows[] = {
      {"data", "place", {"", "place", "place/in", "place/new/deep", "apart/link", "apart/link/place/in"}},
      {"data", "apart/link/place", {"", "place", "place/in", "place/new", "apart/link/place"}},
      {"output", "place", {"", "place", "place/in", "place/new", "apart/link/place/in"}},
      {"output", "apart/link/place", {"", "place", "place/in"}},
      {"plugins", "place", {"", "place", "place/in", "place/new", "apart/link/place/in"}},
      {"plugins", "apart/link/place", {"", "place", "place/in"}},
      {"VERNIER_PLUGIN_PATH", "place", {"", "place", "place/in", "place/new", "apart/link/place/in"}},
      {"VERNIER_PLUGIN_PATH", "apart/link/place", {"", "place", "place/in"}},
      {"home", "place", {"home", "home/vernier/plugins", "home/vernier/plugins/x", "apart/link/home/vernier/plugins"}},
      {"program", "place", {"prefix", "prefix/bin", "prefix/bin/x", "apart/link/prefix/bin/new"}},
      {"prefix", "place", {"prefix/lib", "prefix/lib/x", "prefix/share/x/y", "apart/link/prefix/share"}},
      {"/usr", "place", {"/", "/usr", "/usr/local/lib/x/jobs", "/lib/jobs", "/proc/self", "/sys/x", "/etc"}},
  };
  int refused = 0;
  for (const auto& [kind, place, servers] : rows) {
    CAPTURE(kind);
    for (const auto& server : servers) {
      CAPTURE(server);
      CHECK(!setup.limits(kind, setup.here_of(server), setup.here / place));
      ++refused;
    }
    CHECK(setup.limits(kind, setup.here / "apart/jobs", setup.here / place));
    CHECK(setup.limits(kind, setup.here / "placeholder", setup.here / place));  // the same letters, another folder
  }
  CHECK(refused > 50);
}

// Each way by which the code of a job could open a file: by its path, over each place that it may read, and by links.
TEST_CASE("sandbox: in each set-up that is taken, no way leads to the server's files") {
  if (!serve::Sandbox::is_possible()) return;
  const Setup setup;
  const auto& here = setup.here;
  for (const char* folder : {"apart/jobs/jobs/1/run", "apart/jobs/jobs/2/run"}) fs::create_directories(here / folder);
  const std::vector<std::string> secrets = {"tokens", "journal.sqlite", "audit.jsonl", "jobs/2/run/control.tokens"};
  for (const auto& name : secrets) setup.temporary.write("apart/jobs/" + name, "secret");
  for (const char* kind : {"data", "output", "plugins", "VERNIER_PLUGIN_PATH", "none"}) {
    for (const char* place : {"place", "apart/link/place"}) {
      CAPTURE(kind);
      CAPTURE(place);
      auto limits = setup.limits(kind, here / "apart/jobs", here / place);
      REQUIRE(limits);
      fs::remove(here / "place/link");
      fs::create_directory_symlink(here / "apart/jobs", here / "place/link");
      auto writable = limits->writable;
      const auto own = (here / "apart/jobs/jobs/1").string();
      writable.push_back(own);
      const serve::Sandbox sandbox({.data = limits->data, .readable = limits->readable, .writable = writable});
      Attempts attempts;
      for (const auto& name : secrets) {
        for (const auto& path : {(here / "apart/jobs" / name).string(), own + "/../../" + name,
                                 (here / "place/link" / name).string(), (here / "place/../apart/jobs" / name).string(),
                                 "/proc/self/root" + (here / "apart/jobs" / name).string()}) {
          attempts.push_back({"read " + path, [=] { return opens(path, O_RDONLY); }});
          attempts.push_back({"write " + path, [=] { return opens(path, O_WRONLY | O_APPEND); }});
        }
        attempts.push_back({"own link to " + name, [=, at = (here / "apart/jobs" / name).string()] {
                              const auto link = own + "/link";
                              ::unlink(link.c_str());
                              return ::symlink(at.c_str(), link.c_str()) == 0 && opens(link, O_RDONLY);
                            }});
        attempts.push_back({"hard link to " + name, [=, at = (here / "apart/jobs" / name).string()] {
                              return ::link(at.c_str(), (own + "/hard").c_str()) == 0;
                            }});
      }
      CHECK(Json(not_refused(sandbox, attempts)).dump() == "[]");
    }
  }
}

TEST_CASE("sandbox: the program refuses such set-ups when it starts, and makes no folder") {
  const TemporaryFolder temporary;
  fs::create_directories(temporary.path() / "home/jobs/data");
  const auto refuses = [&](const std::string& server, const char* option, const char* place) {
    CAPTURE(server);
    std::vector<std::string> words = {"serve", server, "--listen", "127.0.0.1:0"};
    const bool is_option = option[0] == '-';
    if (is_option) words.insert(words.end(), {option, place});
    if (!is_option) ::setenv(option, place, 1);
    Program program(words, temporary.path());
    CHECK(program.wait() == 2);
    if (!is_option) ::unsetenv(option);
    CHECK(program.err().find("must not reach the server's folder") != std::string::npos);
  };
  for (const char* option : {"--data", "--output-data", "--models", "--plugin-path", "VERNIER_PLUGIN_PATH"}) {
    refuses("home/jobs", option, "home");
  }
  fs::create_directories(fs::path(VERNIER_BINARY_DIR) / "lib");
  for (const std::string of_program : {VERNIER_BINARY_DIR "/jobs", VERNIER_BINARY_DIR "/lib/jobs", "/usr/lib/x/jobs"}) {
    refuses(of_program, "--data", "home");
    CHECK(!fs::exists(of_program));
  }
}

TEST_CASE("sandbox: links that a job makes in its folder lead the server nowhere") {
  const TemporaryFolder temporary;
  const auto here = fs::canonical(temporary.path());
  temporary.write("elsewhere/losses.jsonl", "secret");
  temporary.write("job/log", "0123456789");
  fs::create_symlink(here / "elsewhere/losses.jsonl", here / "job/link");
  fs::create_directory_symlink(here / "elsewhere", here / "job/run");
  fs::create_directory(here / "job/folder");
  ::mkfifo((here / "job/pipe").c_str(), 0600);
  for (const char* name : {"link", "run/losses.jsonl", "folder", "pipe", "missing", "run/../log"}) {
    CAPTURE(name);
    CHECK(serve::read_whole(here / "job" / name).empty());
    CHECK(serve::read_part(here / "job" / name, 0, 100).empty());
  }
  CHECK(serve::read_whole(here / "job/log") == "0123456789");
  CHECK(serve::read_whole(here / "job/log", 9).empty());
  CHECK(serve::read_part(here / "job/log", 8, 100) == "89");
  CHECK(serve::read_part(here / "job/log", -3, 2) == "78");
  CHECK(serve::read_part(here / "job/log", -30, 100) == "0123456789");
  CHECK(serve::read_part(here / "job/log", 30, 100).empty());

  JobServer server({"--cores", "1"});
  const auto job = server.submit(takes("0", "until = \"go\"\n"));
  REQUIRE(server.has_begun(job));
  const auto log = server.path() / "jobs" / std::to_string(job) / "log";
  fs::remove(log);
  fs::create_symlink(server.path() / "tokens", log);
  CHECK(server.log(job).empty());
  server.go();
  CHECK(server.waits_for(job, "done"));
}

TEST_CASE("sandbox: a link that is put in the place of a job's data while it waits leads nowhere") {
  const TemporaryFolder data;
  const auto folder = fs::canonical(data.path());
  data.write("b.txt", "text");
  JobServer server({"--cores", "1", "--data", folder});
  const auto first = server.submit(takes("0", "until = \"go\"\n"));
  REQUIRE(server.has_begun(first));
  const auto second = server.submit(takes("0", "data = \"" + (folder / "b.txt").string() + "\"\n"));
  fs::remove(folder / "b.txt");
  fs::create_symlink(server.path() / "tokens", folder / "b.txt");
  server.go();
  REQUIRE(server.waits_for(second, "failed"));
  CHECK(server.job(second).at("error").get<std::string>().find("not below a data folder") != std::string::npos);
  CHECK(server.ledger().find("job-2 begin") == std::string::npos);
}

TEST_CASE("sandbox: a training inside it is refused the server's files, and others go on") {
  if (!serve::Sandbox::is_possible()) return;
  const TemporaryFolder data;
  const auto folder = fs::canonical(data.path());
  JobServer server({"--cores", "1", "--data", folder}, /*with_script=*/false);
  fs::create_directories(folder / "texts");
  data.write("texts/a.txt", std::string(4000, 'a'));
  fs::create_symlink(server.path() / "tokens", folder / "texts/link.txt");
  const std::string common =
      "[run]\nsteps = 2\ndevice = \"cpu\"\n[optimizer]\nuse = \"sgd\"\n[checkpoint]\nuse = \"none\"\n";
  const auto leak = server.submit(common + "[task]\nuse = \"gpt\"\ndata = [\"" + (folder / "texts").string() +
                                  "\"]\ncontext = 16\nwidth = 16\nlayers = 1\nheads = 1\nbatch_size = 2\n");
  const auto output =
      server.submit(common + "[task]\nuse = \"mlp\"\nsamples = 64\n[[monitor]]\nuse = \"csv\"\nfile = \"" +
                    (folder / "x.csv").string() + "\"\n");
  REQUIRE(server.waits_for(leak, "failed"));
  CHECK(server.log(leak).find("link.txt") != std::string::npos);
  CHECK(wait_until([&] { return !server.job(output).at("ended").is_null(); }));
  CHECK(!fs::exists(folder / "x.csv"));
}

}  // namespace sandbox_test
