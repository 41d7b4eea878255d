// The newest events of a service, for any number of streams of server-sent events.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "http_service.h"

namespace vernier {

// Any thread. It keeps the memory of its events, so that adding one seldom allocates.
class EventRing {
 public:
  static constexpr std::size_t most = 1024;  // the most events that are kept
  EventRing();
  void add(const char* type, const Json& data);
  std::int64_t last() const;  // the id of the newest; 0: there is none
  // The events after that one as a stream has them, some at a time. Sets `id` to the last one. A stream that fell
  // behind gets the event `gap` with the number of those that it lost.
  std::string after(std::int64_t& id) const;
  // A stream from the newest event on, or from the one that the field Last-Event-ID names.
  HttpResponse stream(const HttpCall& call) const;
  bool has_streams() const { return streams_.use_count() > 1; }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> events_{most};  // event n is at n % most
  std::int64_t last_ = 0;
  std::shared_ptr<int> streams_ = std::make_shared<int>();  // each stream has one more
};

// A route of it at /v1/events. The ring must live as long as the route.
HttpRoute events_route(const EventRing& ring, const std::string& summary);

}  // namespace vernier
