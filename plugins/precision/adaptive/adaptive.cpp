// adaptive: measures float32 and dtypes of fewer bits on the real batch, chooses one policy, and gives its place to it:
// to precision/fp32, bf16 or fp16, with rules for single layers. It says in one line what it chose and why.
//
//   candidates = ["bf16"]     of bf16, fp16 and fp8, besides float32; fp16 needs a loss scaler; with fp8, layers that
//                             cannot compute in it compute in bf16
//   error_budget = 0.02       relative root mean square error of outputs and of gradients, against float32
//   min_gain = 0.02           share of the time that fewer bits must save; below 0: the share that they may cost
//   measure_steps = 3         first steps, which compute in float32; the last of them is measured
// The other options are those of vernier/mixed_precision.h, without level and rounding, and of
// vernier/precision_rules.h. A rule takes precedence over what is measured.
//
// In the step that is measured, each product and each attention is computed in every candidate, forward and backward. A
// layer that exceeds the error budget, or overflows, stays in float32. Then the gradients of the whole batch are
// computed under each policy that is left, in turn, 5 to 15 times. A policy is chosen if the median of its times saves
// min_gain, and if at least about 19 of 20 such medians would save something. Otherwise all stays in float32.
//
// Times differ from run to run, and so may the choice. <run.output>/adaptive.toml has it as a plain [precision] table.
#include <ATen/DeviceAccelerator.h>
#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <vernier/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <system_error>

#include "plans.h"

namespace {

using namespace adaptive;
using vernier::Operation;
using vernier::Run;
using vernier::Values;
using Clock = std::chrono::steady_clock;

class Adaptive final : public vernier::MixedPrecision {
 public:
  explicit Adaptive(vernier::Options& options) : MixedPrecision(options, torch::kFloat32, Levels::none) {
    choices_.error_budget = options.get("error_budget", 0.02, "relative RMS error against float32", vernier::above(0));
    choices_.min_gain =
        options.get("min_gain", 0.02, "share of the time that fewer bits must save; below 0: may cost", {.max = 1});
    measure_steps_ =
        options.get("measure_steps", 3, "first steps, in float32; the last of them is measured", vernier::at_least(1));
    read_candidates(options);
    keep_options(options);
  }

  bool needs_scaler() const override { return MixedPrecision::needs_scaler() || may_use(Use::fp16); }

  void attach(vernier::Bus& bus) override {
    MixedPrecision::attach(bus);
    bus.on(vernier::Event::StepBegin, [this](Run& run) {
      is_measuring_ = run.control != nullptr && !has_decided_ && steps_ + 1 >= measure_steps_;
      if (is_measuring_) sites_.clear();
    });
    bus.on(vernier::Event::GradientsReady, [this](Run& run) {
      if (std::exchange(is_measuring_, false)) decide(run);
    });
    bus.on(vernier::Event::StepEnd, [this](Run&) { steps_ += 1; });
  }

  void prepare(Run& run) override {
    if (run.control != nullptr && run.control->ranks() > 1) {
      vernier::refuse(
          "precision/adaptive cannot train on several ranks: each would measure, and decide, something else; use the "
          "precision that it chose in one process");
    }
    MixedPrecision::prepare(run);
    device_ = run.device;
    fp8_refusal_ = may_use(Use::fp8) ? vernier::float8_refusal(vernier::float8_recipe("delayed"), device_) : "";
    if (!fp8_refusal_.empty()) {
      choices_.named -= std::erase(choices_.uses, Use::fp8);
      info("fp8 is not measured: it ", fp8_refusal_);
    }
    if (run.control != nullptr) run.control->want_rerun(*this);
  }

  void check(const Run& run) override {
    if (run.steps > 0 && run.step + measure_steps_ > run.steps) {
      warn("it never decides: measure_steps = ", measure_steps_, ", and the run has ", run.steps, " steps");
    }
  }

  std::string describe() const override {
    return c10::str("float32; after ", measure_steps_,
                    " steps the policy that measured fastest within the error budget");
  }

  vernier::State save() const override {
    auto state = MixedPrecision::save();
    state.put("steps", steps_);
    return state;
  }
  void load(const vernier::State& state) override {
    MixedPrecision::load(state);
    steps_ = state.integer("steps");
    has_decided_ = false;  // if the step that decided is undone, so is its swap
  }

