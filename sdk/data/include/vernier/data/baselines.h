// Models without weights. A trained model must be better than they are.
#pragma once

#include <vernier/abi.h>
#include <vernier/batch.h>
#include <vernier/data/evaluation.h>
#include <vernier/state.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace vernier {

struct Baseline {
  std::string name;                                          // "most frequent class"
  std::function<torch::Tensor(const Batch& batch)> forward;  // its outputs, of the shape and units of the model's
};

// Returns facts of all training targets [samples, …] for baselines_of(): how often each class or label occurs, or of
// numbers mean and median, or that they are ranks.
VERNIER_API State target_facts(const torch::Tensor& targets, const Targets& are);
// The same for forecasts: of a training series [steps, features] the "season", the number of steps from 1 to `context`
// after which its outputs, some of the features, repeat themselves best, the "error" of that forecast: its mean square
// as a share of the variance of the series, and the "mean" of the series.
VERNIER_API State forecast_facts(const torch::Tensor& series, const std::vector<std::int64_t>& outputs,
                                 std::int64_t context, std::int64_t horizon);

// Returns the forecast [samples, horizon, features] that repeats the last `season` steps of what is seen, [samples,
// steps, features]. A season of 1 repeats the last value.
VERNIER_API torch::Tensor season_before(const torch::Tensor& seen, std::int64_t horizon, std::int64_t season);

// "most frequent class"; "shares of the labels"; "mean" and "median"; "any order" of ranks; or "mean", "last value" and
// "24 steps before", of inputs [samples, steps, features]; none where the facts are empty. Outputs of classes are
// logarithms of their shares.
VERNIER_API std::vector<Baseline> baselines_of(const State& facts);

}  // namespace vernier
