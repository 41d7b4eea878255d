// Ranks that stand still, and strangers: nobody waits for them longer than `timeout`.
#include <doctest/doctest.h>
#include <signal.h>
#include <vernier/launch_place.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "distributed/ddp/shared_sums.h"
#include "long_form.h"
#include "several_ranks.h"

namespace hung_test {

using namespace several_ranks;

namespace {

// A run that does not end by itself.
std::vector<std::string> endless(int timeout) {
  return {"--set=run.steps=1000000", "--set=run.validate_every=0", "--set=checkpoint.every=3",
          "--set=distributed.timeout=" + std::to_string(timeout)};
}

// The seconds within which ranks that wait for `timeout` have ended.
double time_to_end(int timeout) {
  return timeout + patience::limit(10);
}

// The addresses at which a process listens, as /proc writes them: "0100007F" is 127.0.0.1.
std::set<std::string> listening_addresses(pid_t process) {
  const std::filesystem::path proc = "/proc/" + std::to_string(process);
  std::set<std::string> own, addresses;
  for (const auto& file : std::filesystem::directory_iterator(proc / "fd")) {
    std::error_code none;
    const auto target = std::filesystem::read_symlink(file, none).string();
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  for (const char* family : {"net/tcp", "net/tcp6"}) {
    std::ifstream lines(proc / family);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::vector<std::string> word(10);
      for (auto& each : word) words >> each;
      if (word[3] == "0A" && own.contains(word[9])) addresses.insert(word[1].substr(0, word[1].find(':')));
    }
  }
  return addresses;
}

// A port at which connections are accepted, and nothing is said.
class SilentStranger {
 public:
  SilentStranger() : port_(free_port()), socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    REQUIRE(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(socket_, 16) == 0);
  }
  ~SilentStranger() { ::close(socket_); }
  SilentStranger(const SilentStranger&) = delete;
  SilentStranger& operator=(const SilentStranger&) = delete;
  std::string port() const { return std::to_string(port_); }

 private:
  int port_, socket_;
};

// Stops a rank in the rendezvous, or later, and checks that the others name it and end in time.
void check_that_a_stopped_rank_is_named(int trial) {
  const int timeout = seconds_to_meet();
  const int victim = trial % 3;
  const bool is_in_rendezvous = trial / 3 % 3 == 2, shares_memory = trial % 2 == 1;
  const std::string use = trial % 2 == 0 ? "zero1" : "ddp";
  static std::mt19937 random(5);
  const int milliseconds = static_cast<int>(random() % (is_in_rendezvous ? 1500 : 300));
  CAPTURE(victim);
  CAPTURE(is_in_rendezvous);
  CAPTURE(milliseconds);
  CAPTURE(use);
  RunFolder place(mlp);
  auto arguments = endless(timeout);
  arguments.push_back("--set=distributed.use=" + use);
  arguments.push_back(std::string("--set=distributed.shared_memory=") + (shares_memory ? "true" : "false"));
  Ranks ranks(place, 3, arguments);
  const auto first = place.at("out/checkpoints") / vernier::checkpoint_name(3);
  if (!is_in_rendezvous) REQUIRE_MESSAGE(ranks[0].wait_for(first), ranks.errors());
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  const auto begin = Clock::now();
  ranks[victim].send(SIGSTOP);
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    CHECK(ranks[rank].wait() == 4);
    const auto text = ranks[rank].err(), name = std::to_string(victim);
    const auto is_named =
        says(text, "rank " + name + " is lost, as rank ") ||
        (is_in_rendezvous && (says(text, "these did not come within " + std::to_string(timeout) + " s: ") ||
                              says(text, "cannot reach rank 0 at 127.0.0.1")));
    CHECK_MESSAGE(is_named, text);
  }
  const auto seconds = seconds_since(begin);
  CHECK_MESSAGE(seconds < time_to_end(timeout), "the timeout is ", timeout, " s");
}

}  // namespace

TEST_CASE("hung: a rank that stands still at any moment is named by the others within the timeout") {
  const int trials = is_long() ? 150 : 3;
  for (int trial = 0; trial < trials; ++trial) check_that_a_stopped_rank_is_named(trial);
}

