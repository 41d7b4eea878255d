// A service with an API: one table of routes that every request passes, tokens with scopes, and the document of the
// API.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "http_message.h"
#include "tokens.h"

namespace vernier {

using Json = nlohmann::ordered_json;

// A request that has passed all checks.
struct HttpCall {
  std::map<std::string, std::string> parameters;  // parameters in the path and the query
  Json body;                                      // body of a POST
  std::string who;                                // the token's name, or else its scope: "control"
  Scope scope = Scope::open;                      // the token's scope
  std::string from;                               // the field From: for whom a program asks; or ""
  std::string last_event;                         // the field Last-Event-ID: what a stream goes on from; or ""

  // A parameter that is a whole number; throws HttpRefused with 422 where it is none or out of range.
  std::int64_t integer(const std::string& name, std::int64_t fallback, std::int64_t min, std::int64_t max) const;
};

// Thrown by a route's function: answered as a problem.
struct HttpRefused {
  unsigned status;
  std::string detail;
};

struct HttpRoute {
  std::string method = "GET";
  std::string path;  // "/v1/commands/{id}": parts of it may be parameters
  Scope scope = Scope::read;
  std::string id, summary;                                // for the document: "list_commands"
  std::vector<Json> parameters = {};                      // each written as in OpenAPI
  Json body = nullptr;                                    // schema of the request's body; null: there is none
  Json result = nullptr;                                  // schema of the answer of status 200; null: no JSON
  std::string result_type = "application/json";           // media type of that answer
  std::map<std::string, std::string> other_results = {};  // further statuses, and when they come
  std::map<std::string, Json> schemas = {};               // to which the others refer: #/components/schemas/NAME
  std::function<HttpResponse(const HttpCall&)> answer;
};

HttpResponse json_response(const Json& body, unsigned status = 200);
std::string time_text(std::chrono::seconds ago = {});  // "2026-11-23T14:05:09.123Z"

// One thread: the server's.
class HttpService {
 public:
  // hosts: what may stand in the Host field beside the loopback addresses with the server's port. Adds the routes
  // of the document, /v1/openapi.json, and of shared_page_files().
  HttpService(std::string title, std::string version, Tokens tokens, std::vector<std::string> hosts,
              std::vector<HttpRoute> routes);
  HttpService(const HttpService&) = delete;
  HttpService& operator=(const HttpService&) = delete;

  // For HttpServer, of which these are the two functions.
  std::optional<HttpResponse> refuse(const HttpRequest& request);
  HttpResponse answer(const HttpRequest& request);
  bool knows(const HttpRequest& request) { return holder_of(request).scope != Scope::open; }  // for HttpLimits

  const std::vector<HttpRoute>& routes() const { return routes_; }
  Json document() const;

 private:
  struct Match {
    const HttpRoute* route = nullptr;
    std::map<std::string, std::string> parameters = {};  // parameters in the path
    std::vector<std::string> others = {};                // methods of this path, where the route is null
  };
  Match match(const HttpRequest& request) const;
  std::optional<HttpResponse> trouble_with_origin(const HttpRequest& request) const;
  Tokens::Holder holder_of(const HttpRequest& request);
  std::optional<HttpResponse> trouble_with_token(const HttpRequest& request, Scope needed);
  static std::map<std::string, std::string> parameters_of(const HttpRequest& request, const Match& match);

  std::string title_, version_;
  Tokens tokens_;
  std::vector<std::string> hosts_;
  std::vector<HttpRoute> routes_;
  double failures_left_ = 20;  // wrong tokens that are left before each is answered with 429
  std::chrono::steady_clock::time_point counted_ = std::chrono::steady_clock::now();
};

}  // namespace vernier
