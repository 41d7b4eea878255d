#include "http_service.h"

#include <vernier/json_in.h>

#include <algorithm>
#include <boost/algorithm/string.hpp>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <utility>

#include "page.h"
#include "schema.h"

namespace vernier {

namespace {

// Nothing but the page's own files may run, and nothing may frame it.
HttpResponse with_safe_fields(HttpResponse response) {
  static const HttpFields fields = {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Resource-Policy", "same-origin"}};
  response.fields.insert(response.fields.end(), fields.begin(), fields.end());
  return response;
}

// "%2F" and "+" of a query; what is not an escape stays.
std::string decoded(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* end = text.data() + std::min(text.size(), i + 3);
    if (text[i] == '%' && std::from_chars(text.data() + i + 1, end, value, 16).ptr == text.data() + i + 3) {
      result += static_cast<char>(value);
      i += 2;
    } else {
      result += text[i] == '+' ? ' ' : text[i];
    }
  }
  return result;
}

// Returns true if the path matches the route, whose parts in braces take any text.
bool is_path_of(std::string_view route, std::string_view path, std::map<std::string, std::string>& parameters) {
  while (!route.empty() && !path.empty()) {
    const auto of_route = route.substr(0, route.find('/', 1)), of_path = path.substr(0, path.find('/', 1));
    if (!of_path.starts_with('/')) return false;
    if (of_route.starts_with("/{") && of_path.size() > 1) {
      parameters[std::string(of_route.substr(2, of_route.size() - 3))] = of_path.substr(1);
    } else if (of_route != of_path) {
      return false;
    }
    route.remove_prefix(of_route.size());
    path.remove_prefix(of_path.size());
  }
  return route.empty() && path.empty();
}

Json responses_of(const HttpRoute& route) {
  const auto content = [](const std::string& type, const Json& schema) {
    return Json{{type, schema.is_null() ? Json::object() : Json{{"schema", schema}}}};
  };
  Json responses = {{"200", {{"description", "OK"}, {"content", content(route.result_type, route.result)}}}};
  std::map<std::string, std::string> problems = {{"400", "The request is malformed."},
                                                 {"403", "Host, Origin or scope are not allowed."},
                                                 {"405", "The path has other methods."},
                                                 {"413", "The body is too large."},
                                                 {"415", "The body is compressed, or no JSON."},
                                                 {"429", "There are too many requests, or wrong tokens."},
                                                 {"431", "The header is too large."}};
  if (route.scope != Scope::open) problems.emplace("401", "The token is missing or wrong.");
  if (!route.body.is_null() || !route.parameters.empty()) problems.emplace("422", "A value is refused.");
  for (const auto& [status, when] : route.other_results) {
    if (status[0] == '2') {
      responses[status] = {{"description", when}, {"content", content(route.result_type, route.result)}};
    } else {
      problems[status] = when;
    }
  }
  for (const auto& [status, when] : problems) {
    responses[status] = {{"description", when},
                         {"content", content("application/problem+json", {{"$ref", "#/components/schemas/Problem"}})}};
  }
  return responses;
}

}  // namespace

std::int64_t HttpCall::integer(const std::string& name, std::int64_t fallback, std::int64_t min,
                               std::int64_t max) const {
  const auto found = parameters.find(name);
  if (found == parameters.end()) return fallback;
  std::int64_t value = 0;
  const char *begin = found->second.data(), *end = begin + found->second.size();
  const auto [stopped_at, trouble] = std::from_chars(begin, end, value);
  if (trouble == std::errc() && stopped_at == end && begin != end && value >= min && value <= max) return value;
  throw HttpRefused{422, name + " must be a whole number from " + std::to_string(min) + " to " + std::to_string(max)};
}

HttpResponse json_response(const Json& body, unsigned status) {
  return {.status = status, .body = vernier::json_text(body) + "\n", .content_type = "application/json"};
}

std::string time_text(std::chrono::seconds ago) {
  const auto now = std::chrono::system_clock::now() - ago;
  const auto time = std::chrono::system_clock::to_time_t(now);
  const auto whole = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char day[32] = "", text[48] = "";
  std::strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text, sizeof text, "%s.%03dZ", day, static_cast<int>(whole % 1000));
  return text;
}

