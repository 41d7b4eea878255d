#include "server.h"

#include <vernier/error.h>
#include <vernier/json_text.h>

#include <iostream>

#include "service/http/model_server.h"

namespace vernier {

namespace {

struct Exchange final : ModelRequest {
  Json rows;
};

// Returns what stands in a text between `before` and the next `end`; "" if one of them is missing.
std::string between(const std::string& text, const std::string& before, char end) {
  const auto found = text.find(before);
  const auto begin = found == text.npos ? text.size() : found + before.size(), stop = text.find(end, begin);
  return stop == text.npos ? "" : text.substr(begin, stop - begin);
}

// {"error": "…", "row": 1, "column": "colour"}, as KServe has it, with the place where it is known.
HttpResponse problem_of_rows(HttpResponse given) {
  const std::string reason = Json::parse(given.body)["detail"];
  Json body = {{"error", reason}};
  const auto row = between(reason, "instances[", ']'), column = between(reason, "column '", '\'');
  const bool is_number = !row.empty() && row.size() < 10 && row.find_first_not_of("0123456789") == row.npos;
  if (is_number) body["row"] = std::stol(row);
  if (!column.empty()) body["column"] = column;
  auto answer = json_response(body, given.status);
  answer.fields = std::move(given.fields);
  return answer;
}

// The rows of a body as TensorFlow Serving, KServe and MLflow have it.
Json rows_of(const Json& body) {
  for (const char* key : {"instances", "dataframe_records"}) {
    if (!body.contains(key)) continue;
    const auto& rows = body[key];
    return rows.is_array() ? rows : Json::array({rows});
  }
  const auto split = body.value("dataframe_split", Json());
  if (!split.is_object() || !split.value("columns", Json()).is_array() || !split.value("data", Json()).is_array()) {
    throw HttpRefused{400, "write {\"instances\": [{\"COLUMN\": VALUE, …}, …]}, a row in each object"};
  }
  // A row compares each of its names with all before it.
  constexpr double most_compared = 2e8;
  const auto names = static_cast<double>(split["columns"].size()), count = static_cast<double>(split["data"].size());
  if (names * names * count > most_compared) throw HttpRefused{400, "has too many columns; send fewer rows at once"};
  auto rows = Json::array();
  for (const auto& values : split["data"]) {
    if (!values.is_array() || values.size() != split["columns"].size()) {
      throw HttpRefused{400, "instances[" + std::to_string(rows.size()) + "]: has not a value for each of the columns"};
    }
    auto row = Json::object();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!split["columns"][i].is_string()) throw HttpRefused{400, "\"columns\" must be a list of names"};
      row[split["columns"][i].get<std::string>()] = values[i];
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

class Server {
 public:
  explicit Server(const PredictionServer& options)
      : options_(options),
        server_({"Vernier: predictions", VERNIER_VERSION, options.listen, options.tokens, options.queue,
                 options.stop_signal},
                routes(), problem_of_rows) {}

  void run(const Predict& predict) {
    std::cerr << "vernier: predictions of " << options_.model << " are at http://" << server_.address()
              << "/v1/predict, with a token of " << options_.tokens << std::endl;
    server_.run(
        [&](ModelRequest& request) {
          try {
            const auto is_wanted = [&] { return request.is_wanted(); };
            request.answer(json_response({{"predictions", predict(static_cast<Exchange&>(request).rows, is_wanted)}}));
          } catch (const Error& error) {
            if (error.kind() != Error::Kind::configuration) throw;
            request.answer(problem(400, message(error)));
          }
        },
        [](ModelRequest& request, const std::exception& error) {
          std::cerr << "vernier: " << message(error) << std::endl;
          request.answer(problem(500, message(error)));
        });
  }

 private:
  std::vector<HttpRoute> routes() {
    const Json object = {{"type", "object"}};
    const auto health = [&](const char* path, const char* id) {
      const auto answer = [](const HttpCall&) { return json_response({{"status", "ok"}}); };
      return HttpRoute{.path = path,
                       .scope = Scope::open,
                       .id = id,
                       .summary = "The server answers",
                       .result = object,
                       .answer = answer};
    };
    const auto post = [&](const std::string& path, const char* id) {
      return HttpRoute{.method = "POST",
                       .path = path,
                       .id = id,
                       .summary = "Predicts for rows",
                       .body = object,
                       .result = object,
                       .other_results = {{"503", "Too many requests wait."}},
                       .answer = [this](const HttpCall& call) { return take(call); }};
    };
    return {health("/health", "health"), health("/ping", "ping"), post("/v1/predict", "predict"),
            post("/invocations", "invocations"), post("/v1/models/" + options_.model + ":predict", "predict_of_model")};
  }

  // Server's thread.
  HttpResponse take(const HttpCall& call) {
    return server_.take([&] {
      const auto exchange = std::make_shared<Exchange>();
      exchange->rows = rows_of(call.body);
      return exchange;
    });
  }

  const PredictionServer& options_;
  ModelServer server_;  // its thread uses all of the above
};

}  // namespace

void serve_predictions(const PredictionServer& server, const Predict& predict) {
  try {
    Server(server).run(predict);
  } catch (const HttpError& error) {
    refuse(error.what());
  }
}

}  // namespace vernier
