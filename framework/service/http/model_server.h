// A server for one model. The server's thread has the clients, and the thread that calls run() has the model.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "http_server.h"
#include "http_service.h"

namespace vernier {

// A request that waits for the model. Any thread.
class ModelRequest {
 public:
  virtual ~ModelRequest() = default;
  bool is_wanted() const { return !client_.expired(); }  // false: the client is gone
  void answer(HttpResponse response);
  // The next text of a stream; the first one makes the answer a stream.
  void send(const std::string& text, bool is_over);
  bool has_sent();

 private:
  friend class ModelServer;
  std::weak_ptr<int> client_;
  std::mutex mutex_;
  std::optional<std::string> ready_;    // text that a stream has ready; none before the first
  std::optional<HttpResponse> answer_;  // answer to a request without a stream
  bool is_over_ = false;                // the stream has ended
};

struct ModelServerOptions {
  std::string title, version;
  std::string listen;      // a loopback address, and a port; port 0: one that the system chooses
  std::string tokens;      // file with the tokens; made if there is none
  std::size_t queue = 16;  // requests that may wait
  const std::atomic<int>* stop_signal = nullptr;
};

class ModelServer {
 public:
  // routes: those that need the model return take(). problems: as of HttpLimits. Throws HttpError if it cannot begin.
  ModelServer(const ModelServerOptions& options, std::vector<HttpRoute> routes,
              std::function<HttpResponse(HttpResponse)> problems);

  std::string address() const;  // "127.0.0.1:8000"
  // Server's thread. Throws HttpRefused with 503 if the queue is full, before it calls read().
  HttpResponse take(const std::function<std::shared_ptr<ModelRequest>()>& read);
  // Calls work() for one request after another until a signal comes, and fail() with what it threw.
  void run(const std::function<void(ModelRequest&)>& work,
           const std::function<void(ModelRequest&, const std::exception&)>& fail);
  void wake() { server_.wake(); }  // after ModelRequest::send()

 private:
  HttpLimits limits(std::function<HttpResponse(HttpResponse)> problems);
  std::shared_ptr<ModelRequest> next();

  ModelServerOptions options_;
  std::mutex mutex_;
  std::condition_variable is_there_;
  std::deque<std::shared_ptr<ModelRequest>> waiting_;
  HttpService service_;
  HttpServer server_;  // its thread uses all of the above
};

}  // namespace vernier
