// Data for the page of `vernier serve`: events of jobs and their runs, jobs side by side, and the document as a page.
#include <atomic>
#include <fstream>

#include "job_server.h"
#include "service/api/workers.h"
#include "service/http/event_ring.h"

namespace live_test {

using namespace job_server;

namespace {

constexpr const char* waits = "seconds = 0\nuntil = \"go\"\n";

// A stream of events.
class Stream {
 public:
  explicit Stream(const JobServer& server, const std::string& last = "") : connection_(server.port) {
    Fields fields = {{"Authorization", "Bearer " + server.tokens.at("read")}};
    if (!last.empty()) fields.emplace_back("Last-Event-ID", last);
    connection_.send(request_of(server.port, "GET", "/v1/events", fields));
    seen_ = connection_.read("retry: 2000\n\n");
    CHECK(status_of(seen_) == 200);
  }
  // Until an event has this text: all that came, from the first one on.
  const std::string& read(const std::string& text) {
    if (seen_.find(text) == seen_.npos) seen_ += connection_.read(text);
    CHECK(seen_.find(text) != seen_.npos);
    return seen_;
  }

 private:
  Connection connection_;
  std::string seen_;
};

// Writes the files that a training would have written.
void write_run(const JobServer& server, std::int64_t id, const std::string& losses, const std::string& summary = "") {
  const auto run = server.path() / "jobs" / std::to_string(id) / "run";
  fs::create_directories(run);
  std::ofstream(run / "config.toml") << "";
  std::ofstream(run / "losses.jsonl", std::ios::app) << losses;
  if (!summary.empty()) std::ofstream(run / "summary.json") << summary;
}

Json row_of(const Json& rows, const char* key, const std::string& name) {
  for (const auto& row : rows) {
    if (row.at(key) == name) return row.at("values");
  }
  return nullptr;
}

}  // namespace

TEST_CASE("serve: events say what becomes of jobs, and the newest numbers and bytes of the log of those that run") {
  JobServer server;
  Stream stream(server);
  const auto id = server.submit(std::string("[script]\n") + waits, {{"name", "mine"}});
  CHECK(stream.read("\"state\":\"queued\"").find("event: job\ndata: {\"id\":1,\"name\":\"mine\"") != std::string::npos);
  stream.read("\"state\":\"running\"");
  REQUIRE(server.has_begun(id));
  CHECK(stream.read("event: log\ndata: {\"job\":1,\"bytes\":14}").find("gap") == std::string::npos);
  write_run(server, id, "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":1.5,\"grad_norm\":0.5}\n{\"step\":3,\"lo");
  stream.read("event: step\ndata: {\"job\":1,\"step\":2,\"grad_norm\":0.5,\"loss\":1.5}");
  write_run(server, id, "ss\":1.25}\n");
  stream.read("event: step\ndata: {\"job\":1,\"step\":3,\"loss\":1.25}");
  server.go();
  stream.read("\"state\":\"done\"");
  CHECK(server.ask_as("control", "DELETE", "/v1/jobs/1").status == 200);
  const auto last = stream.read("event: removed\ndata: {\"id\":1}\n\n");
  const auto at = last.rfind("id: ", last.find("event: removed"));
  // Whoever was away gets what came meanwhile.
  const auto before = std::stoll(last.substr(at + 4)) - 1;
  CHECK(Stream(server, std::to_string(before)).read("event: removed").find("event: job") == std::string::npos);
  CHECK(server.ask_as("read", "GET", "/v1/events?job=1").status == 422);
}

TEST_CASE("serve: the numbers of a run are those of its lines, whatever else these have") {
  JobServer server;
  const auto id = server.submit(std::string("[script]\n") + waits);
  REQUIRE(server.has_begun(id));
  const std::string long_text(3 << 20, 'x');
  write_run(server, id,
            "{\"step\":1,\"loss\":4,\"updates\":1}\n"
            "{\"updates\":2,\"loss\":3,\"step\":2}\n"                // another order
            "{\"step\":3,\"lr\":1e-3,\"loss\":2.5,\"updates\":3}\n"  // another metric between them
            "{\"step\":4,\"loss\":\"nan\",\"lr\":\"-inf\",\"updates\":4}\n"
            "{\"step\":5,\"notices\":[{\"name\":\"step_skipped\",\"text\":\"" +
                long_text +
                "\"}]}\n"
                "{\"step\":6,\"loss\":\"other\",\"a\\\"b\":1}\n"
                "no JSON\n"
                "\n"
                "{\"step\":7,\"loss\":1.5, \"updates\":-7}\n"
                "{\"step\":8,\"loss\":0.5");
  const auto metrics = [&] { return server.get("/v1/jobs/1/metrics").body.at("metrics").dump(); };
  CHECK(metrics() == R"([{"name":"a\"b","step":6,"value":1.0},{"name":"loss","step":7,"value":1.5},)"
                     R"({"name":"lr","step":3,"value":0.001},{"name":"updates","step":7,"value":-7.0}])");
  const auto losses = [&] { return server.get("/v1/jobs/1/history?metric=loss").body.at("points").dump(); };
  CHECK(losses() == "[[1,4.0,4.0],[2,3.0,3.0],[3,2.5,2.5],[7,1.5,1.5]]");
  write_run(server, id, "}\n{\"step\":9,\"loss\":0.25}\n");
  CHECK(losses() == "[[1,4.0,4.0],[2,3.0,3.0],[3,2.5,2.5],[7,1.5,1.5],[8,0.5,0.5],[9,0.25,0.25]]");
  fs::remove(server.path() / "jobs/1/run/losses.jsonl");  // a resumed run cuts its file
  write_run(server, id, "{\"step\":1,\"loss\":4,\"updates\":1}\n");
  CHECK(losses() == "[[1,4.0,4.0]]");
  CHECK(metrics() == R"([{"name":"loss","step":1,"value":4.0},{"name":"updates","step":1,"value":1.0}])");
  server.go();
}

