// callback/control: who may ask for what, what is shown, and what becomes of requests that are none.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <vernier/error.h>

#include <algorithm>

#include "plugin_library.h"
#include "steered.h"
#include "thrown.h"

namespace control_access_test {

using namespace steered;

namespace {

std::pair<std::string, std::string> bearer(const std::string& token) {
  return {"Authorization", "Bearer " + token};
}

// One route of the document.
struct Asked {
  const Client& client;
  std::string method, target;
  bool is_first;  // the first of the requests that need a token
  int status(const Fields& fields) const {
    return status_of(ask(client.port, request_of(client.port, method, target, fields)));
  }
  // After some wrong tokens it is 429.
  bool is_refused(const Fields& fields) const {
    const int answered = status(fields);
    return answered == 401 || (!is_first && answered == 429);
  }
};

void check_other_sites(const Asked& route) {
  const Fields others = {{"Host", "evil.example"},
                         {"Host", "evil.example:" + std::to_string(route.client.port)},
                         {"Host", "127.0.0.1:1"},
                         {"Host", "127.0.0.1"},
                         {"Origin", "null"},
                         {"Origin", "http://evil.example"},
                         {"Sec-Fetch-Site", "cross-site"},
                         {"Sec-Fetch-Site", "same-site"}};
  for (const auto& [scope, token] : route.client.tokens) {
    for (const auto& other : others) CHECK(route.status({bearer(token), other}) == 403);
  }
}

void check_tokens(const Asked& route, const std::string& scope) {
  const auto& good = route.client.tokens.at("control");
  const std::vector<std::string> wrong = {"",
                                          "Bearer ",
                                          good,
                                          "Basic " + good,
                                          "bearer " + good,
                                          "Bearer  " + good,
                                          "Bearer " + good + "x",
                                          "Bearer " + good.substr(1)};
  CHECK(route.status({}) == 401);
  for (const auto& each : wrong) CHECK(route.is_refused({{"Authorization", each}}));
  if (scope == "control") CHECK(route.status({bearer(route.client.tokens.at("read"))}) == 403);
}

}  // namespace

TEST_CASE("control: every route refuses without a token, with a wrong one, and with too small a scope") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder);
  int tried = 0, open = 0;
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step != 4) return;
    const Client client(now.output);
    const int port = client.port;
    const auto document = json::parse(body_of(ask(port, request_of(port, "GET", "/v1/openapi.json"))));
    CHECK(document.at("openapi") == "3.1.0");
    for (const auto& [path, methods] : document.at("paths").items()) {
      for (const auto& [method, operation] : methods.items()) {
        CAPTURE(path);
        CAPTURE(method);
        const auto parameter = path.find('{');
        const Asked route{client, method == "get" ? "GET" : "POST",
                          path.substr(0, parameter) + (parameter == path.npos ? "" : "1"), tried == open};
        check_other_sites(route);
        tried += 1;
        if (operation.contains("x-scope")) {
          check_tokens(route, operation.at("x-scope"));
        } else {
          open += 1;
          CHECK(route.status({{"Origin", "http://127.0.0.1:" + std::to_string(port)}}) == 200);
        }
        for (const auto* other : {"PUT", "DELETE", "TRACE", "OPTIONS", "get"}) {
          CHECK(status_of(ask(port, request_of(port, other, route.target))) == 405);
        }
      }
    }
    CHECK(status_of(ask(port, request_of(port, "GET", "/other"))) == 404);
    const auto page = ask(port, request_of(port, "GET", "/"));
    CHECK(page.find("Content-Security-Policy: default-src 'none'; script-src 'self'") != page.npos);
  });
  steered.train();
  CHECK(tried == 17);
  CHECK(open == 7);
}

TEST_CASE("control: a name in `hosts` may stand in the Host field") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder, {}, "[[callback]]\nuse = 'control'\nhosts = ['tunnel.example:9000']\n");
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step != 4) return;
    const Client client(now.output);
    const Asked route{client, "GET", "/v1/run", true};
    const auto token = bearer(client.tokens.at("read"));
    CHECK(route.status({token, {"Host", "tunnel.example:9000"}}) == 200);
    CHECK(route.status({token, {"Host", "tunnel.example"}}) == 403);
  });
  steered.train();
}

