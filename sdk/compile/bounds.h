// How far the results of a program may be from those of the operators.
#pragma once

#include "source.h"

namespace vernier::compile {

// Calls the operators on copies of the memory as it is now: in float64, in float32, and three times in float32 with
// every result changed by up to one rounding, because the error of a single number may be small by chance. In another
// order, sums of n numbers err by up to n roundings, and usually by the root of n (Higham, "Accuracy and Stability of
// Numerical Algorithms", section 4.2). So a program may err by the root of n, of the longest sum, times what the
// operators err. Returns the bound for each result; 0 if its bits must be the same.
std::vector<double> bounds_of(const Calls& calls, const std::vector<at::Tensor>& results);

// A layer of an LSTM, which oneDNN does not compute in float64, by LibTorch's other operators and autograd. given: its
// arguments. The workspace has no elements.
bool is_recurrent(const Tape::Call& call);
Tape::Values recurrent_in_float64(const Tape::Call& call, const Tape::Values& given);

}  // namespace vernier::compile
