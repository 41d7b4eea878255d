// Two network namespaces stand for two machines with one network between them. This needs root and the program `ip`.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <thread>

#include "several_ranks.h"

namespace network_test {

using namespace several_ranks;

namespace {

using Words = std::vector<std::string>;

bool run(const std::string& command) {
  return std::system(("{ " + command + "; } >/dev/null 2>&1").c_str()) == 0;
}

// Carries packets between two network devices as a far network does: each comes 5 ms later, and one in a hundred is
// lost.
class FarLink {
 public:
  explicit FarLink(std::array<int, 2> ends) : ends_(ends) {}
  ~FarLink() {
    thread_.request_stop();
    thread_.join();
    for (const int end : ends_) ::close(end);
  }
  FarLink(const FarLink&) = delete;
  FarLink& operator=(const FarLink&) = delete;

  std::int64_t lost() const { return lost_; }

 private:
  struct Packet {
    Clock::time_point due;
    int to;
    std::vector<char> bytes;
  };

  void carry(const std::stop_token& stop) {
    constexpr auto delay = std::chrono::milliseconds(5);
    std::mt19937 random(1);
    std::deque<Packet> under_way;
    std::vector<char> bytes(65536);
    while (!stop.stop_requested()) {
      pollfd polled[] = {{ends_[0], POLLIN, 0}, {ends_[1], POLLIN, 0}};
      ::poll(polled, 2, 1);
      for (int from = 0; from < 2; ++from) {
        if ((polled[from].revents & POLLIN) == 0) continue;
        const auto size = ::read(ends_[from], bytes.data(), bytes.size());
        if (size <= 0) continue;
        if (random() % 100 == 0) {
          ++lost_;
        } else {
          under_way.push_back({Clock::now() + delay, ends_[1 - from], {bytes.begin(), bytes.begin() + size}});
        }
      }
      for (; !under_way.empty() && under_way.front().due <= Clock::now(); under_way.pop_front()) {
        const auto& packet = under_way.front();
        (void)!::write(packet.to, packet.bytes.data(), packet.bytes.size());
      }
    }
  }

  std::array<int, 2> ends_;
  std::atomic<std::int64_t> lost_ = 0;
  std::jthread thread_{[this](const std::stop_token& stop) { carry(stop); }};
};

// The machines 10.77.0.1 and 10.77.0.2, and a cable, or a far network.
class TwoMachines {
 public:
  explicit TwoMachines(bool are_far = false) : home_(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) {
    exist_ = run("ip netns add " + names_[0]) && run("ip netns add " + names_[1]) &&
             (are_far ? lay_far_link()
                      : run("ip link add end0 netns " + names_[0] + " type veth peer name end1 netns " + names_[1]));
    for (int i = 0; exist_ && i < 2; ++i) {
      exist_ = ip(i, "link set lo up") && ip(i, "addr add 10.77.0." + std::to_string(i + 1) + "/24 dev " + end(i)) &&
               ip(i, "link set " + end(i) + " up");
    }
    if (!exist_) MESSAGE("no network namespace can be made here: two machines are not tried");
  }
  ~TwoMachines() {
    for (const auto& name : names_) run("ip netns del " + name);
    ::close(home_);
  }
  TwoMachines(const TwoMachines&) = delete;
  TwoMachines& operator=(const TwoMachines&) = delete;

  bool exist() const { return exist_; }
  const FarLink& far_link() const { return *far_link_; }
  bool slow_down(const std::string& rate) const {
    bool is_done = true;
    for (int i = 0; i < 2; ++i) {
      is_done = is_done && run("ip netns exec " + names_[i] + " tc qdisc add dev " + end(i) + " root tbf rate " + rate +
                               " burst 16k latency 50ms");
    }
    return is_done;
  }
  void pull_the_cable() const { CHECK(ip(1, "link set end1 down")); }
  void plug_in() const { CHECK(ip(1, "link set end1 up")); }

  // `vernier launch` of one rank on both.
  std::array<std::unique_ptr<Program>, 2> launch(const RunFolder& place, const Words& more) const {
    std::array<std::unique_ptr<Program>, 2> launchers;
    for (int i = 0; i < 2; ++i) {
      Words words = {"launch", "-n", "1", "--nodes", "2", "--node-rank", std::to_string(i), "run.toml"};
      words.insert(words.end(), more.begin(), more.end());
      enter(i);
      launchers[static_cast<std::size_t>(i)] = std::make_unique<Program>(words, place.folder.path());
      go_home();
    }
    return launchers;
  }
  // `vernier train` on both; each start enters its namespace, which a program inherits.
  std::unique_ptr<Ranks> train(const RunFolder& place, const Words& sets) const {
    const auto enter_its_own = [&](int rank) {
      enter(rank);
      return Words{};
    };
    auto ranks = std::make_unique<Ranks>(place, 2, sets, enter_its_own, Environment{{"MASTER_ADDR", "10.77.0.1"}});
    go_home();
    return ranks;
  }

