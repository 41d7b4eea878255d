// The queue of `vernier serve`: order, resources, limits, cancelling, trying again, restarts.
#include <algorithm>
#include <fstream>
#include <functional>

#include "job_server.h"

namespace jobs_test {

using namespace job_server;

namespace {

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string id_text(std::int64_t id) {
  return std::to_string(id);
}

// The process of an attempt, the script, and what it has started. Returns how many there were.
int kill_all_of(const std::string& folder) {
  return signal_processes(SIGKILL, [&](const std::string& words, const std::string& here) {
    return here == folder || words.ends_with(folder + '\0');
  });
}

}  // namespace

TEST_CASE("serve: two jobs at once on two cores, in order of priority and age") {
  JobServer server({"--cores", "2", "--gpus", "3"});
  const auto waits = takes("0", "until = \"go\"\n");
  const auto first = server.submit(waits), second = server.submit(waits, {{"gpus", 2}});
  REQUIRE(server.has_begun(first));
  REQUIRE(server.has_begun(second));
  const auto third = server.submit(takes("0"));
  const auto large = server.submit(takes("0", "until = \"large\"\n"), {{"cores", 2}, {"priority", 1}, {"gpus", 3}});
  const auto late = server.submit(takes("0"), {{"priority", 2}});
  auto counts = server.get("/v1/server").body;
  CHECK(counts.at("running") == 2);
  CHECK(counts.at("queued") == 3);
  CHECK(counts.at("cores_in_use") == 2);
  CHECK(counts.at("gpus_in_use") == 2);
  CHECK(counts.at("memory_limits_by") == "server");
  CHECK(server.state(late) == "queued");
  server.go();
  REQUIRE(server.waits_for(late, "done"));
  REQUIRE(server.has_begun(large));
  CHECK(server.state(third) == "queued");  // the large one came first, and has all cores
  server.go("large");
  REQUIRE(server.waits_for(third, "done"));
  const auto ledger = server.ledger();
  CHECK(ledger.find("job-" + id_text(late) + " begin") < ledger.find("job-" + id_text(large) + " begin"));
  CHECK(ledger.find("job-" + id_text(first) + " begin threads=1 gpus=\n") != ledger.npos);
  CHECK(ledger.find("job-" + id_text(second) + " begin threads=1 gpus=0,1\n") != ledger.npos);
  CHECK(ledger.find("job-" + id_text(large) + " begin threads=2 gpus=0,1,2\n") != ledger.npos);
  CHECK(server.get("/v1/server").body.at("cores_in_use") == 0);
}

TEST_CASE("serve: a job that waits for cores lets no smaller one pass") {
  JobServer server({"--cores", "2"});
  const auto first = server.submit(takes("0", "until = \"go\"\n"));
  REQUIRE(server.has_begun(first));
  const auto large = server.submit(takes("0"), {{"cores", 2}});
  const auto small = server.submit(takes("0"));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(server.state(small) == "queued");
  server.go();
  CHECK(server.waits_for(small, "done"));
  const auto ledger = server.ledger();
  CHECK(ledger.find("job-" + id_text(large) + " begin") < ledger.find("job-" + id_text(small) + " begin"));
}

TEST_CASE("serve: a job is cancelled in the queue, while it runs, and where it does not listen") {
  JobServer server({"--cores", "2", "--grace", "1"});
  const auto polite = server.submit(takes(forever)), stubborn = server.submit(takes(forever, "stubborn = true\n"));
  const auto waiting = server.submit(takes("0"));
  REQUIRE(server.has_begun(polite));
  REQUIRE(server.has_begun(stubborn));
  auto answer = server.post("/v1/jobs/" + id_text(waiting) + "/cancel");
  CHECK(answer.status == 200);
  CHECK(answer.body.at("state") == "cancelled");
  for (const auto id : {polite, stubborn}) {
    answer = server.post("/v1/jobs/" + id_text(id) + "/cancel");
    CHECK(answer.status == 200);
    CHECK(answer.body.at("is_ending") == true);
  }
  CHECK(server.waits_for(polite, "cancelled"));
  CHECK(server.waits_for(stubborn, "cancelled"));
  CHECK(server.ledger().find("job-" + id_text(polite) + " end 130") != std::string::npos);
  CHECK(server.ledger().find("job-" + id_text(stubborn) + " end") == std::string::npos);
  CHECK(server.ledger().find("job-" + id_text(waiting)) == std::string::npos);
  CHECK(server.post("/v1/jobs/" + id_text(polite) + "/cancel").status == 409);
  CHECK(server.post("/v1/jobs/99/cancel").status == 404);
}

TEST_CASE("serve: a job that failed says why, and is tried again as often as it may, and by hand") {
  JobServer server;
  const auto id = server.submit(takes("0", "exit = 3\n"), {{"retries", 1}});
  REQUIRE(server.waits_for(id, "failed"));
  auto job = server.job(id);
  CHECK(job.at("attempt") == 2);
  CHECK(job.at("error") == "it ended with exit code 3: trained");
  CHECK(count_of(server.ledger(), "begin") == 2);
  CHECK(count_of(server.log(id), "this is job-1") == 2);
  CHECK(server.post("/v1/jobs/" + id_text(id) + "/retry").body.at("state") == "queued");
  REQUIRE(server.waits_for(id, "failed"));
  CHECK(server.job(id).at("attempt") == 4);
  const auto good = server.submit(takes("0"));
  REQUIRE(server.waits_for(good, "done"));
  CHECK(server.post("/v1/jobs/" + id_text(good) + "/retry").status == 409);
}

TEST_CASE("serve: limits of time, memory, and the size of files end a job, and say so") {
  JobServer server({"--file-size", "1000000", "--grace", "20"});
  const auto slow = server.submit(takes(forever), {{"time_limit", 2}});
  REQUIRE(server.waits_for(slow, "failed"));
  CHECK(server.job(slow).at("error") == "it took longer than its limit of 2 s");
  const auto large = server.submit(takes(forever), {{"memory_limit", 100'000}});
  REQUIRE(server.waits_for(large, "failed"));
  CHECK(server.job(large).at("error") == "it took more memory than its limit of 100000 bytes");
  CHECK(server.ledger().find("end 130") != std::string::npos);  // the first job's end
  const auto fits = server.submit(takes("0", "bytes = 1000000\n")),
             writes = server.submit(takes("0", "bytes = 1000001\n"));
  CHECK(server.waits_for(fits, "done"));
  REQUIRE(server.waits_for(writes, "failed"));
  CHECK(server.job(writes).at("error").get<std::string>().starts_with("it ended with exit code 9"));
}

TEST_CASE("serve: a server that is killed finds its jobs again, and starts none twice") {
  JobServer server({"--cores", "1"});
  const auto running = server.submit(takes("0", "until = \"go\"\n")), waiting = server.submit(takes("0"));
  REQUIRE(server.has_begun(running));
  server.restart();
  CHECK(server.state(running) == "running");
  CHECK(server.state(waiting) == "queued");
  server.kill();
  server.go();  // it ends while there is no server
  REQUIRE(wait_until([&] { return server.ledger().find("job-1 end 0") != std::string::npos; }));
  server.start();
  CHECK(server.waits_for(running, "done"));
  CHECK(server.waits_for(waiting, "done"));
  CHECK(count_of(server.ledger(), "begin") == 2);
  CHECK(server.job(running).at("attempt") == 1);
}

TEST_CASE("serve: a server that ends lets its jobs go on, and a cancelled job ends without it") {
  JobServer server;
  const auto id = server.submit(takes(forever));
  REQUIRE(server.has_begun(id));
  CHECK(server.post("/v1/jobs/" + id_text(id) + "/cancel").status == 200);
  CHECK(server.stop() == 0);
  CHECK(wait_until([&] { return server.ledger().find("end 130") != std::string::npos; }));
  server.start();
  CHECK(server.waits_for(id, "cancelled"));
}

TEST_CASE("serve: a process that outlives its attempt is waited for, and stays no zombie") {
  JobServer server;
  const auto id = server.submit(takes("0", "until = \"go\"\n"));
  REQUIRE(server.has_begun(id));
  std::ofstream(server.path() / "attempts/1/1.done") << R"({"status": 0})";  // the process still runs
  REQUIRE(server.waits_for(id, "done"));
  CHECK(!server.children().empty());
  server.go();
  CHECK(wait_until([&] { return server.children().empty(); }));
}

TEST_CASE("serve: an attempt that a signal interrupts, as at a shutdown, is followed by another one") {
  JobServer server;
  const auto id = server.submit(takes(forever));
  REQUIRE(server.has_begun(id));
  const auto folder = (server.path() / "jobs/1").string();
  signal_processes(SIGTERM,
                   [&](const std::string& words, const std::string&) { return words.ends_with(folder + '\0'); });
  REQUIRE(wait_until([&] { return count_of(server.ledger(), "begin") == 2; }));
  CHECK(server.job(id).at("attempt") == 2);
  CHECK(server.state(id) == "running");
}

TEST_CASE("serve: an attempt that was killed is followed by another one, but not for ever") {
  JobServer server;
  const auto id = server.submit(takes(forever));
  for (int attempt = 1; attempt <= 4; ++attempt) {
    REQUIRE(wait_until([&] { return count_of(server.ledger(), "begin") == static_cast<std::size_t>(attempt); }));
    while (kill_all_of((server.path() / "jobs/1").string()) > 0) {
    }
  }
  REQUIRE(server.waits_for(id, "failed"));
  CHECK(server.job(id).at("error") == "its process was killed or interrupted 4 times");
  CHECK(count_of(server.ledger(), "begin") == 4);
}

TEST_CASE("serve: the same key is the same job, and pages show all jobs once") {
  JobServer server({"--cores", "1"});
  const auto body = Json{{"config", takes("0", "until = \"go\"\n")}, {"key", "one"}}.dump();
  const auto first = server.post("/v1/jobs", body), again = server.post("/v1/jobs", body);
  CHECK(first.status == 201);
  CHECK(first.text.find("Location: /v1/jobs/1\r\n") != std::string::npos);
  CHECK(again.status == 200);
  CHECK(again.body.at("id") == first.body.at("id"));
  const std::pair<const char*, Json> others[] = {
      {"config", takes("0")}, {"priority", 3}, {"retries", 2}, {"name", "other"}, {"time_limit", 77}};
  for (const auto& [part, value] : others) {
    auto other = Json::parse(body);
    other[part] = value;
    const auto refused = server.post("/v1/jobs", other.dump());
    CAPTURE(part);
    CHECK(refused.status == 422);
    CHECK(refused.body.at("detail") ==
          "the key was used for another request; repeat that one as it was, or use another key");
  }
  CHECK(server.get("/v1/jobs").body.at("jobs").size() == 1);
  const auto of_admin = server.ask_as("admin", "POST", "/v1/jobs", body);  // keys are of a user
  CHECK(of_admin.status == 201);
  for (int i = 0; i < 5; ++i) server.submit(takes("0"), {{"name", "job " + std::to_string(i)}});
  std::vector<std::int64_t> seen;
  std::string next;
  do {
    const auto page = server.get("/v1/jobs?limit=3" + next).body;
    for (const auto& job : page.at("jobs")) seen.push_back(job.at("id"));
    next = page.at("next").is_null() ? "" : "&before=" + page.at("next").dump();
  } while (!next.empty());
  CHECK(seen.size() == 7);
  CHECK(std::ranges::is_sorted(seen, std::greater_equal<>()));
  CHECK(server.get("/v1/jobs?state=queued&user=control").body.at("jobs").size() == 5);
  CHECK(server.get("/v1/jobs?state=lost").status == 422);
}

TEST_CASE("serve: a job that is over is removed with its files, by its user alone") {
  JobServer server;
  const auto id = server.submit(takes("0", "until = \"go\"\n"));
  const auto target = "/v1/jobs/" + id_text(id);
  REQUIRE(server.has_begun(id));
  CHECK(server.ask_as("control", "DELETE", target).status == 409);
  server.go();
  REQUIRE(server.waits_for(id, "done"));
  const auto of_admin = server.ask_as("admin", "POST", "/v1/jobs", Json{{"config", takes("0")}}.dump());
  const auto other = "/v1/jobs/" + of_admin.body.at("id").dump();
  REQUIRE(server.waits_for(of_admin.body.at("id"), "done"));
  CHECK(server.ask_as("control", "DELETE", other).status == 403);
  CHECK(fs::exists(server.path() / "jobs/1"));
  CHECK(server.ask_as("control", "DELETE", target).status == 200);
  CHECK(!fs::exists(server.path() / "jobs/1"));
  CHECK(server.get(target).status == 404);
  CHECK(server.ask_as("admin", "DELETE", other).status == 200);
}

TEST_CASE("serve: a log is read in parts of whole lines") {
  JobServer server;
  const auto id = server.submit(takes("0"));
  REQUIRE(server.waits_for(id, "done"));
  const auto part = [&](int offset, int limit) {
    return server.get("/v1/jobs/1/log?offset=" + std::to_string(offset) + "&limit=" + std::to_string(limit)).body;
  };
  CHECK(part(0, 100).at("text") == "this is job-1\ntrained\n");
  CHECK(part(0, 20).at("text") == "this is job-1\n");
  CHECK(part(0, 20).at("next") == 14);
  CHECK(part(14, 20).at("text") == "trained\n");
  CHECK(part(22, 20).at("text") == "");
  CHECK(part(1000, 20).at("text") == "");
  CHECK(server.get("/v1/jobs/1/log?offset=-1").status == 422);
  CHECK(server.get("/v1/jobs/1/log?limit=0").status == 422);
}

TEST_CASE("serve: a second server in the same folder is refused, and so are folders and options that are none") {
  JobServer server;
  const TemporaryFolder folder;
  const auto data = folder.write("file", "");
  fs::create_directory(folder / "open");
  fs::permissions(folder / "open", fs::perms::all);
  const struct {
    std::vector<std::string> words;
    std::string text;
  } cases[] = {{{"serve", server.path().string(), "--listen", "127.0.0.1:0"}, "another server has this folder"},
               {{"serve"}, "name one folder"},
               {{"serve", folder / "file"}, "is not a folder"},
               {{"serve", folder / "new", "--listen", "localhost"}, "is not an address with a port"},
               {{"serve", folder / "new", "--listen", "0.0.0.0:0"}, "is reached by other machines"},
               {{"serve", folder / "new", "--cores", "0"}, "--cores is 0, and must be from 1"},
               {{"serve", folder / "new", "--data", data}, "is not a folder"},
               {{"serve", folder / "new", "--plugin-path", folder / "none"}, "is not a folder"},
               {{"serve", folder / "new", "--sbatch=--partition=main"}, "--sbatch is for --slurm"},
               {{"serve", folder / "open", "--listen", "127.0.0.1:0"}, "others may write to it"}};
  for (const auto& each : cases) {
    std::string command = "exec " VERNIER_BINARY_DIR "/vernier-serve";
    for (std::size_t i = 1; i < each.words.size(); ++i) command += " '" + each.words[i] + "'";
    const auto out = folder / "out";
    const int status = std::system((command + " 2>" + out).c_str());
    CAPTURE(command);
    CHECK(WEXITSTATUS(status) == 2);
    CHECK(read_text(out).find(each.text) != std::string::npos);
  }
}

}  // namespace jobs_test
