#include "quantizer_laws.h"

#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/copy.h>
#include <vernier/error.h>

#include <cmath>

#include "rounding.h"

namespace formats {

using torch::Tensor;
using vernier::Operand;
using vernier::Quantizer;

namespace {

// Numbers of many magnitudes. Their mean is near 0.
Tensor try_numbers(std::int64_t multiple) {
  const auto shape = torch::empty({8, std::max<std::int64_t>(1, 128 / multiple) * multiple});
  return vernier::uniform_like(shape, 1).sub_(0.5).mul_(vernier::uniform_like(shape, 2).mul_(8).exp2_());
}

}  // namespace

void try_quantizer(Quantizer& quantizer, vernier::Slot slot) {
  const torch::NoGradGuard no_grad;
  const auto before = vernier::clone_of(quantizer.save());
  Operand of{.numbers = try_numbers(quantizer.multiple()),
             .slot = slot,
             .key = std::string("tried/") + vernier::slot_name(slot)};
  const auto x = of.numbers.clone();
  const auto rounded = [&](const Tensor& numbers, std::uint64_t seed) {
    of.numbers = numbers;
    of.seed = of.product_seed = seed;
    return value(quantizer.rounded(of));
  };
  const auto require = [&](bool is_kept, const char* what) {
    if (is_kept) return;
    throw vernier::Error(quantizer.id() + ": quantize() " + what, vernier::Error::Kind::plugin);
  };
  auto given = x.clone();
  const auto y = rounded(given, 5).clone();
  require(torch::equal(given, x),
          "changes its operand; it must return another tensor, as mul() does and mul_() does not");
  require(torch::equal(rounded(x, 5), y),
          "returns other numbers for the same operand and seed; take random numbers from uniform_like(x, of.seed)");
  require(rounded(torch::zeros_like(x), 5).eq(0).all().item<bool>(),
          "makes zeros into other numbers, perhaps by dividing by a scale of 0; keep the scale above 0 by clamp_min()");
  auto wrong = x.clone();
  wrong[1][1] = NAN;
  require(rounded(wrong, 5)[1][1].isnan().item<bool>(), "makes NaN into a number, so a run would hide it");
  if (quantizer.is_unbiased()) {
    constexpr int draws = 256;
    auto sum = torch::zeros_like(x, torch::kFloat64), squares = sum.clone();
    for (int i = 0; i < draws; ++i) {
      const auto error = (rounded(x, static_cast<std::uint64_t>(i) * 1000) - x).to(torch::kFloat64);
      sum += error;
      squares += error.square();
    }
    // The mean of the draws is off by their deviation over the root of their number: 1 here, and more with a bias.
    const auto mean = sum / draws, variance = squares / draws - mean.square();
    const double ratio = mean.square().sum().item<double>() * draws / variance.sum().clamp_min(1e-300).item<double>();
    require(ratio < 1.5, "is not unbiased, as is_unbiased() says: the mean of 256 draws is too far from the operand");
  }
  quantizer.load(before);
}

}  // namespace formats
