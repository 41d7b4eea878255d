#include "heartbeat.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <string>
#include <utility>

#include "rendezvous.h"
#include "timeout_store.h"

namespace ddp {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using namespace std::chrono_literals;

namespace {

constexpr auto send_interval = 200ms;
constexpr auto silence_limit = 2s;   // once a rank probes, a rank that is silent for longer counts as lost
constexpr auto probe_limit = 2s;     // the probing rank waits no longer than this for an answer
constexpr auto settle_time = 100ms;  // ranks that are lost together are named together

}  // namespace

Heartbeat::Heartbeat(const vernier::LaunchPlace& place, std::int64_t port, std::chrono::milliseconds timeout)
    : rank_(static_cast<std::int32_t>(place.rank)),
      ranks_(static_cast<std::int32_t>(place.ranks)),
      port_(port),
      last_heard_(static_cast<std::size_t>(place.ranks), Clock::now()) {
  if (rank_ == 0) {
    listen(place.address);
    accept();
  } else {
    const auto [protocol, file] = within(timeout, [address = place.address, port] {
      asio::io_context own;
      tcp::socket socket(own);
      asio::connect(socket, tcp::resolver(own).resolve(address, std::to_string(port)));
      const auto protocol = socket.local_endpoint().protocol();  // asked before the socket gives its file away
      return std::pair(protocol, socket.release());
    });
    open(tcp::socket(context_, protocol, file), 0);
  }
  tick();
  thread_ = std::thread([this] { context_.run(); });
}

Heartbeat::~Heartbeat() {
  asio::post(context_, [this] {
    send({Kind::left, rank_});
    context_.stop();
  });
  thread_.join();
}

std::vector<std::int64_t> Heartbeat::lost_ranks() {
  probes_ = true;
  std::unique_lock lock(mutex_);
  const auto is_known = [this] { return !lost_.empty() || !left_.empty(); };
  if (changed_.wait_for(lock, probe_limit, is_known)) changed_.wait_for(lock, settle_time, [] { return false; });
  if (lost_.empty() && !left_.empty()) return {left_[0]};  // the next ones left because of it
  std::sort(lost_.begin(), lost_.end());
  return lost_;
}

void Heartbeat::wait_until_alone(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [this] { return std::ssize(lost_) + std::ssize(left_) >= ranks_ - 1; });
}

void Heartbeat::listen(const std::string& address) {
  tcp::endpoint place(tcp::v6(), 0);
  if (is_loopback(address)) place.address(asio::ip::make_address(address));
  error_code no_ipv6;
  acceptor_.open(place.protocol(), no_ipv6);
  if (no_ipv6) acceptor_.open((place = {tcp::v4(), 0}).protocol());
  acceptor_.bind(place);
  acceptor_.listen();
  port_ = acceptor_.local_endpoint().port();
}

void Heartbeat::accept() {
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    if (error) return;
    open(std::move(socket), -1);
    accept();
  });
}

// The first message of a rank says which one it is. Writing must not wait for a rank that stands still.
void Heartbeat::open(tcp::socket socket, std::int32_t rank) {
  socket.non_blocking(true);
  auto& connection = connections_.emplace_back(std::move(socket));
  connection.rank = rank;
  read(connection);
}

void Heartbeat::read(Connection& connection) {
  asio::async_read(connection.socket, asio::buffer(&connection.message, sizeof connection.message),
                   [this, &connection](const error_code& error, std::size_t) {
                     if (!error) {
                       receive(connection);
                       return read(connection);
                     }
                     if (connection.rank >= 0) record({Kind::lost, connection.rank});
                     connections_.remove_if([&](const Connection& each) { return &each == &connection; });
                   });
}

void Heartbeat::receive(Connection& connection) {
  const auto message = connection.message;
  if (message.rank < 0 || message.rank >= ranks_) return;  // a stranger
  if (connection.rank < 0) connection.rank = message.rank;
  last_heard_[static_cast<std::size_t>(connection.rank)] = Clock::now();
  if (message.kind == Kind::probe) is_probed_ = true;
  if (message.kind == Kind::lost || message.kind == Kind::left) record(message);
}

void Heartbeat::tick() {
  const bool probes = probes_;
  send({probes ? Kind::probe : Kind::alive, rank_});
  if (probes || is_probed_) {
    const auto end = rank_ == 0 ? ranks_ : 1;  // the others are connected to rank 0 alone
    for (std::int32_t r = 0; r < end; ++r) {
      if (r != rank_ && Clock::now() - last_heard_[static_cast<std::size_t>(r)] > silence_limit)
        record({Kind::lost, r});
    }
  }
  timer_.expires_after(send_interval);
  timer_.async_wait([this](const error_code& error) {
    if (!error) tick();
  });
}

void Heartbeat::send(Message message) {
  for (auto& connection : connections_) {
    error_code ignored;
    if (connection.rank >= 0) connection.socket.send(asio::buffer(&message, sizeof message), 0, ignored);
  }
}

// The first message about a rank counts. Rank 0 passes it on.
void Heartbeat::record(Message message) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto* ranks : {&lost_, &left_}) {
      if (std::find(ranks->begin(), ranks->end(), message.rank) != ranks->end()) return;
    }
    (message.kind == Kind::lost ? lost_ : left_).push_back(message.rank);
  }
  is_broken_ = true;
  changed_.notify_all();
  if (rank_ == 0) send(message);
}

}  // namespace ddp
