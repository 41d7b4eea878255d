// A device for tests of what is ordered by streams and events. Its memory is the host's; what it is given runs only
// when the host waits, and of the streams that could go on one is drawn at random: what no event orders comes in any
// order. The whole process has it from the first use on, under LibTorch's name "privateuseone".
#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

class FakeDevice final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr auto kind = c10::DeviceType::PrivateUse1;
  static inline const c10::Device device{kind, 0};

  static FakeDevice& get() {
    static auto* const only = new FakeDevice;
    return *only;
  }

  // In memory of the host, which holds what the device has done so far.
  torch::Tensor tensor(std::vector<float>& memory) const {
    return at::for_blob(memory.data(), {static_cast<std::int64_t>(memory.size())})
        .options(torch::TensorOptions(torch::kFloat32).device(device))
        .target_device(device)
        .make_tensor();
  }
  // To the current stream.
  void give(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    give_to(current_, [work = std::move(work)] { return work(), true; });
  }
  void draw_anew(unsigned seed) { random_.seed(seed); }
  int copies() const { return copies_; }  // done so far; for what it is given
  bool has_waited(std::thread::id host) const { return waited_.count(host) != 0; }
  // True if the owner of the memory knows that another stream reads it.
  bool is_kept_for_stream(const torch::Tensor& tensor) const { return kept_.count(tensor.const_data_ptr()) != 0; }

  // Called by LibTorch.
  c10::DeviceType type() const override { return kind; }
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::Device getDevice() const override { return device; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }
  c10::Stream getStream(c10::Device) const override { return stream(current_); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(1); }
  c10::Stream exchangeStream(c10::Stream next) const override { return stream(std::exchange(current_, next.id())); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream&) const override { kept_.insert(data.get()); }

  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    const std::lock_guard lock(mutex_);
    if (*event == nullptr) *event = events_.emplace_back(std::make_unique<Event>()).get();
    auto* const one = static_cast<Event*>(*event);
    const int version = ++one->recorded;
    give_to(on.id(), [one, version] { return one->done = version, true; });
  }
  void block(void* event, const c10::Stream& waits) const override {
    const std::lock_guard lock(mutex_);
    const auto* const one = static_cast<const Event*>(event);
    give_to(waits.id(), [one, version = one->recorded] { return one->done >= version; });
  }
  void synchronizeEvent(void* event) const override {
    const std::lock_guard lock(mutex_);
    waited_.insert(std::this_thread::get_id());
    const auto* const one = static_cast<const Event*>(event);
    while (one->done < one->recorded) {
      if (!goes_on()) throw std::runtime_error("the streams wait for each other");
    }
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    const std::lock_guard lock(mutex_);
    while (goes_on()) {
    }
  }

 private:
  struct Event {
    int recorded = 0, done = 0;
  };
  using Work = std::function<bool()>;  // false: it has to wait

  struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  };

  FakeDevice() : library_(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__) {
    c10::register_privateuse1_backend("privateuseone");
    c10::impl::DeviceGuardImplRegistrar(kind, this);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    library_.impl("_copy_from", [](const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
      TORCH_CHECK(non_blocking && from.nbytes() == to.nbytes(), "the fake device copies like to like, and never waits");
      get().give([from, to] {
        std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
        get().copies_ += 1;
      });
      return to;
    });
  }

  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device, id); }
  void give_to(c10::StreamId id, Work work) const { streams_[id].push_back(std::move(work)); }

  // One piece of work of any stream that need not wait; false where there is none.
  bool goes_on() const {
    std::vector<std::deque<Work>*> all;
    for (auto& [id, works] : streams_) {
      if (!works.empty()) all.push_back(&works);
    }
    std::shuffle(all.begin(), all.end(), random_);
    for (auto* const works : all) {
      if (!works->front()()) continue;
      works->pop_front();
      return true;
    }
    return false;
  }

  torch::Library library_;
  mutable std::mutex mutex_;
  mutable std::mt19937 random_;
  mutable c10::StreamId current_ = 0;
  mutable std::map<c10::StreamId, std::deque<Work>> streams_;
  mutable std::vector<std::unique_ptr<Event>> events_;
  mutable std::set<const void*> kept_;
  mutable std::set<std::thread::id> waited_;
  int copies_ = 0;
};
