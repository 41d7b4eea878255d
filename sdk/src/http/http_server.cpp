#include "http_server.h"

#include <vernier/error.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>
#include <utility>

namespace vernier {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

std::optional<tcp::endpoint> endpoint_of(const std::string& listen) {
  const auto colon = listen.rfind(':');
  std::string address = listen.substr(0, colon == listen.npos ? 0 : colon);
  if (address.starts_with('[') && address.ends_with(']')) address = address.substr(1, address.size() - 2);
  std::uint16_t port = 0;
  const char *begin = listen.data() + (colon == listen.npos ? 0 : colon + 1), *end = listen.data() + listen.size();
  const auto [stopped_at, trouble] = std::from_chars(begin, end, port);
  boost::system::error_code bad;
  const auto parsed = asio::ip::make_address(address, bad);
  if (bad || begin == end || stopped_at != end || trouble != std::errc()) return std::nullopt;
  return tcp::endpoint(parsed, port);
}

// One client. It lives until the last operation on its stream is done.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, const HttpServer::Answer& answer) : stream_(std::move(socket)), answer_(answer) {}

  void read() {
    request_ = {};
    stream_.expires_after(std::chrono::seconds(30));
    http::async_read(stream_, buffer_, request_, [self = shared_from_this()](beast::error_code trouble, std::size_t) {
      if (!trouble) self->answer();
    });
  }

 private:
  void answer() {
    HttpResponse given;
    try {
      given = answer_({std::string(request_.method_string()), std::string(request_.target())});
    } catch (...) {
      given = {500, caught().message + "\n"};
    }
    response_ = {static_cast<http::status>(given.status), request_.version()};
    response_.set(http::field::server, "vernier");
    response_.set(http::field::content_type, given.content_type);
    response_.keep_alive(request_.keep_alive());
    const bool is_head = request_.method() == http::verb::head;
    const auto size = given.body.size();
    if (!is_head) response_.body() = std::move(given.body);
    response_.content_length(size);
    http::async_write(stream_, response_, [self = shared_from_this()](beast::error_code trouble, std::size_t) {
      if (!trouble && self->response_.keep_alive()) return self->read();
      self->stream_.socket().shutdown(tcp::socket::shutdown_send, trouble);
    });
  }

  beast::tcp_stream stream_;
  const HttpServer::Answer& answer_;
  beast::flat_buffer buffer_;
  http::request<http::string_body> request_;
  http::response<http::string_body> response_;
};

}  // namespace

std::string trouble_with_listen(const std::string& listen) {
  return endpoint_of(listen) ? "" : "is no address with a port, such as 127.0.0.1:9464";
}

class HttpServer::Impl {
 public:
  Impl(const std::string& listen, Answer answer) : answer_(std::move(answer)), acceptor_(context_) {
    if (const auto trouble = trouble_with_listen(listen); !trouble.empty()) throw Error(listen + ": " + trouble);
    const auto endpoint = endpoint_of(listen).value();
    try {
      acceptor_.open(endpoint.protocol());
      acceptor_.set_option(asio::socket_base::reuse_address(true));
      acceptor_.bind(endpoint);
      acceptor_.listen();
    } catch (const boost::system::system_error& error) {
      throw Error(listen + ": cannot be listened at: " + error.code().message() + "; choose another port");
    }
    accept();
    sigset_t all, before;  // signals are for the training thread
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { context_.run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Impl() {
    context_.stop();
    thread_.join();
  }
  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }

 private:
  void accept() {
    acceptor_.async_accept([this](beast::error_code trouble, tcp::socket socket) {
      if (trouble) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the process has no file descriptors left
      } else {
        std::make_shared<Session>(std::move(socket), answer_)->read();
      }
      accept();
    });
  }

  Answer answer_;
  asio::io_context context_{1};
  tcp::acceptor acceptor_;
  std::thread thread_;
};

HttpServer::HttpServer(const std::string& listen, Answer answer)
    : impl_(std::make_unique<Impl>(listen, std::move(answer))) {}
HttpServer::~HttpServer() = default;
std::uint16_t HttpServer::port() const {
  return impl_->port();
}

}  // namespace vernier
