// Tables of plain text.
#pragma once

#include <string>
#include <vector>

namespace vernier {

using TextRows = std::vector<std::vector<std::string>>;  // of UTF-8; the first row is the head

// One line for each row, with the cells of a column below each other.
std::string aligned(const TextRows& rows);

}  // namespace vernier
