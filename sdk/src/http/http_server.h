// A small HTTP server for monitors and services of this machine. It is a library of its own, vernier_http, since only a
// few programs and plugins need it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace vernier {

struct HttpRequest {
  std::string method, target;  // "GET", "/metrics?name=loss"
};
struct HttpResponse {
  unsigned status = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
};

// Returns what is wrong with the text of an address and a port, "127.0.0.1:9464" or "[::1]:9464"; "" if nothing is.
std::string trouble_with_listen(const std::string& listen);

// Serves HTTP/1.1 on a thread of its own, without encryption and without accounts: so bind it to 127.0.0.1. A client
// that is silent for 30 seconds is cut off.
class HttpServer {
 public:
  // Called on the server's thread, for one request at a time. What it throws is answered with status 500.
  using Answer = std::function<HttpResponse(const HttpRequest&)>;
  // listen: with port 0 the system chooses one. Throws Error where the text is wrong or the port is in use.
  HttpServer(const std::string& listen, Answer answer);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // cuts off all clients
  std::uint16_t port() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vernier