HttpService::HttpService(std::string title, std::string version, Tokens tokens, std::vector<std::string> hosts,
                         std::vector<HttpRoute> routes)
    : title_(std::move(title)),
      version_(std::move(version)),
      tokens_(std::move(tokens)),
      hosts_(std::move(hosts)),
      routes_(std::move(routes)) {
  routes_.push_back({.path = "/v1/openapi.json",
                     .scope = Scope::open,
                     .id = "get_document",
                     .summary = "This document",
                     .result = {{"type", "object"}},
                     .answer = [this](const HttpCall&) { return json_response(document()); }});
  for (const auto& file : shared_page_files()) routes_.push_back(page_route(file));
}

HttpService::Match HttpService::match(const HttpRequest& request) const {
  const auto path = request.path();
  const auto method = request.method == "HEAD" ? "GET" : request.method;
  Match match;
  for (const auto& route : routes_) {
    std::map<std::string, std::string> parameters;
    if (!is_path_of(route.path, path, parameters)) continue;
    if (route.method == method) return {.route = &route, .parameters = std::move(parameters)};
    match.others.push_back(route.method);
    if (route.method == "GET") match.others.push_back("HEAD");
  }
  return match;
}

// Browsers send Origin with cross-site requests. Other Host names are rejected, or DNS rebinding would work.
std::optional<HttpResponse> HttpService::trouble_with_origin(const HttpRequest& request) const {
  const std::string host(request.field("host"));
  const auto colon = host.rfind(':');
  const auto name = host.substr(0, colon);
  const bool is_local = (name == "127.0.0.1" || name == "localhost" || name == "[::1]") && colon != host.npos &&
                        host.substr(colon + 1) == std::to_string(request.port);
  if (!is_local && std::ranges::find(hosts_, host) == hosts_.end()) {
    return problem(403, "this service has another Host; see the option `hosts` for other names");
  }
  const auto site = request.field("sec-fetch-site");
  const bool is_other_site = !site.empty() && site != "same-origin" && site != "none";
  const bool is_other_origin =
      request.count("origin") > 0 && request.field("origin") != (request.is_encrypted ? "https://" : "http://") + host;
  if (is_other_site || is_other_origin) return problem(403, "pages of other sites may not ask here");
  return std::nullopt;
}

// Scope::open without a token, and with a wrong one.
Tokens::Holder HttpService::holder_of(const HttpRequest& request) {
  constexpr std::string_view scheme = "Bearer ";
  const auto given = request.field("authorization");
  return given.starts_with(scheme) ? tokens_.holder_of(given.substr(scheme.size())) : Tokens::Holder{};
}

// A good token always passes. Wrong ones may come at two a second: all clients of this machine have one address.
std::optional<HttpResponse> HttpService::trouble_with_token(const HttpRequest& request, Scope needed) {
  constexpr double failures_per_second = 2, most = 20;
  const bool is_given = request.count("authorization") > 0;
  const auto [scope, name, has_expired] = holder_of(request);
  if (scope >= needed) return std::nullopt;
  if (scope != Scope::open) {
    return problem(403, std::string("this token may not do that: its scope is ") + name_of(scope) + ", and " +
                            name_of(needed) + " is needed");
  }
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(counted_, now)).count();
  failures_left_ = std::min(most, failures_left_ + seconds * failures_per_second);
  if (is_given && failures_left_ < 1) {
    return problem(429, "there were too many wrong tokens; ask again later", {{"Retry-After", "5"}});
  }
  if (is_given) failures_left_ -= 1;
  return problem(401,
                 has_expired
                     ? "this token has expired; ask for another one"
                     : "this needs a token, Authorization: Bearer …, from " + tokens_.file().filename().string(),
                 {{"WWW-Authenticate", "Bearer"}});
}

std::optional<HttpResponse> HttpService::refuse(const HttpRequest& request) {
  auto refusal = [&]() -> std::optional<HttpResponse> {
    if (auto trouble = trouble_with_origin(request)) return trouble;
    const auto found = match(request);
    if (found.route == nullptr) {
      if (found.others.empty()) return problem(404, "there is nothing at this path; see /v1/openapi.json");
      const auto allowed = boost::algorithm::join(found.others, ", ");
      return problem(405, "this path has other methods: " + allowed, {{"Allow", allowed}});
    }
    if (auto trouble = trouble_with_token(request, found.route->scope)) return trouble;
    const auto type = request.field("content-type");
    const bool is_json = type == "application/json" || type == "application/json; charset=utf-8";
    if (!found.route->body.is_null() && !is_json) return problem(415, "the body must be application/json");
    return std::nullopt;
  }();
  if (refusal) return with_safe_fields(std::move(*refusal));
  return std::nullopt;
}

