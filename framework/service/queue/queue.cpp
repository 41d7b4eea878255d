#include "service/queue/queue.h"

#include <vernier/json_text.h>

#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <system_error>

#include "common/text/quoting.h"
#include "service/queue/attempt.h"
#include "service/queue/start_process.h"

namespace serve {

namespace fs = std::filesystem;
using vernier::HttpRefused;
using vernier::time_text;
using Lock = std::lock_guard<std::mutex>;

namespace {

constexpr std::int64_t most_losses = 3;  // and the job's retries: after so many it is the job that ends its process

// The server's own configuration of every run, merged after the user's.
std::string overlay_of(const Job& job, const fs::path& folder) {
  return "# Written by vernier serve.\n[run]\noutput = " + vernier::toml_quoted((folder / "run").string()) +
         "\nresume = \"auto\"\nrequeue = false\nthreads = " + std::to_string(job.request.cores) +
         "\n\n[[callback]]\nuse = \"control\"\nlisten = \"127.0.0.1:0\"\nhosts = []\ntokens = \"control.tokens\"\n"
         "\n[[monitor]]\nuse = \"jsonl\"\nfile = \"losses.jsonl\"\n";
}

std::string sentence_of(const End& end, const JobRequest& request) {
  if (end.reason == "time_limit")
    return "it took longer than its limit of " + std::to_string(request.time_limit) + " s";
  if (end.reason == "memory_limit") {
    return "it took more memory than its limit of " + std::to_string(request.memory_limit) + " bytes";
  }
  if (end.status == 124) return "the time of its [run] time_limit is over";
  const auto what = end.status > 128 ? "signal " + std::to_string(end.status - 128) + " ended it"
                                     : "it ended with exit code " + std::to_string(end.status);
  // The last line that a killed one has printed says nothing.
  return end.text.empty() || end.status > 128 ? what : what + ": " + end.text;
}

// Returns true if a signal ended it that comes from outside: when the machine is shut down, or has no memory. A
// program brings the others upon itself.
bool is_interrupted(const End& end) {
  const std::set<int> own = {SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS, SIGXCPU, SIGXFSZ};
  return end.reason.empty() && end.status > 128 && !own.contains(end.status - 128);
}

// Returns true if there is no room, memory, process or open file now, as there may be later.
bool may_pass(int trouble) {
  const std::set<int> passing = {ENOSPC, EDQUOT, EAGAIN, ENOMEM, EMFILE, ENFILE};
  return passing.contains(trouble);
}

// The number that a name such as "12" or "12-2026-11-25" begins with; 0: none.
std::int64_t number_of(const fs::path& name) {
  return std::strtoll(name.c_str(), nullptr, 10);
}

}  // namespace

void make_folder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return;
  throw std::system_error(errno, std::generic_category(), folder.string() + ": cannot be made");
}

Queue::Queue(QueueSettings settings) : settings_(std::move(settings)), journal_(settings_.folder / "journal.sqlite") {
  make_folder(settings_.folder / "jobs");
  make_folder(settings_.folder / "attempts");
  set_strangers_aside();
  if (settings_.uses_slurm) slurm_.emplace(settings_.folder / "slurm.out", settings_.sbatch);
  for (const auto& job : journal_.running()) {
    if (slurm_ || job.slurm.empty()) continue;
    throw std::runtime_error("job " + std::to_string(job.id) + " was handed to Slurm and runs; start with --slurm");
  }
}

fs::path Queue::folder_of(std::int64_t id) const {
  return settings_.folder / "jobs" / std::to_string(id);
}

fs::path Queue::run_of(std::int64_t id) const {
  fs::path newest;
  fs::file_time_type newest_time;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder_of(id), none)) {
    std::error_code trouble;  // a link may lead to another user's run
    if (!entry.path().filename().string().starts_with("run") || entry.is_symlink(trouble)) continue;
    const auto time = fs::last_write_time(entry.path() / "config.toml", trouble);
    if (trouble || (!newest.empty() && time <= newest_time)) continue;
    newest = entry.path();
    newest_time = time;
  }
  return newest;
}

Finished call_confined(const QueueSettings& settings, std::vector<std::string> words, const fs::path& folder,
                       std::chrono::seconds patience, const std::string& data) {
  fs::create_directories(folder / "work");
  const auto own = fs::canonical(folder / "work");
  auto work = settings.limits;
  work.words = std::move(words);
  if (work.words[0] == settings.program)
    work.words.insert(work.words.end(), settings.more.begin(), settings.more.end());
  work.environment = {"OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=", "TMPDIR=" + own.string()};
  if (!data.empty()) work.data.push_back(data);
  work.writable.push_back(own.string());
  write_durably(folder / "work.json", vernier::json_text(nlohmann::json(work)));
  return finished_process({settings.attempt_program, "--confined", folder.string()}, folder / "printed", patience);
}

