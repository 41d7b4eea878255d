// lbfgs: limited-memory BFGS by torch::optim::LBFGS. Each update computes the same batch several times, so it suits
// small models whose loss has no dropout, on the whole data as one batch. Source: Nocedal and Wright, Numerical
// Optimization, 2nd edition, algorithms 7.4 and 3.5.
//   learning_rate = 1     length of a step; with strong_wolfe, of the first that is tried
//   max_iter = 20         iterations in an update
//   max_eval = 0          passes over the batch in an update; 0: 1.25 max_iter. A line search may exceed it
//   tolerance_grad = 1e-7   an update ends where no element of the gradient is larger
//   tolerance_change = 1e-9   an update ends where loss or weights change by less
//   history_size = 100    steps that are remembered: two vectors of all weights for each
//   line_search = "none"  none | strong_wolfe
//   group = []            [[optimizer.group]] tables, for parameters by name. The last one that matches holds
//     group.match, required: names of parameters, * for any text
//     group.frozen = false   true: no gradient and no update. There are no other options for groups
#include <torch/optim/lbfgs.h>
#include <vernier/parameter_groups.h>
#include <vernier/sdk.h>

#include <deque>

class LbfgsPlugin final : public vernier::Optimizer {
 public:
  explicit LbfgsPlugin(vernier::Options& options)
      : learning_rate_(options.get("learning_rate", 1.0, "length of a step, before schedules", vernier::above(0))),
        groups_(options, [](vernier::Options&) {}) {
    settings_.max_iter(options.get("max_iter", 20, "iterations in an update", vernier::at_least(1)));
    const auto passes =
        options.get("max_eval", 0, "passes over the batch in an update; 0: 1.25 max_iter", vernier::at_least(0));
    settings_.max_eval(passes == 0 ? settings_.max_iter() * 5 / 4 : passes);
    settings_.tolerance_grad(
        options.get("tolerance_grad", 1e-7, "largest element of the gradient at the end", vernier::at_least(0)));
    settings_.tolerance_change(
        options.get("tolerance_change", 1e-9, "least change of loss or weights", vernier::at_least(0)));
    settings_.history_size(options.get("history_size", 100, "steps that are remembered", vernier::at_least(1)));
    const auto search =
        options.choose("line_search", "none", {"none", "strong_wolfe"}, "how the length of a step is found");
    if (search != "none") settings_.line_search_fn(search);
  }

