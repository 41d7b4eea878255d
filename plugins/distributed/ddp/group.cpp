#include "group.h"

#define USE_C10D_GLOO
#include <torch/types.h>
#include <vernier/error.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <future>
#include <map>
#include <thread>
#include <utility>

#include "lifeline.h"
#include "nccl_library.h"
#include "parcels.h"
#include "patient_store.h"
#include "shared_sums.h"

namespace ddp {

namespace {

using vernier::Error;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Backend = c10::intrusive_ptr<c10d::Backend>;

constexpr Milliseconds rank_0_leaves_last{5000};            // or after the timeout, if that is shorter
constexpr std::chrono::microseconds between_questions{50};  // to a GPU

Backend open_gloo(const Store& store, const Meeting& meeting) {
  using c10d::ProcessGroupGloo;
  const auto& place = meeting.place;
  const auto options = ProcessGroupGloo::Options::create_default(meeting.timeout);
  try {
    const auto own_address = [address = place.address, port = place.port] {
      return own_address_towards(address, port);  // which may ask a server of names
    };
    options->devices = {meeting.interface.empty()
                            ? ProcessGroupGloo::createDeviceForHostname(within(meeting.timeout, own_address))
                            : ProcessGroupGloo::createDeviceForInterface(meeting.interface)};
  } catch (...) {
    vernier::refuse("the network of this machine cannot be used" +
                    (meeting.interface.empty() ? "" : " by [distributed] interface = \"" + meeting.interface + "\"") +
                    ": " + reason());
  }
  return c10::make_intrusive<ProcessGroupGloo>(store, static_cast<int>(place.rank), static_cast<int>(place.ranks),
                                               options);
}

bool is_completed(c10d::Work& collective, Milliseconds most) {
  const auto end = Clock::now() + most;
  while (!collective.isCompleted()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(between_questions);
  }
  return true;
}

// Empty unless all ranks can share memory.
std::unique_ptr<SharedSums> open_shared_sums(c10d::Store& store, const Meeting& meeting) {
  const auto& place = meeting.place;
  const std::string name = "shared memory", can = "can share memory";
  std::unique_ptr<SharedSums> sums;
  try {
    if (!meeting.shares_memory) throw Error("not wanted");
    sums = std::make_unique<SharedSums>(place, place.rank == 0 ? "" : store.get_to_str(name), meeting.timeout);
  } catch (const Error&) {  // another machine
  }
  if (place.rank == 0) store.set(name, sums ? sums->name() : "");
  const auto all = exchange(store, place, can, sums ? "yes" : "no");
  return std::ranges::count(all, "yes") == place.ranks ? std::move(sums) : nullptr;
}

// Empty unless each rank has a GPU of its own and can open NCCL; `why` says what is missing then, if any has a GPU.
Backend open_nccl(const Store& store, const Meeting& meeting, std::string& why) {
  const auto& place = meeting.place;
  const std::string refusal = "no: ", no_gpu = refusal + "a rank trains on the CPU";
  const NcclLibrary* library = nullptr;
  std::string own = no_gpu;
  try {
    if (!meeting.device.is_cpu()) {
      library = &open_nccl_library(nccl_file());
      own = machine() + " " + library->bus_id(meeting.device.index());
    }
  } catch (...) {
    own = refusal + reason();
  }
  const auto all = exchange(*store, place, "gpu", own);
  if (std::ranges::count(all, no_gpu) == place.ranks) return {};
  std::map<std::string, std::size_t> owner;
  for (std::size_t r = 0; r < all.size() && why.empty(); ++r) {
    const auto [first, is_new] = owner.emplace(all[r], r);
    if (all[r].starts_with(refusal)) {
      why = all[r].substr(refusal.size());
    } else if (!is_new) {
      why = c10::str("ranks ", first->second, " and ", r, " have the same GPU");
    }
  }
  if (!why.empty()) return {};
  if (!meeting.interface.empty()) ::setenv("NCCL_SOCKET_IFNAME", ("=" + meeting.interface).c_str(), /*overwrite=*/0);
  // Who waits gives up first, and then looks for the lost rank.
  return library->open(store, static_cast<int>(place.rank), static_cast<int>(place.ranks), 2 * meeting.timeout);
}

std::unique_ptr<Lifeline> open_lifeline(c10d::Store& store, const Meeting& meeting) {
  const std::string name = "lifeline";
  const auto& place = meeting.place;
  const auto port = place.rank == 0 ? 0 : std::stoll(store.get_to_str(name));
  auto lifeline = std::make_unique<Lifeline>(place, port, meeting.timeout);
  if (place.rank != 0) return lifeline;
  store.set(name, std::to_string(lifeline->port()));
  return lifeline;
}

}  // namespace

struct Group::Parts {
  vernier::LaunchPlace place;
  Milliseconds timeout{};
  Store store;
  std::unique_ptr<Lifeline> lifeline;
  Backend gloo;  // for tensors on the CPU
  Backend nccl;  // for those on a GPU; may be empty
  std::string why_without_nccl;
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
  void wait(c10d::Work& collective, bool is_on_gpu) const;
  void wait(const std::function<bool(Milliseconds most)>& is_done) const;
  void abort_nccl() const;
  std::function<void()> wait_later(const char* operation, std::future<void> all);
};

void Group::Parts::lost(const char* operation, const std::string& why) {
  is_broken = true;
  abort_nccl();  // or the GPU would wait for ever, and this process for the GPU
  auto ranks = lifeline ? lifeline->lost_ranks() : std::vector<std::int64_t>{};
  if (!lifeline && !place.launcher_has_store && place.rank != 0) ranks = {0};  // which has the store
  const auto names = c10::Join(", ", ranks);
  throw Error((ranks.empty()       ? "the connection between the ranks broke"
               : ranks.size() == 1 ? "rank " + names + " is lost"
                                   : "ranks " + names + " are lost") +
              c10::str(", as rank ", place.rank, " has seen in a ", operation, " (", why,
                       "); start all ranks again with --resume, or run.resume = \"auto\""));
}

void Group::Parts::abort_nccl() const {
  try {
    if (nccl) nccl->abort();
  } catch (...) {  // what is wrong with it is known, or the process ends
  }
}

// Gloo's own error says more, and what a rank sent before it left may still be on its way: so they have a second.
void Group::Parts::wait(const std::function<bool(Milliseconds most)>& is_done) const {
  int broken_looks = 0;
  while (!is_done(Milliseconds(200))) {
    if (lifeline->is_broken() && ++broken_looks > 5) throw Error("it does not answer any more");
  }
}

// NCCL's wait() makes only the current stream wait, and its wait(timeout) aborts the communicator when the time is
// over. So what runs on a GPU is asked whether it is complete.
void Group::Parts::wait(c10d::Work& collective, bool is_on_gpu) const {
  const auto end = Clock::now() + timeout;
  wait([&collective, is_on_gpu, end](Milliseconds most) {
    if (is_on_gpu && Clock::now() > end) throw Error("it does not answer in time");
    if (is_on_gpu) return is_completed(collective, most);
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
  if (!parts_->is_broken)
    parts_->abort_nccl();  // its shutdown() would wait for sums that other ranks may not take part in any more
  if (!parts_->is_broken && place.rank == 0) {
    parts_->lifeline->wait_until_alone(std::min(rank_0_leaves_last, parts_->timeout));
  }
  // A thread of Gloo's may still wait for a lost rank, until the timeout. It is left behind, as the process ends.
  if (parts_->is_broken) {
    (void)parts_->gloo.release();
    (void)parts_->nccl.release();
  }
}

std::unique_ptr<Group> Group::meet(const Meeting& meeting, const std::function<bool()>& is_stopping) {
  quieten_c10d();
  auto parts = std::make_unique<Parts>();
  parts->place = meeting.place;
  parts->timeout = meeting.timeout;
  parts->store = open_store(meeting);
  try {
    if (!wait_for_all(*parts->store, meeting, is_stopping)) return nullptr;
  } catch (const StoreIsSilent&) {
    parts->lost("meeting", reason());
  } catch (const Error&) {
    throw;
  } catch (...) {  // rank 0 has left, maybe for the same signal
    if (is_stopping()) return nullptr;
    parts->lost("meeting", reason());
  }
  parts->watched("meeting", [&] {
    parts->lifeline = open_lifeline(*parts->store, meeting);
    parts->gloo = open_gloo(parts->store, meeting);
    parts->shared = open_shared_sums(*parts->store, meeting);
    parts->nccl = open_nccl(parts->store, meeting, parts->why_without_nccl);
  });
  return std::unique_ptr<Group>(new Group(std::move(parts)));
}

// One tensor a call: Gloo would add two of a list to each other.
std::function<void()> Group::sum(const std::vector<torch::Tensor>& tensors) {
  const bool is_on_gpu = !tensors.empty() && !tensors[0].is_cpu();
  if (is_on_gpu && !parts_->nccl) return sum_copies(tensors);
  if (!is_on_gpu && parts_->shared) return parts_->wait_later("sum", parts_->shared->sum(tensors));
  const auto& backend = is_on_gpu ? parts_->nccl : parts_->gloo;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  parts_->watched("sum", [&] {
    for (const auto& tensor : tensors) {
      std::vector<at::Tensor> one{tensor};
      works.push_back(backend->allreduce(one, c10d::AllreduceOptions()));
    }
  });
  return [parts = parts_.get(), works = std::move(works), is_on_gpu] {
    parts->watched("sum", [&] {
      for (const auto& work : works) parts->wait(*work, is_on_gpu);
    });
  };
}

std::function<void()> Group::sum_copies(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> copies;
  for (const auto& tensor : tensors) copies.push_back(tensor.to(torch::kCPU));
  return [tensors, copies, wait = sum(copies)] {
    wait();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(copies[i]);
  };
}

const std::string& Group::why_without_nccl() const {
  return parts_->why_without_nccl;
}

// Few parcels are under way at a time, since each has memory of its own. Gloo has two threads.
void Group::broadcast(const std::vector<std::vector<torch::Tensor>>& of_ranks, std::int64_t bucket) {
  constexpr std::size_t under_way = 4;
  const torch::NoGradGuard no_grad;
  auto parcels = parcels_of(of_ranks, bucket);
  const auto own = parts_->place.rank;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  const auto finish = [&](std::size_t i) {
    parts_->wait(*works[i], !parcels[i].bytes.is_cpu());
    if (parcels[i].from != own) parcels[i].unpack();
    parcels[i].bytes.reset();
    works[i].reset();
  };
  parts_->watched("broadcast", [&] {
    for (std::size_t i = 0; i < parcels.size(); ++i) {
      if (i >= under_way) finish(i - under_way);
      auto& parcel = parcels[i];
      const auto over = parts_->nccl ? parcel.tensors[0].device() : torch::Device(torch::kCPU);
      parcel.pack(parcel.from == own, over);
      c10d::BroadcastOptions options;
      options.rootRank = parcel.from;
      std::vector<at::Tensor> one{parcel.bytes};
      works.push_back((over.is_cpu() ? parts_->gloo : parts_->nccl)->broadcast(one, options));
    }
    const auto first = parcels.size() - std::min(parcels.size(), under_way);
    for (auto i = first; i < parcels.size(); ++i) finish(i);
  });
}

// Through the store: small texts, of any length on each rank. The store would wait for the text of a lost rank until
// the timeout; the barrier sees that its connection broke.
std::vector<std::string> Group::gather(const std::string& bytes) {
  auto& store = *parts_->store;
  const auto name = "gather/" + std::to_string(parts_->gathered++);
  return parts_->watched("gather", [&] {
    store.set(key(name, parts_->place.rank), bytes);
    parts_->wait(*parts_->gloo->barrier(), false);
    std::vector<std::string> all;
    for (std::int64_t r = 0; r < parts_->place.ranks; ++r) all.push_back(store.get_to_str(key(name, r)));
    // The last one to read deletes them.
    if (store.add(name, 1) == parts_->place.ranks) {
      for (std::int64_t r = 0; r < parts_->place.ranks; ++r) store.deleteKey(key(name, r));
      store.deleteKey(name);
    }
    return all;
  });
}

}  // namespace ddp
