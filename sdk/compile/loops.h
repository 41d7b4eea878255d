// Writes loops over elements, in the order of the memory that is written.
#pragma once

#include "source.h"

namespace vernier::compile {

// to = value, an expression of a, b and c: the elements of `from` as numbers of `type`, which are broadcast. Wrapped
// numbers are constants. Returns "" if an element type has no loops.
std::string element_by_element(const Memory& memory, const at::Tensor& to, const std::vector<at::Tensor>& from,
                               const std::string& value, std::string type = "");

// to = scale times the sums of `from` over dims.
std::string sums(const Memory& memory, const at::Tensor& to, const at::Tensor& from, std::vector<std::int64_t> dims,
                 double scale);

// A number as a constant of C++; "" if it is not finite.
std::string constant(double number, const std::string& type);

}  // namespace vernier::compile
