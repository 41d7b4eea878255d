// progress: shows on stderr how far the run is: a bar in the last line of a terminal, and plain lines elsewhere.
//   bar = "auto"     a bar where stderr is a terminal; or "always", "never"
//   every = 50       steps between plain lines; the last planned step always has one
//   interval = 0.1   seconds between two drawings of the bar
//   amp_every = 500  steps between [AMP Stats] lines in mixed precision, and one at the end; 0: none
//   rate = "auto"    tokens per second where the task counts them, else steps; or "steps", "samples", "tokens"
// After loss, learning rate and scale it shows skipped updates and overflows if there are any, with their share of
// the steps, and metrics of other plugins: as many as fit beside the bar, three in a plain line. Then come the parts of
// the step that took a tenth of its time or more, where it took a millisecond. Validation results and notices have
// lines of their own, and so has the end of an epoch: "epoch 2  loss 1.4401  scale 65536  memory 204MB". Steps and
// epochs are counted from 1. The rate and the time left are those of this process, without its validations. The host
// waits for the device only to draw. With --quiet it prints nothing.
#include <ATen/DeviceAccelerator.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <vernier/record.h>
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

#include "shared/amp_line.h"

namespace {

using vernier::Event;
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

// A number in a format of printf; a NaN has no sign.
std::string number(const char* format, double value) {
  return std::isnan(value) ? "nan" : print(format, value);
}

// 2.8818, 1.2e-07
std::string loss_text(double value) {
  const double size = std::abs(value);
  return number(size >= 0.1 && size < 1e6 ? "%.4f" : "%.4g", value);
}

// 100%, 1.2%, 0.05%
std::string percentage(double share) {
  if (share > 0 && share < 1e-5) return "<0.001%";
  return number(share >= 0.0995 ? "%.0f%%" : "%.2g%%", 100 * share);
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
  void line(const std::string& text) { write((drawn_.empty() ? "" : clear_line) + broken(text) + '\n' + drawn_); }
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
  // Between words, so that no terminal breaks it within one.
  static std::string broken(std::string text) {
    winsize size = {};
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return text;
    std::size_t space = std::string::npos, column = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if ((static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U) continue;
      if (text[i] == ' ') space = i;
      if (++column <= size.ws_col || space == std::string::npos) continue;
      text.replace(space, 1, "\n  ");
      i = space + 2;  // goes on after the indentation
      column = 2;
      space = std::string::npos;
    }
    return text;
  }
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

// By its name, since the locale itself need not be installed: en_GB.UTF-8, C.utf8.
bool speaks_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    return ::strcasestr(value, "utf-8") != nullptr || ::strcasestr(value, "utf8") != nullptr;
  }
  return false;
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

std::string join(const std::vector<Field>& fields) {
  std::string text;
  for (const auto& field : fields) text += (text.empty() ? "" : "  ") + field.text;
  return text;
}

// Fills a width with a bar and fields. The least important fields are dropped first, of equal ones the last, and the
// bar before the last three.
std::string fit(std::vector<Field> fields, double share, std::size_t columns, bool utf8) {
  constexpr std::size_t smallest_bar = 8, largest_bar = 24, around_bar = 4;
  const auto less = [](const Field& a, const Field& b) { return a.importance < b.importance; };
  const auto drop_until = [&](std::size_t room, std::size_t count) {
    while (fields.size() > count && join(fields).size() > room) {
      fields.erase(std::next(std::min_element(fields.rbegin(), fields.rend(), less)).base());
    }
  };
  if (columns > smallest_bar + around_bar) drop_until(columns - smallest_bar - around_bar, 3);
  drop_until(columns, 1);
  const auto text = join(fields);
  if (text.size() + smallest_bar + around_bar > columns) return text.substr(0, columns);
  return bar(share, std::min(columns - text.size() - around_bar, largest_bar), utf8) + "  " + text;
}

class Progress final : public vernier::Monitor {
 public:
  explicit Progress(vernier::Options& options)
      : bar_(options.choose("bar", "auto", {"auto", "always", "never"}, "a bar instead of plain lines")),
        every_(options.get("every", 50, "steps between plain lines", vernier::at_least(1))),
        interval_(options.get("interval", 0.1, "seconds between drawings of the bar", vernier::at_least(0))),
        amp_every_(options.get("amp_every", 500, "steps between [AMP Stats] lines, in mixed precision; 0: none",
                               vernier::at_least(0))),
        rate_unit_(options.choose("rate", "auto", {"auto", "steps", "samples", "tokens"}, "what is counted a second")) {
  }

  ~Progress() override { screen_.end(); }

  void attach(vernier::Bus& bus) override {
    const auto on = [&](Event event, void (Progress::*show)(const Run&)) {
      bus.on(event, [this, show](const Run& run) {
        if (!run.quiet) (this->*show)(run);
      });
    };
    on(Event::RunBegin, &Progress::begin);
    on(Event::StepEnd, &Progress::end_step);
    on(Event::Validated, &Progress::show_validation);
    on(Event::EpochEnd, &Progress::end_epoch);
    on(Event::RunEnd, &Progress::end);
    on(Event::RunFailed, &Progress::fail);
  }

