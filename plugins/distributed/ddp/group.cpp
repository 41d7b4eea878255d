#include "group.h"

#define USE_C10D_GLOO
#include <arpa/inet.h>
#include <c10/util/Logging.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/types.h>
#include <unistd.h>
#include <vernier/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <thread>
#include <utility>

#include "lifeline.h"
#include "parcels.h"
#include "shared_sums.h"

namespace ddp {

namespace {

using vernier::Error;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Store = c10::intrusive_ptr<c10d::Store>;

using Gloo = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

constexpr Milliseconds between_looks{50};
constexpr Milliseconds rank_0_leaves_last{5000};

std::vector<std::uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string text_of(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::string key(const std::string& name, std::int64_t rank) {
  return name + "/" + std::to_string(rank);
}

// The text of LibTorch's error, without its stack and its place.
std::string reason() {
  auto text = vernier::caught().message;
  text = text.substr(0, text.find('\n'));
  const auto end = text.find("] ");  // "[/pytorch/…/pair.cc:538] "
  return text.starts_with("[/") && end != std::string::npos ? text.substr(end + 2) : text;
}

// The address of this machine in the network that leads to rank 0. Connecting a datagram socket sends nothing. The
// hostname would not do: on Debian it is a loopback address.
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

// What c10d logs on stderr at each failure is in our errors, in a line. TORCH_CPP_LOG_LEVEL brings it back.
void quieten_c10d() {
  constexpr int fatal = 3;
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = fatal;
  } else {
    c10::initLogging();
  }
}

std::vector<std::int64_t> missing_in(c10d::Store& store, const std::string& name, std::int64_t ranks) {
  std::vector<std::int64_t> missing;
  for (std::int64_t r = 0; r < ranks; ++r) {
    if (!store.check({key(name, r)})) missing.push_back(r);
  }
  return missing;
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

// Ranks that were started differently cannot even gather.
void refuse_other_sizes(c10d::Store& store, const Place& place) {
  for (std::int64_t r = 0; r < place.ranks; ++r) {
    if (!store.check({key("here", r)})) continue;
    const auto other = text_of(store.get(key("here", r)));
    if (other == std::to_string(place.ranks)) continue;
    vernier::refuse(c10::str("rank ", place.rank, " was started as one of ", place.ranks, " ranks, and rank ", r,
                             " as one of ", other, "; start all of them with the same number"));
  }
}

// False if a signal came.
bool wait_for_all(c10d::Store& store, const Meeting& meeting, const std::function<bool()>& is_stopping) {
  const auto& place = meeting.place;
  if (store.add(key("taken", place.rank), 1) != 1) {
    vernier::refuse(c10::str("rank ", place.rank,
                             " is there already: two processes were started as this rank, or another job is at port ",
                             place.port));
  }
  store.set(key("here", place.rank), bytes_of(std::to_string(place.ranks)));
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

Gloo open_gloo(const Store& store, const Meeting& meeting) {
  using c10d::ProcessGroupGloo;
  const auto& place = meeting.place;
  const auto options = ProcessGroupGloo::Options::create_default(meeting.timeout);
  try {
    options->devices = {meeting.interface.empty()
                            ? ProcessGroupGloo::createDeviceForHostname(own_address_towards(place.address, place.port))
                            : ProcessGroupGloo::createDeviceForInterface(meeting.interface)};
  } catch (...) {
    vernier::refuse("the network of this machine cannot be used" +
                    (meeting.interface.empty() ? "" : " by [distributed] interface = \"" + meeting.interface + "\"") +
                    ": " + reason());
  }
  return c10::make_intrusive<ProcessGroupGloo>(store, static_cast<int>(place.rank), static_cast<int>(place.ranks),
                                               options);
}

// Empty unless all ranks can share memory.
std::unique_ptr<SharedSums> open_shared_sums(c10d::Store& store, const Meeting& meeting) {
  const auto& place = meeting.place;
  const std::string name = "shared memory", can = "can share memory";
  std::unique_ptr<SharedSums> sums;
  try {
    if (!meeting.shares_memory) throw Error("not wanted");
    sums = std::make_unique<SharedSums>(place, place.rank == 0 ? "" : text_of(store.get(name)), meeting.timeout);
  } catch (const Error&) {  // another machine
  }
  if (place.rank == 0) store.set(name, bytes_of(sums ? sums->name() : ""));
  store.set(key(can, place.rank), bytes_of(sums ? "yes" : "no"));
  for (std::int64_t r = 0; r < place.ranks; ++r) {
    if (text_of(store.get(key(can, r))) != "yes") return nullptr;
  }
  return sums;
}

std::unique_ptr<Lifeline> open_lifeline(c10d::Store& store, const Place& place) {
  const std::string name = "lifeline";
  if (place.rank != 0) return std::make_unique<Lifeline>(place, std::stoll(text_of(store.get(name))));
  auto lifeline = std::make_unique<Lifeline>(place, 0);
  store.set(name, bytes_of(std::to_string(lifeline->port())));
  return lifeline;
}

}  // namespace

struct Group::Parts {
  Place place;
  Store store;
  std::unique_ptr<Lifeline> lifeline;
  Gloo gloo;
  std::unique_ptr<SharedSums> shared;
  std::int64_t gathered = 0;
  bool is_broken = false;

  // Runs a call in which a rank may turn out to be lost.
  template <class Body>
  auto watched(const char* operation, const Body& body) {
    try {
      return body();
    } catch (...) {
      lost(operation, reason());
    }
  }
  [[noreturn]] void lost(const char* operation, const std::string& why);
  void wait(c10d::Work& collective) const;
  void wait(const std::function<bool(Milliseconds most)>& is_done) const;
  std::function<void()> wait_later(const char* operation, std::future<void> all);
};

void Group::Parts::lost(const char* operation, const std::string& why) {
  is_broken = true;
  const auto ranks = lifeline ? lifeline->lost_ranks() : std::vector<std::int64_t>{};
  const auto names = c10::Join(", ", ranks);
  throw Error((ranks.empty()       ? "the connection between the ranks broke"
               : ranks.size() == 1 ? "rank " + names + " is lost"
                                   : "ranks " + names + " are lost") +
              c10::str(", as rank ", place.rank, " has seen in a ", operation, " (", why,
                       "); start all ranks again with --resume, or run.resume = \"auto\""));
}

// Gloo's own error says more, and what a rank sent before it left may still be on its way: so they have a second.
void Group::Parts::wait(const std::function<bool(Milliseconds most)>& is_done) const {
  int broken_looks = 0;
  while (!is_done(Milliseconds(200))) {
    if (lifeline->is_broken() && ++broken_looks > 5) throw Error("it does not answer any more");
  }
}

void Group::Parts::wait(c10d::Work& collective) const {
  wait([&collective](Milliseconds most) {
    try {
      return collective.wait(most);
    } catch (...) {  // not yet, or it has failed
      return collective.isCompleted();
    }
  });
  collective.wait();  // throws what went wrong
}

std::function<void()> Group::Parts::wait_later(const char* operation, std::future<void> all) {
  return [this, operation, all = all.share()] {
    watched(operation, [&] {
      wait([&all](Milliseconds most) { return all.wait_for(most) == std::future_status::ready; });
      all.get();
    });
  };
}

Group::Group(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Group::~Group() {
  const auto& place = parts_->place;
  if (!parts_->is_broken && place.rank == 0) parts_->lifeline->wait_until_alone(rank_0_leaves_last);
  // A thread of Gloo's may still wait for a lost rank, until the timeout. It is left behind, as the process ends.
  if (parts_->is_broken) (void)parts_->gloo.release();
}

std::unique_ptr<Group> Group::meet(const Meeting& meeting, const std::function<bool()>& is_stopping) {
  quieten_c10d();
  auto parts = std::make_unique<Parts>();
  parts->place = meeting.place;
  parts->store = open_store(meeting);
  try {
    if (!wait_for_all(*parts->store, meeting, is_stopping)) return nullptr;
  } catch (const Error&) {
    throw;
  } catch (...) {  // rank 0 has left, maybe for the same signal
    if (is_stopping()) return nullptr;
    parts->lost("meeting", reason());
  }
  parts->watched("meeting", [&] {
    parts->lifeline = open_lifeline(*parts->store, meeting.place);
    parts->gloo = open_gloo(parts->store, meeting);
    parts->shared = open_shared_sums(*parts->store, meeting);
  });
  return std::unique_ptr<Group>(new Group(std::move(parts)));
}

// One tensor a call: Gloo would add two of a list to each other.
std::function<void()> Group::sum(const std::vector<torch::Tensor>& tensors) {
  if (parts_->shared) return parts_->wait_later("sum", parts_->shared->sum(tensors));
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  parts_->watched("sum", [&] {
    for (const auto& tensor : tensors) {
      std::vector<at::Tensor> one{tensor};
      works.push_back(parts_->gloo->allreduce(one, c10d::AllreduceOptions()));
    }
  });
  return [parts = parts_.get(), works = std::move(works)] {
    parts->watched("sum", [&] {
      for (const auto& work : works) parts->wait(*work);
    });
  };
}

// Few parcels are under way at a time, since each has memory of its own. Gloo has two threads.
void Group::broadcast(const std::vector<std::vector<torch::Tensor>>& of_ranks, std::int64_t bucket) {
  constexpr std::size_t under_way = 4;
  const torch::NoGradGuard no_grad;
  auto parcels = parcels_of(of_ranks, bucket);
  const auto own = parts_->place.rank;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  const auto finish = [&](std::size_t i) {
    parts_->wait(*works[i]);
    if (parcels[i].from != own) parcels[i].unpack();
    parcels[i].bytes.reset();
  };
  parts_->watched("broadcast", [&] {
    for (std::size_t i = 0; i < parcels.size(); ++i) {
      if (i >= under_way) finish(i - under_way);
      auto& parcel = parcels[i];
      parcel.pack(parcel.from == own);
      c10d::BroadcastOptions options;
      options.rootRank = parcel.from;
      std::vector<at::Tensor> one{parcel.bytes};
      works.push_back(parts_->gloo->broadcast(one, options));
    }
    const auto first = parcels.size() - std::min(parcels.size(), under_way);
    for (auto i = first; i < parcels.size(); ++i) finish(i);
  });
}

std::function<void()> Group::copy(const std::vector<torch::Tensor>& tensors, std::int64_t from, std::int64_t to) {
  const bool is_sender = parts_->place.rank == from;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  parts_->watched("copy", [&] {
    int number = 0;
    for (const auto& tensor : tensors) {
      if (tensor.numel() == 0) continue;
      std::vector<at::Tensor> one{as_bytes(tensor)};
      works.push_back(is_sender ? parts_->gloo->send(one, static_cast<int>(to), number)
                                : parts_->gloo->recv(one, static_cast<int>(from), number));
      number += 1;
    }
  });
  // Gloo closes a connection on which a wait ends without success, so a thread of its own waits as long as it takes.
  std::packaged_task<void()> wait_for_all([works] {
    for (const auto& work : works) work->wait();
  });
  auto all = wait_for_all.get_future();
  std::thread(std::move(wait_for_all)).detach();
  return parts_->wait_later("copy", std::move(all));
}

// Through the store: small texts, of any length on each rank. The store would wait for the text of a lost rank until
// the timeout; the barrier sees that its connection broke.
std::vector<std::string> Group::gather(const std::string& bytes) {
  auto& store = *parts_->store;
  const auto name = "gather/" + std::to_string(parts_->gathered++);
  return parts_->watched("gather", [&] {
    store.set(key(name, parts_->place.rank), bytes_of(bytes));
    parts_->wait(*parts_->gloo->barrier());
    std::vector<std::string> all;
    for (std::int64_t r = 0; r < parts_->place.ranks; ++r) all.push_back(text_of(store.get(key(name, r))));
    // The last one to read deletes them.
    if (store.add(name, 1) == parts_->place.ranks) {
      for (std::int64_t r = 0; r < parts_->place.ranks; ++r) store.deleteKey(key(name, r));
      store.deleteKey(name);
    }
    return all;
  });
}

}  // namespace ddp
