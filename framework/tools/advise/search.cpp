#include "search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/run_files.h"
#include "common/text/numbers.h"

namespace vernier {

namespace {

constexpr double worth = 1.02;           // a smaller gain is noise
constexpr double slack = 1.05;           // an estimate of so much more memory than the limit is tried all the same
constexpr std::size_t finalists = 3;     // beside the written one
constexpr std::size_t most_rounds = 8;   // rounds of a finalist
constexpr std::size_t least_losses = 4;  // fewest losses that are compared

// The expected speed and memory of a combination, multiplied from its options alone.
struct Estimate {
  Choice choice;
  double speed, memory;
};

class Searcher {
 public:
  Searcher(const std::vector<Axis>& axes, const Limits& limits, const Measurer& measure, const HasTime& has_time)
      : axes_(axes), limits_(limits), measure_(measure), has_time_(has_time) {}

  Found search(Measured written) {
    found_.measured.push_back(std::move(written));
    const auto float32 = with(0, place_of_float32(axes_[0]));
    if (changes_in(float32) > 0) try_new(float32);
    found_.float32 = found_.measured.size() - 1;
    // Measured however little time there is, because float32 alone cannot be compared.
    if (axes_[0].options.size() > 1 && find(with(0, 1)) == nullptr) try_new(with(0, 1));
    measure_options();
    measure_combinations();
    measure_again();
    found_.advice = fastest();
    return std::move(found_);
  }

 private:
  static Choice changed(Choice choice, std::size_t axis, std::size_t option) {
    choice[axis] = option;
    return choice;
  }
  Choice with(std::size_t axis, std::size_t option) const { return changed(as_written(axes_), axis, option); }
  const Measured* find(const Choice& choice) const {
    const auto found = std::ranges::find(found_.measured, choice, &Measured::choice);
    return found == found_.measured.end() ? nullptr : &*found;
  }
  const Measured& written() const { return found_.measured.front(); }
  const Measured& float32() const { return found_.measured[found_.float32]; }
  std::string objection(const Measured& candidate) const { return objection_to(candidate, float32(), limits_); }
  // Returns true if only its memory speaks against it, which other options may lower.
  bool may_be_part(const Measured* option) const {
    return option != nullptr && option->speed() > 0 && objection_to(*option, float32(), {0, limits_.loss_gap}).empty();
  }

  void try_new(const Choice& choice) {
    Measured measured;
    measured.choice = choice;
    measure_(measured);
    found_.measured.push_back(std::move(measured));
  }

  // The first option of each axis, then the second of each, so that little time still sees something of all.
  void measure_options() {
    std::size_t most = 0;
    for (const auto& axis : axes_) most = std::max(most, axis.options.size());
    for (std::size_t option = 1; option < most; ++option) {
      for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
        if (option >= axes_[axis].options.size() || find(with(axis, option)) != nullptr) continue;
        if (has_time_(1)) {
          try_new(with(axis, option));
        } else {
          found_.left_out.push_back(axes_[axis].options[option].name);
        }
      }
    }
  }