  torch::Tensor forward(const std::function<torch::Tensor()>& body) override {
    return tried_ != nullptr ? tried_->forward(body) : MixedPrecision::forward(body);
  }

 protected:
  bool intercepts() const override { return is_measuring_ || MixedPrecision::intercepts(); }

  Values call(const Operation& operation, Values arguments) override {
    const bool is_measured = is_measuring_ && torch::GradMode::is_enabled() && rules().find(operation) == nullptr &&
                             is_product(operation.name());
    if (!is_measured) return MixedPrecision::call(operation, std::move(arguments));
    auto& site = site_of(operation);
    if (!site.measured.empty()) return MixedPrecision::call(operation, std::move(arguments));
    site.measured.resize(choices_.uses.size());
    auto repeated = std::make_shared<Repeated>(operation, arguments);
    auto results = MixedPrecision::call(operation, std::move(arguments));
    if (results[0].isTensor() && results[0].toTensor().requires_grad()) {
      results[0].toTensor().register_hook([this, &site, repeated](const torch::Tensor& gradient) {
        if (gradient.defined()) measure(site, *repeated, gradient);
      });
    }
    return results;
  }

 private:
  bool may_use(Use use) const { return std::ranges::find(choices_.uses, use) != choices_.uses.end(); }

  // Operators that autocast computes in its dtype, or that are made of those.
  static bool is_product(std::string_view op) {
    for (const char* kind : {"conv", "_conv", "lstm", "gru", "rnn", "scaled_dot_product"}) {
      if (op.starts_with(kind)) return true;
    }
    constexpr std::array ops = {"linear", "matmul",  "mm",     "bmm",      "addmm",
                                "addbmm", "baddbmm", "einsum", "bilinear", "linear_cross_entropy"};
    return std::ranges::find(ops, op) != ops.end();
  }

  void read_candidates(vernier::Options& options) {
    auto& uses = choices_.uses;
    for (const auto& name : options.get("candidates", std::vector<std::string>{"bf16"}, "dtypes besides float32")) {
      const auto use = name == "bf16" ? Use::bf16 : name == "fp16" ? Use::fp16 : name == "fp8" ? Use::fp8 : Use::fp32;
      if (use == Use::fp32) options.refuse("candidates", "may name bf16, fp16 and fp8, and has \"" + name + "\"");
      if (!may_use(use)) uses.push_back(use);
    }
    choices_.named = uses.size();
    if (may_use(Use::fp8) && !may_use(Use::bf16)) uses.push_back(Use::bf16);  // for what fp8 cannot compute
  }

  // Keeps the options that the user gave, for the policy that follows. Reading a copy of them declares nothing.
  void keep_options(vernier::Options options) {
    for (const char* key : {"weight_casts", "attention"}) {
      if (options.given(key)) choices_.kept[key] = {options.get(key, "", ""), ""};
    }
    if (options.given("cast_inputs")) choices_.kept["cast_inputs"] = {options.get("cast_inputs", false, ""), ""};
    options.tables("rule", "", [this](vernier::Options& one) {
      vernier::Table rule;
      for (const char* key : {"match", "op", "use", "kernel"}) {
        if (one.given(key)) rule[key] = {one.get(key, "", ""), ""};
      }
      if (one.given("cast_outputs")) rule["cast_outputs"] = {one.get("cast_outputs", false, ""), ""};
      choices_.rules.push_back({std::move(rule), ""});
    });
  }

  Site& site_of(const Operation& operation) {
    const auto is_it = [&](const Site& site) { return site.layer == operation.layer() && site.op == operation.name(); };
    const auto found = std::ranges::find_if(sites_, is_it);
    if (found != sites_.end()) return *found;
    return sites_.emplace_back(Site{std::string(operation.layer()), std::string(operation.name())});
  }

  void synchronize() const {
    if (!device_.is_cpu()) at::accelerator::synchronizeDevice(device_.index());
  }

