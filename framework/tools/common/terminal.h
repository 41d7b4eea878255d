// The terminal that a text is printed on.
#pragma once

#include <cstddef>
#include <string>

namespace vernier {

std::size_t columns_of(int file);  // 0 if the open file is not a terminal

// Breaks lines at spaces, so that each fits into so many columns; 0: any number. A line that continues another begins
// with `indent` spaces. A word that is longer than a line stays whole. The text is UTF-8, one column a character.
std::string wrapped(std::string text, std::size_t columns, std::size_t indent);

}  // namespace vernier
