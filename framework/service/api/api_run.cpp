// Routes about the run of a job: its numbers, and commands, which go to its callback/control.
#include <vernier/json_in.h>

#include <fstream>
#include <memory>
#include <sstream>

#include "common/scratch_folder.h"
#include "common/trials.h"
#include "service/api/api.h"
#include "service/api/job_check.h"
#include "service/http/run_client.h"
#include "service/http/schema.h"
#include "service/queue/attempt.h"

namespace serve {

using namespace vernier::schema;

namespace {

// A run answers a command after its step, or says so after 20 s.
constexpr auto run_patience = std::chrono::seconds(25), export_patience = std::chrono::seconds(50);

// Asks the control service of a run and returns its answer. Called on a worker's thread.
HttpResponse ask_run(const std::filesystem::path& run, const std::string& who, const std::string& method,
                     const std::string& target, const std::string& body) {
  try {
    const auto url = run.empty() ? "" : read_whole(run / "control.url", 512);
    const auto answer = vernier::ask_run(
        {.url = url, .tokens = read_whole(run / "control.tokens", 64 * 1024), .who = who, .time = run_patience}, method,
        target, body);
    return {.status = answer.status, .body = answer.body, .content_type = "application/json"};
  } catch (const vernier::HttpError& error) {
    throw HttpRefused{409, std::string("the job's run cannot be asked: ") + error.what()};
  }
}

void refuse_without_run(const Job& job) {
  if (job.state != State::running) throw HttpRefused{409, std::string("the job is ") + name_of(job.state)};
}

HttpRoute run_route(const ApiContext& api) {
  return {.path = "/v1/jobs/{id}/run",
          .id = "get_run",
          .summary = "State and step of the job's run, as its callback/control says them",
          .parameters = {job_parameter()},
          .result = {{"type", "object"}, {"properties", {{"state", text}, {"step", integer}, {"steps", integer}}}},
          .other_results = {{"404", "There is no such job."}, {"409", "It has no run now."}, {"503", "It is busy."}},
          .answer = [api](const HttpCall& call) {
            const auto job = job_of(api, call);
            refuse_without_run(job);
            return api.workers.answer(
                [run = api.queue.run_of(job.id), who = call.who] { return ask_run(run, who, "GET", "/v1/run", ""); });
          }};
}

HttpRoute command_route(const ApiContext& api) {
  return {.method = "POST",
          .path = "/v1/jobs/{id}/commands",
          .scope = Scope::control,
          .id = "command_run",
          .summary =
              "Gives the job's run a command, as docs/guides/control.md has them. The answer says after which step it "
              "took effect",
          .parameters = {job_parameter()},
          .body = {{"$ref", "#/components/schemas/Value"},
                   {"type", "object"},
                   {"properties", {{"command", text_schema({})}}},
                   {"required", {"command"}}},
          .result = {{"type", "object"}},
          .other_results = {{"202", "The command waits: the step takes long."},
                            {"404", "There is no such job."},
                            {"409", "It has no run now, or the run takes no commands."},
                            {"503", "It is busy."}},
          .schemas = {{"Value", value_schema({})}},
          .answer = [api](const HttpCall& call) {
            const auto job = job_of(api, call);
            refuse_others(job, call);
            refuse_without_run(job);
            check_command(call.body, api.data);
            note(api, call, "command", {{"job", job.id}, {"command", call.body}});
            return api.workers.answer(
                [run = api.queue.run_of(job.id), who = call.who, body = vernier::json_text(call.body)] {
                  return ask_run(run, who, "POST", "/v1/commands", body);
                });
          }};
}

HttpRoute history_route(const ApiContext& api) {
  return {.path = "/v1/jobs/{id}/history",
          .id = "get_history",
          .summary = "The history of a metric: parts of equally many steps, each as [first step, lowest, highest]",
          .parameters = {job_parameter(), parameter("metric", "query", "its name, \"loss\"", text, true),
                         parameter("points", "query", "parts at most", whole(2, vernier::History::most))},
          .result = history_of(),
          .other_results = {{"404", "There is no such job, or no step has had this metric."}, {"503", "It is busy."}},
          .answer = [api](const HttpCall& call) {
            const auto job = job_of(api, call);
            const auto metric = call.parameters.find("metric");
            if (metric == call.parameters.end()) throw HttpRefused{422, "metric is needed: ?metric=loss"};
            const auto points = call.integer("points", 512, 2, vernier::History::most);
            return api.workers.answer([api, job, points, name = metric->second] {
              const auto history = api.histories.history(api.queue.run_of(job.id), job.attempt, name, points);
              if (history.is_null()) throw HttpRefused{404, "no step has had this metric"};
              return json_response(history);
            });
          }};
}

HttpRoute metrics_route(const ApiContext& api) {
  return {.path = "/v1/jobs/{id}/metrics",
          .id = "list_metrics",
          .summary = "The newest value of each metric of the job's run",
          .parameters = {job_parameter()},
          .result = list_of("metrics", object_of({{"name", text}, {"step", integer}, {"value", real}})),
          .other_results = {{"404", "There is no such job."}, {"503", "It is busy."}},
          .answer = [api](const HttpCall& call) {
            const auto job = job_of(api, call);
            return api.workers.answer(
                [api, job] { return json_response(api.histories.metrics(api.queue.run_of(job.id), job.attempt)); });
          }};
}

// Calls vernier export and tar, on a worker's thread. The archive is sent in parts, since a model may be larger than
// the server's memory, and its folder goes with the last of them.
HttpResponse exported(const ApiContext& api, const std::filesystem::path& run) {
  if (run.empty()) throw HttpRefused{409, "the job has no run, and so no model"};
  const auto until = std::chrono::steady_clock::now() + export_patience;
  const auto folder = std::make_shared<vernier::ScratchFolder>();
  const std::vector<std::string> to_export = {
      api.queue.settings().program, "export", run.string(), "--format", "huggingface", "--output", "model"};
  for (const auto& words : {to_export, {"tar", "-cf", "model.tar", "model"}}) {
    const auto left = std::chrono::ceil<std::chrono::seconds>(until - std::chrono::steady_clock::now());
    const auto [status, printed] = call_confined(api.queue.settings(), words, folder->path(), left, run.string());
    if (status == 124) throw HttpRefused{503, "the export takes too long; call vernier export on the server's machine"};
    if (status != 0) throw HttpRefused{409, "no model: " + vernier::reason_of({status, "", printed})};
  }
  const std::filesystem::path archive = folder->path() + "/model.tar";
  std::filesystem::rename(folder->path() + "/work/model.tar", archive);  // the programs cannot change it there
  if (!is_regular_file(symlink_status(archive))) throw HttpRefused{409, "no model: its archive is a link"};
  HttpResponse response{.content_type = "application/x-tar"};
  response.fields = {{"Content-Length", std::to_string(file_size(archive))}};
  response.more = [folder, file = std::make_shared<std::ifstream>(archive, std::ios::binary)] {
    std::string part(1 << 20, '\0');
    file->read(part.data(), std::ssize(part));
    part.resize(static_cast<std::size_t>(file->gcount()));
    if (part.empty()) throw std::runtime_error("this is the end");  // closes the connection
    return part;
  };
  return response;
}

HttpRoute export_route(const ApiContext& api) {
  return {.path = "/v1/jobs/{id}/model",
          .scope = Scope::control,
          .id = "export_model",
          .summary =
              "The trained language model of a job, as vernier export writes it: a tar archive of a folder that "
              "transformers loads",
          .parameters = {job_parameter()},
          .result_type = "application/x-tar",
          .other_results = {{"404", "There is no such job."},
                            {"409", "It has no checkpoint, or no language model."},
                            {"503", "It is busy, the export takes too long, or the audit log cannot be written."}},
          .answer = [api](const HttpCall& call) {
            const auto job = job_of(api, call);
            refuse_others(job, call);
            note(api, call, "export", {{"job", job.id}});
            return api.workers.answer([api, run = api.queue.run_of(job.id)] { return exported(api, run); });
          }};
}

}  // namespace

std::vector<HttpRoute> run_routes(const ApiContext& api) {
  return {run_route(api), command_route(api), history_route(api), metrics_route(api), export_route(api)};
}

}  // namespace serve
