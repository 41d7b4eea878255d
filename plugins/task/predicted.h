// Columns of tasks that predict a class, or labels, of each sample.
#pragma once

#include <torch/types.h>
#include <vernier/data/evaluation.h>
#include <vernier/data/predictor.h>
#include <vernier/error.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// Refuses logits of which none is the largest.
inline void require_class(const torch::Tensor& logits) {
  if (!logits.isnan().any().item<bool>()) return;
  vernier::refuse("the model returns NaN, which is not a class; correct the sample, or name an earlier checkpoint");
}

// The columns of `vernier predict` for logits. Of classes: the likeliest, its probability, and on request that of each,
// as probability_NAME. Of labels: the probability of each. target: the column's name in the data, or "".
inline std::vector<vernier::Predictor::Column> columns_of(const vernier::Targets& targets, const torch::Tensor& logits,
                                                          std::int64_t samples, const std::string& target = "") {
  const bool of_labels = targets.kind == vernier::Targets::Kind::labels;
  const auto wide = logits.to(torch::kFloat32);
  const auto needed = of_labels ? samples * targets.count : samples;
  if (of_labels ? wide.numel() % std::max<std::int64_t>(needed, 1) != 0
                : wide.dim() != 2 || wide.size(0) != samples || wide.size(1) < targets.count) {
    vernier::refuse(c10::str("the model returns ", logits.sizes(), " for a batch of ", samples,
                             samples == 1 ? " sample" : " samples", ", and ", of_labels ? "labels" : "classes",
                             " need [samples, ", targets.count, "]"));
  }
  const auto classes = targets.names.empty() ? wide.size(-1) : targets.count;  // numbers have no list of all
  const auto known = of_labels ? wide.sigmoid().reshape({samples, -1}) : wide.narrow(1, 0, classes).softmax(1);
  const std::string name = target == "probability" ? "class_probability" : "probability";
  std::vector<vernier::Predictor::Column> columns;
  if (!of_labels) {
    require_class(known);
    const auto [probability, code] = known.max(1);
    columns = {{target.empty() ? "class" : target, code, targets.names}, {name, probability}};
  }
  if (of_labels && known.size(1) == 1) return {{name, known.squeeze(1)}};
  for (std::int64_t i = 0; i < known.size(1); ++i) {
    const auto place = static_cast<std::size_t>(i);
    columns.push_back({.name = name + "_" + (place < targets.names.size() ? targets.names[place] : std::to_string(i)),
                       .numbers = known.select(1, i),
                       .on_request = !of_labels});
  }
  return columns;
}

// The same for labels by pixel or token: the class of each, or a mask that is 1 where the probability of the label is
// above one half; and on request the probabilities [samples, classes or labels, …]. places: their shape in a sample, of
// labels [labels, …].
inline std::vector<vernier::Predictor::Column> columns_of_places(const vernier::Targets& targets,
                                                                 const torch::Tensor& logits, c10::IntArrayRef places,
                                                                 std::int64_t samples) {
  constexpr std::int64_t most = 256;  // codes fit in one byte
  const auto wide = logits.to(torch::kFloat32);
  require_class(wide);
  if (targets.kind == vernier::Targets::Kind::classes) {
    const auto known = wide.narrow(1, 0, targets.count);
    const auto code = known.argmax(1).to(targets.count <= most ? torch::kUInt8 : torch::kInt64);
    return {{"class", code}, {.name = "probability", .numbers = known.softmax(1), .on_request = true}};
  }
  auto sizes = places.slice(places[0] == 1 ? 1 : 0).vec();  // a mask of one label is a picture
  sizes.insert(sizes.begin(), samples);
  const auto known = wide.sigmoid().reshape(sizes);
  return {{"mask", (known > 0.5).to(torch::kUInt8)}, {.name = "probability", .numbers = known, .on_request = true}};
}
