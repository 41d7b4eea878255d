#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <pthread.h>
#include <unistd.h>
#include <vernier/error.h>
#include <vernier/host.h>

#include <algorithm>
#include <chrono>
#include <iostream>

#include "plugin_calls.h"
#include "process_state.h"
#include "step_results.h"

namespace vernier {

const char* name_of(Event event) {
  constexpr std::array<const char*, event_count> names = {"RunBegin",     "StepBegin",      "BatchReady", "LossReady",
                                                          "BackwardDone", "GradientsReady", "UpdateDone", "StepEnd",
                                                          "Validated",    "EpochEnd",       "RunEnd",     "RunFailed"};
  return names[static_cast<std::size_t>(event)];
}

namespace {

using Clock = std::chrono::steady_clock;

const Plugin* listening = nullptr;
Event event_listened = Event::RunBegin;
ListenerTimes* listener_times = nullptr;
bool are_named = false, is_watched = false;  // is_watched: listeners are timed or named

// How many fork() lie between the program and this process. A child of a plugin's fork() that came back to the bus
// would train too, and write to the same files.
int forks = 0;
[[maybe_unused]] const int counts_forks = ::pthread_atfork(nullptr, nullptr, [] { ++forks; });

void end_forked(const std::string& who) {
  std::cerr << "vernier: " << who
            << ": called fork(), and its child process came back; the child ends, and the run goes "
            << "on; let it call _exit() or exec()" << std::endl;
  ::_exit(static_cast<int>(Error::Kind::plugin));
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void call_timed(const std::function<void(Run&)>& call, const Plugin* plugin, Run& run) {
  auto& times = *listener_times;
  const double inner = times.inner;
  const auto begin = Clock::now();
  call(run);
  const double seconds = seconds_since(begin), own = seconds - (times.inner - inner);
  times.inner = inner + seconds;
  const auto found = std::ranges::find(times.seconds, plugin, [](const auto& entry) { return entry.first; });
  if (found != times.seconds.end()) {
    found->second += own;
  } else {
    times.seconds.emplace_back(plugin, own);
  }
}

void call_watched(const std::function<void(Run&)>& call, const Plugin* plugin, Event event, Run& run) {
  at::RecordFunction range(at::RecordScope::USER_SCOPE);
  if (are_named && range.isActive()) range.before(plugin->id() + " at " + name_of(event));
  listener_times != nullptr ? call_timed(call, plugin, run) : call(run);
}

}  // namespace

const Plugin* listening_now() {
  return listening;
}

Event listening_event() {
  return event_listened;
}

std::int64_t step_of(Event event, const Run& run) {
  const bool is_after = event >= Event::StepEnd && event <= Event::RunEnd;
  return run.step + (is_after ? 0 : 1);
}

void time_listeners(ListenerTimes* times) {
  listener_times = times;
  is_watched = times != nullptr || are_named;
}

void name_listeners(bool named) {
  are_named = named;
  is_watched = named || listener_times != nullptr;
}

bool are_listeners_named() {
  return are_named;
}

NotOfListener::NotOfListener() : times_(listening != nullptr ? listener_times : nullptr) {
  if (times_ == nullptr) return;
  inner_ = times_->inner;
  begin_ = Clock::now();
}

NotOfListener::~NotOfListener() {
  if (times_ != nullptr) times_->inner = inner_ + seconds_since(begin_);
}

void HostApi::attach(Bus& bus, Plugin& plugin, bool monitor) {
  bus.attached_.push_back(&plugin);
  bus.let_listen(plugin, monitor, bus.attached_.size() - 1);
}

void refuse_no_gradients() {
  if (c10::GradMode::is_enabled()) return;
  c10::GradMode::set_enabled(true);
  throw Error("it left LibTorch's gradient mode off, so that nothing can be trained; use torch::NoGradGuard",
              Error::Kind::plugin);
}

void HostApi::replace(Bus& bus, Plugin& plugin, Plugin& next) {
  const auto place = std::ranges::find(bus.attached_, &plugin);
  if (place == bus.attached_.end())
    throw Error(plugin.id() + " is not attached, and cannot be replaced", Error::Kind::plugin);
  *place = &next;
  bus.detach(plugin);
  bus.let_listen(next, false, static_cast<std::size_t>(place - bus.attached_.begin()));
}

bool Bus::listens(const Plugin& plugin, Event event) const {
  const auto& listeners = listeners_[static_cast<std::size_t>(event)];
  return std::ranges::any_of(listeners, [&](const Listener& listener) { return listener.plugin == &plugin; });
}

void Bus::let_listen(Plugin& plugin, bool monitor, std::size_t place) {
  attaching_ = &plugin;
  attaching_monitor_ = monitor;
  attaching_at_ = place;
  try {
    const PluginCall call(plugin.id(), "in attach");
    plugin.attach(*this);
  } catch (...) {
    attaching_ = nullptr;
    rethrow_naming(plugin.id(), " failed to attach", Error::Kind::plugin);
  }
  attaching_ = nullptr;
}

void Bus::add(Event event, std::function<void(Run&)> call, bool only_looks) {
  if (attaching_ == nullptr) throw Error("Bus::on is called in Plugin::attach only", Error::Kind::plugin);
  if (attaching_monitor_ && !only_looks) {
    throw Error(attaching_->id() + " is a monitor, and may only look: its listener for " + name_of(event) +
                    " must take `const Run&`; make it a callback if it changes the run",
                Error::Kind::plugin, attaching_->id());
  }
  auto& listeners = listeners_[static_cast<std::size_t>(event)];
  // Monitors stand behind all others, whenever they were attached.
  const auto is_later = [this](const Listener& other) {
    return std::pair(other.monitor, other.place) > std::pair(attaching_monitor_, attaching_at_);
  };
  listeners.insert(std::ranges::find_if(listeners, is_later),
                   {std::move(call), attaching_, attaching_monitor_, attaching_at_});
}

void Bus::tell(Event event, Run& run) {
  for (auto& notice : detached_) run.notices.push_back(std::move(notice));
  detached_.clear();
  auto& listeners = listeners_[static_cast<std::size_t>(event)];
  const bool has_gradients = c10::GradMode::is_enabled();
  const auto end = c10::make_scope_exit([plugin = listening, of = event_listened] {
    listening = plugin;
    event_listened = of;
  });
  event_listened = event;
  const StepNumbers before(run);
  const int own = forks;
  const auto where = [&](const Plugin& plugin) {
    return plugin.id() + " at " + name_of(event) + " of step " + std::to_string(step_of(event, run));
  };
  std::size_t i = 0;
  while (i < listeners.size()) {
    try {
      for (; i < listeners.size(); ++i) {
        if (is_muted_ && listeners[i].monitor) continue;
        listening = listeners[i].plugin;
        is_watched ? call_watched(listeners[i].call, listeners[i].plugin, event, run) : listeners[i].call(run);
        if (forks != own) end_forked(where(*listeners[i].plugin));
        if (has_gradients) refuse_no_gradients();
        before.refuse_wrong(event, run);
      }
    } catch (...) {
      const auto [text, kind] = caught();
      Plugin& plugin = *listeners[i].plugin;
      const auto here = where(plugin);
      if (forks != own) end_forked(here);
      const bool is_monitor = listeners[i].monitor;
      if (!is_monitor && event != Event::RunFailed) std::throw_with_nested(Error(here + ": " + text, kind));
      if (is_monitor) log(Level::warning, here, text + " (the monitor is detached, the run goes on)");
      if (!is_monitor) log(Level::error, name_of(event), here + ": " + text);
      detached_.push_back({"plugin_detached",
                           run.step,
                           {{"plugin", plugin.id()}, {"event", std::string(name_of(event))}},
                           plugin.id() + " failed at " + name_of(event) + " and is detached"});
      // Earlier listeners were called already. The next one moves up to the place of the plugin's first listener.
      i = static_cast<std::size_t>(std::count_if(listeners.begin(), listeners.begin() + static_cast<std::ptrdiff_t>(i),
                                                 [&](const Listener& other) { return other.plugin != &plugin; }));
      detach(plugin);
    }
  }
}

void Bus::detach(Plugin& plugin) {
  for (auto& listeners : listeners_) {
    std::erase_if(listeners, [&](const Listener& listener) { return listener.plugin == &plugin; });
  }
}

}  // namespace vernier
