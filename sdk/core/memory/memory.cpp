#include <ATen/DeviceAccelerator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/StringUtil.h>
#include <sys/resource.h>
#include <torch/types.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/memory.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>

#include "files/huge_pages.h"

namespace vernier {

namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

// Stands before LibTorch's allocator. It refuses what the system has no memory for, and counts if it is asked to. Never
// destroyed: tensors may outlive everything.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& base) : base_(base) { give_back_to_base = base.raw_deleter(); }

  at::DataPtr allocate(std::size_t count) override {
    const auto bytes = static_cast<std::int64_t>(count);
    if (bytes >= large) require_room(bytes);
    if (!counts) return base_.allocate(count);
    take(bytes);
    try {
      auto data = base_.allocate(count);
      if (data.get() == nullptr) return data;
      remember(data.get(), bytes);
      // LibTorch wants memory whose context is its address (raw_allocate).
      return {data.get(), data.release_context(), &give_back, c10::kCPU};
    } catch (...) {
      now -= bytes;
      throw;
    }
  }
  at::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

  static void install() {
    if (dynamic_cast<CountingAllocator*>(c10::GetCPUAllocator()) != nullptr) return;
    c10::SetCPUAllocator(new CountingAllocator(*c10::GetCPUAllocator()));
  }

  inline static std::atomic<std::int64_t> now = 0, peak = 0, limit = unlimited;
  inline static std::atomic<bool> counts = false;

  static void take(std::int64_t bytes) {
    const auto before = now.fetch_add(bytes), after = before + bytes;
    if (after > limit) {
      now -= bytes;
      TORCH_CHECK_WITH(OutOfMemoryError, false, memory_text(bytes), " more were requested, and ", memory_text(before),
                       " of ", memory_text(limit), " are in use");
    }
    auto highest = peak.load();
    while (after > highest && !peak.compare_exchange_weak(highest, after)) {
    }
  }

 private:
  static constexpr std::int64_t large = 64 << 20;
  // The memory that was free at the last look, less what was given out since, given back or not. Linux promises more
  // memory than there is, and ends a process that uses it.
  inline static std::atomic<std::int64_t> known_room = 0;
  static void require_room(std::int64_t bytes);

  // The sizes of what is out, in parts so that threads seldom meet.
  struct Part {
    std::mutex mutex;
    std::unordered_map<void*, std::int64_t> bytes;
  };
  static Part& part_of(void* address) {
    static auto* parts = new std::array<Part, 16>();
    return (*parts)[(reinterpret_cast<std::uintptr_t>(address) >> 6) % 16];
  }
  static void remember(void* address, std::int64_t bytes) {
    auto& part = part_of(address);
    const std::lock_guard lock(part.mutex);
    part.bytes[address] = bytes;
  }
  static void give_back(void* address) {
    auto& part = part_of(address);
    {
      const std::lock_guard lock(part.mutex);
      const auto known = part.bytes.extract(address);  // none where it is older than the counting
      if (!known.empty()) now -= known.mapped();
    }
    give_back_to_base(address);
  }

  inline static at::DeleterFnPtr give_back_to_base = nullptr;
  c10::Allocator& base_;
};

// The number behind a name in a file of lines such as "MemAvailable:   123 kB" or "inactive_file 123"; else 0.
std::int64_t number_in(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::int64_t number = 0;
  for (std::string word; file >> word;) {
    if (word == name) file >> number;
  }
  return number;
}

// The number that a file begins with; "max" is none.
std::optional<std::int64_t> number_at(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

struct MemoryLimit {
  std::int64_t all = unlimited, left = unlimited;
};

// The narrowest of the control groups that this process is in: those above limit it too. What files take in the cache
// is given back when memory runs short.
MemoryLimit limit_of_control_group() {
  MemoryLimit least;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const bool is_new = line.starts_with("0::");
    const auto memory = line.find(":memory:");
    if (!is_new && memory == std::string::npos) continue;
    const std::string root = is_new ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    auto group = line.substr(is_new ? 3 : memory + 8);
    for (;; group.resize(group.rfind('/'))) {
      while (!group.empty() && group.back() == '/') group.pop_back();
      const auto folder = root + group;
      const auto limit = number_at(folder + (is_new ? "/memory.max" : "/memory.limit_in_bytes"));
      const auto used = number_at(folder + (is_new ? "/memory.current" : "/memory.usage_in_bytes"));
      if (limit && used) {
        const auto files =
            number_in(folder + "/memory.stat", "inactive_file") + number_in(folder + "/memory.stat", "active_file");
        least.all = std::min(least.all, *limit);
        least.left = std::min(least.left, std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *used - files)));
      }
      if (group.empty()) break;
    }
  }
  return least;
}

MemoryLimit limit_of_machine() {
  constexpr const char* file = "/proc/meminfo";
  const auto all = number_in(file, "MemTotal:") * 1024;
  if (all == 0) return {};  // it cannot be read
  return {all, number_in(file, "MemAvailable:") * 1024};
}

std::int64_t left_of_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return unlimited;
  const auto used = number_at("/proc/self/statm").value_or(0) * sysconf(_SC_PAGESIZE);
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(limit.rlim_cur) - used);
}

