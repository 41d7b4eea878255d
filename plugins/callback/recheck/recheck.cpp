// recheck: computes some steps twice, from the same batch, weights and random numbers, and compares their bits. A step
// whose bits differ was computed wrongly by the hardware, or by a plugin that does not compute the same twice. A third
// run shows which of the two is the odd one. The report names step, layer and rank, by the notice `recheck`.
//   every = 500          steps between checked steps; the first step is checked too
//   on_fault = "report"  report: the run goes on with what it has
//                        repeat: the update is made from the repeat, so the run has the bits of one without the fault
//                        stop: the run ends, with a checkpoint of the moment before the step
// The first check computes the step three times, or five times if two of them differ: so a plugin that is not
// deterministic is known from the beginning, and is named. Nothing is checked any more then.
//
// The check changes no bit of the run. A fault that comes each time alike, such as one of the weights in memory, is not
// found. Place it before the other callbacks: what they do to the gradients is not compared, and `repeat` cannot mend a
// step whose gradients an earlier callback has changed. Whoever wants reruns has the run copied in each step, but for
// weights and optimizer.
//
// Meta found hundreds of faulty processors in hundreds of thousands of machines (Dixit et al., arXiv 2102.11245); the
// third run is that of Megatron-Core's RerunStateMachine.
#include <ATen/ops/ones.h>
#include <vernier/sdk.h>
#include <vernier/step_result.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "bits.h"

namespace {

using recheck::Bits;
using recheck::Digest;
using recheck::Phase;
using recheck::Place;
using vernier::Event;
using vernier::Run;

// One computation of a step.
struct Pass {
  std::vector<Digest> bits;  // digests on this rank
  std::vector<std::string> of_ranks;
};

struct Verdict {
  bool is_deterministic = true;
  std::size_t odd = 0;  // the pass with other bits than the rest
  std::size_t right = 0;
};

// Passes that all but one have in common; nothing where they are all the same.
std::optional<Verdict> judge(const std::deque<Pass>& passes) {
  std::map<std::vector<std::string>, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < passes.size(); ++i) groups[passes[i].of_ranks].push_back(i);
  if (groups.size() == 1) return std::nullopt;
  const auto largest = std::ranges::max_element(groups, {}, [](const auto& group) { return group.second.size(); });
  Verdict verdict;
  verdict.right = largest->second.back();
  verdict.is_deterministic = largest->second.size() + 1 >= passes.size() && passes.size() > 2;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    if (passes[i].of_ranks != largest->first) verdict.odd = i;
  }
  return verdict;
}

