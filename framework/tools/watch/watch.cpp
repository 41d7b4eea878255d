// `vernier watch`: follows a run from its files, in another terminal.
#include <unistd.h>

#include <langinfo.h>
#include <chrono>
#include <clocale>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <thread>

#include "common/run_files.h"
#include "common/text/numbers.h"
#include "common/text/terminal.h"
#include "common/text/text_table.h"
#include "common/verb.h"

namespace {

using namespace vernier;
using Clock = std::chrono::steady_clock;

constexpr const char* usage = R"(usage: vernier watch RUN [--metric NAME]... [--interval SECONDS] [--once]

Draws the losses of a run from its files, and draws them again while it goes on. It ends with the run.

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
  const double span = values.high > values.low ? values.high - values.low : 1;
  std::vector<std::vector<std::string>> cells(rows, std::vector<std::string>(width, " "));
  for (std::size_t k = 0; k < drawn.size(); ++k) {
    for (std::size_t i = 0; i < width; ++i) {
      if (!std::isfinite(drawn[k][i])) continue;
      const double height = (values.high - drawn[k][i]) / span * static_cast<double>(rows - 1);
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

Screen screen() {
  const auto size = screen_of(STDOUT_FILENO);
  return size.columns > 0 && size.rows > 0 ? size : Screen{80, 24};
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

std::string picture(const RunFiles& run, const std::vector<std::string>& metrics, double rate) {
  const auto [columns, rows] = screen();
  const std::size_t charts = metrics.size() + 1, used = 3 * charts + 5;
  const std::size_t each = std::max<std::size_t>(6, rows > used ? (rows - used) / charts : 0);
  std::string text = heading(run, rate) + plot_of(run, {"loss", "validation_loss"}, columns, each);
  for (const auto& metric : metrics) text += plot_of(run, {metric}, columns, each);
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
  for (auto run = first;; run = read_run(words[0])) {
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const auto text = picture(run, metrics, static_cast<double>(run.step - first.step) / seconds);
    std::cout << (is_once ? "" : "\033[H\033[J") << text << std::flush;
    if (is_once || run.state != "running") return 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(interval));
  }
}

}  // namespace

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description known;
  known.add_options()("metric", po::value<std::vector<std::string>>())("once", "")(
      "interval", po::value<double>()->default_value(2));
  return call_verb({"watch", usage, known, watch}, argc, argv);
}
