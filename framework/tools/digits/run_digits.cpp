#include "run_digits.h"

#include <torch/types.h>
#include <vernier/error.h>
#include <vernier/lab/random_rounding.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "common/statistics.h"
#include "common/text/numbers.h"
#include "common/text/text_table.h"
#include "files/json.h"
#include "running_variance.h"
#include "step_digits.h"

namespace vernier {

namespace {

// Attached as the last listener. Rounds at random from the first micro-batch of each step to the end of its update.
class RandomRun final : public Plugin {
 public:
  explicit RandomRun(std::int64_t sample) : sample_(static_cast<std::uint64_t>(sample)) { set_id("digits"); }

  void attach(Bus& bus) override {
    bus.on(Event::BatchReady, [this](Run& run) {
      if (rounding_) return;
      before_.clear();
      for (const auto& parameter : run.parameters) before_.push_back(parameter.master.detach().clone());
      written_.storages.clear();
      rounding_.emplace(seed_of(run), &written_);
    });
    bus.on(Event::UpdateDone, [this](Run& run) {
      rounding_.reset();
      losses.push_back(run.loss.item<double>());
      round_fused(run);
    });
    bus.on(Event::RunFailed, [this](Run&) { rounding_.reset(); });
  }

  std::vector<double> losses;

 private:
  std::uint64_t seed_of(const Run& run) const {
    constexpr std::uint64_t apart = 1000003;
    return (static_cast<std::uint64_t>(run.seed) * apart + sample_) * apart + static_cast<std::uint64_t>(run.step);
  }

  // A fused kernel counts as one operator, whose result is the weight.
  void round_fused(Run& run) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < run.parameters.size(); ++i) {
      auto weight = run.parameters[i].master.detach();
      const bool is_wide = weight.scalar_type() == torch::kFloat64;
      if (is_wide || written_.storages.count(weight.storage().unsafeGetStorageImpl()) != 0) continue;
      const auto drawn = with_random_last_bit(weight, seed_of(run), ~static_cast<std::uint64_t>(i));
      weight.copy_(torch::where(weight.eq(before_[i]), weight, drawn));
    }
  }

  std::uint64_t sample_;
  std::optional<RandomRounding> rounding_;
  WrittenStorages written_;
  std::vector<torch::Tensor> before_;
};

// 1, 2, 5, 10, 20, 50 and so on, and the last.
std::vector<std::size_t> shown_steps(std::size_t steps) {
  std::vector<std::size_t> shown;
  for (std::size_t power = 1; power <= steps; power *= 10) {
    for (const std::size_t digit : {1, 2, 5}) {
      if (digit * power < steps) shown.push_back(digit * power);
    }
  }
  shown.push_back(steps);
  return shown;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::string counted(std::size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

std::vector<double> RunDigits::losses_of(std::size_t step) const {
  std::vector<double> all;
  for (const auto& sample : losses) all.push_back(sample.at(step));
  return all;
}

RunDigits digits_of_runs(const std::function<std::unique_ptr<Prepared>()>& prepare, std::int64_t steps,
                         std::int64_t samples, const std::atomic<int>& stop) {
  RunDigits digits;
  std::vector<RunningVariance> weights;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const auto prepared = prepare();
    auto& run = prepared->run;
    leave_out_measurements(*prepared->wiring);
    RandomRun random(sample);
    HostApi::attach(prepared->wiring->bus, random, false);
    while (run.step < steps) {
      const bool is_trained = prepared->trainer.train_step(run);
      if (stop != 0) throw Error("stopped by a signal");
      if (!is_trained) throw Error(c10::str("the run ends after ", run.step, " of ", steps, " steps"));
    }
    digits.precision = prepared->wiring->precision->id();
    digits.losses.push_back(random.losses);
    weights.resize(run.parameters.size());
    for (std::size_t i = 0; i < run.parameters.size(); ++i) weights[i].add(run.parameters[i].best());
  }
  std::vector<const RunningVariance*> all;
  for (const auto& each : weights) all.push_back(&each);
  digits.weights = joint_digits(all)->digits;
  return digits;
}

std::string text_of(const RunDigits& digits) {
  const auto steps = digits.losses.front().size();
  auto text = counted(steps, "step") + " under " + digits.precision + ", " + std::to_string(digits.losses.size()) +
              " times with random last bits of all operators\n";
  TextRows rows{{"step", "loss", "largest difference", "digits"}};
  for (const auto step : shown_steps(steps)) {
    const auto losses = digits.losses_of(step - 1);
    const auto [low, high] = std::ranges::minmax(losses);
    rows.push_back({std::to_string(step), print_number("%.9g", mean_of(losses)), print_number("%.2g", high - low),
                    print_number("%.1f", significant_digits(losses))});
  }
  const auto apart = print_number("%.2g", distance_of_equals(digits.losses_of(steps - 1)));
  return text + aligned(rows, "rrrr") + "weights after that: " + print_number("%.1f", digits.weights) +
         " digits\nthe last losses of two runs that differ in rounding alone are at most " + apart +
         " apart, with a confidence of " + print_number("%g", 100 * confidence) +
         " %; vernier compare claims no less with --tolerance " + apart + '\n';
}

std::string json_of(const RunDigits& digits) {
  OrderedJson samples = OrderedJson::array();
  for (const auto& losses : digits.losses) {
    OrderedJson one = OrderedJson::array();
    for (const double loss : losses) one.push_back(OrderedJson(json_number(loss)));
    samples.push_back(std::move(one));
  }
  const auto last = digits.losses_of(digits.losses.front().size() - 1);
  const OrderedJson all = {{"steps", digits.losses.front().size()},
                           {"precision", digits.precision},
                           {"samples", digits.losses.size()},
                           {"losses", std::move(samples)},
                           {"loss_digits", significant_digits(last)},
                           {"weight_digits", digits.weights},
                           {"confidence", confidence},
                           {"tolerance", json_number(distance_of_equals(last))}};
  return all.dump(2, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace) + '\n';
}

}  // namespace vernier
