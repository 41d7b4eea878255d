// The HTTP server that monitor/prometheus and callback/control share: its limits.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "patience.h"
#include "raw_http.h"
#include "service/http/http_server.h"

namespace control_server_test {

namespace {

using vernier::HttpLimits;
using vernier::HttpRequest;
using vernier::HttpResponse;
using vernier::HttpServer;
using namespace std::chrono_literals;

HttpResponse hello(const HttpRequest& request) {
  return {.body = request.body.empty() ? "hello" : std::to_string(request.body.size())};
}

}  // namespace

TEST_CASE("http: the rate limit answers 429 with Retry-After") {
  const HttpServer server("127.0.0.1:0", hello, {}, {.requests_per_second = 5});
  int good = 0, limited = 0;
  for (int i = 0; i < 20; ++i) {
    const auto answer = ask(server.port(), request_of(server.port(), "GET", "/"));
    good += status_of(answer) == 200 ? 1 : 0;
    limited += status_of(answer) == 429 && answer.find("\r\nRetry-After: 1\r\n") != answer.npos ? 1 : 0;
  }
  CHECK(good >= 5);
  CHECK(limited >= 5);
  CHECK(good + limited == 20);
}

TEST_CASE("http: slow and silent clients are cut off, and do not keep others out") {
  const HttpServer server("127.0.0.1:0", hello, {}, {.connections = 8, .idle = 300ms, .request = 200ms});
  std::vector<std::unique_ptr<Connection>> silent;
  for (int i = 0; i < 30; ++i) silent.push_back(std::make_unique<Connection>(server.port()));
  CHECK(status_of(ask(server.port(), request_of(server.port(), "GET", "/"))) == 200);
  const Connection slow(server.port());
  const auto begin = std::chrono::steady_clock::now();
  const bool is_open = slow.send("GET / HTTP/1.1\r\n");
  patience::wait_until([&] { return !is_open || !slow.send("a"); }, 20ms);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  CHECK(seconds.count() < patience::limit(3));  // each byte does not give it more time
  CHECK(silent.back()->read().empty());
}

TEST_CASE("http: a body over the limit is refused, by its length, in chunks, and in the extensions of chunks") {
  const HttpServer server("127.0.0.1:0", hello, {}, {.body = 1000});
  const auto post = "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
  const auto ask_with = [&](const std::string& rest) { return status_of(ask(server.port(), post + rest)); };
  CHECK(ask_with("Content-Length: 1000\r\n\r\n" + std::string(1000, 'x')) == 200);
  CHECK(ask_with("Content-Length: 1001\r\n\r\n" + std::string(1001, 'x')) == 413);
  std::string chunks, extended;
  for (int i = 0; i < 30; ++i) chunks += "64\r\n" + std::string(100, 'x') + "\r\n";
  for (int i = 0; i < 30; ++i) extended += "1;" + std::string(500, 'e') + "\r\nx\r\n";
  CHECK(ask_with("Transfer-Encoding: chunked\r\n\r\n" + chunks + "0\r\n\r\n") == 413);
  CHECK(ask_with("Transfer-Encoding: chunked\r\n\r\n" + extended + "0\r\n\r\n") == 413);
}

TEST_CASE("http: requests in one connection are answered in turn, and an error closes it") {
  const HttpServer server("127.0.0.1:0", hello);
  const std::string one = "GET / HTTP/1.1\r\nHost: x\r\n\r\n", bad = "nonsense\r\n\r\n";
  const auto answers = ask(server.port(), one + one + bad + one);
  int good = 0;
  for (std::size_t at = 0; (at = answers.find("HTTP/1.1 200", at)) != answers.npos; ++at) good += 1;
  CHECK(good == 2);
  CHECK(answers.find("HTTP/1.1 400") != answers.npos);
}

TEST_CASE("http: an answer may come later, and at the latest when its time is over") {
  std::atomic<bool> is_there = false;
  HttpServer server("127.0.0.1:0",
                    [&](const HttpRequest&) {
                      HttpResponse response;
                      response.later = [&](bool last) -> std::optional<HttpResponse> {
                        if (is_there) return HttpResponse{.body = "there"};
                        return last ? std::optional(HttpResponse{.status = 202, .body = "not yet"}) : std::nullopt;
                      };
                      return response;
                    },
                    {}, {.later = 300ms});
  CHECK(body_of(ask(server.port(), request_of(server.port(), "GET", "/"))) == "not yet");
  const Connection connection(server.port());
  connection.send(request_of(server.port(), "GET", "/"));
  std::this_thread::sleep_for(50ms);
  is_there = true;
  server.wake();
  CHECK(body_of(connection.read()) == "there");
}

TEST_CASE("http: streams send what is new, are limited in number, and end with the server") {
  std::atomic<int> news = 1;
  auto server = std::make_unique<HttpServer>(
      "127.0.0.1:0",
      [&](const HttpRequest&) {
        HttpResponse response{.content_type = "text/event-stream"};
        response.more = [&news, sent = 0]() mutable {
          std::string text;
          for (; sent < news; ++sent) text += "news " + std::to_string(sent) + "\n";
          return text;
        };
        return response;
      },
      HttpServer::Refuse(), HttpLimits{.streams = 2});
  const int port = server->port();
  const auto request = request_of(port, "GET", "/");
  auto first = std::make_unique<Connection>(port);
  const Connection second(port);
  first->send(request);
  second.send(request);
  CHECK(first->read("news 0\n").find("Transfer-Encoding") == std::string::npos);
  second.read("news 0\n");
  CHECK(status_of(ask(port, request)) == 503);
  news = 3;
  server->wake();
  CHECK(second.read("news 2\n").find("news 1\nnews 2\n") != std::string::npos);
  first.reset();  // its place is free again
  int status = 0;
  patience::wait_until([&] {
    const Connection third(port);
    third.send(request);
    status = status_of(third.read("\r\n\r\n"));
    return status != 503;
  });
  CHECK(status == 200);
  const auto begin = std::chrono::steady_clock::now();
  server.reset();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  CHECK(seconds.count() < patience::limit(0.9));
  CHECK(second.read().empty());
}

}  // namespace control_server_test
