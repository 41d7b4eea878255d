#include "service/api/api.h"

#include <vernier/json_text.h>

#include <algorithm>
#include <tuple>

#include "common/text/control_characters.h"
#include "service/api/job_check.h"
#include "service/http/schema.h"

namespace serve {

using namespace vernier::schema;

namespace {

constexpr std::int64_t most_queued = 10'000, most_seconds = 10LL * 365 * 24 * 3600, most_bytes = 1LL << 50;
constexpr std::int64_t most_log = 256 * 1024;  // bytes in one answer

const Json choice_of_states = {{"enum", state_names}};

Json list_of_parts(const ApiContext& api) {
  const auto& settings = api.queue.settings();
  const Json toml = {{"type", "string"},
                     {"minLength", 1},
                     {"contentMediaType", "application/toml"},
                     {"description", "the same as TOML"}};
  const Json line = {
      {"type", "string"},
      {"maxLength", 200},
      {"pattern",
       "^[^\\u0000-\\u001f\\u007f-\\u009f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060\\u2066-\\u2069\\ufeff]*$"}};
  auto key = line;
  key["description"] =
      "the same request with the same key again is the same job; another request with it is refused with 422";
  return {{"config", {{"anyOf", {configuration_schema(), toml}}}},
          {"name", line},
          {"key", key},
          {"priority", whole(-100, 100)},
          {"cores", whole(1, settings.cores)},
          {"gpus", whole(0, settings.gpus)},
          // 0: that of the server
          {"time_limit", whole(0, settings.limits.time_limit > 0 ? settings.limits.time_limit : most_seconds)},
          {"memory_limit", whole(0, settings.limits.memory_limit > 0 ? settings.limits.memory_limit : most_bytes)},
          {"retries", whole(0, 100)}};
}

std::string text_in(const Json& body, const char* name) {
  if (!body.contains(name)) return "";
  if (!body[name].is_string()) throw HttpRefused{422, std::string(name) + " must be a text"};
  const auto text = body[name].get<std::string>();
  // Those that nobody sees, and ends of lines.
  constexpr const char* unseen[] = {"\u200b", "\u2028", "\u2029", "\u2060", "\ufeff"};
  const auto has = [&](const char* each) { return text.find(each) != text.npos; };
  const bool is_plain = !vernier::has_control_character(text) && std::ranges::none_of(unseen, has);
  const auto characters = std::ranges::count_if(text, [](unsigned char c) { return (c & 0xC0) != 0x80; });  // in UTF-8
  if (characters > 200 || !is_plain) {
    throw HttpRefused{422, std::string(name) + " must have at most 200 characters, and no control characters"};
  }
  return text;
}

// The schema has the range.
std::int64_t integer_in(const Json& body, const Json& parts, const char* name, std::int64_t fallback) {
  if (!body.contains(name)) return fallback;
  const auto least = parts[name]["minimum"].get<std::int64_t>(), largest = parts[name]["maximum"].get<std::int64_t>();
  if (const auto whole = whole_in(body[name], least, largest)) return *whole;
  throw HttpRefused{422, std::string(name) + " must be a whole number from " + std::to_string(least) + " to " +
                             std::to_string(largest)};
}

HttpRoute submit_route(const ApiContext& api) {
  const Json parts = list_of_parts(api);
  return {
      .method = "POST",
      .path = "/v1/jobs",
      .scope = Scope::control,
      .id = "submit_job",
      .summary = "Puts a job into the queue",
      .body = {{"type", "object"}, {"properties", parts}, {"required", {"config"}}, {"additionalProperties", false}},
      .result = job_schema(),
      .other_results = {{"201", "The job is in the queue; Location says where to ask for it."},
                        {"503", "The queue is full, or the audit log cannot be written."}},
      .schemas = {{"Value", value_schema({})}},  // it is public, and names no folders
      .answer = [api, parts](const HttpCall& call) {
        for (const auto& [name, value] : call.body.items()) {
          if (!parts.contains(name)) throw HttpRefused{422, "a job has no " + name + "; see /v1/openapi.json"};
        }
        if (!call.body.contains("config")) throw HttpRefused{422, "config is needed: TOML text or a JSON object"};
        bool is_new = false;
        const auto job = submit(api, call,
                                {.user = call.who,
                                 .name = text_in(call.body, "name"),
                                 .key = text_in(call.body, "key"),
                                 .config = "",
                                 .texts_name = "",
                                 .texts = "",
                                 .priority = integer_in(call.body, parts, "priority", 0),
                                 .cores = integer_in(call.body, parts, "cores", 1),
                                 .gpus = integer_in(call.body, parts, "gpus", 0),
                                 .time_limit = integer_in(call.body, parts, "time_limit", 0),
                                 .memory_limit = integer_in(call.body, parts, "memory_limit", 0),
                                 .retries = integer_in(call.body, parts, "retries", 0)},
                                call.body["config"], is_new);
        auto answer = json_response(json_of(job), is_new ? 201 : 200);
        answer.fields.emplace_back("Location", "/v1/jobs/" + std::to_string(job.id));
        return answer;
      }};
}

HttpRoute list_route(const ApiContext& api) {
  return {.path = "/v1/jobs",
          .id = "list_jobs",
          .summary = "Jobs, the newest first. next is the value of before for the next page, null on the last one",
          .parameters = {parameter("before", "query", "ids below it", whole(1, most)),
                         parameter("limit", "query", "jobs at most", whole(1, 1000)),
                         parameter("state", "query", "only jobs in it", choice_of_states),
                         parameter("user", "query", "only jobs of this user", text)},
          .result = list_of("jobs", job_schema(), {{"next", {{"type", {"integer", "null"}}}}}),
          .answer = [api](const HttpCall& call) {
            const auto given = [&](const char* name) {
              const auto found = call.parameters.find(name);
              return found == call.parameters.end() ? "" : found->second;
            };
            Journal::Page page{.before = call.integer("before", 0, 1, most),
                               .limit = call.integer("limit", 100, 1, 1000) + 1,
                               .state = given("state"),
                               .user = given("user")};
            if (call.parameters.contains("state") && std::ranges::find(state_names, page.state) == state_names.end()) {
              throw HttpRefused{422, "state must be one of " + vernier::json_text(Json(state_names))};
            }
            auto jobs = api.queue.list(page);
            const bool has_more = std::ssize(jobs) == page.limit;
            if (has_more) jobs.pop_back();
            Json all = Json::array();
            for (const auto& job : jobs) all.push_back(json_of(job));
            return json_response({{"jobs", all}, {"next", has_more ? Json(jobs.back().id) : Json(nullptr)}});
          }};
}

HttpRoute show_route(const ApiContext& api) {
  auto schema = job_schema();
  schema["properties"]["config"] = text;
  return {.path = "/v1/jobs/{id}",
          .id = "get_job",
          .summary = "A job, with its configuration as TOML",
          .parameters = {job_parameter()},
          .result = schema,
          .other_results = {{"404", "There is no such job."}},
          .answer = [api](const HttpCall& call) {
            const auto job = job_of(api, call);
            auto shown = json_of(job);
            shown["config"] = job.request.config;
            return json_response(shown);
          }};
}

HttpRoute remove_route(const ApiContext& api) {
  return {.method = "DELETE",
          .path = "/v1/jobs/{id}",
          .scope = Scope::control,
          .id = "remove_job",
          .summary = "Removes a job that is over, with its files",
          .parameters = {job_parameter()},
          .result = object_of({{"id", integer}}),
          .other_results = {{"404", "There is no such job."},
                            {"409", "The job is not over."},
                            {"503", "The audit log cannot be written."}},
          .answer = [api](const HttpCall& call) {
            const auto job = job_of(api, call);
            refuse_others(job, call);
            note(api, call, "remove", {{"job", job.id}});
            api.queue.remove(job.id);
            return json_response({{"id", job.id}});
          }};
}

HttpRoute act_route(const ApiContext& api, const char* action, const char* summary, Job (Queue::*act)(std::int64_t)) {
  return {.method = "POST",
          .path = std::string("/v1/jobs/{id}/") + action,
          .scope = Scope::control,
          .id = std::string(action) + "_job",
          .summary = summary,
          .parameters = {job_parameter()},
          .result = job_schema(),
          .other_results = {{"404", "There is no such job."},
                            {"409", "The job is in another state."},
                            {"503", "The audit log cannot be written."}},
          .answer = [api, action, act](const HttpCall& call) {
            const auto job = job_of(api, call);
            refuse_others(job, call);
            note(api, call, action, {{"job", job.id}});
            return json_response(json_of((api.queue.*act)(job.id)));
          }};
}

// Returns whole lines if there are any, so that no character is cut.
std::string slice(const std::filesystem::path& file, std::int64_t offset, std::int64_t limit) {
  auto text = read_part(file, offset, static_cast<std::size_t>(limit));
  const auto end = text.rfind('\n');
  if (end != text.npos && std::ssize(text) == limit) text.resize(end + 1);
  return text;
}

HttpRoute log_route(const ApiContext& api) {
  return {.path = "/v1/jobs/{id}/log",
          .id = "get_log",
          .summary =
              "What the job's attempts have printed, from a byte on. To follow it, ask again from next on until "
              "the job is over and there is no more",
          .parameters = {job_parameter(), parameter("offset", "query", "the first byte", whole(0, most)),
                         parameter("limit", "query", "bytes at most", whole(1, most_log))},
          .result = object_of({{"text", text}, {"next", integer}, {"state", choice_of_states}}),
          .other_results = {{"404", "There is no such job."}},
          .answer = [api](const HttpCall& call) {
            const auto job = job_of(api, call);  // its state before its log: none of an ended one is missed
            const auto offset = call.integer("offset", 0, 0, most);
            const auto log =
                slice(api.queue.folder_of(job.id) / "log", offset, call.integer("limit", most_log, 1, most_log));
            return json_response({{"text", log}, {"next", offset + std::ssize(log)}, {"state", name_of(job.state)}});
          }};
}

HttpRoute server_route(const ApiContext& api) {
  return {.path = "/v1/server",
          .id = "get_server",
          .summary = "What the server has, how much of it is in use, and the folders from which jobs may read",
          .result = object_of({{"version", text},
                               {"cores", integer},
                               {"cores_in_use", integer},
                               {"gpus", integer},
                               {"gpus_in_use", integer},
                               {"queued", integer},
                               {"running", integer},
                               {"memory_limits_by", {{"enum", {"server", "slurm"}}}},
                               {"data", {{"type", "array"}, {"items", text}}}}),
          .answer = [api](const HttpCall&) {
            const auto counts = api.queue.counts();
            Json data = Json::array();
            for (const auto& folder : api.data) data.push_back(folder.string());
            return json_response({{"version", VERNIER_VERSION},
                                  {"cores", api.queue.settings().cores},
                                  {"cores_in_use", counts.cores_in_use},
                                  {"gpus", api.queue.settings().gpus},
                                  {"gpus_in_use", counts.gpus_in_use},
                                  {"queued", counts.queued},
                                  {"running", counts.running},
                                  {"memory_limits_by", api.queue.settings().uses_slurm ? "slurm" : "server"},
                                  {"data", data}});
          }};
}

}  // namespace

Json job_parameter() {
  return parameter("id", "path", "its number", whole(1, most), true);
}

Json job_schema() {
  const Json when = {{"type", {"string", "null"}}, {"format", "date-time"}};
  return object_of({{"id", integer},
                    {"name", text},
                    {"user", text},
                    {"state", choice_of_states},
                    {"is_ending", {{"type", "boolean"}}},
                    {"attempt", integer},
                    {"priority", integer},
                    {"cores", integer},
                    {"gpus", integer},
                    {"time_limit", integer},
                    {"memory_limit", integer},
                    {"retries", integer},
                    {"slurm", {{"type", "string"}, {"description", "its number at Slurm; empty without Slurm"}}},
                    {"created", when},
                    {"started", when},
                    {"ended", when},
                    {"error", text}});
}

Job job_of(const ApiContext& api, const HttpCall& call) {
  return api.queue.find(call.integer("id", 0, 1, most));
}

void refuse_others(const Job& job, const HttpCall& call) {
  if (call.scope >= Scope::admin || job.request.user == call.who) return;
  throw HttpRefused{403, "the job is another user's; that needs a token of the scope admin"};
}

void note(const ApiContext& api, const HttpCall& call, const char* action, const Json& details) {
  try {
    api.audit.add(call.who, action, details);
  } catch (const std::exception& error) {
    throw HttpRefused{503, error.what()};
  }
}

// A key stands for one request, as in the IETF's draft of Idempotency-Key. Limits that are not asked for are the
// server's, which may have changed.
void refuse_another_request(const JobRequest& asked, const JobRequest& before) {
  const auto parts = [](const JobRequest& all) {
    return std::tie(all.name, all.config, all.texts_name, all.texts, all.priority, all.cores, all.gpus, all.retries);
  };
  const auto differs = [](std::int64_t limit, std::int64_t other) { return limit != 0 && limit != other; };
  if (parts(asked) == parts(before) && !differs(asked.time_limit, before.time_limit) &&
      !differs(asked.memory_limit, before.memory_limit)) {
    return;
  }
  throw HttpRefused{422, "the key was used for another request; repeat that one as it was, or use another key"};
}

Job submit(const ApiContext& api, const HttpCall& call, JobRequest request, const Json& configuration, bool& is_new) {
  request.config = checked_configuration(configuration, api.data);
  const auto asked = request;
  const auto& limits = api.queue.settings().limits;
  if (request.time_limit == 0) request.time_limit = limits.time_limit;
  if (request.memory_limit == 0) request.memory_limit = limits.memory_limit;
  if (api.queue.counts().queued >= most_queued) throw HttpRefused{503, "the queue is full"};
  note(api, call, "submit", {{"name", request.name}, {"cores", request.cores}, {"gpus", request.gpus}});
  const auto job = [&] {
    try {
      return api.queue.submit(request, is_new);
    } catch (const std::runtime_error& error) {  // a full disk
      throw HttpRefused{503, error.what()};
    }
  }();
  note(api, call, is_new ? "accepted" : "known", {{"job", job.id}});
  if (!is_new) refuse_another_request(asked, api.queue.find(job.id).request);
  return job;
}

std::vector<HttpRoute> job_routes(const ApiContext& api) {
  return {submit_route(api),
          list_route(api),
          show_route(api),
          remove_route(api),
          log_route(api),
          server_route(api),
          act_route(api, "cancel", "Ends a job: at once in the queue, else after its step, with a checkpoint",
                    &Queue::cancel),
          act_route(api, "retry",
                    "Puts a job that failed or was cancelled back into the queue; it goes on from its last "
                    "checkpoint",
                    &Queue::retry)};
}

std::vector<HttpRoute> routes(const ApiContext& api) {
  auto all = job_routes(api);
  all.push_back(comparison_route(api));
  all.push_back(vernier::events_route(
      api.live.events(),
      "Server-sent events: job (it changed), removed, step (the newest numbers of a job's run), log (how many bytes it "
      "has), gap"));
  for (auto& more : {run_routes(api), finetuning_routes(api), page_routes()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace serve
