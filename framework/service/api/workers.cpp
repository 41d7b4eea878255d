#include "service/api/workers.h"

#include <memory>
#include <optional>
#include <utility>

namespace serve {

using vernier::HttpRefused;
using vernier::HttpResponse;

namespace {

constexpr std::size_t count = 4, most_waiting = 64;

struct Answer {
  std::mutex mutex;
  std::optional<HttpResponse> response;
};

HttpResponse response_of(const std::function<HttpResponse()>& work) {
  try {
    return work();
  } catch (const HttpRefused& refused) {
    return vernier::problem(refused.status, refused.detail);
  } catch (const std::exception& error) {
    return vernier::problem(500, error.what());
  }
}

}  // namespace

Workers::Workers() {
  for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([this] { run(); });
}

void Workers::stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    waiting_.clear();
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

void Workers::run() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return is_stopping_ || !waiting_.empty(); });
      if (is_stopping_) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
    wake_server_();
  }
}

HttpResponse Workers::answer(std::function<HttpResponse()> work) {
  const auto answer = std::make_shared<Answer>();
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= most_waiting) throw HttpRefused{503, "the server has too much to do; ask again later"};
    waiting_.push_back([answer, work = std::move(work)] {
      auto response = response_of(work);
      const std::lock_guard lock(answer->mutex);
      answer->response = std::move(response);
    });
  }
  wake_.notify_one();
  HttpResponse later;
  later.later = [answer](bool last) -> std::optional<HttpResponse> {
    const std::lock_guard lock(answer->mutex);
    if (answer->response || !last) return std::exchange(answer->response, std::nullopt);
    return vernier::problem(503, "the answer takes too long; ask again later", {{"Retry-After", "5"}});
  };
  return later;
}

}  // namespace serve
