#include "service/api/workers.h"

#include <chrono>
#include <optional>

namespace serve {

using vernier::HttpRefused;
using vernier::HttpResponse;

namespace {

constexpr std::size_t count = 4, most_waiting = 64;

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
  for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([this](const std::stop_token& stop) { run(stop); });
}

void Workers::stop() {
  for (auto& thread : threads_) thread.request_stop();
  threads_.clear();
}

void Workers::run(const std::stop_token& stop) {
  for (;;) {
    std::packaged_task<HttpResponse()> work;  // destroyed after the lock is released
    std::unique_lock lock(mutex_);
    wake_.wait(lock, stop, [&] { return !waiting_.empty(); });
    if (stop.stop_requested()) return;
    work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    lock.lock();
    wake_server_();
  }
}

HttpResponse Workers::answer(std::function<HttpResponse()> work) {
  std::packaged_task<HttpResponse()> task([work = std::move(work)] { return response_of(work); });
  const auto answer = task.get_future().share();
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= most_waiting) throw HttpRefused{503, "the server has too much to do; ask again later"};
    waiting_.push_back(std::move(task));
  }
  wake_.notify_one();
  HttpResponse later;
  later.later = [answer](bool last) -> std::optional<HttpResponse> {
    if (answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready) return answer.get();
    if (!last) return std::nullopt;
    return vernier::problem(503, "the answer takes too long; ask again later", {{"Retry-After", "5"}});
  };
  return later;
}

}  // namespace serve
