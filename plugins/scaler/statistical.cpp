// statistical: sets the scale from the running distribution of the largest gradients, so that it need not wait
// thousands of steps to grow, nor overflow to find its limit. log2 of each step's largest gradient is taken as normally
// distributed. The scale is the largest power of two that leaves `deviations` standard deviations between the mean and
// float16's end, 2^16. Source: NVIDIA OpenSeq2Seq, open_seq2seq/optimizers/automatic_loss_scaler.py, LogMaxScaler, with
// its constants. Three things are our own. The scale is a power of two. The deviation is taken about the running mean,
// since about a slow mean a drift of the gradients would count as noise. An overflow adds a margin, since gradients of
// activations may be larger than those of weights, and the margin shrinks again by one power of two at a time.
//   init_scale = 65536    a power of two, until the first gradients are known
//   mean_decay = 0.99, deviation_decay = 0.999   of the running averages, in each step
//   deviations = 3.09     of a normal distribution, one step in a thousand overflows
//   forget_after = 200    steps without an overflow after which the margin shrinks by one power of two
//   min_scale = 6.103515625e-05, max_scale = 16777216   powers of two
//   overflows_in_a_row = 200, warn_below = 1, warn_above = 1099511627776, measure_every = 100   see scale_watch.h
// It reads the gradients once more in each step, for the largest one. The host does not wait for the device.
#include <vernier/grad_norm.h>

#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "scale_watch.h"

#include <algorithm>
#include <cmath>

class StatisticalScaler final : public WatchedScaler {
 public:
  explicit StatisticalScaler(vernier::Options& options)
      : WatchedScaler(options),
        init_(power(options, "init_scale", 65536.0, "scale until the first gradients are known")),
        mean_decay_(options.get("mean_decay", 0.99, "of the running mean", vernier::between(0, 0.999999))),
        deviation_decay_(
            options.get("deviation_decay", 0.999, "of the running deviation", vernier::between(0, 0.999999))),
        deviations_(
            options.get("deviations", 3.09, "between the mean exponent and float16's end", vernier::at_least(0))),
        forget_after_(options.get("forget_after", 200, "steps without an overflow until the margin shrinks",
                                  vernier::at_least(1))),
        least_(power(options, "min_scale", 0x1p-14, "the scale goes no lower")),
        most_(power(options, "max_scale", 0x1p24, "the scale goes no higher")) {
    if (least_ > init_) options.refuse("min_scale", c10::str("is above init_scale = ", std::exp2(init_)));
    if (most_ < init_) options.refuse("max_scale", c10::str("is below init_scale = ", std::exp2(init_)));
    // Another scaler's state has only the scale. It is float64, which state.real() reads; the host does not wait.
    remember([this](vernier::State& state) { state.put("scale", scale_.to(torch::kDouble)); },
             [this](const vernier::State& state) {
               exponent_.fill_(std::clamp(std::floor(std::log2(state.real("scale"))), least_, most_));
               scale_ = exponent_.exp2().to(torch::kFloat);
             });
    remember("mean", mean_), remember("weight", weight_), remember("square", square_);
    remember("square_weight", square_weight_), remember("margin", margin_), remember("good", good_);
  }

  void prepare(vernier::Run& run) override {
    const auto number = [&run](double value) {
      return torch::full({}, value, torch::dtype(torch::kDouble).device(run.device));
    };
    scale_ = number(std::exp2(init_)).to(torch::kFloat);
    exponent_ = number(init_);
    for (auto* value : {&mean_, &square_, &margin_, &good_}) *value = number(0);
    for (auto* value : {&weight_, &square_weight_}) *value = number(1);
    watch(run, std::exp2(init_), std::exp2(least_), std::exp2(most_));
  }

  void unscale(vernier::Run& run) override {
    const auto largest = vernier::grad_norm(run.gradients(), HUGE_VAL).to(run.device, torch::kDouble) / scale_;
    largest_ = largest_.defined() ? torch::maximum(largest_, largest) : largest;
    WatchedScaler::unscale(run);
  }

  void update(vernier::Run& run) override {
    const torch::NoGradGuard no_grad;
    const auto bad = run.found_inf.ne(0);
    const auto exponent = largest_.log2();  // -inf where all are 0, and nothing is learnt
    learn(exponent, bad.logical_not().logical_and(exponent.isfinite()));
    const auto variance = (square_ / (1 - square_weight_)).nan_to_num(0);
    const auto room = 16 - (mean_ / (1 - weight_) + deviations_ * variance.sqrt());  // nan until something was learnt
    const auto lower = exponent_ - 1;
    // After an overflow: one power of two less, and the margin with which the distribution would have foreseen it.
    const auto surprise = torch::maximum(margin_, room.floor() - lower).nan_to_num(0);
    good_ = torch::where(bad, torch::zeros_like(good_), good_ + 1);
    const auto forgets = good_.ge(forget_after_);
    good_.masked_fill_(forgets, 0);
    margin_ = torch::where(bad, surprise, torch::where(forgets, (margin_ - 1).clamp_min(0), margin_));
    const auto wanted = room - margin_, floor = wanted.floor();
    // The scale grows only where half a power of two stays free; else it would go up and down in turn.
    const auto grown = torch::where((wanted - 0.5).floor().gt(exponent_), (wanted - 0.5).floor(), exponent_);
    const auto next = torch::where(floor.lt(exponent_), floor, grown).nan_to_num(0);
    const auto known = room.isfinite();
    exponent_ = torch::where(bad, lower, torch::where(known, next, exponent_)).clamp(least_, most_);
    scale_ = exponent_.exp2().to(torch::kFloat);
    largest_.reset();
  }

  Current current() const override { return {.scale = scale_, .growth_tracker = {}}; }

 private:
  double next() override { return scale_.item<double>(); }

  static double power(vernier::Options& options, const char* key, double fallback, const char* meaning) {
    const double value = options.get(key, fallback, meaning, vernier::between(0x1p-126, 0x1p127));
    int exponent = 0;
    if (std::frexp(value, &exponent) != 0.5) options.refuse(key, "must be a power of two, so that scaling is exact");
    return exponent - 1;
  }

  void learn(const torch::Tensor& exponent, const torch::Tensor& valid) {
    const auto average = [](torch::Tensor& value, const torch::Tensor& with, double decay, const torch::Tensor& where) {
      value = torch::where(where, value * decay + with * (1 - decay), value);
    };
    const auto has_mean = valid.logical_and(weight_.lt(1));  // there is nothing to deviate from in the first step
    average(square_, (exponent - mean_ / (1 - weight_)).square(), deviation_decay_, has_mean);
    square_weight_ = torch::where(has_mean, square_weight_ * deviation_decay_, square_weight_);
    average(mean_, exponent, mean_decay_, valid);
    weight_ = torch::where(valid, weight_ * mean_decay_, weight_);
  }

  double init_, mean_decay_, deviation_decay_, deviations_;  // init_, least_, most_: exponents
  std::int64_t forget_after_;
  double least_, most_;
  torch::Tensor scale_, exponent_;        // all 0-dim on the device, float64 but for the scale
  torch::Tensor mean_, square_;           // moments of the largest gradient's log2; not yet divided by 1 - weight
  torch::Tensor weight_, square_weight_;  // weights of their initial 0
  torch::Tensor margin_, good_;
  torch::Tensor largest_;  // gradient of the step, over all its passes
};

VERNIER_PLUGIN(StatisticalScaler, "statistical", "1.0.0")
