// Who may ask `vernier serve` for what, and what becomes of requests that are none.
#include <sys/stat.h>

#include <map>
#include <random>

#include "job_server.h"
#include "long_form.h"

namespace routes_test {

using namespace job_server;

namespace {

struct Route {
  std::string method, target, scope;  // scope: "" for an open one
};

// All that the document has: it is made of the table of routes.
std::vector<Route> routes_of(const JobServer& server) {
  std::vector<Route> routes;
  const auto document = Json::parse(body_of(ask(server.port, request_of(server.port, "GET", "/v1/openapi.json"))));
  CHECK(document.at("openapi") == "3.1.0");
  for (const auto& [path, methods] : document.at("paths").items()) {
    auto target = path;
    if (const auto brace = target.find('{'); brace != target.npos) {
      target.replace(brace, target.find('}') - brace + 1, "1");
    }
    for (const auto& [method, operation] : methods.items()) {
      auto name = method;
      for (auto& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      routes.push_back({name, target, operation.value("x-scope", "")});
    }
  }
  return routes;
}

int status(const JobServer& server, const Route& route, const Fields& fields) {
  const Connection connection(server.port);
  connection.send(request_of(server.port, route.method, route.target, fields));
  return status_of(connection.read("\r\n\r\n"));  // a stream has no end
}

Fields bearer(const std::string& token) {
  return {{"Authorization", "Bearer " + token}};
}

}  // namespace

TEST_CASE("serve: every route refuses without a token, with a wrong or expired one, and with too small a scope") {
  JobServer server;
  const std::string expired(40, 'e'), later(40, 'l');
  const auto file = server.path() / "tokens";
  std::ofstream(file, std::ios::app) << "admin " << expired << " eve 2020-01-01T00:00:00Z\n"
                                     << "control " << later << " bob 2100-01-01T00:00:00Z\n";
  REQUIRE(wait_until([&] { return server.ask_as(later, "GET", "/v1/jobs").status == 200; }));
  int tried = 0;
  for (const auto& route : routes_of(server)) {
    CAPTURE(route.method);
    CAPTURE(route.target);
    for (const auto* other : {"PUT", "TRACE", "OPTIONS", "PATCH", "get"}) {
      CHECK(status_of(ask(server.port, request_of(server.port, other, route.target))) == 405);
    }
    if (route.scope.empty()) {
      CHECK(status(server, route, {}) == 200);
      continue;
    }
    tried += 1;
    const auto& good = server.tokens.at("admin");
    CHECK(status(server, route, {}) == 401);
    for (const auto& token : {std::string("x"), good + "x", good.substr(1), expired}) {
      const int refused = status(server, route, bearer(token));
      CHECK((refused == 401 || refused == 429));
    }
    CHECK(status(server, route, {{"Authorization", good}}) != 200);
    if (route.scope != "read") CHECK(status(server, route, bearer(server.tokens.at("read"))) == 403);
    for (const Fields& other : {Fields{{"Host", "evil.example"}}, Fields{{"Origin", "http://evil.example"}},
                                Fields{{"Sec-Fetch-Site", "cross-site"}}}) {
      auto fields = bearer(good);
      fields.insert(fields.end(), other.begin(), other.end());
      CHECK(status(server, route, fields) == 403);
    }
    // A good one gets to the route: there is no job 1, and neither body nor parameter.
    const int passed = status(server, route, bearer(good));
    CHECK((passed == 200 || passed == 404 || passed == 415 || passed == 422));
  }
  CHECK(tried >= 18);
  const auto answer = server.ask_as("read", "GET", "/v1/server");
  CHECK(answer.text.find("Content-Security-Policy: default-src 'none'") != std::string::npos);
  CHECK(server.server_log().find(expired) == std::string::npos);
}

TEST_CASE("serve: an expired token is named as such, and a name of a token is the user of its jobs") {
  JobServer server;
  const std::string expired(40, 'e'), alice(40, 'a'), bob(40, 'b');
  std::ofstream(server.path() / "tokens", std::ios::app) << "control " << expired << " eve 2020-01-01T00:00:00Z\n"
                                                         << "control " << alice << " alice\n"
                                                         << "control " << bob << " bob 2100-01-01T00:00:00Z\n";
  const auto body = Json{{"config", takes(forever)}}.dump();
  REQUIRE(wait_until([&] { return server.ask_as(alice, "GET", "/v1/jobs").status == 200; }));
  const auto refused = server.ask_as(expired, "GET", "/v1/jobs");
  CHECK(refused.status == 401);
  CHECK(refused.body.at("detail") == "this token has expired; ask for another one");
  CHECK(server.ask_as(alice, "POST", "/v1/jobs", body).body.at("user") == "alice");
  for (const auto* action : {"/cancel", "/retry", "/commands"}) {
    const auto others = server.ask_as(bob, "POST", std::string("/v1/jobs/1") + action, "{}");
    CHECK((others.status == 403 || others.status == 400));
    const auto without_body = server.ask_as(bob, "POST", std::string("/v1/jobs/1") + action);
    CHECK((without_body.status == 403 || without_body.status == 415));
  }
  CHECK(server.ask_as(bob, "DELETE", "/v1/jobs/1").status == 403);
  CHECK(server.state(1) != "cancelled");
  CHECK(server.ask_as(alice, "POST", "/v1/jobs/1/cancel").status == 200);
  // Who did what.
  const auto audit = read_text(server.path() / "audit.jsonl");
  CHECK(audit.find("\"who\":\"alice\",\"action\":\"cancel\",\"job\":1") != std::string::npos);
  for (const auto& token : {expired, alice, bob}) CHECK(audit.find(token) == std::string::npos);
}

TEST_CASE("serve: tokens that are no tokens are refused at the start") {
  const struct {
    std::string text, refused;
  } cases[] = {{"# x\n", "has no tokens"},
               {"control short\n", "line 1 must be"},
               {"root " + std::string(40, 'x') + "\n", "line 1 must be"},
               {"open " + std::string(40, 'x') + "\n", "line 1 must be"},
               {"# x\ncontrol " + std::string(40, 'x') + " a/b\n", "line 2 has a name"},
               {"control " + std::string(40, 'x') + " a tomorrow\n", "line 1 has a time"},
               {"control " + std::string(40, 'x') + " a 2026-01-01T00:00:00Zx\n", "line 1 has a time"},
               {"control " + std::string(40, 'x') + " a 2026-01-01T00:00:00Z b\n", "line 1 must be"}};
  for (const auto& [text, refused] : cases) {
    const TemporaryFolder folder;
    fs::permissions(folder.path(), fs::perms::owner_all);
    ::chmod(folder.write("tokens", text).c_str(), 0600);
    const auto out = folder / "out";
    const int status = std::system(
        ("exec " VERNIER_BINARY_DIR "/vernier-serve " + folder.path().string() + " --listen 127.0.0.1:0 2>" + out)
            .c_str());
    CAPTURE(text);
    CHECK(WEXITSTATUS(status) == 2);
    CHECK(read_text(out).find(refused) != std::string::npos);
  }
}

TEST_CASE("serve: bodies that are no jobs are refused, and the server goes on") {
  JobServer server({"--cores", "2", "--time-limit", "100"});
  const std::string good = takes("0");
  const auto with = [&](const char* key, const Json& value) {
    Json body = {{"config", good}};
    body[key] = value;
    return body.dump();
  };
  const struct {
    std::string body;
    int status;
  } cases[] = {{"{", 400},
               {"[]", 422},
               {"3", 422},
               {"{}", 422},
               {R"({"config": null})", 422},
               {R"({"config": 3})", 422},
               {R"({"config": "[a"})", 422},
               {R"({"config": "[task]\nuse = \"../x\""})", 422},
               {R"({"config": "[task]\ndata = \"/etc/passwd\""})", 422},
               {R"({"config": {"task": {"data": "/etc/passwd"}}})", 422},
               {"{\"config\": \"\xff\xfe\"}", 400},
               {std::string(20, '[') + std::string(20, ']'), 422},
               {with("cores", 0), 422},
               {with("cores", 3), 422},
               {with("cores", 1.5), 422},
               {with("cores", "1"), 422},
               {with("cores", 18446744073709551615U), 422},
               {with("gpus", 1), 422},
               {with("time_limit", 101), 422},
               {with("priority", 101), 422},
               {with("retries", -1), 422},
               {with("name", std::string(201, 'x')), 422},
               {with("key", "\x7f"), 422},
               {with("name", "a\nb"), 422},
               {with("name", 3), 422},
               {with("key", Json::array()), 422},
               {with("user", "root"), 422},
               {std::string((1 << 20) + 1, ' '), 413}};
  for (const auto& [body, status] : cases) {
    CAPTURE(body.substr(0, 100));
    const auto answer = server.post("/v1/jobs", body);
    CHECK(answer.status == status);
    CHECK(answer.text.find("application/problem+json") != std::string::npos);
  }
  CHECK(server.get("/v1/jobs").body.at("jobs").empty());
  // As schemas of JSON have them: characters, and whole numbers.
  std::string longest;
  for (int i = 0; i < 200; ++i) longest += "\u00e9";
  CHECK(server.submit(good, {{"name", longest}, {"cores", 2.0}}) == 1);
}

TEST_CASE("serve: targets and requests that are no such thing are refused, and the server goes on") {
  JobServer server({"--cores", "2"});
  for (const auto* target :
       {"/v1/jobs/0", "/v1/jobs/-1", "/v1/jobs/x", "/v1/jobs/1%00", "/v1/jobs/99999999999999999999", "/v1/jobs/1/",
        "/v1/jobs//log", "/v1/jobs/1/log/x", "/v1/jobs/../tokens", "/v1/jobs?limit=0", "/v1/jobs?limit=1001",
        "/v1/jobs?limit=1&limit=2", "/v1/jobs?other=1"}) {
    CAPTURE(target);
    const int status = server.get(target).status;
    CHECK((status == 404 || status == 422));
  }
  for (const std::string& text :
       {std::string("GET /v1/jobs\r\n\r\n"), std::string("\0\1\2\r\n\r\n", 7), std::string("GET / HTTP/9.9\r\n\r\n")}) {
    const auto answer = ask(server.port, text);
    CHECK((answer.empty() || status_of(answer) == 400));
  }
  CHECK(server.submit(takes("0"), {}) == 1);
}

namespace {

// Returns how often each status was the answer; 0: the connection was cut off.
std::map<int, int> ask_with_mistakes(const JobServer& server, std::mt19937& random, int count) {
  const auto& token = server.tokens.at("admin");
  const Fields fields = {{"Authorization", "Bearer " + token}, {"Content-Type", "application/json"}};
  const auto request = [&](const char* method, const char* target, const std::string& body = "") {
    return request_of(server.port, method, target, fields, body);
  };
  const std::string seeds[] = {
      request("GET", "/v1/jobs?limit=3&state=queued"),
      request("GET", "/v1/jobs/1/history?metric=loss&points=10"),
      request("GET", "/v1/jobs/1/log?offset=0&limit=10"),
      request("POST", "/v1/jobs",
              R"({"config": {"task": {"use": "mlp", "data": ["a", "b"]}}, "cores": 1, "key": "k"})"),
      request("POST", "/v1/jobs", R"({"config": "[task]\nuse = \"mlp\"\n[[callback]]\nuse = \"x\"", "name": "n"})"),
      request("POST", "/v1/jobs/1/commands", R"({"command": "swap", "roles": {"precision": {"use": "bf16"}}})"),
      request("POST", "/finetuning/mixed-precision",
              R"({"model_name": "gpt2", "dataset_config": {"texts": ["a"]}, "user_id": 1})"),
      request("POST", "/finetuning/setup-mixed-precision", R"({"dtype": "float16", "init_scale": 8, "level": "O1"})"),
      request("DELETE", "/v1/jobs/7")};
  std::map<int, int> answers;
  for (int i = 0; i < count; ++i) {
    auto bytes = seeds[random() % std::size(seeds)];
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      const auto at = random() % bytes.size();
      const auto kind = random() % 5;
      if (kind == 0) bytes[at] = static_cast<char>(random());
      if (kind == 1) bytes.erase(at, 1 + random() % 8);
      if (kind == 2) bytes.insert(at, 1 + random() % 3, "\r\n:{}[]\",0/%\\-"[random() % 15]);  // NUL too
      if (kind == 3) bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 40));
      if (kind == 4) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    }
    const Connection connection(server.port);
    connection.send(bytes);
    connection.send_end();
    const auto answer = connection.read();
    const int status = status_of(answer);
    answers[status] += 1;
    if (status >= 500) MESSAGE(bytes, answer);
    REQUIRE((status == 0 || status < 500));
  }
  return answers;
}

}  // namespace

TEST_CASE("serve: requests with random mistakes are answered or cut off, and never with an error of the server") {
  const auto seed = is_long() ? std::random_device()() : 2;
  MESSAGE("random numbers from ", seed);
  std::mt19937 random(seed);
  constexpr int cases = 2;  // the long form of this program has more
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double, std::ratio<60>>(long_minutes() / cases);
  int tried = 0;
  do {
    JobServer server({"--cores", "1"});
    server.submit(takes("0", "until = \"never\"\n"));  // the others wait
    const int count = is_long() ? 30'000 : 3000;       // a queue is full with 10,000
    auto answers = ask_with_mistakes(server, random, count);
    tried += count;
    CHECK(answers[400] > 0);
    CHECK(answers[422] > 0);
    CHECK(server.get("/v1/server").body.at("running") == 1);
  } while (std::chrono::steady_clock::now() < end);
  MESSAGE(tried, " requests");
}

}  // namespace routes_test
