// inject: puts a fault into a run, to see how the run reacts. The fault is an inf, a NaN, a spike, an underflow, a
// flipped bit, a slow step or an exception, in a layer and at a step of your choice. Each one emits the notice
// `injected`, but the exception, which ends the run.
//   what = "inf"         inf | nan | spike | underflow | bit_flip | slow | exception
//   where = "gradient"   loss | input | activation | gradient | activation_gradient | weight
//   layer = ""           layers by name, with * and ?, as "h.*.mlp.c_fc"; for gradient and weight parameters too
//   at_step = 0          the step it comes in, from 1, as monitors number them; it comes again where the run goes back
//   at_batch = 0         instead: the batch it comes with, from 1; where a batch is passed over, it does not come
//   every = 0            it comes again after so many; 0: once
//   times = 0            how often, with `every`; 0: without end
//   elements = 0         how many are changed, drawn by `seed`; 0: one of inf, nan and bit_flip, all of spike and
//                        underflow
//   seed = 0             of the elements; the run's own random numbers are left alone
//   factor = 1000        what a spike multiplies by
//   exponent = -24       an underflow multiplies by 2 to the power of it; -1000 leaves zeros
//   bit = -1             which bit of an element is flipped, from 0, the lowest; -1: drawn by `seed`
//   milliseconds = 100   what a slow step takes longer
//   transient = false    not again where the same step is run again, as a fault of the hardware would not
//
// The fault comes in the first micro-batch of a batch. An activation is the output of the layer's first operation with
// a weight, in forward. It is changed in memory, so everything that forward and backward compute from it sees the
// fault. A gradient is that of the layer's weight, in backward, before unscaling. An activation_gradient is the
// gradient that comes back to the activation. A changed weight stays changed. A layer that is computed again in
// backward (activation checkpointing) gets the fault again, so the result does not depend on what is kept.
// Source: Megatron-LM's fault injector (megatron/core/rerun_state_machine.py). Here you choose the place.
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <vernier/precision_rules.h>
#include <vernier/sdk.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <set>
#include <thread>

