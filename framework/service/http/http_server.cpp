#include "http_server.h"

#include <fcntl.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <charconv>
#include <csignal>
#include <thread>
#include <utility>

#include "http_session.h"

namespace vernier {

using namespace http_server;

namespace {

std::optional<tcp::endpoint> endpoint_of(const std::string& listen) {
  const auto colon = listen.rfind(':');
  std::string address = listen.substr(0, colon == listen.npos ? 0 : colon);
  if (address.starts_with('[') && address.ends_with(']')) address = address.substr(1, address.size() - 2);
  std::uint16_t port = 0;
  const char *begin = listen.data() + (colon == listen.npos ? 0 : colon + 1), *end = listen.data() + listen.size();
  const auto [stopped_at, trouble] = std::from_chars(begin, end, port);
  error_code bad;
  const auto parsed = asio::ip::make_address(address, bad);
  if (bad || begin == end || stopped_at != end || trouble != std::errc()) return std::nullopt;
  return tcp::endpoint(parsed, port);
}

asio::ssl::context context_of(const HttpEncryption& files) {
  asio::ssl::context context(asio::ssl::context::tls_server);
  auto* handle = context.native_handle();
  ::SSL_CTX_set_min_proto_version(handle, TLS1_2_VERSION);
  ::SSL_CTX_set_options(handle, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                                    SSL_OP_IGNORE_UNEXPECTED_EOF);
  ::SSL_CTX_set_cipher_list(handle, "ECDHE+AESGCM:ECDHE+CHACHA20");
  ::SSL_CTX_set_mode(handle, SSL_MODE_RELEASE_BUFFERS);
  error_code trouble;
  context.use_certificate_chain_file(files.certificate, trouble);
  if (trouble) throw HttpError(files.certificate + ": is not a certificate that can be used: " + trouble.message());
  context.use_private_key_file(files.key, asio::ssl::context::pem, trouble);
  if (trouble) throw HttpError(files.key + ": is not a key of that certificate: " + trouble.message());
  return context;
}

}  // namespace

std::string trouble_with_listen(const std::string& listen) {
  return endpoint_of(listen) ? "" : "is not an address with a port, such as 127.0.0.1:9464";
}

bool is_loopback(const std::string& listen) {
  const auto endpoint = endpoint_of(listen);
  return endpoint && endpoint->address().is_loopback();
}

class HttpServer::Impl {
 public:
  Impl(const std::string& listen, Answer answer, Refuse refuse, HttpLimits limits,
       const std::optional<HttpEncryption>& encryption)
      : shared_{std::move(answer), std::move(refuse), limits}, acceptor_(context_), timer_(context_) {
    if (const auto trouble = trouble_with_listen(listen); !trouble.empty()) throw HttpError(listen + ": " + trouble);
    const auto endpoint = endpoint_of(listen).value();
    if (encryption) encryption_.emplace(context_of(*encryption));
    try {
      acceptor_.open(endpoint.protocol());
      ::fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
      acceptor_.set_option(asio::socket_base::reuse_address(true));
      acceptor_.bind(endpoint);
      acceptor_.listen();
      shared_.port = acceptor_.local_endpoint().port();
    } catch (const boost::system::system_error& error) {
      throw HttpError(listen + ": cannot be listened at: " + error.code().message() + "; choose another port");
    }
    accept();
    sigset_t all, before;  // signals are for the training thread
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { context_.run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Impl() {
    asio::post(context_, [this] { stop(); });
    thread_.join();
  }
  std::uint16_t port() const { return shared_.port; }
  void wake() {
    if (shared_.wake_is_due.exchange(true)) return;
    asio::post(context_, [this] {
      shared_.wake_is_due = false;
      for_each([](Session& session) { session.look_again(); });
    });
  }

 private:
  void accept() {
    acceptor_.async_accept([this](error_code trouble, tcp::socket socket) {
      if (shared_.is_stopping) return;
      if (trouble) {  // the process has no file descriptors left
        timer_.expires_after(std::chrono::milliseconds(100));
        return timer_.async_wait([this](error_code) {
          if (!shared_.is_stopping) accept();
        });
      }
      ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
      if (shared_.sessions.size() >= shared_.limits.connections) {
        auto quiet = std::ranges::find_if(shared_.sessions,
                                          [](const Session* each) { return each->is_quiet() && !each->is_known(); });
        if (quiet == shared_.sessions.end()) quiet = std::ranges::find_if(shared_.sessions, &Session::is_quiet);
        if (quiet != shared_.sessions.end()) (*quiet)->close();
      }
      if (shared_.sessions.size() < shared_.limits.connections) session_on(std::move(socket))->begin();
      accept();
    });
  }

  std::shared_ptr<Session> session_on(tcp::socket socket) {
    PlainStream stream(std::move(socket));
    if (!encryption_) return std::make_shared<SessionOn<PlainStream>>(std::move(stream), shared_);
    return std::make_shared<SessionOn<EncryptedStream>>(EncryptedStream(std::move(stream), *encryption_), shared_);
  }

  // A call may end sessions.
  template <class Call>
  void for_each(const Call& call) {
    std::vector<std::shared_ptr<Session>> all;
    for (auto* session : shared_.sessions) all.push_back(session->shared_from_this());
    for (const auto& session : all) call(*session);
  }

  // Answers on their way are sent; the loop ends by itself when nothing is left to do.
  void stop() {
    shared_.is_stopping = true;
    shared_.is_empty = [this] { timer_.cancel(); };
    acceptor_.close();
    timer_.cancel();
    for_each([](Session& session) {
      if (session.is_waiting()) session.look_again(/*last=*/true);
      if (session.is_quiet() || session.is_waiting()) session.close();
    });
    if (shared_.sessions.empty()) return;
    timer_.expires_after(std::chrono::seconds(1));
    timer_.async_wait([this](error_code trouble) {
      if (!trouble) for_each([](Session& session) { session.close(); });
    });
  }

  std::optional<asio::ssl::context> encryption_;
  Shared shared_;
  asio::io_context context_{1};  // its sessions use shared_
  tcp::acceptor acceptor_;
  asio::steady_timer timer_;
  std::thread thread_;
};

HttpServer::HttpServer(const std::string& listen, Answer answer, Refuse refuse, HttpLimits limits,
                       const std::optional<HttpEncryption>& encryption)
    : impl_(std::make_unique<Impl>(listen, std::move(answer), std::move(refuse), limits, encryption)) {}
HttpServer::~HttpServer() = default;
std::uint16_t HttpServer::port() const {
  return impl_->port();
}
void HttpServer::wake() {
  impl_->wake();
}

}  // namespace vernier