std::int64_t free_of_system() {
  return std::min({limit_of_machine().left, limit_of_control_group().left, left_of_address_space()});
}

// A look reads some files, so it is taken where half of what the last one saw is given out.
void CountingAllocator::require_room(std::int64_t bytes) {
  if ((known_room -= bytes) > 0) return;
  const auto left = free_of_system();
  known_room = left / 2;
  TORCH_CHECK_WITH(OutOfMemoryError, bytes <= left, memory_text(bytes), " more were requested, and the machine has ",
                   memory_text(left), " free");
}

c10::CachingDeviceAllocator::Stat stat(const c10::CachingDeviceAllocator::StatArray& stats) {
  return stats[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

bool is_out_of_memory(const std::exception& exception) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&exception) != nullptr) return true;
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) return true;
  // LibTorch's CPU allocator throws the general type, and so do the libraries of a GPU, which take memory past
  // LibTorch's allocator: only their texts tell it from other errors.
  const std::string_view text = exception.what();
  constexpr const char* words[] = {"DefaultCPUAllocator: can't allocate memory", "CUDA error: out of memory",
                                   "ALLOC_FAILED"};
  return dynamic_cast<const c10::Error*>(&exception) != nullptr &&
         std::ranges::any_of(words, [&](const char* word) { return text.find(word) != std::string_view::npos; });
}

// LibTorch knows no limit on a GPU: it is kept here for those who compare.
std::atomic<std::int64_t> device_limit = unlimited;
std::atomic<std::int64_t> device_highest = 0;  // the highest of the peaks that were reset

}  // namespace

void count_memory_of_others(std::int64_t bytes) {
  CountingAllocator::now += bytes;
}

void count_memory(torch::Device device) {
  if (!device.is_cpu()) return;
  CountingAllocator::install();
  CountingAllocator::counts = true;
}

Allocated allocated_memory(torch::Device device) {
  if (device.is_cpu()) return {CountingAllocator::now, CountingAllocator::peak};
  const auto bytes = stat(at::accelerator::getDeviceStats(device.index()).allocated_bytes);
  return {bytes.current, bytes.peak};
}

std::int64_t highest_memory(torch::Device device) {
  return std::max(device_highest.load(), allocated_memory(device).peak);
}

void reset_peak_memory(torch::Device device) {
  if (!device.is_cpu()) {
    device_highest = highest_memory(device);
    return at::accelerator::resetPeakStats(device.index());
  }
  CountingAllocator::peak = CountingAllocator::now.load();
}

void limit_memory(torch::Device device, std::int64_t bytes) {
  if (device.is_cpu()) CountingAllocator::install();
  if (bytes != 0) count_memory(device);
  (device.is_cpu() ? CountingAllocator::limit : device_limit) = bytes == 0 ? unlimited : bytes;
}

std::int64_t memory_limit(torch::Device device) {
  const auto limit = device.is_cpu() ? CountingAllocator::limit.load() : device_limit.load();
  return limit == unlimited ? 0 : limit;
}

std::int64_t free_memory(torch::Device device) {
  std::int64_t system = 0;
  if (device.is_cpu()) {
    system = free_of_system();
  } else {
    const auto stats = at::accelerator::getDeviceStats(device.index());
    const auto cached = stat(stats.reserved_bytes).current - stat(stats.allocated_bytes).current;
    system = static_cast<std::int64_t>(at::accelerator::getMemoryInfo(device.index()).first) + cached;
  }
  const auto limit = memory_limit(device);
  return limit == 0 ? system : std::min(system, std::max<std::int64_t>(0, limit - allocated_memory(device).now));
}

std::int64_t device_memory(torch::Device device) {
  if (!device.is_cpu()) return static_cast<std::int64_t>(at::accelerator::getMemoryInfo(device.index()).second);
  return std::min(limit_of_machine().all, limit_of_control_group().all);
}

bool is_out_of_memory(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& caught) {
    if (is_out_of_memory(caught)) return true;
    const auto* nested = dynamic_cast<const std::nested_exception*>(&caught);
    return nested != nullptr && nested->nested_ptr() != nullptr && is_out_of_memory(nested->nested_ptr());
  } catch (...) {
    return false;
  }
}

std::int64_t bytes_of(const std::string& text, std::int64_t whole) {
  double number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number).ptr;
  std::string unit(end, text.data() + text.size());
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  const std::pair<const char*, double> units[] = {
      {"", 1},         {"B", 1},        {"kB", 1e3},     {"KB", 1e3},
      {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {"KiB", 1024.0},
      {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"%", static_cast<double>(whole) / 100}};
  for (const auto& [name, factor] : units) {
    if (unit != name || end == text.data()) continue;
    const double bytes = number * factor;
    if (!(bytes >= 1) || !std::isfinite(number) || (unit == "%" && number > 100)) break;
    return static_cast<std::int64_t>(std::min(bytes, 0x1p62));
  }
  throw Error(
      "is \"" + shortened(text) + "\", which is not an amount of memory; write \"6GB\", \"500MB\", \"80%\", or bytes",
      Error::Kind::configuration);
}

std::string memory_text(std::int64_t bytes) {
  static constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(units); ++unit) value /= 1000;
  char text[32];
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f %s", decimals, value, units[unit]);
  return text;
}

}  // namespace vernier
