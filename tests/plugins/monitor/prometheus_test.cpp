// monitor/prometheus: what it answers over HTTP, the file, and what is refused.
#include <doctest/doctest.h>
#include <unistd.h>
#include <vernier/error.h>

#include <limits>
#include <regex>
#include <thread>

#include "monitored.h"
#include "raw_http.h"
#include "service/http/http_server.h"
#include "thrown.h"

namespace prometheus_test {

namespace {

std::vector<std::string> lines;
void collect_lines(vernier::Level, const std::string&, const std::string& text) {
  lines.push_back(text);
}

// While it lives, `lines` collects the log.
struct Logged {
  Logged() {
    lines.clear();
    vernier::set_log_sink(collect_lines);
  }
  ~Logged() { vernier::set_log_sink(nullptr); }
};

std::string get(int port, const std::string& target) {
  return ask(port, "GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
}

vernier::Table any_port() {
  return {{"listen", toml_text("127.0.0.1:0")}};
}

// From the line in which the monitor says where it listens.
int port_of(const std::string& line) {
  std::smatch match;
  REQUIRE(std::regex_search(line, match, std::regex("http://127\\.0\\.0\\.1:([0-9]+)/metrics$")));
  return std::stoi(match[1]);
}

}  // namespace

TEST_CASE("prometheus: the newest numbers are answered, with help and type") {
  const Logged logged;
  const TemporaryFolder folder;
  Monitored monitored(folder, "monitor/prometheus", any_port());
  const int port = port_of(lines.at(0));
  monitored.run.metrics.set("learning_rate", 0.25);
  monitored.run.metrics.set_time("step_time", 0.125);
  monitored.run.metrics.set("mine", std::numeric_limits<double>::infinity());
  monitored.train(2);
  monitored.plugin->save();
  const auto answer = get(port, "/metrics");
  CHECK(answer.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(says(answer, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  CHECK(says(answer,
             "# HELP vernier_loss mean of the training loss over the update's batch\n"
             "# TYPE vernier_loss gauge\nvernier_loss{run=\"quick\"} 1\n"));
  CHECK(says(answer, "# TYPE vernier_samples_total counter\nvernier_samples_total{run=\"quick\"} 16\n"));
  CHECK(says(answer, "\nvernier_steps_total{run=\"quick\"} 2\n"));
  CHECK(says(answer, "\nvernier_step_time_seconds{run=\"quick\"} 0.125\n"));
  CHECK(says(answer, "\nvernier_mine{run=\"quick\"} +Inf\n"));
  CHECK(says(answer, "\nvernier_run_is_running{run=\"quick\"} 1\n"));
  monitored.end();
  CHECK(says(get(port, "/metrics?x"), "\nvernier_run_is_running{run=\"quick\"} 0\n"));
}

TEST_CASE("prometheus: other requests are refused, and bad ones do not harm the server") {
  const Logged logged;
  const TemporaryFolder folder;
  Monitored monitored(folder, "monitor/prometheus", any_port());
  const int port = port_of(lines.at(0));
  CHECK(get(port, "/").starts_with("HTTP/1.1 200 OK"));
  CHECK(get(port, "/other").starts_with("HTTP/1.1 404 Not Found"));
  CHECK(status_of(ask(port, request_of(port, "POST", "/metrics"))) == 405);
  CHECK(ask(port, request_of(port, "HEAD", "/metrics")).ends_with("\r\n\r\n"));
  CHECK(status_of(ask(port, "nonsense\r\n\r\n")) == 400);
  CHECK(status_of(ask(port, "GET /" + std::string(100'000, 'x') + " HTTP/1.1\r\n\r\n")) == 431);
  const int silent = connection_to(port);  // is not a hindrance to others, and none to the end of the run
  REQUIRE(silent >= 0);
  CHECK(get(port, "/metrics").starts_with("HTTP/1.1 200 OK"));
  monitored.end();
  monitored.plugin.reset();
  CHECK(connection_to(port) < 0);
  ::close(silent);
}

TEST_CASE("prometheus: many clients at once while training goes on") {
  const Logged logged;
  const TemporaryFolder folder;
  Monitored monitored(folder, "monitor/prometheus", any_port());
  const int port = port_of(lines.at(0));
  std::atomic<int> good = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&good, port] {
      for (int j = 0; j < 25; ++j) good += get(port, "/metrics").ends_with("\n") ? 1 : 0;
    });
  }
  monitored.train(900);
  for (auto& client : clients) client.join();
  CHECK(good == 100);
}

TEST_CASE("prometheus: names that become the same are told apart, and texts are escaped") {
  const Logged logged;
  const TemporaryFolder folder;
  Monitored monitored(folder, "monitor/prometheus", {{"listen", toml_text("")}, {"file", toml_text("v.prom")}});
  for (const char* name : {"a.b", "a b", "a_b", "loss"}) monitored.run.metrics.set(name, 1.0);
  monitored.step();
  monitored.end();
  const auto text = read_text(folder / "v.prom");
  for (const char* name : {"vernier_a_b", "vernier_a_b_2", "vernier_a_b_3", "vernier_metric_loss"}) {
    CHECK(says(text, std::string("\n") + name + "{run=\"quick\"} 1\n"));
  }
  CHECK(says(text, "# HELP vernier_a_b_2 a b, set by the task or a plugin\n"));
  CHECK_FALSE(has_partial(folder.path()));
}

TEST_CASE("prometheus: a port in use detaches it with the reason, and the run goes on") {
  const vernier::HttpServer other("127.0.0.1:0", [](const vernier::HttpRequest&) { return vernier::HttpResponse{}; });
  const auto listen = "127.0.0.1:" + std::to_string(other.port());
  const Logged logged;
  const TemporaryFolder folder;
  Monitored monitored(folder, "monitor/prometheus", {{"listen", toml_text(listen)}});
  monitored.train(2);
  monitored.end();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == listen +
                        ": cannot be listened at: Address already in use; choose another port (the monitor is "
                        "detached, the run goes on)");
}

TEST_CASE("prometheus: what cannot work is refused before the run") {
  const std::pair<vernier::Table, const char*> cases[] = {
      {{{"listen", toml_text("")}}, "must not be empty where `file` is empty too"},
      {{{"listen", toml_text("9464")}}, "is not an address with a port"},
      {{{"listen", toml_text("localhost:9464")}}, "is not an address with a port"},
      {{{"listen", toml_text("127.0.0.1:99999")}}, "is not an address with a port"},
      {{{"listen", toml_text("127.0.0.1:")}}, "is not an address with a port"},
      {{{"file", toml_text("metrics.txt")}}, "must end with .prom"},
  };
  for (const auto& [table, text] : cases) {
    const auto thrown = thrown_by([&] { make_plugin<vernier::Monitor>("monitor/prometheus", table); });
    CHECK(thrown.kind == 2);
    CHECK(says(thrown.text, text));
  }
}

TEST_CASE("http: an answer that fails is status 500, and IPv6 is an address too") {
  const vernier::HttpServer server("127.0.0.1:0", [](const vernier::HttpRequest& request) -> vernier::HttpResponse {
    if (request.target == "/bad") throw vernier::Error("out of luck");
    return {201, request.method + " " + request.target};
  });
  const auto bad = get(server.port(), "/bad");
  CHECK(bad.starts_with("HTTP/1.1 500"));
  CHECK(says(bad, "\"detail\":\"out of luck\""));
  CHECK(get(server.port(), "/x?y").ends_with("GET /x?y"));
  for (const char* good : {"[::1]:80", "0.0.0.0:1", "127.0.0.1:0"}) CHECK(vernier::trouble_with_listen(good).empty());
  for (const char* wrong : {"", ":", "[::1]", "a:b:c", "127.0.0.1:-1", "127.0.0.1:80x"}) {
    CHECK_FALSE(vernier::trouble_with_listen(wrong).empty());
  }
}

}  // namespace prometheus_test
