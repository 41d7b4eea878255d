#include "report_page.h"

#include <vernier/json_in.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "common/own_runs.h"
#include "core/reworded_error.h"
#include "svg.h"

namespace vernier {

using Json = nlohmann::ordered_json;

namespace {

constexpr const char* style = R"(<style>
:root { color-scheme: light dark; --ink: #1b1f24; --faint: #667; --paper: #fff; --rule: #d8dce2 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ec; --faint: #99a; --paper: #15181c; --rule: #343a42 }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 75rem;
  margin: 0 auto; padding: 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--rule); vertical-align: top }
th { font-weight: 600; white-space: nowrap } td.number { font-variant-numeric: tabular-nums }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 1rem }
figure { margin: 0; break-inside: avoid } figcaption { font-weight: 600 }
svg { width: 100%; height: auto } svg text { font-size: 11px; fill: var(--faint) } .grid { stroke: var(--rule) }
polyline { fill: none; stroke-width: 1.5; stroke-linejoin: round } polyline.dashed { stroke-dasharray: 6 3 }
rect.heat { fill: #0072b2 } rect.bad { fill: #d55e00 }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em }
summary { cursor: pointer } code { font-size: .9em; overflow-wrap: anywhere }
COLOURS@media print {
  body { max-width: none; padding: 0 } details { display: none } .charts { grid-template-columns: 1fr 1fr }
}
</style>
)";
// Told apart by people who do not see red and green alike: Okabe and Ito, https://jfly.uni-koeln.de/color
constexpr const char* colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                   "#e69f00", "#56b4e9", "#8a6d3b", "#7f7f7f"};

std::string styles() {
  std::string text = style, rules;
  for (std::size_t i = 0; i < std::size(colours); ++i) {
    const auto name = ".c" + std::to_string(i);
    const std::string colour = colours[i];
    rules += "polyline" + name + " { stroke: " + colour + " } circle" + name + ", " + name + "n { fill: " + colour +
             " } .key" + name + " { background: " + colour + " }\n";
  }
  return text.replace(text.find("COLOURS"), 7, rules);
}

std::string key_of(std::size_t run) {
  return "<span class=\"key c" + std::to_string(run % std::size(colours)) + "\"></span>";
}

// "/this_process/seconds" of a summary, as text; "" where it has none.
std::string text_of_value(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_number_float()) return text_of(value.get<double>());
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

std::string text_at(const Json& summary, const char* path) {
  return text_of_value(value_at(summary, path));
}

struct Row {
  const char* words;
  std::function<std::string(const RunFiles&)> value;
};

Row from_summary(const char* words, const char* path) {
  return {words, [path](const RunFiles& run) { return text_at(run.summary, path); }};
}

constexpr const char* share_of_floor = "/this_process/metrics/sol";
constexpr const char* lowest_validation_loss = "validation loss, lowest";

const std::vector<Row>& result_rows() {
  static const std::vector<Row> rows = {
      {"state", [](const RunFiles& run) { return run.state; }},
      from_summary("error", "/error"),
      {"steps", [](const RunFiles& run) { return std::to_string(run.step); }},
      {"loss, last", [](const RunFiles& run) { return text_of(last(run.find("loss"))); }},
      from_summary("loss, lowest", "/loss/best"),
      from_summary("validation loss, last", "/validation_loss/final"),
      from_summary(lowest_validation_loss, "/validation_loss/best"),
      from_summary("updates applied", "/updates_applied"),
      from_summary("updates skipped", "/updates_skipped"),
      from_summary("steps with overflow", "/amp/overflow_count"),
      {"precision", [](const RunFiles& run) { return run.precision; }},
      {"steps of the last process, whose times follow",
       [](const RunFiles& run) {
         const auto own = text_at(run.summary, "/this_process/steps");
         return own == text_at(run.summary, "/steps") ? "" : own;
       }},
      from_summary("seconds of steps", "/this_process/seconds"),
      from_summary("steps per second", "/this_process/steps_per_second"),
      from_summary("samples per second", "/this_process/samples_per_second"),
      from_summary("time that this machine's floor allows, as a share (sol)", share_of_floor),
      {"tokens per second",
       [](const RunFiles& run) {
         const auto rate = text_at(run.summary, "/this_process/tokens_per_second");
         return rate == "0" ? "" : rate;  // the task counts none
       }},
      from_summary("seconds of waiting for data", "/this_process/times/data_wait"),
      from_summary("seconds of forward", "/this_process/times/forward"),
      from_summary("seconds of backward", "/this_process/times/backward"),
      from_summary("seconds of updates", "/this_process/times/update"),
      from_summary("seconds of plugins' listeners", "/this_process/times/plugins"),
      from_summary("seconds of validations", "/this_process/times/validation"),
      from_summary("seconds of checkpoints", "/this_process/times/checkpoint"),
      {"peak memory",
       [](const RunFiles& run) {
         const auto bytes = text_at(run.summary, "/this_process/peak_memory_bytes");
         return bytes.empty() ? "" : text_of(std::stod(bytes) / 1e6) + " MB";
       }},
      from_summary("device", "/device"),
      from_summary("threads", "/threads"),
      from_summary("seed", "/seed"),
      from_summary("Vernier", "/versions/vernier"),
      from_summary("LibTorch", "/versions/libtorch"),
      from_summary("digest of the weights", "/digest"),
      {"folder", [](const RunFiles& run) { return run.folder.string(); }}};
  return rows;
}

