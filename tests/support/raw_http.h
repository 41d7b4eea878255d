// Bytes to a server on this machine, and what it answers.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

inline int connection_to(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return socket;
  ::close(socket);
  return -1;
}

class Connection {
 public:
  explicit Connection(int port) : socket_(connection_to(port)) { REQUIRE(socket_ >= 0); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { ::close(socket_); }

  // False where the server has closed.
  bool send(const std::string& bytes) const {
    for (std::size_t sent = 0; sent < bytes.size();) {
      const auto now = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) return false;
      sent += static_cast<std::size_t>(now);
    }
    return true;
  }
  void send_end() const { ::shutdown(socket_, SHUT_WR); }
  // Until the server closes, or the answer so far has this text.
  std::string read(const std::string& until = "") const {
    std::string answer;
    char bytes[4096];
    while (until.empty() || answer.find(until) == answer.npos) {
      const auto got = ::recv(socket_, bytes, sizeof bytes, 0);
      if (got <= 0) break;
      answer.append(bytes, static_cast<std::size_t>(got));
    }
    return answer;
  }

 private:
  int socket_;
};

// The whole answer, until the server closes.
inline std::string ask(int port, const std::string& request) {
  const Connection connection(port);
  connection.send(request);
  return connection.read();
}

using Fields = std::vector<std::pair<std::string, std::string>>;

inline std::string request_of(int port, const std::string& method, const std::string& target, const Fields& fields = {},
                              const std::string& body = "") {
  auto text = method + " " + target + " HTTP/1.1\r\nConnection: close\r\n";
  bool has_host = false;
  for (const auto& [name, value] : fields) {
    text += name + ": " + value + "\r\n";
    has_host = has_host || name == "Host";
  }
  if (!has_host) text += "Host: 127.0.0.1:" + std::to_string(port) + "\r\n";
  if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return text + "\r\n" + body;
}

inline int status_of(const std::string& answer) {
  return answer.starts_with("HTTP/1.") ? std::stoi(answer.substr(9, 3)) : 0;
}
inline std::string body_of(const std::string& answer) {
  const auto end = answer.find("\r\n\r\n");
  return end == answer.npos ? "" : answer.substr(end + 4);
}
