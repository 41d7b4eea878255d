#include "find_lr.h"

#include <vernier/error.h>

#include <algorithm>
#include <cmath>

#include "common/scratch_folder.h"
#include "common/text/numbers.h"

namespace vernier {

namespace {

constexpr int most_steps = 100;
constexpr double lowest_rate = 1e-4, highest_rate = 1e3;  // bounds of the optimizer's learning rate

// Sets the rate of each step, after the callbacks.
class RateSetter final : public Plugin {
 public:
  RateSetter() { set_id("check --find-lr"); }
  void attach(Bus& bus) override {
    for (const auto event : {Event::StepBegin, Event::GradientsReady}) {
      bus.on(event, [this](Run& run) { run.learning_rate_factor = factor; });
    }
  }
  double factor = lowest_rate;
};

// Means of a loss that forget, corrected for their beginning.
class Smooth {
 public:
  double operator()(double loss) {
    mean_ = kept * mean_ + (1 - kept) * loss;
    weight_ = kept * weight_ + (1 - kept);
    return mean_ / weight_;
  }

 private:
  static constexpr double kept = 0.9;
  double mean_ = 0, weight_ = 0;
};

double rate_of(const Run& run) {
  const auto rate = run.metrics.value("learning_rate");
  if (!rate) throw Error("the optimizer does not report the metric learning_rate, so no rate can be found for it");
  if (*rate > 0) return *rate;
  throw Error("the optimizer's learning rate is 0, and the test multiplies it; give any other",
              Error::Kind::configuration);
}

}  // namespace

namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The standard deviation of a loss from one step to the next. Second differences leave out what the rate changes.
double scatter_of(const std::vector<RateTest::Point>& points) {
  double squares = 0;
  for (std::size_t i = 2; i < points.size(); ++i) {
    const double second = points[i].loss - 2 * points[i - 1].loss + points[i - 2].loss;
    squares += second * second / 6;  // the mean of `second` squared is six times the variance of independent losses
  }
  return std::sqrt(squares / static_cast<double>(points.size() - 2));
}

// Points from `first` on. A single loss, however low, moves neither slope nor level much.
struct Window {
  Window(const std::vector<RateTest::Point>& points, std::size_t first, std::size_t size) {
    std::vector<double> slopes, losses;
    double mean = 0;
    for (std::size_t i = first; i < first + size; ++i) {
      const double x = std::log(points[i].rate);
      losses.push_back(points[i].loss);
      mean += x / static_cast<double>(size);
      for (std::size_t j = first; j < i; ++j) {
        slopes.push_back((points[i].loss - points[j].loss) / (x - std::log(points[j].rate)));
      }
    }
    slope = median(slopes);  // Theil and Sen's
    level = median(losses);
    for (std::size_t i = first; i < first + size; ++i) spread += std::pow(std::log(points[i].rate) - mean, 2);
  }
  double slope = 0, level = 0, spread = 0;
};

}  // namespace

std::optional<double> steepest(const std::vector<RateTest::Point>& all) {
  constexpr std::size_t least_points = 25;
  if (all.size() < least_points) return std::nullopt;
  // The scatter is that of the first half: at the end the loss jumps.
  const std::vector<RateTest::Point> calm(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2));
  const auto size = all.size() / 10 * 2 + 1;
  std::vector<Window> windows;
  for (std::size_t first = 0; first + size <= all.size(); ++first) windows.emplace_back(all, first, size);
  const auto lowest = std::ranges::min_element(windows, {}, &Window::level);
  const auto best = std::ranges::min_element(windows.begin(), lowest + 1, {}, &Window::slope);
  const double scatter = std::max(scatter_of(calm), 1e-9 * std::abs(windows.front().level));
  // A median of so many losses scatters by that much; dozens of windows are looked at.
  const double of_level = 1.25 * scatter * std::sqrt(2 / static_cast<double>(size));
  const bool falls =
      windows.front().level - lowest->level > 4.5 * of_level && best->slope < -2 * scatter / std::sqrt(best->spread);
  if (!falls) return std::nullopt;
  return all[static_cast<std::size_t>(best - windows.begin()) + size / 2].rate;
}

namespace {

// A whole step, counted, without anything between steps.
void lone_step(TrainingLoop& trainer, TrainerRun& run) {
  trainer.roles().calls.attributed_in_step(run, [&] { trainer.step().step(run); });
  run.notices.clear();
  run.step += 1;
}

}  // namespace

RateTest test_rates(TrainingLoop& trainer, Wiring& wiring, TrainerRun& run) {
  const ScratchFolder folder;  // for what callbacks write, such as capsules
  run.output = folder.path();
  RateSetter setter;
  HostApi::attach(wiring.bus, setter, false);
  RateTest test;
  std::vector<RateTest::Point> measured;
  Smooth smooth;
  double least = HUGE_VAL;
  for (int i = 0; i < most_steps && !test.has_diverged; ++i) {
    setter.factor = lowest_rate * std::pow(highest_rate / lowest_rate, i / (most_steps - 1.0));
    lone_step(trainer, run);
    const double loss = smooth(run.loss.item<double>());
    least = std::fmin(least, loss);
    test.has_diverged = !std::isfinite(loss) || loss > least + 3 * std::abs(least);
    if (!std::isfinite(loss)) continue;
    test.points.push_back({rate_of(run), loss});
    measured.push_back({rate_of(run), run.loss.item<double>()});
  }
  test.suggestion = steepest(measured);
  return test;
}

std::string plot(const RateTest& test) {
  constexpr int width = 64, height = 12;
  if (test.points.size() < 2) return "the loss is not finite from the first step on: no learning rate can be found\n";
  const auto [low, high] = std::ranges::minmax(test.points, {}, &RateTest::Point::loss);
  // Without this limit, the diverging end would flatten the interesting part of the plot.
  const double top = std::min(high.loss, low.loss + 1.2 * std::abs(test.points.front().loss - low.loss) + 1e-12);
  const double from = std::log(test.points.front().rate), to = std::log(test.points.back().rate);
  std::vector<std::string> lines(height, std::string(width, ' '));
  for (const auto& [rate, loss] : test.points) {
    const auto column = static_cast<std::size_t>(std::lround((std::log(rate) - from) / (to - from) * (width - 1)));
    const double share = (top - loss) / std::max(top - low.loss, 1e-300);
    const auto row = static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * (height - 1)));
    auto& place = lines[row][column];
    if (place != 'O') place = test.suggestion == rate ? 'O' : '*';
  }
  std::string text = "loss over learning rate, each step at a higher one\n";
  for (int row = 0; row < height; ++row) {
    const bool has_label = row == 0 || row == height - 1;
    std::string label = has_label ? print_number("%.4g", row == 0 ? top : low.loss) : "";
    label.insert(0, std::max<std::size_t>(label.size(), 10) - label.size(), ' ');
    auto line = label + " |" + lines[static_cast<std::size_t>(row)];
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  text += std::string(11, ' ') + '+' + std::string(width, '-') + '\n';
  const auto first = print_number("%.3g", test.points.front().rate);
  auto last = print_number("%.3g", test.points.back().rate);
  last.insert(0, width - std::min<std::size_t>(width, first.size() + last.size()), ' ');
  text += std::string(12, ' ') + first + last + '\n';
  if (!test.suggestion) {
    return text +
           "cannot tell: at none of these rates the loss falls by more than it scatters from batch to batch; try a " +
           "larger task.batch_size, or another optimizer.learning_rate to begin with\n";
  }
  return text + "the loss falls fastest at O: learning_rate = " + print_number("%.2g", *test.suggestion) + "\n";
}

}  // namespace vernier
