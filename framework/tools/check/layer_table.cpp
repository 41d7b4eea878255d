#include "layer_table.h"

#include <vernier/run.h>

#include <algorithm>
#include <sstream>

#include "common/text/text_table.h"

namespace vernier {

namespace {

struct Layer {
  std::string head, tail;  // "h." and ".attn" of "h.3.attn"; without a number the head is all of the name
  std::int64_t number = -1, last = -1;
  std::string op, output;
  std::int64_t parameters = 0, trained = 0;

  std::string name() const {
    if (number < 0) return head;
    return head + std::to_string(number) + (last > number ? "…" + std::to_string(last) : "") + tail;
  }
  bool is_like(const Layer& other) const {
    return head == other.head && tail == other.tail && op == other.op && output == other.output &&
           parameters == other.parameters && trained == other.trained;
  }
};

// Splits the name at the first part that is a number.
Layer named(const std::string& name) {
  Layer layer;
  layer.head = name;
  for (std::size_t begin = 0; begin < name.size();) {
    const auto end = std::min(name.find('.', begin), name.size());
    const auto part = name.substr(begin, end - begin);
    if (part.size() < 10 && part.find_first_not_of("0123456789") == part.npos && !part.empty()) {
      layer.head = name.substr(0, begin), layer.tail = name.substr(end);
      layer.number = std::stoll(part);
      break;
    }
    begin = end + 1;
  }
  return layer;
}

std::vector<Layer> layers_of(const Run& run, const std::vector<Seen>& seen) {
  std::vector<std::string> names;
  std::vector<Layer> layers;
  for (const auto& parameter : run.parameters) {
    const auto dot = parameter.name.rfind('.');
    const auto name = dot == std::string::npos ? "(model)" : parameter.name.substr(0, dot);
    auto found = std::ranges::find(names, name);
    if (found == names.end()) {
      found = names.insert(names.end(), name);
      layers.push_back(named(name));
    }
    auto& layer = layers[static_cast<std::size_t>(found - names.begin())];
    const auto count = parameter.model.numel();
    layer.parameters += count;
    if (!parameter.frozen && parameter.model.requires_grad()) layer.trained += count;
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto call = std::ranges::find(seen, names[i], &Seen::layer);
    if (call == seen.end()) continue;  // it takes no part in a forward pass, or another one calls it
    layers[i].op = call->op;
    layers[i].output = c10::str(torch::IntArrayRef(call->output_sizes));
  }
  return layers;
}

// Makes blocks that are alike one, where they follow each other.
std::vector<Layer> folded(const std::vector<Layer>& layers) {
  std::vector<std::vector<Layer>> blocks;
  for (const auto& layer : layers) {
    const bool goes_on = !blocks.empty() && layer.number >= 0 && blocks.back()[0].number == layer.number &&
                         blocks.back()[0].head == layer.head;
    if (!goes_on) blocks.emplace_back();
    blocks.back().push_back(layer);
  }
  std::vector<Layer> all;
  for (std::size_t i = 0; i < blocks.size();) {
    auto end = i + 1;
    const auto is_like = [](const Layer& one, const Layer& other) { return one.is_like(other); };
    while (end < blocks.size() && blocks[i][0].number >= 0 && std::ranges::equal(blocks[i], blocks[end], is_like))
      ++end;
    for (auto layer : blocks[i]) {
      layer.last = blocks[end - 1][0].number;
      layer.parameters *= static_cast<std::int64_t>(end - i), layer.trained *= static_cast<std::int64_t>(end - i);
      all.push_back(std::move(layer));
    }
    i = end;
  }
  return all;
}

// With a comma between groups of three digits.
std::string grouped(std::int64_t number) {
  auto text = std::to_string(number);
  for (auto place = std::ssize(text) - 3; place > 0; place -= 3) text.insert(static_cast<std::size_t>(place), ",");
  return text;
}

}  // namespace

std::string layer_table(const Run& run, const std::vector<Seen>& seen) {
  constexpr std::size_t most = 16;  // layers that are shown one by one
  auto layers = layers_of(run, seen);
  TextRows rows = {{"layer", "operator", "output", "parameters", "trained"}};
  std::int64_t parameters = 0, trained = 0;
  if (layers.size() > most) layers = folded(layers);
  for (const auto& layer : layers) {
    rows.push_back({layer.name(), layer.op, layer.output, grouped(layer.parameters), grouped(layer.trained)});
    parameters += layer.parameters, trained += layer.trained;
  }
  rows.push_back({"all", "", "", grouped(parameters), grouped(trained)});
  return aligned(rows, "lllrr");
}

}  // namespace vernier
