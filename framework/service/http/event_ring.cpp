#include "event_ring.h"

#include <vernier/json_text.h>

#include <algorithm>
#include <utility>

#include "schema.h"

namespace vernier {

EventRing::EventRing() {
  for (auto& event : events_) event.reserve(512);  // later it would grow with each one
}

void EventRing::add(const char* type, const Json& data) {
  const auto text = vernier::json_text(data);
  const std::lock_guard lock(mutex_);
  last_ += 1;
  auto& slot = events_[static_cast<std::size_t>(last_) % most];
  slot.assign("id: ").append(std::to_string(last_)).append("\nevent: ").append(type);
  slot.append("\ndata: ").append(text).append("\n\n");
}

std::int64_t EventRing::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

std::string EventRing::after(std::int64_t& id) const {
  constexpr std::size_t most_bytes = 32 * 1024;
  const std::lock_guard lock(mutex_);
  std::string text;
  id = std::min(id, last_);
  const auto oldest = std::max<std::int64_t>(1, last_ - static_cast<std::int64_t>(most) + 1);
  if (id + 1 < oldest) {
    text = "event: gap\ndata: {\"lost\":" + std::to_string(oldest - id - 1) + "}\n\n";
    id = oldest - 1;
  }
  while (id < last_ && text.size() < most_bytes) {
    id += 1;
    text += events_[static_cast<std::size_t>(id) % most];
  }
  return text;
}

HttpResponse EventRing::stream(const HttpCall& call) const {
  auto id = last();
  if (!call.last_event.empty()) {
    HttpCall given;
    given.parameters["Last-Event-ID"] = call.last_event;
    id = given.integer("Last-Event-ID", 0, 0, schema::most);
  }
  HttpResponse response{.content_type = "text/event-stream"};
  response.more = [this, id, counted = streams_, is_first = true]() mutable {
    return (std::exchange(is_first, false) ? "retry: 2000\n\n" : "") + after(id);
  };
  return response;
}

HttpRoute events_route(const EventRing& ring, const std::string& summary) {
  return {.path = "/v1/events",
          .id = "stream_events",
          .summary = summary + ". With the field Last-Event-ID it goes on after that one",
          .result = schema::text,
          .result_type = "text/event-stream",
          .other_results = {{"503", "There are too many streams."}},
          .answer = [&ring](const HttpCall& call) { return ring.stream(call); }};
}

}  // namespace vernier
