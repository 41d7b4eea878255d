// A request and its answer, as HTTP has them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vernier {

// Thrown by this library, with one line that says what is wrong, and where.
struct HttpError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using HttpFields = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, target;  // "GET", "/metrics?name=loss"
  unsigned version = 11;       // 10 or 11
  std::uint16_t port = 0;      // the server's port
  bool is_encrypted = false;
  HttpFields fields = {};  // header fields without trailers; names in lower case
  std::string body = {};

  std::string_view path() const { return std::string_view(target).substr(0, target.find('?')); }
  // The value of the first field of this name, which is in lower case; "" if there is none.
  std::string_view field(std::string_view name) const;
  std::size_t count(std::string_view name) const;
};

struct HttpResponse {
  unsigned status = 200;
  std::string body = {};
  std::string content_type = "text/plain; charset=utf-8";
  HttpFields fields = {};  // further ones of the header

  // At most one of these two. Both are called on the server's thread, the first time at once, and then whenever
  // HttpServer::wake() was called.
  // An answer that comes later; a client that ends its side of the connection while it waits is cut off. Nothing means
  // that it is not there yet. `last`: the time is over, it must return one.
  std::function<std::optional<HttpResponse>(bool last)> later = {};
  // The body is a stream without an end: returns what is to be sent now, "" if nothing is. The client's connection is
  // closed where it throws.
  std::function<std::string()> more = {};
};

inline constexpr const char* problem_type = "application/problem+json";
// An answer of status 4xx or 5xx with a body as RFC 9457 has it. detail: a sentence for people.
HttpResponse problem(unsigned status, const std::string& detail, HttpFields fields = {});

// Returns the answer to a bad header of a request that a parser has taken, or nothing if all is well. A header is bad
// if its framing is not plain, so that two programs could read different requests, or if it asks for what this server
// does not do.
std::optional<HttpResponse> trouble_with_header(const HttpRequest& request);

}  // namespace vernier