Job Queue::submit(const JobRequest& request, bool& is_new) {
  const Lock lock(mutex_);
  const auto job = journal_.add(request, is_new);
  if (is_new) changed_(job, true);
  is_changed_ = true;
  wake_.notify_one();
  return job;
}

Job Queue::find(std::int64_t id) const {
  const Lock lock(mutex_);
  return known(id);
}

Job Queue::known(std::int64_t id) const {
  if (auto job = journal_.find(id)) return *job;
  throw HttpRefused{404, "there is no such job; jobs are removed some time after their end"};
}

std::vector<Job> Queue::list(const Journal::Page& page) const {
  const Lock lock(mutex_);
  return journal_.list(page);
}

std::vector<Job> Queue::running() const {
  const Lock lock(mutex_);
  return journal_.running();
}

void Queue::write(const Job& job) {
  journal_.update(job);
  changed_(job, true);
}

void Queue::erase(const Job& job) {
  journal_.remove(job.id);
  std::error_code trouble;
  fs::remove_all(folder_of(job.id), trouble);
  if (!trouble) fs::remove_all(Attempt(folder_of(job.id), 1).files(), trouble);
  if (trouble) std::cerr << "vernier: the files of job " << job.id << " stay: " << trouble.message() << std::endl;
  changed_(job, false);
}

Job Queue::cancel(std::int64_t id) {
  const Lock lock(mutex_);
  auto job = known(id);
  if (job.is_over()) throw HttpRefused{409, std::string("the job is ") + name_of(job.state)};
  if (job.state == State::queued && (!slurm_ || cancel_at_slurm(job))) {
    close(job, State::cancelled, "");
  } else {
    job.state = State::running;
    job.is_cancelled = true;
    write(job);
    if (!slurm_) ask_to_end(job);
    is_changed_ = true;
    wake_.notify_one();
  }
  return job;
}

Job Queue::retry(std::int64_t id) {
  const Lock lock(mutex_);
  auto job = known(id);
  if (job.state != State::failed && job.state != State::cancelled) {
    throw HttpRefused{409, std::string("the job is ") + name_of(job.state) + "; one that failed is tried again"};
  }
  job.is_cancelled = false;
  job.failures = job.losses = 0;
  job.error = job.ended = "";
  requeue(job);
  return job;
}

void Queue::remove(std::int64_t id) {
  const Lock lock(mutex_);
  const auto job = known(id);
  if (!job.is_over()) throw HttpRefused{409, "the job is not over; cancel it first"};
  erase(job);
}

Queue::Counts Queue::counts() const {
  const Lock lock(mutex_);
  Counts counts{.queued = journal_.count(State::queued), .running = 0, .cores_in_use = 0, .gpus_in_use = 0};
  for (const auto& job : journal_.running()) {
    counts.running += 1;
    counts.cores_in_use += job.request.cores;
    counts.gpus_in_use += job.request.gpus;
  }
  return counts;
}

void Queue::wait(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, time, [&] { return is_changed_; });
  is_changed_ = false;
}

void Queue::look() {
  if (slurm_) return look_at_slurm();
  const Lock lock(mutex_);
  std::erase_if(children_, [](pid_t process) { return ::waitpid(process, nullptr, WNOHANG) != 0; });
  for (auto& job : journal_.running()) {
    try {
      look_after(job);
    } catch (const std::exception& error) {  // it is looked after again
      complain("job " + std::to_string(job.id) + ": " + error.what());
    }
  }
  start_queued();
  remove_old();
}

// The lock says whether an attempt lives, and its claim whether it ever began: see attempt.h. Process ids would say
// neither after a restart of the server.
void Queue::look_after(Job job) {
  const Attempt attempt(folder_of(job.id), job.attempt);
  if (const auto end = attempt.how_it_ended()) return finish(job, *end);
  if (job.is_cancelled) ask_to_end(job);
  const auto claim = attempt.claim();
  if (claim == Attempt::Claim::none) {
    const auto process = processes_.find(job.id);
    if (process != processes_.end() && children_.contains(process->second)) return;  // it begins
    make_folder(attempt.files());
    if (attempt.claim_for_server()) lose(job, /*is_loss=*/process != processes_.end());
    return;
  }
  if (claim == Attempt::Claim::server) return lose(job, /*is_loss=*/false);
  if (attempt.is_locked()) return;
  // The attempt may have ended since.
  if (const auto end = attempt.how_it_ended()) return finish(job, *end);
  lose(job, /*is_loss=*/true);
}