  // The expected memory of a combination. `floor` is the part of the memory that no option changes, such as LibTorch's
  // libraries: each option multiplies the rest.
  double estimated_memory(const Choice& choice, double floor) const {
    const double all = written().peak_memory - floor;
    double memory = all;
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
      if (choice[axis] != 0) memory *= (find(with(axis, choice[axis]))->peak_memory - floor) / all;
    }
    return floor + memory;
  }
  double estimated_speed(const Choice& choice) const {
    double speed = written().speed();
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
      if (choice[axis] != 0) speed *= find(with(axis, choice[axis]))->speed() / written().speed();
    }
    return speed;
  }

  // Every combination of options that may be part of one and that is not measured yet.
  std::vector<Estimate> estimates() const {
    std::vector<Choice> all = {as_written(axes_)};
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
      const auto before = all;
      for (std::size_t option = 1; option < axes_[axis].options.size(); ++option) {
        if (!may_be_part(find(with(axis, option)))) continue;
        for (const auto& choice : before) all.push_back(changed(choice, axis, option));
      }
    }
    std::vector<Estimate> estimates;
    for (const auto& choice : all) {
      if (find(choice) != nullptr) continue;
      estimates.push_back({choice, estimated_speed(choice), estimated_memory(choice, floor_)});
    }
    return estimates;
  }

  // Raises the floor until the estimate of a measured combination is what it needed.
  void learn_from(const Measured& measured) {
    if (!measured.trouble.empty()) return;
    constexpr int halvings = 40;
    double low = floor_, high = 0.98 * std::ranges::min(found_.measured, {}, [](const Measured&each) {
                                         return each.peak_memory > 0 ? each.peak_memory : HUGE_VAL;
                                       }).peak_memory;
    for (int i = 0; i < halvings && low < high; ++i) {
      const double middle = (low + high) / 2;
      (estimated_memory(measured.choice, middle) < measured.peak_memory ? low : high) = middle;
    }
    floor_ = std::max(floor_, low);
  }

  std::optional<Choice> most_promising() const {
    const auto all = estimates();
    const Estimate* best = nullptr;
    const auto fits = [&](const Estimate& each) {
      return limits_.memory == 0 || each.memory <= slack * limits_.memory;
    };
    for (const auto& each : all) {
      if (fits(each) && (best == nullptr || each.speed > best->speed)) best = &each;
    }
    const auto now = fastest();
    if (best != nullptr && now && best->speed <= found_.measured[*now].speed() * worth) return std::nullopt;
    if (best != nullptr || now || all.empty()) return best != nullptr ? std::optional(best->choice) : std::nullopt;
    return std::ranges::min_element(all, {}, &Estimate::memory)->choice;  // nothing fits: what needs least
  }

  void measure_combinations() {
    while (has_time_(1 + finalists)) {
      const auto choice = most_promising();
      if (!choice) return;
      try_new(*choice);
      learn_from(found_.measured.back());
    }
  }

  std::vector<std::size_t> by_speed() const {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < found_.measured.size(); ++i) {
      if (objection(found_.measured[i]).empty()) places.push_back(i);
    }
    std::ranges::stable_sort(places, std::ranges::greater(), [&](std::size_t i) { return found_.measured[i].speed(); });
    return places;
  }

  // The fastest; of those that are nearly as fast, the one with the fewest changes.
  std::optional<std::size_t> fastest() const {
    const auto places = by_speed();
    if (places.empty()) return std::nullopt;
    const double least = found_.measured[places.front()].speed() / worth;
    auto best = places.front();
    for (const auto place : places) {
      const auto& each = found_.measured[place];
      if (each.speed() >= least && changes_in(each.choice) < changes_in(found_.measured[best].choice)) best = place;
    }
    return best;
  }

  // In turn, and every second time in reversed order, so that the machine's noise hits all alike.
  void measure_again() {
    auto places = by_speed();
    places.resize(std::min(places.size(), finalists));
    if (std::ranges::find(places, std::size_t{0}) == places.end() && written().trouble.empty()) places.push_back(0);
    for (std::size_t round = 1; round < most_rounds; ++round) {
      std::ranges::reverse(places);
      for (const auto place : places) {
        if (!has_time_(1)) return;
        measure_(found_.measured[place]);
      }
    }
  }

  const std::vector<Axis>& axes_;
  const Limits& limits_;
  const Measurer& measure_;
  const HasTime& has_time_;
  Found found_;
  double floor_ = 0;  // see estimated_memory()
};

}  // namespace

std::string in_mb(double bytes) {
  return print_number("%.0f MB", bytes / 1e6);
}

double Measured::speed() const {
  return speeds.empty() ? 0 : std::ranges::max(speeds);
}

std::optional<double> loss_gap(const Measured& candidate, const Measured& float32) {
  const auto common = std::min(candidate.losses.size(), float32.losses.size());
  if (common < least_losses) return std::nullopt;
  const auto mean = [&](const Measured& each) {
    const double *begin = each.losses.data() + common / 2, *end = each.losses.data() + common;
    return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
  };
  return mean(candidate) - mean(float32);
}

double allowed_gap(const Limits& limits, const Measured& float32) {
  return float32.losses.empty() ? 0 : limits.loss_gap * std::abs(float32.losses.front());
}

std::string objection_to(const Measured& candidate, const Measured& float32, const Limits& limits) {
  if (!candidate.trouble.empty()) return candidate.trouble;
  if (!candidate.emulated.empty()) return candidate.emulated + " is only emulated on this machine";
  if (limits.memory > 0 && candidate.peak_memory > limits.memory) {
    return "needs " + in_mb(candidate.peak_memory) + ", more than " + in_mb(limits.memory);
  }
  const auto gap = loss_gap(candidate, float32);
  if (gap && !(*gap <= allowed_gap(limits, float32))) {  // NaN too
    return "its loss goes away from fp32's: " + text_of(gap) + " above it, and " +
           text_of(allowed_gap(limits, float32)) + " is allowed";
  }
  return "";
}

Found search(const std::vector<Axis>& axes, Measured written, const Limits& limits, const Measurer& measure,
             const HasTime& has_time) {
  return Searcher(axes, limits, measure, has_time).search(std::move(written));
}

}  // namespace vernier
