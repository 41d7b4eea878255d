// The terminal that a text is printed on.
#pragma once

#include <cstddef>
#include <string>

namespace vernier {

// The size of a terminal in characters; zeros if the open file is not one.
struct Screen {
  std::size_t columns = 0, rows = 0;
};
Screen screen_of(int file);

// Breaks lines at spaces, so that each fits into so many columns; 0: any number. A line that continues another begins
// with `indent` spaces. A word that is longer than a line stays whole. The text is UTF-8, one column a character.
std::string wrapped(std::string text, std::size_t columns, std::size_t indent);

// Breaks the long lines of a help, so that it fits into 79 columns: a paragraph, or the text of an option.
std::string help_page(const std::string& help);

}  // namespace vernier
