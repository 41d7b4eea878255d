// adaptive: measures the products of each layer and each attention on the real batch, in every dtype and kernel: the
// time of forward and backward, and the distance of outputs and gradients from float32. Each then computes in the
// fastest one that keeps to the error budget. All other operations compute in the dtype of their inputs. Weights stay
// in float32.
//
//   candidates = ["bf16"]     of bf16 and fp16, besides float32; fp16 needs a loss scaler
//   attention = "auto"        auto measures both kernels; fused | matmul: only that one
//   error_budget = 0.02       relative root mean square error of outputs and of gradients, against float32
//   min_gain = 0.05           share of the time that a change must save
//   measure_steps = 3         first steps that are measured; they compute in float32
//   decided = []              [[precision.decided]] tables, which a run writes to <run.output>/adaptive.toml: the same
//                             decisions at the same steps, without measuring
//     decided.step = 0             steps finished when it took effect
//     decided.layer = ""           layer; empty: an operator without one
//     decided.op = ""              operator
//     decided.use = "fp32"         fp32 | bf16 | fp16
//     decided.kernel = "fused"     fused | matmul, for attention
// The other options are those of vernier/mixed_precision.h, without level and rounding, and of
// vernier/precision_rules.h. A rule takes precedence over what is measured.
//
// Times differ from run to run, and so may decisions. For a run that must repeat bit for bit, give adaptive.toml.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/module.h>
#include <vernier/error.h>
#include <vernier/mixed_precision.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iomanip>
#include <map>
#include <sstream>
#include <system_error>

#include "candidates.h"

namespace {

using namespace adaptive;
using vernier::Operation;
using vernier::PrecisionRule;
using vernier::Run;
using vernier::Values;

constexpr int rounds = 3;

// An operator with the weight of one layer, or an operator without a layer.
struct Site {
  std::string layer, op;
  PrecisionRule rule;  // the current rule
  std::string work;    // operator and shapes: sites with equal work take the same time
  std::vector<Measured> measured;
  bool seen = false;  // in this step

  std::string name() const { return layer.empty() ? op : layer; }
};

struct Decision {
  std::int64_t step;
  std::string layer, op;
  Candidate candidate;
};

class Adaptive final : public vernier::MixedPrecision {
 public:
  explicit Adaptive(vernier::Options& options)
      : MixedPrecision(options, torch::kFloat32, Levels::none),
        error_budget_(options.get("error_budget", 0.02, "relative RMS error against float32", vernier::above(0))),
        min_gain_(options.get("min_gain", 0.05, "share of the time that a change must save", vernier::between(0, 1))),
        measure_steps_(options.get("measure_steps", 3, "first steps that are measured", vernier::at_least(1))) {
    read_candidates(options);
    read_decisions(options);
  }

  bool needs_scaler() const override { return MixedPrecision::needs_scaler() || may_use(Use::fp16); }

  void attach(vernier::Bus& bus) override {
    MixedPrecision::attach(bus);
    bus.on(vernier::Event::StepBegin, [this](Run& run) { begin(run); });
    bus.on(vernier::Event::StepEnd, [this](Run& run) { end(run); });
  }

  void prepare(Run& run) override {
    if (run.control != nullptr && run.control->ranks() > 1) {
      vernier::refuse(
          "precision/adaptive cannot train on several ranks: each would measure, and decide, something else; use the "
          "precision that it chose in one process");
    }
    MixedPrecision::prepare(run);
    device_ = run.device;
    const auto& names = layers().names();
    for (const auto& decision : decisions_) {
      if (decision.op.empty()) vernier::refuse("[[precision.decided]]: `op` is needed, as linear");
      if (decision.layer.empty() || std::find(names.begin(), names.end(), decision.layer) != names.end()) continue;
      const auto near = vernier::nearest(decision.layer, names);
      vernier::refuse("[[precision.decided]]: no layer of this model is \"" + decision.layer + "\"" +
                      (near.empty() ? "" : "; did you mean \"" + near + "\"?") +
                      "; the file is of another model, run without it");
    }
    sites_.assign(vernier::operators().size() * (names.size() + 1), nullptr);
  }

  std::string describe() const override {
    return "each layer in the dtype and kernel that measured fastest within the error budget, float32 until then";
  }

  vernier::State save() const override {
    auto state = MixedPrecision::save();
    std::ostringstream decided;  // one entry, so that a swap hands over all of it or nothing
    decided << text_of_candidates() << '\n' << measurements_ << '\n';
    for (const auto& decision : decisions_) {
      decided << decision.step << ' ' << decision.op << ' ' << name_of(decision.candidate.use) << ' '
              << name_of(decision.candidate.kernel) << ' ' << decision.layer << '\n';
    }
    state.put("decisions", decided.str());
    state.put("step", step_);
    for (const auto& [work, seconds] : seconds_) state.put("seconds/" + work, torch::tensor(seconds, torch::kFloat64));
    return state;
  }

