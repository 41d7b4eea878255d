// Laws of the cost of a plugin: time, memory, and waiting for the device.
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <malloc.h>
#include <vernier/error.h>
#include <vernier/memory.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <string_view>
#include <thread>
#include <vector>

#include "common/text/numbers.h"
#include "core/plugin_calls.h"
#include "laws.h"
#include "run/process/device.h"
#include "trial.h"

namespace vernier {

namespace {

Table with_steps(Table config, std::int64_t steps) {
  std::get<Table>(config.at("run").data).insert_or_assign("steps", Value{steps, "check"});
  return config;
}

// The least that the process holds after any of some steps: copies for a checkpoint or a validation come and go.
struct Held {
  std::int64_t heap = 0, tensors = 0;  // bytes of malloc; of LibTorch's allocator, which are among them
  std::size_t entries = 0;             // entries in the plugin's save()

  void look(const Plugin* plugin) {
    const auto heap_now = ::mallinfo2();
    const auto held = static_cast<std::int64_t>(heap_now.uordblks + heap_now.hblkhd);
    if (heap != 0 && heap <= held) return;
    heap = held;
    tensors = allocated_memory(torch::kCPU).now;
    entries = plugin == nullptr ? 0 : plugin->save().tensors.size();
  }
};

// Returns the bytes by which the heap grows from one window to the next: the median of their differences. A single
// jump, as of a table that doubles, is in one of them.
double growth(const std::vector<Held>& windows) {
  std::vector<double> steps;
  for (std::size_t i = 1; i < windows.size(); ++i) {
    steps.push_back(static_cast<double>(windows[i].heap - windows[i - 1].heap));
  }
  if (steps.empty()) return 0;
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::ranges::nth_element(steps, middle);
  return *middle;
}

// Another malloc than the C library's, as a sanitizer's, is not seen.
bool is_heap_counted() {
  constexpr std::int64_t much = 1 << 16;
  const auto before = ::mallinfo2().uordblks;
  const auto block = torch::empty({much}, torch::kUInt8);
  return static_cast<std::int64_t>(::mallinfo2().uordblks - before) >= much;
}

}  // namespace

// Some hundred bytes a step are enough to fill a machine in a long run.
void check_growth(const Subject& subject) {
  constexpr std::int64_t first = 200, last = 1000, window = 100;
  constexpr double allowed = 200.0 * window;  // bytes in each window
  if (!is_heap_counted()) throw LawSkipped("this malloc does not count what it has given out");
  count_memory(torch::kCPU);
  Trial trial(subject.host, with_steps(subject.config(), last));
  std::vector<Held> held;
  held.reserve(static_cast<std::size_t>((last - first) / window) + 1);
  trial.on_last(Event::StepEnd, [&](const Run& run) {
    if (run.step <= first - window / 2) return;
    const auto of = static_cast<std::size_t>((run.step - first + window / 2 - 1) / window);
    if (of >= held.size()) held.resize(of + 1);
    held[of].look(trial.find(subject.id()));
    // A thread of the plugin may have fallen behind on a busy machine. While it catches up, this is not growth.
    for (int idle = 0; run.step == last && growth(held) > allowed && idle < 100; ++idle) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const auto before = held.back().heap;
      held.back().look(trial.find(subject.id()));
      if (held.back().heap < before) idle = 0;
    }
  });
  trial.train();
  if (trial.run().step < last) throw LawSkipped("the run ended before step " + std::to_string(last));
  if (growth(held) <= allowed) return;
  const auto grown = held.back().heap - held.front().heap, tensors = held.back().tensors - held.front().tensors;
  const auto entries = static_cast<std::int64_t>(held.back().entries) - static_cast<std::int64_t>(held.front().entries);
  throw Error(c10::str("from step ", first, " to step ", last, " the run's memory grew by ", memory_text(grown), ", ",
                       std::llround(growth(held) / window), " bytes a step; ",
                       memory_text(std::max<std::int64_t>(tensors, 0)), " of it are tensors",
                       entries > 0 ? c10::str("; its save() has ", entries, " entries more") : "",
                       "; what the plugin keeps must have a limit"));
}

