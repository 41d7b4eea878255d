#include "step_results.h"

#include <c10/util/StringUtil.h>
#include <vernier/error.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "plugin_calls.h"

namespace vernier {

namespace {

// Returns what the tensor is if it is not one number: "a tensor of shape [3]"; else "".
std::string other_than_number(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  if (tensor.layout() != torch::kStrided) return "a sparse tensor";
  return tensor.dim() == 0 ? "" : c10::str("a tensor of shape ", tensor.sizes());
}

bool is_on(const torch::Tensor& tensor, const torch::Device& device) {
  return tensor.device().type() == device.type();
}

// For the text of an error about a loss: who gave it, and what else to give.
constexpr struct {
  const char *gave, *remedy;
} of_loss[] = {
    {"its loss() returned ", "return the mean over the samples, a 0-dim tensor, as loss.mean() gives it"},
    {"its forward() returned ", "return the loss that `body` returns"},
    {"it set run.micro_batch_loss to ", "compute it from the loss that was there"},
    {"its scale() returned ", "return the loss times a scale"},
    {"its validate() returned ", "return the mean over the samples, a 0-dim tensor, as loss.mean() gives it"}};

// Returns what a number of the run is if it is not a float32 on the run's device; else "".
std::string other_than_float(const torch::Tensor& tensor, const torch::Device& device) {
  if (auto other = other_than_number(tensor); !other.empty()) return other;
  const bool is_float = tensor.scalar_type() == at::kFloat;
  return is_float && is_on(tensor, device) ? "" : c10::str("a ", tensor.scalar_type(), " on ", tensor.device());
}

[[noreturn]] void refuse_field(const char* field, const std::string& is, const std::string& remedy) {
  throw Error(c10::str("it set run.", field, " to ", is, "; ", remedy), Error::Kind::plugin);
}

void refuse_other_flag(const char* field, const torch::Tensor& flag, const Run& run, const char* remedy) {
  if (!flag.defined()) return;
  if (const auto other = other_than_float(flag, run.device); !other.empty()) refuse_field(field, other, remedy);
}

void refuse_wrong_found_inf(const Run& run) {
  constexpr const char* remedy = "set a 0-dim float32 on the run's device: 1 where a gradient is not finite, else 0";
  refuse_other_flag("found_inf", run.found_inf, run, remedy);
  if (!run.found_inf.defined() || !run.found_inf.is_cpu()) return;
  const float flag = *run.found_inf.const_data_ptr<float>();
  if (flag != 0 && flag != 1) refuse_field("found_inf", c10::str(flag), remedy);
}

// Gradients are known to be bad if their norm before clipping is not finite, or if the update is skipped.
bool are_gradients_bad(const Run& run) {
  const auto is_bad = [](const torch::Tensor& number, auto test) {
    return number.defined() && number.is_cpu() && test(number.item<double>());
  };
  return is_bad(run.norms.before_clipping, [](double norm) { return !std::isfinite(norm); }) ||
         is_bad(run.skip_update, [](double skips) { return skips != 0; });
}

void refuse_wrong_grad_scale(const Run& run) {
  constexpr const char* remedy = "the gradients are divided by it: set a 0-dim float32 above 0 on the run's device";
  refuse_other_flag("grad_scale", run.grad_scale, run, remedy);
  if (!run.grad_scale.defined() || !run.grad_scale.is_cpu()) return;
  const float scale = *run.grad_scale.const_data_ptr<float>();
  if ((std::isfinite(scale) && scale > 0) || (!(scale <= 0) && are_gradients_bad(run))) return;
  refuse_field("grad_scale", c10::str(scale), remedy);
}

bool is_alike(const torch::Tensor& gradient, const torch::Tensor& parameter) {
  return gradient.layout() == torch::kStrided && gradient.scalar_type() == parameter.scalar_type() &&
         gradient.device() == parameter.device() && gradient.sizes() == parameter.sizes();
}

thread_local const StepNumbers* watching = nullptr;  // the innermost

// Returns whose number `id` would replace, or "".
std::string owner_of(const Run& run, std::string_view name, bool is_set, const std::string& id) {
  constexpr std::string_view of_records[] = {"step", "time", "notices"};  // monitors write these beside the metrics
  thread_local std::map<std::string, std::string, std::less<>> setters;   // by metric, where nobody declares it
  const auto declared = run.metric_infos.find(name);
  const bool is_declared = declared != run.metric_infos.end();
  if (is_declared && declared->second.source == id) return "";
  const std::string sources = is_declared ? declared->second.source : "";  // "callback/a, callback/b"
  if (sources.starts_with("trainer") || std::ranges::count(of_records, name) > 0) return "the trainer";
  if (is_declared) return (", " + sources + ", ").find(", " + id + ", ") != std::string::npos ? "" : sources;
  auto setter = setters.find(name);
  if (setter == setters.end()) setter = setters.emplace(name, id).first;
  if (is_set && setter->second != id) return setter->second;
  if (setter->second != id) setter->second = id;
  return "";
}

std::string text_of(const torch::Tensor& tensor) {
  return c10::str(tensor.scalar_type(), " ", tensor.sizes(), " on ", tensor.device());
}

}  // namespace

void refuse_wrong_loss(const torch::Tensor& loss, const torch::Device& device, LossFrom from) {
  auto other = other_than_number(loss);
  if (other.empty() && from == LossFrom::validation) return;
  if (other.empty() && !loss.is_floating_point()) other = c10::str("a tensor of dtype ", loss.scalar_type());
  if (other.empty() && !is_on(loss, device))
    other = c10::str("a tensor on ", loss.device(), ", and the run is on ", device);
  if (other.empty() && loss.requires_grad()) return;
  if (other.empty() && from == LossFrom::task)
    throw Error("its loss has no gradient: it does not depend on run.model's parameters");
  const auto& [gave, remedy] = of_loss[static_cast<std::size_t>(from)];
  throw Error(c10::str(gave, other.empty() ? "a loss without a graph" : other, "; ", remedy));
}

void refuse_other_samples(const Batch& batch) {
  if (batch.samples < 1 && !batch.is_share) {
    throw Error(c10::str("its next() returned a batch of ", batch.samples,
                         " samples; set Batch::samples to the number of its samples, at least 1"));
  }
  for (std::size_t i = 0; i < batch.tensors.size(); ++i) {
    const auto& tensor = batch.tensors[i];
    if (tensor.defined() && tensor.dim() > 0 && tensor.size(0) == batch.samples) continue;
    throw Error(c10::str("its next() returned a batch of ", batch.samples, " samples with tensors[", i, "] ",
                         tensor.defined() ? c10::str("of shape ", tensor.sizes()) : "undefined",
                         "; set Batch::samples to the size of dimension 0, which is the sample in each tensor"));
  }
}

void refuse_wrong_scale(const Run& run) {
  refuse_wrong_found_inf(run);
  refuse_wrong_grad_scale(run);
}

std::optional<WrongGradient> wrong_gradient(const std::vector<Parameter>& parameters, torch::Tensor Parameter::*of) {
  for (const auto& parameter : parameters) {
    const auto& gradient = (parameter.*of).grad();
    if (!gradient.defined() || is_alike(gradient, parameter.*of)) continue;
    const auto text = "the gradient of " + parameter.name + " is ";
    if (gradient.layout() != torch::kStrided)
      return WrongGradient{text + "sparse, and only dense ones are trained with; make its layer with sparse = false",
                           false};
    return WrongGradient{text + text_of(gradient) + ", and the parameter " + text_of(parameter.*of) +
                             "; write into the gradient that is there, or assign one that is alike",
                         true};
  }
  return std::nullopt;
}

void separate_gradients(const std::vector<Parameter>& parameters) {
  std::vector<std::pair<const char*, const char*>> taken;  // by gradients whose storage others have too
  for (const auto& parameter : parameters) {
    auto& gradient = parameter.model.mutable_grad();
    if (!gradient.defined() || !gradient.has_storage() || gradient.storage().use_count() < 2) continue;
    const auto* begin = static_cast<const char*>(gradient.const_data_ptr());
    if (begin == nullptr) continue;  // another rank has it
    const auto* end = begin + gradient.storage().nbytes();
    if (gradient.is_contiguous()) end = begin + gradient.nbytes();
    const auto meets = [&](const auto& other) { return begin < other.second && other.first < end; };
    if (std::ranges::any_of(taken, meets)) gradient = gradient.detach().clone();
    taken.emplace_back(begin, end);
  }
}

StepNumbers::StepNumbers(const Run& run, const Plugin* plugin)
    : factor_(run.learning_rate_factor),
      has_graph_(run.micro_batch_loss.requires_grad()),
      run_(run),
      plugin_(plugin),
      outer_(std::exchange(watching, this)) {
  for (std::size_t i = 0; i < before_.size(); ++i) before_[i] = (run.*all[i]).unsafeGetTensorImpl();
}

StepNumbers::~StepNumbers() {
  watching = outer_;
}

void StepNumbers::refuse_metric(const Metrics& metrics, std::string_view name, bool is_set) {
  if (watching == nullptr || &watching->run_.metrics != &metrics) return;
  const bool listens = watching->plugin_ == nullptr;
  const auto event = listening_event();
  if (listens && (event == Event::RunBegin || event >= Event::EpochEnd)) {
    throw Error(
        c10::str("no monitor sees the metric \"", name, "\" of ", name_of(event), "; set it at StepEnd or Validated"),
        Error::Kind::plugin);
  }
  const auto& id = (listens ? listening_now() : watching->plugin_)->id();
  const auto owner = owner_of(watching->run_, name, is_set, id);
  if (owner.empty()) return;
  throw Error(
      c10::str("the metric \"", name, "\" is set by ", owner, ", whose number it would replace; give it another ",
               "name, such as \"", id.substr(id.find('/') + 1), "_", name, '"'),
      Error::Kind::plugin);
}

void StepNumbers::refuse_wrong(Event event, const Run& run) const {
  const auto has_changed = [&](std::size_t i) { return (run.*all[i]).unsafeGetTensorImpl() != before_[i]; };
  const bool lost_graph = has_graph_ && !run.micro_batch_loss.requires_grad();
  if (event == Event::LossReady && (has_changed(0) || lost_graph))
    refuse_wrong_loss(run.micro_batch_loss, run.device, LossFrom::listener);
  const auto refuse_unread = [event](const char* field, const char* remedy) {
    throw Error(c10::str("it set run.", field, " at ", name_of(event), ", after which nobody reads it; ", remedy),
                Error::Kind::plugin);
  };
  const bool is_before = event < Event::GradientsReady, is_at = event == Event::GradientsReady;
  if (has_changed(0) && event != Event::LossReady) refuse_unread("micro_batch_loss", "set it at LossReady");
  if (has_changed(2) && is_before) refuse_unread("found_inf", "set it in Scaler::unscale");
  if (has_changed(3) && !is_at) refuse_unread("skip_update", "call run.skip_when(flag) at GradientsReady");
  if (has_changed(4) && is_before) refuse_unread("grad_scale", "set it in Scaler::unscale");
  if (has_changed(1)) {
    auto other = other_than_number(run.loss);
    if (other.empty() && !run.loss.is_floating_point()) other = c10::str("a tensor of dtype ", run.loss.scalar_type());
    if (!other.empty()) refuse_field("loss", other, "leave it, or set one number on the run's device");
  }
  if (has_changed(2)) refuse_wrong_found_inf(run);
  if (has_changed(3)) refuse_other_flag("skip_update", run.skip_update, run, "call run.skip_when(flag)");
  if (has_changed(4)) refuse_wrong_grad_scale(run);
  const double factor = run.learning_rate_factor;
  if (factor != factor_ && (event == Event::RunBegin || event > Event::GradientsReady)) {
    refuse_unread("learning_rate_factor", "multiply yours in at StepBegin");
  }
  if (factor != factor_ && !(std::isfinite(factor) && factor >= 0)) {
    refuse_field("learning_rate_factor", c10::str(factor),
                 "the learning rate is multiplied by it: set a finite number, at least 0");
  }
}

}  // namespace vernier
