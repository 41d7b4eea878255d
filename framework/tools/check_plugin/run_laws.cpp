// Laws of a run with the plugin, whatever its role.
#include <ATen/Context.h>
#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <unistd.h>
#include <vernier/error.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <set>
#include <thread>

#include "core/process_state.h"
#include "laws.h"
#include "trial.h"

namespace vernier {

namespace {

// Refuses a plugin that forgets the run. A checkpoint plugin may keep nothing, like checkpoint/none.
[[noreturn]] void refuse_to_forget(const Subject& subject, const std::string& what) {
  if (subject.role == Checkpoint::role) throw LawSkipped("it keeps nothing to go on from: its read() returns nothing");
  throw Error(what);
}

void expect_same(const Trained& whole, const Trained& other, const std::string& when, const std::string& remedy) {
  if (const auto what = difference(whole, other); !what.empty()) throw Error(when + ": " + what + "; " + remedy);
}

}  // namespace

void check_repeats(const Subject& subject) {
  const auto before = ProcessState::now();
  const auto first = train(subject.host, subject.config());
  const auto changed = before.changed_in(ProcessState::now());
  if (first.losses.empty()) throw Error("the run has no step");
  expect_same(first, train(subject.host, subject.config()), "in the second of two equal runs",
              changed.empty()
                  ? "draw random numbers from LibTorch's generator, or from one of your own that is seeded by run.seed"
                  : changed + " is not as it was before the first; use guards, which restore it on every way out");
}

namespace {

// Stops the run after each of some steps, and resumes it.
void expect_resumed(const Subject& subject, const Table& config, const std::vector<std::int64_t>& stops) {
  const auto whole = train_twice(subject, config);
  const auto steps = std::ssize(whole.losses);
  if (2 * whole.updates < steps) {
    throw Error(c10::str("only ", whole.updates, " of ", steps, " updates are applied, so there is little to compare"));
  }
  for (const auto stop : stops) {
    if (stop >= steps) continue;
    const auto resumed = train_in_two_parts(
        subject.host, config, stop, 1, std::make_shared<const ScratchFolder>(), [] {}, subject.id());
    if (!resumed) refuse_to_forget(subject, "no checkpoint was written");
    expect_same(whole, *resumed, c10::str("stopped after step ", stop, " and resumed"),
                "save() must return all that the next steps depend on, and load() restore it");
  }
}

}  // namespace

// A scaler sees an overflow, and the 2000 steps after which most raise their scale. What others do each fifty steps is
// seen too.
void check_resumes(const Subject& subject) {
  const bool is_scaler = subject.role == Scaler::role;
  const auto config = is_scaler
                          ? with_sets(subject.config(), {"callback.inject.where=loss", "callback.inject.at_step=3"})
                          : subject.config();
  expect_resumed(subject, config, {1, 3, 4, 5, 10});
  if (!is_small(subject) || subject.role == Task::role) return;
  expect_resumed(subject, with_sets(config, {is_scaler ? "run.steps=2010" : "run.steps=110", "run.validate_every=50"}),
                 {is_scaler ? 1000 : 55});
}

namespace {

// The first step in which the run with the plugin is another one than without it; 0: none up to the last.
std::int64_t acts_at(const Subject& subject, const std::vector<std::string>& sets) {
  const auto with = train(subject.host, with_sets(subject.config(), sets));
  const auto without = train(subject.host, with_sets(subject.config_without(), sets));
  for (const auto& [step, facts] : without.facts) {
    const auto found = with.facts.find(step);
    if (found == with.facts.end() || found->second != facts) return step;
  }
  return with == without ? 0 : std::ssize(without.facts);
}

}  // namespace

// Tries a rule that acts only after the steps of the small run, in a run that is long enough.
void check_acts(const Subject& subject) {
  const std::int64_t most = is_small(subject) ? 250 : 20, tried = 10;  // check_resumes resumes from the first 10 only
  const auto at = acts_at(subject, {"run.steps=" + std::to_string(most)});
  if (at == 0) {
    throw LawSkipped(c10::str("in ", most,
                              " steps it changes no loss, gradient, weight or random number; if it should, "
                              "give options with which it acts: --set KEY=VALUE"));
  }
  if (at <= tried) return;
  expect_resumed(subject, with_sets(subject.config(), {"run.steps=" + std::to_string(2 * at + 2)}),
                 {at - 2, at - 1, at, at + 1});
}

void check_undoes(const Subject& subject) {
  const auto whole = train(subject.host, subject.config());
  const auto step = std::min<std::int64_t>(6, std::ssize(whole.losses) - 1);
  for (const auto event : {Event::StepBegin, Event::BatchReady, Event::LossReady, Event::GradientsReady}) {
    const auto after =
        train_after_failure(subject.host, subject.config(), event, [&](const Run& run) { return run.step >= step; });
    const auto when = c10::str("after another plugin threw at ", name_of(event), " of step ", step + 1);
    if (!after.is_resumed && !after.may_be_lost) {
      refuse_to_forget(subject, when + ": the step was not undone, so the run was not saved; see save() in plugin.h");
    }
    expect_same(whole, after.trained, when + " and the run was resumed",
                "save() is called before each step: it must return what changes before the update");
  }
}

namespace {

// The run must end with that error, and the plugin must bear RunFailed and its own end.
void throw_at(const Subject& subject, Event event) {
  Trial trial(subject.host, subject.config());
  auto& bus = trial.wiring().bus;
  const auto& plugin = trial.plugin(subject.id());
  const bool listens = bus.listens(plugin, Event::RunFailed), is_second = event == Event::RunFailed;
  bool was_there = false, was_called = false;
  const auto boom = [&](Run& run) {
    if (event != Event::RunBegin && run.step < 2) return;
    was_there = true;
    throw std::runtime_error("boom");
  };
  trial.on(is_second ? Event::StepEnd : event, boom);
  if (is_second) trial.on(event, boom);
  trial.on_last(Event::RunFailed, [&](const Run&) { was_called = true; });
  std::string text;
  try {
    trial.train();
  } catch (const std::exception& exception) {
    text = exception.what();
  }
  if (!was_there) return;  // a task without validation, or a run that ended earlier
  const auto place = std::string("check at ") + name_of(is_second ? Event::StepEnd : event) + " of step ";
  const auto when = std::string("another plugin threw at ") + name_of(event) + ", and ";
  if (text.empty()) throw Error(when + "the run went on");
  if (text.find(place) == std::string::npos) throw Error(when + "the run ended with \"" + text + "\" instead");
  if (!was_called && !is_second) throw Error(when + "this one threw at RunFailed, which hides it from others");
  if (listens && !bus.listens(plugin, Event::RunFailed)) throw Error(when + "this one threw at RunFailed");
}

}  // namespace

void check_bears_failures(const Subject& subject) {
  for (int i = 0; i < event_count; ++i) throw_at(subject, static_cast<Event>(i));
}

namespace {

// Things of the whole process that a plugin gives back at its end.
struct Belongings {
  std::size_t threads, descriptors;
  std::set<std::string> environment;

