// flight_recorder: samples of the layers' ranges.
#include "ring.h"

#include "inspection.h"

namespace recorder {

using vernier::Run;

torch::Tensor Ring::bytes_of(const std::deque<vernier::StepSample>& samples) {
  vernier::State state;
  state.put("ring", vernier::text_of(samples));
  return state.tensor("ring");
}

void Ring::load(const std::string& text) {
  samples_ = vernier::ring_from(text);
  bytes_ = bytes_of(samples_);
  sampled_ = -1;
}

// The first micro-batch only; once more where its forward was broken off for want of memory.
void Ring::begin_micro_batch(const Run& run) {
  if (!is_sampled(run) || (sampled_ == run.step && !outputs_.is_collecting)) return;
  sampled_ = run.step;
  outputs_.measured.clear();
  outputs_.is_collecting = true;
  intercept_.emplace(layers_, outputs_);
}

void Ring::end_forward() {
  outputs_.is_collecting = false;
  intercept_.reset();
}

// Gradients are left as they are, and their ranges divided: run.gradients() would have others (clip_norm) sum the norm
// that they have already.
void Ring::sample(const Run& run) {
  if (!is_sampled(run)) return;
  vernier::StepSample sample{run.step + 1, {}};
  const double scale = pending_scale(run);
  const auto add = [&](const std::string& layer, const char* kind, const torch::Tensor& measured,
                       torch::ScalarType dtype, double divisor) {
    const auto brought = measured.to(torch::kCPU);
    auto range = vernier::range_from(brought.const_data_ptr<double>(), dtype);
    range.amax /= divisor;
    range.rms /= divisor;
    sample.layers.push_back({layer, kind, range});
  };
  for (const auto& [layer, measured, dtype] : outputs_.measured) add(layer, "activation", measured, dtype, 1);
  for (const auto& parameter : run.parameters) {
    const auto& gradient = parameter.master.grad();
    if (!gradient.defined()) continue;
    add(parameter.name, "gradient", vernier::measure_range(gradient), gradient.scalar_type(), scale);
  }
  outputs_.measured.clear();
  samples_.push_back(std::move(sample));
  while (static_cast<std::int64_t>(samples_.size()) > size_) samples_.pop_front();
  bytes_ = bytes_of(samples_);
}

}  // namespace recorder