void write_head(const std::vector<RunFiles>& runs, std::ostream& out) {
  out << "<tr><th></th>";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    out << "<th>" << (runs.size() > 1 ? key_of(i) : "") << escaped(runs[i].name) << "</th>";
  }
  out << "</tr>\n";
}

void write_row(const std::string& words, const std::vector<std::string>& values, std::ostream& out) {
  out << "<tr><th>" << escaped(words) << "</th>";
  for (const auto& value : values) out << "<td class=number>" << escaped(value) << "</td>";
  out << "</tr>\n";
}

void write_metrics(const std::vector<RunFiles>& runs, std::ostream& out) {
  for (const auto& name : metric_names(runs)) {
    std::vector<std::string> lasts, bests;
    for (const auto& run : runs) {
      const auto metrics = run.metrics();
      const auto found = std::ranges::find(metrics, name, &MetricSeen::name);
      lasts.push_back(found == metrics.end() ? "" : text_of(found->last));
      bests.push_back(found == metrics.end() ? "" : text_of(found->best));
    }
    const auto title = with_unit(name, runs);
    write_row(title + ", last", lasts, out);
    const bool has_best = std::ranges::any_of(bests, [](const auto& value) { return !value.empty(); });
    if (has_best) write_row(title + ", best", bests, out);
  }
}

void write_results(const std::vector<RunFiles>& runs, std::ostream& out) {
  out << "<div class=wide><table>\n";
  write_head(runs, out);
  for (const auto& row : result_rows()) {
    std::vector<std::string> values;
    for (const auto& run : runs) values.push_back(row.value(run));
    if (std::ranges::any_of(values, [](const auto& value) { return !value.empty(); }))
      write_row(row.words, values, out);
    if (row.words == lowest_validation_loss) write_metrics(runs, out);
  }
  out << "</table></div>\n";
}

constexpr const char* how_to_measure =
    "How close is that to what the machine can do? <code>vernier profile --floor</code> measures it once, and "
    "[[callback]] use = \"mfu\" then reports the share as <code>sol</code>.";

// The parts of the time of each run's last process.
void write_times(const std::vector<RunFiles>& runs, std::ostream& out) {
  constexpr std::pair<const char*, const char*> kinds[] = {
      {"data_wait", "waiting for data"}, {"forward", "forward"},
      {"backward", "backward"},          {"update", "updates"},
      {"plugins", "plugins' listeners"}, {"validation", "validation"},
      {"checkpoint", "checkpoints"}};
  bool lacks_floor = false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<std::pair<std::string, double>> parts;
    for (const auto& [key, words] : kinds) {
      const auto seconds = text_at(runs[i].summary, ("/this_process/times/" + std::string(key)).c_str());
      if (!seconds.empty()) parts.emplace_back(words, std::max(std::strtod(seconds.c_str(), nullptr), 0.0));
    }
    const auto picture = svg_parts(parts);
    if (picture.empty()) continue;
    out << "<figure><figcaption>" << (runs.size() > 1 ? key_of(i) + escaped(runs[i].name) + ": where" : "Where")
        << " the time went</figcaption>\n"
        << picture << "</figure>\n";
    lacks_floor |= text_at(runs[i].summary, "/device") == "cpu" && text_at(runs[i].summary, share_of_floor).empty();
  }
  if (lacks_floor) out << "<p>" << how_to_measure << "</p>\n";
}

