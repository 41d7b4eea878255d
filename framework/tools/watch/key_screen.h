// The terminal as a screen with keys.
#pragma once

#include <termios.h>

#include <string>

#include "common/child.h"
#include "common/text/terminal.h"

namespace vernier {

// True if standard input and output are a terminal that obeys escape sequences.
bool has_keys();

// The size of the terminal, or 80x24 where it says none.
Screen screen();

// While it exists, keys arrive as they are pressed and are not shown. The terminal is as before when it is destroyed.
class KeyScreen {
 public:
  KeyScreen();
  KeyScreen(const KeyScreen&) = delete;
  KeyScreen& operator=(const KeyScreen&) = delete;
  ~KeyScreen();

  // Shows as much of the text as fits above the last lines, which are `below`.
  void draw(const std::string& text, const std::string& below) const;

  // Waits for a key, but no longer than so many seconds, and not beyond a change of the terminal's size or a signal.
  // Returns '\0' if there is no key.
  char key(double seconds);
  int ended_by() const { return signal_; }  // the signal that asks this program to end; 0: none

 private:
  BlockedSignals signals_;
  int signal_file_;
  termios before_ = {};
  int signal_ = 0;
};

}  // namespace vernier
