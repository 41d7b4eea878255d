// Numbers whose spread is small beside their size, such as seconds since 1970, for which float32 has steps of 128. Keep
// them in float64 until their mean is taken off, as task/tabular does.
#pragma once

#include <vernier/abi.h>
#include <vernier/tensor.h>

#include <string>
#include <vector>

namespace vernier {

// Numbers of any dtype as float32 where that holds all numbers of their dtype, else as float64.
VERNIER_API torch::Tensor as_floats(const torch::Tensor& numbers);

// Returns a sentence on the columns of numbers [rows, columns] whose spread float32 does not show, or "". is_centred:
// their mean is taken off in float64 first, so that only numbers far from it lose digits. names: of the columns; none:
// they are numbered from 0. rows: the rows that count (int64, 1-D); undefined: all. It looks at 10,000 of them or
// fewer.
VERNIER_API std::string lost_digits(const torch::Tensor& numbers, bool is_centred,
                                    const std::vector<std::string>& names = {}, const torch::Tensor& rows = {});

}  // namespace vernier
