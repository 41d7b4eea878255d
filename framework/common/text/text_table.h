// Tables and lists of plain text.
#pragma once

#include <string>
#include <vector>

namespace vernier {

using TextRows = std::vector<std::vector<std::string>>;  // UTF-8 cells; the first row is the head

// Returns one line for each row, with the cells of a column below each other. sides: 'l' or 'r' for each column; a
// column without one is on the left. The last cell of a row that is shorter than the head does not widen its column.
std::string aligned(const TextRows& rows, const std::string& sides = "");

// Returns a row of a table whose other rows are not known yet. A cell that is wider than its column moves the next
// ones.
std::string aligned_row(const std::vector<std::string>& row, const std::vector<std::size_t>& widths);

std::string joined(const std::vector<std::string>& words, const std::string& separator = ", ");

}  // namespace vernier
