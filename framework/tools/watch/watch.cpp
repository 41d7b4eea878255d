// `vernier watch`: follows a run from its files, in another terminal, and steers it by keys.
#include <langinfo.h>
#include <unistd.h>
#include <vernier/json_in.h>

#include <chrono>
#include <clocale>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <thread>

#include "common/run_files.h"
#include "common/text/numbers.h"
#include "common/text/text_table.h"
#include "common/verb.h"
#include "key_screen.h"
#include "service/http/run_client.h"

namespace vernier {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* usage = R"(usage: vernier watch RUN [--metric NAME]... [--interval SECONDS] [--once]

Draws the losses of a run from its files, and draws them again while it goes on. It ends with the run. In a terminal it
has keys: other metrics, and the last steps alone. A run with callback/control is also paused, saved, validated and
stopped by keys.

  --metric NAME        draws this metric of losses.jsonl too, such as grad_norm; may be repeated
  --interval SECONDS   between two pictures (2)
  --once               one picture; also where standard output is not a terminal
)";

struct TextCurve {
  const Series* series;
  std::string mark;  // one character of UTF-8
};

std::string padded(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

// The mean of the values on each column; NaN if there is none.
std::vector<double> means(const Series& series, const Extent& steps, std::size_t columns) {
  std::vector<double> sums(columns), counts(columns);
  const double span = std::max(1.0, steps.high - steps.low);
  for (const auto& [step, value] : series.points) {
    if (!std::isfinite(value)) continue;
    const double share = (static_cast<double>(step) - steps.low) / span;
    const auto column = static_cast<std::size_t>(std::llround(share * static_cast<double>(columns - 1)));
    sums[column] += value;
    ++counts[column];
  }
  for (std::size_t i = 0; i < columns; ++i) {
    sums[i] = counts[i] > 0 ? sums[i] / counts[i] : std::numeric_limits<double>::quiet_NaN();
  }
  return sums;
}

// rows lines of at most `columns` characters, and below them one with the first and the last step. Each column has the
// mean of the values that fall on it. Values that are not finite are left out. "" where no curve has a value.
std::string text_plot(const std::vector<TextCurve>& curves, std::size_t columns, std::size_t rows) {
  constexpr std::size_t label = 10;  // columns of the numbers at the left
  if (columns < label + 10 || rows < 2) return "";
  Extent steps, values;
  for (const auto& curve : curves) {
    for (const auto& [step, value] : curve.series->points) {
      if (std::isfinite(value)) steps.include(static_cast<double>(step));
    }
  }
  if (steps.low > steps.high) return "";
  const std::size_t width = columns - label - 2;
  std::vector<std::vector<double>> drawn;
  for (const auto& curve : curves) drawn.push_back(means(*curve.series, steps, width));
  for (const auto& curve : drawn) {
    for (const double value : curve) values.include(value);
  }
  // Rounding can make means of equal numbers differ.
  const double span = values.high / 2 - values.low / 2;  // half of it, as the whole may be infinite
  const bool is_flat = span <= 1e-12 * std::abs(values.high);
  std::vector<std::vector<std::string>> cells(rows, std::vector<std::string>(width, " "));
  for (std::size_t k = 0; k < drawn.size(); ++k) {
    for (std::size_t i = 0; i < width; ++i) {
      if (!std::isfinite(drawn[k][i])) continue;
      const double share = is_flat ? 0 : (values.high / 2 - drawn[k][i] / 2) / span;
      const double height = share * static_cast<double>(rows - 1);
      cells[static_cast<std::size_t>(std::llround(height))][i] = curves[k].mark;
    }
  }
  std::string text;
  for (std::size_t row = 0; row < rows; ++row) {
    const bool has_label = row == 0 || row + 1 == rows;
    text += padded(has_label ? text_of(row == 0 ? values.high : values.low) : "", label) + " |";
    std::string line;
    for (const auto& cell : cells[row]) line += cell;
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  const auto first = std::to_string(std::llround(steps.low)), last = std::to_string(std::llround(steps.high));
  return text + std::string(label + 2, ' ') + first + padded(last, width - std::min(width, first.size())) + '\n';
}

std::string heading(const RunFiles& run, double rate) {
  std::string text = run.name + ": " + run.state + ", step " + std::to_string(run.step);
  if (run.steps > 0) text += " of " + std::to_string(run.steps);
  text += ", " + duration_of(run.seconds);
  if (!run.precision.empty()) text += ", " + run.precision;
  if (!(rate > 0) || run.state != "running") return text + '\n';
  text += ", " + text_of(rate) + " steps/s";
  if (run.steps > run.step) text += ", ends in " + duration_of(static_cast<double>(run.steps - run.step) / rate);
  return text + '\n';
}

std::string plot_of(const RunFiles& run, const std::vector<std::string>& names, std::size_t columns, std::size_t rows) {
  const bool is_utf8 = std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0;
  const std::string marks[] = {is_utf8 ? "·" : ".", is_utf8 ? "●" : "o"};
  std::vector<TextCurve> curves;
  std::string title;
  for (const auto& name : names) {
    const auto* series = run.find(name);
    if (series == nullptr) continue;
    const auto& mark = marks[curves.size() % 2];
    curves.push_back({series, mark});
    title += "  " + mark + ' ' + name + ' ' + text_of(last(series)) + " (lowest " + text_of(lowest(series)) + ")";
  }
  if (curves.empty()) return "";
  return '\n' + title.substr(1) + '\n' + text_plot(curves, columns, rows);
}

// Each chart has one metric or more.
using Charts = std::vector<std::vector<std::string>>;

std::string picture(const RunFiles& run, const Charts& charts, double rate) {
  const auto [columns, rows] = screen();
  const std::size_t used = 3 * charts.size() + 5;
  const std::size_t each = std::max<std::size_t>(6, rows > used ? (rows - used) / charts.size() : 0);
  std::string text = heading(run, rate);
  for (const auto& names : charts) text += plot_of(run, names, columns, each);
  if (run.series.empty()) text += std::string(no_curve) + "\n";
  const auto count = run.notices.size();
  if (count > 0) text += '\n';
  for (std::size_t i = count - std::min<std::size_t>(3, count); i < count; ++i) {
    const auto& [step, name, details] = run.notices[i];
    text += ("step " + std::to_string(step) + ": " + name + ' ' + details).substr(0, columns) + '\n';
  }
  if (run.summary.is_object() && run.summary.contains("error") && run.state != "running") {
    text += '\n' + run.summary["error"].get<std::string>() + '\n';
  }
  return text;
}

void refuse_unknown(const RunFiles& run, const std::vector<std::string>& metrics) {
  for (const auto& metric : metrics) {
    if (run.find(metric) != nullptr) continue;
    std::vector<std::string> names;
    for (const auto& series : run.series) names.push_back(series.name);
    throw Refused("the run has no metric \"" + metric + "\" yet; it has " + (names.empty() ? "none" : joined(names)));
  }
}

// Gives the run a command through its callback/control. Returns a line for people.
std::string steer(const std::filesystem::path& folder, std::string command) {
  const auto text_in = [&](const char* name) {
    std::ifstream file(folder / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const AskedRun run{text_in("control.url"), text_in("control.tokens"), "vernier watch", std::chrono::seconds(3)};
  if (run.url.empty()) return "only a run with [[callback]] use = \"control\" has these keys";
  try {
    const auto ask = [&run](const char* method, const char* target, const std::string& body) {
      return json_in<nlohmann::json>(ask_run(run, method, target, body).body);
    };
    if (command == "pause" && ask("GET", "/v1/run", "").value("state", "") == "paused") command = "resume";
    const auto answer = ask("POST", "/v1/commands", json_text(nlohmann::json{{"command", command}}));
    return command + ": " + answer.value("answer", answer.value("detail", "it waits for the end of the step"));
  } catch (const std::exception& error) {
    return command + ": " + error.what() + "; commands.jsonl says what became of it";
  }
}

// Keeps what the keys have chosen.
class View {
 public:
  View(std::filesystem::path folder, std::vector<std::string> metrics)
      : folder_(std::move(folder)), metrics_(std::move(metrics)) {}

  // The losses and the metrics of the command line, or one other metric alone.
  Charts charts(const RunFiles& run) const {
    Charts all = {{"loss", "validation_loss"}};
    for (const auto& metric : metrics_) all.push_back({metric});
    std::size_t next = 0;
    for (const auto& series : run.series) {
      const bool is_loss = series.name == "loss" || series.name == "validation_loss";
      if (!is_loss && ++next == chosen_) return {{series.name}};
    }
    chosen_ = 0;
    return all;
  }

  // The run with the last part of its steps, a half for each level of the zoom.
  RunFiles zoomed(RunFiles run) const {
    const auto before = zoom_ == 0 ? -1 : run.step - (run.step >> zoom_);
    for (auto& series : run.series) {
      std::erase_if(series.points, [before](const Point& point) { return point.step <= before; });
    }
    return run;
  }

  void press(char key) {
    if (key == '\0') return;
    const bool confirms = std::exchange(asks_, false) && key == 'x';
    said_.clear();
    if (key == 'm') ++chosen_;
    if (key == '+') zoom_ = std::min(zoom_ + 1, 20);
    if (key == '-') zoom_ = std::max(zoom_ - 1, 0);
    if ((key == '+' || key == '-') && zoom_ > 0) said_ = "the last 1/" + std::to_string(1 << zoom_) + " of the steps";
    if (key == 'p') said_ = steer(folder_, "pause");
    if (key == 's') said_ = steer(folder_, "save");
    if (key == 'v') said_ = steer(folder_, "validate");
    if (key == 'x' && confirms) said_ = steer(folder_, "stop");
    asks_ = key == 'x' && !confirms;
    if (asks_) said_ = "press x again to stop the run, with a validation and a checkpoint";
  }
  std::string below() const {
    return said_ + "\nm metric  +/- zoom  p pause, go on  s save  v validate  x stop  q leave";
  }

 private:
  std::filesystem::path folder_;
  std::vector<std::string> metrics_;
  mutable std::size_t chosen_ = 0;  // 0: the charts of the command line; it begins anew behind the last metric
  int zoom_ = 0;
  bool asks_ = false;  // x was pressed once
  std::string said_;
};

// Gives the terminal back, and leaves the last picture on it. A signal ends the program as if nothing had caught it.
int leave(std::optional<KeyScreen>& keys, const std::string& text) {
  const int signal = keys->ended_by();
  keys.reset();
  if (signal != 0) return std::raise(signal);
  std::cout << text << std::flush;
  return 0;
}

int watch(const boost::program_options::variables_map& given) {
  const auto words = words_of(given);
  if (words.size() != 1) throw Refused("name one run, as in `vernier watch runs/NAME`");
  const auto metrics = words_in(given, "metric");
  const double interval = number_in(given, "interval", 0.1, 3600.0);
  const bool is_once = given.count("once") != 0 || ::isatty(STDOUT_FILENO) == 0;
  std::setlocale(LC_CTYPE, "");
  const auto first = read_run(words[0]);
  const auto begin = Clock::now();
  refuse_unknown(first, metrics);
  View view(words[0], metrics);
  std::optional<KeyScreen> keys;
  if (!is_once && first.state == "running" && has_keys()) keys.emplace();
  for (auto run = first;; run = read_run(words[0])) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const auto text = picture(view.zoomed(run), view.charts(run), static_cast<double>(run.step - first.step) / seconds);
    const bool goes_on = !is_once && run.state == "running";
    if (keys && goes_on) {
      keys->draw(text, view.below());
      const char key = keys->key(interval);
      view.press(key);
      if (key != 'q' && keys->ended_by() == 0) continue;
    }
    if (keys) return leave(keys, text);
    std::cout << (is_once ? "" : "\033[H\033[J") << text << std::flush;
    if (!goes_on) return 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(interval));
  }
}

}  // namespace

int call_watch(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description known;
  known.add_options()("metric", po::value<std::vector<std::string>>())("once", "")(
      "interval", po::value<double>()->default_value(2));
  return call_verb({"watch", usage, known, watch}, argc, argv);
}

}  // namespace vernier
