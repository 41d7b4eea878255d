#include "lifeline.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <string>
#include <utility>

#include "meeting.h"
#include "patient_store.h"

namespace ddp {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using namespace std::chrono_literals;

namespace {

constexpr auto between_words = 200ms;
constexpr auto silence = 2s;              // of a rank that counts as lost, once somebody asks
constexpr auto patience = 2s;             // of who asks
constexpr auto at_the_same_time = 100ms;  // ranks that are lost together are named together

}  // namespace

Lifeline::Lifeline(const vernier::LaunchPlace& place, std::int64_t port, std::chrono::milliseconds timeout)
    : rank_(static_cast<std::int32_t>(place.rank)),
      ranks_(static_cast<std::int32_t>(place.ranks)),
      port_(port),
      heard_(static_cast<std::size_t>(place.ranks), Clock::now()) {
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

Lifeline::~Lifeline() {
  asio::post(context_, [this] {
    say({Word::has_left, rank_});
    context_.stop();
  });
  thread_.join();
}

std::vector<std::int64_t> Lifeline::lost_ranks() {
  asks_ = true;
  std::unique_lock lock(mutex_);
  const auto is_known = [this] { return !lost_.empty() || !left_.empty(); };
  if (changed_.wait_for(lock, patience, is_known)) changed_.wait_for(lock, at_the_same_time, [] { return false; });
  if (lost_.empty() && !left_.empty()) return {left_[0]};  // the next ones left because of it
  std::sort(lost_.begin(), lost_.end());
  return lost_;
}

void Lifeline::wait_until_alone(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [this] { return std::ssize(lost_) + std::ssize(left_) >= ranks_ - 1; });
}

void Lifeline::listen(const std::string& address) {
  tcp::endpoint place(tcp::v6(), 0);
  if (is_loopback(address)) place.address(asio::ip::make_address(address));
  error_code no_ipv6;
  acceptor_.open(place.protocol(), no_ipv6);
  if (no_ipv6) acceptor_.open((place = {tcp::v4(), 0}).protocol());
  acceptor_.bind(place);
  acceptor_.listen();
  port_ = acceptor_.local_endpoint().port();
}

void Lifeline::accept() {
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    if (error) return;
    open(std::move(socket), -1);
    accept();
  });
}

// The first word of a rank says which one it is. Writing must not wait for a rank that stands still.
void Lifeline::open(tcp::socket socket, std::int32_t rank) {
  socket.non_blocking(true);
  auto& line = lines_.emplace_back(std::move(socket));
  line.rank = rank;
  read(line);
}

void Lifeline::read(Line& line) {
  asio::async_read(line.socket, asio::buffer(&line.message, sizeof line.message),
                   [this, &line](const error_code& error, std::size_t) {
                     if (!error) {
                       hear(line);
                       return read(line);
                     }
                     if (line.rank >= 0) note({Word::is_lost, line.rank});
                     lines_.remove_if([&](const Line& each) { return &each == &line; });
                   });
}

void Lifeline::hear(Line& line) {
  const auto message = line.message;
  if (message.rank < 0 || message.rank >= ranks_) return;  // a stranger
  if (line.rank < 0) line.rank = message.rank;
  heard_[static_cast<std::size_t>(line.rank)] = Clock::now();
  if (message.word == Word::asks) is_asked_ = true;
  if (message.word == Word::is_lost || message.word == Word::has_left) note(message);
}

void Lifeline::tick() {
  const bool asks = asks_;
  say({asks ? Word::asks : Word::is_here, rank_});
  if (asks || is_asked_) {
    const auto end = rank_ == 0 ? ranks_ : 1;  // the others hear rank 0 alone
    for (std::int32_t r = 0; r < end; ++r) {
      if (r != rank_ && Clock::now() - heard_[static_cast<std::size_t>(r)] > silence) note({Word::is_lost, r});
    }
  }
  timer_.expires_after(between_words);
  timer_.async_wait([this](const error_code& error) {
    if (!error) tick();
  });
}

void Lifeline::say(Message message) {
  for (auto& line : lines_) {
    error_code ignored;
    if (line.rank >= 0) line.socket.send(asio::buffer(&message, sizeof message), 0, ignored);
  }
}

// The first word about a rank counts. Rank 0 passes it on.
void Lifeline::note(Message message) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto* ranks : {&lost_, &left_}) {
      if (std::find(ranks->begin(), ranks->end(), message.rank) != ranks->end()) return;
    }
    (message.word == Word::is_lost ? lost_ : left_).push_back(message.rank);
  }
  is_broken_ = true;
  changed_.notify_all();
  if (rank_ == 0) say(message);
}

}  // namespace ddp
