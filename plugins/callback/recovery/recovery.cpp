// recovery: acts when the loss, gradients or weights become NaN or spike, by a list of actions for each such trouble.
// Each action is reported by the notice `recovered`, and none is repeated for ever. If no action helps, the run ends
// with an error and a checkpoint.
//   non_finite = ["skip"]       the loss, a gradient or a weight has an inf or NaN. Under a loss scaler, gradients that
//                               overflow are the scaler's affair: they only count as skipped updates
//   spike = []                  loss or gradient norm are more than z_score deviations over their mean
//   skips_in_a_row = ["stop"]   the last `skips` updates were skipped, for any reason. Overflows before the first
//                               update that is applied under a scaler do not count: they are its search for the scale,
//                               which its option overflows_in_a_row ends
// Each takes actions, which are tried in turn, with how often at most: "skip 5". By default that is 10 times in a row
// for skip and drop_samples and 3 times for others, counted anew after calm_steps updates were applied without that
// trouble. fallback and stop come once. The run ends when no action is left.
//   "skip"                      the update is not applied
//   "drop_samples"              parts of the batch are computed on the side until the samples are known that do it; the
//                               update is made without them. If no sample is to blame it is skipped, and if the same
//                               batch once more is good, it is made from that
//   "lower_learning_rate"       by rate_factor for rate_steps steps, then back to the full rate over rate_return steps
//   "rewind"                    back to the copy in memory from rewind_back steps ago, each further time as many steps
//                               more; drops the batches of the troubled updates, at least those of rewind_drop
//   "fallback"                  to other plugins, by role as {precision = {use = "bf16"}, scaler = {use = "none"}}
//   "stop"                      the run ends
// An update that is not finite is never applied, whatever the action. Where an update is not applied, the buffers of
// the model, such as the averages of a batch norm, are as they were before the step. With drop_samples the run is
// copied in each step, for Control::rerun; the search is that of vernier/culprit.h. The samples come again in the next
// epoch.
//   calm_steps = 100
//   z_score = 6.0, window = 128
//   skips = 10
//   weights_every = 100         steps between checks of the weights; they are also checked where loss or gradients are
//                               not finite, and before the run is ended
//   rate_factor = 0.5, rate_steps = 100, rate_return = 100
//   rewind_back = 10, rewind_drop = 1
//   snapshot_every = 10, snapshots = 3   copies of the run in memory, for rewind
//   to = {}                     for fallback: by role the table of its plugin
//
// Spikes follow OLMo-core's SkipStepOptimizer and llm.c's outlier_detector.h. Unlike there, a value that was too high
// does not enter the window, and a low value is not a trouble. Going back and dropping batches follows PaLM (Chowdhery
// et al. 2022, section 5.1), falling back follows Marian's --custom-fallbacks. Place it before clip_norm, because
// clipping spreads a NaN. On a GPU the host waits for the device in each step, unless non_finite and spike only skip or
// stop: then it learns of both one step late.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/module.h>
#include <vernier/culprit.h>
#include <vernier/grad_norm.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <cmath>

#include "outliers.h"
#include "policy.h"

namespace {

using recovery::Policy;
using vernier::at_least;
using vernier::Event;
using vernier::Run;
using Details = vernier::Notice::Details;

enum Place { loss, norm, z_loss, z_norm };  // in a verdict

// Measurements of a step: float64 [4] by Place, on the device and, one step later at the latest, on the host.
struct Verdict {
  torch::Tensor device = {}, host = {};
  std::int64_t step = -1, batch = -1, batches = 1;  // the first of the update, and how many it had
  bool is_scaled = false;                           // a scaler checks the gradients

  double operator[](Place place) const {
    const double value = host.const_data_ptr<double>()[place];
    return std::isnan(value) ? std::fabs(value) : value;  // "-nan" would puzzle readers
  }
  bool is_finite() const { return std::isfinite((*this)[loss]) && (is_scaled || std::isfinite((*this)[norm])); }

