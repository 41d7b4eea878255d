// flight_recorder: finds the operation that made the first inf or NaN of a run. At the first loss, gradient or
// parameter that is not finite, it runs the step again and traces every operation. It names the layer, phase and
// operation that the first bad value came from, with the ranges of its inputs. It skips the update and keeps the step
// as a capsule, which `vernier replay` runs again.
//   check_every = 1              steps between looks at loss and gradients; each is a host sync on a GPU
//   check_parameters_every = 1   steps between looks at the parameters after the update, where its gradients still are;
//                                0: never; each is a host sync on a GPU
//   every = 100                  steps between samples of each layer's ranges; 0: none
//   ring = 8                     samples that are kept, and put into the capsule
//   capsules = 3                 faults of a run that are traced and kept; later ones are only skipped and reported
//   overflows = 1                the same for overflows that a loss scaler finds in gradients of a finite loss; the
//                                tenth in a row is a fault like any other
//   samples = "faults"           which of these are searched for the samples of the batch that do it: faults, overflows
//                                (those too), none. One guilty sample of n takes at most 2 log2(n) + 4 parts of the
//                                batch, which are computed on the side
// A step computes the same bits when it runs again (docs/architecture.md), so nothing is traced until it is needed. The
// idea is that of deterministic replay in debuggers (King, Dunlap, Chen, USENIX ATC 2005). Megatron-Core's
// RerunStateMachine also runs a step again, to tell faults of the machine from those of the program.
#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <vernier/culprit.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "inspection.h"
#include "ring.h"

namespace {

using recorder::first_bad;
using recorder::is_finite;
using vernier::Capsule;
using vernier::Event;
using vernier::NonFiniteOrigin;
using vernier::Run;
using Details = vernier::Notice::Details;

constexpr const char* no_update = "written by no update";
constexpr std::int64_t storm = 10;  // steps in a row whose gradients overflow: traced like any fault

}  // namespace