// The job's process finds the file, even after the server has ended.
void Queue::ask_to_end(const Job& job) const {
  const Attempt attempt(folder_of(job.id), job.attempt);
  std::error_code none;
  if (fs::exists(attempt.files(), none) && !fs::exists(attempt.file("cancel"), none)) {
    write_durably(attempt.file("cancel"), "");
  }
}

void Queue::finish(Job& job, const End& end) {
  if (end.status == 0) return close(job, State::done, "");
  if (job.is_cancelled) return close(job, State::cancelled, "");
  if (is_interrupted(end)) return lose(job, /*is_loss=*/true);
  const auto error = sentence_of(end, job.request);
  job.failures += 1;
  if (job.failures > job.request.retries) return close(job, State::failed, error);
  job.error = error;
  requeue(job);
}

// An attempt that never began, or ended without a word: the machine went down, or something killed it.
void Queue::lose(Job& job, bool is_loss) {
  if (job.is_cancelled) return close(job, State::cancelled, "");
  if (is_loss) job.losses += 1;
  if (job.losses <= most_losses + job.request.retries) return requeue(job);
  close(job, State::failed, "its process was killed or interrupted " + std::to_string(job.losses) + " times");
}

void Queue::requeue(Job& job) {
  job.state = State::queued;
  job.attempt += 1;
  job.gpus.clear();
  job.slurm.clear();
  processes_.erase(job.id);
  write(job);
  is_changed_ = true;
  wake_.notify_one();
}

void Queue::close(Job& job, State state, const std::string& error) {
  job.state = state;
  job.error = error;
  job.gpus.clear();
  job.ended = time_text();
  processes_.erase(job.id);
  interrupted_.erase(job.id);
  write(job);
  is_changed_ = true;
  std::cerr << "vernier: job " << job.id << " is " << name_of(state) << (error.empty() ? "" : ": " + error)
            << std::endl;
}

// A job that waits for its cores lets none behind it pass, so that large ones come to their turn.
void Queue::start_queued() {
  auto cores = settings_.cores;
  std::set<int> gpus;
  for (int i = 0; i < settings_.gpus; ++i) gpus.insert(i);
  for (const auto& job : journal_.running()) {
    cores -= job.request.cores;
    for (const int gpu : job.gpus) gpus.erase(gpu);
  }
  if (cores <= 0 || std::chrono::steady_clock::now() < start_after_) return;
  for (auto& job : journal_.queued(cores)) {  // each takes one at least
    const auto wanted = static_cast<std::size_t>(job.request.gpus);
    if (job.request.cores > cores || wanted > gpus.size()) return;
    cores -= job.request.cores;
    job.gpus.assign(gpus.begin(), std::next(gpus.begin(), job.request.gpus));
    for (const int gpu : job.gpus) gpus.erase(gpu);
    if (!start(job)) return;
  }
}

// The journal has the start before the process begins: a server that is killed in between finds no claim, and counts
// the attempt as one that never began. Returns false if the job must wait, as on a full disk.
bool Queue::start(Job& job) {
  try {
    write_files(journal_.find(job.id).value(), job.gpus);
    job.state = State::running;
    job.started = time_text();
    job.error = "";
    write(job);
    const auto folder = folder_of(job.id);
    const auto process = start_process(
        {settings_.attempt_program, "--attempt", std::to_string(job.attempt), folder.string()}, folder / "log");
    processes_[job.id] = *children_.insert(process).first;
    std::cerr << "vernier: job " << job.id << " of " << job.request.user << " is running, attempt " << job.attempt
              << std::endl;
    return true;
  } catch (const std::system_error& error) {
    if (!may_pass(error.code().value())) {
      close(job, State::failed, error.what());
      return true;
    }
    start_after_ = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    complain("jobs wait: " + std::string(error.what()));
    const bool is_news = job.state == State::running || job.error != error.what();
    job.state = State::queued;
    job.error = error.what();
    if (is_news) write(job);
  }
  return false;
}

