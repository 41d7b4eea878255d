// A small HTTP server for monitors and services of this machine. It is a library of its own, vernier_http, since only a
// few programs and plugins need it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "http_message.h"

namespace vernier {

// Returns what is wrong with the text of an address and a port, "127.0.0.1:9464" or "[::1]:9464"; "" if nothing is.
std::string trouble_with_listen(const std::string& listen);
// Returns true if only this machine reaches that address: 127.x.x.x or ::1.
bool is_loopback(const std::string& listen);

// The limits of one server. The header of a request may have 8 kB.
struct HttpLimits {
  std::size_t connections = 256;      // one more cuts off the oldest that sends no request
  std::size_t streams = 64;           // connections that may have a stream; one more is answered with 503
  std::size_t body = 64 * 1024;       // bytes; with chunks and their extensions, the double
  double requests_per_second = 1000;  // requests of all clients; more are answered with 429, after a burst of as many
  // Returns true for a client that has shown who it is. The others have a fifth of the requests, apart, and are cut off
  // first, so that they keep nobody else out. Empty: all clients are known.
  std::function<bool(const HttpRequest&)> knows = {};
  // Returns a problem() in the form in which it is sent. Empty: as it is.
  std::function<HttpResponse(HttpResponse)> problems = {};
  std::chrono::milliseconds idle{30'000}, request{10'000}, later{20'000};  // between requests; for each half; Response
};

// PEM files of a server: its certificate with those that sign it, and its key.
struct HttpEncryption {
  std::string certificate, key;
};

// Serves HTTP/1.1 on a thread of its own. A request whose framing is not plain is refused, and so
// is what trouble_with_header() says. After an error the connection is closed.
class HttpServer {
 public:
  // Called on the server's thread, for one request at a time. What it throws is answered with status 500.
  using Answer = std::function<HttpResponse(const HttpRequest&)>;
  // Called before the body of a request is read. An answer refuses the request.
  using Refuse = std::function<std::optional<HttpResponse>(const HttpRequest&)>;
  // listen: with port 0 the system chooses one. encryption: TLS 1.2 or 1.3; without it there is none. Throws HttpError
  // where the text is wrong, the port is in use, or a file of the encryption cannot be used.
  HttpServer(const std::string& listen, Answer answer, Refuse refuse = {}, HttpLimits limits = {},
             const std::optional<HttpEncryption>& encryption = std::nullopt);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // ends streams, and cuts off all clients within a second
  std::uint16_t port() const;
  // Any thread: asks HttpResponse::later and ::more again. Any number of calls before that is one.
  void wake();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vernier
