// The guards of a program: conditions on the sizes of its inputs, which torch.export.load() checks too.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <vector>

namespace graph {

// Returns a number for a name and an index of a guard: "x.size" and 0 of "x.size()[0]".
using NumberOf = std::function<c10::IValue(const std::string& name, std::int64_t index)>;

// Returns the value of an expression of Python on numbers, such as "(x.size()[0] % 2) == 0". Throws Error for others.
c10::IValue value_of(const std::string& expression, const NumberOf& number_of);

}  // namespace graph
