#include <torch/types.h>
#include <vernier/data/baselines.h>

#include <algorithm>
#include <cmath>

namespace vernier {

torch::Tensor season_before(const torch::Tensor& seen, std::int64_t horizon, std::int64_t season) {
  const auto last = seen.narrow(1, seen.size(1) - season, season);
  const auto times = (horizon + season - 1) / season;
  return last.repeat({1, times, 1}).narrow(1, 0, horizon);
}

namespace {

// Returns the season and the error of forecast_facts(). Features without a variance do not count.
std::pair<std::int64_t, double> season_of(const torch::Tensor& all_features, std::int64_t context,
                                          std::int64_t horizon) {
  constexpr std::int64_t most_windows = 1024;
  const auto variance = all_features.var(0, /*unbiased=*/false);
  const auto series = all_features.index_select(1, variance.nonzero().flatten());
  const auto windows = series.size(0) - context - horizon + 1;
  if (windows < 1 || series.numel() == 0) return {1, 1.0};
  const auto stride = std::max<std::int64_t>(1, windows / most_windows);
  const auto all = series.unfold(0, context + horizon, stride).transpose(1, 2);
  const auto seen = all.narrow(1, 0, context), next = all.narrow(1, context, horizon);
  // Features count alike, whatever their units.
  const auto unit = series.var(0, /*unbiased=*/false);
  std::int64_t best = 1;
  double least = HUGE_VAL;
  constexpr double better = 0.99;  // a longer season must be better by 1 %
  for (std::int64_t season = 1; season <= context; ++season) {
    const double error = ((season_before(seen, horizon, season) - next).square() / unit).mean().item<double>();
    if (error < better * least) best = season, least = error;
  }
  return {best, least};
}

}  // namespace

State target_facts(const torch::Tensor& targets, const Targets& are) {
  State facts;
  if (targets.numel() == 0) return facts;
  if (are.kind == Targets::Kind::ranks) {
    facts.put("ranks", std::int64_t{1});
  } else if (are.kind == Targets::Kind::labels) {
    facts.put("shares", targets.to(torch::kFloat64).nanmean(0).nan_to_num(0.5));
  } else if (are.kind == Targets::Kind::classes) {
    const auto classes = are.count;
    const auto labels = targets.reshape({-1});
    const auto counted = labels.masked_select((labels >= 0) & (labels < classes));
    facts.put("counts", at::bincount(counted.to(torch::kInt64), {}, classes));
    if (targets.dim() > 1) facts.put("places", torch::tensor(targets.sizes().slice(1).vec(), torch::kInt64));
  } else {
    const auto wide = targets.to(torch::kFloat64);
    facts.put("mean", wide.mean(0));
    const auto sorted = std::get<0>(wide.sort(0));
    facts.put("median", (sorted[(wide.size(0) - 1) / 2] + sorted[wide.size(0) / 2]) / 2);
  }
  return facts;
}

State forecast_facts(const torch::Tensor& series, const std::vector<std::int64_t>& outputs, std::int64_t context,
                     std::int64_t horizon) {
  State facts;
  const auto places = torch::tensor(outputs, torch::kInt64);
  facts.put("outputs", places);
  facts.put("horizon", horizon);
  const auto predicted = series.index_select(1, places).to(torch::kFloat64);
  facts.put("mean", predicted.mean(0).expand({horizon, places.numel()}).contiguous());
  const auto [season, error] = season_of(predicted, context, horizon);
  facts.put("season", season);
  facts.put("error", error);
  return facts;
}

std::vector<Baseline> baselines_of(const State& facts) {
  const auto constant = [](const torch::Tensor& sample) {
    return [sample](const Batch& batch) {
      auto sizes = sample.sizes().vec();
      sizes.insert(sizes.begin(), batch.samples);
      return sample.to(batch.tensors.at(0).device()).unsqueeze(0).expand(sizes);
    };
  };
  std::vector<Baseline> all;
  constexpr double never = 1e-9;  // probability of a class that no target has: its logarithm is finite
  if (facts.has("shares")) {
    all.push_back({"shares of the labels", constant(facts.tensor("shares").logit(never).to(torch::kFloat32))});
  }
  if (facts.has("counts")) {
    const auto counts = facts.tensor("counts").to(torch::kFloat64);
    auto sample = (counts / counts.sum()).clamp_min(never).log().to(torch::kFloat32);
    if (facts.has("places")) {
      const auto places = facts.tensor("places").to(torch::kCPU).contiguous();
      std::vector<std::int64_t> sizes(places.const_data_ptr<std::int64_t>(),
                                      places.const_data_ptr<std::int64_t>() + places.numel());
      sizes.push_back(sample.numel());
      sample = sample.expand(sizes).movedim(-1, 0);
    }
    all.push_back({"most frequent class", constant(sample)});
  }
  for (const char* name : {"mean", "median"}) {
    if (facts.has(name)) all.push_back({name, constant(facts.tensor(name))});
  }
  if (facts.has("ranks")) {
    all.push_back({"any order", [](const Batch& batch) {
                     const auto& items = batch.tensors.at(0);
                     return at::zeros({items.size(0), items.size(1)}, items.options().dtype(torch::kFloat32));
                   }});
  }
  if (!facts.has("season")) return all;
  const auto repeat = [&](std::int64_t season) {
    return [season, outputs = facts.tensor("outputs"), horizon = facts.integer("horizon")](const Batch& batch) {
      const auto& seen = batch.tensors.at(0);
      return season_before(seen.index_select(2, outputs.to(seen.device())), horizon, season);
    };
  };
  all.push_back({"last value", repeat(1)});
  if (const auto season = facts.integer("season"); season > 1) {
    all.push_back({std::to_string(season) + " steps before", repeat(season)});
  }
  return all;
}

}  // namespace vernier
