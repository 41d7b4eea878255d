#include "advice.h"

#include <algorithm>
#include <sstream>

#include "common/run_files.h"
#include "common/text/numbers.h"
#include "common/text/quoting.h"
#include "common/text/text_table.h"

namespace vernier {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::int64_t few_steps = 8;
constexpr double busy = 0.1;  // a spread of the rounds that says that the machine has other work

std::string samples(double number) {
  return print_number(number < 1000 ? "%.4g" : "%.0f", number);
}

const Measured& float32_of(const Advice& advice) {
  return advice.found.measured[advice.found.float32];
}

double speed_up(const Advice& advice, const Measured& measured) {
  const double before = advice.found.measured.front().speed();
  return before > 0 ? measured.speed() / before : 0;
}

std::string gap_text(const Advice& advice, const Measured& measured) {
  const auto gap = loss_gap(measured, float32_of(advice));
  return gap ? print_number("%+.3g", *gap) : "";
}

std::string line_of_expectation(const Advice& advice, const Measured& measured) {
  const auto& before = advice.found.measured.front();
  auto text = samples(measured.speed()) + " samples/s, " +
              print_number("%.3gx as written; peak memory ", speed_up(advice, measured)) + in_mb(measured.peak_memory) +
              print_number(", %.0f %% of it", 100 * measured.peak_memory / before.peak_memory);
  const auto gap = gap_text(advice, measured);
  return text + (gap.empty() ? "" : "; loss " + gap + " beside fp32's");
}

// A line for each axis, with the option that is advised.
TextRows rows_of_advice(const Advice& advice, const Measured& measured) {
  TextRows rows;
  for (std::size_t i = 0; i < advice.axes.size(); ++i) {
    const auto& axis = advice.axes[i];
    const auto place = measured.choice[i];
    std::string remark = place == 0 ? "as written" : "instead of " + axis.options.front().name;
    if (axis.name == "micro-batches") remark += print_number("; %.4g samples each", measured.micro_batch);
    if (!axis.note.empty()) remark += "; " + axis.note;
    rows.push_back({axis.name, axis.options[place].name, remark});
  }
  rows.push_back({"expected", line_of_expectation(advice, measured)});
  return rows;
}

// With the words of an error in the last column, which may be long.
TextRows rows_of_measured(const Advice& advice) {
  TextRows rows{{"candidate", "samples/s", "speed-up", "peak memory", "loss gap", "steps", ""}};
  for (std::size_t i = 0; i < advice.found.measured.size(); ++i) {
    const auto& each = advice.found.measured[i];
    const auto objection = objection_to(each, float32_of(advice), advice.limits);
    const auto remark = advice.found.advice == i ? std::string("advised") : objection;
    const auto name = name_of(advice.axes, each.choice);
    if (each.speed() == 0) {
      rows.push_back({name, "", "", "", "", "", remark});
      continue;
    }
    rows.push_back({name, samples(each.speed()), print_number("%.3gx", speed_up(advice, each)), in_mb(each.peak_memory),
                    gap_text(advice, each), std::to_string(each.steps), remark});
  }
  return rows;
}

// Options of the written plugin, such as rules, go with it where another one is advised.
void warn_of_lost_options(const Advice& advice, const Measured& measured, std::vector<std::string>& lines) {
  for (const auto& setting : settings_of(advice.axes, measured.choice)) {
    if (!setting.key.ends_with(".use")) continue;
    lines.push_back("options that the configuration gives to another plugin of [" +
                    setting.key.substr(0, setting.key.find('.')) + "] do not hold for " + setting.value);
  }
}

void warn_of_rounds(const Measured& measured, std::vector<std::string>& lines) {
  if (measured.speeds.size() < 2) {
    lines.push_back("the advice was measured in one round only; give more --seconds");
    return;
  }
  const auto [low, high] = std::ranges::minmax(measured.speeds);
  if (high - low <= busy * high) return;
  lines.push_back(print_number("the rounds of the advice differ by %.0f %%: ", 100 * (high - low) / high) +
                  "the machine has other work; repeat it on an idle one");
}

}  // namespace

const Measured* chosen(const Advice& advice) {
  return advice.found.advice ? &advice.found.measured[*advice.found.advice] : nullptr;
}

