#include "rendezvous.h"

#include <c10/util/Logging.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/types.h>
#include <unistd.h>
#include <vernier/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "timeout_store.h"

namespace ddp {

using vernier::Error;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds store_poll_interval{50};
constexpr const char* given_up = "given up";  // the key of the ranks that did not come

// Returns true if the rank is there. Ranks that were started differently cannot even gather.
bool has_come(c10d::Store& store, const vernier::LaunchPlace& place, std::int64_t rank) {
  if (!store.check({key("here", rank)})) return false;
  const auto other = store.get_to_str(key("here", rank));
  if (other == std::to_string(place.ranks)) return true;
  vernier::refuse(c10::str("rank ", place.rank, " was started as one of ", place.ranks, " ranks, and rank ", rank,
                           " as one of ", other, "; start all of them with the same number"));
}

std::string names_of(const std::vector<std::int64_t>& ranks) {
  std::vector<std::string> names;
  for (const auto rank : ranks) names.push_back(std::to_string(rank));
  return vernier::some_of(names);
}

// A socket for the store of rank 0, which would listen at all addresses of the machine. The store closes it.
int bind_to(const std::string& loopback, std::int64_t port) {
  boost::asio::io_context context;
  const auto address = boost::asio::ip::make_address(loopback);
  const int file = boost::asio::ip::tcp::acceptor(context, {address, static_cast<std::uint16_t>(port)}).release();
  ::fcntl(file, F_SETFD, FD_CLOEXEC);
  return file;
}

// The name of a pod or of a node may come after this process.
void wait_for_name(const std::string& address, const Rendezvous& rendezvous) {
  const auto end = Clock::now() + rendezvous.timeout;
  addrinfo* found = nullptr;
  while (const int trouble = ::getaddrinfo(address.c_str(), nullptr, nullptr, &found)) {
    if (Clock::now() >= end) {
      throw Error(c10::str("rank ", rendezvous.place.rank, " cannot resolve ", address,
                           ", the machine of rank 0, within ", rendezvous.timeout.count() / 1000,
                           " s: ", ::gai_strerror(trouble),
                           "; set MASTER_ADDR, or [distributed] address, to a name that each machine knows"));
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(10 * store_poll_interval, end - Clock::now()));
  }
  ::freeaddrinfo(found);
}

// Removes ranks from `missing` as they come. Returns false if a signal came.
bool wait_for(std::vector<std::int64_t>& missing, c10d::Store& store, const Rendezvous& rendezvous,
              const std::function<bool()>& is_stopping) {
  const auto& place = rendezvous.place;
  if (store.add(key("taken", place.rank), 1) != 1) {
    vernier::refuse(c10::str("rank ", place.rank,
                             " is there already: two processes were started as this rank, or another job is at port ",
                             place.port));
  }
  store.set(key("here", place.rank), std::to_string(place.ranks));
  const auto end = Clock::now() + rendezvous.timeout;
  for (;;) {
    std::erase_if(missing, [&](std::int64_t rank) { return Clock::now() < end && has_come(store, place, rank); });
    if (missing.empty()) return true;
    if (is_stopping()) return false;
    // The store ends with rank 0, so rank 0 says first why it gives up.
    std::string names;
    if (Clock::now() > end) {
      names = names_of(missing);
      store.set(given_up, names);
      if (place.rank == 0) std::this_thread::sleep_for(4 * store_poll_interval);
    } else if (store.check({given_up})) {
      names = store.get_to_str(given_up);
    }
    if (!names.empty()) {
      throw Error(c10::str("of ", place.ranks, " ranks these did not come within ", rendezvous.timeout.count() / 1000,
                           " s: ", names));
    }
    std::this_thread::sleep_for(store_poll_interval);
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

bool is_loopback(const std::string& address) {
  boost::system::error_code is_name;
  return boost::asio::ip::make_address(address, is_name).is_loopback();
}

Store open_store(const Rendezvous& rendezvous) {
  const auto& place = rendezvous.place;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.isServer = place.rank == 0 && !place.launcher_has_store;
  options.waitWorkers = false;  // whoever is missing is named below
  options.timeout = rendezvous.timeout;
  const auto where = c10::str(place.address, ", port ", place.port);
  wait_for_name(place.address, rendezvous);
  try {
    if (options.isServer && is_loopback(place.address)) options.masterListenFd = bind_to(place.address, place.port);
    const auto open = [address = place.address, options] {
      return c10::make_intrusive<c10d::TCPStore>(address, options);
    };
    const auto store = c10::make_intrusive<TimeoutStore>(within(rendezvous.timeout, open), rendezvous.timeout);
    return c10::make_intrusive<c10d::PrefixStore>("vernier/" + place.attempt, store);
  } catch (...) {
    if (options.isServer) {
      vernier::refuse(c10::str("rank 0 cannot listen at ", where,
                               ": is another job there? Choose another port ([distributed] port, or MASTER_PORT). ",
                               reason()));
    }
    throw Error(c10::str("rank ", place.rank, " cannot reach rank 0 at ", where, " within ",
                         rendezvous.timeout.count() / 1000, " s: ", reason()));
  }
}

bool wait_for_all(c10d::Store& store, const Rendezvous& rendezvous, const std::function<bool()>& is_stopping) {
  const auto& place = rendezvous.place;
  std::vector<std::int64_t> missing(static_cast<std::size_t>(place.ranks));
  std::iota(missing.begin(), missing.end(), 0);
  try {
    return wait_for(missing, store, rendezvous, is_stopping);
  } catch (const Error&) {
    throw;
  } catch (...) {
    const bool is_rank_0_missing = !missing.empty() && missing.front() == 0 && !place.launcher_has_store;
    if (is_rank_0_missing && place.rank != 0 && !is_stopping()) throw EarlierStore(reason());
    throw;
  }
}

std::string machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code ignored;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/net", ignored).string();
}

}  // namespace ddp
