// The numbers that a file of torch.export has for dtypes, layouts and memory formats. They are not those of c10:
// torch/_export/serde/schema.py of PyTorch 2.11, schema version 8.
#pragma once

#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <optional>
#include <utility>

namespace vernier::pt2 {

inline constexpr int schema_version = 8;
inline constexpr int strided = 7;

inline constexpr std::array<std::pair<int, c10::ScalarType>, 15> dtypes = {{
    {1, c10::ScalarType::Byte},
    {2, c10::ScalarType::Char},
    {3, c10::ScalarType::Short},
    {4, c10::ScalarType::Int},
    {5, c10::ScalarType::Long},
    {6, c10::ScalarType::Half},
    {7, c10::ScalarType::Float},
    {8, c10::ScalarType::Double},
    {10, c10::ScalarType::ComplexFloat},
    {11, c10::ScalarType::ComplexDouble},
    {12, c10::ScalarType::Bool},
    {13, c10::ScalarType::BFloat16},
    {28, c10::ScalarType::UInt16},
    {29, c10::ScalarType::Float8_e4m3fn},
    {30, c10::ScalarType::Float8_e5m2},
}};

inline std::optional<c10::ScalarType> dtype_of(int number) {
  for (const auto& [key, dtype] : dtypes) {
    if (key == number) return dtype;
  }
  return std::nullopt;
}

inline std::optional<int> number_of(c10::ScalarType wanted) {
  for (const auto& [key, dtype] : dtypes) {
    if (dtype == wanted) return key;
  }
  return std::nullopt;
}

inline std::optional<c10::MemoryFormat> memory_format_of(int number) {
  constexpr std::array formats = {c10::MemoryFormat::Contiguous, c10::MemoryFormat::ChannelsLast,
                                  c10::MemoryFormat::ChannelsLast3d, c10::MemoryFormat::Preserve};
  if (number < 1 || number > 4) return std::nullopt;
  return formats[static_cast<std::size_t>(number - 1)];
}

}  // namespace vernier::pt2
