#include "local_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <ostream>
#include <utility>

#include "common/run_files.h"

namespace vernier {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int lost_another = 4;                                     // the exit code of a rank that lost another one
constexpr int ends_of_a_run[] = {0, 5, 124};                        // done, diverged, out of time
constexpr int stop_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};  // `vernier train` saves and ends after one of these
constexpr std::size_t kept_lines = 5, longest_line = 65536;
constexpr int look_every = 50;  // milliseconds

[[noreturn]] void refuse_start(const std::string& what, const std::string& remedy) {
  throw Refused(what + " (" + std::strerror(errno) + "); " + remedy);
}

std::vector<std::string> lines_of(std::istream& text) {
  std::deque<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (!line.empty()) lines.push_back(line);
    if (lines.size() > kept_lines) lines.pop_front();
  }
  return {lines.begin(), lines.end()};
}

// A rank that ends with 4 may only have lost another one. An end of another kind, shortly after it, is the cause.
int weight_of(const RankEnd& end) {
  if (end.status == 0) return 0;
  if (!is_failure(end)) return 1;
  return !end.was_killed && end.status == lost_another ? 2 : 3;
}

}  // namespace

bool is_failure(const RankEnd& end) {
  if (end.was_killed) return true;
  const auto is_stop = [&](int signal) { return end.status == 128 + signal; };
  return std::ranges::find(ends_of_a_run, end.status) == std::end(ends_of_a_run) &&
         std::ranges::none_of(stop_signals, is_stop);
}

std::string sentence_of(const RankEnd& end) {
  const auto rank = "rank " + std::to_string(end.rank);
  if (!end.was_killed) return rank + " ended with exit code " + std::to_string(end.status);
  const int signal = end.status - 128;
  return rank + " was killed by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
}

LocalRanks::LocalRanks(std::ostream& out, RankSettings settings)
    : out_(out), settings_(std::move(settings)), signals_({std::begin(stop_signals), std::end(stop_signals)}) {
  std::signal(SIGPIPE, SIG_IGN);  // `vernier launch … | head` loses lines, not the run
}

std::optional<RankEnd> LocalRanks::run(const std::vector<ChildSettings>& commands) {
  first_.reset();
  sent_ = 0;
  processes_.clear();
  processes_.resize(commands.size());
  try {
    for (std::size_t place = 0; place < commands.size(); ++place) start(commands[place], place);
    while (are_running()) {
      show_output(look_every);
      pass_signals_on();
      collect_ends();
      end_the_others();
    }
    show_output(0);
  } catch (...) {
    kill_all();
    throw;
  }
  kill_all();
  if (first_) first_->last_lines = last_lines_of(static_cast<std::size_t>(first_->rank - settings_.first_rank));
  return first_;
}

int LocalRanks::stopped_by() {
  pass_signals_on();
  return stopped_by_;
}

pid_t LocalRanks::process_of(std::size_t place) const {
  return processes_.at(place).id;
}

std::string LocalRanks::name_of(std::size_t place) const {
  return std::to_string(rank_of(place));
}