TEST_CASE("control: wrong tokens are answered with 429 in the end, and a good one passes all the same") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder);
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step != 4) return;
    const Client client(now.output);
    std::string last;
    for (int i = 0; i < 50; ++i) last = ask(client.port, request_of(client.port, "GET", "/v1/run", {bearer("x")}));
    CHECK(status_of(last) == 429);
    CHECK(last.find("\r\nRetry-After: ") != last.npos);
    CHECK(status_of(client.get("/v1/run")) == 200);
  });
  steered.train();
}

namespace {

const std::pair<const char*, int> refused_targets[] = {{"history?metric=nothing", 404},
                                                       {"history", 422},
                                                       {"history?metric=loss&points=1", 422},
                                                       {"history?metric=loss&points=x", 422},
                                                       {"notices?limit=0", 422},
                                                       {"notices?limit=2&limit=2", 422},
                                                       {"notices?other=2", 422},
                                                       {"commands/7", 404},
                                                       {"commands/x", 422},
                                                       {"commands/", 404}};

}  // namespace

TEST_CASE("control: what it shows of a run") {
  const Quiet quiet;
  const TemporaryFolder folder;
  folder.write("config.toml", "[task]\nuse = 'mlp'\n");
  Steered steered(folder);
  std::map<std::string, json> seen;
  std::string events;
  std::unique_ptr<Connection> stream;
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    const Client client(now.output);
    if (now.step == 3) {
      stream = std::make_unique<Connection>(client.port);
      stream->send(request_of(client.port, "GET", "/v1/events",
                              {{"Authorization", "Bearer " + client.tokens.at("read")}, {"Last-Event-ID", "0"}}));
      events = stream->read("retry: 2000\n\n");
    }
    if (now.step != 16) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // records are taken in batches
    for (const char* each :
         {"run", "metrics", "history?metric=loss&points=4", "notices?limit=2", "configuration", "memory", "commands"}) {
      const auto answer = client.get(std::string("/v1/") + each);
      CAPTURE(answer);
      CHECK(status_of(answer) == 200);
      seen[std::string(each).substr(0, std::string(each).find('?'))] = json::parse(body_of(answer));
    }
    for (const auto& [target, status] : refused_targets) {
      CAPTURE(target);
      const auto answer = client.get(std::string("/v1/") + target);
      CHECK(status_of(answer) == status);
      CHECK(answer.find("application/problem+json") != answer.npos);
      CHECK(json::parse(body_of(answer)).at("status") == status);
    }
  });
  steered.train();
  CHECK(seen["run"].at("state") == "running");
  CHECK(seen["run"].at("step") == 16);  // steps that are over
  CHECK(seen["run"].at("steps") == 20);
  const auto& metrics = seen["metrics"].at("metrics");
  const auto loss =
      std::find_if(metrics.begin(), metrics.end(), [](const json& each) { return each["name"] == "loss"; });
  REQUIRE(loss != metrics.end());
  CHECK(loss->at("step") == 16);
  const auto& points = seen["history"].at("points");
  CHECK(points.size() <= 4);
  CHECK(points.at(0).at(0) == 1);
  CHECK(points.at(0).at(2).get<double>() >= points.back().at(1).get<double>());
  CHECK(seen["notices"].at("notices").size() == 2);
  CHECK(seen["configuration"].at("toml") == "[task]\nuse = 'mlp'\n");
  CHECK(seen["memory"].at("process").at("now").get<std::int64_t>() > 1'000'000);
  CHECK(seen["commands"].at("commands").empty());
  steered.run.wiring->callbacks.clear();  // ends the stream
  events += stream->read();
  CHECK(events.find("Content-Type: text/event-stream\r\n") != events.npos);
  CHECK(events.find("event: step\ndata: {\"step\":") != events.npos);
  CHECK(events.find("event: validation\ndata: {\"step\":10,") != events.npos);
  CHECK(events.find("\"state\":\"ended\"") != events.npos);
}

