#include "accumulate.h"

#include <algorithm>

namespace formats {

using vernier::NumberFormat;
using vernier::Options;

namespace {

constexpr const char* key = "accumulate";
constexpr const char* example = "accumulate = {mantissa = 13, promote_every = 128}";

// Fraction bits of the longest number; a posit has them near 1, and a block's scale has its own.
int mantissa_of(const vernier::TensorFormat& format) {
  const auto of = [](const NumberFormat& number) {
    if (number.kind == NumberFormat::Kind::fixed) return number.bits - 2;
    return number.kind == NumberFormat::Kind::posit ? std::max(number.bits - 3 - number.exponent, 0) : number.mantissa;
  };
  return of(format.element) + (format.has_block_scale ? of(format.scale) : 0);
}

void refuse_short(Options& options, const std::deque<Recipe>& recipes, int mantissa) {
  const vernier::TensorFormat* longest = nullptr;
  bool is_emulated = false;
  for (const auto& recipe : recipes) {
    for (const auto slot : slots) {
      is_emulated |= recipe.rounds(slot) && recipe.rounds(Recipe::other(slot));
      const auto* const own = dynamic_cast<const FormatQuantizer*>(recipe.at(slot).quantizer.get());
      if (own == nullptr) continue;
      const auto& format = own->format();
      if (longest == nullptr || mantissa_of(format) > mantissa_of(*longest)) longest = &format;
      if (format.block > 0 && !format.has_block_scale) {
        options.refuse(key, "is for blocks that a matrix unit scales itself, and those of \"" + format.name +
                                "\" have float32 scales; write scale = \"e8m0\" in its [[precision.format]]");
      }
    }
  }
  if (!is_emulated) {
    options.refuse(key, "is for products of two rounded operands, and the recipe has none; write forward = \"e4m3\"");
  }
  if (longest == nullptr || mantissa >= mantissa_of(*longest)) return;
  const auto least = std::to_string(mantissa_of(*longest));
  if (mantissa_of(*longest) > 23) {
    options.refuse(key, "is for formats of at most 23 fraction bits with their scales, and \"" + longest->name +
                            "\" has " + least + "; leave it out");
  }
  options.refuse(key, "has mantissa = " + std::to_string(mantissa) + ", shorter than the " + least + " bits of \"" +
                          longest->name + "\"; write mantissa = " + least + " or more, up to 23");
}

}  // namespace

std::optional<vernier::ProductAccumulator> read_accumulate(Options& options, const std::deque<Recipe>& recipes) {
  const auto table = options.get(key, vernier::Table{},
                                 "emulated sums of products: mantissa, promote_every = 0, chunk = 32; none: float32");
  if (!options.given(key)) return std::nullopt;
  const std::vector<std::string> keys = {"mantissa", "promote_every", "chunk"};
  vernier::ProductAccumulator accumulator;
  for (const auto& [name, value] : table) {
    if (std::ranges::find(keys, name) == keys.end()) {
      const auto near = vernier::nearest(name, keys);
      options.refuse(key, "has no key `" + name + "`; " +
                              (near.empty() ? std::string("write ") + example : "did you mean `" + near + "`?"));
    }
    const std::int64_t least = name == "promote_every" ? 0 : 1;
    const std::int64_t most = name == "mantissa" ? 23 : name == "chunk" ? 1024 : 1 << 20;
    const auto* const number = std::get_if<std::int64_t>(&value.data);
    if (number == nullptr) options.refuse(key, "has a `" + name + "` that is not an integer; write " + example);
    if (*number < least || *number > most) {
      options.refuse(key, "has " + name + " = " + std::to_string(*number) + "; from " + std::to_string(least) + " to " +
                              std::to_string(most) + " are possible, as in " + example);
    }
    if (name == "mantissa") accumulator.mantissa = static_cast<int>(*number);
    if (name == "promote_every") accumulator.promote_every = *number;
    if (name == "chunk") accumulator.chunk = *number;
  }
  if (table.count("mantissa") == 0) {
    options.refuse(key, std::string("needs `mantissa`, the fraction bits of the accumulator; write ") + example);
  }
  if (accumulator.promote_every % accumulator.chunk != 0) {
    const auto chunk = std::to_string(accumulator.chunk);
    const auto below = accumulator.promote_every / accumulator.chunk * accumulator.chunk;
    options.refuse(key, "has promote_every = " + std::to_string(accumulator.promote_every) +
                            ", not a multiple of chunk = " + chunk +
                            "; write promote_every = " + std::to_string(std::max(below, accumulator.chunk)));
  }
  refuse_short(options, recipes, accumulator.mantissa);
  return accumulator;
}

}  // namespace formats
