// A terminal in place of stderr, and what a person would see on it.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

// Draws what it is given: carriage returns, line feeds and "erase to the end of the line"; UTF-8, one column a
// character.
class Drawing {
 public:
  void write(const std::string& bytes) {
    for (std::size_t i = 0; i < bytes.size();) i += take(bytes.substr(i));
  }
  const std::vector<std::string>& lines() const {
    text_.clear();
    for (const auto& line : cells_) {
      std::string text;
      for (const auto& cell : line) text += cell;
      text_.push_back(text.substr(0, text.find_last_not_of(' ') + 1));
    }
    return text_;
  }
  std::size_t column() const { return column_; }
  std::size_t widest() const { return widest_; }

 private:
  std::size_t take(const std::string& rest) {
    const auto first = static_cast<unsigned char>(rest[0]);
    if (rest.starts_with("\x1b[K")) {
      if (cells_.back().size() > column_) cells_.back().resize(column_);
      return 3;
    }
    if (first == '\r') {
      column_ = 0;
    } else if (first == '\n') {
      cells_.emplace_back();
      column_ = 0;
    } else {
      const std::size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
      if (cells_.back().size() <= column_) cells_.back().resize(column_ + 1, " ");
      cells_.back()[column_++] = rest.substr(0, length);
      widest_ = std::max(widest_, column_);
      return length;
    }
    return 1;
  }

  std::vector<std::vector<std::string>> cells_ = {{}};
  mutable std::vector<std::string> text_;
  std::size_t column_ = 0, widest_ = 0;
};

// True if this machine has terminals: a container may lack /dev/pts. Tests that need one are skipped then.
inline bool has_pseudo_terminals() {
  std::array<int, 2> ends = {};
  const bool has = ::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) == 0;
  if (has) {
    ::close(ends[0]);
    ::close(ends[1]);
  } else {
    std::fputs("skipped where a terminal is needed: this machine has no pseudo-terminals\n", stderr);
  }
  return has;
}
inline const doctest::skip needs_terminal(!has_pseudo_terminals());

// Until it is destroyed, stderr is a terminal of so many columns; with 0 it is a pipe.
class StandardError {
 public:
  explicit StandardError(int columns) : saved_(::dup(STDERR_FILENO)) {
    ::setenv("TERM", "xterm-256color", 1);
    std::array<int, 2> ends = {};
    if (columns > 0) {
      if (::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) != 0) std::abort();
    } else if (::pipe(ends.data()) != 0) {
      std::abort();
    }
    reader_ = ends[0];
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[1]);
    if (columns > 0) resize(columns);
  }
  StandardError(const StandardError&) = delete;
  StandardError& operator=(const StandardError&) = delete;
  ~StandardError() {
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
    ::close(reader_);
  }

  void resize(int columns) {
    winsize size = {};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = 24;
    ::ioctl(STDERR_FILENO, TIOCSWINSZ, &size);
  }

  // All that was written since the last call.
  std::string read() {
    std::string all;
    std::array<char, 4096> bytes;
    pollfd ready = {reader_, POLLIN, 0};
    while (::poll(&ready, 1, 0) > 0 && (ready.revents & POLLIN) != 0) {
      const auto count = ::read(reader_, bytes.data(), bytes.size());
      if (count <= 0) break;
      all.append(bytes.data(), static_cast<std::size_t>(count));
    }
    drawing.write(all);
    return all;
  }

  Drawing drawing;

 private:
  int saved_, reader_ = -1;
};