// Returns the parameters of the path and of the query: those that the route declares, once each.
std::map<std::string, std::string> HttpService::parameters_of(const HttpRequest& request, const Match& match) {
  auto parameters = match.parameters;
  const auto question = request.target.find('?');
  std::string_view query = question == request.target.npos ? "" : std::string_view(request.target).substr(question + 1);
  while (!query.empty()) {
    const auto end = std::min(query.find('&'), query.size());
    const auto pair = query.substr(0, end);
    query.remove_prefix(std::min(query.size(), end + 1));
    const auto name = decoded(pair.substr(0, pair.find('=')));
    const auto value = pair.find('=') == pair.npos ? "" : decoded(pair.substr(pair.find('=') + 1));
    const bool is_known = std::ranges::any_of(
        match.route->parameters, [&](const Json& each) { return each.at("in") == "query" && each.at("name") == name; });
    if (!is_known) throw HttpRefused{422, "this path has no parameter of that name; see /v1/openapi.json"};
    if (!parameters.emplace(name, value).second) throw HttpRefused{422, name + " is given twice"};
  }
  return parameters;
}

HttpResponse HttpService::answer(const HttpRequest& request) {
  const auto found = match(request);  // refuse() let it pass
  try {
    const auto holder = holder_of(request);
    HttpCall call{.parameters = parameters_of(request, found),
                  .body = nullptr,
                  .who = holder.scope == Scope::open ? name_of(holder.scope) : holder.name,
                  .scope = holder.scope,
                  .from = std::string(Tokens::is_name(request.field("from")) ? request.field("from") : ""),
                  .last_event = std::string(request.field("last-event-id"))};
    if (!found.route->body.is_null()) {
      // All clients wait meanwhile.
      const auto trouble = trouble_with_json(request.body, /*deepest=*/16, /*most_compared=*/1e8);
      if (!trouble.empty()) throw HttpRefused{422, "the body " + trouble};
      call.body = Json::parse(request.body, nullptr, /*allow_exceptions=*/false);
      if (!call.body.is_object())
        throw HttpRefused{call.body.is_discarded() ? 400U : 422U, "the body must be a JSON object"};
    } else if (!request.body.empty()) {
      throw HttpRefused{400, "this request must have no body"};
    }
    const std::string given(request.field("authorization"));
    const auto safe = [this, needed = found.route->scope, given](HttpResponse answer) {
      answer = with_safe_fields(std::move(answer));
      if (!answer.more) return answer;
      answer.more = [this, more = std::move(answer.more), needed, given] {  // a stream ends with its token
        if (holder_of({.method = "", .target = "", .fields = {{"authorization", given}}}).scope < needed) {
          throw HttpError("the token of this stream is not good any more");
        }
        return more();
      };
      return answer;
    };
    auto response = safe(found.route->answer(call));
    if (response.later) {
      response.later = [later = std::move(response.later), safe](bool last) {
        auto answer = later(last);
        return answer ? std::optional(safe(std::move(*answer))) : std::nullopt;
      };
    }
    return response;
  } catch (const HttpRefused& refused) {
    return with_safe_fields(problem(refused.status, refused.detail));
  }
}

Json HttpService::document() const {
  using namespace schema;
  const auto problem = object_of({{"type", text}, {"title", text}, {"status", integer}, {"detail", text}});
  Json paths = Json::object(), schemas = {{"Problem", problem}};
  for (const auto& route : routes_) {
    for (const auto& [name, schema] : route.schemas) schemas[name] = schema;
    Json operation = {{"operationId", route.id}, {"summary", route.summary}};
    if (route.scope != Scope::open) {
      operation["security"] = Json::array({Json{{"token", Json::array()}}});
      operation["x-scope"] = name_of(route.scope);
    }
    if (!route.parameters.empty()) operation["parameters"] = route.parameters;
    if (!route.body.is_null()) {
      operation["requestBody"] = {{"required", true}, {"content", {{"application/json", {{"schema", route.body}}}}}};
    }
    operation["responses"] = responses_of(route);
    paths[route.path][boost::algorithm::to_lower_copy(route.method)] = std::move(operation);
  }
  return {
      {"openapi", "3.1.0"},
      {"info", {{"title", title_}, {"version", version_}}},
      {"paths", std::move(paths)},
      {"components",
       {{"schemas", std::move(schemas)}, {"securitySchemes", {{"token", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
}

}  // namespace vernier
