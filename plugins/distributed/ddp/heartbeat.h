// A connection of each rank to rank 0, by which all ranks learn that one is lost. Gloo alone is not
// enough: a rank waits until the timeout if a connection broke while Gloo was writing, or if it waits for a rank that
// itself waits for the lost one.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <vernier/launch_place.h>

namespace ddp {

// Main thread only. A thread of its own reads and writes. The system closes the connection of a process that ends in
// any way, so its loss is known at once. A process that stands still, or that the network does not reach any more, is
// known by its silence once a rank probes.
class Heartbeat {
 public:
  // Rank 0 listens at a port that the system chooses, on this machine alone if its address is. The others connect to
  // `port` of rank 0's machine. Throws boost::system::system_error, and Error where that takes longer than `timeout`.
  Heartbeat(const vernier::LaunchPlace& place, std::int64_t port, std::chrono::milliseconds timeout);
  ~Heartbeat();  // notifies the others that this rank leaves
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  std::int64_t port() const { return port_; }
  // A rank is lost or has left.
  bool is_broken() const { return is_broken_; }
  // After something has failed: the lost ranks, or else one that has left. Waits up to 4 s until one is known.
  std::vector<std::int64_t> lost_ranks();
  // On rank 0: until all others are lost or have left, or until `most` has passed.
  void wait_until_alone(std::chrono::milliseconds most);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Kind : std::int32_t { alive, probe, lost, left };
  struct Message {
    Kind kind;
    std::int32_t rank;
  };
  struct Connection {
    explicit Connection(boost::asio::ip::tcp::socket connected) : socket(std::move(connected)) {}
    boost::asio::ip::tcp::socket socket;
    Message message{};       // the one that is being read
    std::int32_t rank = -1;  // the rank at the other end; -1 until its first message
  };

  void listen(const std::string& address);
  // These run on the thread of this object:
  void accept();
  void open(boost::asio::ip::tcp::socket socket, std::int32_t rank);
  void read(Connection& connection);
  void receive(Connection& connection);
  void tick();
  void send(Message message);
  void record(Message message);

  const std::int32_t rank_, ranks_;
  std::int64_t port_ = 0;
  boost::asio::io_context context_;
  boost::asio::ip::tcp::acceptor acceptor_{context_};
  boost::asio::steady_timer timer_{context_};
  std::list<Connection> connections_;
  std::vector<Clock::time_point> last_heard_;  // by rank
  bool is_probed_ = false;

  std::atomic<bool> probes_ = false, is_broken_ = false;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::int64_t> lost_, left_;
  std::thread thread_;
};

}  // namespace ddp
