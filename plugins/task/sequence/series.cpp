#include "series.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>
#include <vernier/data/split.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>
#include <utility>

Series::Series(vernier::Source source) : source_(std::move(source)), values_(source_.tensor) {
  rows_ = torch::arange(values_.size(0));
  all_ = {{0, values_.size(0)}};
}

Series::Series(vernier::Source source, const vernier::Source& names) : source_(std::move(source)), names_(names.words) {
  rows_ = names.tensor.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  values_ = source_.tensor.index_select(0, rows_);
  const auto counts = names.tensor.bincount({}, std::ssize(names_));
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < std::ssize(names_); ++i) {
    const auto end = begin + counts[i].item<std::int64_t>();
    all_.emplace_back(begin, end);
    begin = end;
  }
}

std::string Series::fingerprint() const {
  return names_.empty() ? vernier::fingerprint_of({values_}) : vernier::fingerprint_of({values_, rows_});
}

torch::Tensor Series::values_in(const std::vector<Steps>& parts) const {
  std::vector<torch::Tensor> values;
  for (const auto& [begin, end] : parts) values.push_back(values_.slice(0, begin, end));
  return values.size() == 1 ? values[0] : at::cat(values);
}

// Says where a window is: "'x.csv' line 12 to 'x.csv' line 44", "'x.npy' step 10 to 'x.npy' step 42".
std::function<std::string(std::int64_t)> Series::names_of_windows(std::int64_t length) const {
  const auto step = [name = source_.name, where = source_.where, rows = rows_](std::int64_t at) {
    const auto row = rows[at].item<std::int64_t>();
    return where ? where(row) : c10::str("'", name, "' step ", row);
  };
  return [step, length](std::int64_t window) { return step(window) + " to " + step(window + length - 1); };
}

std::pair<std::vector<Steps>, std::vector<Steps>> Series::divide(double share, const Window& window) const {
  std::vector<Steps> training, held_out;
  std::int64_t longest = 0, longest_last = 0;
  for (const auto& [begin, end] : all_) {
    const auto steps = end - begin;
    const auto split = share > 0 && steps > window.context
                           ? vernier::split_last(steps, share, window.context)
                           : vernier::SplitRows{torch::arange(steps), torch::empty({0})};
    const auto first = split.training.numel(), last = split.held_out.numel();
    if (first + last > longest) longest = first + last, longest_last = last;
    if (first < window.context + window.horizon || (share > 0 && last < window.horizon)) continue;
    training.emplace_back(begin, begin + first);
    if (share > 0) held_out.emplace_back(begin + first - window.context, begin + first + last);
  }
  if (!training.empty()) return {training, held_out};
  vernier::refuse(c10::str(names_.empty() ? "'" : "the longest series in '", name(), "' has ", longest - longest_last,
                           " steps to train on and ", longest_last, " held out; a window has ", window.context, " and ",
                           window.horizon));
}

torch::Tensor Series::starts_in(const std::vector<Steps>& parts, const Window& window) const {
  std::vector<torch::Tensor> starts;
  for (const auto& [begin, end] : parts) {
    const auto last = end - window.context - window.horizon;
    if (last < begin) continue;
    const auto rest = window.horizon > 0 ? 0 : (last - begin) % window.stride;  // a prediction takes the last window
    starts.push_back(torch::arange(begin + rest, last + 1, window.stride));
  }
  if (!starts.empty()) return at::cat(starts);
  const auto steps = [](const Steps& part) { return part.second - part.first; };
  vernier::refuse(c10::str(names_.empty() ? "'" : "the longest series in '", name(), "' has ",
                           steps(std::ranges::max(parts, {}, steps)), " steps, and a window has ",
                           window.context + window.horizon));
}

vernier::DatasetPtr Series::windows(const std::vector<Steps>& parts, const Window& window,
                                    const std::vector<std::int64_t>& outputs) const {
  const auto starts = starts_in(parts, window);
  const auto steps = values_.size(0);
  const auto predicted = values_.index_select(1, torch::tensor(outputs, torch::kInt64));
  const auto seen = values_.narrow(0, 0, steps - window.horizon).unfold(0, window.context, 1);  // views, as next
  const auto next = predicted.narrow(0, window.context, steps - window.context).unfold(0, window.horizon, 1);
  const auto all = vernier::dataset_of({seen.transpose(1, 2), next.transpose(1, 2)}, source_.name,
                                       c10::str(window.context, " and ", window.horizon, " steps, ", fingerprint()),
                                       names_of_windows(window.context + window.horizon));
  return vernier::subset(all, starts);
}

vernier::DatasetPtr Series::inputs(const Window& window) const {
  const auto starts = starts_in(all_, window);
  const auto count = values_.size(0) - window.context + 1;
  auto follows = torch::arange(count) + window.context;
  auto number = torch::zeros({count}, torch::kInt64);
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const auto begin = std::min(all_[i].first, count), end = std::min(all_[i].second, count);
    follows.slice(0, begin, end).sub_(all_[i].first);
    number.slice(0, begin, end).fill_(static_cast<std::int64_t>(i));
  }
  std::vector<torch::Tensor> tensors = {values_.unfold(0, window.context, 1).transpose(1, 2), follows};
  if (!names_.empty()) tensors.push_back(number);
  return vernier::subset(
      vernier::dataset_of(std::move(tensors), source_.name, fingerprint(), names_of_windows(window.context)), starts);
}
