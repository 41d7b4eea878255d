// The endpoints for fine-tuning by name, /finetuning/…: each request becomes a job, or returns the state of one.
#include <vernier/json_in.h>

#include <algorithm>
#include <mutex>

#include "common/scratch_folder.h"
#include "common/trials.h"
#include "service/api/advice.h"
#include "service/api/api.h"
#include "service/api/finetuning_jobs.h"
#include "service/api/job_check.h"
#include "service/http/schema.h"
#include "service/queue/attempt.h"

namespace serve {

using namespace vernier::schema;

namespace {

const Json number_or_null = {{"type", {"number", "null"}}}, integer_or_null = {{"type", {"integer", "null"}}};
const Json boolean = {{"type", "boolean"}}, texts = {{"type", "array"}, {"items", text}};
const Json gigabytes = {{"type", {"number", "null"}},
                        {"description",
                         "by how much the peak memory of a step is below that of the same step in float32, in 10^9 "
                         "bytes; null: it is not measured yet, or the job is in float32"}};

// Becomes part of the name of the job, so that statistics find it again.
const Json user_schema = {
    {"anyOf", {Json{{"type", "string"}, {"pattern", "^[A-Za-z0-9._@-]{1,64}$"}}, whole(0, most)}},
    {"description", "whom the caller does it for: a note on the job, which belongs to the user of the token"}};

std::string user_in(const HttpCall& call) {
  if (!call.body.contains("user_id")) return "";
  const auto& given = call.body["user_id"];
  if (const auto number = whole_in(given, 0, most)) return std::to_string(*number);
  const auto user = given.is_string() ? given.get<std::string>() : "";
  const bool is_name = !user.empty() && user.size() <= 64 && std::ranges::all_of(user, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '@' || c == '-';
  });
  if (is_name) return user;
  throw HttpRefused{422, "user_id must be a whole number, or have the letters of a name: a-z, A-Z, 0-9 and ._@-"};
}

// The jobs of these endpoints have the name of the endpoint, and behind a colon the user_id of the request.
std::string name_of_job(const char* path, const std::string& user) {
  return path + 1 + (user.empty() ? "" : ":" + user);
}
bool is_of_these(const Job& job) {
  return job.request.name.starts_with("finetuning/") || job.request.name.starts_with("train/mixed-precision");
}
std::string user_of(const Job& job) {
  const auto colon = job.request.name.find(':');
  return colon == std::string::npos ? job.request.user : job.request.name.substr(colon + 1);
}

void refuse_unknown(const Json& body, const Json& properties) {
  for (const auto& [name, value] : body.items()) {
    if (!properties.contains(name)) throw HttpRefused{422, "this request has no " + name + "; see /v1/openapi.json"};
  }
}

Json job_answer_schema() {
  return object_of(
      {{"job_id", integer_or_null},
       {"status", text},
       {"error", {{"type", {"string", "null"}}, {"description", "why it failed, or why it still waits"}}},
       {"user_id", text},
       {"model_path", {{"type", {"string", "null"}}, {"description", "the folder of the run, with checkpoints"}}},
       {"enabled", boolean},
       {"mixed_precision_enabled", boolean},
       {"gradient_accumulation_enabled", boolean},
       {"effective_batch_size",
        {{"type", {"number", "null"}},
         {"description", "mean number of samples of an update of this run; null before the run has ended"}}},
       {"memory_savings_gb", gigabytes},
       {"scaler_scale", number_or_null},
       {"overflow_count", integer_or_null},
       {"underflow_count", integer_or_null},
       {"warnings", texts},
       {"statistics", {{"type", {"object", "null"}}}}});
}

// The outcome of a job, from summary.json once the run is over. Numbers that are not known yet are null.
Json statistics_of(const Json& summary) {
  if (!summary.is_object()) return nullptr;
  Json statistics = Json::object();
  for (const char* key : {"steps", "updates_applied", "updates_skipped", "amp", "loss", "validation_loss"}) {
    if (summary.contains(key)) statistics[key] = summary[key];
  }
  for (const char* key : {"seconds", "samples_per_second", "peak_memory_bytes"}) {
    const auto found = vernier::value_at(summary, "/this_process/" + std::string(key));
    if (!found.is_null()) statistics[key] = found;
  }
  return statistics;
}

Json answer_of(const ApiContext& api, const Job& job, const Json& warnings = Json::array()) {
  auto run = api.queue.run_of(job.id);
  const auto summary = run.empty() ? Json() : vernier::json_in<Json>(read_whole(run / "summary.json"));
  if (run.empty()) run = api.queue.folder_of(job.id) / "run";
  const auto settings = settings_of(job.request.config);
  const auto of_run = [&](const char* place) { return vernier::value_at(summary, place); };
  const bool has_trained = of_run("/steps") > 0;
  const bool is_mixed = has_trained ? of_run("/amp/amp_steps") > 0 : settings.is_mixed;
  const auto samples = has_trained ? Json(of_run("/samples").get<double>() / of_run("/steps").get<double>()) : Json();
  return {{"job_id", job.id},
          {"status", name_of(job.state)},
          {"error", job.error.empty() ? Json() : Json(job.error)},
          {"user_id", user_of(job)},
          {"model_path", run.string()},
          {"enabled", is_mixed},
          {"mixed_precision_enabled", is_mixed},
          {"gradient_accumulation_enabled", settings.accumulates},
          {"effective_batch_size", samples},
          {"memory_savings_gb", of_run("/amp/avg_memory_savings")},
          {"scaler_scale", of_run("/amp/current_scale")},
          {"overflow_count", of_run("/amp/overflow_count")},
          {"underflow_count", of_run("/amp/underflow_count")},
          {"warnings", warnings},
          {"statistics", statistics_of(summary)}};
}

// The settings of mixed precision that a user has set up, or all users for "", the newest last. They are in the
// server's folder, as a list of {"user", "model_name", "mixed_precision_config"}.
Json setups_of(const ApiContext& api, const std::string& user) {
  const auto written = read_whole(api.queue.settings().folder / "setups.json", 64 << 20);
  Json setups = Json::array();
  for (const auto& setup : written.empty() ? setups : Json::parse(written)) {
    if (user.empty() || setup["user"] == user) setups.push_back(setup);
  }
  return setups;
}

void keep_setup(const ApiContext& api, const Json& setup) {
  static std::mutex one;
  const std::lock_guard lock(one);
  Json setups = Json::array();
  for (const auto& each : setups_of(api, "")) {
    if (each["user"] != setup["user"] || each["model_name"] != setup["model_name"]) setups.push_back(each);
  }
  setups.push_back(setup);
  write_durably(api.queue.settings().folder / "setups.json", vernier::json_text(setups) + "\n");
}

// The request, with the settings that its user has set up for its model, if it has none of its own.
Json with_setup(const ApiContext& api, const HttpCall& call) {
  auto body = call.body;
  for (const auto& setup : setups_of(api, call.who)) {
    const bool is_its = !call.body.contains("mixed_precision_config") && setup["model_name"] == body["model_name"];
    if (is_its) body["mixed_precision_config"] = setup["mixed_precision_config"];
  }
  return body;
}

// Throws HttpRefused with 422 if `vernier train` would refuse the configuration before it reads data. Called on a
// worker's thread.
void refuse_wrong(const ApiContext& api, const Json& config) {
  const vernier::ScratchFolder scratch;
  std::filesystem::create_directory(scratch.path() + "/work");
  write_durably(scratch.path() + "/work/job.toml", checked_configuration(config, api.data));
  const auto& settings = api.queue.settings();
  const auto [status, printed] = call_confined(settings, {settings.program, "check", "job.toml", "--options"},
                                               scratch.path(), std::chrono::seconds(30));
  const vernier::Ended ended{status, "", printed};
  if (vernier::is_refusal(ended)) throw HttpRefused{422, in_words_of_requests(vernier::reason_of(ended))};
}

// The scale with which a training with these settings begins; null: its loss is not scaled.
Json first_scale(const Json& tables) {
  return tables.contains("scaler") ? tables["scaler"].value("init_scale", Json(65536)) : Json();
}

HttpRoute training_route(const ApiContext& api, const char* path, const char* id, FinetuningKind kind,
                         const char* summary) {
  auto properties = finetuning_properties();
  properties["user_id"] = user_schema;
  return {.method = "POST",
          .path = path,
          .scope = Scope::control,
          .id = id,
          .summary = summary,
          .body = {{"type", "object"},
                   {"properties", properties},
                   {"required", {"model_name", "dataset_config"}},
                   {"additionalProperties", false}},
          .result = job_answer_schema(),
          .other_results = {{"202", "The job is in the queue; Location says where to ask for it."},
                            {"503", "The queue is full, or the audit log cannot be written."}},
          .answer = [api, properties, path, kind](const HttpCall& call) {
            refuse_unknown(call.body, properties);
            const auto& limits = api.queue.settings().limits;
            auto made = finetuning_job_of(kind, with_setup(api, call), ModelFolders(api.models));
            const JobRequest request{.user = call.who,
                                     .name = name_of_job(path, user_in(call)),
                                     .key = "",
                                     .config = "",
                                     .texts_name = made.texts_name,
                                     .texts = made.texts,
                                     .time_limit = limits.time_limit,
                                     .memory_limit = limits.memory_limit};
            const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(50);
            return api.workers.answer([api, call, request, made, until] {
              refuse_wrong(api, made.config);
              if (std::chrono::steady_clock::now() > until) {  // the client has no answer, and may ask again
                throw HttpRefused{503, "the server has too much to do; ask again later"};
              }
              bool is_new = false;
              const auto job = submit(api, call, request, made.config, is_new);
              auto answer = json_response(answer_of(api, job, made.warnings), 202);
              answer.fields.emplace_back("Location", "/v1/jobs/" + std::to_string(job.id));
              return answer;
            });
          }};
}

HttpRoute setup_route(const ApiContext& api) {
  auto body = precision_schema();
  body["properties"]["model_name"] = text;
  body["properties"]["user_id"] = user_schema;
  return {.method = "POST",
          .path = "/finetuning/setup-mixed-precision",
          .scope = Scope::control,
          .id = "setup_mixed_precision",
          .summary =
              "Keeps settings of mixed precision for the trainings of a model that have none of their own, and answers "
              "with the tables of a configuration that they are. Without a model, it only checks them",
          .body = body,
          .result = object_of({{"model_name", {{"type", {"string", "null"}}}},
                               {"enabled", boolean},
                               {"scaler_scale", number_or_null},
                               {"warnings", texts},
                               {"config", {{"type", "object"}}}}),
          .other_results = {{"503", "It is busy, or the audit log cannot be written."}},
          .answer = [api](const HttpCall& call) {
            auto settings = call.body;
            user_in(call);
            settings.erase("user_id");
            const auto model = settings.value("model_name", Json());
            if (!model.is_null()) {
              if (!model.is_string()) throw HttpRefused{422, "model_name must be a text"};
              ModelFolders(api.models).find(model.get<std::string>());
            }
            settings.erase("model_name");
            Json warnings = Json::array(), training = {{"run", {{"steps", 1}}},
                                                       {"task", {{"use", "gpt"}, {"data", {"texts"}}}},
                                                       {"optimizer", {{"use", "adamw"}}}};
            const auto tables = precision_tables(settings, &warnings);
            training.update(tables, /*merge_objects=*/true);
            return api.workers.answer([api, call, settings, model, tables, training, warnings] {
              refuse_wrong(api, training);
              if (model.is_string()) {
                const Json setup = {{"user", call.who}, {"model_name", model}, {"mixed_precision_config", settings}};
                note(api, call, "setup", setup);
                keep_setup(api, setup);
              }
              return json_response({{"model_name", model},
                                    {"enabled", settings_of(checked_configuration(tables, {})).is_mixed},
                                    {"scaler_scale", first_scale(tables)},
                                    {"warnings", warnings},
                                    {"config", tables}});
            });
          }};
}

// Without a job, what there is to say before the first one: what the newest setup says.
Json nothing_yet(const std::string& user, const Json& setups) {
  const auto tables = setups.empty() ? Json::object() : precision_tables(setups.back()["mixed_precision_config"]);
  const bool is_mixed = !setups.empty() && settings_of(checked_configuration(tables, {})).is_mixed;
  return {{"job_id", nullptr},
          {"status", "none"},
          {"error", nullptr},
          {"user_id", user},
          {"model_path", nullptr},
          {"enabled", is_mixed},
          {"mixed_precision_enabled", is_mixed},
          {"gradient_accumulation_enabled", false},
          {"effective_batch_size", nullptr},
          {"memory_savings_gb", nullptr},
          {"scaler_scale", first_scale(tables)},
          {"overflow_count", nullptr},
          {"underflow_count", nullptr},
          {"warnings", Json::array()},
          {"statistics", nullptr}};
}

HttpRoute stats_route(const ApiContext& api) {
  auto result = job_answer_schema();
  result["properties"]["setups"] = {{"type", "array"}, {"items", {{"type", "object"}}}};
  return {
      .method = "GET",
      .path = "/finetuning/mixed-precision-stats",
      .id = "get_mixed_precision_stats",
      .summary = "What became of a job of these endpoints: of job_id, or the newest, or that of user_id",
      .parameters = {parameter("job_id", "query", "its number", whole(1, most)),
                     parameter("user_id", "query",
                               "of a request; without it, the newest job of the token's user, and of all users for a "
                               "token of the scope read",
                               text)},
      .result = result,
      .other_results = {{"404", "There is no such job."}, {"503", "It is busy."}},
      .answer = [api](const HttpCall& call) {
        const auto wanted = call.integer("job_id", 0, 1, most);
        const auto given = call.parameters.find("user_id");
        const bool is_any = given == call.parameters.end();
        // A token of the scope read has no jobs of its own, and sees all.
        const auto owner = call.scope == Scope::read ? std::string() : call.who;
        const auto setups = setups_of(api, owner);
        const auto jobs = api.queue.list({.before = wanted > 0 ? wanted + 1 : 0,
                                          .limit = wanted > 0 ? 1 : 1000,
                                          .state = "",
                                          .user = wanted > 0 || !is_any ? "" : owner});
        const auto found = std::ranges::find_if(jobs, [&](const Job& job) {
          const bool is_wanted = wanted > 0 ? job.id == wanted : is_any || user_of(job) == given->second;
          return is_of_these(job) && is_wanted;
        });
        if (found == jobs.end() && wanted > 0) throw HttpRefused{404, "there is no such job of these endpoints"};
        if (found == jobs.end()) {
          auto none = nothing_yet(is_any ? call.who : given->second, is_any ? setups : Json::array());
          none["setups"] = setups;
          return json_response(none);
        }
        return api.workers.answer([api, setups, job = api.queue.find(found->id)] {
          auto answer = answer_of(api, job);
          answer["setups"] = setups;
          return json_response(answer);
        });
      }};
}

const Json advice_properties = {{"model_name", text},
                                {"gpu_memory_gb", {{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 1e6}}},
                                {"batch_size", whole(1, 1 << 20)},
                                {"user_id", user_schema}};

HttpRoute advice_route(const ApiContext& api) {
  return {.method = "POST",
          .path = "/finetuning/optimize-mixed-precision",
          .scope = Scope::control,
          .id = "optimize_mixed_precision",
          .summary =
              "Measures a few steps of a model, and says whether mixed precision pays on this server. Trains nothing",
          .body = {{"type", "object"},
                   {"properties", advice_properties},
                   {"required", {"model_name"}},
                   {"additionalProperties", false}},
          .result = object_of({{"should_use_mixed_precision", boolean},
                               {"recommendations", texts},
                               {"request", {{"type", "object"}}},
                               {"reason", text},
                               {"settings", {{"type", "object"}}},
                               {"warnings", texts},
                               {"evidence", {{"type", "array"}, {"items", {{"type", "object"}}}}}}),
          .other_results = {{"503", "The server measures for somebody else, or has too much to do."}},
          .answer = [api](const HttpCall& call) {
            refuse_unknown(call.body, advice_properties);
            user_in(call);
            if (!call.body.contains("model_name") || !call.body["model_name"].is_string()) {
              throw HttpRefused{422, "model_name is needed: the name of a model of this server"};
            }
            AdviceRequest request{.model = ModelFolders(api.models).find(call.body["model_name"].get<std::string>())};
            if (call.body.contains("gpu_memory_gb")) {
              const auto& given = call.body["gpu_memory_gb"];
              if (!given.is_number() || !(given.get<double>() > 0) || given.get<double>() > 1e6) {
                throw HttpRefused{422, "gpu_memory_gb must be a number above 0, to 1000000"};
              }
              request.gigabytes = given.get<double>();
            }
            if (call.body.contains("batch_size")) {
              const auto batch = whole_in(call.body["batch_size"], 1, 1 << 20);
              if (!batch) throw HttpRefused{422, "batch_size must be a whole number from 1 to 1048576"};
              request.batch_size = *batch;
            }
            note(api, call, "advise", {{"model", call.body["model_name"]}});
            const auto program = api.queue.settings().program;
            return api.workers.answer([program, request] { return json_response(advice_on(program, request)); });
          }};
}

}  // namespace

std::vector<HttpRoute> finetuning_routes(const ApiContext& api) {
  return {setup_route(api),
          stats_route(api),
          advice_route(api),
          training_route(api, "/finetuning/mixed-precision", "finetune", FinetuningKind::finetune,
                         "A job that trains a model on texts in mixed precision"),
          training_route(api, "/finetuning/optimized", "finetune_optimized", FinetuningKind::optimized,
                         "The same with gradient accumulation and less memory"),
          training_route(api, "/train/mixed-precision", "train", FinetuningKind::finetune,
                         "The same as /finetuning/mixed-precision")};
}

}  // namespace serve