class Recheck final : public vernier::Callback {
 public:
  explicit Recheck(vernier::Options& options)
      : every_(options.get("every", 500, "steps between checked steps", vernier::at_least(1))),
        on_fault_(options.choose("on_fault", "report", {"report", "repeat", "stop"},
                                 "what is done about a step whose bits differ")) {
    remember("is_calibrated", is_calibrated_);
    remember("is_given_up", is_given_up_);
  }

  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus& bus) const override {
    const auto role = other.id().substr(0, other.id().find('/'));
    if (role == vernier::Task::role) task_ = other.id();
    if (role != vernier::Callback::role) return {};
    for (const auto event : {Event::BatchReady, Event::LossReady, Event::BackwardDone}) {
      if (bus.listens(other, event)) listeners_[event].insert(other.id());
    }
    return {};
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::StepBegin, [this](Run& run) {
      bits_.stop();  // left by a forward that threw
      is_open_ = is_checked_ = is_due(run);
    });
    bus.on(Event::BatchReady, [this](Run& run) {
      if (!run.loss.defined() && bits_.has_begun(run)) is_open_ = false;  // another plugin computes the step again
      if (is_open_) bits_.begin_micro_batch(run);
    });
    bus.on(Event::LossReady, [this](Run& run) {
      if (is_open_) bits_.end_forward(run);
    });
    bus.on(Event::BackwardDone, [this](Run& run) {
      if (is_open_) bits_.end_micro_batch(run);
    });
    bus.on(Event::GradientsReady, [this](Run& run) {
      is_open_ = false;
      if (std::exchange(is_checked_, false)) check_step(run);
    });
  }

  void prepare(Run& run) override {
    run.control->want_rerun(*this);
    bits_.prepare(run);
  }

 private:
  bool is_due(const Run& run) const { return !is_given_up_ && (!is_calibrated_ || (run.step + 1) % every_ == 0); }

  void check_step(Run& run) {
    passes_.clear();
    results_.clear();
    is_untouched_ = true;
    bits_.end(run);
    passes_.push_back({bits_.take(), {}});
    const bool calibrates = !std::exchange(is_calibrated_, true);
    while (passes_.size() < (calibrates ? 3U : 2U)) repeat(run);
    if (judge_all(run)) {
      while (passes_.size() < (calibrates ? 5U : 3U)) repeat(run);
    }
    if (const auto verdict = judge_all(run)) act(run, *verdict);
    passes_.clear();
    results_.clear();
  }

  void repeat(Run& run) {
    is_open_ = true;
    const auto end = [&] {
      is_open_ = false;
      bits_.end(run);
      passes_.push_back({bits_.take(), {}});
      if (on_fault_ == "repeat") results_.emplace_back().take(run);
    };
    is_untouched_ = run.control->rerun([] {}, end) && is_untouched_;
  }

  // All ranks see the digests of all, so they decide alike.
  std::optional<Verdict> judge_all(Run& run) {
    vernier::State own;
    for (std::size_t i = 0; i < passes_.size(); ++i) {
      own.put(std::to_string(i), recheck::digest_of(passes_[i].bits, is_untouched_));
      passes_[i].of_ranks.clear();
    }
    for (const auto& state : run.control->gather(own)) {
      for (std::size_t i = 0; i < passes_.size(); ++i) passes_[i].of_ranks.push_back(state.text(std::to_string(i)));
    }
    return judge(passes_);
  }

  void act(Run& run, const Verdict& verdict) {
    const auto [place, rank] = place_of(run, verdict);
    const auto step = run.step + 1;
    vernier::Notice::Details details{{"step", step}, {"place", place.text}};
    if (!place.layer.empty()) details.emplace_back("layer", place.layer);
    details.emplace_back("rank", rank);
    const auto where = place.text + (run.control->ranks() > 1 ? c10::str(" on rank ", rank) : "");
    if (!verdict.is_deterministic) return give_up(run, place, std::move(details), where);
    const auto order = verdict.odd == 0 ? std::string("the step itself")
                                        : c10::str("repeat ", verdict.odd, " of ", passes_.size() - 1);
    details.emplace_back("odd", verdict.odd == 0 ? "step" : "repeat");
    const auto text = c10::str("step ", step, " was computed ", passes_.size(), " times, and ", order,
                               " differs first in ", where, ": a fault of memory or processor");
    run.notice("recheck", std::move(details), text);
    if (on_fault_ == "stop") {
      throw vernier::Error(text + "; on_fault says stop. Test the machine, and go on with --resume on another one");
    }
    if (on_fault_ != "repeat" || verdict.odd != 0) return warn(text);
    if (is_untouched_) {
      results_[verdict.right - 1].put(run);
      return warn(text, "; the update is made from the repeat");
    }
    run.skip_when(torch::ones({}));
    warn(text,
         "; the update is skipped, because a callback before this one has changed the gradients: place recheck "
         "before it");
  }

  // The first difference on the rank that has one; of several ranks, the one where it is earliest in the step.
  std::pair<Place, std::int64_t> place_of(Run& run, const Verdict& verdict) const {
    const auto own = recheck::difference(passes_[verdict.odd].bits, passes_[verdict.right].bits, is_untouched_);
    vernier::State state;
    state.put("phase", own ? static_cast<std::int64_t>(own->phase) : std::int64_t{99});
    state.put("layer", own ? own->layer : "");
    state.put("text", own ? own->text : "");
    std::pair<Place, std::int64_t> found{{Phase::sums, "", "what the ranks sum"}, 0};
    std::int64_t first = 98;
    const auto all = run.control->gather(state);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto phase = all[rank].integer("phase");
      if (phase >= first) continue;
      first = phase;
      found = {{static_cast<Phase>(phase), all[rank].text("layer"), all[rank].text("text")},
               static_cast<std::int64_t>(rank)};
    }
    return found;
  }

  // Who may have made the difference: the callbacks that act there, or else the task.
  std::string suspects(Phase phase) const {
    std::set<std::string> all;
    const auto add = [&](Event event) {
      if (const auto found = listeners_.find(event); found != listeners_.end()) {
        all.insert(found->second.begin(), found->second.end());
      }
    };
    if (phase == Phase::batch || phase == Phase::forward) add(Event::BatchReady);
    if (phase == Phase::loss || phase == Phase::backward) add(Event::LossReady);
    if (phase == Phase::backward) add(Event::BatchReady);  // it may have put a hook there
    if (phase == Phase::sums) add(Event::BackwardDone);
    if (phase == Phase::forward || phase == Phase::loss || all.empty()) all.insert(task_);
    std::string text;
    for (const auto& id : all) text += (text.empty() ? "" : " or ") + id;
    return text + " is not deterministic";
  }

  void give_up(Run& run, const Place& place, vernier::Notice::Details details, const std::string& where) {
    is_given_up_ = true;
    const auto who = suspects(place.phase);
    details.emplace_back("deterministic", std::int64_t{0});
    details.emplace_back("suspect", who);
    const auto text = c10::str(who, ": step ", run.step + 1, " was computed ", passes_.size(),
                               " times, and the results differ, first in ", where);
    run.notice("recheck", std::move(details), text);
    if (on_fault_ == "stop") throw vernier::Error(text + "; mend it, or leave [[callback]] recheck out");
    warn(text, "; no more steps are checked");
  }

  std::int64_t every_;
  std::string on_fault_;
  mutable std::string task_ = "the task";
  mutable std::map<Event, std::set<std::string>> listeners_;  // callbacks that act before the gradients are there
  Bits bits_;
  std::deque<Pass> passes_;                  // computations of the checked step; the first is the step itself
  std::deque<vernier::StepResult> results_;  // results of the other computations
  bool is_open_ = false;                     // the current computation is compared
  bool is_checked_ = false;                  // the step is one to compare with its repeats
  bool is_untouched_ = true;                 // nobody has changed the gradients of the step
  bool is_calibrated_ = false, is_given_up_ = false;
};

}  // namespace

VERNIER_PLUGIN(Recheck, "recheck", "1.0.0")