  std::vector<vernier::MetricInfo> metrics() const override {
    return {{.name = "learning_rate", .meaning = "learning rate of the first parameter group, schedules included"}};
  }
  void prepare(vernier::Run& run) override {
    const auto numbers = groups_.assign(run, id());
    std::vector<torch::Tensor> parameters;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] == vernier::ParameterGroups::frozen) continue;
      refuse_unfit(run.parameters[i]);
      parameters.push_back(run.parameters[i].master);
    }
    optimizer_ = std::make_unique<torch::optim::LBFGS>(std::move(parameters), settings_);
  }

  void step(vernier::Run& run) override {
    const double rate = learning_rate_ * run.learning_rate_factor;
    run.metrics.set("learning_rate", rate);
    if (is_skipped(run)) return;
    auto& group = optimizer_->param_groups().front();
    group.options().set_lr(rate);
    auto before = save();  // LibTorch replaces these tensors, and changes prev_flat_grad alone in place
    if (before.has("prev_flat_grad")) before.put("prev_flat_grad", before.tensor("prev_flat_grad").clone());
    std::vector<torch::Tensor> weights;
    for (const auto& parameter : group.params()) weights.push_back(parameter.detach().clone());
    bool is_first = true;  // the trainer has computed the gradients where the weights are
    optimizer_->step([&] { return std::exchange(is_first, false) ? run.loss : run.control->recompute(); });
    if (!is_skipped(run)) return;
    const torch::NoGradGuard no_grad;  // a later pass overflowed, or was vetoed
    for (std::size_t i = 0; i < weights.size(); ++i) group.params()[i].copy_(weights[i]);
    load(before);
  }

  vernier::State save() const override {
    vernier::State state;
    const auto* own = memory();
    if (own == nullptr) return state;
    state.put("func_evals", own->func_evals());
    state.put("n_iter", own->n_iter());
    state.put("t", own->t());
    state.put("prev_loss", own->prev_loss());
    for (const auto& [name, tensor] :
         {std::pair{"d", own->d()}, {"H_diag", own->H_diag()}, {"prev_flat_grad", own->prev_flat_grad()}}) {
      if (tensor.defined()) state.put(name, tensor);
    }
    put_all(state, "old_dirs", own->old_dirs());
    put_all(state, "old_stps", own->old_stps());
    put_all(state, "ro", own->ro());
    return state;
  }
  void load(const vernier::State& state) override {
    refuse_other_size(state);
    optimizer_->state().clear();
    if (state.tensors.empty()) return;
    const auto copied = copies(state);
    const auto tensor_or_none = [&](const char* name) {
      return copied.has(name) ? copied.tensor(name) : torch::Tensor();
    };
    auto own = std::make_unique<torch::optim::LBFGSParamState>();
    own->func_evals(copied.integer("func_evals"));
    own->n_iter(copied.integer("n_iter"));
    own->t(copied.real("t"));
    own->prev_loss(copied.real("prev_loss"));
    own->d(tensor_or_none("d"));
    own->H_diag(tensor_or_none("H_diag"));
    own->prev_flat_grad(tensor_or_none("prev_flat_grad"));
    own->old_dirs(all(copied, "old_dirs"));
    own->old_stps(all(copied, "old_stps"));
    own->ro(all(copied, "ro"));
    optimizer_->state()[first().unsafeGetTensorImpl()] = std::move(own);
  }

 private:
  static bool is_skipped(const vernier::Run& run) {
    return run.skip_update.defined() && run.skip_update.item<double>() != 0;
  }
  static void put_all(vernier::State& state, const std::string& name, const std::deque<torch::Tensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) state.put(c10::str(name, "/", i), tensors[i]);
  }
  static std::deque<torch::Tensor> all(const vernier::State& state, const std::string& name) {
    std::deque<torch::Tensor> tensors;
    while (state.has(c10::str(name, "/", tensors.size()))) {
      tensors.push_back(state.tensor(c10::str(name, "/", tensors.size())));
    }
    return tensors;
  }
  vernier::State copies(const vernier::State& state) const {
    vernier::State copied;
    for (const auto& [name, tensor] : state.tensors) {
      const bool is_count = tensor.scalar_type() == torch::kInt64 || tensor.scalar_type() == torch::kFloat64;
      copied.put(name, tensor.dim() == 0 && is_count ? tensor.clone() : tensor.to(first().device(), false, true));
    }
    return copied;
  }

  // Its memory is under the first parameter, as in PyTorch.
  const torch::Tensor& first() const { return optimizer_->param_groups().front().params().front(); }
  const torch::optim::LBFGSParamState* memory() const {
    const auto found = optimizer_->state().find(first().unsafeGetTensorImpl());
    if (found == optimizer_->state().end()) return nullptr;
    return static_cast<const torch::optim::LBFGSParamState*>(found->second.get());
  }

  // Between the passes of an update, commit() may free or round weights in 16 bits.
  void refuse_unfit(const vernier::Parameter& parameter) const {
    const auto dtype = parameter.master.scalar_type();
    const bool has_memory = parameter.master.numel() == 0 || parameter.master.storage().nbytes() > 0;
    if (has_memory && (dtype == torch::kFloat32 || dtype == torch::kFloat64)) return;
    vernier::refuse(id() + " needs weights in float32, and the precision keeps " + parameter.name +
                        " in 16 bits: use level O1 or O2",
                    id());
  }
  void refuse_other_size(const vernier::State& state) const {
    std::int64_t elements = 0;
    for (const auto& parameter : optimizer_->param_groups().front().params()) elements += parameter.numel();
    if (!state.has("d") || state.tensor("d").numel() == elements) return;
    throw vernier::Error(c10::str("the saved state is of ", state.tensor("d").numel(), " weights, and ", elements,
                                  " are trained: freeze the same parameters as before"));
  }

  double learning_rate_;
  torch::optim::LBFGSOptions settings_;
  vernier::ParameterGroups groups_;
  std::unique_ptr<torch::optim::LBFGS> optimizer_;
};

VERNIER_PLUGIN(LbfgsPlugin, "lbfgs", "1.0.0")