  vernier::State save() const {
    vernier::State state;
    if (step < 0) return state;
    state.put("values", device), state.put("is_scaled", is_scaled);
    state.put("step", step), state.put("batch", batch), state.put("batches", batches);
    return state;
  }
  void load(const vernier::State& state) {
    *this = {};
    if (!state.has("step")) return;
    device = host = state.tensor("values").to(torch::kCPU);
    step = state.integer("step"), batch = state.integer("batch"), batches = state.integer("batches");
    is_scaled = state.integer("is_scaled") != 0;
  }
};

std::vector<std::string> non_finite_weights(const Run& run) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> weights;
  std::vector<std::string> names;
  for (const auto& parameter : run.parameters) weights.push_back(parameter.model.detach());
  if (std::isfinite(vernier::grad_norm(weights).item<double>())) return names;
  for (const auto& parameter : run.parameters) {
    if (!parameter.model.isfinite().all().item<bool>()) names.push_back(parameter.name);
  }
  return names;
}

// The model's buffers as they were before a step. The forward writes the running averages of a batch norm before anyone
// knows that its loss is not finite.
class Buffers {
 public:
  void keep(const torch::nn::Module& model) {
    const torch::NoGradGuard no_grad;
    const auto now = model.buffers();
    const auto is_same = [](const Buffer& kept, const torch::Tensor& live) { return kept.live.is_same(live); };
    if (!std::ranges::equal(all_, now, is_same)) all_.clear();
    for (auto& buffer : all_) {
      if (buffer.is_written()) buffer.before.copy_(buffer.live);
    }
    if (!all_.empty()) return;
    for (const auto& live : now) all_.push_back({live, live.clone(), live._version()});
  }

  // Gives those that were written their earlier values, if is_bad, a bool tensor, is true. The host does not wait.
  void put_back(const torch::Tensor& is_bad) {
    const torch::NoGradGuard no_grad;
    for (auto& buffer : all_) {
      if (buffer.is_written())
        buffer.live.copy_(at::where(is_bad.to(buffer.live.device()), buffer.before, buffer.live));
    }
  }

 private:
  struct Buffer {
    torch::Tensor live, before;
    std::int64_t first_version;
    // By any step until now: a CUDA graph that is replayed writes without another version.
    bool is_written() const { return live._version() != first_version; }
  };
  std::vector<Buffer> all_;
};

class Recovery final : public vernier::Callback {
 public:
  explicit Recovery(vernier::Options& options)
      : non_finite_(options, "non_finite", {"skip"}, "actions where loss, gradients or weights are not finite", true),
        spike_(options, "spike", {}, "actions where loss or gradient norm are far above their recent values", true),
        skips_in_a_row_(options, "skips_in_a_row", {"stop"}, "actions after so many `skips`", false),
        calm_(options.get("calm_steps", 100, "updates applied without trouble until actions are counted anew",
                          at_least(1))),
        z_score_(options.get("z_score", 6.0, "deviations over the mean that are a spike", vernier::above(0))),
        window_(options.get("window", 128, "steps of which mean and deviation are taken", vernier::between(2, 1e6))),
        skips_(options.get("skips", 10, "skipped updates in a row that are too many", at_least(1))),
        weights_every_(options.get("weights_every", 100, "steps between looks at the weights", at_least(1))),
        rate_factor_(options.get("rate_factor", 0.5, "of the learning rate where it is lowered",
                                 vernier::between(1e-9, 0.999999))),
        rate_steps_(options.get("rate_steps", 100, "steps at the lowered rate, this one included", at_least(1))),
        rate_return_(options.get("rate_return", 100, "steps of the way back, a line; 0: at once", at_least(0))),
        back_(options.get("rewind_back", 10, "steps to go back, each further time as many more", at_least(1))),
        drop_(options.get("rewind_drop", 1, "updates whose batches are dropped, at least the troubled ones",
                          at_least(0))),
        snapshot_every_(options.get("snapshot_every", 10, "steps between copies of the run in memory", at_least(1))),
        snapshots_(
            options.get("snapshots", 3, "how many are kept, each the size of a checkpoint", vernier::between(1, 1000))),
        to_(options.get("to", vernier::Table{}, "for fallback: by role the table of its plugin from then on")),
        outliers_(window_) {
    refuse_contradictions(options);
    // After a rewind the window is that of the savepoint, since those steps come again; all counts are those from
    // before the rewind.
    if (!spike_.empty()) {
      remember([this](vernier::State& state) { state.put(window_prefix, outliers_); },
               [this](const vernier::State& state) { load_window(state.part(window_prefix)); });
    }
    for (auto* policy : policies()) remember(policy->name(), *policy);
    remember("skipped", skipped_), remember("updates_before", updates_before_);
    remember("rate", lowered_), remember("rate_from", lowered_at_);
    remember("has_fallen_back", has_fallen_back_), remember("late", known_);
  }