void write_charts(const std::vector<RunFiles>& runs, std::ostream& out) {
  std::vector<std::string> names;
  for (const auto& run : runs) {
    for (const auto& series : run.series) {
      const bool is_known = std::ranges::find(names, series.name) != names.end();
      if (!is_known && !is_of_a_layer(series)) names.push_back(series.name);
    }
  }
  std::ranges::stable_sort(names, {}, [](const auto& name) {
    return name == "loss" ? 0 : name == "validation_loss" ? 1 : 2;
  });
  out << "<h2>Curves</h2>\n";
  for (const auto& run : runs) {
    if (run.series.empty()) out << "<p>" << escaped(run.name + ": " + no_curve) << "</p>\n";
  }
  out << "<div class=charts>\n";
  const bool has_loss = std::ranges::find(names, "loss") != names.end();
  if (has_loss) std::erase(names, "validation_loss");  // it is in the picture of the loss
  for (const auto& name : names) {
    std::vector<SvgCurve> curves;
    std::string title = with_unit(name, runs);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const auto *series = runs[i].find(name), *validation = name == "loss" ? runs[i].find("validation_loss") : nullptr;
      if (series != nullptr) curves.push_back({runs[i].name, series, i, name == "loss" ? &runs[i].notices : nullptr});
      if (validation == nullptr) continue;
      curves.push_back({runs[i].name + ", validation", validation, i, nullptr, /*is_dashed=*/true});
      title = "loss, and validation loss (dashed)";
    }
    out << "<figure><figcaption>" << escaped(title) << "</figcaption>\n" << svg_plot(curves) << "</figure>\n";
  }
  write_times(runs, out);
  out << "</div>\n";
}

void write_text_table(const TextRows& rows, std::ostream& out) {
  out << "<div class=wide><table>\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out << "<tr>";
    for (std::size_t k = 0; k < rows[0].size(); ++k) {
      const bool is_head = i == 0 || k == 0;
      const auto cell = k < rows[i].size() ? escaped(rows[i][k]) : "";
      out << (is_head ? "<th>" + cell + "</th>" : "<td class=number>" + cell + "</td>");
    }
    out << "</tr>\n";
  }
  out << "</table></div>\n";
}

// The last values of all metrics, a row for each layer.
TextRows layers_table_of(const std::vector<HeatMap>& maps) {
  TextRows rows = {{"last measured"}};
  for (const auto& map : maps) {
    rows[0].push_back(map.kind);
    for (const auto* series : map.of_layers) {
      const auto layer = series->name.substr(map.kind.size() + 1);
      auto row = std::ranges::find(rows, layer, [](const auto& cells) { return cells[0]; });
      if (row == rows.end()) row = rows.insert(rows.end(), {layer});
      row->resize(rows[0].size());
      if (!series->points.empty()) row->back() = text_of(series->points.back().value);
    }
  }
  return rows;
}

void write_heat_maps(const std::vector<RunFiles>& runs, std::ostream& out) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto maps = heat_maps_of(runs[i]);
    if (maps.empty()) continue;
    out << "<h2>Layers" << (runs.size() > 1 ? " of " + key_of(i) + escaped(runs[i].name) : "")
        << "</h2>\n<div class=charts>\n";
    for (const auto& map : maps) {
      out << "<figure><figcaption>" << escaped(with_unit(map.kind, std::span(&runs[i], 1))) << "</figcaption>\n"
          << svg_heat_map(map) << "</figure>\n";
    }
    out << "</div>\n";
    write_text_table(layers_table_of(maps), out);
  }
}

void write_notices(const std::vector<RunFiles>& runs, std::ostream& out) {
  constexpr std::size_t most = 200;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& notices = runs[i].notices;
    if (notices.empty()) continue;
    out << "<h2>Out of the ordinary" << (runs.size() > 1 ? " in " + key_of(i) + escaped(runs[i].name) : "")
        << "</h2>\n<p>The triangles below the loss.</p>\n<div class=wide><table>\n";
    for (std::size_t k = 0; k < std::min(most, notices.size()); ++k) {
      out << "<tr><td class=number>step " << notices[k].step << "</td><td>" << escaped(notices[k].name) << "</td><td>"
          << escaped(notices[k].details) << "</td></tr>\n";
    }
    out << "</table></div>\n";
    if (notices.size() > most) out << "<p>and " << notices.size() - most << " more</p>\n";
  }
}

