#include "server.h"

#include <vernier/error.h>
#include <vernier/json_text.h>

#include <iostream>

#include "openai.h"
#include "service/http/model_server.h"

namespace vernier {

namespace {

// Between the server's thread, which has the client, and the main thread, which has the model.
struct Exchange final : ModelRequest {
  openai::Body body;
  bool is_chat = true;
  openai::Request request;
};

HttpResponse problem_of_openai(HttpResponse given) {
  const auto problem = Json::parse(given.body);
  auto answer = json_response(openai::error(given.status, problem["detail"]), given.status);
  answer.fields = std::move(given.fields);
  return answer;
}

class Server {
 public:
  Server(const Generator& generator, const GenerationSettings& settings, const CompletionServer& server)
      : generator_(generator),
        settings_(settings),
        options_(server),
        server_(
            {"Vernier: completions", VERNIER_VERSION, server.listen, server.tokens, server.queue, server.stop_signal},
            routes(), problem_of_openai) {}

  void run() {
    std::cerr << "vernier: completions of " << options_.model << " are at http://" << server_.address()
              << "/v1, with a token of " << options_.tokens << std::endl;
    server_.run([this](ModelRequest& request) { complete(static_cast<Exchange&>(request)); },
                [](ModelRequest& request, const std::exception& error) {
                  const auto reason = message(error);
                  std::cerr << "vernier: " << reason << std::endl;
                  if (!request.has_sent()) return request.answer(problem(500, reason));
                  request.send("data: " + json_text(openai::error(500, reason)) + "\n\n", /*is_over=*/true);
                });
  }

 private:
  std::vector<HttpRoute> routes() {
    const Json object = {{"type", "object"}};
    const auto models = [this] {
      return Json{{"id", options_.model}, {"object", "model"}, {"created", began_}, {"owned_by", "vernier"}};
    };
    const auto post = [&](const char* path, const char* id, const char* summary, bool is_chat) {
      return HttpRoute{.method = "POST",
                       .path = path,
                       .id = id,
                       .summary = summary,
                       .body = object,
                       .result = object,
                       .other_results = {{"503", "Too many requests wait."}},
                       .answer = [this, is_chat](const HttpCall& call) { return take(call, is_chat); }};
    };
    return {{.path = "/v1/models",
             .id = "list_models",
             .summary = "The model",
             .result = object,
             .answer =
                 [=](const HttpCall&) {
                   return json_response({{"object", "list"}, {"data", Json::array({models()})}});
                 }},
            {.path = "/v1/models/{model}",
             .id = "get_model",
             .summary = "The model",
             .parameters = Json::array(),
             .result = object,
             .answer =
                 [=, this](const HttpCall& call) {
                   require_model(call.parameters.at("model"));
                   return json_response(models());
                 }},
            post("/v1/chat/completions", "chat", "Answers a chat", true),
            post("/v1/completions", "complete", "Continues texts", false)};
  }

  void require_model(const Json& name) const {
    if (name == options_.model) return;
    throw HttpRefused{404, "there is no model " + json_text(name) + " here; it is \"" + options_.model + "\""};
  }

  // Server's thread.
  HttpResponse take(const HttpCall& call, bool is_chat) {
    require_model(call.body.value("model", Json()));
    return server_.take([&] {
      const auto exchange = std::make_shared<Exchange>();
      exchange->body = call.body;
      exchange->is_chat = is_chat;
      return exchange;
    });
  }

  // Texts are encoded here, and not on the server's thread: a long one takes a second. Returns false for a request that
  // is refused.
  bool read(Exchange& exchange) {
    auto& request = exchange.request;
    try {
      request = openai::read_request(std::exchange(exchange.body, {}), exchange.is_chat, settings_, generator_);
    } catch (const Error& error) {
      exchange.answer(problem(400, message(error)));
      return false;
    }
    request.model = options_.model;
    request.created = std::time(nullptr);
    request.id = (exchange.is_chat ? "chatcmpl-" : "cmpl-") + std::to_string(began_) + "-" + std::to_string(++taken_);
    return true;
  }

  void send(Exchange& exchange, const std::string& text, bool is_over = false) {
    exchange.send(text, is_over);
    server_.wake();
  }

  void complete(Exchange& exchange) {
    if (!read(exchange)) return;
    const auto& request = exchange.request;
    const auto count = static_cast<std::size_t>(request.settings.count);
    std::vector<Completion> choices(request.prompts.size() * count);
    std::size_t prompt = 0, tokens = 0;
    generator_.run(request.settings, [&]() -> std::optional<PromptJob> {
      if (prompt == request.prompts.size()) return std::nullopt;
      const auto first = prompt * count;
      PromptJob job;
      job.prompt = request.prompts[prompt];
      job.more_seed = prompt;
      job.is_wanted = [&] { return exchange.is_wanted(); };
      if (request.streams) {
        job.print = [&, first](std::size_t i, const std::string& text, auto fresh, auto offsets) {
          send(exchange, openai::piece(request, first + i, text, fresh, generator_.codec(), offsets));
        };
      }
      job.done = [&, first](const std::vector<Completion>& done) {
        for (std::size_t i = 0; i < done.size(); ++i) {
          tokens += static_cast<std::size_t>(done[i].tokens);
          if (request.streams) send(exchange, openai::last_piece(request, first + i, done[i].end));
          choices[first + i] = done[i];
        }
      };
      ++prompt;
      return job;
    });
    if (request.streams) return send(exchange, openai::end_of_stream(request, tokens), /*is_over=*/true);
    exchange.answer(json_response(openai::answer(request, choices, generator_.codec())));
  }

  const Generator& generator_;
  const GenerationSettings& settings_;
  const CompletionServer& options_;
  std::int64_t began_ = std::time(nullptr), taken_ = 0;
  ModelServer server_;  // its thread uses all of the above
};

}  // namespace

void serve_completions(const Generator& generator, const GenerationSettings& settings, const CompletionServer& server) {
  try {
    Server(generator, settings, server).run();
  } catch (const HttpError& error) {
    refuse(error.what());
  }
}

}  // namespace vernier
