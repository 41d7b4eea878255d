// The routes of the job server.
#pragma once

#include <filesystem>
#include <vector>

#include "service/api/live.h"
#include "service/api/metric_histories.h"
#include "service/api/workers.h"
#include "service/audit/audit.h"
#include "service/http/http_service.h"
#include "service/queue/queue.h"

namespace serve {

struct ApiContext {
  Queue& queue;
  AuditLog& audit;
  Workers& workers;
  MetricHistories& histories;
  Live& live;
  std::vector<std::filesystem::path> data;    // folders from which jobs may read
  std::vector<std::filesystem::path> models;  // folders that have a folder for each published model
};

// Called on the server's thread.
std::vector<vernier::HttpRoute> routes(const ApiContext& api);

// Parts of them.
std::vector<vernier::HttpRoute> job_routes(const ApiContext& api);
std::vector<vernier::HttpRoute> run_routes(const ApiContext& api);         // routes about the run of a job
std::vector<vernier::HttpRoute> finetuning_routes(const ApiContext& api);  // for fine-tuning by name: /finetuning/…
std::vector<vernier::HttpRoute> page_routes();
vernier::HttpRoute comparison_route(const ApiContext& api);

// Shared by all endpoints.
vernier::Json job_parameter();
vernier::Json job_schema();
Job job_of(const ApiContext& api, const vernier::HttpCall& call);   // the job in the path; throws HttpRefused with 404
void refuse_others(const Job& job, const vernier::HttpCall& call);  // with 403: the job of another user
// Writes the line before the thing is done; if that fails, throws HttpRefused with 503.
void note(const ApiContext& api, const vernier::HttpCall& call, const char* action, const vernier::Json& details);
// Checks the configuration and puts the job into the queue.
Job submit(const ApiContext& api, const vernier::HttpCall& call, JobRequest request, const vernier::Json& configuration,
           bool& is_new);

}  // namespace serve
