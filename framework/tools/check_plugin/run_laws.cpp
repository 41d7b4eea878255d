// Laws of a run with the plugin, whatever its role.
#include <c10/util/ScopeExit.h>
#include <vernier/error.h>

#include <algorithm>

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

void check_resumes(const Subject& subject) {
  const auto whole = train(subject.host, subject.config());
  const auto steps = std::ssize(whole.losses);
  if (2 * whole.updates < steps) {
    throw Error(c10::str("only ", whole.updates, " of ", steps, " updates are applied, so there is little to compare"));
  }
  for (const std::int64_t stop : {1, 3, 4, 5, 10}) {
    if (stop >= steps) continue;
    const auto resumed = train_in_two_parts(subject.host, subject.config(), stop);
    if (!resumed) refuse_to_forget(subject, "no checkpoint was written");
    expect_same(whole, *resumed, c10::str("stopped after step ", stop, " and resumed"),
                "save() must return all that the next steps depend on, and load() restore it");
  }
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