  // Called in the backward pass, with the gradient of the operation's output. All dtypes are run in each round, so that
  // a noisy machine disturbs all alike. The first round may prepare kernels.
  void measure(Site& site, const Repeated& repeated, const torch::Tensor& gradient) const {
    constexpr int rounds = 3;
    const auto& uses = choices_.uses;
    // A gradient that is not finite left the range here or in a later layer. Then nothing can be compared.
    const bool is_finite = gradient.isfinite().all().item<bool>();
    std::vector<torch::Tensor> exact;
    for (std::size_t k = 0; k < rounds * uses.size(); ++k) {
      auto& [seconds, error] = site.measured[k % uses.size()];
      const auto use = uses[k % uses.size()];
      if (!repeated.fits(use)) continue;
      try {
        synchronize();
        const auto start = Clock::now();
        const auto got = repeated.run(use, gradient);
        synchronize();
        seconds = std::min(seconds, std::chrono::duration<double>(Clock::now() - start).count());
        if (exact.empty()) exact = got;
        if (k >= uses.size() || !is_finite) continue;
        error = 0;
        for (std::size_t i = 0; i < got.size(); ++i) error = std::max(error, error_of(got[i], exact[i]));
      } catch (const c10::Error&) {
        if (use == Use::fp32) throw;  // the device has no kernel for another dtype
      }
    }
  }

  void decide(Run& run) {
    std::erase_if(sites_, [](const Site& site) { return site.measured[0].seconds == HUGE_VAL; });  // had no gradient
    auto plans = plans_for(sites_, choices_);
    for (auto& plan : plans) plan.policy->prepare(run);
    const auto repeats = choice_of_replayed(run, plans);
    if (repeats == plans.size()) time(run, plans);
    if (run.is_stopping()) return;  // a resumed run measures again
    has_decided_ = true;
    const auto best = repeats < plans.size() ? repeats : fastest(plans, choices_.min_gain);
    const auto reason = repeats < plans.size() ? "the run that is replayed chose it" : reason_for(plans, best);
    const auto line = c10::str("from step ", run.step + 2, " on ", text_of(plans[best]), ", because ", reason);
    info(line);
    write(run, plans[best], line);
    run.control->swap({{"precision", {plans[best].table, id()}}});
  }

  // A replay makes the choice of its run, if it is one that does not hang on times of single layers.
  static std::size_t choice_of_replayed(const Run& run, const std::vector<Plan>& plans) {
    if (run.replayed_from.empty()) return plans.size();
    std::ifstream file(run.replayed_from + "/adaptive.toml");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto is_it = [&](const Plan& plan) { return text.find(plan.toml() + "\n#") != std::string::npos; };
    return static_cast<std::size_t>(std::ranges::find_if(plans, is_it) - plans.begin());
  }

  // Computes the gradients under all plans in turn, until it is clear which is faster, or 15 times.
  void time(Run& run, std::vector<Plan>& plans) {
    constexpr std::size_t fewest = 5, most = 15;
    const auto is_clear = [&](const Plan& plan) {
      return &plan == &plans[0] || ratio(plan, plans[0]).is_clear(choices_.min_gain);
    };
    for (std::size_t round = 0; plans.size() > 1 && round <= most && !run.is_stopping(); ++round) {
      for (auto& plan : plans) {
        const double seconds = plan.failure.empty() ? time_of(run, plan) : HUGE_VAL;
        if (round > 0) plan.seconds.push_back(seconds);                        // the first one prepares kernels
        if (!plan.failure.empty()) std::ranges::fill(plan.seconds, HUGE_VAL);  // it is never chosen
      }
      if (round >= fewest && std::ranges::all_of(plans, is_clear)) break;
    }
  }

  double time_of(Run& run, Plan& plan) {
    tried_ = plan.policy.get();
    const auto back = c10::make_scope_exit([this] { tried_ = nullptr; });
    Clock::time_point times[2];
    const auto note = [&](int which) {
      synchronize();
      times[which] = Clock::now();
    };
    try {
      run.control->rerun([&] { note(0); }, [&] { note(1); });
    } catch (...) {
      if (plan.base == Use::fp32) throw;
      plan.failure = vernier::caught().message;
    }
    plan.policy->commit(run);  // forgets copies of weights
    return std::chrono::duration<double>(times[1] - times[0]).count();
  }