TEST_CASE("serve: after a restart, the history of a million steps is read within a second") {
  JobServer server;
  const auto id = server.submit(std::string("[script]\n") + waits);
  REQUIRE(server.has_begun(id));
  std::string lines;
  for (int step = 1; step <= 1'000'000; ++step) {
    const auto number = std::to_string(step);
    lines += "{\"step\":" + number + ",\"loss\":" + number +
             ".5,\"grad_norm\":1.1422687768936157,\"learning_rate\":" + "0.004997132727488861,\"updates\":" + number +
             "}\n";
  }
  write_run(server, id, lines);
  auto least = std::chrono::duration<double>::max();
  for (int i = 0; i < 3 && least > std::chrono::seconds(1); ++i) {
    server.restart();
    const auto begin = std::chrono::steady_clock::now();
    const auto points = server.get("/v1/jobs/1/history?metric=loss&points=512").body.at("points");
    least = std::min<std::chrono::duration<double>>(least, std::chrono::steady_clock::now() - begin);
    REQUIRE(points.size() > 256);
    CHECK(points.front().at(1) == 1.5);
    CHECK(points.back().at(2) == 1'000'000.5);
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(least.count() < patience::limit(1));
#endif
  server.go();
}

TEST_CASE("serve: jobs side by side") {
  JobServer server({"--cores", "3"});
  const auto first = server.submit(std::string("[script]\nrate = 0.1\nsame = 3\n") + waits, {{"name", "first"}});
  const auto second = server.submit(std::string("[script]\nrate = 0.2\nsame = 3\nmore = [1, 2]\n") + waits);
  const auto third = server.submit("[script]\nrate = 0.1\nsame = 3\nuntil = \"go\"\nseconds = 0\n");
  for (const auto id : {first, second}) REQUIRE(server.has_begun(id));
  write_run(server, first, "{\"step\":7,\"loss\":0.5}\n", R"({"loss": {"final": 0.5, "best": 0.25}})");
  write_run(server, second, "{\"step\":8,\"loss\":0.75,\"scale\":2}\n");
  const auto answer = server.get("/v1/comparison?jobs=2,1");
  CHECK(answer.status == 200);
  CHECK(answer.body.at("jobs").at(1).at("name") == "first");
  const auto& figures = answer.body.at("figures");
  CHECK(row_of(figures, "name", "loss") == Json({0.75, 0.5}));
  CHECK(row_of(figures, "name", "step") == Json({8, 7}));
  CHECK(row_of(figures, "name", "scale") == Json({2.0, nullptr}));
  CHECK(row_of(figures, "name", "loss best") == Json({nullptr, 0.25}));
  const auto& differences = answer.body.at("configuration");
  CHECK(differences.size() == 2);
  CHECK(row_of(differences, "key", "script.rate") == Json({"0.2", "0.1"}));
  CHECK(row_of(differences, "key", "script.more") == Json({"[1,2]", nullptr}));
  const auto same = server.get("/v1/comparison?jobs=1," + std::to_string(third)).body;
  CHECK(same.at("configuration").empty());
  const std::pair<const char*, int> refused[] = {
      {"", 422},           {"?jobs=1", 422},    {"?jobs=1,1", 422}, {"?jobs=1,x", 422},
      {"?jobs=1,-2", 422}, {"?jobs=1,2,", 422}, {"?jobs=1,9", 404}, {"?jobs=1,2,3,4,5,6,7,8,9", 422}};
  for (const auto& [query, status] : refused) {
    CAPTURE(query);
    CHECK(server.get(std::string("/v1/comparison") + query).status == status);
  }
  server.go();
}

TEST_CASE("serve: the document is shown as a page, by files of the program alone") {
  JobServer server;
  for (const auto* path : {"/", "/api"}) {
    const auto page = ask(server.port, request_of(server.port, "GET", path));
    CAPTURE(path);
    CHECK(status_of(page) == 200);
    CHECK(page.find("Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'") != page.npos);
    int files = 0;
    for (const char* attribute : {"src=\"", "rel=\"stylesheet\" href=\""}) {
      for (auto at = page.find(attribute); at != page.npos; at = page.find(attribute, at + 1)) {
        const auto begin = page.find('"', at + std::string(attribute).size() - 1) + 1;
        const auto name = page.substr(begin, page.find('"', begin) - begin);
        CAPTURE(name);
        REQUIRE(name.starts_with('/'));
        CHECK(status_of(ask(server.port, request_of(server.port, "GET", name))) == 200);
        files += 1;
      }
    }
    CHECK(files >= 3);
    CHECK(page.find("style=") == page.npos);
    CHECK(page.find("<script>") == page.npos);
  }
}

TEST_CASE("http: a stream that fell behind gets a gap with what it lost, and goes on from the oldest event") {
  vernier::EventRing ring;
  std::int64_t id = 7;
  CHECK(ring.after(id).empty());
  CHECK(id == 0);  // a service that was restarted has fewer
  for (int i = 1; i <= 1500; ++i) ring.add("step", {{"step", i}});
  CHECK(ring.last() == 1500);
  std::string all;
  for (id = 0; id < 1500;) all += ring.after(id);
  CHECK(all.starts_with("event: gap\ndata: {\"lost\":476}\n\nid: 477\nevent: step\ndata: {\"step\":477}\n\n"));
  CHECK(all.ends_with("id: 1500\nevent: step\ndata: {\"step\":1500}\n\n"));
  CHECK(ring.after(id).empty());
  CHECK_FALSE(ring.has_streams());
  vernier::HttpCall call;
  call.last_event = "1499";
  auto stream = ring.stream(call);
  CHECK(ring.has_streams());
  CHECK(stream.more() == "retry: 2000\n\nid: 1500\nevent: step\ndata: {\"step\":1500}\n\n");
  CHECK(stream.more().empty());
  stream = {};
  CHECK_FALSE(ring.has_streams());
  call.last_event = "x";
  CHECK_THROWS_AS(ring.stream(call), vernier::HttpRefused);
}

TEST_CASE("serve: answers that were ready before there was a server to wake are sent when there is one") {
  serve::Workers workers;
  const auto response = workers.answer([] { return vernier::HttpResponse{}; });
  REQUIRE(wait_until([&] { return response.later(false).has_value(); }));
  std::atomic<int> wakes = 0;
  workers.on_answer([&] { wakes += 1; });
  CHECK(wakes >= 1);
  const int before = wakes;
  for (int i = 0; i < 2; ++i) workers.answer([] { return vernier::HttpResponse{}; });
  CHECK(wait_until([&] { return wakes >= before + 2; }));  // one of them may be for the answer above
  workers.stop();
}

}  // namespace live_test
