#include "worst_samples.h"

#include <torch/types.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>

#include "common/text/numbers.h"
#include "common/text/text_table.h"

namespace vernier {

namespace {

// The first numbers of a sample, or the word of its class.
std::string words_of(const torch::Tensor& values, bool is_class, const std::vector<std::string>& names) {
  constexpr std::int64_t most = 4;
  const auto numbers = values.to(torch::kCPU, torch::kFloat64).flatten();
  if (is_class && numbers.numel() == 1) {
    const auto code = static_cast<std::size_t>(numbers[0].item<double>());
    return code < names.size() ? printable(names[code]) : std::to_string(code);
  }
  std::string text;
  for (std::int64_t i = 0; i < std::min(most, numbers.numel()); ++i) {
    text += (i > 0 ? " " : "") + print_number("%.6g", numbers[i].item<double>());
  }
  return numbers.numel() > most ? text + " …" : text;
}

}  // namespace

void WorstSamples::update(const SupervisedTask::Seen& seen) {
  const auto& [set, batch, output, target, dataset, loss] = seen;
  const auto samples = std::ssize(batch.indices);
  if (most_ == 0 || output.dim() < 1 || output.size(0) != samples || !target.defined()) return;
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto own = loss(output.narrow(0, i, 1), batch.narrow(i, 1)).item<double>();
    const double judged = std::isnan(own) ? HUGE_VAL : own;  // a loss of NaN counts as the worst
    if (samples_.size() == most_ && !(judged > samples_.back().loss)) continue;
    const auto after = std::ranges::upper_bound(samples_, judged, std::ranges::greater(), &Sample::loss);
    samples_.insert(after, {judged, dataset.where(batch.indices[static_cast<std::size_t>(i)]),
                            target.select(0, i).clone(), output.select(0, i).clone()});
    if (samples_.size() > most_) samples_.pop_back();
  }
}

nlohmann::ordered_json WorstSamples::json(const std::vector<std::string>& names) const {
  auto all = nlohmann::ordered_json::array();
  for (const auto& [loss, where, target, output] : samples_) {
    const bool is_class = !target.is_floating_point() && output.dim() == target.dim() + 1 && output.size(0) > 1;
    const bool has_nan = is_class && output.isnan().any().item<bool>();
    const auto predicted = has_nan ? "nan" : words_of(is_class ? output.argmax(0) : output, is_class, names);
    all.push_back({{"where", where},
                   {"target", words_of(target, is_class, names)},
                   {"predicted", predicted},
                   {"loss", std::isfinite(loss) ? nlohmann::ordered_json(loss) : nlohmann::ordered_json()}});
  }
  return all;
}

std::string worst_text(const nlohmann::ordered_json& worst) {
  TextRows rows = {{"worst samples", "target", "prediction", "loss"}};
  for (const auto& each : worst) {
    rows.push_back({printable(each["where"]), each["target"], each["predicted"],
                    each["loss"].is_null() ? "not a number" : print_number("%.5g", each["loss"])});
  }
  return aligned(rows, "lllr");
}

}  // namespace vernier
