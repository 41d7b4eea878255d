// The route that puts some jobs side by side: their numbers, and where their configurations differ.
#include <vernier/json_in.h>

#include <toml++/toml.h>

#include <charconv>
#include <set>
#include <sstream>

#include "common/run_files.h"
#include "service/api/api.h"
#include "service/http/schema.h"
#include "service/queue/attempt.h"

namespace serve {

using namespace vernier::schema;

namespace {

constexpr std::size_t most_compared = 8;

using Values = std::map<std::string, Json>;  // by name

std::vector<std::int64_t> ids_in(const HttpCall& call) {
  const HttpRefused refused{422, "jobs must be two to eight numbers of jobs, each once: ?jobs=1,2"};
  const auto given = call.parameters.find("jobs");
  if (given == call.parameters.end()) throw refused;
  std::vector<std::int64_t> ids;
  std::istringstream words(given->second + ",");
  for (std::string word; std::getline(words, word, ',');) {
    std::int64_t id = 0;
    const auto [end, trouble] = std::from_chars(word.data(), word.data() + word.size(), id);
    const bool is_id = trouble == std::errc() && end == word.data() + word.size() && id >= 1 && id <= most;
    if (!is_id || std::ranges::find(ids, id) != ids.end() || ids.size() == most_compared) throw refused;
    ids.push_back(id);
  }
  if (ids.size() < 2) throw refused;
  return ids;
}

// The newest of each metric, and what the summary of a run that is over has beside them.
Values figures_of(const ApiContext& api, const Job& job) {
  const auto run = api.queue.run_of(job.id);
  Values figures;
  if (run.empty()) return figures;
  const auto metrics = api.histories.metrics(run, job.attempt);
  for (const auto& metric : metrics["metrics"]) {
    figures[metric["name"].get<std::string>()] = metric["value"];
    auto& step = figures["step"];
    if (step.is_null() || step < metric["step"]) step = metric["step"];
  }
  const auto summary = vernier::json_in<Json>(read_whole(run / "summary.json"));
  for (const char* place : {"/loss/best", "/validation_loss/best", "/this_process/seconds",
                            "/this_process/samples_per_second", "/this_process/peak_memory_bytes"}) {
    const Json::json_pointer pointer(place);
    if (!summary.contains(pointer) || !summary.at(pointer).is_number()) continue;
    auto name = std::string(place).substr(1);
    if (name.starts_with("this_process/")) name = name.substr(13);
    std::ranges::replace(name, '/', ' ');
    figures[name] = summary.at(pointer);
  }
  return figures;
}

Values configuration_of(const Job& job) {
  std::ostringstream text;
  text << toml::json_formatter(toml::parse(job.request.config));
  Values values;
  for (const auto& [key, value] : vernier::flat_configuration(Json::parse(text.str()))) values[key] = value;
  return values;
}

// A row for each name: its value in each column, or null.
Json rows_of(const std::vector<Values>& columns, const char* name_of_name, bool only_different) {
  std::set<std::string> names;
  for (const auto& column : columns) {
    for (const auto& [name, ignored] : column) names.insert(name);
  }
  Json rows = Json::array();
  for (const auto& name : names) {
    Json values = Json::array();
    for (const auto& column : columns) values.push_back(column.contains(name) ? column.at(name) : Json(nullptr));
    const bool differs = std::ranges::any_of(values, [&](const Json& value) { return value != values[0]; });
    if (differs || !only_different) rows.push_back({{name_of_name, name}, {"values", values}});
  }
  return rows;
}

}  // namespace

HttpRoute comparison_route(const ApiContext& api) {
  const auto rows = [](const char* name, const Json& value) {
    return Json{{"type", "array"},
                {"items", object_of({{name, text}, {"values", {{"type", "array"}, {"items", value}}}})}};
  };
  auto ids = parameter("jobs", "query", "two to eight ids, each once: \"1,2\"",
                       {{"type", "array"},
                        {"items", whole(1, most)},
                        {"minItems", 2},
                        {"maxItems", most_compared},
                        {"uniqueItems", true}},
                       true);
  ids["explode"] = false;  // 1,2
  return {
      .path = "/v1/comparison",
      .id = "compare_jobs",
      .summary = "Jobs side by side: the newest and best numbers of their runs, and where what was submitted differs",
      .parameters = {ids},
      .result = object_of({{"jobs", {{"type", "array"}, {"items", job_schema()}}},
                           {"figures", rows("name", real)},
                           {"configuration", rows("key", {{"type", {"string", "null"}}})}}),
      .other_results = {{"404", "There is no such job."}, {"503", "It is busy."}},
      .answer = [api](const HttpCall& call) {
        std::vector<Job> jobs;
        for (const auto id : ids_in(call)) jobs.push_back(api.queue.find(id));
        return api.workers.answer([api, jobs] {
          Json shown = Json::array();
          std::vector<Values> figures, configurations;
          for (const auto& job : jobs) {
            shown.push_back(json_of(job));
            figures.push_back(figures_of(api, job));
            configurations.push_back(configuration_of(job));
          }
          return json_response({{"jobs", shown},
                                {"figures", rows_of(figures, "name", false)},
                                {"configuration", rows_of(configurations, "key", true)}});
        });
      }};
}

}  // namespace serve
