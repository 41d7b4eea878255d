// `vernier replay RUN --step N` and `--watch LAYER`.
#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/layers.h>

#include <algorithm>
#include <iostream>

#include "common/text/numbers.h"
#include "common/text/text_table.h"
#include "replayed_run.h"

namespace vernier {

namespace {

std::string from(const std::string& run, std::int64_t begin, std::int64_t step) {
  const auto again = step - begin - 1;
  return "step " + std::to_string(step) + " of " + run + ": " +
         (begin > 0 ? "from the checkpoint of step " + std::to_string(begin) : "from the beginning") + ", " +
         std::to_string(again) + (again == 1 ? " step" : " steps") + " again before it";
}

std::string number(const TensorRange& range, double value) {
  return range.elements > 0 ? print_number("%.3g", value) : "-";
}

// "3 inf 1 nan" of activations, gradients and the weights after the update.
std::string bad_values(const LayerView& view) {
  std::string text;
  const auto add = [&](const char* what, const TensorRange& range) {
    if (range.is_finite()) return;
    text += (text.empty() ? "" : ", ") + c10::str(what, " with ", range.infs, " inf and ", range.nans, " nan");
  };
  add("activation", view.activation);
  add("gradient", view.gradient);
  add("weight", view.weight);
  add("update", view.update);
  return text;
}

const std::vector<std::string> columns = {"activation amax", "rms",        "gradient amax", "rms",
                                          "weight rms",      "update rms", "update/weight", ""};

std::vector<std::string> cells(const LayerView& view) {
  const double ratio = view.weight.rms > 0 ? view.update.rms / view.weight.rms : 0;
  return {number(view.activation, view.activation.amax),
          number(view.activation, view.activation.rms),
          number(view.gradient, view.gradient.amax),
          number(view.gradient, view.gradient.rms),
          number(view.weight, view.weight.rms),
          number(view.update, view.update.rms),
          number(view.update, ratio),
          bad_values(view)};
}

std::vector<std::string> row(std::vector<std::string> head, const std::vector<std::string>& more) {
  head.insert(head.end(), more.begin(), more.end());
  return head;
}

void print_notices(const StepView& view) {
  for (const auto& notice : view.notices) std::cout << notice.text() << '\n';
}

// With many layers, the nearest name helps more than a list.
void refuse_unknown_layer(const ReplayedRun& replayed, const Run& run, const std::string& layer) {
  const auto names = Layers(*run.model).names();
  if (std::ranges::find(names, layer) != names.end()) return;
  const auto near = nearest(layer, names);
  refuse(replayed.name() + ": its model has no layer '" + layer + "' with weights" +
         (near.empty() ? "; it has " + shortened(joined(names)) : "; did you mean '" + near + "'?"));
}

}  // namespace

int replay_step(const std::string& folder, std::int64_t step, const std::vector<std::string>& sets, const Host& host,
                const std::atomic<int>& stop) {
  ReplayedRun replayed(folder, host, stop);
  replayed.refuse_later_than(step);
  const auto wanted = sets.empty() ? Look::layers : Look::capsule;
  const auto begin =
      replayed.start_before(step, [&](std::int64_t now) { return now == step ? wanted : Look::digests; });
  std::cout << from(folder, begin, step) << std::endl;
  const auto& view = replayed.go_to(step);
  std::cout << agreement(replayed, view) << '\n';
  print_notices(view);
  if (view.is_skipped) std::cout << "the update is skipped\n";
  if (!sets.empty()) {
    replay_beside(replayed.replay_last(), view.capsule, replayed.configuration_of_last(), folder, sets, host, stop);
    return 0;
  }
  if (view.origin) std::cout << view.origin->text() << '\n';
  std::vector<std::vector<std::string>> rows{row({"layer"}, columns)};
  for (const auto& layer : view.layers) rows.push_back(row({layer.layer}, cells(layer)));
  std::cout << aligned(rows);
  return 0;
}

int watch_layer(const std::string& folder, Steps steps, const std::string& layer, const Host& host,
                const std::atomic<int>& stop) {
  ReplayedRun replayed(folder, host, stop);
  replayed.refuse_later_than(steps.last);
  const auto begin = replayed.start_before(
      steps.first, [&](std::int64_t now) { return now >= steps.first ? Look::layers : Look::digests; });
  refuse_unknown_layer(replayed, replayed.prepared().run, layer);
  std::cout << from(folder, begin, steps.first) << std::endl;
  constexpr std::size_t widest_number = 9, widest_loss = 11;
  const auto head = row({"step", "loss"}, columns);
  std::vector<std::size_t> widths;
  for (const auto& name : head) widths.push_back(name.empty() ? 0 : std::max(widest_number, name.size()));
  widths[0] = std::max(head[0].size(), std::to_string(steps.last).size());
  widths[1] = widest_loss;
  std::cout << aligned_row(head, widths) << '\n';
  std::string differs;
  for (auto step = steps.first; step <= steps.last; ++step) {
    const auto& view = replayed.go_to(step);
    const auto found = std::ranges::find(view.layers, layer, &LayerView::layer);
    auto line = row({std::to_string(step), print_number("%.6g", view.loss)}, cells(*found));
    if (view.is_skipped) line.back() += line.back().empty() ? "skipped" : ", skipped";
    std::cout << aligned_row(line, widths) << '\n';
    std::cout.flush();  // the next step may take minutes
    const auto agrees = agreement(replayed, view);
    if (differs.empty() && agrees.starts_with("other bits")) differs = c10::str("step ", step, ": ", agrees);
  }
  if (!differs.empty()) std::cout << differs << '\n';
  return 0;
}

}  // namespace vernier