  void load(const vernier::State& state) override {
    MixedPrecision::load(state);
    step_ = state.integer("step");
    if (replays_) return take_decided();  // for a validation before the next step
    std::istringstream decided(state.text("decisions"));
    std::string line;
    // Nothing comes from a policy with other candidates: this one measures again.
    if (std::getline(decided, line) && line != text_of_candidates()) return;
    if (std::getline(decided, line)) measurements_ = std::stoll(line);
    decisions_.clear();
    while (std::getline(decided, line)) {
      std::istringstream words(line);
      Decision decision;
      std::string use, kernel;
      words >> decision.step >> decision.op >> use >> kernel;
      words.ignore(1);
      std::getline(words, decision.layer);
      decision.candidate = {use_named(use), kernel == "matmul" ? Kernel::matmul : Kernel::fused};
      take(site(decision.layer, decision.op), decision.candidate);
      decisions_.push_back(std::move(decision));
    }
    for (const auto& [work, tensor] : state.part("seconds").tensors) {
      const auto seconds = tensor.contiguous();
      seconds_[work].assign(seconds.const_data_ptr<double>(), seconds.const_data_ptr<double>() + seconds.numel());
    }
  }

 protected:
  bool intercepts() const override { return true; }

  Values call(const Operation& operation, Values arguments) override {
    if (rules().find(operation) != nullptr || !is_measured(operation.name())) {
      return MixedPrecision::call(operation, std::move(arguments));
    }
    Site& site = site_of(operation);
    if (!measuring_ || site.seen || !torch::GradMode::is_enabled()) {
      return apply(site.rule, operation, std::move(arguments));
    }
    site.seen = true;
    auto repeated = std::make_shared<Repeated>(operation, arguments);
    auto results = apply(site.rule, operation, std::move(arguments));
    if (results[0].isTensor() && results[0].toTensor().requires_grad()) {
      results[0].toTensor().register_hook([this, &site, repeated](const torch::Tensor& gradient) {
        if (gradient.defined()) measure(site, *repeated, gradient);
      });
    }
    return results;
  }

 private:
  bool may_use(Use use) const {
    const auto uses = [use](const Candidate& candidate) { return candidate.use == use; };
    return std::ranges::any_of(candidates_, uses) || std::ranges::any_of(decisions_, uses, &Decision::candidate);
  }

  static bool is_measured(std::string_view op) {
    constexpr std::array ops = {"linear",           "matmul",           "mm",     "bmm",    "addmm",
                                "baddbmm",          "conv1d",           "conv2d", "conv3d", "conv_transpose1d",
                                "conv_transpose2d", "conv_transpose3d", attention};
    return std::find(ops.begin(), ops.end(), op) != ops.end();
  }

  // Attention has two kernels, unless the option `attention` names one. The first candidate is float32.
  std::vector<Candidate> candidates_for(const Site& site) const {
    const auto& kernel = attention_kernel();
    std::vector<Candidate> all;
    for (const auto& candidate : candidates_) {
      const bool is_possible = site.op == attention ? kernel == "auto" || kernel == name_of(candidate.kernel)
                                                    : candidate.kernel == Kernel::fused;
      if (is_possible) all.push_back(candidate);
    }
    return all;
  }

  Site& site_of(const Operation& operation) {
    const auto index = static_cast<std::size_t>(operation.id()) * (layers().names().size() + 1) +
                       static_cast<std::size_t>(operation.layer_index() + 1);
    if (sites_.at(index) == nullptr)
      sites_[index] = &site(std::string(operation.layer()), std::string(operation.name()));
    return *sites_[index];
  }

  // In float32 until something else is decided.
  Site& site(const std::string& layer, const std::string& op) {
    auto [found, is_new] = by_name_.try_emplace({op, layer});
    Site& site = found->second;
    if (is_new) {
      site.layer = layer;
      site.op = op;
      site.measured.resize(candidates_for(site).size());
      take(site, candidates_for(site).front());
    }
    return site;
  }

  static void take(Site& site, const Candidate& candidate) {
    site.rule.use = candidate.use;
    site.rule.kernel = site.op == attention ? candidate.kernel : Kernel::policy;
  }
  static Candidate taken(const Site& site) {
    return {site.rule.use, site.op == attention ? site.rule.kernel : Kernel::fused};
  }

  // "fp32, fp32 by matmul, bf16, …, 0.02 0.05": what decisions depend on.
  std::string text_of_candidates() const {
    std::string text;
    for (const auto& candidate : candidates_) text += text_of(candidate) + ", ";
    const auto& kernel = attention_kernel();
    return c10::str(text, error_budget_, ' ', min_gain_, kernel == "auto" ? "" : " " + kernel);
  }

