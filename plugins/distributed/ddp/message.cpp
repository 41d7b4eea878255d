#include "message.h"

#include <ATen/ATen.h>
#include <torch/types.h>
#include <vernier/checksum.h>
#include <vernier/inner_plugin.h>

namespace ddp {

using vernier::Run;
using vernier::State;
using vernier::Table;

namespace {

constexpr std::int64_t most_elements = 1 << 18;  // a checkpoint keeps tensors of up to 1 MiB by rank

// Another number for each rank, step and parameter, and the same in a resumed run.
std::uint64_t seed_of(const Run& run, const std::string& parameter) {
  const auto rank = run.control == nullptr ? 0 : run.control->rank();
  const auto words = c10::str(run.seed, ' ', run.step, ' ', rank, ' ', parameter);
  return std::stoull(vernier::checksum_of(words).substr(0, 15), nullptr, 16);
}

}  // namespace

Message::Message(vernier::Options& options) {
  const auto table = options.get("message", Table{}, "quantizer that rounds what a rank sends, as {use = \"one_bit\"}");
  feeds_back_ =
      options.get("error_feedback", true, "a rank adds to its next gradient what rounding of the message lost");
  if (!options.given("message")) {
    if (options.given("error_feedback")) options.refuse("error_feedback", "needs message = {use = \"one_bit\"}");
    return;
  }
  vernier::Options outer(options.owner(), {{"message", {table, ""}}}, "");
  quantizer_ = vernier::make_inner_plugin(outer, "quantizer", "message", "one_bit", "a quantizer");
  if (quantizer_ == nullptr) return;  // options are only listed
  rounding_ = dynamic_cast<vernier::draft::MessageRounding*>(quantizer_.get());
  if (rounding_ == nullptr) options.refuse("message", "names " + quantizer_->id() + ", which cannot round messages");
}

void Message::attach(vernier::Bus& bus) {
  if (!is_rounded()) return;
  quantizer_->attach(bus);
  bus.on(vernier::Event::StepBegin, [this](Run&) { before_.clear(); });  // not in load(), which a rerun calls too
  bus.on(vernier::Event::UpdateDone, [this](const Run& run) {
    rounding_->end_update();
    const bool is_skipped = !before_.empty() && run.skip_update.defined() && run.skip_update.item<double>() != 0;
    if (is_skipped) before_.merge(errors_), errors_.swap(before_);  // the sum of what was sent is not used
    before_.clear();
  });
}

void Message::prepare(Run& run) {
  if (is_rounded()) vernier::HostApi::prepare(*quantizer_, run);
}

void Message::check(const Run& run) const {
  if (is_rounded()) quantizer_->check(run);
}

std::vector<vernier::MetricInfo> Message::metrics() const {
  return is_rounded() ? quantizer_->metrics() : std::vector<vernier::MetricInfo>();
}

void Message::round(const std::string& parameter, torch::Tensor gradient, bool is_own, const Run& run) {
  const double scale = run.amp.current_scale().value_or(1);
  auto whole = gradient.to(torch::kFloat32, /*non_blocking=*/false, /*copy=*/true);
  auto& error = errors_[parameter];
  if (error.defined()) whole.add_(error.to(whole.device()).view_as(whole), scale);
  const auto sent = rounding_->message_of(whole, parameter, seed_of(run, parameter));  // each rank keeps its history
  if (is_own) gradient.copy_(sent);
  if (!feeds_back_ || (!is_own && error.defined())) return;
  const auto lost = whole.sub_(gradient).div_(scale).flatten();
  if (!lost.isfinite().all().item<bool>()) return;
  before_.try_emplace(parameter, error);
  error = lost;
}

State Message::save() const {
  State state;
  if (!is_rounded()) return state;
  state.put("quantizer", quantizer_->save());
  for (const auto& [parameter, error] : errors_) {
    if (!error.defined()) continue;
    const auto parts = error.split(most_elements);
    for (std::size_t i = 0; i < parts.size(); ++i) state.put(c10::str("error/", i, "/", parameter), parts[i]);
  }
  return state;
}

void Message::load(const State& state) {
  if (!is_rounded()) return;
  quantizer_->load(state.part("quantizer"));
  errors_.clear();
  std::map<std::string, std::vector<torch::Tensor>> parts;
  for (std::size_t i = 0;; ++i) {
    const auto part = state.part(c10::str("error/", i));
    if (part.tensors.empty()) break;
    for (const auto& [parameter, error] : part.tensors) parts[parameter].push_back(error);
  }
  for (const auto& [parameter, all] : parts) errors_[parameter] = at::cat(all);
}

}  // namespace ddp
