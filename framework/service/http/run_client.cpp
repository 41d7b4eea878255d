#include "run_client.h"

#include <vernier/json_in.h>

#include <sstream>

#include "http_client.h"

namespace vernier {

HttpResponse ask_run(const AskedRun& run, const std::string& method, const std::string& target,
                     const std::string& body) {
  auto url = run.url;
  while (!url.empty() && (url.back() == '\n' || url.back() == '/')) url.pop_back();
  std::istringstream lines(run.tokens);
  std::string token;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("control ")) token = line.substr(8);
  }
  if (url.empty() || token.empty()) throw HttpError("it has not begun, or is over");
  HttpRequest request{.method = method, .target = target};
  request.fields = {{"Authorization", "Bearer " + token}, {"From", run.who}};
  if (!body.empty()) request.fields.emplace_back("Content-Type", "application/json");
  request.body = body;
  const auto place = place_of(url);
  if (place.host != "127.0.0.1" && place.host != "[::1]") {  // somebody else may have written the file
    throw HttpError("control.url names another machine, " + place.host);
  }
  auto answer = ask_server(place, request, run.time);
  if (json_in<nlohmann::json>(answer.body).is_discarded()) throw HttpError("its answer is not JSON");
  return answer;
}

}  // namespace vernier
