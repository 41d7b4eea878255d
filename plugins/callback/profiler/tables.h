// profiler: the table of what was recorded; see profiler.cpp.
#pragma once

#include <torch/csrc/autograd/profiler_kineto.h>

#include <string>
#include <vector>

namespace profiler {

inline constexpr const char* layer_prefix = "layer ";

// Steps `first` to `last` were recorded. rows: the most of each list.
std::string tables_of(const std::vector<torch::autograd::profiler::KinetoEvent>& events, std::int64_t first,
                      std::int64_t last, std::size_t rows);

}  // namespace profiler
