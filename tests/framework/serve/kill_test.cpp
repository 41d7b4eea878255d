// A server that is killed at random moments loses no job and runs none twice.
#include <algorithm>
#include <random>

#include "job_server.h"
#include "long_form.h"

namespace kill_test {

using namespace job_server;

namespace {

// The status of the answer; 0 where the server was killed before it had answered.
int status_of_asking(int port, const std::string& request) {
  const int socket = connection_to(port);
  if (socket < 0) return 0;
  (void)!::send(socket, request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  char bytes[4096];
  for (ssize_t got = 0; (got = ::recv(socket, bytes, sizeof bytes, 0)) > 0;) {
    answer.append(bytes, static_cast<std::size_t>(got));
  }
  ::close(socket);
  return status_of(answer);
}

std::string submission(const JobServer& server, int number) {
  const auto body = Json{{"config", takes("0.02")}, {"key", "job " + std::to_string(number)}}.dump();
  return request_of(server.port, "POST", "/v1/jobs",
                    {{"Authorization", "Bearer " + server.tokens.at("control")}, {"Content-Type", "application/json"}},
                    body);
}

}  // namespace

TEST_CASE("serve: killed at random moments, it loses no job, and runs none twice") {
  const int kills = is_long() ? 100 : 6;
  std::mt19937 random(1);
  JobServer server({"--cores", "4"});
  int submitted = 0;
  for (int kill = 0; kill < kills; ++kill) {
    CAPTURE(kill);
    std::thread killer([&, microseconds = random() % 120'000] {
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
      server.kill();
    });
    for (int i = 0; i < 8 && status_of_asking(server.port, submission(server, submitted)) == 201; ++i) submitted += 1;
    killer.join();
    server.start();
    // A request without an answer may have been taken nevertheless: a client asks again.
    const int status = status_of_asking(server.port, submission(server, submitted++));
    CHECK((status == 201 || status == 200));
  }
  const auto all_jobs = [&] { return server.get("/v1/jobs?limit=1000").body.at("jobs"); };
  CHECK(wait_until(
      [&] { return std::ranges::all_of(all_jobs(), [](const Json& job) { return job.at("state") == "done"; }); }));
  const auto jobs = all_jobs();
  REQUIRE(std::ssize(jobs) == submitted);
  std::map<std::string, int> begun, ended;
  std::istringstream ledger(server.ledger());
  for (std::string job, what, rest; ledger >> job >> what;) {
    std::getline(ledger, rest);
    (what == "begin" ? begun : ended)[job] += 1;
  }
  std::int64_t attempts = 0;
  for (const auto& job : jobs) {
    const auto name = "job-" + job.at("id").dump();
    CAPTURE(name);
    CHECK(begun[name] == 1);
    CHECK(ended[name] == 1);
    CHECK(job.at("state") == "done");
    attempts += job.at("attempt").get<std::int64_t>();
  }
  MESSAGE(kills, " kills, ", submitted, " jobs, ", attempts - submitted, " attempts that never began");
}

}  // namespace kill_test
