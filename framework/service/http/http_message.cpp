#include "http_message.h"

#include <vernier/json_text.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace vernier {

namespace {

std::string title_of(unsigned status) {
  constexpr std::pair<unsigned, const char*> titles[] = {{400, "Bad Request"},
                                                         {401, "Unauthorized"},
                                                         {403, "Forbidden"},
                                                         {404, "Not Found"},
                                                         {405, "Method Not Allowed"},
                                                         {409, "Conflict"},
                                                         {413, "Content Too Large"},
                                                         {415, "Unsupported Media Type"},
                                                         {417, "Expectation Failed"},
                                                         {422, "Unprocessable Content"},
                                                         {429, "Too Many Requests"},
                                                         {431, "Request Header Fields Too Large"},
                                                         {500, "Internal Server Error"},
                                                         {503, "Service Unavailable"}};
  const auto* found = std::ranges::find(titles, status, &std::pair<unsigned, const char*>::first);
  return found == std::end(titles) ? "Error" : found->second;
}

}  // namespace

std::string_view HttpRequest::field(std::string_view name) const {
  const auto found = std::ranges::find(fields, name, &std::pair<std::string, std::string>::first);
  return found == fields.end() ? std::string_view() : std::string_view(found->second);
}

std::size_t HttpRequest::count(std::string_view name) const {
  return static_cast<std::size_t>(std::ranges::count(fields, name, &std::pair<std::string, std::string>::first));
}

HttpResponse problem(unsigned status, const std::string& detail, HttpFields fields) {
  const nlohmann::ordered_json body = {
      {"type", "about:blank"}, {"title", title_of(status)}, {"status", status}, {"detail", detail}};
  // Text from outside may be invalid UTF-8.
  return {.status = status,
          .body = vernier::json_text(body) + "\n",
          .content_type = problem_type,
          .fields = std::move(fields)};
}

std::optional<HttpResponse> trouble_with_header(const HttpRequest& request) {
  constexpr std::size_t most_fields = 64;
  const auto bad = [](const char* why) { return problem(400, why); };
  if (request.fields.size() > most_fields) return problem(431, "the request has more than 64 header fields");
  const bool is_visible = std::ranges::all_of(request.target, [](char c) { return c > 32 && c < 127; });
  if (!request.target.starts_with('/') || !is_visible) return bad("the target must be a path, /v1/run");
  const auto host_count = request.count("host");
  if (host_count > 1 || (host_count == 0 && request.version >= 11)) return bad("there must be one Host field");
  const auto length_count = request.count("content-length"), coding_count = request.count("transfer-encoding");
  const auto length = request.field("content-length");
  const bool is_number = !length.empty() && length.find_first_not_of("0123456789") == length.npos;
  if (length_count > 1 || (length_count == 1 && !is_number)) {
    return bad("there must be one Content-Length, a number");
  }
  if (coding_count > 0) {
    const bool is_plain = coding_count == 1 && request.field("transfer-encoding") == "chunked";
    if (!is_plain || length_count > 0 || request.version < 11) return bad("the only Transfer-Encoding is chunked");
  }
  for (const char* name : {"upgrade", "trailer"}) {
    if (request.count(name) > 0) return bad("Upgrade and Trailer are not offered here");
  }
  if (request.count("content-encoding") > 0) return problem(415, "a body must not be compressed");
  if (request.count("authorization") > 1) return bad("there must be one Authorization field");
  if (request.count("expect") > 0 && request.field("expect") != "100-continue") {
    return problem(417, "the only expectation is 100-continue");
  }
  return std::nullopt;
}

}  // namespace vernier
