// The endpoints of the first service: each becomes a job, or says what became of one.
#include <algorithm>

#include "service/api/api.h"
#include "service/api/first_jobs.h"
#include "service/api/job_check.h"
#include "service/http/schema.h"
#include "service/queue/attempt.h"

namespace serve {

using namespace vernier::schema;

namespace {

const Json gigabytes = {{"type", {"number", "null"}},
                        {"description",
                         "less peak memory than the newest job of this user that is the same in float32; null: there "
                         "is none that is done"}};

Json summary_of(const ApiOf& of, const Job& job) {
  const auto run = of.queue.run_of(job.id);
  return run.empty() ? Json() : Json::parse(read_whole(run / "summary.json"), nullptr, /*allow_exceptions=*/false);
}

Json peak_of(const Json& summary) {
  const bool is_there =
      summary.is_object() && summary.contains("this_process") && summary["this_process"].contains("peak_memory_bytes");
  return is_there ? summary["this_process"]["peak_memory_bytes"] : Json();
}

// Measured, or null.
Json savings_of(const ApiOf& of, const Job& job, const Json& summary) {
  const auto rest = rest_of(job.request.config);
  const auto peak = peak_of(summary);
  if (job.state != State::done || rest.is_float32 || !peak.is_number()) return nullptr;
  for (const auto& listed : of.queue.list({.before = 0, .limit = 1000, .state = "done", .user = job.request.user})) {
    const auto other = of.queue.find(listed.id);  // with its texts
    if (other.request.texts != job.request.texts) continue;
    const auto its = rest_of(other.request.config);
    const auto its_peak = its.is_float32 && its.text == rest.text ? peak_of(summary_of(of, other)) : Json();
    if (its_peak.is_number()) return (its_peak.get<double>() - peak.get<double>()) / 1e9;
  }
  return nullptr;
}

Json job_answer_schema() {
  return object_of({{"job_id", integer},
                    {"status", text},
                    {"user_id", text},
                    {"model_path", {{"type", "string"}, {"description", "the folder of the run, with checkpoints"}}},
                    {"memory_savings_gb", gigabytes},
                    {"statistics", {{"type", {"object", "null"}}}}});
}

// Statistics are those of summary.json, once the run is over.
Json answer_of(const ApiOf& of, const Job& job) {
  auto run = of.queue.run_of(job.id);
  const auto summary = summary_of(of, job);
  Json statistics = nullptr;
  if (summary.is_object()) {
    statistics = Json::object();
    for (const char* key : {"steps", "updates_applied", "updates_skipped", "amp", "loss", "validation_loss"}) {
      if (summary.contains(key)) statistics[key] = summary[key];
    }
    if (summary.contains("this_process")) {
      for (const char* key : {"seconds", "samples_per_second", "peak_memory_bytes"}) {
        if (summary["this_process"].contains(key)) statistics[key] = summary["this_process"][key];
      }
    }
  }
  if (run.empty()) run = of.queue.folder_of(job.id) / "run";
  return {{"job_id", job.id},
          {"status", name_of(job.state)},
          {"user_id", job.request.user},
          {"model_path", run.string()},
          {"memory_savings_gb", savings_of(of, job, summary)},
          {"statistics", statistics}};
}

// The body's user must be the token's, but for administrators, who may give jobs to others.
std::string user_in(const HttpCall& call) {
  if (!call.body.contains("user_id")) return call.who;
  if (!call.body["user_id"].is_string()) throw HttpRefused{422, "user_id must be a text"};
  const auto user = call.body["user_id"].get<std::string>();
  if (user == call.who) return user;
  if (call.scope < Scope::admin)
    throw HttpRefused{403, "user_id is another user; that needs a token of the scope admin"};
  const bool is_name = !user.empty() && user.size() <= 64 && std::ranges::all_of(user, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '@' || c == '-';
  });
  if (!is_name) throw HttpRefused{422, "user_id must have the letters of a name: a-z, A-Z, 0-9 and ._@-"};
  return user;
}

HttpRoute post_route(const ApiOf& of, const char* path, const char* id, FirstKind kind, const char* summary) {
  const bool takes_texts = kind != FirstKind::train;
  const Json user = {{"type", "string"}, {"pattern", "^[A-Za-z0-9._@-]{1,64}$"}};
  Json properties = {{"user_id", user}, {"training_args", training_schema()}};
  if (takes_texts) {
    properties["texts"] = {{"type", "array"}, {"items", text}, {"minItems", 1}};
    properties["max_length"] = length_schema();
    properties["model"] = text_schema({});
    properties["model"]["minLength"] = 1;
    properties["model"]["description"] =
        "folder of a published model, below a data folder; without: bytes, from scratch";
    properties["config"] = precision_schema(/*may_scale=*/kind != FirstKind::optimize);
  } else {
    properties["config"] = configuration_schema();
    properties["mixed_precision"] = precision_schema(/*may_scale=*/true);
  }
  return {.method = "POST",
          .path = path,
          .scope = Scope::control,
          .id = id,
          .summary = summary,
          .body = {{"type", "object"},
                   {"properties", properties},
                   {"required", {takes_texts ? "texts" : "config"}},
                   {"additionalProperties", false}},
          .result = job_answer_schema(),
          .other_results = {{"202", "The job is in the queue; Location says where to ask for it."},
                            {"503", "The queue is full, or the audit log cannot be written."}},
          .schemas = {{"Value", value_schema({})}},
          .answer = [of, properties, path, kind](const HttpCall& call) {
            for (const auto& [name, value] : call.body.items()) {
              if (!properties.contains(name)) throw HttpRefused{422, "this request has no " + name};
            }
            const auto& limits = of.queue.settings().limits;
            JobRequest request{.user = user_in(call),
                               .name = path + 1,
                               .key = "",
                               .config = "",
                               .texts_name = "",
                               .texts = "",
                               .time_limit = limits.time_limit,
                               .memory_limit = limits.memory_limit};
            FirstJob made;
            try {
              made = first_job_of(kind, call.body, of.data);
            } catch (const NotAllowed& refused) {
              throw HttpRefused{422, refused.what()};
            }
            request.texts_name = made.texts_name;
            request.texts = made.texts;
            bool is_new = false;
            const auto job = submit(of, call, request, made.config, is_new);
            auto answer = json_response(answer_of(of, job), 202);
            answer.fields.emplace_back("Location", "/v1/jobs/" + std::to_string(job.id));
            return answer;
          }};
}

HttpRoute setup_route() {
  auto body = object_of({{"config", precision_schema(/*may_scale=*/true)}});
  body["additionalProperties"] = false;
  return {.method = "POST",
          .path = "/finetuning/setup-mixed-precision",
          .scope = Scope::control,
          .id = "setup_mixed_precision",
          .summary = "Checks settings of mixed precision, and answers with the tables of a configuration that they are",
          .body = body,
          .result = object_of({{"config", {{"type", "object"}}}}),
          .answer = [](const HttpCall& call) {
            if (!call.body.contains("config") || !call.body["config"].is_object() || call.body.size() != 1) {
              throw HttpRefused{422, "config is needed, an object, and nothing else"};
            }
            try {
              const auto tables = precision_tables(call.body["config"]);
              checked_configuration(tables, {});
              return json_response({{"config", tables}});
            } catch (const NotAllowed& refused) {
              throw HttpRefused{422, refused.what()};
            }
          }};
}

HttpRoute stats_route(const ApiOf& of) {
  return {
      .method = "GET",
      .path = "/finetuning/mixed-precision-stats",
      .id = "get_mixed_precision_stats",
      .summary = "What became of a job of these endpoints: of job_id, or the newest of user_id",
      .parameters = {parameter("job_id", "query", "its number", whole(1, most)),
                     parameter("user_id", "query", "whose newest one; without it, that of the token", text)},
      .result = job_answer_schema(),
      .other_results = {{"404", "There is no such job."}, {"503", "It is busy."}},
      .answer = [of](const HttpCall& call) {
        const auto wanted = call.integer("job_id", 0, 1, most);
        const auto given = call.parameters.find("user_id");
        const auto user = given == call.parameters.end() ? call.who : given->second;
        const auto jobs = of.queue.list({.before = wanted > 0 ? wanted + 1 : 0,
                                         .limit = wanted > 0 ? 1 : 1000,
                                         .state = "",
                                         .user = wanted > 0 ? "" : user});
        const auto found = std::ranges::find_if(jobs, [&](const Job& job) {
          const bool is_of_these =
              job.request.name.starts_with("finetuning/") || job.request.name == "train/mixed-precision";
          return is_of_these && (wanted == 0 || job.id == wanted);
        });
        if (found == jobs.end()) throw HttpRefused{404, "there is no such job of these endpoints"};
        return of.workers.answer([of, job = of.queue.find(found->id)] { return json_response(answer_of(of, job)); });
      }};
}

}  // namespace

std::vector<HttpRoute> first_routes(const ApiOf& of) {
  return {setup_route(),
          stats_route(of),
          post_route(of, "/finetuning/mixed-precision", "finetune", FirstKind::finetune,
                     "A job that trains on texts in mixed precision"),
          post_route(of, "/finetuning/optimized", "finetune_optimized", FirstKind::optimized,
                     "The same with less memory: micro-batches that fit, recomputed activations, 8-bit optimizer"),
          post_route(of, "/finetuning/optimize-mixed-precision", "optimize_mixed_precision", FirstKind::optimize,
                     "The same in the precision that suits the server's device"),
          post_route(of, "/train/mixed-precision", "train", FirstKind::train,
                     "A job of any configuration, with settings of mixed precision")};
}

}  // namespace serve