  // Sets the interval of the plain lines.
  bool set_every(std::int64_t steps) override {
    every_ = steps;
    return true;
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
    const std::int64_t step = run.step;
    saving_ = -1;
    if (const auto share = run.metrics.value("underflow")) underflow_ = share;
    if (!run.notices.empty()) show_notices(run, step);
    // The time since the last step was a validation, or the steps before were undone by a rewind.
    if (std::exchange(validated_, false) || static_cast<double>(step) <= counted_[0]) {
      counted_ = counts(run, step);
      rate_.restart(Clock::now());
    }
    if (draws_bar_) {
      const auto now = Clock::now();
      validates_ = run.validates;
      if (seconds_between(drawn_, now) >= interval_ || step == run.steps || validates_) draw(run, step, now);
    } else if (step % every_ == 0 || step == run.steps) {
      draw(run, step, Clock::now());
    }
    if (amp_every_ > 0 && (step % amp_every_ == 0 || step == run.steps)) show_amp(run);
  }

  void show_amp(const Run& run) {
    if (run.amp.amp_steps() > 0 || run.amp.current_scale()) screen_.line("[AMP Stats] " + amp_line(run.amp));
  }

  void draw(const Run& run, std::int64_t step, Clock::time_point now) {
    drawn_ = now;
    const auto before = std::exchange(counted_, counts(run, step));
    rate_.add({counted_[0] - before[0], counted_[1] - before[1], counted_[2] - before[2]}, now);
    fields_ = fields(run, step);
    shown_ = step;
    const double left = static_cast<double>(run.steps - step) / rate_[0];
    left_ = std::isfinite(left) ? "ETA " + duration(left) : "";
    show(run, validates_ ? "validating" : left_);
  }

  void show(const Run& run, const std::string& last) {
    auto all = fields_;
    if (!last.empty()) all.push_back({last, 7});
    if (!draws_bar_) return screen_.line("step " + join(all));
    const double share = run.steps > 0 ? static_cast<double>(shown_) / static_cast<double>(run.steps) : 1.0;
    screen_.draw(fit(all, std::clamp(share, 0.0, 1.0), Screen::columns(), utf8_));
  }

  static Field count(const Run& run, std::int64_t step) { return {c10::str(step, "/", run.steps), 9}; }

  std::vector<Field> fields(const Run& run, std::int64_t step) const {
    std::vector<Field> fields = {count(run, step)};
    const auto add = [&fields](int importance, const std::string& text) { fields.push_back({text, importance}); };
    if (run.loss.defined()) add(8, "loss " + loss_text(run.loss.item<double>()));
    if (const auto rate = run.metrics.value("learning_rate")) add(3, "lr " + number("%.3g", *rate));
    if (const auto scale = run.metrics.value("scale")) add(2, "scale " + number("%.6g", *scale));
    if (const auto skipped = skipped_updates(run); skipped > 0) {
      const double share = static_cast<double>(skipped) / static_cast<double>(step);
      add(1, c10::str("skipped ", skipped, " (", percentage(share), ")"));
    }
    if (const auto overflows = run.amp.overflow_count(); overflows > 0) {
      add(0, c10::str("overflows ", overflows, " (", percentage(overflow_ratio(run.amp)), ")"));
    }
    if (underflow_) add(0, "underflow " + percentage(*underflow_));
    for (const auto& metric : other_metrics(run)) add(4, metric);
    if (const auto times = split_of_the_step(run); !times.empty()) add(draws_bar_ ? -2 : 4, times);
    if (const auto rate = shown_rate(run); !rate.empty()) add(5, rate);
    add(-1, short_number(memory_in_use(run.device)) + "B");
    if (saving_ >= 0) add(6, "saving " + print("%.0f%%", 100 * saving_));
    return fields;
  }

  // "grad_norm 0.512": metrics of the step that the line does not show anyway.
  std::vector<std::string> other_metrics(const Run& run) const {
    static constexpr std::array<const char*, 5> not_shown = {"learning_rate", "scale", "underflow", "micro_batches",
                                                             "batch"};
    const std::size_t most = draws_bar_ ? 10 : 3;
    std::vector<std::string> texts;
    for (const auto* metric : run.metrics.set_now()) {
      if (std::ranges::find(not_shown, metric->name) != not_shown.end()) continue;
      if (metric->is_time && (metric->name != "data_wait" || metric->value() < 1e-3)) continue;
      texts.push_back(metric->name + " " +
                      (metric->is_time ? number("%.0f ms", 1e3 * metric->value()) : number("%.4g", metric->value())));
      if (texts.size() == most) break;
    }
    return texts;
  }

