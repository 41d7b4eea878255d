#include "terminal.h"

#include <sys/ioctl.h>

#include <algorithm>

namespace vernier {

Screen screen_of(int file) {
  winsize size = {};
  if (::ioctl(file, TIOCGWINSZ, &size) != 0) return {};
  return {size.ws_col, size.ws_row};
}

std::string wrapped(std::string text, std::size_t columns, std::size_t indent) {
  if (columns == 0) return text;
  const auto margin = "\n" + std::string(std::min(indent, columns / 2), ' ');
  std::size_t column = 0, space = 0;  // space: the last one where the line may be broken; 0: none
  bool is_blank = true;               // the line is blank so far
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') {
      column = space = 0;
      is_blank = true;
      continue;
    }
    const bool continues_character = (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
    column += continues_character ? 0 : 1;
    if (text[i] == ' ' && !is_blank) space = i;
    is_blank = is_blank && text[i] == ' ';
    if (text[i] == ' ' || column <= columns || space == 0) continue;
    text.replace(space, 1, margin);
    i = space - 1;  // the line feed is next
  }
  return text;
}

}  // namespace vernier
