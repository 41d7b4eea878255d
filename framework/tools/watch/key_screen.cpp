#include "key_screen.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "common/text/control_characters.h"

namespace vernier {

namespace {

// Returns the line without control characters, cut to `columns` characters of UTF-8.
std::string cut(const std::string& line, std::size_t columns) {
  const auto text = without_control_characters(line);
  std::size_t end = 0;
  for (; end < text.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(text[end]) & 0xC0U) != 0x80U;
    if (begins && columns-- == 0) break;
  }
  return text.substr(0, end);
}

}  // namespace

bool has_keys() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0 && kind != nullptr &&
         std::string_view(kind) != "dumb";
}

Screen screen() {
  const auto size = screen_of(STDOUT_FILENO);
  return size.columns > 0 && size.rows > 0 ? size : Screen{80, 24};
}

KeyScreen::KeyScreen()
    : signals_({SIGINT, SIGTERM, SIGHUP, SIGWINCH}), signal_file_(::signalfd(-1, &signals_.set(), SFD_CLOEXEC)) {
  if (signal_file_ < 0 || ::tcgetattr(STDIN_FILENO, &before_) != 0) {
    throw std::system_error(errno, std::generic_category(), "the terminal cannot be used");
  }
  termios keys = before_;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  // Ctrl-Z and Ctrl-\ would not restore the terminal.
  keys.c_cc[VSUSP] = keys.c_cc[VQUIT] = _POSIX_VDISABLE;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  std::cout << "\033[?1049h\033[?25l" << std::flush;  // the alternate screen, without a cursor
}

KeyScreen::~KeyScreen() {
  std::cout << "\033[?25h\033[?1049l" << std::flush;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  ::close(signal_file_);
}

void KeyScreen::draw(const std::string& text, const std::string& below) const {
  const auto [columns, rows] = screen();
  const auto lines_below = static_cast<std::size_t>(std::ranges::count(below, '\n')) + 1;
  const auto most = rows > lines_below ? rows - lines_below : 0;
  std::string all = "\033[H";
  std::istringstream lines(text), last_lines(below);
  std::string line;
  for (std::size_t count = 0; count < most; ++count) {
    all += (std::getline(lines, line) ? cut(line, columns) : "") + "\033[K\n";
  }
  for (std::size_t count = 0; std::getline(last_lines, line); ++count) {
    all += (count > 0 ? "\n" : "") + cut(line, columns) + "\033[K";
  }
  std::cout << all << "\033[J" << std::flush;
}

char KeyScreen::key(double seconds) {
  pollfd ready[] = {{STDIN_FILENO, POLLIN, 0}, {signal_file_, POLLIN, 0}};
  if (::poll(ready, 2, static_cast<int>(seconds * 1000)) <= 0) return '\0';
  signalfd_siginfo info = {};
  if (ready[1].revents != 0 && ::read(signal_file_, &info, sizeof info) == sizeof info && info.ssi_signo != SIGWINCH) {
    signal_ = static_cast<int>(info.ssi_signo);
  }
  if (ready[0].revents == 0) return '\0';
  char key = '\0', rest[64];
  const auto count = ::read(STDIN_FILENO, &key, 1);
  if (count <= 0 && signal_ == 0) signal_ = SIGHUP;  // the terminal is gone
  if (count <= 0 || key != '\033') return key;
  // An arrow and the like: the rest of it is there.
  if (::poll(ready, 1, 0) > 0 && ::read(STDIN_FILENO, rest, sizeof rest) < 0) signal_ = SIGHUP;
  return '\0';
}

}  // namespace vernier
