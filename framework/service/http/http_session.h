// One client of an HttpServer. For http_server.cpp alone, since Boost.Beast takes long to compile.
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <boost/algorithm/string/case_conv.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "http_server.h"

namespace vernier::http_server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using beast::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::size_t header_limit = 8 * 1024;

inline HttpRequest header_of(const http::request<http::string_body>& message) {
  HttpRequest request{.method = std::string(message.method_string()),
                      .target = std::string(message.target()),
                      .version = message.version()};
  for (const auto& field : message) {
    const std::string name(field.name_string());
    request.fields.emplace_back(boost::algorithm::to_lower_copy(name), std::string(field.value()));
  }
  return request;
}

class Session;

// Shared by all sessions of a server. Server's thread, except wake_is_due.
struct Shared {
  HttpServer::Answer answer;
  HttpServer::Refuse refuse;
  HttpLimits limits;
  std::uint16_t port = 0;
  std::list<Session*> sessions = {};  // the oldest first
  std::size_t streams = 0;
  bool is_stopping = false;
  std::function<void()> is_empty = {};  // called when the last session of a stopping server ends
  std::atomic<bool> wake_is_due = false;

  struct Rate {
    double per_second, left = per_second;
    Clock::time_point filled = Clock::now();
    bool takes_request() {
      const auto now = Clock::now();
      const double added = std::chrono::duration<double>(now - std::exchange(filled, now)).count();
      left = std::min(per_second, left + added * per_second);
      if (left < 1) return false;
      left -= 1;
      return true;
    }
  };
  Rate known{limits.requests_per_second}, unknown{std::max(1.0, limits.requests_per_second / 5)};
};

using PlainStream = beast::tcp_stream;
using EncryptedStream = beast::ssl_stream<beast::tcp_stream>;

// The place of a session among those of its server. A closed one does not count, though its operations end later.
class Listed {
 public:
  Listed(Shared& shared, Session* session)
      : shared_(shared), place_(shared.sessions.insert(shared.sessions.end(), session)) {}
  ~Listed() { leave(); }
  Listed(const Listed&) = delete;
  Listed& operator=(const Listed&) = delete;
  void leave() {
    if (!std::exchange(is_there_, false)) return;
    shared_.sessions.erase(place_);
    if (shared_.is_stopping && shared_.sessions.empty()) shared_.is_empty();
  }

 private:
  Shared& shared_;
  std::list<Session*>::iterator place_;
  bool is_there_ = true;
};

// One client. It lives until the last operation on its stream is done.
class Session : public std::enable_shared_from_this<Session> {
 public:
  virtual ~Session() = default;
  virtual void begin() = 0;
  virtual void close() = 0;
  // A stream sends what is new; an answer that came later is sent.
  virtual void look_again(bool last = false) = 0;
  virtual bool is_quiet() const = 0;
  virtual bool is_waiting() const = 0;
  virtual bool is_known() const = 0;
};

template <class Stream>
class SessionOn final : public Session {
 public:
  SessionOn(Stream stream, Shared& shared)
      : stream_(std::move(stream)),
        timer_(stream_.get_executor()),
        watch_(stream_.get_executor()),
        shared_(shared),
        listed_(shared, this) {}
  ~SessionOn() override { end_stream(); }

  void begin() override {
    if constexpr (is_encrypted) {
      lowest().expires_after(handshake_time);
      stream_.async_handshake(asio::ssl::stream_base::server,
                              [me = self()](error_code trouble) { trouble ? me->close() : me->wait(); });
    } else {
      wait();
    }
  }

  // For the first bytes of a request: a small read, so that an idle client takes little memory.
  void wait() {
    is_quiet_ = true;
    parser_.reset();
    if (shared_.is_stopping) return close();
    if (buffer_.size() > 0) return read_header();  // a request that came with the one before
    lowest().expires_after(shared_.limits.idle);
    stream_.async_read_some(buffer_.prepare(1024), [me = self()](error_code trouble, std::size_t bytes) {
      if (trouble) return me->close();
      me->buffer_.commit(bytes);
      me->read_header();
    });
  }

  bool is_quiet() const override { return is_quiet_; }
  bool is_known() const override { return is_known_; }
  bool is_waiting() const override { return static_cast<bool>(now_.more) || static_cast<bool>(now_.later); }
  void close() override {
    error_code ignored;
    timer_.cancel();
    watch_.cancel();
    if (now_.later) now_ = {};
    lowest().socket().close(ignored);
    listed_.leave();
  }

  void look_again(bool last = false) override {
    if (now_.later) return send_when_there(last);
    if (now_.more && !is_writing_) send_more();
  }