TEST_CASE("hung: a stranger at rank 0's port is noticed within the timeout") {
  RunFolder place(mlp);
  const SilentStranger stranger;
  const auto begin = Clock::now();
  Ranks ranks(place, 1, endless(2), {}, {{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_PORT", stranger.port()}});
  CHECK(ranks.wait() == std::vector{4});
  CHECK(seconds_since(begin) < time_to_end(2));
  CHECK(says(ranks.errors(), "rank 1 cannot reach rank 0 at 127.0.0.1, port "));
}

TEST_CASE("hung: a rank that met rank 0 of the attempt before waits for that of its own") {
  RunFolder place(mlp);
  const auto port = std::to_string(free_port());
  const auto environment = [&](const char* rank, const char* attempt) {
    return Environment{
        {"WORLD_SIZE", "2"}, {"RANK", rank}, {"MASTER_PORT", port}, {"TORCHELASTIC_RESTART_COUNT", attempt}};
  };
  std::vector<std::string> short_run = {"--set=run.steps=5", "--set=run.output=second"};
  Ranks earlier(place, 1, endless(100), {}, environment("0", "0"));
  REQUIRE(patience::wait_until([&] { return !listening_addresses(earlier[0].pid()).empty(); }));
  Ranks second(place, 1, short_run, {}, environment("1", "1"));
  std::this_thread::sleep_for(std::chrono::seconds(2));  // it meets the store of the attempt before
  earlier[0].send(SIGKILL);
  earlier[0].wait();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  Ranks first(place, 1, short_run, {}, environment("0", "1"));
  CHECK_MESSAGE(first.wait() == std::vector{0}, first.errors());
  CHECK_MESSAGE(second.wait() == std::vector{0}, second.errors());
}

TEST_CASE(
    "hung: a name that does not resolve is looked up until the timeout, and the configuration is not called wrong") {
  RunFolder place(mlp);
  for (const std::string rank : {"0", "1"}) {
    CAPTURE(rank);
    const auto begin = Clock::now();
    Ranks ranks(place, 1, endless(2), {},
                {{"WORLD_SIZE", "2"}, {"RANK", rank}, {"MASTER_ADDR", "no-such-pod.invalid"}});
    CHECK(ranks.wait() == std::vector{4});
    CHECK(seconds_since(begin) >= 2);
    CHECK_MESSAGE(says(ranks.errors(), "rank " + rank + " cannot resolve no-such-pod.invalid, the machine of rank 0"),
                  ranks.errors());
  }
}

TEST_CASE("hung: wrong ports and numbers of ranks are refused at once") {
  struct Case {
    Environment environment;
    std::string message;
  };
  std::vector<Case> cases = {
      {{{"WORLD_SIZE", "100000000"}}, "as one of 100000000 ranks; at most 1048576 can train together"},
      {{{"WORLD_SIZE", "4294967297"}}, "as one of 4294967297 ranks; at most 1048576 can train together"},
  };
  for (const std::string port : {"99999", "65536", "0", "-1", "", "many", "29500x"}) {
    const auto is_number = port.find_first_not_of("-0123456789") == std::string::npos;
    cases.push_back({{{"MASTER_PORT", port}},
                     "the environment has MASTER_PORT = \"" + port + "\"" +
                         (is_number ? "; a port is a number from 1 to 65535" : ", which is not a number")});
  }
  for (auto& each : cases) {
    each.environment.merge(Environment{{"RANK", "0"}, {"WORLD_SIZE", "2"}});
    const Variables variables(each.environment);
    const auto thrown = thrown_by(vernier::place_in_environment);
    CHECK(thrown.kind == static_cast<int>(vernier::Error::Kind::configuration));
    CHECK_MESSAGE(says(thrown.text, each.message), thrown);
  }
}

TEST_CASE("hung: a rank that waits for a million others does so no longer than the timeout") {
  RunFolder place(mlp);
  const auto begin = Clock::now();
  Ranks ranks(place, 1, endless(2), {}, {{"WORLD_SIZE", "1000000"}});
  CHECK(ranks.wait() == std::vector{4});
  CHECK(seconds_since(begin) < time_to_end(2));
  CHECK_MESSAGE(says(ranks.errors(), "of 1000000 ranks these did not come within 2 s: 1,2,3 and 999996 more"),
                ranks.errors());
}

TEST_CASE("hung: no rank takes the bytes of a sum for those of the one before, which got no answer in time") {
  using namespace std::chrono_literals;
  ddp::SharedSums first({.rank = 0, .ranks = 2}, "", 50ms), second({.rank = 1, .ranks = 2}, first.name(), 60s);
  using Tensors = std::vector<at::Tensor>;
  const auto numbers = at::full({3}, 2.0F);
  auto failed = first.sum(Tensors{at::full({3}, 1.0F)}, true), next = first.sum(Tensors{at::full({3}, 9.0F)}, true);
  CHECK(says(thrown_by([&] { failed.get(); }).text, "no answer within"));
  CHECK(says(thrown_by([&] { next.get(); }).text, "an earlier sum or copy failed"));
  second.sum(Tensors{numbers}, true).get();
  CHECK(at::equal(numbers, at::full({3}, 3.0F)));
}

TEST_CASE("hung: ranks of one machine listen where no other machine reaches them") {
  for (const std::string address : {"127.0.0.1", "localhost"}) {
    CAPTURE(address);
    RunFolder place(mlp);
    Ranks ranks(place, 2, endless(seconds_to_meet()), {}, {{"MASTER_ADDR", address}});
    const auto first = place.at("out/checkpoints") / vernier::checkpoint_name(3);
    REQUIRE_MESSAGE(ranks[0].wait_for(first), ranks.errors());
    for (int rank = 0; rank < 2; ++rank) {
      const auto addresses = listening_addresses(ranks[rank].pid());
      CHECK(addresses == std::set<std::string>{"0100007F"});
    }
  }
}

}  // namespace hung_test
