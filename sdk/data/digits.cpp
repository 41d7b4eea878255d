#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/digits.h>
#include <vernier/error.h>

namespace vernier {

torch::Tensor as_floats(const torch::Tensor& numbers) {
  const auto type = numbers.scalar_type();
  const bool is_wide = type == torch::kFloat64 || type == torch::kInt32 || type == torch::kInt64 ||
                       type == torch::kUInt32 || type == torch::kUInt64;
  return numbers.to(is_wide ? torch::kFloat64 : torch::kFloat32);
}

std::string lost_digits(const torch::Tensor& numbers, bool is_centred, const std::vector<std::string>& names,
                        const torch::Tensor& given) {
  constexpr std::int64_t most_rows = 10'000;
  constexpr double few_steps = 256;  // float32 steps in the middle half of the numbers
  const auto rows = given.defined() ? given.numel() : numbers.size(0);
  if (rows < 2 || numbers.numel() == 0 || numbers.scalar_type() == torch::kFloat32) return "";
  const auto every = (rows + most_rows - 1) / most_rows;
  const auto chosen =
      given.defined() ? numbers.index_select(0, given.slice(0, 0, rows, every)) : numbers.slice(0, 0, rows, every);
  const auto some = chosen.reshape({(rows + every - 1) / every, -1}).to(torch::kFloat64);
  const auto sorted = std::get<0>(some.sort(0));
  const auto last = sorted.size(0) - 1;
  const auto low = sorted[last / 4], middle = sorted[last / 2], high = sorted[last - last / 4];
  const auto spread = at::where(high > low, high - low, sorted[last] - sorted[0]);
  const auto unit = is_centred ? some.std(0, /*unbiased=*/false) : torch::ones_like(low);
  const auto size = is_centred ? (middle - some.mean(0)).abs() / unit : at::maximum(low.abs(), high.abs());
  const auto step = at::maximum(at::exp2(size.log2().floor() - 23) * unit,
                                at::exp2(at::maximum(low.abs(), high.abs()).log2().floor() - 52));
  const auto lost = ((spread > 0) & (step * few_steps > spread)).nonzero();
  if (lost.size(0) == 0) return "";
  const auto column = lost[0].item<std::int64_t>();
  const auto number = [column](const torch::Tensor& of) { return of[column].item<double>(); };
  const auto name = static_cast<std::size_t>(column) < names.size()
                        ? "column '" + shortened(names[static_cast<std::size_t>(column)], 40) + "'"
                        : c10::str("column ", column);
  return c10::str(name, lost.size(0) > 1 ? c10::str(" (and ", lost.size(0) - 1, " more)") : "",
                  ": half of its numbers lie within ", number(spread), ", where the steps of float32 are ",
                  number(step));
}

}  // namespace vernier