  void read_candidates(vernier::Options& options) {
    candidates_ = {{Use::fp32, Kernel::fused}, {Use::fp32, Kernel::matmul}};
    for (const auto& name : options.get("candidates", std::vector<std::string>{"bf16"}, "dtypes besides float32")) {
      if (name != "bf16" && name != "fp16")
        options.refuse("candidates", "may name bf16 and fp16, and has \"" + name + "\"");
      candidates_.push_back({use_named(name), Kernel::fused});
      candidates_.push_back({use_named(name), Kernel::matmul});
    }
  }

  void read_decisions(vernier::Options& options) {
    replays_ = options.given("decided");
    options.tables(
        "decided", "decisions of an earlier run, as it wrote them to adaptive.toml", [this](vernier::Options& one) {
          Decision decision;
          decision.step = one.get("step", 0, "steps finished when it took effect", vernier::at_least(0));
          decision.layer = one.get("layer", "", "layer; empty: an operator without one");
          decision.op = one.get("op", "", "operator, as linear");
          decision.candidate.use =
              use_named(one.choose("use", "fp32", {"fp32", "bf16", "fp16"}, "dtype to compute in"));
          const bool by_matmul = one.choose("kernel", "fused", {"fused", "matmul"}, "of attention") == "matmul";
          decision.candidate.kernel = by_matmul ? Kernel::matmul : Kernel::fused;
          if (one.given("op") && !is_measured(decision.op))
            one.refuse("op", "is none that is decided on: " + decision.op);
          decisions_.push_back(std::move(decision));
        });
  }

  void take_decided() {
    for (const auto& decision : decisions_) {
      if (decision.step <= step_) take(site(decision.layer, decision.op), decision.candidate);
    }
  }

  void begin(Run& run) {
    step_ = run.step;
    if (replays_) return take_decided();
    measuring_ = measurements_ < measure_steps_;
    if (!measuring_) return;
    for (auto& [name, site] : by_name_) {
      site.seen = false;
      site.measured.assign(site.measured.size(), {});
    }
  }

  void end(Run& run) {
    step_ = run.step;
    if (replays_) return take_decided();  // for a validation after this step
    if (!measuring_) return;
    measuring_ = false;
    measurements_ += 1;
    if (measurements_ == measure_steps_) decide(run);
  }

