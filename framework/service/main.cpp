// `vernier serve`: a job server for one machine. See docs/guides/service.md.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vernier/cores.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <thread>

#include "common/child.h"
#include "common/run_files.h"
#include "common/verb.h"
#include "service/api/api.h"
#include "service/api/job_check.h"
#include "service/audit/audit.h"
#include "service/http/http_server.h"
#include "service/jobs/server.h"
#include "service/queue/attempt.h"
#include "service/queue/attempt_process.h"
#include "service/queue/reach.h"
#include "service/queue/sandbox.h"

namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;
using vernier::Refused;

constexpr const char* usage = R"(usage: vernier serve FOLDER [OPTION]...

Takes training jobs over HTTP, and trains them one after another or side by side, as cores and GPUs are free. FOLDER
keeps the journal of jobs, their files, the tokens (FOLDER/tokens) and the audit log. Jobs outlive the server: it finds
them again when it is started in the same folder. `vernier jobs` is the client. See docs/guides/service.md.

  --listen ADDRESS:PORT   127.0.0.1:8080; port 0: one that the system chooses, written to FOLDER/server.url
  --tls-certificate FILE  PEM file with the certificate chain; needed for an address that other machines reach
  --tls-key FILE          PEM file with its key
  --host NAME:PORT        a further name by which clients reach the server; may be repeated
  --cores NUMBER          cores that jobs may have together; those of the machine
  --gpus NUMBER           GPUs that jobs may have together; those of NVIDIA that the machine has
  --data FOLDER           a folder from which jobs may read; may be repeated
  --models FOLDER         a folder with a folder for each published model, which requests name; may be repeated
  --output-data FOLDER    a folder in which jobs may also write; may be repeated
  --plugin-path FOLDER    a folder of plugins, as for vernier train; may be repeated
  --keep-days DAYS        a job is removed so long after its end; 30; 0: never
  --time-limit SECONDS    most that an attempt of a job may take; 0: no limit, as below
  --memory-limit BYTES    most memory that a job may have; the server looks ten times a second
  --file-size BYTES       largest file that a job may write
  --open-files NUMBER     files that a job may have open; 4096
  --processes NUMBER      processes and threads of the server's user; for a user that has no others
  --slurm                 Slurm starts the jobs, by sbatch; --cores and --gpus are then the most that a job may ask for
  --sbatch OPTION         a further option for sbatch, as --sbatch=--partition=main; may be repeated
  --grace SECONDS         time that a cancelled job has for its checkpoint before it is killed; 30
  --requests-per-second N of all clients; 100; more are answered with 429

Ctrl-C ends the server, and not its jobs.
)";

// The journal is of one server.
class ServerLock {
 public:
  explicit ServerLock(const fs::path& folder) {
    serve::make_folder(folder);
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))
      throw Refused(folder.string() + ": is not a folder");
    if (status.st_uid != ::geteuid() || (status.st_mode & 022) != 0) {
      throw Refused(folder.string() + ": others may write to it; call chmod 700 on a folder of your own");
    }
    file_ = ::open((folder / "server.lock").c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file_ < 0) throw Refused((folder / "server.lock").string() + ": " + std::strerror(errno));
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0) throw Refused(folder.string() + ": another server has this folder");
  }
  ServerLock(const ServerLock&) = delete;
  ServerLock& operator=(const ServerLock&) = delete;
  ~ServerLock() { ::close(file_); }

 private:
  int file_ = -1;
};

struct Settings {
  serve::QueueSettings queue;
  std::vector<fs::path> data, models;
  std::vector<std::string> hosts;
  std::string listen;
  vernier::HttpLimits limits;
  std::optional<vernier::HttpEncryption> encryption;
};

std::int64_t number_in(const po::variables_map& given, const char* option, std::int64_t least, std::int64_t most) {
  const auto number = given[option].as<std::int64_t>();
  if (number >= least && number <= most) return number;
  throw Refused("--" + std::string(option) + " is " + std::to_string(number) + ", and must be from " +
                std::to_string(least) + " to " + std::to_string(most));
}

fs::path folder_in(const std::string& text, const char* option) {
  std::error_code trouble;
  const auto folder = fs::canonical(text, trouble);
  if (!trouble && fs::is_directory(folder, trouble)) return folder;
  throw Refused("--" + std::string(option) + " " + text + ": is not a folder");
}

