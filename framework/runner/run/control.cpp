#include "control.h"

#include "files/shards.h"
#include "wiring/swap.h"

namespace vernier {

namespace {

constexpr const char* in_prepare = "in Plugin::prepare";
constexpr const char* at_gradients = "in Optimizer::step, or in a listener of GradientsReady";

std::string id_of(const Plugin* plugin) {
  return plugin == nullptr ? "the program" : plugin->id();
}

}  // namespace

void TrainerControl::require_thread(const char* function) const {
  if (std::this_thread::get_id() == thread_) return;
  throw Error(c10::str("run.control->", function,
                       "() is called in another thread than the training's; leave a note "
                       "there, and call it in a listener"),
              Error::Kind::plugin);
}

void TrainerControl::require(RunFacts::Moment moment, const char* function, const char* when) const {
  require_thread(function);
  if (run_.moment == moment) return;
  throw Error(c10::str("run.control->", function, "() is called outside of its moment: call it ", when),
              Error::Kind::plugin);
}

// Before a request is carried out, the ranks compare what each of them has noted.
void TrainerControl::note(const char* request, const Plugin* requester, const std::string& why) {
  require_thread(request);
  if (requests_.is_over()) {
    throw Error(c10::str("run.control->", request, "() is called as the run ends, when nobody carries it out; call it ",
                         "at Validated or before"),
                Error::Kind::plugin);
  }
  requests_.note(std::string(request) + " by " + id_of(requester) + why);
}

void TrainerControl::swap(const Table& roles) {
  const auto* requester = roles_.calls.running();
  note("swap", requester);
  requests_.swap(roles, requester != nullptr ? requester->id() : "");
}

void TrainerControl::try_swap(const Table& roles) {
  require_thread("try_swap");
  vernier::try_swap(roles_.wiring, roles);
}

void TrainerControl::keep_savepoints(std::int64_t every, std::int64_t keep) {
  require(RunFacts::Moment::any, "keep_savepoints", in_prepare);
  snapshots_.keep(every, keep);
}

void TrainerControl::rewind(Plugin& requester, std::int64_t back, std::int64_t drop, const std::string& also) {
  require_thread("rewind");
  if (snapshots_.empty()) throw Error("nothing is kept to go back to: call keep_savepoints in prepare");
  note("rewind", &requester);
  requests_.rewind({&requester, back, drop, also});
}

void TrainerControl::fail(const Plugin& requester, const std::string& why) {
  note("fail", &requester, ": " + why);
  requests_.fail({&requester, why});
}

void TrainerControl::finish(const Plugin& requester, const std::string& why) {
  if (run_.moment == RunFacts::Moment::any) require(RunFacts::Moment::other, "finish", "once the run has begun");
  note("finish", &requester);
  requests_.finish(requester.id() + ": " + why);
  if (roles_.calls.is_in_step()) run_.validates = true;
}

State TrainerControl::snapshot() {
  require_thread("snapshot");
  return saving_.snapshot(run_);
}

std::vector<State> TrainerControl::gather(const State& of_this_rank) {
  require_thread("gather");
  if (ranks() == 1) return {of_this_rank};
  if (roles_.ranks.is_within_gradients()) {
    throw Error(
        "gather() between the micro-batches of a step, of which each rank may have another number; call it at "
        "StepBegin or from GradientsReady on",
        Error::Kind::plugin);
  }
  roles_.ranks.agree(run_, "gather by " + id_of(roles_.calls.running()));
  std::vector<State> all;
  for (const auto& bytes : roles_.wiring.distributed->gather(to_bytes(of_this_rank))) all.push_back(from_bytes(bytes));
  return all;
}

void TrainerControl::between_steps(const Plugin& requester, std::function<bool(BetweenSteps&)> look) {
  require(RunFacts::Moment::any, "between_steps", in_prepare);
  requests_.look(requester, std::move(look));
}

torch::Tensor TrainerControl::recompute() {
  require(RunFacts::Moment::gradients, "recompute", at_gradients);
  return step_.recompute(run_);
}

torch::Tensor TrainerControl::recompute_at(const std::function<void()>& move) {
  require(RunFacts::Moment::gradients, "recompute_at", at_gradients);
  return step_.transaction().put_back_after(run_, [&] {
    {
      const torch::NoGradGuard no_grad;
      move();
    }
    return step_.recompute(run_);
  });
}

void TrainerControl::want_rerun(const Plugin& requester) {
  require_thread("want_rerun");
  step_.transaction().want_rerun(requester);
}

bool TrainerControl::rerun(const std::function<void()>& begin, const std::function<void()>& end) {
  require_thread("rerun");
  const auto as = roles_.calls.as(roles_.calls.called());
  const auto put_back = roles_.ranks.keep_whole();  // begin may have taken other samples
  return step_.transaction().rerun(run_, [&] {
    begin();
    {
      HostApi::mute_monitors(roles_.wiring.bus, true);
      const auto unmute = c10::make_scope_exit([this] { HostApi::mute_monitors(roles_.wiring.bus, false); });
      step_.compute_gradients(run_, Step::Tries::once);
    }
    end();
  });
}

}  // namespace vernier
