#include "operands.h"

#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/host.h>
#include <vernier/inner_plugin.h>
#include <vernier/random_state.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

namespace formats {

using vernier::Options;
using vernier::Quantizer;
using vernier::Table;
using vernier::Value;

namespace {

constexpr const char* table_of_operands = "operands";

// Tables by "x" or "dw.x". A product's operands are in a table of it, as TOML reads dw.x = "e4m3".
std::map<std::string, Table> tables_in(const Options& options, const Table& given) {
  std::vector<std::string> keys = {"x", "w", "g"};
  for (int i = 0; i < vernier::slot_count; ++i) keys.emplace_back(vernier::slot_name(static_cast<Slot>(i)));
  std::map<std::string, Table> found;
  const auto add = [&](const std::string& key, const Value& value) {
    if (std::ranges::find(keys, key) == keys.end()) {
      const auto near = vernier::nearest(key, keys);
      options.refuse(table_of_operands,
                     "has no operand `" + key + "`; " +
                         (near.empty() ? "there are " + c10::Join(", ", keys) : "did you mean `" + near + "`?"));
    }
    const auto* const use = std::get_if<std::string>(&value.data);
    const auto* const table = std::get_if<Table>(&value.data);
    if (use == nullptr && table == nullptr) {
      options.refuse(table_of_operands,
                     "has a `" + key + "` that is neither a name nor a table; write " + key + " = \"e4m3\"");
    }
    found[key] = use != nullptr ? Table{{"use", value}} : *table;
  };
  for (const auto& [key, value] : given) {
    const bool is_product = std::ranges::find(product_names, key) != std::end(product_names);
    const auto* const of_product = is_product ? std::get_if<Table>(&value.data) : nullptr;
    if (of_product == nullptr) {
      add(key, value);
      continue;
    }
    for (const auto& [letter, each] : *of_product) add(key + "." + letter, each);
  }
  return found;
}

From from_in(Options& options, Slot slot) {
  if (Recipe::source(slot) == slot) {
    if (options.given("from")) options.refuse("from", "is for dx.w, dw.x and dw.g, which another product has too");
    return From::automatic;
  }
  const auto word = options.choose("from", "auto", {"auto", "exact", "forward", "codes"}, "what is rounded");
  if (word == "forward" && slot == Slot::dw_g) {
    options.refuse("from", "is \"forward\", and y has no g; write \"codes\" for the numbers of dx.g");
  }
  return word == "auto"      ? From::automatic
         : word == "exact"   ? From::exact
         : word == "forward" ? From::forward
                             : From::codes;
}

// A format by name is built in, and any other name is that of a plugin.
std::shared_ptr<Quantizer> made(const Options& options, const Names& names, const std::string& key, const Table& table,
                                const std::string& forward) {
  const auto where = table.empty() ? std::string() : table.begin()->second.where;
  const auto name = std::string(table_of_operands) + "." + key;
  Options one(options.owner() + ": `" + name + "`", table, where);
  const auto use = one.get("use", forward, "a format or a quantizer");
  const auto format = names.find(use);
  if (use != unrounded && !format) {
    auto whole = table;
    whole.try_emplace("use", Value{use, where});
    Options outer(options.owner(), {{name, Value{std::move(whole), where}}}, where);
    return std::shared_ptr<Quantizer>(static_cast<Quantizer*>(
        vernier::make_inner_plugin(outer, Quantizer::role, name.c_str(), use, "a quantizer").release()));
  }
  const auto rounding = format ? std::make_shared<FormatQuantizer>(one, key, *format) : nullptr;
  vernier::HostApi::refuse_unread(one);
  return rounding;
}

void read_rotations(Options& options, Recipe& recipe) {
  constexpr const char* key = "rotate";
  const auto table =
      options.get(key, Table{}, "sizes of the rotations of the products' operands, as {dw = 16, signs = \"drawn\"}");
  if (!options.given(key)) return;
  Options one(options.owner() + ": `rotate`", table, "");
  for (std::size_t i = 0; i < 3; ++i) {
    const auto size = one.get(product_names[i], 0, "numbers that are mixed; 0: none", vernier::between(0, 4096));
    const bool is_power = std::has_single_bit(static_cast<std::uint64_t>(size));
    if (size != 0 && (size < 2 || !is_power)) {
      one.refuse(product_names[i], "is a power of two from 2 to 4096, or 0 for none");
    }
    recipe.rotations[i] = {size, {}};
  }
  recipe.draws_signs =
      one.choose("signs", "fixed", {"fixed", "drawn"}, "drawn: those of each product are drawn anew") == "drawn";
  vernier::HostApi::refuse_unread(one);
}

// Refuses rotations that other options exclude. An operand that takes the codes of another one gets its quantizer.
void settle(const Options& options, Recipe& recipe) {
  for (const auto slot : slots) {
    auto& way = recipe.at(slot);
    const bool is_rotated = recipe.rotation(slot).size != 0;
    if (is_rotated && !recipe.rounds(slot)) {
      options.refuse("rotate", std::string("is for rounded operands of ") + product_names[static_cast<int>(slot) / 2] +
                                   ", and one of them is fp32");
    }
    if (way.from != From::codes) continue;
    if (is_rotated || recipe.rotation(Recipe::source(slot)).size != 0) {
      options.refuse(table_of_operands, std::string("has from = \"codes\" for ") + vernier::slot_name(slot) +
                                            ", whose numbers a rotation changes; write from = \"forward\"");
    }
    way.quantizer = recipe.at(Recipe::source(slot)).quantizer;
  }
}

}  // namespace

void read_operands(Options& options, const Names& names, const std::string& forward, const std::string& place,
                   Recipe& recipe, std::vector<Placed>& placed) {
  auto tables = tables_in(options, options.get(table_of_operands, Table{},
                                               "quantizers by operand, as {w = \"nvfp4\", g = {use = \"mine\"}}"));
  if (place.empty()) {
    for (const char* letter : {"x", "w", "g"}) tables.try_emplace(letter);
  }
  std::map<std::string, std::shared_ptr<Quantizer>> by_key;
  for (std::size_t i = 0; i < vernier::slot_count; ++i) {
    const auto slot = static_cast<Slot>(i);
    const std::string name = vernier::slot_name(slot), letter = name.substr(name.find('.') + 1);
    const auto of_letter = tables.find(letter), of_slot = tables.find(name);
    if (of_letter == tables.end() && of_slot == tables.end()) continue;
    auto& way = recipe.at(slot);
    Table own = of_slot != tables.end() ? of_slot->second : Table{};
    Options one(options.owner() + ": `" + table_of_operands + "." + name + "`", own, "");
    if (own.contains("from")) way.from = from_in(one, slot);
    own.erase("from");
    if (own.empty() && of_letter == tables.end()) continue;
    const auto key = own.empty() ? letter : name;
    if (of_letter != tables.end() && !own.contains("use"))
      own.insert(of_letter->second.begin(), of_letter->second.end());
    auto& quantizer = by_key[key];
    if (quantizer == nullptr) {
      quantizer = made(options, names, key, own, forward);
      if (quantizer != nullptr) placed.push_back({place + key, quantizer});
    }
    way.quantizer = quantizer;
  }
  read_rotations(options, recipe);
  settle(options, recipe);
}

// Sylvester's Hadamard matrix with random signs of its columns, orthogonal. Source: Ashkboos et al., QuaRot, 2024; the
// signs of Transformer Engine are others.
void prepare_rotations(Recipe& recipe, std::uint64_t seed) {
  for (auto& rotation : recipe.rotations) {
    if (rotation.size == 0) continue;
    auto matrix = torch::ones({1, 1});
    while (matrix.size(0) < rotation.size) {
      matrix = torch::cat({torch::cat({matrix, matrix}, 1), torch::cat({matrix, -matrix}, 1)}, 0);
    }
    if (!recipe.draws_signs) {
      const auto signs = torch::empty({rotation.size}).random_(0, 2, vernier::own_generator(seed)).mul_(2).sub_(1);
      matrix = matrix * signs;
    }
    rotation.matrix = matrix.div_(std::sqrt(static_cast<double>(rotation.size)));
  }
}

}  // namespace formats