// Says what stays wrong once a minute.
void Queue::complain(const std::string& trouble) {
  const auto now = std::chrono::steady_clock::now();
  if (trouble == complaint_ && now - complained_ < std::chrono::minutes(1)) return;
  complaint_ = trouble;
  complained_ = now;
  std::cerr << "vernier: " << trouble << std::endl;
}

// The job's identity comes before its folder, so that a folder without one is none of this journal's.
void Queue::write_files(const Job& job, const std::vector<int>& gpus_of_job) const {
  const auto folder = folder_of(job.id);
  const Attempt attempt(folder, job.attempt);
  make_folder(attempt.files());
  if (!fs::exists(attempt.files() / "identity")) write_durably(attempt.files() / "identity", job.identity);
  make_folder(folder);
  const auto config = "job-" + std::to_string(job.id) + ".toml";  // the run takes its name where it has none
  write_durably(folder / config, job.request.config);
  if (!job.request.texts_name.empty()) write_durably(folder / job.request.texts_name, job.request.texts);
  write_durably(folder / "server.toml", overlay_of(job, folder));
  auto work = settings_.limits;
  const auto& request = job.request;
  work.words = {settings_.program, "train", config, "server.toml"};
  work.words.insert(work.words.end(), settings_.more.begin(), settings_.more.end());
  work.environment = {"OMP_NUM_THREADS=" + std::to_string(request.cores), "TMPDIR=" + folder.string(),
                      "VERNIER_JOB=" + std::to_string(job.id)};
  work.writable.push_back(folder.string());
  if (!slurm_) {  // Slurm sets the variable for its jobs
    std::string gpus;
    for (const int gpu : gpus_of_job) gpus += (gpus.empty() ? "" : ",") + std::to_string(gpu);
    work.environment.push_back("CUDA_VISIBLE_DEVICES=" + gpus);
  }
  if (request.time_limit > 0) work.time_limit = request.time_limit;
  if (request.memory_limit > 0) work.memory_limit = request.memory_limit;
  write_durably(attempt.file("json"), vernier::json_text(nlohmann::json(work)) + "\n");
}

// A journal that was removed, or that a backup has replaced, does not know the folders of later jobs. Its own later
// jobs get other numbers and other folders.
void Queue::set_strangers_aside() {
  std::set<std::int64_t> found;
  std::int64_t largest = 0;
  for (const char* name : {"jobs", "attempts", "set-aside"}) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(settings_.folder / name, none)) {
      const auto id = number_of(entry.path().filename());
      largest = std::max(largest, id);
      if (id > 0 && name != std::string("set-aside")) found.insert(id);
    }
  }
  for (const auto id : found) {
    const auto job = journal_.find(id);
    const auto identity = read_whole(Attempt(folder_of(id), 1).files() / "identity");
    const bool is_empty = identity.empty() && !fs::exists(folder_of(id));  // the server was killed when it made them
    if (!job || (job->identity != identity && !is_empty)) set_aside(id);
  }
  journal_.count_on_from(largest);
}

void Queue::set_aside(std::int64_t id) const {
  const auto number = std::to_string(id);
  const auto files = Attempt(folder_of(id), 1).files();
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(files, none)) {
    const Attempt attempt(folder_of(id), number_of(entry.path().filename()));
    if (entry.path().extension() != ".lock" || !attempt.is_locked()) continue;
    write_durably(attempt.file("cancel"), "");
    throw std::runtime_error("jobs/" + number + " is of a job that the journal does not know, and it runs; it was " +
                             "asked to end: start again when it has");
  }
  make_folder(settings_.folder / "set-aside");
  const auto place = settings_.folder / "set-aside" / (number + "-" + time_text());
  make_folder(place);
  if (fs::exists(folder_of(id))) fs::rename(folder_of(id), place / "job");
  if (fs::exists(files)) fs::rename(files, place / "attempts");
  std::cerr << "vernier: jobs/" << number << " is of a job that the journal does not know; it is now in "
            << place.string() << std::endl;
}

void Queue::remove_old() {
  const auto now = std::chrono::steady_clock::now();
  if (settings_.keep_days <= 0 ||
      (removed_.time_since_epoch().count() != 0 && now - removed_ < std::chrono::hours(1))) {
    return;
  }
  removed_ = now;
  for (const auto& job : journal_.ended_before(time_text(std::chrono::hours(24 * settings_.keep_days)))) {
    retired_(job);
    erase(job);
    std::cerr << "vernier: job " << job.id << " is removed; it ended at " << job.ended << std::endl;
  }
}

}  // namespace serve
