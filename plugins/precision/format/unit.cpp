#include "unit.h"

#include <vernier/error.h>
#include <vernier/host.h>

#include <algorithm>
#include <map>

#include "names.h"
#include "rounding.h"

namespace formats {

using vernier::MatrixUnit;
using vernier::Options;
using vernier::Table;

namespace {

constexpr const char* unit_key = "unit";

const vernier::TensorFormat* format_of(const Recipe& recipe, Slot slot) {
  const auto* const own = dynamic_cast<const FormatQuantizer*>(recipe.at(slot).quantizer.get());
  return own == nullptr ? nullptr : &own->format();
}

// Reads the unit of one product. a: the slot of its first operand.
std::optional<MatrixUnit> read_unit(const Options& options, const std::string& name, const Table& table,
                                    const Recipe& recipe, Slot a) {
  const auto where = table.empty() ? std::string() : table.begin()->second.where;
  Options one(options.owner() + ": `" + name + "`", table, where);
  const auto use = one.get("use", "", "a unit by name; fp32: sums in float32; empty: of the options below");
  MatrixUnit unit;
  if (!use.empty() && use != unrounded) {
    int bits = 1;
    for (const auto slot : {a, Recipe::other(a)}) {
      const auto* const format = format_of(recipe, slot);
      const bool is_scaled = format != nullptr && format->has_block_scale && format->block % 16 == 0;
      bits = std::max(bits, is_scaled           ? format->element.bits
                            : format != nullptr ? std::max(8, format->element.bits)
                                                : 8);
    }
    try {
      unit = vernier::matrix_unit(use, bits);
    } catch (const vernier::Error& error) {
      one.refuse("use", "is refused: " + std::string(error.what()));
    }
  }
  const bool is_aligned = unit.sum == MatrixUnit::Sum::aligned && use != unrounded;
  if (use.empty() && !one.given("fraction")) {
    one.refuse("use", "names a unit, as in unit = {use = \"h100\"}; or write unit = {fraction = 13, chunk = 32}");
  }
  for (const char* own : {"fraction", "chunk", "result"}) {
    if (!is_aligned && one.given(own)) one.refuse(own, "is for units that align their products, and not for " + use);
  }
  unit.fraction = static_cast<int>(
      one.get("fraction", unit.fraction, "fraction bits to which products are cut", vernier::between(1, 31)));
  unit.chunk = one.get("chunk", unit.chunk, "products that one step adds", vernier::between(1, 1024));
  unit.is_half = one.choose("result", "fp32", {"fp32", "fp16"}, "what a step adds to") == "fp16";
  const auto promoted =
      one.get("promote_every", unit.promote_every, "products after which the sum goes to a float32 one; 0: never",
              vernier::between(0, 1 << 20));
  if (promoted % unit.chunk != 0) {
    one.refuse("promote_every", c10::str("is ", promoted, ", not a multiple of chunk = ", unit.chunk, "; write ",
                                         std::max(promoted / unit.chunk, std::int64_t{1}) * unit.chunk));
  }
  unit.promote_every = promoted;
  vernier::HostApi::refuse_unread(one);
  if (use == unrounded) return std::nullopt;
  for (const auto slot : {a, Recipe::other(a)}) {
    const auto* const format = format_of(recipe, slot);
    const bool is_outside = format != nullptr && format->block > 0 && !format->has_block_scale;
    if (is_outside && (promoted == 0 || format->block % promoted != 0)) {
      one.refuse(
          "promote_every",
          c10::str("divides the blocks of \"", format->name,
                   "\", because a unit does not multiply by float32 scales; write promote_every = ", format->block));
    }
  }
  return unit;
}

}  // namespace

void read_units(Options& options, std::deque<Recipe>& recipes) {
  auto common =
      options.get(unit_key, Table{}, "matrix unit that adds up the products, as {use = \"h100\"}; none: float32");
  if (!options.given(unit_key)) return;
  std::map<std::string, Table> own;
  for (const char* product : product_names) {
    const auto found = common.find(product);
    if (found == common.end()) continue;
    const auto* const table = std::get_if<Table>(&found->second.data);
    if (table == nullptr) {
      options.refuse(unit_key, std::string("has a `") + product + "` that is not a table; write " + product +
                                   " = {promote_every = 128}");
    }
    own[product] = *table;
    common.erase(found);
  }
  const bool has_own = !own.empty();  // own[…] below adds empty ones
  bool is_used = false;
  for (auto& recipe : recipes) {
    for (std::size_t i = 0; i < 3; ++i) {
      const auto slot = slots[2 * i];
      if (!recipe.rounds(slot) || !recipe.rounds(Recipe::other(slot))) continue;
      is_used = true;
      auto table = own[product_names[i]];
      const auto name = table.empty() ? std::string(unit_key) : std::string(unit_key) + "." + product_names[i];
      if (!table.contains("use")) table.insert(common.begin(), common.end());
      if (table.empty() && has_own) continue;
      recipe.units[i] = read_unit(options, name, table, recipe, slot);
    }
  }
  if (!is_used) {
    options.refuse(unit_key,
                   "is for products of two rounded operands, and the recipe has none; write forward = \"e4m3\"");
  }
}

}  // namespace formats