  static Belongings now() {
    const auto count = [](const char* folder) {
      return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
    };
    Belongings now{count("/proc/self/task"), count("/proc/self/fd"), {}};
    for (char** each = environ; *each != nullptr; ++each) now.environment.insert(*each);
    return now;
  }
  std::string changed_in(const Belongings& later) const {
    if (later.threads > threads) return "at the end of the run a thread of it still runs; join it in the destructor";
    if (later.descriptors > descriptors)
      return "at the end of the run a file of it is still open; close it in the destructor";
    std::vector<std::string> changed;
    std::ranges::set_symmetric_difference(environment, later.environment, std::back_inserter(changed));
    if (changed.empty()) return "";
    return "it has changed the environment variable " + changed[0].substr(0, changed[0].find('=')) +
           ", which others read";
  }
};

// Returns whether body writes to the standard output of the process.
bool prints(const std::function<void()>& body) {
  const int saved = ::dup(STDOUT_FILENO);
  auto* file = std::tmpfile();
  if (saved < 0 || file == nullptr) throw Error("no temporary file can be made");
  std::fflush(stdout);
  ::dup2(::fileno(file), STDOUT_FILENO);
  const auto restored = c10::make_scope_exit([&] {
    ::dup2(saved, STDOUT_FILENO);
    ::close(saved);
    std::fclose(file);
  });
  body();
  std::cout.flush();
  std::fflush(stdout);
  return ::lseek(STDOUT_FILENO, 0, SEEK_CUR) > 0;
}

}  // namespace

void check_leaves_the_process(const Subject& subject) {
  auto without = subject.config_without();
  if (subject.role == Scaler::role) without.erase(Precision::role);  // float16 needs a scaler
  train(subject.host, without);                                      // after this, the trainer has set its variables
  auto before = Belongings::now();
  train(subject.host, subject.config());  // opens what stays: folders of plugins, LibTorch's threads
  before.threads = Belongings::now().threads;
  before.descriptors = Belongings::now().descriptors;
  std::string changed;
  const bool has_printed = prints([&] {
    Trial trial(subject.host, subject.config());
    const auto seed = [] { return at::globalContext().defaultGenerator(torch::kCPU).current_seed(); };
    const auto look = [&, first = seed(), mode = trial.run().model->is_training()](const Run& run) {
      if (seed() != first) changed = "it seeded LibTorch's generator anew; draw from a generator of your own";
      if (run.model->is_training() != mode) changed = "it left the model in another mode, of training or evaluation";
    };
    trial.on(Event::StepBegin, look);
    trial.on_last(Event::StepEnd, look);
    trial.train();
  });
  for (int tries = 0; tries < 100 && Belongings::now().threads > before.threads; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the system still counts a joined thread for a moment
  }
  if (has_printed) changed = "it writes to the standard output, though run.quiet is set; use info(), or ask run.quiet";
  if (changed.empty()) changed = before.changed_in(Belongings::now());
  if (!changed.empty()) throw Error(changed);
}

// The trainer puts back what is changed outside of a step, and warns.
void check_leaves_the_thread(const Subject& subject) {
  const auto start = ProcessState::now();
  const auto restored = c10::make_scope_exit([&] { start.restore(); });
  const auto warned = PluginCall::first_warning();
  std::string changed;
  try {
    Trial trial(subject.host, subject.config());
    const auto before = ProcessState::now();
    const auto look = [&](const std::string& when) {
      if (const auto what = before.changed_in(ProcessState::now()); !what.empty() && changed.empty()) {
        changed = when + " " + what + " is not as it was before; use guards, which restore it on every way out";
      }
    };
    trial.on_last(Event::StepBegin, [&](const Run& run) { look(c10::str("before step ", run.step + 1)); });
    trial.on_last(Event::StepEnd, [&](const Run& run) { look(c10::str("after step ", run.step)); });
    trial.train();
    look("at the end of the run");
  } catch (...) {
    if (changed.empty() && PluginCall::first_warning() == warned) throw;
  }
  if (PluginCall::first_warning() != warned) throw Error(PluginCall::first_warning());
  if (!changed.empty()) throw Error(changed);
}

}  // namespace vernier
