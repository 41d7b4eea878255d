#include "terminal.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <sstream>

namespace vernier {

namespace {

// Returns where the lines that continue a line of a help begin: below the text of an option, or a little to the right.
std::size_t continued_at(const std::string& line) {
  const auto indent = std::min(line.find_first_not_of(' '), line.size());
  constexpr std::size_t widest_option = 40;
  if (line.starts_with("usage: ") || line.compare(indent, 8, "vernier ") == 0) return 11;
  const auto gap = line.find("  ", indent);
  const auto text = gap == line.npos ? gap : line.find_first_not_of(' ', gap);
  if (text < widest_option) return text;
  return indent == 2 ? 4 : indent;
}

}  // namespace

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

std::string help_page(const std::string& help) {
  constexpr std::size_t columns = 79;
  std::istringstream lines(help);
  std::string page, item;
  for (std::string line; std::getline(lines, line);) {
    const auto indent = line.find_first_not_of(' ');
    const bool goes_on = wrapped(item, columns, 0) != item && indent == continued_at(item) &&
                         indent == continued_at(line) && line[indent] != '-';
    if (goes_on) {
      item += " " + line.substr(indent);
    } else {
      page += wrapped(item, columns, continued_at(item)) + (page.empty() && item.empty() ? "" : "\n");
      item = line;
    }
  }
  return page + wrapped(item, columns, continued_at(item)) + "\n";
}

}  // namespace vernier