TEST_CASE("control: what is not a command is refused, and changes nothing") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder);
  const std::pair<const char*, int> cases[] = {
      {"", 415},
      {"{", 400},
      {"[]", 422},
      {"{}", 422},
      {R"({"command": "dance"})", 422},
      {R"({"command": 1})", 422},
      {R"({"command": "pause", "more": 1})", 422},
      {R"({"command": "scale_learning_rate"})", 422},
      {R"({"command": "scale_learning_rate", "factor": "2"})", 422},
      {R"({"command": "scale_learning_rate", "factor": 0})", 422},
      {R"({"command": "scale_learning_rate", "factor": -1})", 422},
      {R"({"command": "scale_learning_rate", "factor": 1e300})", 422},
      {R"({"command": "set_interval"})", 422},
      {R"({"command": "set_interval", "monitor": "jsonl"})", 422},
      {R"({"command": "set_interval", "monitor": "/x.so", "every": 1})", 422},
      {R"({"command": "set_interval", "monitor": "jsonl", "every": 0})", 422},
      {R"({"command": "set_interval", "monitor": "jsonl", "every": 1.5})", 422},
      {R"({"command": "set_interval", "monitor": "jsonl", "every": 18446744073709551615})", 422},
      {R"({"command": "swap"})", 422},
      {R"({"command": "swap", "roles": {}})", 422},
      {R"({"command": "swap", "roles": {"task": {"use": "mlp"}}})", 422},
      {R"({"command": "swap", "roles": {"optimizer": {"use": "sgd"}}})", 422},
      {R"({"command": "swap", "roles": {"precision": "bf16"}})", 422},
      {R"({"command": "swap", "roles": {"precision": {"use": "/tmp/evil.so"}}})", 422},
      {R"({"command": "swap", "roles": {"precision": {"use": "bf16", "x": null}}})", 422},
      {R"({"command": "swap", "roles": {"precision": {"use": "bf16", "x\u001b": 1}}})", 422},
      {R"({"command": "swap", "roles": {"precision": {"use": "bf16", "x": "\u009b2J"}}})", 422}};
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step != 4) return;
    const Client client(now.output);
    for (const auto& [body, status] : cases) {
      CAPTURE(body);
      const auto request = *body != 0 ? client.post_of(body)
                                      : request_of(client.port, "POST", "/v1/commands",
                                                   {{"Authorization", "Bearer " + client.tokens.at("control")}}, "x");
      CHECK(status_of(ask(client.port, request)) == status);
    }
    CHECK(status_of(client.post(std::string(R"({"command":)") + std::string(1000, '[') + "}")) == 422);
    CHECK(client.get_json("/v1/commands").at("commands").empty());
  });
  steered.train();
  CHECK(result_of(steered.run) == unsteered());
}

