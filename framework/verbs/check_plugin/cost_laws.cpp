// What a plugin takes: time, memory, and waiting for the device.
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <malloc.h>
#include <vernier/error.h>
#include <vernier/memory.h>

#include <array>
#include <cmath>
#include <string_view>

#include "core/plugin_calls.h"
#include "laws.h"
#include "run/device.h"
#include "trial.h"

namespace vernier {

namespace {

Table with_steps(Table config, std::int64_t steps) {
  std::get<Table>(config.at("run").data).insert_or_assign("steps", Value{steps, "check"});
  return config;
}

// What the process holds between two steps.
struct Held {
  std::int64_t tensors = 0, heap = 0;  // bytes of LibTorch's allocator; of malloc, those of tensors included
  std::size_t entries = 0;             // of the plugin's save()

  static Held now(const Plugin& plugin) {
    const auto heap = ::mallinfo2();
    return {allocated_memory(torch::kCPU).now, static_cast<std::int64_t>(heap.uordblks + heap.hblkhd),
            plugin.save().tensors.size()};
  }
};

// Another malloc than the C library's, as a sanitizer's, is not seen.
bool is_heap_counted() {
  constexpr std::int64_t much = 1 << 16;
  const auto before = ::mallinfo2().uordblks;
  const auto block = torch::empty({much}, torch::kUInt8);
  return static_cast<std::int64_t>(::mallinfo2().uordblks - before) >= much;
}

}  // namespace

// A few hundred bytes a step are enough to fill a machine in a long run; histories of a hundred steps are full by 200.
void check_growth(const Subject& subject) {
  constexpr std::int64_t first = 200, last = 1000, allowed = 100'000;
  if (!is_heap_counted()) throw LawSkipped("this malloc does not count what it has given out");
  count_memory(torch::kCPU);
  const ScratchFolder output;
  Trial trial(subject.host, with_steps(subject.config(), last), output.path());
  const auto& plugin = trial.plugin(subject.id());
  Held before, after;
  trial.on_last(Event::StepEnd, [&](const Run& run) {
    if (run.step + 1 == first) before = Held::now(plugin);
    if (run.step + 1 == last) after = Held::now(plugin);
  });
  trial.train();
  if (before.heap == 0 || after.heap == 0) throw LawSkipped("the run ended before step " + std::to_string(last));
  const auto grown = after.heap - before.heap;
  if (grown <= allowed) return;
  const auto tensors = after.tensors - before.tensors;
  const auto entries = static_cast<std::int64_t>(after.entries) - static_cast<std::int64_t>(before.entries);
  throw Error(c10::str("from step ", first, " to step ", last, " the run's memory grew by ", memory_text(grown), ", ",
                       grown / (last - first), " bytes a step; ", memory_text(std::max<std::int64_t>(tensors, 0)),
                       " of it are tensors", entries > 0 ? c10::str("; its save() has ", entries, " entries more") : "",
                       "; what the plugin keeps must have a limit"));
}

std::int64_t host_reads(const Host& host, Table config, const std::string& device) {
  static thread_local std::int64_t count;
  std::get<Table>(config.at("run").data).insert_or_assign("device", Value{device, "check"});
  const ScratchFolder output;
  Trial trial(host, std::move(config), output.path());
  count = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        constexpr std::array<std::string_view, 3> waits = {"aten::_local_scalar_dense", "aten::nonzero",
                                                           "aten::masked_select"};
        for (const auto name : waits) count += function.name() == name ? 1 : 0;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  try {
    trial.train();
  } catch (...) {
    at::removeCallback(handle);
    throw;
  }
  at::removeCallback(handle);
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

std::string microseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g us", seconds * 1e6);
  return text;
}

}  // namespace

std::string times_of(const Subject& subject) {
  const ScratchFolder output;
  Trial trial(subject.host, with_steps(subject.config(), 100), output.path());
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
  Outcome outcome;
  try {
    outcome = trial.train();
  } catch (...) {
    time_listeners(nullptr);
    throw;
  }
  time_listeners(nullptr);
  std::string text;
  double all = 0;
  for (std::size_t i = 0; i < event_count; ++i) {
    if (calls[i] == 0) continue;
    all += seconds[i];
    text += (text.empty() ? "" : ", ") + std::string(name_of(static_cast<Event>(i))) + " " +
            microseconds(seconds[i] / calls[i]);
  }
  if (text.empty()) return "it listens to no event";
  return text + c10::str("; ", std::round(1000 * all / outcome.seconds) / 10, " % of the time of the steps");
}

}  // namespace vernier