 private:
  void enter(int i) const {
    const int other = ::open(("/run/netns/" + names_[i]).c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(::setns(other, CLONE_NEWNET) == 0);
    ::close(other);
  }
  void go_home() const { REQUIRE(::setns(home_, CLONE_NEWNET) == 0); }
  bool lay_far_link() {
    std::array<int, 2> ends{};
    for (int i = 0; i < 2; ++i) {
      ifreq wanted{};
      wanted.ifr_flags = IFF_TUN | IFF_NO_PI;
      end(i).copy(wanted.ifr_name, sizeof wanted.ifr_name - 1);
      enter(i);
      ends[i] = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC);
      const bool is_made = ::ioctl(ends[i], TUNSETIFF, &wanted) == 0;
      go_home();
      if (!is_made) return false;
    }
    far_link_ = std::make_unique<FarLink>(ends);
    return true;
  }
  static std::string end(int i) { return "end" + std::to_string(i); }
  bool ip(int i, const std::string& words) const { return run("ip -n " + names_[i] + " " + words); }

  int home_;
  bool exist_ = false;
  std::unique_ptr<FarLink> far_link_;
  std::string names_[2] = {"vernier-a-" + std::to_string(::getpid()), "vernier-b-" + std::to_string(::getpid())};
};

}  // namespace

TEST_CASE("ddp: two machines train as two processes of one, over a slow network too") {
  const TwoMachines machines;
  if (!machines.exist()) return;
  RunFolder here(mlp);
  REQUIRE(Ranks(here, 2).wait() == all_of(2, 0));
  for (const std::string rate : {"", "2mbit"}) {
    CAPTURE(rate);
    if (!rate.empty() && !machines.slow_down(rate)) {
      MESSAGE("the rate of a network cannot be limited here");
      continue;
    }
    for (const std::string overlap : {"false", "true"}) {
      CAPTURE(overlap);
      RunFolder there(mlp);
      const auto ranks = machines.train(there, {"--set=distributed.overlap=" + overlap});
      REQUIRE_MESSAGE(ranks->wait() == all_of(2, 0), ranks->errors());
      CHECK(digest_of(there) == digest_of(here));
    }
  }
}

TEST_CASE("ddp: `vernier launch --nodes 2` on two machines trains as on one") {
  const TwoMachines machines;
  if (!machines.exist()) return;
  RunFolder here(mlp), there(mlp);
  REQUIRE(Ranks(here, 2).wait() == all_of(2, 0));
  const auto launchers = machines.launch(there, {"--address", "10.77.0.1:29500"});
  for (const auto& launcher : launchers) CHECK_MESSAGE(launcher->wait() == 0, launcher->err());
  CHECK(digest_of(there) == digest_of(here));
}

TEST_CASE("ddp: packets that are late or lost change nothing, and no rank counts as lost") {
  const TwoMachines machines(/*are_far=*/true);
  if (!machines.exist()) return;
  RunFolder here(mlp);
  REQUIRE(Ranks(here, 2).wait() == all_of(2, 0));
  for (const std::string plugin : {"ddp", "zero1"}) {
    CAPTURE(plugin);
    RunFolder there(mlp);
    const auto ranks = machines.train(there, {"--set=distributed.use=" + plugin});
    REQUIRE_MESSAGE(ranks->wait() == all_of(2, 0), ranks->errors());
    CHECK(digest_of(there) == digest_of(here));
  }
  CHECK(machines.far_link().lost() > 0);
}

TEST_CASE("ddp: where the network breaks both machines end at the timeout, and the run is resumed bit for bit") {
  const TwoMachines machines;
  if (!machines.exist()) return;
  const Words sets = {"--set=run.steps=300", "--set=run.validate_every=0", "--set=checkpoint.every=20",
                      "--set=run.resume=auto", "--set=distributed.timeout=3"};
  RunFolder here(mlp), there(mlp);
  REQUIRE(Ranks(here, 2, sets).wait() == all_of(2, 0));
  {
    const auto ranks = machines.train(there, sets);
    REQUIRE((*ranks)[0].wait_for(there.at("out/checkpoints") / vernier::checkpoint_name(40)));
    machines.pull_the_cable();
    const auto begin = Clock::now();
    CHECK(ranks->wait() == all_of(2, 4));
    CHECK(seconds_since(begin) < 3 + patience::limit(10));
    for (int rank = 0; rank < 2; ++rank) {
      const auto text = (*ranks)[rank].err();
      CHECK_MESSAGE(says(text, "rank " + std::to_string(1 - rank) + " is lost, as rank "), text);
    }
  }
  machines.plug_in();
  const auto resumed = machines.train(there, sets);
  REQUIRE_MESSAGE(resumed->wait() == all_of(2, 0), resumed->errors());
  CHECK(digest_of(there) == digest_of(here));
}

TEST_CASE("ddp: a machine that cannot be reached is named within the timeout") {
  const TwoMachines machines;
  if (!machines.exist()) return;
  machines.pull_the_cable();
  RunFolder place(mlp);
  const auto ranks = machines.train(place, {"--set=distributed.timeout=2"});
  CHECK(ranks->wait() == all_of(2, 4));
  CHECK(says((*ranks)[0].err(), "of 2 ranks these did not come within 2 s: 1"));
  CHECK(says((*ranks)[1].err(), "rank 1 cannot reach rank 0 at 10.77.0.1, port "));
}

}  // namespace network_test