 private:
  static constexpr bool is_encrypted = std::is_same_v<Stream, EncryptedStream>;
  static constexpr auto handshake_time = std::chrono::seconds(5);
  std::shared_ptr<SessionOn> self() { return std::static_pointer_cast<SessionOn>(shared_from_this()); }
  beast::tcp_stream& lowest() { return beast::get_lowest_layer(stream_); }

  // One deadline for the whole header, and one for the whole body: slow bytes do not extend it.
  void read_header() {
    parser_.emplace();
    parser_->header_limit(header_limit);
    parser_->body_limit(shared_.limits.body);
    lowest().expires_after(shared_.limits.request);
    http::async_read_header(stream_, buffer_, *parser_, [me = self()](error_code trouble, std::size_t) {
      trouble ? me->fail(trouble) : me->check();
    });
  }

  // Every refusal is before the body, and from the header alone: trailers come later, and are fields for the parser.
  void check() {
    is_quiet_ = false;
    request_ = header_of(parser_->get());
    request_.port = shared_.port;
    request_.is_encrypted = is_encrypted;
    is_head_ = request_.method == "HEAD";
    if (auto trouble = trouble_with_header(request_)) return send(std::move(*trouble), false);
    is_known_ = !shared_.limits.knows || shared_.limits.knows(request_);
    if (!(is_known_ ? shared_.known : shared_.unknown).takes_request()) {
      return send(problem(429, "there are too many requests; ask again in a second", {{"Retry-After", "1"}}), false);
    }
    if (shared_.refuse) {
      if (auto refusal = shared_.refuse(request_)) return send(std::move(*refusal), parser_->is_done());
    }
    body_bytes_ = 0;
    lowest().expires_after(shared_.limits.request);
    if (request_.count("expect") == 0) return read_body();
    static constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(stream_, asio::buffer(go_on),
                      [me = self()](error_code trouble, std::size_t) { trouble ? me->close() : me->read_body(); });
  }

  // The extensions of chunks count too.
  void read_body() {
    if (parser_->is_done()) return answer();
    if (body_bytes_ > 2 * shared_.limits.body) return send(problem(413, "the body is too large"), false);
    http::async_read_some(stream_, buffer_, *parser_, [me = self()](error_code trouble, std::size_t bytes) {
      me->body_bytes_ += bytes;
      trouble ? me->fail(trouble) : me->read_body();
    });
  }

  void answer() {
    request_.body = std::move(parser_->get().body());
    keep_ = parser_->get().keep_alive();
    HttpResponse given;
    try {
      given = shared_.answer(request_);
    } catch (const std::exception& error) {
      given = problem(500, error.what());
    }
    if (given.more && !is_head_) return begin_stream(std::move(given));
    if (!given.later) return send(std::move(given), keep_);
    now_ = std::move(given);
    watch_for_end(++waits_);
    timer_.expires_after(shared_.limits.later);
    timer_.async_wait([me = self()](error_code trouble) {
      if (!trouble) me->look_again(/*last=*/true);
    });
    look_again();
  }

  // Closes the session of a client that goes away while it waits, so that nobody works for it. Bytes that it sends stay
  // where they are, and the socket has something to read until then, so it is looked at again after a moment.
  void watch_for_end(std::size_t wait) {
    const auto is_over = [this, wait](error_code trouble) { return trouble || !now_.later || waits_ != wait; };
    lowest().socket().async_wait(tcp::socket::wait_read, [me = self(), wait, is_over](error_code trouble) {
      if (is_over(trouble)) return;
      pollfd end{.fd = me->lowest().socket().native_handle(), .events = POLLRDHUP, .revents = 0};
      if (::poll(&end, 1, 0) > 0) return me->close();
      me->watch_.expires_after(std::chrono::seconds(1));
      me->watch_.async_wait([me, wait, is_over](error_code stopped) {
        if (!is_over(stopped)) me->watch_for_end(wait);
      });
    });
  }

  void send_when_there(bool last) {
    std::optional<HttpResponse> there;
    try {
      there = now_.later(last);
    } catch (const std::exception& error) {
      there = problem(500, error.what());
    }
    if (!there) return;
    now_ = {};
    timer_.cancel();
    if (there->more && !is_head_) return begin_stream(std::move(*there));
    send(std::move(*there), keep_);
  }

  void set_fields(const HttpResponse& given, bool keep) {
    response_ = {static_cast<http::status>(given.status), request_.version == 10 ? 10U : 11U};
    response_.set(http::field::server, "vernier");
    response_.set(http::field::content_type, given.content_type);
    response_.set(http::field::cache_control, "no-store");
    response_.set("X-Content-Type-Options", "nosniff");
    for (const auto& [name, value] : given.fields) response_.set(name, value);
    response_.keep_alive(keep);
  }