std::int64_t host_reads(const Host& host, Table config, const std::string& device) {
  static thread_local std::int64_t count;
  std::get<Table>(config.at("run").data).insert_or_assign("device", Value{device, "check"});
  Trial trial(host, std::move(config));
  count = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        constexpr std::array<std::string_view, 3> waits = {"aten::_local_scalar_dense", "aten::nonzero",
                                                           "aten::masked_select"};
        for (const auto name : waits) count += function.name() == name ? 1 : 0;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  const auto removed = c10::make_scope_exit([&] { at::removeCallback(handle); });
  trial.train();
  return count;
}

// Monitors and late numbers may read now and then: not in every step.
void check_host_syncs(const Subject& subject) {
  const bool has_gpu = !open_device("auto").is_cpu();
  if (!has_gpu) throw LawSkipped("no GPU here");
  const auto steps = std::get<std::int64_t>(std::get<Table>(subject.base.at("run").data).at("steps").data);
  const auto with = host_reads(subject.host, subject.config(), "cuda");
  const auto without = host_reads(subject.host, subject.config_without(), "cuda");
  if (with - without < steps) return;
  throw Error(c10::str("in ", steps, " steps it read tensors on the host ", with - without,
                       " times (item(), nonzero(), masks), and each time the host waited for the GPU; keep results as "
                       "tensors on their device"));
}

namespace {

// Returns the shortest time of one save(), in seconds, once the run has some steps.
double save_time(const Plugin& plugin) {
  double least = HUGE_VAL;
  for (int i = 0; i < 10; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    (void)plugin.save();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return least;
}

// The trainer's own rule: see Plugin::save.
bool is_saved_in_each_step(const Plugin& plugin, const Bus& bus) {
  const std::string role = plugin.id().substr(0, plugin.id().find('/'));
  if (role == Optimizer::role || role == Checkpoint::role || role == Monitor::role) return false;
  if (role != Callback::role) return true;
  for (int i = 0; i <= static_cast<int>(Event::GradientsReady); ++i) {
    if (bus.listens(plugin, static_cast<Event>(i))) return true;
  }
  return false;
}

}  // namespace

void check_save_time(const Subject& subject) {
  constexpr double allowed = 1e-3;
  Trial trial(subject.host, subject.config());
  const bool is_saved = is_saved_in_each_step(trial.plugin(subject.id()), trial.wiring().bus);
  double least = 0;
  trial.on_last(Event::StepEnd, [&](const Run& run) {
    const auto* plugin = run.step <= 5 ? trial.find(subject.id()) : nullptr;
    if (plugin != nullptr) least = save_time(*plugin);
  });
  trial.train();
  if (!is_saved || least <= allowed) return;
  throw Error(c10::str(printed("save() takes %.3g ms", 1e3 * least),
                       ", and it is called before each step; return large tensors without copying them"));
}

std::string times_of(const Subject& subject) {
  Trial trial(subject.host, with_steps(subject.config(), 100));
  const auto& plugin = trial.plugin(subject.id());
  ListenerTimes times;
  std::array<double, event_count> seconds{};
  std::array<int, event_count> calls{};
  for (std::size_t i = 0; i < event_count; ++i) {
    const auto event = static_cast<Event>(i);
    if (!trial.wiring().bus.listens(plugin, event)) continue;
    trial.on_last(event, [&times, &plugin, &spent = seconds[i], &count = calls[i]](const Run&) {
      for (const auto& [whose, time] : times.seconds) {
        if (whose == &plugin) spent += time;
      }
      count += 1;
      times = {};
    });
  }
  const auto reset = [&](Run&) { time_listeners(&times); };
  trial.on(Event::StepBegin, reset);  // the trainer's own clocks take its place now and then
  time_listeners(&times);
  const auto stopped = c10::make_scope_exit([] { time_listeners(nullptr); });
  const auto outcome = trial.train();
  std::string text;
  double in_steps = 0;
  for (std::size_t i = 0; i < event_count; ++i) {
    if (calls[i] == 0) continue;
    const auto event = static_cast<Event>(i);
    if (event >= Event::StepBegin && event <= Event::StepEnd) in_steps += seconds[i];
    text += (text.empty() ? "" : ", ") + std::string(name_of(event)) + printed(" %.3g us", 1e6 * seconds[i] / calls[i]);
  }
  if (text.empty()) return "it listens to no event";
  return text + c10::str("; ", std::round(1000 * in_steps / outcome.seconds) / 10, " % of the time of the steps");
}

}  // namespace vernier