  // "11 of 12 products compute in bf16; in fp32: h.0.attn"
  std::string text_of(const Plan& plan) const {
    std::map<std::string, std::vector<std::string>> names;
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      names[name_of(choices_.uses[plan.chosen[i]])].push_back(sites_[i].layer.empty() ? sites_[i].op : sites_[i].layer);
    }
    if (names.empty()) return "everything computes in fp32";
    const auto most = std::ranges::max_element(names, {}, [](const auto& each) { return each.second.size(); });
    const auto how_many = names.size() == 1 ? "all" : c10::str(most->second.size(), " of ", sites_.size());
    auto text = how_many + " products compute in " + most->first;
    for (const auto& [use, layers] : names) {
      if (use != most->first) text += "; in " + use + ": " + vernier::shortened(c10::Join(", ", layers), 200);
    }
    return text;
  }

  // Completes a sentence about the best plan.
  std::string reason_for(const std::vector<Plan>& plans, std::size_t best) const {
    if (choices_.named == 1) {
      return fp8_refusal_.empty() ? "`candidates` names nothing else"
                                  : "`candidates` names fp8 alone, which " + fp8_refusal_;
    }
    if (sites_.empty()) return "the model has no products";
    double largest = 0, least = HUGE_VAL;  // errors: of the plan, and of all candidates
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      for (std::size_t k = 1; k < choices_.uses.size(); ++k) {
        const auto error = sites_[i].measured[k].error;
        if (plans[best].chosen[i] == k) largest = std::max(largest, error);
        if (k < choices_.named) least = std::min(least, error);
      }
    }
    if (plans.size() == 1) {
      return c10::str(std::setprecision(3), "nothing else keeps to error_budget = ", choices_.error_budget,
                      ": the least error is ", least);
    }
    const auto& other =
        best > 0 ? plans[best] : *std::ranges::min_element(plans.begin() + 1, plans.end(), {}, &Plan::median);
    if (!other.failure.empty()) return other.name + " fails: " + vernier::shortened(other.failure, 200);
    const auto found = ratio(other, plans[0]);
    const auto text =
        c10::str(std::setprecision(3), "forward and backward take ", 1e3 * plans[0].median(), " ms in fp32 and ",
                 1e3 * other.median(), " ms in ", other.name, " (medians of ", other.seconds.size(), ")");
    if (best > 0) return c10::str(text, std::setprecision(3), "; the largest error is ", largest);
    if (found.low <= 1 && found.high >= 1) return text + ", a difference within the noise";
    return found.median < 1 ? c10::str(text, ", and min_gain is ", choices_.min_gain) : text;
  }

  // Without this file only measurements would be lost, so a failure is a warning and the run continues.
  void write(const Run& run, const Plan& plan, const std::string& line) const {
    if (run.output.empty()) return;
    const auto path = run.output + "/adaptive.toml";
    errno = 0;
    std::ofstream out(path);
    out << "# precision/adaptive in the run " << run.name << ": " << line << ".\n"
        << "# This is the policy as a plain table, for any run of this model: give the file after the run's own.\n"
        << (plan.toml().find("fp16") == std::string::npos
                ? ""
                : "# float16 needs a loss scaler, so the run must have one.\n")
        << plan.toml()
        << "\n# The measurements: seconds of forward and backward, and the relative RMS error against float32, "
           "which is inf\n# where a number overflows.\n";
    for (const auto& site : sites_) {
      out << "# " << site.op << (site.layer.empty() ? "" : " of ") << site.layer << '\n';
      for (std::size_t k = 0; k < choices_.uses.size(); ++k) {
        const auto& [seconds, error] = site.measured[k];
        if (seconds < HUGE_VAL)
          out << "#   " << name_of(choices_.uses[k]) << ": " << seconds << " s, error " << error << '\n';
      }
    }
    if (!out.flush()) warn(path, ": cannot be written: ", std::generic_category().message(errno));
  }

  Choices choices_;
  std::string fp8_refusal_;                     // why the device cannot compute in fp8
  std::int64_t measure_steps_ = 0, steps_ = 0;  // steps_: done under this policy
  bool is_measuring_ = false, has_decided_ = false;
  c10::Device device_ = torch::kCPU;
  Sites sites_;                               // products of the step that is measured
  vernier::MixedPrecision* tried_ = nullptr;  // the policy that computes in this policy's place
};

}  // namespace

VERNIER_PLUGIN(Adaptive, "adaptive", "2.0.0")
