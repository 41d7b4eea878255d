#include "model_server.h"

#include <algorithm>
#include <csignal>
#include <iostream>

namespace vernier {

namespace {

void warn(const std::string& text) {
  std::cerr << "vernier: " << text << std::endl;
}

// Refuses an address before a file of tokens is made.
ModelServerOptions checked(ModelServerOptions options) {
  if (const auto trouble = trouble_with_listen(options.listen); !trouble.empty()) {
    throw HttpError("--listen " + options.listen + ": " + trouble);
  }
  if (is_loopback(options.listen)) return options;
  throw HttpError("--listen " + options.listen +
                  ": is reached by other machines, and there is no encryption; listen at 127.0.0.1, and reach it from "
                  "elsewhere through ssh -L");
}

}  // namespace

void ModelRequest::answer(HttpResponse response) {
  const std::lock_guard lock(mutex_);
  answer_ = std::move(response);
}

void ModelRequest::send(const std::string& text, bool is_over) {
  const std::lock_guard lock(mutex_);
  ready_ = ready_.value_or("") + text;
  is_over_ = is_over;
}

bool ModelRequest::has_sent() {
  const std::lock_guard lock(mutex_);
  return ready_.has_value();
}

ModelServer::ModelServer(const ModelServerOptions& options, std::vector<HttpRoute> routes,
                         std::function<HttpResponse(HttpResponse)> problems)
    : options_(checked(options)),
      service_(options.title, options.version, Tokens(options.tokens, Scope::read, warn), {}, std::move(routes)),
      server_(
          options.listen, [this](const HttpRequest& request) { return service_.answer(request); },
          [this](const HttpRequest& request) { return service_.refuse(request); }, limits(std::move(problems))) {
  std::signal(SIGPIPE, SIG_IGN);
}

HttpLimits ModelServer::limits(std::function<HttpResponse(HttpResponse)> problems) {
  HttpLimits limits;
  limits.body = 4 * 1024 * 1024;
  constexpr std::size_t others = 64;  // connections that are answered at once, or idle
  limits.connections = std::max(limits.connections, options_.queue + others);
  limits.streams = std::max(limits.streams, options_.queue + 1);  // and the one that is computed
  limits.knows = [this](const HttpRequest& request) { return service_.knows(request); };
  limits.later = std::chrono::hours(24);  // a client that goes away is noticed
  limits.problems = std::move(problems);
  return limits;
}

std::string ModelServer::address() const {
  return options_.listen.substr(0, options_.listen.rfind(':') + 1) + std::to_string(server_.port());
}

HttpResponse ModelServer::take(const std::function<std::shared_ptr<ModelRequest>()>& read) {
  {
    const std::lock_guard lock(mutex_);  // a full queue refuses before it reads: long requests take time
    std::erase_if(waiting_, [](const auto& each) { return !each->is_wanted(); });
    if (waiting_.size() >= options_.queue) {
      throw HttpRefused{503, std::to_string(waiting_.size()) + " requests wait already; ask again later"};
    }
  }
  const auto request = read();
  const auto client = std::make_shared<int>();
  request->client_ = client;
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(request);
  }
  is_there_.notify_one();
  HttpResponse stream{.content_type = "text/event-stream"};
  stream.more = [request, client] {
    const std::lock_guard lock(request->mutex_);
    if (request->ready_->empty() && request->is_over_) throw HttpError("the stream has ended");
    return std::exchange(*request->ready_, "");
  };
  HttpResponse response;
  response.later = [request, stream](bool last) {
    const std::lock_guard lock(request->mutex_);
    if (request->ready_) return std::optional(stream);
    if (last && !request->answer_) return std::optional(problem(503, "the server ends"));
    return request->answer_;
  };
  return response;
}

std::shared_ptr<ModelRequest> ModelServer::next() {
  std::unique_lock lock(mutex_);
  while (*options_.stop_signal == 0) {
    is_there_.wait_for(lock, std::chrono::milliseconds(100), [this] { return !waiting_.empty(); });
    while (!waiting_.empty()) {
      const auto request = waiting_.front();
      waiting_.pop_front();
      if (request->is_wanted()) return request;
    }
  }
  return nullptr;
}

void ModelServer::run(const std::function<void(ModelRequest&)>& work,
                      const std::function<void(ModelRequest&, const std::exception&)>& fail) {
  while (const auto request = next()) {
    try {
      work(*request);
    } catch (const std::exception& error) {  // also of LibTorch, and if there is no memory
      if (*options_.stop_signal != 0) return;
      fail(*request, error);
    }
    server_.wake();
  }
}

}  // namespace vernier