  std::vector<vernier::MetricInfo> metrics() const override {
    return {{.name = "grad_norm", .meaning = "2-norm of all gradients before clipping"}};
  }
  void attach(vernier::Bus& bus) override {
    bus.on(Event::StepBegin, [this](Run& run) {
      has_acted_ = false;
      step_ = run.step;
      is_bad_ = torch::Tensor();
      buffers_.keep(*run.model);
      has_new_scaler_ = std::ranges::find(run.swapped, vernier::Scaler::role) != run.swapped.end();
      if (has_new_scaler_) updates_before_ = run.updates;
      run.learning_rate_factor *= rate(run);
    });
    if (uses("drop_samples")) search_.attach(bus);
    bus.on(Event::GradientsReady, [this](Run& run) { judge(run); });
    bus.on(Event::StepEnd, [this](Run& run) {
      if (is_bad_.defined()) buffers_.put_back(is_bad_);  // a later listener, such as sam, may have run the model again
      act_late(run);
      count_skips(run);
    });
  }

  vernier::Contradiction contradicts(const vernier::Plugin& other, const vernier::Bus&) const override {
    search_.meet(other);
    return {};
  }

  void prepare(Run& run) override {
    if (uses("drop_samples")) run.control->want_rerun(*this);
    outliers_.prepare(run.device);
    waits_ = !run.results_are_late || !non_finite_.has_only({"skip", "stop"}) || !spike_.has_only({"skip", "stop"});
    if (uses("rewind")) run.control->keep_savepoints(snapshot_every_, snapshots_);
    if (uses("fallback")) run.control->try_swap(to_);
  }

 private:
  static constexpr const char* window_prefix = "window";  // a rewind takes these entries from the savepoint

  std::vector<Policy*> policies() { return {&non_finite_, &spike_, &skips_in_a_row_}; }
  std::vector<const Policy*> policies() const { return {&non_finite_, &spike_, &skips_in_a_row_}; }
  bool uses(const std::string& action) const {
    return std::ranges::any_of(policies(), [&](const auto* policy) { return policy->has(action); });
  }

  void refuse_contradictions(const vernier::Options& options) const {
    const auto refuse = [&](bool is_used, const char* why, std::initializer_list<const char*> keys) {
      for (const char* key : keys) {
        if (options.given(key) && !is_used) options.refuse(key, why);
      }
    };
    refuse(uses("rewind"), "is for \"rewind\", which no trigger asks for",
           {"rewind_back", "rewind_drop", "snapshot_every", "snapshots"});
    refuse(uses("lower_learning_rate"), "is for \"lower_learning_rate\", which no trigger asks for",
           {"rate_factor", "rate_steps", "rate_return"});
    refuse(uses("fallback"), "is for \"fallback\", which no trigger asks for", {"to"});
    refuse(!spike_.empty(), "is for `spike`, which has no action", {"z_score", "window"});
    refuse(!skips_in_a_row_.empty(), "is for `skips_in_a_row`, which has no action", {"skips"});
    if (uses("fallback") && to_.empty()) {
      options.refuse("to",
                     "is needed for \"fallback\": by role the table of its plugin from then on, as "
                     "to = {precision = {use = \"bf16\"}}");
    }
    if (uses("rewind") && (snapshots_ - 1) * snapshot_every_ < back_) {
      options.refuse("rewind_back",
                     c10::str("is ", back_, ", and ", snapshots_, " snapshots, one each ", snapshot_every_,
                              " steps, may reach back ", (snapshots_ - 1) * snapshot_every_,
                              " only; raise `snapshots` or `snapshot_every`"));
    }
    if (std::ranges::all_of(policies(), [](const auto* policy) { return policy->empty(); })) {
      options.refuse("non_finite", "and all other triggers have no action: there is nothing to do");
    }
  }

  // A run without `spike`, or with another window, saved no window that fits: then it starts empty.
  void load_window(const vernier::State& state) {
    if (state.has("values") && state.tensor("values").size(-1) == window_) outliers_.load(state);
  }

  // The factor of the learning rate in this step: lowered_, then linearly back to 1.
  double rate(Run& run) {
    if (lowered_ == 1) return 1;
    const auto after = run.step - lowered_at_ - rate_steps_;
    if (after < 0) return lowered_;
    if (after < rate_return_) {
      return lowered_ + (1 - lowered_) * static_cast<double>(after + 1) / static_cast<double>(rate_return_ + 1);
    }
    lowered_ = 1;
    run.notice("recovered", {{"action", std::string("learning rate is back")}},
               "the learning rate is back on its schedule");
    return 1;
  }