void write_configuration(const std::vector<RunFiles>& runs, std::ostream& out) {
  std::vector<std::map<std::string, std::string>> all(runs.size());
  std::set<std::string> keys;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].summary.is_object())
      all[i] = flat_configuration(runs[i].summary.value("configuration", Json::object()));
    for (const auto& [key, value] : all[i]) keys.insert(key);
  }
  if (keys.empty()) return;
  const auto write = [&](bool only_different) {
    out << "<div class=wide><table>\n";
    write_head(runs, out);
    for (const auto& key : keys) {
      std::vector<std::string> values;
      for (const auto& each : all) values.push_back(each.contains(key) ? each.at(key) : "");
      const bool differs = std::ranges::any_of(values, [&](const auto& value) { return value != values[0]; });
      if (differs || !only_different) write_row(key, values, out);
    }
    out << "</table></div>\n";
  };
  if (runs.size() > 1) {
    out << "<h2>Differences of configuration</h2>\n";
    write(true);
  }
  out << "<h2>Configuration</h2>\n<details><summary>every option, with defaults</summary>\n";
  write(false);
  out << "</details>\n";
}

void write_comparison(const Json& comparison, std::ostream& out) {
  const auto view = view_of(comparison);
  out << "<h2>Comparison</h2>\n<p>" << escaped(view.heading) << "</p>\n";
  write_text_table(view.speed, out);
  write_text_table(view.losses, out);
  for (const auto& rows : view.metrics) write_text_table(rows, out);
  if (!view.order.empty()) out << "<p>" << escaped(view.order) << "</p>\n";
  for (const auto& [head, lines] : {std::pair("Verdicts", &view.verdicts), std::pair("Notes", &view.notes)}) {
    if (lines->empty()) continue;
    out << "<h2>" << head << "</h2>\n<ul>\n";
    for (const auto& [name, sentence] : *lines) out << "<li>" << escaped(name + ": " + sentence) << "</li>\n";
    out << "</ul>\n";
  }
}

constexpr double of_a_step = 1e-3;  // the share that a step of a curve stands for

Series shares(const std::string& name, const Json& points) {
  Series series{name, {}};
  for (const auto& point : points) {
    series.points.push_back({std::lround(point.at(0).get<double>() / of_a_step), point.at(1).get<double>()});
  }
  return series;
}

void write_shares(const std::string& title, const std::string& axis, const std::vector<Series>& all,
                  std::ostream& out) {
  std::vector<SvgCurve> curves;
  for (std::size_t i = 0; i < all.size(); ++i) curves.push_back({all[i].name, &all[i], i, nullptr});
  out << "<figure><figcaption>" << escaped(title) << "</figcaption>\n" << svg_plot(curves, axis, of_a_step);
  for (std::size_t i = 0; i < all.size(); ++i) out << key_of(i) << escaped(all[i].name) << "<br>\n";
  out << "</figure>\n";
}

// RFC 4648, section 4.
std::string base64(const std::string& bytes) {
  constexpr const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned bits = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      bits = bits << 8U | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (std::size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? digits[bits >> (18 - 6 * k) & 63U] : '=';
  }
  return text;
}

