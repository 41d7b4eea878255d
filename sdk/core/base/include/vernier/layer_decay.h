// The option layer_decay of the optimizers: smaller learning rates for layers that are farther from the output.
#pragma once

#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/run.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace vernier {

// The list of layers of a model: the numbers in names such as "model.layers.3.mlp.up_proj.weight", after the text that
// has the most of them, "model.layers.".
class LayerList {
 public:
  explicit LayerList(const std::vector<std::string>& parameters) {
    std::map<std::string, std::set<std::int64_t>> lists;
    for (const auto& parameter : parameters) {
      for (const auto& [begin, number] : numbers_in(parameter)) lists[begin].insert(number);
    }
    for (const auto& [begin, numbers] : lists) {
      if (numbers.size() > layers_.size()) begin_ = begin, layers_ = numbers;
    }
  }
  std::int64_t size() const { return static_cast<std::int64_t>(layers_.size()); }
  // The place of a parameter's layer, from 0; -1 for one that is in none.
  std::int64_t place(const std::string& parameter) const {
    for (const auto& [begin, number] : numbers_in(parameter)) {
      if (begin == begin_) return std::distance(layers_.begin(), layers_.find(number));
    }
    return -1;
  }

 private:
  // Each part of a name that is a whole number, with the text before it.
  static std::vector<std::pair<std::string, std::int64_t>> numbers_in(const std::string& name) {
    std::vector<std::pair<std::string, std::int64_t>> numbers;
    for (std::size_t first = 0; first < name.size();) {
      const auto end = std::min(name.find('.', first), name.size());
      const auto part = name.substr(first, end - first);
      if (!part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos) {
        numbers.emplace_back(name.substr(0, first), std::stoll(part));
      }
      first = end + 1;
    }
    return numbers;
  }

  std::string begin_;
  std::set<std::int64_t> layers_;
};

// Returns decay ^ (layers above it, and itself) for each of run.parameters, whatever part of the model they are. What
// is registered before the layers, such as embeddings, is below all of them; what comes behind them has 1. As in BEiT
// (Bao et al. 2022).
inline std::vector<double> layer_rates(const Run& run, double decay, const std::string& optimizer) {
  std::vector<double> rates(run.parameters.size(), 1.0);
  if (decay == 1) return rates;
  std::vector<std::string> names;
  if (run.model == nullptr) {
    for (const auto& parameter : run.parameters) names.push_back(parameter.name);
  } else {
    names = run.model->named_parameters().keys();
  }
  const LayerList layers(names);
  if (layers.size() < 2) {
    refuse(optimizer +
           ": layer_decay needs a model with a list of layers, such as layers.0 and layers.1; leave it out");
  }
  std::map<std::string, double> rate_of;
  bool is_before = true;
  for (const auto& name : names) {
    const auto place = layers.place(name);
    is_before = is_before && place < 0;
    if (place >= 0 || is_before) rate_of[name] = std::pow(decay, static_cast<double>(layers.size() - place));
  }
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (const auto found = rate_of.find(run.parameters[i].name); found != rate_of.end()) rates[i] = found->second;
  }
  return rates;
}

}  // namespace vernier
