#include "server.h"

#include <vernier/error.h>
#include <vernier/json_text.h>

#include <iostream>
#include <regex>

#include "service/http/model_server.h"

namespace vernier {

namespace {

struct Exchange final : ModelRequest {
  Json rows;
};

// {"error": "…", "row": 1, "column": "colour"}, as KServe has it, with the place where it is known.
HttpResponse problem_of_rows(HttpResponse given) {
  const std::string reason = Json::parse(given.body)["detail"];
  Json body = {{"error", reason}};
  std::smatch found;
  static const std::regex row("instances\\[([0-9]{1,9})\\]"), column("column '([^']*)'");
  if (std::regex_search(reason, found, row)) body["row"] = std::stol(found[1]);
  if (std::regex_search(reason, found, column)) body["column"] = found[1];
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