class FlightRecorder final : public vernier::Callback {
 public:
  explicit FlightRecorder(vernier::Options& options)
      : check_every_(options.get("check_every", 1, "steps between looks at loss and gradients", vernier::at_least(1))),
        check_parameters_every_(options.get("check_parameters_every", 1,
                                            "steps between looks at the parameters; 0: never", vernier::at_least(0))),
        ring_{options.get("every", 100, "steps between samples of the layers' ranges; 0: none", vernier::at_least(0)),
              options.get("ring", 8, "samples that are kept", vernier::between(1, 1000))},
        most_capsules_(options.get("capsules", 3, "faults that are traced and kept", vernier::at_least(0))),
        most_overflows_(options.get("overflows", 1, "overflows of a scaled loss that are traced and kept as well",
                                    vernier::at_least(0))),
        samples_(options.choose("samples", "faults", {"faults", "overflows", "none"},
                                "which of these are searched for the samples that do it")) {
    remember("in_a_row", in_a_row_), remember("sound_at", sound_at_), remember("rate", rate_);
    remember("is_new", is_update_new_), remember("is_blamed", is_blamed_);
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](Run& run) {
      if (check_parameters_every_ == 0 || sound_at_ >= 0) return;  // a resumed run reports what an unstopped one does
      if (first_bad(run) == run.parameters.size()) sound_at_ = run.step;
    });
    bus.on(Event::BatchReady, [this](Run& run) {
      if (!is_searching_) begin_micro_batch(run);
    });
    bus.on(Event::LossReady, [this](Run&) { ring_.end_forward(); });
    search_.attach(bus);
    bus.on(Event::GradientsReady, [this](Run& run) { look(run); });
    bus.on(Event::StepEnd, [this](Run& run) { look_at_parameters(run); });
  }
  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus&) const override {
    search_.meet(other);
    return {};
  }
  void prepare(Run& run) override {
    run.control->want_rerun(*this);
    ring_.prepare(run);
  }

  vernier::State save() const override {
    auto state = Callback::save();
    state.put("capsules", capsules_);
    state.put("overflows", overflows_);
    if (bad_update_) state.put("bad_update", vernier::text_of(*bad_update_));
    state.put("ring", ring_.bytes());
    return state;
  }
  void load(const vernier::State& state) override {
    Callback::load(state);
    // Going back does not make the capsules unwritten.
    capsules_ = std::max(capsules_, state.integer("capsules"));
    overflows_ = std::max(overflows_, state.integer("overflows"));
    bad_update_.reset();
    if (state.has("bad_update")) bad_update_ = vernier::origin_from(state.text("bad_update"));
    ring_.load(state.text("ring"));
  }

 private:
  void begin_micro_batch(Run& run) {
    step_ = run.step + 1;
    if (tracer_) {
      for (std::size_t i = 0; i < run.micro_batch.tensors.size(); ++i) {
        tracer_->hold(c10::str("tensor ", i, " of the batch"), run.micro_batch.tensors[i]);
      }
      return tracer_->begin_forward();
    }
    ring_.begin_micro_batch(run);
  }

  void look(Run& run) {
    ring_.end_forward();
    ring_.sample(run);
    const bool is_due = run.step % check_every_ == 0 || is_update_new_;
    const auto what = is_due ? what_is_bad(run) : "";
    in_a_row_ = what == "gradients" ? in_a_row_ + 1 : 0;
    if (what.empty()) return;
    const bool is_overflow = what == "gradients" && run.found_inf.defined();
    const bool is_mended = is_overflow && in_a_row_ != storm;  // by a lower scale, as far as one knows
    auto& count = is_mended ? overflows_ : capsules_;
    const bool is_looked_into = count < (is_mended ? most_overflows_ : most_capsules_) && !is_of_known_weight(run);
    if (is_looked_into) count += 1;
    if (is_looked_into) {
      investigate(run, what);
    } else if (!is_overflow) {
      tell_in_short(run, what, is_blamed_ && bad_update_ ? bad_update_->place() : "not looked into");
    }
    run.skip_update = torch::ones({}, torch::dtype(torch::kFloat32).device(run.device));  // the weights stand still
    is_update_new_ = false;
  }

  void tell_in_short(Run& run, const std::string& what, const std::string& place) const {
    report(run, {{"step", step_}, {"what", what}, {"place", place}}, not_finite(what) + "; " + place);
  }

  static std::string not_finite(const std::string& what) {
    return what == "gradients" ? "gradients are not finite" : "the " + what + " is not finite";
  }

  static void report(Run& run, Details details, std::string sentence) {
    run.notice("non_finite", std::move(details), std::move(sentence));
    run.non_finite_reported = true;
  }

  // A bad weight for which a step's repeat was bad makes the later ones so, as long as it stays.
  bool is_of_known_weight(const Run& run) {
    if (!is_blamed_ || !bad_update_ || is_update_new_) return false;
    const auto& name = bad_update_->tensor;
    const auto found = std::ranges::find(run.parameters, name, &vernier::Parameter::name);
    const auto frozen = run.model->named_parameters();
    const bool is_still_bad = found != run.parameters.end() ? !is_finite(found->best()) || !is_finite(found->model)
                                                            : frozen.contains(name) && !is_finite(frozen[name]);
    if (!is_still_bad) forget_bad_update();  // mended since, where nobody looked
    return is_still_bad;
  }

  void forget_bad_update() {
    bad_update_.reset();
    is_blamed_ = false;
  }

  // "loss", "gradients", "parameter", or "". A veto of others is not a fault.
  std::string what_is_bad(Run& run) const {
    if (!std::isfinite(run.loss.item<float>())) return "loss";
    if (is_update_new_) return "parameter";
    if (run.found_inf.defined()) return run.found_inf.item<float>() != 0 ? "gradients" : "";
    if (run.norms.before_clipping.defined())
      return std::isfinite(run.norms.before_clipping.item<double>()) ? "" : "gradients";
    return recorder::have_finite_sums(run.gradients()) || run.non_finite_gradients().empty() ? "" : "gradients";
  }

  // After the update, where its gradients and what the optimizer keeps still are.
  void look_at_parameters(Run& run) {
    keep_rate(run);
    if (check_parameters_every_ == 0 || (step_) % check_parameters_every_ != 0) return;
    const auto number = first_bad(run);
    if (number == run.parameters.size()) {
      forget_bad_update();
      sound_at_ = step_;
      return;
    }
    const auto& name = run.parameters[number].name;
    const bool is_skipped = recorder::is_skipped(run);
    const bool is_known = bad_update_ && (is_skipped || bad_update_->tensor == name);
    if (is_known) return;
    auto origin = recorder::update_of(name);
    const bool was_sound = sound_at_ == step_ - 1;
    if (was_sound && !is_skipped) origin.step = step_;
    tell_bad_weight(run, number, was_sound && is_skipped, origin);
    warn("step ", step_, ": ", name, " is not finite; ", origin.text(), "; the next step is looked into");
    Details details{{"step", step_}, {"what", std::string("parameter")}};
    add(origin, details);
    report(run, std::move(details), name + " is not finite; " + origin.place());
    bad_update_ = std::move(origin);
    is_blamed_ = false;
    is_update_new_ = true;
  }

  // Keeps the learning rate of the last applied update. On a GPU it is a tensor, so that the host does not wait.
  void keep_rate(const Run& run) {
    const auto value = run.metrics.value("learning_rate");
    if (!value) return;
    const auto& skips = run.skip_update;
    const bool is_far = skips.defined() && !skips.is_cpu();
    if (skips.defined() && !is_far && skips.item<float>() != 0) return;
    const auto place = is_far ? skips.device() : torch::Device(torch::kCPU);
    const auto rate = torch::full({}, *value, torch::dtype(torch::kFloat64).device(place));
    rate_ = is_far && rate_.defined() ? torch::where(skips == 0, rate, rate_.to(place)) : rate;
  }

  // A failure to report does not end the run.
  void tell_bad_weight(const Run& run, std::size_t number, bool is_of_no_update, NonFiniteOrigin& origin) const {
    try {
      const auto& parameter = run.parameters[number];
      origin.outputs = {{origin.tensor, vernier::range_of(recorder::bad_weight(parameter))}};
      if (is_of_no_update) {
        origin.operation = no_update;
      } else {
        tell_update(run, number, recorder::is_bad_cast(parameter), origin);
      }
    } catch (...) {
      origin.inputs.clear();
      warn("step ", step_, ": what ", origin.tensor, " was made from is not known: ", vernier::caught().message);
    }
  }

  // Adds the plugin that updated the parameter and the tensors it used. If origin.step is known, the gradient is still
  // there, divided by run.grad_scale or not. If nobody looked, a callback may have written the weight since.
  void tell_update(const Run& run, std::size_t number, bool is_cast, NonFiniteOrigin& origin) const {
    const bool is_seen = origin.step > 0;
    if (step_ == 1 && !is_seen) return;  // it came so
    const auto& parameter = run.parameters[number];
    const std::string role = is_cast ? vernier::Precision::role : vernier::Optimizer::role;
    const std::string others = is_seen ? "" : " or a callback";
    origin.operation = role + others;  // the roles alone, if the snapshot fails
    const auto snapshot = run.control->snapshot();
    const auto plugin = recorder::plugin_of(role, snapshot);
    origin.operation = plugin + others;
    const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
      origin.inputs.emplace_back(name, vernier::range_of(tensor));
    };
    // A float32 weight that is too large for the model's dtype.
    if (is_cast) return add("master weights", parameter.best());
    if (is_seen && parameter.master.grad().defined()) add("gradient", parameter.master.grad());
    const auto kept = snapshot.part("plugin/" + plugin);
    for (const auto& [name, tensor] : recorder::state_of(kept, parameter.name, number)) add(name, tensor);
    if (rate_.defined()) add("learning_rate", rate_);
  }

  void investigate(Run& run, const std::string& what) {
    Capsule capsule;
    capsule.step = step_;
    capsule.what = what;
    capsule.ring = ring_.samples();
    capsule.batch = run.batch;
    capsule.seen = vernier::fingerprint(run);
    const bool has_bad_norm =
        run.norms.before_clipping.defined() && !std::isfinite(run.norms.before_clipping.item<double>());
    bool is_finite_again = false;
    const auto begin = [&] {
      capsule.state = recorder::copy_of_state(run);
      tracer_.emplace(*run.model);
    };
    const auto end = [&] {
      tracer_->stop();
      capsule.repeated = vernier::fingerprint(run);
      std::vector<std::pair<std::string, torch::Tensor>> ends;
      if (run.loss.defined()) ends.emplace_back("loss", run.loss);
      for (const auto& parameter : run.parameters) {
        if (parameter.master.grad().defined()) ends.emplace_back(parameter.name, parameter.master.grad());
      }
      capsule.origin = tracer_->origin(ends);
      is_finite_again = !capsule.origin;
      if (is_finite_again && has_bad_norm) capsule.origin = recorder::norm_that_overflows(run);
    };
    bool is_untouched = false;
    try {
      is_untouched = run.control->rerun(begin, end);
    } catch (...) {  // all is put back, and the update is skipped all the same
      tracer_.reset();
      warn("step ", step_, ": ", not_finite(what),
           "; the update is skipped; why is not known, for the step could not be run again: ",
           vernier::caught().message);
      return tell_in_short(run, what, "not looked into");
    }
    tracer_.reset();
    conclude(run, capsule, is_untouched, is_finite_again);
    const bool is_of_batch = !is_finite_again && capsule.origin && !is_of_state(*capsule.origin);
    const bool is_asked = what == "gradients" && run.found_inf.defined() ? samples_ == "overflows" : samples_ != "none";
    if (is_of_batch && is_asked) capsule.samples = search_samples(run);
    tell(run, capsule);
  }

  // Weights and buffers that are bad make each sample so.
  static bool is_of_state(const NonFiniteOrigin& origin) {
    return origin.phase == "update" || origin.phase == "buffer";
  }

  std::string search_samples(Run& run) {
    is_searching_ = true;
    const auto end = c10::make_scope_exit([this] { is_searching_ = false; });
    try {
      const auto culprits = search_.find(run, vernier::not_finite(run), /*is_repeated=*/true);
      search_.forget();
      return culprits.text();
    } catch (...) {
      return "which samples do it is not known, because " + vernier::caught().message;
    }
  }

  void conclude(const Run& run, Capsule& capsule, bool is_untouched, bool is_finite_again) {
    const bool is_blamed = capsule.origin && capsule.origin->phase == "update";
    const bool is_of_weights = is_blamed && capsule.origin->operation.empty();
    const bool is_known =
        is_of_weights && bad_update_ && (is_update_new_ || bad_update_->tensor == capsule.origin->tensor);
    if (is_known || (capsule.what == "parameter" && is_finite_again)) {
      capsule.origin = bad_update_;
    } else if (is_of_weights) {
      tell_late(run, *capsule.origin);
    }
    if (capsule.origin && capsule.origin->phase == "update") bad_update_ = capsule.origin;
    is_blamed_ = is_blamed_ || is_blamed;
    if (is_of_weights || (capsule.what == "parameter" && is_finite_again)) {
      capsule.cause = cause_of_weights(run, *capsule.origin);
    } else if (capsule.origin) {
      const bool is_bits = is_untouched || capsule.seen.loss != capsule.repeated.loss;
      const auto difference = is_bits ? capsule.seen.difference(capsule.repeated) : "";
      capsule.cause = difference.empty() ? "the repeat has the same bits"
                                         : "the repeat differs in " + difference + ": it is not the same fault twice";
    } else if (!is_untouched && capsule.seen.loss == capsule.repeated.loss) {
      capsule.cause =
          "the repeat is finite, and the gradients were changed after backward: by a callback that stands before this "
          "one";
    } else {
      capsule.is_transient = true;
      capsule.cause =
          "the same step again is finite: a transient fault, of memory or processor, or an operation that does not "
          "give the same result twice";
    }
  }

  // Adds to the origin all that a check of the parameters after the update would have reported, except the gradients.
  void tell_late(const Run& run, NonFiniteOrigin& origin) const {
    const auto found = std::ranges::find(run.parameters, origin.tensor, &vernier::Parameter::name);
    if (found == run.parameters.end()) return;  // one that is not trained
    tell_bad_weight(run, static_cast<std::size_t>(found - run.parameters.begin()), sound_at_ == step_ - 1, origin);
  }

  std::string cause_of_weights(const Run& run, const NonFiniteOrigin& origin) const {
    if (origin.step > 0) return c10::str("the update of step ", origin.step, " made the weights so");
    const auto sound = sound_at_ < 0 ? ""
                                     : ", and finite " + (sound_at_ == 0 ? std::string("when the run began")
                                                                         : c10::str("after step ", sound_at_));
    return c10::str("the weights were bad before step ", step_, sound,
                    origin.operation == no_update ? ": a callback wrote them since, or a fault of the memory" : "");
  }

  // Reports the fault and keeps the capsule. The run continues if that fails.
  void tell(Run& run, const Capsule& capsule) const {
    std::string path;
    try {
      path = recorder::write(run, capsule);
    } catch (const std::exception& error) {
      warn("the capsule of step ", capsule.step, " could not be written, the run continues: ", error.what());
    }
    const auto what = capsule.what == "loss"        ? std::string("the loss is ") + capsule.seen.loss
                      : capsule.what == "gradients" ? not_finite(capsule.what)
                                                    : capsule.origin->tensor + " is not finite";
    const auto* done = "; the update is skipped";
    const auto where = (capsule.origin ? "; " + capsule.origin->text() : std::string()) +
                       (capsule.samples.empty() ? "" : "; " + capsule.samples);
    warn("step ", capsule.step, ": ", what, where, "; ", capsule.cause, done,
         path.empty() ? "" : "; " + run.replay_command + " " + path);
    Details details{{"step", capsule.step}, {"what", capsule.what}};
    if (capsule.origin) add(*capsule.origin, details);
    details.emplace_back("transient", static_cast<std::int64_t>(capsule.is_transient));
    if (!capsule.samples.empty()) details.emplace_back("samples", capsule.samples);
    if (!path.empty()) details.emplace_back("capsule", path.substr(run.output.size() + 1));  // in the run's folder
    report(run, std::move(details),
           what + (capsule.origin ? "; " + capsule.origin->place() : "") +
               (capsule.samples.empty() ? "" : "; " + capsule.samples) + done);
  }

  static void add(const NonFiniteOrigin& origin, Details& details) {
    details.emplace_back("phase", origin.phase);
    if (!origin.layer.empty()) details.emplace_back("layer", (origin.is_after ? "after " : "") + origin.layer);
    if (!origin.operation.empty()) details.emplace_back("operation", origin.operation);
    if (!origin.tensor.empty()) details.emplace_back("tensor", origin.tensor);
    if (origin.step > 0) details.emplace_back("update", origin.step);
  }

  std::int64_t check_every_, check_parameters_every_;
  recorder::Ring ring_;
  std::int64_t most_capsules_, most_overflows_;
  std::string samples_;  // faults for which it searches samples
  vernier::CulpritSearch search_;
  bool is_searching_ = false;
  std::int64_t capsules_ = 0, overflows_ = 0;
  std::int64_t in_a_row_ = 0;   // looks at gradients that were not finite
  std::int64_t step_ = 0;       // the current step, from 1
  std::int64_t sound_at_ = -1;  // updates after which all parameters were finite at the last look; -1: not looked
  std::optional<NonFiniteOrigin> bad_update_;  // the first parameter that is not finite, until all are
  bool is_update_new_ = false;                 // the next step is traced for it
  bool is_blamed_ = false;                     // its parameter made a step bad
  torch::Tensor rate_;                         // the learning rate of the last update that was applied; float64 0-dim
  std::optional<vernier::NonFiniteTracer> tracer_;
};

VERNIER_PLUGIN(FlightRecorder, "flight_recorder", "1.2.0")
