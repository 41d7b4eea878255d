#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <vernier/draft/gradient_parts.h>
#include <vernier/error.h>
#include <vernier/host.h>

#include <utility>

namespace vernier {

namespace {

// The host knows no other way to say that a call comes too early or too late.
void require_gradients(const RunFacts& facts, const char* function) {
  if (facts.moment != RunFacts::Moment::other) return;
  throw Error(
      c10::str("run.", function, "() is called outside of its moment: the gradients hold from Scaler::unscale to ",
               "the optimizer's step, at GradientsReady for a listener"),
      Error::Kind::plugin);
}

void require_preparation(const RunFacts& facts, const char* function, const char* where) {
  if (facts.moment == RunFacts::Moment::any) return;
  throw Error(c10::str("run.", function, "() is called outside of its moment: call it in ", where),
              Error::Kind::plugin);
}

}  // namespace

Run::Run(RunFacts& facts)
    : step(facts.step),
      updates(facts.updates),
      epoch(facts.epoch),
      samples(facts.samples),
      tokens(facts.tokens),
      batches_drawn(facts.batches_drawn),
      last_update(facts.last_update),
      amp(facts.amp),
      name(facts.name),
      output(facts.output),
      replayed_from(facts.replayed_from),
      device(facts.device),
      replay_command(facts.replay_command),
      quiet(facts.quiet),
      validates(facts.validates),
      results_are_late(facts.results_are_late),
      seed(facts.seed),
      steps(facts.steps),
      model(facts.model),
      parameters(facts.parameters),
      measures(facts.measures),
      metric_infos(facts.metric_infos),
      validations(facts.validations),
      emulated(facts.emulated),
      control(facts.control),
      facts_(facts) {}

bool Run::is_stopping() const {
  return facts_.stop != nullptr && *facts_.stop != 0;
}

void Run::set_model(std::shared_ptr<torch::nn::Module> module) {
  if (module == nullptr) throw Error("run.set_model() got null; make the model first", Error::Kind::plugin);
  if (!facts_.parameters.empty()) {
    throw Error("run.set_model() is called again: a run has one model, which Task::prepare sets", Error::Kind::plugin);
  }
  facts_.model = std::move(module);
}

void Run::set_master(std::size_t i, torch::Tensor master) {
  require_preparation(facts_, "set_master", "Precision::prepare");
  auto& parameter = facts_.parameters.at(i);
  if (!master.defined() || master.sizes() != parameter.model.sizes()) {
    throw Error(c10::str("run.set_master() got ",
                         master.defined() ? c10::str("a tensor of shape ", master.sizes()) : "an undefined tensor",
                         " for ", parameter.name, ", whose shape is ", parameter.model.sizes(),
                         "; a master has the shape of its parameter"),
                Error::Kind::plugin);
  }
  parameter.master = std::move(master);
}

void Run::freeze(std::size_t i, bool frozen) {
  require_preparation(facts_, "freeze", "Optimizer::prepare");
  facts_.parameters.at(i).frozen = frozen;
}

void Run::skip_when(const torch::Tensor& flag) {
  if (!flag.defined() || flag.numel() != 1) {
    throw Error(c10::str("run.skip_when() got ",
                         flag.defined() ? c10::str("a tensor of shape ", flag.sizes()) : "an undefined tensor",
                         "; give one number, not 0 where the update is to be skipped"),
                Error::Kind::plugin);
  }
  const torch::NoGradGuard no_grad;
  const auto skips = flag.detach().reshape({}).ne(0).to(device, torch::kFloat32);
  skip_update = skip_update.defined() ? at::maximum(skip_update, skips) : skips;
}

void Run::notice(const char* name, Notice::Details details, std::string sentence) {
  notices.push_back({name, step, std::move(details), std::move(sentence)});
}

Better Run::better(const std::string& metric) const {
  if (!measures) return metric == "validation_loss" ? Better::lower : Better::unknown;
  std::vector<std::string> names;
  std::string all;
  for (const auto& measure : *measures) {
    if (measure.name == metric) return measure.better;
    names.push_back(measure.name);
    all += (all.empty() ? "" : ", ") + measure.name;
  }
  const auto text = "\"" + metric + "\" is not a metric of this run's validations; ";
  if (names.empty())
    refuse(text + "there are none, because no data is held out; set `validation_share` or `validation` of [task]");
  const auto near = nearest(metric, names);
  refuse(text + (near.empty() ? "they measure " : "did you mean \"" + near + "\"? They measure ") + all);
}

const MetricInfo* Run::metric_info(std::string_view metric) const {
  auto found = metric_infos.find(metric);
  if (found == metric_infos.end()) found = metric_infos.find(metric.substr(0, metric.find('/')));
  return found == metric_infos.end() ? nullptr : &found->second;
}

std::vector<torch::Tensor> Run::gradients() {
  require_gradients(facts_, "gradients");
  std::vector<torch::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const auto& parameter : parameters) {
    if (const auto& gradient = parameter.master.grad(); gradient.defined()) gradients.push_back(gradient);
  }
  norms.all.reset();  // whoever has them may change them
  if (grad_scale.defined() && !gradients.empty()) {
    const torch::NoGradGuard no_grad;
    auto here = gradients;
    std::erase_if(here, draft::is_elsewhere);
    // The same division as in the optimizers' kernels, to the last bit.
    if (!here.empty()) at::_foreach_div_(here, grad_scale);
  }
  grad_scale.reset();
  return gradients;
}

torch::Tensor Run::gradient_norm() {
  require_gradients(facts_, "gradient_norm");
  if (norms.before_clipping.defined()) return norms.before_clipping;
  const torch::NoGradGuard no_grad;
  if (norms.all.defined()) {
    const auto norm = grad_scale.defined() ? norms.all / grad_scale : norms.all;
    return norms.before_clipping = norm.to(torch::kFloat32);
  }
  const auto all = gradients();
  const auto of_each = at::zeros({std::ssize(all)}, torch::dtype(torch::kFloat64).device(device));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (draft::is_elsewhere(all[i])) continue;
    const auto values = all[i].is_sparse() ? all[i].coalesce().values() : all[i];
    of_each[static_cast<std::int64_t>(i)].copy_(
        at::linalg_vector_norm(values, 2, std::nullopt, false, torch::kFloat64).square());
  }
  draft::GradientParts::sum(of_each);
  auto squares = at::zeros({}, of_each.options());
  for (const auto& one : of_each.unbind()) squares.add_(one);  // in the order of the parameters, on any number of ranks
  return norms.before_clipping = squares.sqrt_().to(torch::kFloat32);
}

std::vector<std::string> Run::non_finite_gradients() const {
  std::vector<std::string> names;
  const auto is_bad = at::zeros({std::ssize(parameters)}, torch::kFloat64);
  auto* flags = is_bad.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& gradient = parameters[i].master.grad();
    const bool is_here = gradient.defined() && !draft::is_elsewhere(gradient);
    flags[i] = is_here && !gradient.isfinite().all().item<bool>() ? 1 : 0;
  }
  draft::GradientParts::sum(is_bad);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (flags[i] != 0) names.push_back(parameters[i].name);
  }
  return names;
}

}  // namespace vernier