  // Called in the backward pass, with the gradient of the operation's output.
  void measure(Site& site, const Repeated& repeated, const torch::Tensor& gradient) {
    using Clock = std::chrono::steady_clock;
    const c10::impl::VirtualGuardImpl device(device_.type());
    const auto candidates = candidates_for(site);
    site.work = repeated.work();
    auto& seconds = seconds_[site.work];
    seconds.resize(candidates.size(), HUGE_VAL);
    std::vector<std::vector<torch::Tensor>> got(candidates.size());
    // All candidates in each round, so that a noisy machine disturbs all alike. The first round may prepare kernels.
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        if (!device_.is_cpu()) device.synchronizeDevice(device_.index());
        const auto start = Clock::now();
        got[i] = repeated.run(candidates[i], gradient);
        if (!device_.is_cpu()) device.synchronizeDevice(device_.index());
        seconds[i] = std::min(seconds[i], std::chrono::duration<double>(Clock::now() - start).count());
      }
    }
    // A gradient that is not finite left the range here or in a later layer. Then nothing can be compared.
    const bool is_finite = gradient.isfinite().all().item<bool>();
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      site.measured[i].overflows = !is_finite && candidates[i].use != Use::fp32;
      for (std::size_t k = 0; is_finite && k < got[i].size(); ++k) compare(got[i][k], got[0][k], site.measured[i]);
    }
  }

  void decide(Run& run) {
    std::vector<std::pair<Site*, std::size_t>> changes;
    for (auto& [name, site] : by_name_) {
      if (!site.seen || seconds_.count(site.work) == 0) continue;
      const auto chosen = choose(site);
      if (candidates_for(site)[chosen] != taken(site)) changes.emplace_back(&site, chosen);
    }
    if (changes.empty()) return;
    report(run, changes);
    for (const auto& [site, chosen] : changes) {
      const auto candidate = candidates_for(*site)[chosen];
      take(*site, candidate);
      decisions_.push_back({run.step, site->layer, site->op, candidate});
    }
    write(run);
  }

  // The fastest candidate that is good enough. The current one stays unless another saves min_gain of its time.
  std::size_t choose(const Site& site) const {
    const auto candidates = candidates_for(site);
    const auto now =
        static_cast<std::size_t>(std::find(candidates.begin(), candidates.end(), taken(site)) - candidates.begin());
    const auto is_good = [&](std::size_t i) {
      const auto& measured = site.measured[i];
      return candidates[i].use == Use::fp32 || (!measured.overflows && measured.error <= error_budget_);
    };
    const auto& seconds = seconds_.at(site.work);
    std::size_t best = is_good(now) ? now : 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (is_good(i) && seconds[i] < seconds[best] * (1 - min_gain_)) best = i;
    }
    return best;
  }

  // One notice for all sites that change alike.
  void report(Run& run, const std::vector<std::pair<Site*, std::size_t>>& changes) {
    struct Change {
      std::string names;
      double before = 0, after = 0, error = 0;
      bool overflows = false;
    };
    std::map<std::array<std::string, 3>, Change> alike;
    for (const auto& [site, chosen] : changes) {
      const auto candidates = candidates_for(*site);
      const auto now = std::find(candidates.begin(), candidates.end(), taken(*site)) - candidates.begin();
      auto& change = alike[{site->op, text_of(taken(*site)), text_of(candidates[chosen])}];
      const auto& old = site->measured[static_cast<std::size_t>(now)];
      const auto& fresh = site->measured[chosen];
      const auto& seconds = seconds_.at(site->work);
      change.names += (change.names.empty() ? "" : ", ") + site->name();
      change.before += seconds[static_cast<std::size_t>(now)];
      change.after += seconds[chosen];
      change.error = std::max({change.error, old.error, fresh.error});
      change.overflows = change.overflows || old.overflows;
    }
    for (const auto& [kind, change] : alike) {
      const double times_as_fast = change.before / change.after;
      run.notice("policy_changed",
                 {{"op", kind[0]},
                  {"layers", change.names},
                  {"from", kind[1]},
                  {"to", kind[2]},
                  {"times_as_fast", times_as_fast},
                  {"error", change.error},
                  {"overflow", std::string(change.overflows ? "yes" : "no")}},
                 c10::str(std::setprecision(3), kind[0], " of ", change.names, " changes from ", kind[1], " to ",
                          kind[2], ", which is ", times_as_fast, " times as fast; error ", change.error,
                          change.overflows ? "; it overflowed" : ""));
    }
  }

  // Without this file only measurements would be lost, so a failure is a warning and the run continues.
  void write(const Run& run) const {
    if (run.output.empty()) return;
    const auto path = run.output + "/adaptive.toml";
    errno = 0;
    std::ofstream out(path);
    out << "# What precision/adaptive decided in the run " << run.name
        << ". Given after the run's own files it makes the\n"
        << "# same decisions at the same steps, without measuring.\n[precision]\nuse = \"adaptive\"\n";
    for (const auto& decision : decisions_) {
      out << "\n[[precision.decided]]\nstep = " << decision.step << "\nlayer = \"" << decision.layer << "\"\nop = \""
          << decision.op << "\"\nuse = \"" << name_of(decision.candidate.use) << "\"\n";
      if (decision.op == attention) out << "kernel = \"" << name_of(decision.candidate.kernel) << "\"\n";
    }
    out << "\n# The last measurements: seconds of forward and backward, and the distance from float32 (relative RMS "
           "error, cosine,\n"
           "# share of numbers lost to 0, overflow).\n";
    for (const auto& [name, site] : by_name_) {
      const auto candidates = candidates_for(site);
      if (seconds_.count(site.work) == 0) continue;
      out << "# " << site.op << (site.layer.empty() ? "" : " of ") << site.layer << '\n';
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        const auto& measured = site.measured[i];
        out << "#   " << text_of(candidates[i]) << ": " << seconds_.at(site.work)[i] << " s, error " << measured.error
            << ", cosine " << measured.cosine << ", lost " << measured.underflow
            << (measured.overflows ? ", overflow\n" : "\n");
      }
    }
    if (!out.flush()) warn(path, ": cannot be written: ", std::generic_category().message(errno));
  }

  double error_budget_, min_gain_;
  std::int64_t measure_steps_;
  std::vector<Candidate> candidates_;  // the first is float32
  std::vector<Decision> decisions_;    // all so far, or those of the option `decided`
  bool replays_ = false;               // the option `decided` is given
  bool measuring_ = false;
  std::int64_t step_ = 0;  // the last that began
  std::int64_t measurements_ = 0;
  c10::Device device_ = torch::kCPU;
  std::map<std::pair<std::string, std::string>, Site> by_name_;  // by operator and layer
  std::map<std::string, std::vector<double>> seconds_;           // by work and candidate: the least of all measurements
  std::vector<Site*> sites_;                                     // by their ids
};

}  // namespace

VERNIER_PLUGIN(Adaptive, "adaptive", "1.0.0")
