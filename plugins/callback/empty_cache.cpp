// empty_cache: gives unused memory back to the system, every so many steps: on a GPU the memory that LibTorch's caching
// allocator holds, as torch.cuda.empty_cache() does, and on a CPU the free pages of malloc. It is
// for other programs on the same device, and for runs of which one part takes more memory than the rest. It makes no
// room for the run's own tensors, which take that memory anyway, unless it is in blocks that do not fit. It changes no
// result.
//   every = 100    steps
//   above = 0.0    only if more than this share of the memory held is unused; 0: always
// The next steps get the memory again, and on a GPU the host waits for the device. The log says how much came back: the
// first time, and in all at the end; with --debug each time.
#include <ATen/DeviceAccelerator.h>
#include <malloc.h>
#include <unistd.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <cmath>
#include <fstream>

// tcmalloc's function; null unless the program uses tcmalloc instead of the C library's malloc.
extern "C" __attribute__((weak)) void MallocExtension_ReleaseFreeMemory();

namespace {

using vernier::Event;
using vernier::Run;

struct Memory {
  double held = 0, used = 0;  // bytes, as the allocator counts them
  double unused_share() const { return held > 0 ? (held - used) / held : 0; }
};

Memory memory_of(c10::Device device) {
  if (device.is_cpu()) {
    const auto heap = ::mallinfo2();
    return {static_cast<double>(heap.arena + heap.hblkhd), static_cast<double>(heap.uordblks + heap.hblkhd)};
  }
  constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = at::accelerator::getDeviceStats(device.index());
  return {static_cast<double>(stats.reserved_bytes[all].current),
          static_cast<double>(stats.allocated_bytes[all].current)};
}

// Bytes that the system has given. On a CPU these are the resident pages, since no count of malloc changes.
double taken_from_system(c10::Device device) {
  if (!device.is_cpu()) return memory_of(device).held;
  double pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

class EmptyCache final : public vernier::Callback {
 public:
  explicit EmptyCache(vernier::Options& options)
      : every_(options.get("every", 100, "steps from one time to the next", vernier::at_least(1))),
        above_(options.get("above", 0.0, "only if more than this share is unused; 0: always", vernier::between(0, 1))) {
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::StepEnd, [this](Run& run) {
      if (run.step % every_ == 0) empty(run);
    });
    bus.on(Event::RunEnd, [this](Run&) {
      info("gave ", std::llround(given_back_ / 1e6), " MB back, ", times_, times_ == 1 ? " time" : " times");
    });
  }

 private:
  void empty(const Run& run) {
    if (memory_of(run.device).unused_share() < above_) return;
    const double before = taken_from_system(run.device);
    if (run.device.is_cpu()) {
      MallocExtension_ReleaseFreeMemory != nullptr ? MallocExtension_ReleaseFreeMemory() : void(::malloc_trim(0));
    } else {
      at::accelerator::emptyCache();
    }
    const double came_back = std::max(before - taken_from_system(run.device), 0.0);
    given_back_ += came_back;
    times_ += 1;
    vernier::log(times_ == 1 ? vernier::Level::info : vernier::Level::debug, id(),
                 c10::str("step ", run.step, ": gave ", std::llround(came_back / 1e6), " MB back"));
  }

  std::int64_t every_;
  double above_;
  double given_back_ = 0;  // bytes, of this process
  std::int64_t times_ = 0;
};

}  // namespace

VERNIER_PLUGIN(EmptyCache, "empty_cache", "1.0.0")
