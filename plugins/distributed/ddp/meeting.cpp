#include "meeting.h"

#include <c10/util/Logging.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/types.h>
#include <unistd.h>
#include <vernier/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace ddp {

using vernier::Error;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds between_looks{50};

std::vector<std::int64_t> missing_in(c10d::Store& store, const std::string& name, std::int64_t ranks) {
  std::vector<std::int64_t> missing;
  for (std::int64_t r = 0; r < ranks; ++r) {
    if (!store.check({key(name, r)})) missing.push_back(r);
  }
  return missing;
}

// Ranks that were started differently cannot even gather.
void refuse_other_sizes(c10d::Store& store, const vernier::LaunchPlace& place) {
  for (std::int64_t r = 0; r < place.ranks; ++r) {
    if (!store.check({key("here", r)})) continue;
    const auto other = store.get_to_str(key("here", r));
    if (other == std::to_string(place.ranks)) continue;
    vernier::refuse(c10::str("rank ", place.rank, " was started as one of ", place.ranks, " ranks, and rank ", r,
                             " as one of ", other, "; start all of them with the same number"));
  }
}

}  // namespace

std::string key(const std::string& name, std::int64_t rank) {
  return name + "/" + std::to_string(rank);
}

std::vector<std::string> exchange(c10d::Store& store, const vernier::LaunchPlace& place, const std::string& name,
                                  const std::string& own) {
  store.set(key(name, place.rank), own);
  std::vector<std::string> all;
  for (std::int64_t r = 0; r < place.ranks; ++r) all.push_back(store.get_to_str(key(name, r)));
  return all;
}

std::string reason() {
  auto text = vernier::caught().message;
  text = text.substr(0, text.find('\n'));
  const auto end = text.find("] ");  // "[/pytorch/…/pair.cc:538] "
  return text.starts_with("[/") && end != std::string::npos ? text.substr(end + 2) : text;
}

// Connecting a datagram socket sends nothing. The hostname would not do: on Debian it is a loopback address.
std::string own_address_towards(const std::string& host, std::int64_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "";
  std::string text;
  for (const auto* each = found; each != nullptr && text.empty(); each = each->ai_next) {
    const int file = ::socket(each->ai_family, SOCK_DGRAM, 0);
    if (file < 0) continue;
    sockaddr_storage own{};
    auto* address = reinterpret_cast<sockaddr*>(&own);
    socklen_t size = sizeof own;
    char name[NI_MAXHOST];
    if (::connect(file, each->ai_addr, each->ai_addrlen) == 0 && ::getsockname(file, address, &size) == 0 &&
        ::getnameinfo(address, size, name, sizeof name, nullptr, 0, NI_NUMERICHOST) == 0) {
      text = name;
    }
    ::close(file);
  }
  ::freeaddrinfo(found);
  return text;
}

// Silences c10d, which logs each failure on stderr: our errors say it in a line. TORCH_CPP_LOG_LEVEL brings it back.
void quieten_c10d() {
  constexpr int fatal = 3;
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = fatal;
  } else {
    c10::initLogging();
  }
}

Store open_store(const Meeting& meeting) {
  const auto& place = meeting.place;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.isServer = place.rank == 0 && !place.launcher_has_store;
  options.waitWorkers = false;  // whoever is missing is named below
  options.timeout = meeting.timeout;
  const auto where = c10::str(place.address, ", port ", place.port);
  try {
    const auto store = c10::make_intrusive<c10d::TCPStore>(place.address, options);
    return c10::make_intrusive<c10d::PrefixStore>("vernier/" + place.attempt, store);
  } catch (...) {
    if (options.isServer) {
      vernier::refuse(c10::str("rank 0 cannot listen at ", where,
                               ": is another job there? Choose another port ([distributed] port, or MASTER_PORT). ",
                               reason()));
    }
    throw Error(c10::str("rank ", place.rank, " cannot reach rank 0 at ", where, " within ",
                         meeting.timeout.count() / 1000, " s: ", reason()));
  }
}

bool wait_for_all(c10d::Store& store, const Meeting& meeting, const std::function<bool()>& is_stopping) {
  const auto& place = meeting.place;
  if (store.add(key("taken", place.rank), 1) != 1) {
    vernier::refuse(c10::str("rank ", place.rank,
                             " is there already: two processes were started as this rank, or another job is at port ",
                             place.port));
  }
  store.set(key("here", place.rank), std::to_string(place.ranks));
  const auto end = Clock::now() + meeting.timeout;
  for (;;) {
    refuse_other_sizes(store, place);
    const auto missing = missing_in(store, "here", place.ranks);
    if (missing.empty()) return true;
    if (is_stopping()) return false;
    if (Clock::now() > end) {
      throw Error(c10::str("of ", place.ranks, " ranks these did not come within ", meeting.timeout.count() / 1000,
                           " s: ", c10::Join(", ", missing)));
    }
    std::this_thread::sleep_for(between_looks);
  }
}

std::string machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code ignored;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/net", ignored).string();
}

}  // namespace ddp