  // "time fwd 41% bwd 45%": the parts of the step that took a tenth of it or more, where a step takes a millisecond.
  static std::string split_of_the_step(const Run& run) {
    constexpr std::pair<const char*, const char*> parts[] = {{"data_wait", "data"},       {"forward_time", "fwd"},
                                                             {"backward_time", "bwd"},    {"update_time", "update"},
                                                             {"plugins_time", "plugins"}, {"trainer_time", "trainer"}};
    const auto step = run.metrics.value("step_time");
    if (!step || *step < 1e-3) return "";
    std::string text;
    for (const auto& [metric, name] : parts) {
      const double share = run.metrics.value(metric).value_or(0) / *step;
      if (share >= 0.1) text += std::string(" ") + name + " " + percentage(share);
    }
    return text.empty() ? "" : "time" + text;
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

  void show_validation(const Run& run) {
    validated_ = true;
    std::string text = c10::str("step ", run.step, "  validation loss ");
    text += loss_text(run.metrics.value("validation_loss").value());
    for (const auto* metric : run.metrics.set_now()) {
      if (metric->name == "validation_loss" || metric->is_time) continue;
      std::string name = metric->name;
      std::ranges::replace(name, '_', ' ');
      text += ", " + number("%.4g", metric->value()) + " " + name;
    }
    if (std::exchange(validates_, false)) show(run, left_);  // the next step may take long
    screen_.line(text);
  }

  template <class T>
  static std::optional<T> detail(const vernier::Notice& notice, std::string_view key) {
    for (const auto& [name, value] : notice.details) {
      if (name == key && std::holds_alternative<T>(value)) return std::get<T>(value);
    }
    return std::nullopt;
  }

  // After the last batch of the data: the loss of the last step, the scale, and the memory in use.
  void end_epoch(const Run& run) {
    if (!run.loss.defined()) return;  // all batches of the epoch were dropped by a rewind
    show_thinned("epoch", [&] {
      const auto scale = run.amp.current_scale();
      return c10::str("epoch ", run.epoch + 1, "  loss ", loss_text(run.loss.item<double>()),
                      scale ? "  scale " + number("%.6g", *scale) : "", "  memory ",
                      short_number(memory_in_use(run.device)), "B");
    });
  }

  // Notices of one name may be of several kinds: a rewind is not a skip.
  void show_notices(const Run& run, std::int64_t step) {
    for (const auto& notice : run.notices) {
      if (notice.name == "checkpoint_progress") {  // a number in the line, not a line
        saving_ = std::get<double>(notice.details.front().second);
        continue;
      }
      show_thinned(notice.name + detail<std::string>(notice, "action").value_or(""), [&] {
        return c10::str("step ", detail<std::int64_t>(notice, "step").value_or(step), ": ",
                        notice.sentence.empty() ? notice.text() : notice.sentence);
      });
    }
  }

  // Many lines of one kind would hide all others. After the first ten of a kind there is one per second.
  template <class Text>
  void show_thinned(const std::string& name, const Text& text) {
    auto& kind = kinds_[name];
    const auto now = Clock::now();
    if (kind.count >= 10 && seconds_between(kind.last, now) < 1) {
      kind.left_out += 1;
      return;
    }
    screen_.line(text() + (kind.left_out > 0 ? c10::str("  (and ", kind.left_out, " more before)") : ""));
    kind = {kind.count + 1, 0, now};
  }

  void end(const Run& run) {
    show_notices(run, run.step);
    if (draws_bar_ && shown_ != run.step) fields_ = fields(run, run.step);
    draw_last(run);
  }

  // The device may have failed: it is not asked for numbers.
  void fail(const Run& run) {
    show_notices(run, run.step + 1);  // the step that failed
    if (shown_ != run.step) fields_ = {count(run, run.step)};
    draw_last(run);
  }

  void draw_last(const Run& run) {
    shown_ = run.step;
    if (draws_bar_ && run.step > 0) show(run, "took " + duration(seconds_between(begun_, Clock::now())));
    screen_.end();
  }

  struct LineCount {
    std::int64_t count = 0, left_out = 0;
    Clock::time_point last;
  };

  std::string bar_;
  std::int64_t every_;
  double interval_;
  std::int64_t amp_every_;
  std::string rate_unit_;
  bool draws_bar_ = false, utf8_ = true;
  Screen screen_;
  Clock::time_point begun_, drawn_;
  Rate rate_;
  std::array<double, 3> counted_ = {};      // steps, samples, tokens at the last measurement
  std::vector<Field> fields_;               // fields of the step that was drawn last
  std::int64_t shown_ = -1;                 // the number of that step
  std::string left_;                        // the time left after it
  bool validates_ = false;                  // and a validation follows it
  bool validated_ = false;                  // since the last step
  std::optional<double> underflow_;         // the last measurement
  double saving_ = -1;                      // share of the current checkpoint that is written, or -1
  std::map<std::string, LineCount> kinds_;  // by the names of notices; "epoch"
};

}  // namespace

VERNIER_PLUGIN(Progress, "progress", "1.0.0")