serve::Work limits_in(const po::variables_map& given) {
  constexpr std::int64_t most = std::int64_t{1} << 50;
  serve::Work limits;
  limits.time_limit = number_in(given, "time-limit", 0, most);
  limits.memory_limit = number_in(given, "memory-limit", 0, most);
  limits.file_size = number_in(given, "file-size", 0, most);
  limits.open_files = number_in(given, "open-files", 0, most);
  limits.processes = number_in(given, "processes", 0, most);
  limits.grace = number_in(given, "grace", 0, 24 * 3600);
  return limits;
}

void refuse_open_key(const std::string& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) throw Refused("--tls-key " + file + ": " + std::strerror(errno));
  if ((status.st_mode & 007) != 0) throw Refused("--tls-key " + file + ": everybody may read the key; call chmod 600");
}

Settings settings_in(const po::variables_map& given) {
  const auto words = vernier::words_of(given);
  if (words.size() != 1) throw Refused("name one folder for the server, as in `vernier serve jobs`");
  Settings settings;
  settings.queue.folder = fs::weakly_canonical(fs::absolute(words[0]));
  settings.queue.program = vernier::program_beside_this();
  settings.queue.attempt_program = fs::read_symlink("/proc/self/exe").string();
  settings.queue.cores = number_in(given, "cores", 1, 1024);
  settings.queue.gpus = number_in(given, "gpus", 0, 64);
  settings.queue.keep_days = number_in(given, "keep-days", 0, 36500);
  settings.queue.limits = limits_in(given);
  settings.queue.uses_slurm = given.count("slurm") != 0;
  settings.queue.sbatch = vernier::words_in(given, "sbatch");
  if (!settings.queue.sbatch.empty() && !settings.queue.uses_slurm) throw Refused("--sbatch is for --slurm");
  for (const auto& folder : vernier::words_in(given, "plugin-path")) {
    settings.queue.more.insert(settings.queue.more.end(), {"--plugin-path", folder_in(folder, "plugin-path").string()});
  }
  for (const char* option : {"data", "models", "output-data"}) {
    for (const auto& text : vernier::words_in(given, option)) {
      settings.data.push_back(folder_in(text, option));
      settings.queue.limits.data.push_back(settings.data.back());
      if (option == std::string("models")) settings.models.push_back(settings.data.back());
      if (option == std::string("output-data")) settings.queue.limits.writable.push_back(settings.data.back());
    }
  }
  settings.hosts = vernier::words_in(given, "host");
  settings.listen = given["listen"].as<std::string>();
  settings.limits.body = 1 << 20;
  settings.limits.requests_per_second = static_cast<double>(number_in(given, "requests-per-second", 1, 1'000'000));
  settings.limits.later = std::chrono::seconds(60);
  if (const auto trouble = vernier::trouble_with_listen(settings.listen); !trouble.empty()) {
    throw Refused("--listen " + settings.listen + ": " + trouble);
  }
  const bool has_certificate = given.count("tls-certificate") != 0;
  if (has_certificate != (given.count("tls-key") != 0)) throw Refused("--tls-certificate and --tls-key go together");
  if (has_certificate) {
    settings.encryption = {given["tls-certificate"].as<std::string>(), given["tls-key"].as<std::string>()};
    refuse_open_key(settings.encryption->key);
  } else if (!vernier::is_loopback(settings.listen)) {
    throw Refused("--listen " + settings.listen +
                  ": is reached by other machines, and there is no encryption; say --tls-certificate and --tls-key");
  }
  return settings;
}

std::int64_t gpus_of_machine() {
  std::int64_t count = 0;
  while (count < 64 && ::access(("/dev/nvidia" + std::to_string(count)).c_str(), F_OK) == 0) count += 1;
  return count;
}

// Connections need file descriptors; jobs have their own limit.
void raise_open_files() {
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  now.rlim_cur = now.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &now);
}

void say(const std::string& text) {
  std::cerr << "vernier: " << text << std::endl;
}

std::string trouble_with_configuration(const std::string& config, const std::vector<std::string>& data) {
  try {
    serve::checked_configuration(config, {data.begin(), data.end()});
    return "";
  } catch (const serve::NotAllowed& refused) {
    return refused.what();
  }
}

