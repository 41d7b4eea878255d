#include "forked_call.h"

#include <c10/util/StringUtil.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vernier/error.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string_view>
#include <thread>

#include "common/child.h"

namespace vernier {

namespace {

std::string contents(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  return text;
}

// In the child: 'o', 'f', 's' or 'd', and the text.
void write_result(const std::function<std::string()>& body, std::FILE* to) {
  char kind = 'o';
  std::string text;
  try {
    text = body();
  } catch (const LawDeclined& declined) {
    kind = 'd';
    text = declined.what();
  } catch (const LawSkipped& skipped) {
    kind = 's';
    text = skipped.what();
  } catch (...) {
    kind = 'f';
    text = caught().message;
  }
  std::fputc(kind, to);
  std::fwrite(text.data(), 1, text.size(), to);
  std::fflush(to);
}

// The sanitizer's finding in what a process wrote: "AddressSanitizer: heap-buffer-overflow mine.cpp:12 in …", or "".
std::string finding_in(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("SUMMARY: ")) return line.substr(std::string("SUMMARY: ").size());
    if (line.find(": runtime error: ") != std::string::npos) return line;
  }
  return "";
}

// Returns the place in a line that the handler of fatal signals wrote: ", in callback/mine at StepEnd of step 3", or
// "".
std::string place_in(const std::string& last) {
  const std::string begin = "vernier: ";
  const auto end = last.find(": crashed with SIGALRM");
  if (!last.starts_with(begin) || end == std::string::npos || end <= begin.size()) return "";
  return ", in " + last.substr(begin.size(), end - begin.size());
}

}  // namespace

ForkedCall::ForkedCall(const std::function<std::string()>& body, unsigned most_seconds)
    : most_seconds_(most_seconds), result_(std::tmpfile()), said_(std::tmpfile()) {
  if (result_ == nullptr || said_ == nullptr) throw Error("no temporary file can be made");
  std::cout.flush();
  child_ = ::fork();
  if (child_ < 0) throw Error("no process can be started");
  if (child_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(::fileno(said_), STDOUT_FILENO);
  ::dup2(::fileno(said_), STDERR_FILENO);
  ::alarm(most_seconds);
  write_result(body, result_);
  ::_exit(0);
}

ForkedCall::~ForkedCall() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  std::fclose(result_);
  std::fclose(said_);
}

// One that holds back the signal of its alarm is killed a little later.
Result ForkedCall::wait() {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(most_seconds_ + 2);
  int status = 0;
  for (;;) {
    const auto ended = ::waitpid(child_, &status, most_seconds_ > 0 ? WNOHANG : 0);
    if (ended == child_) break;
    if (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (most_seconds_ == 0 || is_killed_ || Clock::now() < end) continue;
    is_killed_ = true;
    ::kill(child_, SIGKILL);
  }
  child_ = 0;
  const auto text = contents(result_);
  if (status != 0 || text.empty()) return {Result::Kind::failed, how_it_ended(status)};
  constexpr std::string_view letters = "ofsd";  // in the order of Kind
  return {static_cast<Result::Kind>(letters.find(text[0])), text.substr(1)};
}

std::string ForkedCall::how_it_ended(int status) const {
  const auto said = contents(said_);
  if (const auto finding = finding_in(said); !finding.empty()) return finding;
  const auto last = printable(last_line(said));
  const std::string also = last.empty() ? "" : "; its last line was: " + last;
  if (!WIFSIGNALED(status)) return c10::str("the process ended with status ", WEXITSTATUS(status), also);
  if (is_killed_ || (most_seconds_ > 0 && WTERMSIG(status) == SIGALRM)) {
    return c10::str("it took more than ", most_seconds_, " seconds", place_in(last),
                    "; --time-limit SECONDS gives a law more time");
  }
  return c10::str("the process crashed by signal ", WTERMSIG(status), " (", ::strsignal(WTERMSIG(status)), ")", also);
}

}  // namespace vernier