  // At GradientsReady.
  void judge(Run& run) {
    now_ = measure(run);
    if (waits_) {
      now_.host = now_.device.to(torch::kCPU);
      return act(run, now_);
    }
    const auto& values = now_.device;
    auto is_bad = values[loss].isfinite().logical_not();
    if (!now_.is_scaled) is_bad = is_bad.logical_or(values[norm].isfinite().logical_not());
    if (non_finite_.empty()) is_bad = torch::zeros_like(is_bad);
    if (!spike_.empty()) is_bad = is_bad.logical_or((values.slice(0, z_loss) > z_score_).any());
    skip_when(run, is_bad);
    now_.host = torch::empty(values.sizes(), torch::dtype(values.dtype()).pinned_memory(!run.device.is_cpu()));
    now_.host.copy_(values, /*non_blocking=*/true);
  }

  // Into one tensor on the device of the gradients.
  Verdict measure(Run& run) {
    const torch::NoGradGuard no_grad;
    Verdict verdict{
        .step = run.step, .batch = run.batches_drawn, .batches = run.batches, .is_scaled = run.found_inf.defined()};
    const auto loss_value = run.loss.to(torch::kDouble);
    auto values = torch::stack({loss_value, norm_of(run, loss_value)});
    if (spike_.empty()) {
      verdict.device = torch::cat({values, torch::full_like(values, std::nan(""))});
      return verdict;
    }
    const auto z = at::where(values.isfinite(), outliers_.z_scores(values), std::nan(""));
    outliers_.add(values, values.isfinite().all().logical_and((z > z_score_).any().logical_not()));
    verdict.device = torch::cat({values, z});
    return verdict;
  }

  torch::Tensor norm_of(Run& run, const torch::Tensor& like) const {
    if (!run.norms.before_clipping.defined()) {
      if (run.found_inf.defined() && spike_.empty()) return torch::zeros_like(like);  // not needed
      run.metrics.set("grad_norm", run.gradient_norm());
    }
    return run.gradient_norm().to(like.options());
  }

  void veto(Run& run) { skip_when(run, torch::ones({}, torch::kBool)); }

  void skip_when(Run& run, const torch::Tensor& is_bad) {
    run.skip_when(is_bad.to(torch::kFloat));
    is_bad_ = is_bad;
    buffers_.put_back(is_bad_);
  }

  // At StepEnd, where the host knows a step only after the next one: the update of that step was skipped already.
  void act_late(Run& run) {
    if (waits_) return;
    if (known_.step >= 0) act(run, known_);
    known_ = now_;
  }

  void act(Run& run, const Verdict& verdict) {
    const bool is_due = !non_finite_.empty() && verdict.step % weights_every_ == 0;
    if (is_due || !verdict.is_finite()) {
      const auto weights = non_finite_weights(run);
      if (!weights.empty()) return meet(run, non_finite_, verdict, {{"weights", vernier::some_of(weights)}}, true);
    }
    if (!verdict.is_finite()) return meet(run, non_finite_, verdict, what_is_not_finite(run, verdict));
    const bool is_loss = verdict[z_loss] > z_score_;
    if (is_loss) return meet(run, spike_, verdict, {{"loss", verdict[loss]}, {"z", verdict[z_loss]}});
    if (verdict[z_norm] > z_score_) meet(run, spike_, verdict, {{"grad_norm", verdict[norm]}, {"z", verdict[z_norm]}});
  }

  Details what_is_not_finite(const Run& run, const Verdict& verdict) const {
    if (!std::isfinite(verdict[loss])) return {{"loss", verdict[loss]}};
    const auto names =
        waits_ ? run.non_finite_gradients() : std::vector<std::string>{};  // late: they are of another step
    if (!names.empty()) return {{"gradients", vernier::some_of(names)}};
    return {{"grad_norm", verdict[norm]}};
  }

