#include "http_client.h"

#include <utility>  // before Asio of Boost 1.74, which forgets it

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <regex>

namespace vernier {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using beast::error_code;

namespace {

constexpr std::size_t longest_answer = 64 << 20;  // bytes

http::request<http::string_body> message_of(const HttpPlace& place, const HttpRequest& request) {
  http::request<http::string_body> message;
  message.version(11);
  message.method_string(request.method);
  message.target(request.target);
  message.set(http::field::host, place.host + ":" + place.port);
  for (const auto& [name, value] : request.fields) message.set(name, value);
  message.keep_alive(false);
  message.body() = request.body;
  message.prepare_payload();
  return message;
}

// Runs what was begun until it is done. Asio's calls that wait know no time limit.
class Wait {
 public:
  Wait(asio::io_context& context, const HttpPlace& place, std::chrono::milliseconds time)
      : context_(context), place_(place), end_(std::chrono::steady_clock::now() + time) {}

  template <class Begin>
  void until_done(const Begin& begin) {
    bool is_done = false;
    error_code trouble;
    begin([&](error_code error, auto&&...) {
      is_done = true;
      trouble = error;
    });
    context_.restart();
    while (!is_done && context_.run_one_until(end_) > 0) {
    }
    if (!is_done) fail("does not answer in time");
    if (trouble) fail(trouble.message());
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw HttpError(place_.host + ":" + place_.port + ": " + what);
  }

 private:
  asio::io_context& context_;
  const HttpPlace& place_;
  std::chrono::steady_clock::time_point end_;
};

template <class Stream>
HttpResponse exchange(Stream& stream, const HttpPlace& place, const HttpRequest& request, Wait& wait) {
  auto message = message_of(place, request);
  wait.until_done([&](auto done) { http::async_write(stream, message, done); });
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(longest_answer);
  wait.until_done([&](auto done) { http::async_read(stream, buffer, parser, done); });
  auto& answer = parser.get();
  HttpResponse response{.status = answer.result_int(),
                        .body = std::move(answer.body()),
                        .content_type = std::string(answer[http::field::content_type])};
  for (const auto& field : answer) response.fields.emplace_back(std::string(field.name_string()), field.value());
  return response;
}

}  // namespace

HttpPlace place_of(const std::string& url) {
  static const std::regex form("http(s?)://([^/]{1,255}):([0-9]{1,5})/{0,9}");
  std::smatch parts;
  if (std::regex_match(url, parts, form)) {
    return {.host = parts[2], .port = parts[3], .is_encrypted = parts[1].length() > 0};
  }
  throw HttpError(url + ": is not an address of a server, such as http://127.0.0.1:8080");
}

HttpResponse ask_server(const HttpPlace& place, const HttpRequest& request, std::chrono::milliseconds time) {
  asio::io_context context;
  Wait wait(context, place, time);
  auto host = place.host;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  error_code trouble;
  const auto found = tcp::resolver(context).resolve(host, place.port, trouble);
  if (trouble) wait.fail(trouble.message());
  if (!place.is_encrypted) {
    tcp::socket socket(context);
    wait.until_done([&](auto done) { asio::async_connect(socket, found, done); });
    return exchange(socket, place, request, wait);
  }
  asio::ssl::context encryption(asio::ssl::context::tls_client);
  ::SSL_CTX_set_min_proto_version(encryption.native_handle(), TLS1_2_VERSION);
  encryption.set_verify_mode(asio::ssl::verify_peer);
  place.certificate.empty() ? encryption.set_default_verify_paths(trouble)
                            : encryption.load_verify_file(place.certificate.string(), trouble);
  if (trouble) throw HttpError(place.certificate.string() + ": no certificate can be read: " + trouble.message());
  asio::ssl::stream<tcp::socket> stream(context, encryption);
  stream.set_verify_callback(asio::ssl::host_name_verification(host));
  ::SSL_set_tlsext_host_name(stream.native_handle(), host.c_str());
  wait.until_done([&](auto done) { asio::async_connect(stream.next_layer(), found, done); });
  wait.until_done([&](auto done) { stream.async_handshake(asio::ssl::stream_base::client, done); });
  return exchange(stream, place, request, wait);
}

}  // namespace vernier