namespace {

// The parts of requests to a service.
struct Parts {
  explicit Parts(const Client& client)
      : host("Host: 127.0.0.1:" + std::to_string(client.port) + "\r\n"),
        token("Authorization: Bearer " + client.tokens.at("control") + "\r\n"),
        json_type("Content-Type: application/json\r\n"),
        get("GET /v1/run HTTP/1.1\r\n" + token),
        post("POST /v1/commands HTTP/1.1\r\n" + host + token + json_type) {}
  std::string host, token, json_type, get, post, zeros = std::string(4, '\0');
};

std::vector<std::string> with_bad_headers(const Parts& parts) {
  const auto& [host, token, json_type, get, post, zeros] = parts;
  std::string many;
  for (int i = 0; i < 200; ++i) many += "a" + std::to_string(i) + ": b\r\n";
  return {

      "\r\n\r\n",
      "nonsense\r\n\r\n",
      zeros + "\r\n\r\n",
      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      "GET /v1/run\r\n\r\n",
      "GET /v1/run HTTP/0.9\r\n\r\n",
      "GET /v1/run HTTP/1.2\r\n" + host + token + "\r\n",
      "GET  /v1/run HTTP/1.1\r\n" + host + token + "\r\n",
      "get /v1/run HTTP/1.1\r\n" + host + token + "\r\n",
      "GET http://127.0.0.1/v1/run HTTP/1.1\r\n" + host + token + "\r\n",
      "GET * HTTP/1.1\r\n" + host + token + "\r\n",
      "GET /v1/r\xc3\xbcn HTTP/1.1\r\n" + host + token + "\r\n",
      std::string("GET /v1/r\0n HTTP/1.1\r\n", 22) + host + token + "\r\n",
      "CONNECT 127.0.0.1:80 HTTP/1.1\r\n" + host + token + "\r\n",
      get + "\r\n",                               // no Host
      get + host + host + "\r\n",                 // two
      get + "Host: evil.example\r\n\r\n",         // another host
      get + host + "Upgrade: websocket\r\n\r\n",  //
      get + host + "Expect: a miracle\r\n\r\n",   //
      get + host + token + "\r\n",                // two tokens
      get + host + "a b: c\r\n\r\n",              // a space in a name
      get + host + ": c\r\n\r\n",                 // no name
      get + host + "a : c\r\n\r\n",               // a space before the colon
      get + host + "a: b\rc: d\r\n\r\n",          // a bare CR
      get + host + "a: b" + zeros + "\r\n\r\n",   // NUL
      get + host + many + "\r\n",                 // many fields
      get + host + "a: " + std::string(100'000, 'x') + "\r\n\r\n",
      get + host + "Content-Length: 3\r\n\r\nabc",  // a body where there is none
  };
}

std::vector<std::string> with_bad_bodies(const Parts& parts) {
  const auto& [host, token, json_type, get, post, zeros] = parts;
  return {
      post + "Content-Length: -2\r\n\r\n{}",
      post + "Content-Length: +2\r\n\r\n{}",
      post + "Content-Length: 0x2\r\n\r\n{}",
      post + "Content-Length: 18446744073709551618\r\n\r\n{}",
      post + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
      post + "Content-Length: 2, 2\r\n\r\n{}",
      post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
      post + "Content-Length: 1000000000\r\n\r\n{}",
      post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
      post + "Transfer-Encoding: xchunked\r\n\r\n{\"command\":\"stop\"}",
      post + "Transfer-Encoding: chunked, gzip\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
      post + "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
      post + "Transfer-Encoding: identity\r\n\r\n{}",
      post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n{}\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}more\r\n0\r\n\r\n",
      post + "Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n2\r\n{}\r\n0\r\na: b\r\n\r\n",
      post + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
      post + "Content-Length: 5\r\n\r\n" + zeros + "x",
      // Trailers come after the decision.
      "POST /v1/commands HTTP/1.1\r\n" + host + json_type +
          "Transfer-Encoding: chunked\r\n\r\n12\r\n{\"command\":\"stop\"}\r\n0\r\n" + token + "\r\n",
  };
}

void check_refused(int port, const std::vector<std::string>& requests) {
  for (const auto& request : requests) {
    CAPTURE(request);
    const Connection connection(port);
    connection.send(request);
    connection.send_end();
    const auto answer = connection.read();
    const int status = status_of(answer);
    CHECK((answer.empty() || (status >= 400 && status < 500)));
    CHECK(answer.find("HTTP/1.1 2") == answer.npos);
  }
}

}  // namespace

