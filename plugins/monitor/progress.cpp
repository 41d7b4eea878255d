// progress: shows on stderr how far the run is: a bar in the last line of a terminal, and plain lines elsewhere.
//   bar = "auto"     a bar where stderr is a terminal; or "always", "never"
//   every = 50       steps between plain lines; the last step always has one
//   interval = 0.1   seconds between two drawings of the bar
//   rate = "auto"    tokens per second where the task counts them, else steps; or "steps", "samples", "tokens"
// After loss, learning rate and scale it shows skipped updates and overflows where there are any, with their share of
// the steps, and at most three metrics of other plugins. Validation results and notices have lines of their own. Steps
// are counted from 1. The rate and the time left are those of this process, without its validations. The host waits for
// the device only to draw.
#include <ATen/DeviceAccelerator.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>

namespace {

using vernier::Event;
using vernier::Notice;
using vernier::Run;
using Clock = std::chrono::steady_clock;

constexpr const char* clear_line = "\r\x1b[K";

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

template <class... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

// 950, 1.23k, 45.6M
std::string short_number(double value) {
  constexpr std::array<const char*, 5> units = {"", "k", "M", "G", "T"};
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < units.size(); ++unit) value /= 1000;
  const int decimals = value >= 99.95 || value == 0 ? 0 : value >= 9.995 ? 1 : 2;
  return print("%.*f%s", decimals, value, units[unit]);
}

// 0:07, 12:34, 3:05:00, 12d 07h
std::string duration(double seconds) {
  const auto whole = static_cast<int>(std::min(seconds, 1e9) + 0.5);
  const int h = whole / 3600, m = whole / 60 % 60, s = whole % 60;
  if (h >= 100) return print("%dd %02dh", h / 24, h % 24);
  return h > 0 ? print("%d:%02d:%02d", h, m, s) : print("%d:%02d", m, s);
}

