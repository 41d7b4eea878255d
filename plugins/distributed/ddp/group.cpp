#include "group.h"

#define USE_C10D_GLOO
#include <torch/types.h>
#include <vernier/error.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <future>
#include <map>
#include <thread>
#include <utility>

#include "broadcast_buckets.h"
#include "heartbeat.h"
#include "nccl_library.h"
#include "shared_sums.h"
#include "timeout_store.h"

namespace ddp {

namespace {

using vernier::Error;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Backend = c10::intrusive_ptr<c10d::Backend>;
using Pointer = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

constexpr Milliseconds rank_0_leaves_last{5000};            // or after the timeout, if that is shorter
const std::string all_ranks = "0";                          // the name of torch.distributed's first group
constexpr std::chrono::microseconds gpu_poll_interval{50};  // between two queries of a GPU

Backend open_gloo(const Store& store, const Rendezvous& rendezvous) {
  using c10d::ProcessGroupGloo;
  const auto& place = rendezvous.place;
  const auto options = ProcessGroupGloo::Options::create_default(rendezvous.timeout);
  try {
    const auto own_address = [address = place.address, port = place.port] {
      return own_address_towards(address, port);  // name resolution may ask a server
    };
    options->devices = {rendezvous.interface.empty()
                            ? ProcessGroupGloo::createDeviceForHostname(within(rendezvous.timeout, own_address))
                            : ProcessGroupGloo::createDeviceForInterface(rendezvous.interface)};
  } catch (...) {
    vernier::refuse(
        "the network of this machine cannot be used" +
        (rendezvous.interface.empty() ? "" : " by [distributed] interface = \"" + rendezvous.interface + "\"") + ": " +
        reason());
  }
  return c10::make_intrusive<ProcessGroupGloo>(store, static_cast<int>(place.rank), static_cast<int>(place.ranks),
                                               options);
}

bool is_completed(c10d::Work& collective, Milliseconds most) {
  const auto end = Clock::now() + most;
  while (!collective.isCompleted()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(gpu_poll_interval);
  }
  return true;
}

// Empty unless all ranks can share memory.
std::unique_ptr<SharedSums> open_shared_sums(c10d::Store& store, const Rendezvous& rendezvous) {
  const auto& place = rendezvous.place;
  const std::string name = "shared memory", can = "can share memory";
  std::unique_ptr<SharedSums> sums;
  try {
    if (!rendezvous.shares_memory) throw Error("not wanted");
    sums = std::make_unique<SharedSums>(place, place.rank == 0 ? "" : store.get_to_str(name), rendezvous.timeout);
  } catch (const Error&) {  // another machine
  }
  if (place.rank == 0) store.set(name, sums ? sums->name() : "");
  const auto all = exchange(store, place, can, sums ? "yes" : "no");
  return std::ranges::count(all, "yes") == place.ranks ? std::move(sums) : nullptr;
}

// Empty unless each rank has a GPU of its own and can open NCCL; `why` says what is missing then, if any has a GPU.
Backend open_nccl(const Store& store, const Rendezvous& rendezvous, std::string& why) {
  const auto& place = rendezvous.place;
  const std::string refusal = "no: ", no_gpu = refusal + "a rank trains on the CPU";
  const NcclLibrary* library = nullptr;
  std::string own = no_gpu;
  try {
    if (!rendezvous.device.is_cpu()) {
      library = &open_nccl_library(nccl_file());
      own = machine() + " " + library->bus_id(rendezvous.device.index());
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
  if (!rendezvous.interface.empty())
    ::setenv("NCCL_SOCKET_IFNAME", ("=" + rendezvous.interface).c_str(), /*overwrite=*/0);
  // Who waits gives up first, and then looks for the lost rank.
  return library->open(store, static_cast<int>(place.rank), static_cast<int>(place.ranks), 2 * rendezvous.timeout);
}

std::unique_ptr<Heartbeat> open_heartbeat(c10d::Store& store, const Rendezvous& rendezvous) {
  const std::string name = "heartbeat";
  const auto& place = rendezvous.place;
  const auto port = place.rank == 0 ? 0 : std::stoll(store.get_to_str(name));
  auto heartbeat = std::make_unique<Heartbeat>(place, port, rendezvous.timeout);
  if (place.rank != 0) return heartbeat;
  store.set(name, std::to_string(heartbeat->port()));
  return heartbeat;
}

}  // namespace

struct Group::Impl {
  vernier::LaunchPlace place;
  Milliseconds timeout{};
  Store store;
  std::unique_ptr<Heartbeat> heartbeat;
  Backend gloo;  // for tensors on the CPU
  Backend nccl;  // for those on a GPU; may be empty
  std::string why_without_nccl;
  std::unique_ptr<SharedSums> shared;
  std::int64_t gathered = 0;
  bool is_broken = false;
  class Work;
  class Collectives;
  c10::intrusive_ptr<c10d::ProcessGroup> collectives;  // c10d has no reference to it; empty: not registered

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
  void wait(const std::shared_future<void>& all) const;
  void abort_nccl() const;
  std::function<void()> wait_later(const char* operation, std::future<void> all);
};

void Group::Impl::lost(const char* operation, const std::string& why) {
  is_broken = true;
  abort_nccl();  // or the GPU would wait for ever, and this process for the GPU
  auto ranks = heartbeat ? heartbeat->lost_ranks() : std::vector<std::int64_t>{};
  if (!heartbeat && !place.launcher_has_store && place.rank != 0) ranks = {0};  // rank 0 has the store
  const auto names = c10::Join(", ", ranks);
  throw Error((ranks.empty()       ? "the connection between the ranks broke"
               : ranks.size() == 1 ? "rank " + names + " is lost"
                                   : "ranks " + names + " are lost") +
              c10::str(", as rank ", place.rank, " has seen in a ", operation, " (", why,
                       "); start all ranks again with --resume, or run.resume = \"auto\""));
}

void Group::Impl::abort_nccl() const {
  try {
    if (nccl) nccl->abort();
  } catch (...) {  // its error is known, or the process ends
  }
}

// Gloo's own error says more, and what a rank sent before it left may still be on its way: so they have a second.
void Group::Impl::wait(const std::function<bool(Milliseconds most)>& is_done) const {
  int broken_polls = 0;
  while (!is_done(Milliseconds(200))) {
    if (heartbeat->is_broken() && ++broken_polls > 5) throw Error("it does not answer any more");
  }
}

// NCCL's wait() makes only the current stream wait, and its wait(timeout) aborts the communicator when the time is
// over. So what runs on a GPU is asked whether it is complete.
void Group::Impl::wait(c10d::Work& collective, bool is_on_gpu) const {
  const auto end = Clock::now() + timeout + Milliseconds(is_on_gpu ? 0 : 1000);  // Gloo's own error comes first
  wait([&collective, is_on_gpu, end](Milliseconds most) {
    if (is_on_gpu && Clock::now() > end) throw Error("it does not answer in time");
    if (is_on_gpu) return is_completed(collective, most);
    try {
      return collective.wait(most);
    } catch (...) {                   // not yet, or it has failed
      if (Clock::now() > end) throw;  // a work of several operations never says that it is complete
      return collective.isCompleted();
    }
  });
  collective.wait();  // throws what went wrong
}

void Group::Impl::wait(const std::shared_future<void>& all) const {
  wait([&all](Milliseconds most) { return all.wait_for(most) == std::future_status::ready; });
  all.get();
}

std::function<void()> Group::Impl::wait_later(const char* operation, std::future<void> all) {
  return [this, operation, all = all.share()] { watched(operation, [&] { wait(all); }); };
}

// A collective of c10d, whose wait() names a rank that is lost.
class Group::Impl::Work final : public c10d::Work {
 public:
  Work(Impl& impl, Pointer work) : impl_(impl), work_(std::move(work)) {}
  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  bool wait(Milliseconds) override {
    impl_.watched("collective of the model", [this] { impl_.wait(*work_, false); });
    return true;
  }

 private:
  Impl& impl_;
  Pointer work_;
};

// The collectives that functional ones call.
class Group::Impl::Collectives final : public c10d::Backend {
 public:
  explicit Collectives(Impl& impl)
      : Backend(static_cast<int>(impl.place.rank), static_cast<int>(impl.place.ranks)), impl_(impl) {}
  const std::string getBackendName() const override { return impl_.gloo->getBackendName(); }
  Pointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return begin([&] { return impl_.gloo->allreduce(tensors, options); });
  }
  Pointer allgather_into_tensor_coalesced(Tensors& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    return begin([&] { return impl_.gloo->allgather_into_tensor_coalesced(to, from, options); });
  }
  Pointer reduce_scatter_tensor_coalesced(Tensors& to, Tensors& from,
                                          const c10d::ReduceScatterOptions& options) override {
    return begin([&] { return impl_.gloo->reduce_scatter_tensor_coalesced(to, from, options); });
  }

 private:
  template <class Body>
  Pointer begin(const Body& body) {
    return c10::make_intrusive<Work>(impl_, impl_.watched("collective of the model", body));
  }
  Impl& impl_;
};

Group::Group(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

void Group::register_collectives() {
  const auto& place = impl_->place;
  auto& group = impl_->collectives;
  group = c10::make_intrusive<c10d::ProcessGroup>(impl_->store, static_cast<int>(place.rank),
                                                  static_cast<int>(place.ranks));
  constexpr auto type = c10d::ProcessGroup::BackendType::CUSTOM;
  group->setBackend(c10::kCPU, type, c10::make_intrusive<Impl::Collectives>(*impl_));
  group->setDefaultBackend(type);
  group->setGroupName(all_ranks);
  c10d::register_process_group(all_ranks, group);
}

Group::~Group() {
  if (impl_->collectives) c10d::unregister_process_group(all_ranks);
  const auto& place = impl_->place;
  if (!impl_->is_broken)
    impl_->abort_nccl();  // its shutdown() would wait for sums that other ranks may not take part in any more
  if (!impl_->is_broken && place.rank == 0) {
    impl_->heartbeat->wait_until_alone(std::min(rank_0_leaves_last, impl_->timeout));
  }
  // A thread of Gloo's may still wait for a lost rank, until the timeout. It is left behind, as the process ends.
  if (impl_->is_broken) {
    (void)impl_->gloo.release();
    (void)impl_->nccl.release();
  }
}

std::unique_ptr<Group> Group::join(const Rendezvous& rendezvous, const std::function<bool()>& is_stopping) {
  quieten_c10d();
  auto impl = std::make_unique<Impl>();
  impl->place = rendezvous.place;
  impl->timeout = rendezvous.timeout;
  const auto end = Clock::now() + rendezvous.timeout;
  for (bool has_met = false; !has_met;) {
    impl->store = open_store(rendezvous);
    try {
      if (!wait_for_all(*impl->store, rendezvous, is_stopping)) return nullptr;
      has_met = true;
    } catch (const EarlierStore&) {  // rank 0 of this attempt comes later
      if (is_stopping()) return nullptr;
      if (Clock::now() > end) throw;
    } catch (const StoreTimeout&) {
      impl->lost("rendezvous", reason());
    } catch (const Error&) {
      throw;
    } catch (...) {  // rank 0 has left, maybe for the same signal
      if (is_stopping()) return nullptr;
      impl->lost("rendezvous", reason());
    }
  }
  impl->watched("rendezvous", [&] {
    impl->heartbeat = open_heartbeat(*impl->store, rendezvous);
    impl->gloo = open_gloo(impl->store, rendezvous);
    impl->shared = open_shared_sums(*impl->store, rendezvous);
    impl->nccl = open_nccl(impl->store, rendezvous, impl->why_without_nccl);
  });
  return std::unique_ptr<Group>(new Group(std::move(impl)));
}

// One tensor a call: Gloo would add two of a list to each other.
std::function<void()> Group::sum(const std::vector<torch::Tensor>& tensors, bool is_read) {
  const bool is_on_gpu = !tensors.empty() && !tensors[0].is_cpu();
  if (is_on_gpu && !impl_->nccl) return sum_copies(tensors);
  if (!is_on_gpu && impl_->shared) return impl_->wait_later("sum", impl_->shared->sum(tensors, is_read));
  const auto& backend = is_on_gpu ? impl_->nccl : impl_->gloo;
  std::vector<Pointer> works;
  impl_->watched("sum", [&] {
    for (const auto& tensor : tensors) {
      std::vector<at::Tensor> one{tensor};
      works.push_back(backend->allreduce(one, c10d::AllreduceOptions()));
    }
  });
  return [impl = impl_.get(), works = std::move(works), is_on_gpu] {
    impl->watched("sum", [&] {
      for (const auto& work : works) impl->wait(*work, is_on_gpu);
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

bool Group::shares_memory() const {
  return impl_->shared != nullptr;
}

const std::string& Group::why_without_nccl() const {
  return impl_->why_without_nccl;
}

// Few buckets are under way at a time, since each has memory of its own. Gloo has two threads.
void Group::broadcast(const std::vector<std::vector<torch::Tensor>>& of_ranks, std::int64_t bucket_bytes) {
  constexpr std::size_t under_way = 4;
  const torch::NoGradGuard no_grad;
  auto buckets = broadcast_buckets_of(of_ranks, bucket_bytes);
  const auto own = impl_->place.rank;
  std::vector<std::function<void()>> waits;
  const auto finish = [&](std::size_t i) {
    waits[i]();
    if (buckets[i].from != own) buckets[i].unpack();
    buckets[i].bytes.reset();
    waits[i] = nullptr;
  };
  impl_->watched("broadcast", [&] {
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      if (i >= under_way) finish(i - under_way);
      auto& bucket = buckets[i];
      const auto over = impl_->nccl ? bucket.tensors[0].device() : torch::Device(torch::kCPU);
      bucket.pack(bucket.from == own, over);
      if (over.is_cpu() && impl_->shared) {
        waits.emplace_back(
            [impl = impl_.get(), all = impl_->shared->copy(bucket.bytes, bucket.from).share()] { impl->wait(all); });
        continue;
      }
      c10d::BroadcastOptions options;
      options.rootRank = bucket.from;
      std::vector<at::Tensor> one{bucket.bytes};
      waits.emplace_back([impl = impl_.get(), is_on_gpu = !over.is_cpu(),
                          work = (over.is_cpu() ? impl_->gloo : impl_->nccl)->broadcast(one, options)] {
        impl->wait(*work, is_on_gpu);
      });
    }
    const auto first = buckets.size() - std::min(buckets.size(), under_way);
    for (auto i = first; i < buckets.size(); ++i) finish(i);
  });
}

// Through the store: small texts, of any length on each rank. The store would wait for the text of a lost rank until
// the timeout; the barrier sees that its connection broke.
// The store closes a connection that sets a value of over 8 MiB (MAX_PAYLOAD_LEN of TCPStoreLibUvBackend.cpp), so bytes
// over `longest` are split. A part begins with '+' if another one follows.
std::vector<std::string> Group::gather(const std::string& bytes) {
  constexpr std::size_t longest = 4 << 20;
  auto& store = *impl_->store;
  const auto name = "gather/" + std::to_string(impl_->gathered++);
  const auto part_of = [&](std::int64_t rank, std::size_t part) {
    return key(name, rank) + (part == 0 ? "" : "/" + std::to_string(part));
  };
  return impl_->watched("gather", [&] {
    for (std::size_t at = 0, part = 0; part == 0 || at < bytes.size(); at += longest, ++part) {
      const bool is_last = bytes.size() - at <= longest;
      store.set(part_of(impl_->place.rank, part), (is_last ? "." : "+") + bytes.substr(at, longest));
    }
    impl_->wait(*impl_->gloo->barrier(), false);
    std::vector<std::string> all;
    std::vector<std::string> keys = {name};
    for (std::int64_t r = 0; r < impl_->place.ranks; ++r) {
      all.emplace_back();
      bool is_last = false;
      for (std::size_t part = 0; !is_last; ++part) {
        keys.push_back(part_of(r, part));
        const auto value = store.get_to_str(keys.back());
        is_last = value.at(0) == '.';
        all.back().append(value, 1);
      }
    }
    // The last one to read deletes them.
    if (store.add(name, 1) == impl_->place.ranks) {
      for (const auto& each : keys) store.deleteKey(each);
    }
    return all;
  });
}

}  // namespace ddp
