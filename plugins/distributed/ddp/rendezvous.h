// The rendezvous of the ranks: they find each other in c10d's store, which rank 0 or the launcher serves.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <vernier/error.h>
#include <vernier/launch_place.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace ddp {

using Store = c10::intrusive_ptr<c10d::Store>;

struct Rendezvous {
  vernier::LaunchPlace place;
  std::chrono::milliseconds timeout{120000};
  std::string interface;          // network interface; empty: the one that leads to rank 0
  bool shares_memory = true;      // if all ranks are on one machine
  c10::Device device{c10::kCPU};  // the device on which this rank trains
};

// Throws vernier::Error if rank 0 is not there within the timeout; Error::Kind::configuration if it cannot listen.
Store open_store(const Rendezvous& rendezvous);
// Thrown if the store ends before rank 0 of this attempt has come: rank 0 of an earlier attempt served it.
struct EarlierStore final : vernier::Error {
  using Error::Error;
};
// False if a signal came. Throws Error if a rank does not come, Error::Kind::configuration if ranks disagree about
// their number or if a rank is there twice, and EarlierStore.
bool wait_for_all(c10d::Store& store, const Rendezvous& rendezvous, const std::function<bool()>& is_stopping);

// The key of a rank in the store.
std::string key(const std::string& name, std::int64_t rank);
// Exchanges one text per rank and returns all of them, by rank. The store waits for them until its timeout.
std::vector<std::string> exchange(c10d::Store& store, const vernier::LaunchPlace& place, const std::string& name,
                                  const std::string& own);

// True for an address that no other machine reaches, such as 127.0.0.1.
bool is_loopback(const std::string& address);
// The name of this machine. A network namespace, as each container has, counts as a machine of its own.
std::string machine();
// The address of this machine in the network that leads to rank 0.
std::string own_address_towards(const std::string& host, std::int64_t port);
// Returns the message of the exception that is being handled, without LibTorch's stack and place.
std::string reason();
void quieten_c10d();

}  // namespace ddp
