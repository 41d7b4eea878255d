// Ports at which the ranks of a run can meet.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <vector>

namespace vernier {

// Returns different ports of this machine that nobody uses now; fewer than `count`, with errno set, if it gives no
// more.
inline std::vector<int> free_ports(std::size_t count) {
  std::vector<int> ports, sockets;
  while (ports.size() < count) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    auto* place = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    sockets.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (sockets.back() < 0 || ::bind(sockets.back(), place, size) != 0) break;
    if (::getsockname(sockets.back(), place, &size) != 0) break;
    ports.push_back(ntohs(address.sin_port));
  }
  const int trouble = errno;
  for (const int socket : sockets) ::close(socket);
  errno = trouble;
  return ports;
}

}  // namespace vernier