TEST_CASE("control: malformed requests end with 4xx or a closed connection, and the run's bits stay") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder);
  std::size_t tried = 0;
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step != 4) return;
    const Client client(now.output);
    const Parts parts(client);
    const auto headers = with_bad_headers(parts), bodies = with_bad_bodies(parts);
    check_refused(client.port, headers);
    check_refused(client.port, bodies);
    tried = headers.size() + bodies.size();
    // Requests that are plain and unusual are taken.
    const auto& [host, token, json_type, get, post, zeros] = parts;
    CHECK(status_of(ask(client.port, "GET /v1/run HTTP/1.0\r\n" + host + token + "\r\n")) == 200);
    CHECK(status_of(ask(client.port, get + host + "Connection: close\r\na: b\r\n c\r\n\r\n")) == 200);
    CHECK(client.get_json("/v1/commands").at("commands").empty());
    const Connection chunked(client.port);
    chunked.send(post + "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n" +
                 "12\r\n{\"command\":\"save\"}\r\n0\r\n\r\n");
    CHECK(chunked.read("\r\n\r\n").starts_with("HTTP/1.1 100 Continue\r\n\r\n"));
    while (client.get_json("/v1/commands").at("commands").empty()) nap();
  });
  steered.train();
  CHECK(tried == 52);
  CHECK(result_of(steered.run).digest == unsteered().digest);
}

TEST_CASE("control: tokens that others could read, and addresses that others could reach, are refused") {
  const Quiet quiet;
  const std::pair<const char*, const char*> addresses[] = {{"0.0.0.0:80", "is reached by other machines"},
                                                           {"192.168.0.1:80", "is reached by other machines"},
                                                           {"[::]:80", "is reached by other machines"},
                                                           {"localhost:80", "is not an address with a port"},
                                                           {"127.0.0.1", "is not an address with a port"}};
  for (const auto& [listen, message] : addresses) {
    const auto thrown = thrown_by([&] {
      make_plugin<vernier::Callback>("callback/control", {{"listen", {std::string(listen), "test.toml:2"}}});
    });
    CHECK(thrown.kind == 2);
    CHECK(thrown.text.find(message) != std::string::npos);
  }
  const auto token = std::string(32, 'x');
  struct Case {
    std::string text;
    mode_t mode;
    const char* message;
  };
  const Case files[] = {{"control " + token + "\n", 0644, "others than its owner may use these tokens"},
                        {"control " + token + "\n", 0660, "others than its owner may use these tokens"},
                        {"control short\n", 0600, "line 1 must be"},
                        {"# a comment\nroot " + token + "\n", 0600, "line 2 must be"},
                        {"# nothing\n", 0600, "has no tokens"}};
  for (const auto& each : files) {
    CAPTURE(each.text);
    const TemporaryFolder folder;
    const auto file = folder.write("control.tokens", each.text);
    ::chmod(file.c_str(), each.mode);
    Steered steered(folder);
    const auto thrown = thrown_by([&] { steered.train(); });
    CHECK(thrown.text.find(each.message) != std::string::npos);
  }
  const TemporaryFolder folder;
  fs::create_symlink("/etc/passwd", folder.path() / "control.tokens");
  Steered steered(folder);
  CHECK(thrown_by([&] { steered.train(); }).text.find("its tokens cannot be read") != std::string::npos);
}

TEST_CASE("control: tokens are made with mode 0600, and a file that changes is read again") {
  const Quiet quiet;
  const TemporaryFolder folder;
  Steered steered(folder);
  steered.run.on(Event::StepEnd, [&](vernier::Run& now) {
    if (now.step != 4) return;
    const Client before(now.output);
    CHECK(before.tokens.at("read") != before.tokens.at("control"));
    CHECK(before.tokens.at("control").size() == 64);
    struct stat status {};
    ::stat((folder / "control.tokens").c_str(), &status);
    CHECK((status.st_mode & 0777) == 0600);
    CHECK(status_of(before.get("/v1/run")) == 200);
    const auto file = folder.write("new", "read " + std::string(40, 'r') + "\ncontrol " + std::string(40, 'c') + "\n");
    ::chmod(file.c_str(), 0600);
    fs::rename(file, folder.path() / "control.tokens");
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    CHECK(status_of(before.get("/v1/run")) == 401);
    CHECK(status_of(Client(now.output).get("/v1/run")) == 200);
  });
  steered.train();
}

}  // namespace control_access_test