  // At StepEnd: run.last_update is of this step; where results are late, of the one before.
  void count_skips(Run& run) {
    const bool was_skipped = vernier::is_skipped(run.last_update);
    if (!was_skipped) {  // a step whose update was skipped is not calm, whatever the reason
      for (auto* policy : policies()) policy->applied(run.results_are_late ? step_ - 1 : step_);
    }
    if (has_new_scaler_ && run.results_are_late) updates_before_ = run.updates;  // with the old scaler's last update
    skipped_ = was_skipped ? skipped_ + (is_search(run) ? 0 : 1) : 0;
    if (!was_skipped || has_acted_ || skips_in_a_row_.empty() || skipped_ < skips_) return;
    const Verdict verdict{.step = step_, .batch = run.batches_drawn - run.batches, .batches = run.batches};
    const auto count = std::exchange(skipped_, 0);
    meet(run, skips_in_a_row_, verdict, {{"skipped", count}}, false, count);
  }

  // A scale that starts too high falls with each overflow until an update is applied. The scaler bounds that search.
  bool is_search(const Run& run) const {
    return run.updates == updates_before_ && run.last_update == vernier::UpdateResult::found_inf;
  }

  // Performs the next action that can help. batches: the number of troubled updates in a row; 0: the policy's count.
  void meet(Run& run, Policy& policy, const Verdict& verdict, Details what, bool are_weights = false,
            std::int64_t batches = 0) {
    if (policy.empty()) return;
    const auto helps = [&](const std::string& action) {
      if (are_weights) return action == "rewind" || action == "stop";
      return action != "fallback" || !has_fallen_back_;
    };
    const auto action = policy.next(verdict.step, verdict.batch, verdict.batches, calm_, helps);
    Details details{{"trigger", policy.name()}};
    details.insert(details.end(), what.begin(), what.end());
    if (!action || action->name == "stop") return end(run, policy, verdict, what, action.has_value(), are_weights);
    const bool was_finite = policy.name() == "spike";
    const bool may_go_on = action->name == "drop_samples" || (was_finite && action->name == "lower_learning_rate");
    if (!may_go_on) veto_where_it_counts(run);
    details.emplace_back("action", action->name);
    auto sentence = in_words(what, verdict.step == step_ ? "" : c10::str(" in step ", verdict.step + 1)) + "; ";
    sentence += action->name == "drop_samples" ? drop_samples(run, verdict, was_finite, details)
                                               : perform(run, *action, std::max(batches, policy.in_a_row()), details);
    if (action->at_most > 1) {
      const auto time = c10::str(action->number, " of ", action->at_most);
      details.emplace_back("time", time);
      sentence += ", time " + time;
    }
    run.notice("recovered", std::move(details), std::move(sentence));
    has_acted_ = has_acted_ || (action->name != "skip" && action->name != "drop_samples");
  }

  // At StepEnd there is nothing to veto: the update is past, and was skipped where one of these triggers is met.
  void veto_where_it_counts(Run& run) {
    if (waits_ && now_.step == run.step) veto(run);
  }

  // Returns in words what was done.
  std::string perform(Run& run, const recovery::Action& action, std::int64_t batches, Details& details) {
    if (action.name == "lower_learning_rate") {
      const double before = rate(run);
      lowered_ = before * rate_factor_;
      lowered_at_ = step_;
      if (now_.step == run.step) run.learning_rate_factor *= lowered_ / before;  // this update too, if it is applied
      details.emplace_back("factor", lowered_);
      return c10::str("the learning rate is ", lowered_, " of its schedule");
    }
    if (action.name == "rewind") {
      const auto back = back_ * action.number, drop = drop_ == 0 ? 0 : std::max(drop_, batches);
      run.control->rewind(*this, back, drop, window_prefix);
      skipped_ = 0;
      details.emplace_back("back", back);
      details.emplace_back("drop", drop);
      return c10::str("the run goes back (steps: ", back, ", batches left out: ", drop, ")");
    }
    if (action.name == "skip") return "the update is skipped";
    run.control->swap(to_);
    has_fallen_back_ = true;
    return "the plugins of `to` take over";
  }

  // The symptom of the trigger `spike`: a part is bad if it has a fifth of what the whole batch, or what is left of it,
  // is over the mean.
  vernier::Symptom spike_of(const Verdict& verdict) const {
    const bool is_loss = verdict[z_loss] > z_score_;
    const double value = verdict[is_loss ? loss : norm], z = verdict[is_loss ? z_loss : z_norm];
    const auto mean = outliers_.means().to(torch::kCPU)[is_loss ? 0 : 1].item<double>();
    const double most = mean + (value - mean) / z * z_score_;
    const auto is_bad = [=, whole = value](Run& run, double share) mutable {
      const auto part = (is_loss ? run.loss : run.gradient_norm()).item<double>();
      if (share == 1 && std::isfinite(part)) whole = part;
      return !(share == 1 ? part <= most : part - share * mean <= (whole - mean) / 5);
    };
    return {is_loss ? "the loss a spike" : "the gradient norm a spike", is_bad, "no spike"};
  }