std::vector<std::string> warnings_of(const Advice& advice) {
  std::vector<std::string> lines;
  const auto* measured = chosen(advice);
  if (float32_of(advice).losses.empty()) lines.push_back("fp32 did not train, so no loss is compared with its");
  for (const auto& each : advice.found.measured) {
    if (each.overflows == 0) continue;
    lines.push_back(name_of(advice.axes, each.choice) + ": gradients overflowed in " + std::to_string(each.overflows) +
                    " of " + std::to_string(each.steps) + " steps, and " + std::to_string(each.skipped) +
                    " updates were skipped");
  }
  if (!advice.found.left_out.empty()) {
    lines.push_back("there was no time to measure " + joined(advice.found.left_out) + "; give more --seconds");
  }
  if (measured == nullptr) return lines;
  if (static_cast<std::int64_t>(measured->losses.size()) < few_steps) {
    lines.push_back("a round of the advice had " + std::to_string(measured->losses.size()) +
                    " steps, which is few; give more --seconds");
  }
  warn_of_rounds(*measured, lines);
  warn_of_lost_options(advice, *measured, lines);
  for (const auto& line : advice.checks) lines.push_back(line);
  return lines;
}

std::string text_of(const Advice& advice) {
  std::ostringstream out;
  out << "advice for " << joined(advice.files, " ") << " on " << advice.device << ", " << advice.threads
      << (advice.threads == 1 ? " thread" : " threads") << ", after " << duration_of(advice.seconds)
      << " of measurements\n\n";
  if (const auto* measured = chosen(advice)) {
    out << aligned(rows_of_advice(advice, *measured));
  } else {
    out << "there is none: every candidate has an objection in the table\n";
  }
  out << "\nmeasured\n" << aligned(rows_of_measured(advice));
  const auto warnings = warnings_of(advice);
  if (!warnings.empty()) out << "\nwarnings\n";
  for (const auto& line : warnings) out << "- " << line << '\n';
  return out.str();
}

Json json_of(const Advice& advice) {
  Json all = {{"files", advice.files},     {"sets", advice.sets},       {"device", advice.device},
              {"threads", advice.threads}, {"seconds", advice.seconds}, {"advice", nullptr}};
  Json measured = Json::array();
  for (const auto& each : advice.found.measured) {
    Json settings = Json::object();
    for (const auto& [key, value] : settings_of(advice.axes, each.choice)) settings[key] = value;
    Json one = {{"name", name_of(advice.axes, each.choice)},
                {"settings", settings},
                {"samples_per_second", each.speed()},
                {"rounds", each.speeds},
                {"peak_memory_bytes", each.peak_memory},
                {"loss_gap", nullptr},
                {"steps", each.steps},
                {"overflows", each.overflows},
                {"updates_skipped", each.skipped}};
    if (const auto gap = loss_gap(each, float32_of(advice))) one["loss_gap"] = *gap;
    one["objection"] = objection_to(each, float32_of(advice), advice.limits);
    if (&each == chosen(advice)) all["advice"] = one;
    measured.push_back(std::move(one));
  }
  all["measured"] = std::move(measured);
  all["warnings"] = warnings_of(advice);
  return all;
}

std::string overlay_file(const Advice& advice, const std::string& path) {
  const auto& measured = *chosen(advice);
  auto settings = settings_of(advice.axes, measured.choice);
  settings.insert(settings.begin(), advice.always.begin(), advice.always.end());
  std::string files, more;
  for (const auto& file : advice.files) files += " " + shell_quoted(file);
  for (const auto& set : advice.sets) more += " --set " + shell_quoted(set);
  for (const auto& folder : advice.plugin_paths) more += " --plugin-path " + shell_quoted(folder);
  std::ostringstream out;
  out << "# The advice of `vernier advise" << files << "` for " << advice.device << ", " << advice.threads
      << " threads. Use it so:\n#   vernier train" << files << ' ' << shell_quoted(path) << more
      << "\n# Expected: " << line_of_expectation(advice, measured) << ".\n";
  if (settings.empty()) out << "# The configuration is best as it is written.\n";
  out << overlay_of(settings);
  return out.str();
}

}  // namespace vernier