// On a GPU what LibTorch's allocator has given out, else what the process holds.
double memory_in_use(torch::Device device) {
  if (device.is_cuda()) {
    const auto stats = at::accelerator::getDeviceStats(device.index());
    const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return static_cast<double>(stats.allocated_bytes[all].current);
  }
  std::int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

// Counts and the time they took. What is some seconds old weighs little.
class Rate {
 public:
  void restart(Clock::time_point now) { last_ = now; }
  void add(const std::array<double, 3>& counts, Clock::time_point now) {
    const double seconds = seconds_between(last_, now), kept = std::exp(-seconds / memory);
    seconds_ = seconds_ * kept + seconds;
    for (std::size_t i = 0; i < counts.size(); ++i) counts_[i] = counts_[i] * kept + counts[i];
    last_ = now;
  }
  double operator[](std::size_t i) const { return seconds_ > 0 ? counts_[i] / seconds_ : 0; }

 private:
  static constexpr double memory = 10;  // seconds
  Clock::time_point last_;
  double seconds_ = 0;
  std::array<double, 3> counts_ = {};
};

// stderr, with at most one line at its end that is drawn over and over. Each change is one write: nothing flickers.
class Screen {
 public:
  // A line that stays, above the one that is drawn.
  void line(const std::string& text) { write((drawn_.empty() ? "" : clear_line) + text + '\n' + drawn_); }
  // Draws over the last drawing. The text must fit into a line of the terminal, since a wrapped line cannot be redrawn.
  void draw(const std::string& text) {
    drawn_ = text;
    write('\r' + text + "\x1b[K");
  }
  // Leaves the cursor at the start of an empty line.
  void end() {
    if (!drawn_.empty()) write("\n");
    drawn_.clear();
  }

  // One less than the terminal has: a character in the last column may wrap.
  static std::size_t columns() {
    winsize size = {};
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 79;
    return size.ws_col - 1U;
  }

 private:
  static void write(std::string_view text) {
    while (!text.empty()) {
      const auto written = ::write(STDERR_FILENO, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return;  // a closed terminal is not worth an error
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  std::string drawn_;
};

// False only where the environment names another encoding.
bool speaks_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale = value;
    const auto dot = locale.find('.');
    if (dot == std::string_view::npos) return true;
    return locale.find("UTF-8", dot) != std::string_view::npos || locale.find("utf8", dot) != std::string_view::npos;
  }
  return true;
}

std::string bar(double share, std::size_t width, bool utf8) {
  static constexpr std::array<const char*, 8> eighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(width * 8));
  const std::size_t whole = filled / 8, part = utf8 ? filled % 8 : 0;
  std::string text = utf8 ? "▕" : "[";
  for (std::size_t i = 0; i < whole; ++i) text += utf8 ? "█" : "#";
  text += eighths[part];
  text.append(width - whole - (part > 0 ? 1 : 0), utf8 ? ' ' : '.');
  return text + (utf8 ? "▏" : "]");
}

// A part of the line; all are ASCII, so a byte is a column.
struct Field {
  std::string text;
  int importance;  // a narrow terminal shows the most important fields
};

std::size_t width_of(const std::vector<Field>& fields) {
  std::size_t width = 0;
  for (const auto& field : fields) width += field.text.size() + 2;
  return width - 2;
}

std::string join(const std::vector<Field>& fields) {
  std::string text;
  for (const auto& field : fields) text += (text.empty() ? "" : "  ") + field.text;
  return text;
}

// Fills a width with a bar and fields. The least important fields are dropped first, and the bar before the last three.
std::string fit(std::vector<Field> fields, double share, std::size_t columns, bool utf8) {
  constexpr std::size_t smallest_bar = 8, largest_bar = 24, around_bar = 4;
  const auto less = [](const Field& a, const Field& b) { return a.importance < b.importance; };
  const auto drop_until = [&](std::size_t room, std::size_t count) {
    while (fields.size() > count && width_of(fields) > room) fields.erase(std::ranges::min_element(fields, less));
  };
  if (columns > smallest_bar + around_bar) drop_until(columns - smallest_bar - around_bar, 3);
  drop_until(columns, 1);
  const std::size_t used = width_of(fields);
  if (used + smallest_bar + around_bar > columns) return join(fields).substr(0, columns);
  return bar(share, std::min(columns - used - around_bar, largest_bar), utf8) + "  " + join(fields);
}

class Progress final : public vernier::Monitor {
 public:
  explicit Progress(vernier::Options& options)
      : bar_(options.choose("bar", "auto", {"auto", "always", "never"}, "a bar instead of plain lines")),
        every_(options.get("every", 50, "steps between plain lines", vernier::at_least(1))),
        interval_(options.get("interval", 0.1, "seconds between drawings of the bar", vernier::at_least(0))),
        rate_unit_(options.choose("rate", "auto", {"auto", "steps", "samples", "tokens"}, "what is counted a second")) {
  }

  ~Progress() override { screen_.end(); }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](const Run& run) { begin(run); });
    bus.on(Event::StepEnd, [this](const Run& run) { end_step(run); });
    bus.on(Event::Validated, [this](const Run& run) { tell_validation(run); });
    bus.on(Event::RunEnd, [this](const Run& run) { end(run); });
    bus.on(Event::RunFailed, [this](const Run& run) {
      tell_notices(run, run.step + 1);
      screen_.end();
    });
  }

 private:
  static bool is_terminal() {
    const char* kind = std::getenv("TERM");
    return ::isatty(STDERR_FILENO) != 0 && kind != nullptr && std::string_view(kind) != "dumb";
  }

  void begin(const Run& run) {
    draws_bar_ = bar_ == "always" || (bar_ == "auto" && is_terminal());
    utf8_ = speaks_utf8();
    counted_ = counts(run, run.step);
    begun_ = Clock::now();
    rate_.restart(begun_);
  }

  void end_step(const Run& run) {
    const std::int64_t step = run.step + 1;
    saving_ = -1;
    if (const auto share = run.metrics.value("underflow")) underflow_ = share;
    if (!run.notices.empty()) tell_notices(run, step);
    if (validated_ || has_gone_back(step)) count_from_here(run, step);
    if (draws_bar_) {
      const auto now = Clock::now();
      if (seconds_between(drawn_, now) < interval_ && step != run.steps) return;
      draw(run, step, now);
    } else if (step % every_ == 0 || step == run.steps) {
      draw(run, step, Clock::now());
    }
  }

  bool has_gone_back(std::int64_t step) const { return static_cast<double>(step) <= counted_[0]; }

  // The time since the last step was a validation, or the steps before were undone by a rewind.
  void count_from_here(const Run& run, std::int64_t step) {
    validated_ = false;
    counted_ = counts(run, step);
    rate_.restart(Clock::now());
  }

  void draw(const Run& run, std::int64_t step, Clock::time_point now) {
    drawn_ = now;
    measure(run, step, now);
    of_step_.clear();
    for (const auto* metric : run.metrics.set_now()) of_step_.push_back(metric->name);
    const double left = static_cast<double>(run.steps - step) / rate_[0];
    show(run, step, std::isfinite(left) ? "ETA " + duration(left) : "");
  }

  void show(const Run& run, std::int64_t step, const std::string& time) {
    const auto all = fields(run, step, time);
    if (!draws_bar_) return screen_.line("step " + join(all));
    const double share = run.steps > 0 ? static_cast<double>(step) / static_cast<double>(run.steps) : 1.0;
    screen_.draw(fit(all, std::clamp(share, 0.0, 1.0), Screen::columns(), utf8_));
  }

  std::vector<Field> fields(const Run& run, std::int64_t step, const std::string& time) const {
    std::vector<Field> fields = {{c10::str(step, "/", run.steps), 9}};
    const auto add = [&fields](int importance, const std::string& text) { fields.push_back({text, importance}); };
    if (run.loss.defined()) add(8, "loss " + print("%.4f", run.loss.item<double>()));
    if (const auto rate = run.metrics.value("learning_rate")) add(4, "lr " + print("%.3g", *rate));
    if (const auto scale = run.metrics.value("scale")) add(3, "scale " + print("%.6g", *scale));
    if (const auto skipped = skipped_updates(run, step); skipped > 0) {
      const double share = static_cast<double>(skipped) / static_cast<double>(step);
      add(1, c10::str("skipped ", skipped) + print(" (%.2g%%)", 100 * share));
    }
    if (const auto overflows = run.amp.overflows(); overflows > 0) {
      add(0, c10::str("overflows ", overflows) + print(" (%.2g%%)", 100 * run.amp.overflow_ratio()));
    }
    if (underflow_) add(0, "underflow " + print("%.2g%%", 100 * *underflow_));
    for (const auto& metric : other_metrics(run)) add(-1, metric);
    if (const auto rate = shown_rate(run); !rate.empty()) add(5, rate);
    add(2, short_number(memory_in_use(run.device)) + "B");
    if (saving_ >= 0) add(6, "saving " + print("%.0f%%", 100 * saving_));
    if (!time.empty()) add(7, time);
    return fields;
  }

  // "grad_norm 0.512": metrics of the step that the line does not show anyway.
  std::vector<std::string> other_metrics(const Run& run) const {
    static constexpr std::array<const char*, 5> not_shown = {"learning_rate", "scale", "underflow", "micro_batches",
                                                             "batch"};
    constexpr std::size_t most = 3;
    std::vector<std::string> texts;
    for (const auto* metric : run.metrics.set_now()) {
      const bool is_of_step = std::ranges::find(of_step_, metric->name) != of_step_.end();
      if (!is_of_step || std::ranges::find(not_shown, metric->name) != not_shown.end()) continue;
      texts.push_back(metric->name + " " + print("%.4g", metric->value()));
      if (texts.size() == most) break;
    }
    return texts;
  }

  // On a GPU the result of the last update is not known yet.
  static std::int64_t skipped_updates(const Run& run, std::int64_t step) {
    return step - run.updates - (run.device.is_cpu() ? 0 : 1);
  }

  std::string shown_rate(const Run& run) const {
    static constexpr std::array<const char*, 3> units = {"steps", "samples", "tokens"};
    std::size_t unit = run.tokens > 0 ? 2 : 0;
    if (rate_unit_ != "auto") unit = static_cast<std::size_t>(std::ranges::find(units, rate_unit_) - units.begin());
    if (!(rate_[unit] > 0)) return "";
    const std::string label = run.emulated.empty() ? "" : " (" + run.emulated + " emulated)";
    return short_number(rate_[unit]) + " " + units[unit] + "/s" + label;
  }

  static std::array<double, 3> counts(const Run& run, std::int64_t step) {
    return {static_cast<double>(step), static_cast<double>(run.samples), static_cast<double>(run.tokens)};
  }

  void measure(const Run& run, std::int64_t step, Clock::time_point now) {
    const auto before = std::exchange(counted_, counts(run, step));
    rate_.add({counted_[0] - before[0], counted_[1] - before[1], counted_[2] - before[2]}, now);
  }

  void tell_validation(const Run& run) {
    validated_ = true;
    std::string text = c10::str("step ", run.step, "  validation loss ");
    text += print("%.4f", run.metrics.value("validation_loss").value());
    for (const auto* metric : run.metrics.set_now()) {
      if (metric->name == "validation_loss" || std::ranges::find(of_step_, metric->name) != of_step_.end()) continue;
      std::string name = metric->name;
      std::ranges::replace(name, '_', ' ');
      text += ", " + print("%.4g", metric->value()) + " " + name;
    }
    screen_.line(text);
  }

  // Notices of one name may be of several kinds: a rewind is not a skip.
  static std::string kind_of(const Notice& notice) {
    for (const auto& [key, detail] : notice.details) {
      const auto* action = std::get_if<std::string>(&detail);
      if (key == "action" && action != nullptr) return notice.name + ' ' + *action;
    }
    return notice.name;
  }

  // Many notices of one kind would hide all others. After the first ten of a kind there is one per second.
  void tell_notices(const Run& run, std::int64_t step) {
    for (const auto& notice : run.notices) {
      if (notice.name == "checkpoint_progress") {  // a number in the line, not a line
        saving_ = std::get<double>(notice.details.front().second);
        continue;
      }
      auto& told = told_[kind_of(notice)];
      const auto now = Clock::now();
      if (told.count >= 10 && seconds_between(told.last, now) < 1) {
        told.left_out += 1;
        continue;
      }
      const bool is_checkpoint = notice.name == "checkpoint_saved" && !notice.details.empty();
      std::string text = is_checkpoint ? "checkpoint " + std::get<std::string>(notice.details.front().second)
                                       : c10::str("step ", step, "  ", notice.text());
      if (told.left_out > 0) text += c10::str("  (and ", told.left_out, " more before)");
      screen_.line(text);
      told = {told.count + 1, 0, now};
    }
  }

  void end(const Run& run) {
    tell_notices(run, run.step);
    if (draws_bar_ && run.loss.defined()) {
      show(run, run.step, "took " + duration(seconds_between(begun_, Clock::now())));
    }
    screen_.end();
  }

  struct Told {
    std::int64_t count = 0, left_out = 0;
    Clock::time_point last;
  };

  std::string bar_;
  std::int64_t every_;
  double interval_;
  std::string rate_unit_;
  bool draws_bar_ = false, utf8_ = true;
  Screen screen_;
  Clock::time_point begun_, drawn_;
  Rate rate_;
  std::array<double, 3> counted_ = {};  // steps, samples, tokens at the last measurement
  bool validated_ = false;              // since the last step
  std::optional<double> underflow_;     // the last measurement
  double saving_ = -1;                  // share of the current checkpoint that is written, or -1
  std::vector<std::string> of_step_;    // metrics of the last step drawn; others are those of a validation
  std::map<std::string, Told> told_;
};

}  // namespace

VERNIER_PLUGIN(Progress, "progress", "1.0.0")