namespace {

using vernier::Error;
using vernier::Event;
using vernier::Run;

// Steele, Lea and Flood, OOPSLA 2014.
std::uint64_t split_mix(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

class Inject final : public vernier::Callback, public vernier::Interceptor {
 public:
  explicit Inject(vernier::Options& options)
      : what_(options.choose("what", "inf", {"inf", "nan", "spike", "underflow", "bit_flip", "slow", "exception"},
                             "kind of fault")),
        where_(options.choose("where", "gradient",
                              {"loss", "input", "activation", "gradient", "activation_gradient", "weight"},
                              "what it is put into")),
        layer_(options.get("layer", "", "layers by name, with * and ?; for gradient and weight parameters too")),
        at_step_(options.get("at_step", 0, "the step it comes in, from 1", vernier::at_least(0))),
        at_batch_(
            options.get("at_batch", 0, "instead of at_step: the batch it comes with, from 1", vernier::at_least(0))),
        every_(options.get("every", 0, "it comes again after so many; 0: once", vernier::at_least(0))),
        times_(options.get("times", 0, "how often, with `every`; 0: without end", vernier::at_least(0))),
        elements_(options.get("elements", 0, "how many are changed; 0: one of inf, nan and bit_flip, else all",
                              vernier::at_least(0))),
        seed_(options.get("seed", 0, "of the elements that are drawn", vernier::at_least(0))),
        factor_(options.get("factor", 1000.0, "what a spike multiplies by")),
        exponent_(options.get("exponent", -24, "an underflow multiplies by 2 to the power of it",
                              vernier::between(-1000, -1))),
        bit_(options.get("bit", -1, "which bit of an element is flipped, from the lowest; -1: drawn",
                         vernier::between(-1, 63))),
        milliseconds_(options.get("milliseconds", 100, "what a slow step takes longer", vernier::between(0, 1e7))),
        transient_(options.get("transient", false, "not again where the same step is run again")) {
    refuse_contradictions(options);
    options_ = options;
    // A transient fault does not come again after a rewind, and one that has come stays so.
    remember([this](vernier::State& state) { state.put("last", last_), state.put("has_come", has_come_); },
             [this](const vernier::State& state) {
               last_ = std::max(state.integer("last"), transient_ && has_begun_ ? last_ : 0);
               has_come_ = has_come_ || state.integer("has_come") != 0;
             });
  }

  void attach(vernier::Bus& bus) override {
    bus.on(Event::RunBegin, [this](Run&) { has_begun_ = true; });
    bus.on(Event::StepBegin, [this](Run&) { is_again_ = false; });
    bus.on(Event::BatchReady, [this](Run& run) {
      remove_hooks();
      if (where_ == "input" && !is_of_step()) refuse_without_numbers(run);
      if (!run.loss.defined()) begin(run);  // the first micro-batch
    });
    bus.on(Event::LossReady, [this](Run& run) {
      guard_.reset();
      if (std::exchange(is_for_loss_, false)) notify(run, "", change_loss(run));
    });
    bus.on(Event::GradientsReady, [this](Run&) {
      remove_hooks();
      unspoilt_.clear();
      refuse_unmet();
      is_again_ = true;
    });
    bus.on(Event::RunEnd, [this](Run& run) { warn_if_it_never_came(run); });
    bus.on(Event::RunFailed, [this](Run&) { guard_.reset(); });
  }

  void prepare(Run& run) override {
    const auto missing = [this](const char* key, const char* why) { options_->refuse(key, why); };
    if (at_step_ == 0 && at_batch_ == 0) missing("at_step", "or `at_batch` must say when it comes");
    if (is_of_step() || where_ == "loss" || where_ == "input") return;
    if (layer_.empty()) missing("layer", "is needed: the layer, or a pattern of several");
    layers_ = vernier::Layers(*run.model);
    if (!is_of_parameter()) {
      targets_ = vernier::matching(layers_.names(), layer_, *options_, "layer", "layer");
    } else {
      targets_ = parameters_of(run);
    }
  }

  // The operations of a forward that the fault is for, and those of them that come again in backward.
  bool changes(std::string_view layer) const override { return unmet_.count(std::string(layer)) != 0; }
  vernier::Values call(const vernier::Operation& operation, vernier::Values arguments) override {
    const std::string layer(operation.layer());
    auto results = operation.proceed(std::move(arguments));
    const bool is_first = unmet_.count(layer) != 0 && seen_.insert(layer).second;
    if (!is_first && unspoilt_.count(layer) == 0) return results;
    for (auto& result : results) {
      if (!result.isTensor() || !result.toTensor().is_floating_point()) continue;
      if (is_first || is_repeat(result.toTensor(), layer)) put_into(result.toTensor(), layer, is_first);
      break;
    }
    return results;
  }

 private:
  void refuse_contradictions(const vernier::Options& options) const {
    const auto given = [&](const char* key, bool fits, const char* why) {
      if (options.given(key) && !fits) options.refuse(key, why);
    };
    const bool is_slow = what_ == "slow", has_place = !is_of_step();
    given("at_batch", at_step_ == 0, "and `at_step` both say when; give one");
    given("where", has_place, "does not fit a slow step or an exception, which are of the step as a whole");
    given("layer", has_place && where_ != "loss" && where_ != "input", "is for activations, gradients and weights");
    given("times", every_ > 0, "needs `every`");
    given("elements", has_place && where_ != "loss", "is for tensors with several");
    given("seed", has_place && where_ != "loss", "is for tensors with several elements");
    given("factor", what_ == "spike", "is for what = \"spike\"");
    given("exponent", what_ == "underflow", "is for what = \"underflow\"");
    given("bit", what_ == "bit_flip", "is for what = \"bit_flip\"");
    given("milliseconds", is_slow, "is for what = \"slow\"");
    given("transient", !has_place || where_ != "weight", "does not fit a weight, which stays as it is made");
  }

  bool is_of_step() const { return what_ == "slow" || what_ == "exception"; }  // not of a tensor
  bool is_of_parameter() const { return where_ == "gradient" || where_ == "weight"; }

  // Returns the weight of each layer, or its first parameter if it has no weight.
  std::vector<std::string> parameters_of(const Run& run) const {
    auto names = layers_.names();
    for (const auto& parameter : run.parameters) names.push_back(parameter.name);
    std::set<std::string> found;
    for (const auto& name : vernier::matching(names, layer_, *options_, "layer", "layer or parameter")) {
      std::string first;
      for (const auto& parameter : run.parameters) {
        if (parameter.name == name || parameter.name == name + ".weight") first = parameter.name;
        const auto dot = parameter.name.rfind('.');
        const auto layer = dot == std::string::npos ? "" : parameter.name.substr(0, dot);
        if (first.empty() && layer == name) first = parameter.name;
      }
      if (!first.empty()) found.insert(first);
    }
    return {found.begin(), found.end()};
  }

  // The step, or the batch; of several in an update the one that is due.
  std::int64_t number(const Run& run) const {
    if (at_batch_ == 0) return run.step + 1;
    for (auto batch = run.batches_drawn + 1; batch < run.batches_drawn + run.batches; ++batch) {
      if (is_due(batch)) return batch;
    }
    return run.batches_drawn + run.batches;
  }

  bool is_due(std::int64_t number) const {
    const auto after = number - std::max(at_step_, at_batch_);
    if (after == 0) return true;
    return after > 0 && every_ > 0 && after % every_ == 0 && (times_ == 0 || after / every_ < times_);
  }

  void begin(Run& run) {
    guard_.reset();  // left by a forward that threw
    is_for_loss_ = false;
    unmet_.clear();
    seen_.clear();
    unspoilt_.clear();
    const auto now = number(run);
    const bool is_once = transient_ || where_ == "weight" || what_ == "slow";
    if (!is_due(now) || (is_once && now <= last_)) return;
    last_ = now;
    has_come_ = true;
    run_ = &run;
    if (what_ == "slow") return sleep(run);
    if (what_ == "exception") throw Error("an exception is injected");
    if (where_ == "loss") is_for_loss_ = true;
    if (where_ == "input") change_input(run);
    if (where_ == "weight") change_weights(run);
    if (where_ == "gradient") watch_gradients(run);
    if (!where_.starts_with("activation")) return;
    unmet_.insert(targets_.begin(), targets_.end());
    guard_.emplace(layers_, *this);
  }

  void put_into(const torch::Tensor& output, const std::string& layer, bool is_first) {
    if (is_first && !torch::GradMode::is_enabled()) unspoilt_[layer] = output.detach().clone();
    if (where_ == "activation") {
      unmet_.erase(layer);
      const auto count = change(output.variable_data(), layer);
      if (is_first) notify(*run_, layer, count);
    } else if (output.requires_grad()) {  // else the one that is computed again has a graph, or none is met
      output.register_hook([this, layer](const torch::Tensor& gradient) { return changed(gradient, layer); });
    }
  }

  // True for the call that had the fault, when an activation checkpoint computes it again to the bit.
  bool is_repeat(const torch::Tensor& output, const std::string& layer) const {
    const auto bits = [](const torch::Tensor& tensor) { return tensor.detach().reshape({-1}).view(torch::kByte); };
    const auto& unspoilt = unspoilt_.at(layer);
    return output.sizes() == unspoilt.sizes() && output.scalar_type() == unspoilt.scalar_type() &&
           bits(output).equal(bits(unspoilt));
  }

  void sleep(Run& run) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds_));
    run.notice("injected", {{"what", what_}, {"milliseconds", milliseconds_}},
               c10::str("the step was made ", milliseconds_, " ms longer"));
  }

  void change_input(Run& run) {
    for (auto& tensor : run.micro_batch.tensors) {
      if (!tensor.is_floating_point()) continue;
      tensor = tensor.clone();  // the task's own may be the same
      return notify(run, "", change(tensor, "input"));
    }
  }

  void change_weights(Run& run) {
    for (auto& parameter : run.parameters) {
      if (std::ranges::find(targets_, parameter.name) == targets_.end()) continue;
      const auto change_one = [&](const torch::Tensor& weight) {
        weight.unsafeGetTensorImpl()->bump_version();  // past autograd, but not unnoticed: the step cannot be undone
        return change(weight.variable_data(), parameter.name);
      };
      const auto count = change_one(parameter.model);
      const bool has_master = !parameter.best().is_same(parameter.model);
      if (has_master) change_one(parameter.best());
      notify(run, parameter.name, count);
    }
  }

  void watch_gradients(Run& run) {
    for (auto& parameter : run.parameters) {
      if (std::ranges::find(targets_, parameter.name) == targets_.end()) continue;
      const auto name = parameter.name;
      if (!parameter.model.requires_grad()) {
        vernier::refuse(name + " is frozen, so it has no gradient to change: name another layer in `layer`");
      }
      unmet_.insert(name);
      seen_.insert(name);
      const auto hook = parameter.model.register_hook(
          [this, name](const torch::Tensor& gradient) { return changed(gradient, name); });
      hooks_.emplace_back(parameter.model, hook);
    }
  }

  // In backward.
  torch::Tensor changed(const torch::Tensor& gradient, const std::string& name) {
    if (unmet_.erase(name) == 0) return gradient;
    auto other = gradient.detach().clone();
    notify(*run_, name, change(other, name));
    return other;
  }

  void remove_hooks() {
    for (auto& [tensor, hook] : hooks_) tensor.remove_hook(hook);
    hooks_.clear();
  }

  double multiplier() const { return what_ == "spike" ? factor_ : std::ldexp(1.0, static_cast<int>(exponent_)); }
  double value() const { return what_ == "inf" ? HUGE_VAL : std::nan(""); }
  bool is_value() const { return what_ == "inf" || what_ == "nan"; }
  bool is_flip() const { return what_ == "bit_flip"; }

  std::int64_t change_loss(Run& run) const {
    if (is_flip()) return change(run.micro_batch_loss.variable_data(), "loss");
    run.micro_batch_loss = run.micro_batch_loss * (is_value() ? value() : multiplier());
    return 1;
  }

  // In place. Returns how many elements it was.
  std::int64_t change(torch::Tensor tensor, const std::string& name) const {
    const torch::NoGradGuard no_grad;
    const auto all = tensor.numel(), wanted = elements_ > 0 ? elements_ : is_value() || is_flip() ? 1 : all;
    const auto count = std::min(wanted, all);
    const auto mask = drawn(all, count, name).reshape(tensor.sizes()).to(tensor.device());
    if (is_value()) {
      tensor.masked_fill_(mask, value());
    } else if (is_flip()) {
      tensor.masked_scatter_(mask, flipped(tensor.masked_select(mask), name));
    } else {
      tensor.copy_(torch::where(mask, tensor * multiplier(), tensor));
    }
    return count;
  }

  // One bit of each element.
  torch::Tensor flipped(const torch::Tensor& elements, const std::string& name) const {
    auto on_host = elements.to(torch::kCPU).contiguous();
    const auto size = static_cast<std::uint64_t>(on_host.element_size());
    auto* bytes = static_cast<unsigned char*>(on_host.mutable_data_ptr());
    auto state = seed_of(name + "/bit");
    for (std::int64_t i = 0; i < on_host.numel(); ++i, bytes += size) {
      const auto bit = (bit_ < 0 ? split_mix(state) : static_cast<std::uint64_t>(bit_)) % (8 * size);
      bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1U << (bit % 8)));
    }
    return on_host.to(elements.device());
  }

  std::uint64_t seed_of(const std::string& name) const {
    auto state = static_cast<std::uint64_t>(seed_) ^ (static_cast<std::uint64_t>(last_) << 32);
    for (const char c : name) state = split_mix(state) ^ static_cast<unsigned char>(c);
    return state;
  }

  // The same elements in the same step of any run.
  torch::Tensor drawn(std::int64_t all, std::int64_t count, const std::string& name) const {
    if (count == all) return torch::ones({all}, torch::kBool);
    auto state = seed_of(name);
    auto mask = torch::zeros({all}, torch::kBool);
    bool* chosen = mask.data_ptr<bool>();
    for (std::int64_t left = count; left > 0;) {
      bool& one = chosen[split_mix(state) % static_cast<std::uint64_t>(all)];
      left -= one ? 0 : 1;
      one = true;
    }
    return mask;
  }

  // Once a step, though an optimizer or a recorder may run it again.
  void notify(Run& run, const std::string& layer, std::int64_t count) const {
    if (is_again_) return;
    vernier::Notice::Details details{{"what", what_}, {"where", where_}};
    if (!layer.empty()) details.emplace_back(is_of_parameter() ? "parameter" : "layer", layer);
    if (!is_value() && !is_flip()) details.emplace_back("factor", multiplier());
    if (where_ != "loss") details.emplace_back("elements", count);
    run.notice(
        "injected", std::move(details),
        c10::str(what_, " is injected into the ", where_, layer.empty() ? "" : " of ", layer, ", elements: ", count));
  }

  void refuse_without_numbers(const Run& run) const {
    const auto is_real = [](const torch::Tensor& tensor) { return tensor.is_floating_point(); };
    if (std::ranges::any_of(run.micro_batch.tensors, is_real)) return;
    options_->refuse("where",
                     "is \"input\", and this task's batches have no floating-point numbers (they are tokens or "
                     "labels); take \"activation\" with the first layer");
  }

  // As below, but the run is over. A run that a signal ended can be resumed.
  void warn_if_it_never_came(const Run& run) const {
    if (has_come_ || (run.step < run.steps && !run.control->finishes())) return;
    const bool is_of_batch = at_batch_ > 0;
    warn("nothing was injected in this run, which ended after ", is_of_batch ? "batch " : "step ",
         is_of_batch ? run.batches_drawn : run.step, ": ", is_of_batch ? "at_batch" : "at_step", " is ",
         is_of_batch ? at_batch_ : at_step_);
  }

  // A fault that was asked for and did not come would make a test of nothing.
  void refuse_unmet() const {
    if (unmet_.empty()) return;
    const auto& name = *unmet_.begin();
    throw Error(
        "nothing was injected: " +
        std::string(seen_.count(name) == 0 ? "forward did not use the layer `" : "backward gave no gradient for `") +
        name + "` in this step");
  }

  std::string what_, where_, layer_;
  std::int64_t at_step_, at_batch_, every_, times_, elements_, seed_;
  double factor_;
  std::int64_t exponent_, bit_, milliseconds_;
  bool transient_;
  std::optional<vernier::Options> options_;
  vernier::Layers layers_;
  std::vector<std::string> targets_;
  std::int64_t last_ = 0;  // the step or batch in which it came last
  bool has_come_ = false;  // ever
  bool has_begun_ = false, is_again_ = false, is_for_loss_ = false;
  Run* run_ = nullptr;
  std::set<std::string> unmet_, seen_;
  vernier::Tensors unspoilt_;  // outputs of this step without the fault, where they are computed again
  std::optional<vernier::Intercept> guard_;
  std::vector<std::pair<torch::Tensor, unsigned>> hooks_;
};

}  // namespace

VERNIER_PLUGIN(Inject, "inject", "1.0.0")
