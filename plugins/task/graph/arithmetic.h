// The arithmetic of Python that an exported program does on sizes.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace graph {

using Arithmetic = c10::IValue (*)(const std::vector<c10::IValue>& arguments);
// Returns the function of a target such as "_operator.mul"; null: there is none. It throws Error for other numbers of
// arguments, a division by 0, and integers that leave 64 bits.
Arithmetic arithmetic_of(const std::string& target);

}  // namespace graph