// Returns the HTML of an image whose path `where` has in single quotes, or "" for any other file or more than 1 MiB.
std::string picture_at(const std::string& where) {
  constexpr std::uintmax_t most = 1 << 20;
  const auto begin = where.find('\''), end = where.rfind('\'');
  const std::filesystem::path path = begin < end ? where.substr(begin + 1, end - begin - 1) : "";
  auto kind = path.extension().string();
  std::ranges::transform(kind, kind.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  static const std::map<std::string, std::string> kinds = {
      {".png", "png"}, {".jpg", "jpeg"}, {".jpeg", "jpeg"}, {".webp", "webp"}};
  std::error_code none;
  if (!kinds.contains(kind) || !std::filesystem::is_regular_file(path, none)) return "";
  if (std::filesystem::file_size(path, none) > most) return "";
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  return "<img alt=\"\" height=96 src=\"data:image/" + kinds.at(kind) + ";base64," + base64(bytes) + "\">";
}

void write_worst(const Json& worst, bool is_own, std::ostream& out) {
  if (worst.empty()) return;
  out << "<div class=wide><table>\n<tr><th>worst samples</th><th>target</th><th>prediction</th><th>loss</th></tr>\n";
  for (const auto& each : worst) {
    const std::string where = each.at("where"), target = each.at("target"), predicted = each.at("predicted");
    out << "<tr><td>" << (is_own ? picture_at(where) : "") << ' ' << escaped(where) << "</td><td>" << escaped(target)
        << "</td><td>" << escaped(predicted) << "</td><td class=number>" << escaped(text_at(each, "/loss"))
        << "</td></tr>\n";
  }
  out << "</table></div>\n";
}

void write_classes(const Json& set, std::ostream& out) {
  const auto& classes = set.at("classes");
  if (!set.at("confusion").empty()) {
    TextRows rows = {{"target \\ prediction"}};
    for (const std::string name : classes) rows[0].push_back(name);
    for (std::size_t i = 0; i < classes.size(); ++i) {
      rows.push_back({classes[i]});
      for (const auto& count : set["confusion"].at(i)) rows.back().push_back(json_text(count));
    }
    write_text_table(rows, out);
  }
  out << "<div class=charts>\n";
  std::vector<Series> curves;
  for (std::size_t i = 0; i < set.at("roc").size(); ++i) {
    const auto& roc = set["roc"][i];
    curves.push_back(shares(classes.at(i).get<std::string>() + ", area " + text_at(roc, "/auc"), roc.at("points")));
  }
  if (!curves.empty())
    write_shares("hits of each class, ROC", "share of the others that are taken for it", curves, out);
  Json points = Json::array();
  for (const auto& bin : set.at("reliability")) points.push_back({bin.at("probability"), bin.at("accuracy")});
  write_shares("accuracy by probability; expected calibration error " + text_at(set, "/ece"), "probability",
               {shares("measured", points), shares("calibrated", {{0, 0}, {1, 1}})}, out);
  out << "</div>\n";
}

// The results of `vernier evaluate`, which it leaves in the folder of a run.
void write_evaluation(const RunFiles& run, std::ostream& out) {
  std::ifstream file(run.folder / "evaluation.json");
  const auto seen = json_in<Json>(file);
  if (!seen.is_object()) return;
  try {
    out << "<h2>Evaluation of " << escaped(run.name) << " after step " << json_text(seen.at("step")) << "</h2>\n";
    TextRows rows = {{"metric"}};
    for (const auto& [model, values] : seen.at("metrics").items()) {
      rows[0].push_back(model);
      for (const auto& [name, value] : values.items()) {
        auto row = std::ranges::find(rows, name, [](const auto& cells) { return cells[0]; });
        if (row == rows.end()) row = rows.insert(rows.end(), {name});
        row->resize(rows[0].size());
        row->back() = text_of_value(value);
      }
    }
    write_text_table(rows, out);
    for (const auto& set : seen.at("validation")) {
      const std::string name = set.at("name");
      if (!name.empty()) out << "<h3>" << escaped(name) << "</h3>\n";
      if (set.contains("classes")) write_classes(set, out);
      write_worst(set.at("worst"), is_own_run(run.folder), out);  // others might name any picture of this machine
    }
  } catch (const Json::exception& error) {
    throw Refused((run.folder / "evaluation.json").string() + " is damaged (" + reworded_error(error.what()) +
                  "); run `vernier evaluate` again");
  }
}

}  // namespace

std::string report_page(const std::vector<RunFiles>& runs, const std::vector<Json>& comparisons) {
  std::string title;
  for (const auto& run : runs) title += (title.empty() ? "" : ", ") + run.name;
  if (runs.empty()) title = "Comparison";
  std::ostringstream out;
  out << report_head << "<meta name=viewport content=\"width=device-width, initial-scale=1\">\n<title>"
      << escaped(title) << "</title>\n"
      << styles() << "<h1>" << escaped(title) << "</h1>\n";
  for (const auto& comparison : comparisons) write_comparison(comparison, out);
  if (!comparisons.empty()) out << "<h2>Runs</h2>\n<p>Each candidate is shown with its first seed.</p>\n";
  write_results(runs, out);
  write_charts(runs, out);
  for (const auto& run : runs) write_evaluation(run, out);
  write_heat_maps(runs, out);
  write_notices(runs, out);
  write_configuration(runs, out);
  out << "</html>\n";
  return out.str();
}

}  // namespace vernier