void LocalRanks::start(ChildSettings command, std::size_t place) {
  auto& process = processes_[place];
  int output = -1;  // the child's output
  if (!settings_.log_folder.empty()) {
    process.log = settings_.log_folder / ("rank-" + name_of(place) + ".log");
    output = ::open(process.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (output < 0) refuse_start(process.log.string() + ": cannot be written", "name another --log-dir");
    process.log_begin = std::filesystem::file_size(process.log);
  } else if (rank_of(place) > 0) {
    int ends[2] = {};
    if (::pipe2(ends, O_CLOEXEC) != 0)
      refuse_start("no pipe can be made for a rank", "start fewer, or raise ulimit -n");
    process.output = ends[0];
    output = ends[1];
    ::fcntl(process.output, F_SETFL, O_NONBLOCK);
  }
  command.out = command.err = output;
  command.mask = &signals_.mask_before();
  const pid_t child = start_child(command);
  const int trouble = errno;
  if (output >= 0) ::close(output);
  errno = trouble;
  if (child < 0) refuse_start("rank " + name_of(place) + " cannot be started", "start fewer, or raise ulimit -u");
  process.id = child;
}

bool LocalRanks::are_running() const {
  return std::ranges::any_of(processes_, [](const auto& each) { return !each.has_ended; });
}

// Waits for output, but no longer than this.
void LocalRanks::show_output(int milliseconds) {
  std::vector<pollfd> pipes;
  std::vector<std::size_t> places;
  for (std::size_t place = 0; place < processes_.size(); ++place) {
    if (processes_[place].output < 0) continue;
    pipes.push_back({processes_[place].output, POLLIN, 0});
    places.push_back(place);
  }
  if (::poll(pipes.data(), pipes.size(), milliseconds) <= 0) return;
  for (std::size_t i = 0; i < pipes.size(); ++i) {
    if (pipes[i].revents != 0) read_pipe(places[i]);
  }
}

void LocalRanks::read_pipe(std::size_t place) {
  auto& process = processes_[place];
  char part[4096];
  ssize_t count = 0;
  while ((count = ::read(process.output, part, sizeof part)) > 0) {
    process.partial.append(part, static_cast<std::size_t>(count));
    for (std::size_t end = 0; (end = process.partial.find('\n')) != std::string::npos;) {
      show_line(place, process.partial.substr(0, end));
      process.partial.erase(0, end + 1);
    }
    if (process.partial.size() > longest_line) show_line(place, std::exchange(process.partial, {}));
  }
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (!process.partial.empty()) show_line(place, std::exchange(process.partial, {}));
  ::close(std::exchange(process.output, -1));
}

void LocalRanks::show_line(std::size_t place, std::string line) {
  out_ << settings_.line_begin + "[rank " + name_of(place) + "] " + line + '\n' << std::flush;
  if (line.empty()) return;
  auto& last = processes_[place].last_lines;
  last.push_back(std::move(line));
  if (last.size() > kept_lines) last.pop_front();
}

void LocalRanks::pass_signals_on() {
  const timespec at_once{};
  int signal = 0;
  while ((signal = ::sigtimedwait(&signals_.set(), nullptr, &at_once)) > 0) {
    if (stopped_by_ == 0) {
      stopped_by_ = signal;
      send(signal);
    } else if (signal == SIGINT) {
      is_killed_by_user_ = true;
      send(SIGKILL);
    }
  }
}

void LocalRanks::collect_ends() {
  for (std::size_t place = 0; place < processes_.size(); ++place) {
    auto& process = processes_[place];
    int status = 0;
    if (process.has_ended || ::waitpid(process.id, &status, WNOHANG) != process.id) continue;
    process.has_ended = true;
    RankEnd end{.rank = rank_of(place)};
    end.status = status_of(status);
    // A signal that came before the program listened for signals stops it, too.
    end.was_killed = WIFSIGNALED(status) && WTERMSIG(status) != stopped_by_;
    if (is_killed_by_user_) end = {.rank = end.rank, .status = 128 + SIGINT};
    note_end(end);
  }
}

void LocalRanks::note_end(const RankEnd& end) {
  if (sent_ != 0) return;  // a consequence
  if (weight_of(end) <= (first_ ? weight_of(*first_) : 0)) return;
  if (is_failure(end) && !(first_ && is_failure(*first_))) failed_at_ = Clock::now();
  first_ = end;
}

void LocalRanks::end_the_others() {
  if (!first_ || !is_failure(*first_)) return;
  const auto since = Clock::now() - failed_at_;
  if (sent_ == 0 && since >= settings_.grace) {
    send(sent_ = SIGTERM);
    send(SIGCONT);  // a rank that is stopped would not notice
  } else if (sent_ == SIGTERM && since >= settings_.grace + settings_.kill_after) {
    send(sent_ = SIGKILL);
  }
}

// To the ranks that have not ended, and to their children.
void LocalRanks::send(int signal) const {
  for (const auto& process : processes_) {
    if (process.id > 0 && !process.has_ended) ::kill(-process.id, signal);
  }
}

void LocalRanks::kill_all() {
  send(SIGKILL);
  for (auto& process : processes_) {
    if (process.id > 0 && !std::exchange(process.has_ended, true)) ::waitpid(process.id, nullptr, 0);
    if (process.output >= 0) ::close(std::exchange(process.output, -1));
  }
}

std::vector<std::string> LocalRanks::last_lines_of(std::size_t place) const {
  const auto& process = processes_[place];
  if (process.log.empty()) return {process.last_lines.begin(), process.last_lines.end()};
  constexpr std::uintmax_t most = 4096;
  std::ifstream file(process.log, std::ios::binary);
  const auto size = std::filesystem::file_size(process.log);
  file.seekg(static_cast<std::streamoff>(std::max(process.log_begin, size > most ? size - most : 0)));
  return lines_of(file);
}

}  // namespace vernier
