#include "server.h"

#include <vernier/error.h>
#include <vernier/json_text.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <iostream>
#include <mutex>

#include "openai.h"
#include "service/http/http_server.h"
#include "service/http/http_service.h"

namespace vernier {

namespace {

constexpr std::size_t largest_request = 4 * 1024 * 1024;  // bytes

// Between the server's thread, which has the client, and the main thread, which has the model.
struct Exchange {
  openai::Request request;
  std::weak_ptr<int> client;  // expired: it is gone

  std::mutex mutex;
  std::string ready;                   // text that a stream has ready
  std::optional<HttpResponse> answer;  // answer to a request without a stream
  bool is_over = false;                // the stream has ended
};

class Server {
 public:
  Server(const Generator& generator, const GenerationSettings& settings, const CompletionServer& server)
      : generator_(generator),
        settings_(settings),
        options_(server),
        service_("Vernier: completions", VERNIER_VERSION, Tokens(server.tokens, Scope::read, say), {}, routes()),
        server_(
            server.listen, [this](const HttpRequest& request) { return service_.answer(request); },
            [this](const HttpRequest& request) { return service_.refuse(request); }, limits()) {}

  void run() {
    const auto address = options_.listen.substr(0, options_.listen.rfind(':') + 1) + std::to_string(server_.port());
    say("completions of " + options_.model + " are at http://" + address + "/v1, with a token of " + options_.tokens);
    while (const auto exchange = next()) {
      try {
        complete(*exchange);
      } catch (const std::exception& error) {  // also of LibTorch, and if there is no memory
        if (*options_.stop_signal != 0) return;
        fail(*exchange, message(error));
      }
      server_.wake();
    }
  }

 private:
  static void say(const std::string& text) { std::cerr << "vernier: " << text << std::endl; }

  HttpLimits limits() {
    HttpLimits limits;
    limits.body = largest_request;
    constexpr std::size_t others = 64;  // connections that are answered at once, or idle
    limits.connections = std::max(limits.connections, options_.queue + others);
    limits.streams = std::max(limits.streams, options_.queue + 1);  // and the one that is computed
    limits.knows = [this](const HttpRequest& request) { return service_.knows(request); };
    limits.later = std::chrono::hours(24);  // a client that goes away is noticed
    limits.problems = [](HttpResponse given) {
      const auto problem = Json::parse(given.body);
      auto answer = json_response(openai::error(given.status, problem["detail"]), given.status);
      answer.fields = std::move(given.fields);
      return answer;
    };
    return limits;
  }

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
    {
      const std::lock_guard lock(mutex_);  // a full queue refuses before it reads: long prompts take time
      std::erase_if(waiting_, [](const auto& each) { return each->client.expired(); });
      if (waiting_.size() >= options_.queue) {
        throw HttpRefused{503, std::to_string(waiting_.size()) + " requests wait already; ask again later"};
      }
    }
    const auto exchange = std::make_shared<Exchange>();
    try {
      exchange->request = openai::read_request(call.body, is_chat, settings_, generator_);
    } catch (const Error& error) {
      throw HttpRefused{400, message(error)};
    }
    auto& request = exchange->request;
    request.model = options_.model;
    request.created = std::time(nullptr);
    request.id = (is_chat ? "chatcmpl-" : "cmpl-") + std::to_string(began_) + "-" + std::to_string(++taken_);
    const auto client = std::make_shared<int>();
    exchange->client = client;
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(exchange);
    }
    is_there_.notify_one();
    return request.streams ? stream_of(exchange, client) : answer_of(exchange, client);
  }

  static HttpResponse stream_of(std::shared_ptr<Exchange> exchange, std::shared_ptr<int> client) {
    HttpResponse response{.content_type = "text/event-stream"};
    response.more = [exchange = std::move(exchange), client = std::move(client)] {
      const std::lock_guard lock(exchange->mutex);
      if (exchange->ready.empty() && exchange->is_over) throw HttpError("the stream has ended");
      return std::exchange(exchange->ready, "");
    };
    return response;
  }

  static HttpResponse answer_of(std::shared_ptr<Exchange> exchange, std::shared_ptr<int> client) {
    HttpResponse response;
    response.later = [exchange = std::move(exchange), client = std::move(client)](bool last) {
      const std::lock_guard lock(exchange->mutex);
      if (last && !exchange->answer) return std::optional(problem(503, "the server ends"));
      return exchange->answer;
    };
    return response;
  }

  // Main thread. Returns nothing when a signal has come.
  std::shared_ptr<Exchange> next() {
    std::unique_lock lock(mutex_);
    while (*options_.stop_signal == 0) {
      is_there_.wait_for(lock, std::chrono::milliseconds(100), [this] { return !waiting_.empty(); });
      while (!waiting_.empty()) {
        const auto exchange = waiting_.front();
        waiting_.pop_front();
        if (!exchange->client.expired()) return exchange;
      }
    }
    return nullptr;
  }

  void send(Exchange& exchange, const std::string& text, bool is_over = false) {
    {
      const std::lock_guard lock(exchange.mutex);
      exchange.ready += text;
      exchange.is_over = is_over;
    }
    server_.wake();
  }

  void complete(Exchange& exchange) {
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
      job.is_wanted = [&] { return !exchange.client.expired(); };
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
    const std::lock_guard lock(exchange.mutex);
    exchange.answer = json_response(openai::answer(request, choices, generator_.codec()));
  }

  void fail(Exchange& exchange, const std::string& reason) {
    say(reason);
    if (exchange.request.streams) {
      return send(exchange, "data: " + json_text(openai::error(500, reason)) + "\n\n", /*is_over=*/true);
    }
    const std::lock_guard lock(exchange.mutex);
    exchange.answer = problem(500, reason);
  }

  const Generator& generator_;
  const GenerationSettings& settings_;
  const CompletionServer& options_;
  std::int64_t began_ = std::time(nullptr), taken_ = 0;
  std::mutex mutex_;
  std::condition_variable is_there_;
  std::deque<std::shared_ptr<Exchange>> waiting_;
  HttpService service_;
  HttpServer server_;  // its thread uses all of the above
};

}  // namespace

void serve_completions(const Generator& generator, const GenerationSettings& settings, const CompletionServer& server) {
  if (const auto trouble = trouble_with_listen(server.listen); !trouble.empty()) {
    refuse("--listen " + server.listen + ": " + trouble);
  }
  if (!is_loopback(server.listen)) {
    refuse("--listen " + server.listen +
           ": is reached by other machines, and there is no encryption; listen at "
           "127.0.0.1, and reach it from elsewhere through ssh -L");
  }
  std::signal(SIGPIPE, SIG_IGN);
  try {
    Server(generator, settings, server).run();
  } catch (const HttpError& error) {
    refuse(error.what());
  }
}

}  // namespace vernier
