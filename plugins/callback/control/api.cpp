#include "api.h"

#include "service/http/schema.h"

namespace control {

namespace {

using namespace vernier::schema;

Json page_parameters(std::int64_t limit) {
  return {parameter("after", "query", "the id of the last entry that is known", whole(0, most)),
          parameter("limit", "query", "entries at most", whole(1, limit))};
}

HttpRoute run_route(const ApiContext& api) {
  return {.path = "/v1/run",
          .id = "get_run",
          .summary = "Name, state and step of the run, and the status of its precision, as status.json has it",
          .result = object_of({{"name", text},
                               {"state", {{"enum", {"running", "paused", "ended", "failed"}}}},
                               {"step", integer},
                               {"steps", integer},
                               {"device", text},
                               {"version", text},
                               {"learning_rate_factor", {{"type", "number"}}},
                               {"time", real},
                               {"status", {{"type", {"object", "null"}}}}}),
          .answer = [&view = api.view](const HttpCall&) { return json_response(view.run()); }};
}

HttpRoute metrics_route(const ApiContext& api) {
  return {.path = "/v1/metrics",
          .id = "list_metrics",
          .summary = "The newest value of each metric",
          .result = list_of(
              "metrics",
              object_of({{"name", text}, {"step", integer}, {"value", real}, {"unit", text}, {"meaning", text}})),
          .answer = [&view = api.view](const HttpCall&) { return json_response(view.metrics()); }};
}

HttpRoute history_route(const ApiContext& api) {
  return {.path = "/v1/history",
          .id = "get_history",
          .summary =
              "The history of a metric since this process began: parts of equally many steps, each as [first step, "
              "lowest, highest]",
          .parameters = {parameter("metric", "query", "its name, \"loss\"", text, true),
                         parameter("points", "query", "parts at most", whole(2, vernier::History::most))},
          .result = history_of(),
          .other_results = {{"404", "No step has had this metric."}},
          .answer = [&view = api.view](const HttpCall& call) {
            const auto metric = call.parameters.find("metric");
            if (metric == call.parameters.end()) throw HttpRefused{422, "metric is needed: ?metric=loss"};
            const auto history = view.history(metric->second, call.integer("points", 512, 2, vernier::History::most));
            if (history.is_null()) throw HttpRefused{404, "no step has had this metric; see /v1/metrics"};
            return json_response(history);
          }};
}

HttpRoute notices_route(const ApiContext& api) {
  return {.path = "/v1/notices",
          .id = "list_notices",
          .summary = "What was out of the ordinary, the oldest first",
          .parameters = page_parameters(View::most_notices),
          .result = list_of("notices", object_of({{"id", integer}, {"step", integer}, {"name", text}, {"text", text}}),
                            {{"last", integer}}),
          .answer = [&view = api.view](const HttpCall& call) {
            return json_response(
                view.notices(call.integer("after", 0, 0, most), call.integer("limit", 100, 1, View::most_notices)));
          }};
}

HttpRoute configuration_route(const ApiContext& api) {
  return {.path = "/v1/configuration",
          .id = "get_configuration",
          .summary = "The merged configuration with which the run was started, as TOML",
          .result = object_of({{"toml", text}}),
          .answer = [toml = api.configuration](const HttpCall&) {
            return json_response({{"toml", toml}});
          }};
}

HttpRoute memory_route(const ApiContext& api) {
  const Json both = object_of({{"now", {{"type", {"integer", "null"}}}}, {"peak", {{"type", {"integer", "null"}}}}});
  return {.path = "/v1/memory",
          .id = "get_memory",
          .summary =
              "Bytes of the process and of its device; those of tensors on a CPU are 0 unless something counts "
              "them",
          .result = object_of({{"process", both},
                               {"device", text},
                               {"device_total", integer},
                               {"device_free", integer},
                               {"tensors", both}}),
          .answer = [device = api.device](const HttpCall&) { return json_response(View::memory(device)); }};
}

HttpRoute ask_route(const ApiContext& api) {
  return {.method = "POST",
          .path = "/v1/commands",
          .scope = Scope::control,
          .id = "ask",
          .summary = "Gives the run a command. It takes effect between two steps, and the answer says after which",
          .body = command_schema(),
          .result = answered_schema(),
          .other_results = {{"202", "The command waits: the step takes long. Ask /v1/commands/{id} later."},
                            {"409", "The run takes no commands, or has ended."},
                            {"503", "Too many commands wait."}},
          .schemas = {{"Option", option_schema()}},
          .answer = [&board = api.board, why = api.no_commands](const HttpCall& call) {
            auto command = command_of(call.body);
            if (!why.empty()) throw HttpRefused{409, why};
            const auto id = board.ask(std::move(command), call.from.empty() ? call.who : call.from);
            HttpResponse response;
            response.later = [&board, id](bool last) -> std::optional<HttpResponse> {
              const auto found = board.find(id).value_or(Json::object());
              const bool is_there = found.value("state", "waiting") != "waiting";
              if (!is_there && !last) return std::nullopt;
              auto answer = json_response(found, is_there ? 200 : 202);
              answer.fields.emplace_back("Location", "/v1/commands/" + std::to_string(id));
              return answer;
            };
            return response;
          }};
}

HttpRoute commands_route(const ApiContext& api) {
  return {.path = "/v1/commands",
          .id = "list_commands",
          .summary = "The commands that this process was given, the oldest first",
          .parameters = page_parameters(Board::most_kept),
          .result = list_of("commands", answered_schema()),
          .answer = [&board = api.board](const HttpCall& call) {
            return json_response({{"commands", board.list(call.integer("after", 0, 0, most),
                                                          call.integer("limit", 100, 1, Board::most_kept))}});
          }};
}

HttpRoute command_route(const ApiContext& api) {
  return {.path = "/v1/commands/{id}",
          .id = "get_command",
          .summary = "A command, and what became of it",
          .parameters = {parameter("id", "path", "its number", whole(1, most), true)},
          .result = answered_schema(),
          .other_results = {{"404", "There is no such command."}},
          .answer = [&board = api.board](const HttpCall& call) {
            const auto found = board.find(call.integer("id", 0, 1, most));
            if (!found) throw HttpRefused{404, "this process has no such command; see commands.jsonl for older ones"};
            return json_response(*found);
          }};
}

}  // namespace

std::vector<HttpRoute> routes(const ApiContext& api) {
  std::vector<HttpRoute> all = {
      run_route(api),
      metrics_route(api),
      history_route(api),
      notices_route(api),
      configuration_route(api),
      memory_route(api),
      events_route(api.view.events(), "Server-sent events: step, validation, notice, command, state, gap"),
      ask_route(api),
      commands_route(api),
      command_route(api)};
  for (auto& page : page_routes()) all.push_back(std::move(page));
  return all;
}

}  // namespace control
