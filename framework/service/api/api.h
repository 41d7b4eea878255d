// The routes of the job server.
#pragma once

#include <filesystem>
#include <vector>

#include "service/api/courses.h"
#include "service/api/live.h"
#include "service/api/workers.h"
#include "service/audit/audit.h"
#include "service/http/http_service.h"
#include "service/queue/queue.h"

namespace serve {

struct ApiOf {
  Queue& queue;
  AuditLog& audit;
  Workers& workers;
  Courses& courses;
  Live& live;
  std::vector<std::filesystem::path> data;    // folders from which jobs may read
  std::vector<std::filesystem::path> models;  // those with a folder for each published model
};

// Called on the server's thread.
std::vector<vernier::HttpRoute> routes(const ApiOf& of);

// Parts of them.
std::vector<vernier::HttpRoute> job_routes(const ApiOf& of);
std::vector<vernier::HttpRoute> run_routes(const ApiOf& of);    // of the run of a job
std::vector<vernier::HttpRoute> first_routes(const ApiOf& of);  // for fine-tuning by name: /finetuning/…
std::vector<vernier::HttpRoute> page_routes();
vernier::HttpRoute comparison_route(const ApiOf& of);

// Shared by all endpoints.
vernier::Json job_parameter();
vernier::Json job_schema();
Job job_of(const ApiOf& of, const vernier::HttpCall& call);         // that of the path; throws HttpRefused with 404
void refuse_others(const Job& job, const vernier::HttpCall& call);  // with 403: the job of another user
// Writes the line before the thing is done; where that fails, throws HttpRefused with 503.
void note(const ApiOf& of, const vernier::HttpCall& call, const char* action, const vernier::Json& details);
// Checks the configuration and puts the job into the queue.
Job submit(const ApiOf& of, const vernier::HttpCall& call, JobRequest request, const vernier::Json& configuration,
           bool& is_new);

}  // namespace serve