int serve_jobs(Settings settings) {
  const auto& folder = settings.queue.folder;
  serve::set_reach(settings.queue);
  if (!serve::Sandbox::is_possible()) {
    say("this kernel has no Landlock: paths are checked, but the code of a TorchScript model reaches all files of this "
        "user");
  }
  const ServerLock lock(folder);
  std::signal(SIGINT, SIG_DFL);  // a script's shell has its background jobs ignore it
  const vernier::BlockedSignals signals({SIGINT, SIGTERM, SIGHUP});  // in threads that begin later, too
  std::signal(SIGPIPE, SIG_IGN);
  raise_open_files();
  serve::Queue queue(settings.queue);
  serve::AuditLog audit(folder / "audit.jsonl");
  if (audit.is_empty() && !queue.list({}).empty()) {
    say((folder / "audit.jsonl").string() + " has no line, and there are jobs: somebody has removed or emptied it");
    audit.add("server", "lost", {{"lines", "all"}});
  }
  queue.on_retirement([&audit](const serve::Job& job) {
    audit.add("server", "remove", {{"job", job.id}, {"user", job.request.user}, {"ended", job.ended}});
  });
  serve::MetricHistories histories;
  serve::Workers workers;
  serve::Live live(queue, histories);
  vernier::HttpService service("Vernier: jobs", VERNIER_VERSION,
                               vernier::Tokens(folder / "tokens", vernier::Scope::admin, say), settings.hosts,
                               serve::routes({queue, audit, workers, histories, live, settings.data, settings.models}));
  settings.limits.knows = [&](const vernier::HttpRequest& request) { return service.knows(request); };
  vernier::HttpServer server(
      settings.listen, [&](const vernier::HttpRequest& request) { return service.answer(request); },
      [&](const vernier::HttpRequest& request) { return service.refuse(request); }, settings.limits,
      settings.encryption);
  // Workers and live events wake the server, so they stop before it ends, also where a line below throws.
  std::shared_ptr<void> stopped(nullptr, [&](void*) { workers.stop(), live.stop(); });
  live.begin([&] { server.wake(); });
  workers.on_answer([&] { server.wake(); });
  const auto address = std::string(settings.encryption ? "https://" : "http://") +
                       settings.listen.substr(0, settings.listen.rfind(':') + 1) + std::to_string(server.port());
  audit.add("server", "start", {{"version", VERNIER_VERSION}, {"listen", address}});
  serve::write_durably(folder / "server.url", address + "\n");
  say("jobs are taken at " + address + "/, with a token of " + (folder / "tokens").string());
  const timespec at_once{};
  while (::sigtimedwait(&signals.set(), nullptr, &at_once) < 0) {
    try {
      queue.look();
      queue.wait(std::chrono::milliseconds(200));
    } catch (const std::exception& error) {  // a full disk; jobs go on, and the queue is looked at again
      say(error.what());
      std::this_thread::sleep_for(std::chrono::seconds(2));
    }
  }
  stopped.reset();
  audit.add("server", "stop", {{"running", queue.counts().running}});
  std::error_code none;
  fs::remove(folder / "server.url", none);
  say("the server ends; jobs go on");
  return 0;
}

}  // namespace

namespace vernier {
int call_watch(int argc, char** argv);  // the main of another verb, whose program this is too
}

int main(int argc, char** argv) {
  const auto called = fs::path(argv[0]).filename();
  if (called == "vernier-audit") return serve::call_audit(argc, argv);
  if (called == "vernier-jobs") return jobs::call_jobs(argc, argv);
  if (called == "vernier-watch") return vernier::call_watch(argc, argv);
  const std::string first = argc > 1 ? argv[1] : "";
  if ((argc == 4 && first == "--attempt") || (argc == 3 && first == "--confined")) {  // a process for a job
    try {
      if (argc == 3) return serve::run_confined(argv[2]);
      return serve::run_attempt(argv[3], std::stoll(argv[2]), trouble_with_configuration);
    } catch (const std::exception& error) {
      std::cerr << "vernier: " << error.what() << std::endl;
      return 1;
    }
  }
  using Words = std::vector<std::string>;
  const auto number = [](std::int64_t value) { return po::value<std::int64_t>()->default_value(value); };
  po::options_description known;
  known.add_options()("listen", po::value<std::string>()->default_value("127.0.0.1:8080"))(
      "tls-certificate", po::value<std::string>())("tls-key", po::value<std::string>())("host", po::value<Words>())(
      "cores", number(vernier::available_cores()))("gpus", number(gpus_of_machine()))("data", po::value<Words>())(
      "models", po::value<Words>())("output-data", po::value<Words>())("plugin-path", po::value<Words>())(
      "keep-days", number(30))("time-limit", number(0))("memory-limit", number(0))("file-size", number(0))(
      "open-files", number(4096))("processes", number(0))("grace", number(30))("slurm", "")(
      "sbatch", po::value<Words>())("requests-per-second", number(100));
  const auto run = [](const po::variables_map& given) { return serve_jobs(settings_in(given)); };
  return vernier::call_verb({"serve", usage, known, run}, argc, argv);
}