  void send(HttpResponse given, bool keep) {
    if (shared_.limits.problems && given.content_type == problem_type)
      given = shared_.limits.problems(std::move(given));
    keep = keep && given.status < 400 && !shared_.is_stopping;
    set_fields(given, keep);
    const auto size = given.body.size();
    if (!is_head_) response_.body() = std::move(given.body);
    response_.content_length(size);
    lowest().expires_after(shared_.limits.request);  // a client that does not read is cut off
    http::async_write(stream_, response_, [me = self(), keep](error_code trouble, std::size_t) {
      if (trouble) return me->close();
      keep ? me->wait() : me->linger();
    });
  }

  // Drops what the client still sends for a moment, because closing at once could destroy the answer on its way.
  void linger() {
    if constexpr (is_encrypted) {
      lowest().expires_after(std::chrono::seconds(1));
      return stream_.async_shutdown([me = self()](error_code) { me->close(); });
    }
    error_code ignored;
    lowest().socket().shutdown(tcp::socket::shutdown_send, ignored);
    lowest().expires_after(std::chrono::seconds(1));
    lingered_ = 0;
    drop();
  }
  void drop() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(4096), [me = self()](error_code trouble, std::size_t bytes) {
      me->lingered_ += bytes;
      if (trouble || me->lingered_ > 64 * 1024) return me->close();
      me->drop();
    });
  }

  void fail(error_code trouble) {
    const bool is_http = trouble.category() == http::make_error_code(http::error::bad_field).category();
    if (!is_http || trouble == http::error::end_of_stream) return close();
    if (trouble == http::error::header_limit || trouble == http::error::buffer_overflow) {
      return send(problem(431, "the header is too large"), false);
    }
    if (trouble == http::error::body_limit) return send(problem(413, "the body is too large"), false);
    send(problem(400, "this is not a request of HTTP/1.1: " + trouble.message()), false);
  }

  void begin_stream(HttpResponse given) {
    if (shared_.streams >= shared_.limits.streams) {
      return send(problem(503, "there are too many streams", {{"Retry-After", "10"}}), false);
    }
    shared_.streams += 1;
    set_fields(given, false);
    now_ = std::move(given);
    is_writing_ = true;
    // A client that goes away is noticed by a read; one has nothing to send.
    lowest().expires_never();
    stream_.async_read_some(buffer_.prepare(64), [me = self()](error_code, std::size_t) { me->close(); });
    header_.emplace(response_);
    lowest().expires_after(shared_.limits.request);
    http::async_write_header(stream_, *header_,
                             [me = self()](error_code trouble, std::size_t) { me->written(trouble); });
  }
  void end_stream() {
    if (now_.more) shared_.streams -= 1;
    now_.more = nullptr;
  }

  void send_more() {
    try {
      chunk_ = now_.more();
    } catch (...) {
      return close();
    }
    if (chunk_.empty()) return keep_alive();
    timer_.cancel();
    write_chunk();
  }
  void write_chunk() {
    is_writing_ = true;
    lowest().expires_after(shared_.limits.request);
    asio::async_write(stream_, asio::buffer(chunk_),
                      [me = self()](error_code trouble, std::size_t) { me->written(trouble); });
  }
  void written(error_code trouble) {
    is_writing_ = false;
    if (trouble || !lowest().socket().is_open()) return close();
    send_more();
  }
  // A comment now and then shows whether the client is still there. The stream is asked each second, since it ends with
  // its token.
  void keep_alive() {
    timer_.expires_after(std::chrono::seconds(1));
    timer_.async_wait([me = self()](error_code trouble) {
      if (trouble || me->is_writing_) return;
      me->idle_seconds_ += 1;
      if (me->idle_seconds_ < 15) return me->send_more();
      me->idle_seconds_ = 0;
      me->chunk_ = ":\n\n";
      me->write_chunk();
    });
  }

  Stream stream_;
  asio::steady_timer timer_, watch_;
  Shared& shared_;
  Listed listed_;
  beast::flat_buffer buffer_{header_limit + 4096};
  std::optional<http::request_parser<http::string_body>> parser_;
  HttpRequest request_;
  http::response<http::string_body> response_;
  std::optional<http::response_serializer<http::string_body>> header_;
  HttpResponse now_;   // the response that is being sent
  std::string chunk_;  // the stream's current chunk
  std::size_t body_bytes_ = 0, lingered_ = 0, idle_seconds_ = 0, waits_ = 0;
  bool is_known_ = false, is_quiet_ = true, is_head_ = false, keep_ = false, is_writing_ = false;
};

}  // namespace vernier::http_server
