// `vernier watch`: follows a run from its files, in another terminal.
#include <unistd.h>

#include <langinfo.h>
#include <chrono>
#include <clocale>
#include <cstring>
#include <iostream>
#include <thread>

#include "text_plot.h"
#include "tools/common/run_files.h"
#include "tools/common/text/terminal.h"
#include "tools/common/verb.h"

namespace {

using vernier::RunFiles;
using vernier::Screen;
using Clock = std::chrono::steady_clock;

constexpr const char* usage = R"(usage: vernier watch RUN [--metric NAME]... [--interval SECONDS] [--once]

Draws the losses of a run from its files, and draws them again while it goes on. It ends with the run.

  --metric NAME        draws this metric of losses.jsonl too, such as grad_norm; may be repeated
  --interval SECONDS   between two pictures (2)
  --once               one picture; also where standard output is not a terminal
)";

Screen screen() {
  const auto size = vernier::screen_of(STDOUT_FILENO);
  return size.columns > 0 && size.rows > 0 ? size : Screen{80, 24};
}

// How many steps a second came between two looks.
class Rate {
 public:
  double of(const RunFiles& run) {
    const auto now = Clock::now();
    if (!begun_) {
      begun_ = true;
      step_ = run.step;
      at_ = now;
      return 0;
    }
    const double seconds = std::chrono::duration<double>(now - at_).count();
    return seconds > 0 ? static_cast<double>(run.step - step_) / seconds : 0;
  }

 private:
  bool begun_ = false;
  std::int64_t step_ = 0;
  Clock::time_point at_;
};

std::string heading(const RunFiles& run, double rate) {
  std::string text = run.name + ": " + run.state + ", step " + std::to_string(run.step);
  if (run.steps > 0) text += " of " + std::to_string(run.steps);
  text += ", " + vernier::duration_of(run.seconds);
  if (!run.precision.empty()) text += ", " + run.precision;
  if (rate <= 0 || run.state != "running") return text + '\n';
  text += ", " + vernier::text_of(rate) + " steps/s";
  if (run.steps > run.step)
    text += ", ends in " + vernier::duration_of(static_cast<double>(run.steps - run.step) / rate);
  return text + '\n';
}

std::string plot_of(const RunFiles& run, const std::vector<std::string>& names, std::size_t columns, std::size_t rows) {
  const bool is_utf8 = std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0;
  const std::vector<std::string> marks =
      is_utf8 ? std::vector<std::string>{"·", "●"} : std::vector<std::string>{".", "o"};
  std::vector<vernier::TextCurve> curves;
  std::string title;
  for (const auto& name : names) {
    const auto* series = run.find(name);
    if (series == nullptr) continue;
    const auto& mark = marks[curves.size() % marks.size()];
    curves.push_back({series, mark});
    title += "  " + mark + ' ' + name + ' ' + vernier::text_of(vernier::last(series)) + " (lowest " +
             vernier::text_of(vernier::lowest(series)) + ")";
  }
  if (curves.empty()) return "";
  return '\n' + title.substr(1) + '\n' + vernier::text_plot(curves, columns, rows);
}

std::string picture(const RunFiles& run, const std::vector<std::string>& metrics, double rate) {
  const auto [columns, rows] = screen();
  const std::size_t charts = metrics.size() + 1, used = 3 * charts + 5;
  const std::size_t each = std::max<std::size_t>(6, rows > used ? (rows - used) / charts : 0);
  std::string text = heading(run, rate) + plot_of(run, {"loss", "validation_loss"}, columns, each);
  for (const auto& metric : metrics) text += plot_of(run, {metric}, columns, each);
  const std::size_t shown = std::min<std::size_t>(3, run.notices.size());
  for (auto notice = run.notices.end() - static_cast<std::ptrdiff_t>(shown); notice != run.notices.end(); ++notice) {
    const auto line = "step " + std::to_string(notice->step) + ": " + notice->name + ' ' + notice->details;
    text +=
        (notice == run.notices.end() - static_cast<std::ptrdiff_t>(shown) ? "\n" : "") + line.substr(0, columns) + '\n';
  }
  if (run.summary.is_object() && run.summary.contains("error") && run.state != "running") {
    text += '\n' + run.summary["error"].get<std::string>() + '\n';
  }
  return text;
}

void refuse_unknown(const RunFiles& run, const std::vector<std::string>& metrics) {
  for (const auto& metric : metrics) {
    if (run.find(metric) != nullptr) continue;
    std::string names;
    for (const auto& series : run.series) names += (names.empty() ? "" : ", ") + series.name;
    throw vernier::Refused("the run has no metric \"" + metric + "\" yet; it has " + (names.empty() ? "none" : names));
  }
}

int watch(const boost::program_options::variables_map& given) {
  const auto words = vernier::words_of(given);
  if (words.size() != 1) throw vernier::Refused("name one run, as in `vernier watch runs/NAME`");
  const auto metrics =
      given.count("metric") != 0 ? given["metric"].as<std::vector<std::string>>() : std::vector<std::string>{};
  const double interval = given["interval"].as<double>();
  if (!(interval >= 0.1 && interval <= 3600)) throw vernier::Refused("--interval is from 0.1 to 3600 seconds");
  const bool is_once = given.count("once") != 0 || ::isatty(STDOUT_FILENO) == 0;
  std::setlocale(LC_CTYPE, "");
  Rate rate;
  for (bool is_first = true;; is_first = false) {
    const auto run = vernier::read_run(words[0]);
    if (is_first) refuse_unknown(run, metrics);
    const auto text = picture(run, metrics, rate.of(run));
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
  return vernier::call_verb({"watch", usage, known, watch}, argc, argv);
}
