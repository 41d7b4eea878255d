// The values of a program's arguments in the forms that an operator's schema wants.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type_base.h>

#include <vector>

namespace graph {

// Returns a value for an argument of a type: a number for a Tensor becomes a wrapped number, whose dtype yields to that
// of tensors, as in `x + 1`; a whole number for a float becomes one. Other values stay.
c10::IValue fitted(c10::IValue value, const c10::TypePtr& type);
// Returns whether LibTorch takes a value as an argument of a type. It asserts what it is given.
bool is_of_type(const c10::IValue& value, const c10::TypePtr& type);
// Returns whether a type is one that a file names by a word: a dtype, a layout or a memory format.
bool is_word(const c10::TypePtr& type);
// Returns a list of values for elements of a type.
c10::IValue list_of(const std::vector<c10::IValue>& values, const c10::TypePtr& element);

}  // namespace graph