  // Returns in words what was found and done.
  std::string drop_samples(Run& run, const Verdict& verdict, bool is_spike, Details& details) {
    std::string found;
    try {
      const auto culprits = search_.find(run, is_spike ? spike_of(verdict) : vernier::not_finite(run));
      found = culprits.text();
      details.emplace_back("samples", culprits.numbers());
      details.emplace_back("reruns", culprits.reruns);
    } catch (const std::exception&) {
      found = "which samples do it is not known, because " + vernier::caught().message;
    }
    const bool goes_on = search_.leave_out(run);
    search_.forget();
    details.emplace_back("applied", static_cast<std::int64_t>(goes_on));
    if (!goes_on) {
      veto(run);
      return found + "; the update is skipped";
    }
    if (run.metrics.value("grad_norm")) run.metrics.set("grad_norm", run.gradient_norm());
    return found + "; the update is made from these";
  }

  static std::string in_words(const Details& what, const std::string& in_step) {
    const auto& [key, detail] = what.front();
    const auto* number = std::get_if<double>(&detail);
    const auto value = number != nullptr && std::isnan(*number)
                           ? "nan"  // whatever its sign
                           : std::visit([](const auto& each) { return c10::str(each); }, detail);
    const auto last = in_step.empty() ? "" : ", the last" + in_step;
    if (key == "skipped") return value + " updates in a row were skipped" + last;
    if (key == "gradients" || key == "weights") return key + " are not finite" + in_step + ": " + value;
    if (what.size() == 1) return key + " is " + value + in_step;
    return key + " is " + value + in_step +
           c10::str(", ", std::get<double>(what[1].second), " deviations over its mean");
  }

  void end(Run& run, Policy& policy, const Verdict& verdict, const Details& what, bool is_asked, bool are_weights) {
    veto_where_it_counts(run);
    auto text = in_words(what, c10::str(" in step ", verdict.step + 1)) + "; ";
    text += is_asked ? "`" + policy.name() + "` says stop" : "no action of `" + policy.name() + "` is left";
    if (are_weights && !is_asked) text += " that could help";
    policy.restart();  // who resumes the run gives all of them another chance
    const auto weights = are_weights ? std::vector<std::string>() : non_finite_weights(run);
    if (!weights.empty()) text += "; weights are not finite: " + vernier::some_of(weights);
    if (are_weights || !weights.empty()) {
      throw vernier::Error(
          text +
          ". No checkpoint is made of these weights. --resume continues from the last one; where it was made "
          "after the update that spoiled them, name an earlier one: --resume=PATH");
    }
    run.control->fail(*this, text + ". The checkpoint has the weights from before it; --resume continues");
    has_acted_ = true;
  }

  Policy non_finite_, spike_, skips_in_a_row_;
  std::int64_t calm_;
  double z_score_;
  std::int64_t window_, skips_;
  std::int64_t weights_every_;
  double rate_factor_;
  std::int64_t rate_steps_, rate_return_, back_, drop_, snapshot_every_, snapshots_;
  vernier::Table to_;
  recovery::Outliers outliers_;
  vernier::CulpritSearch search_;
  Buffers buffers_;

  bool waits_ = true;                // for the verdict of the device, in each step
  Verdict now_, known_;              // now_: this step's; known_: the step before's, unless it has been acted on
  torch::Tensor is_bad_;             // bool: this step's update is skipped; undefined: it is applied
  std::int64_t step_ = 0;            // the current step: updates before it
  bool has_acted_ = false;           // in this step, by more than a skip
  std::int64_t skipped_ = 0;         // updates in a row
  std::int64_t updates_before_ = 0;  // run.updates when this scaler took over
  bool has_new_scaler_ = false;      // from this step on
  double lowered_ = 1;               // the factor of the learning rate from step lowered_at_ on
  std::int64_t lowered_at_ = 0;
  bool has_fallen_back_ = false;
};

}  // namespace

VERNIER_PLUGIN(Recovery, "recovery", "1.1.0")
