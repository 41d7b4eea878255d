#include <torch/types.h>
#include <vernier/amp_stats.h>
#include <vernier/error.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace vernier {

using OrderedJson = nlohmann::ordered_json;

void AmpStats::add(const Step& step) {
  ++total_;
  if (step.seconds > 0) add_seconds(step.seconds);
  if (step.is_amp) ++amp_;
  if (step.overflowed) ++overflows_;
}

void AmpStats::add_overflow() {
  ++overflows_;
}

void AmpStats::add_seconds(double seconds) {
  seconds_ += seconds;
  ++timed_;
}

void AmpStats::set_scale(std::int64_t step, std::optional<double> scale, std::optional<std::int64_t> growth_tracker) {
  scale_ = scale;
  growth_tracker_ = growth_tracker;
  if (!scale || (!history_.empty() && history_.back().scale == *scale)) return;
  if (!history_.empty() && history_.back().step == step) {  // another scaler has taken over before the step
    history_.back().scale = *scale;
    return;
  }
  if (!history_.empty()) ++updates_;
  history_.push_back({step, *scale});
  if (history_.size() > longest_history) history_.pop_front();
}

void AmpStats::add_underflow(const torch::Tensor& share) {
  last_underflow_ = share.detach().to(torch::kFloat32);
  underflow_sum_ = underflow_sum_.defined() ? underflow_sum_ + last_underflow_ : last_underflow_;
  const auto has_some = (last_underflow_ > 0).to(torch::kInt64);
  underflow_count_ = underflow_count_.defined() ? underflow_count_ + has_some : has_some;
  ++measured_;
}

void AmpStats::add_memory_savings(double gigabytes) {
  saved_gigabytes_ += gigabytes;
  ++savings_;
}

std::optional<double> AmpStats::avg_memory_savings() const {
  if (savings_ == 0) return std::nullopt;
  return saved_gigabytes_ / static_cast<double>(savings_);
}

std::optional<double> AmpStats::mean_step_seconds() const {
  if (timed_ == 0) return std::nullopt;
  return seconds_ / static_cast<double>(timed_);
}

std::optional<AmpStats::Underflow> AmpStats::underflow() const {
  if (measured_ == 0) return std::nullopt;
  return Underflow{underflow_sum_.item<double>() / static_cast<double>(measured_), last_underflow_.item<double>(),
                   underflow_count_.item<std::int64_t>()};
}

std::string AmpStats::json() const {
  const auto or_null = [](const auto& value) { return value ? OrderedJson(*value) : OrderedJson(nullptr); };
  OrderedJson history = OrderedJson::array();
  for (const auto& [step, scale] : history_) history.push_back({{"step", step}, {"scale", scale}});
  const auto shares = underflow();
  const auto of_shares = [&](auto member) { return shares ? OrderedJson((*shares).*member) : OrderedJson(nullptr); };
  const OrderedJson all = {
      {"total_steps", total_},
      {"amp_steps", amp_},
      {"scaler_updates", updates_},
      {"amp_usage_ratio", amp_usage_ratio(*this)},
      {"scaler_enabled", scale_.has_value()},
      {"current_scale", or_null(scale_)},
      {"growth_tracker", or_null(growth_tracker_)},
      {"overflow_count", overflow_count()},
      {"overflow_ratio", overflow_ratio(*this)},
      {"underflow_count", of_shares(&Underflow::count)},
      {"avg_memory_savings", or_null(avg_memory_savings())},
      {"mean_step_seconds", or_null(mean_step_seconds())},
      {"underflow", {{"mean", of_shares(&Underflow::mean)}, {"last", of_shares(&Underflow::last)}}},
      {"scale_history", history}};
  return all.dump(2);
}

void AmpStats::save(const std::string& path) const {
  std::ofstream file(path);
  file << json() << std::endl;
  if (!file) throw Error(path + ": cannot be written: " + std::generic_category().message(errno));
}

State AmpStats::state_dict() const {
  State state;
  state.put("total_steps", total_);
  state.put("amp_steps", amp_);
  state.put("scaler_updates", updates_);
  state.put("overflows", overflows_);
  auto history = torch::empty({static_cast<std::int64_t>(history_.size()), 2}, torch::kFloat64);
  auto* row = history.data_ptr<double>();
  for (const auto& [step, scale] : history_) {
    *row++ = static_cast<double>(step);
    *row++ = scale;
  }
  state.put("history", history);
  state.put("measured", measured_);
  if (measured_ > 0) {
    state.put("underflow_sum", underflow_sum_);
    state.put("last_underflow", last_underflow_);
    state.put("underflow_count", underflow_count_);
  }
  if (scale_) state.put("scale", *scale_);
  if (growth_tracker_) state.put("growth_tracker", *growth_tracker_);
  if (savings_ > 0) {
    state.put("savings", savings_);
    state.put("saved_gigabytes", saved_gigabytes_);
  }
  return state;
}

void AmpStats::load_state_dict(const State& state) {
  AmpStats next;
  next.total_ = state.integer("total_steps");
  next.amp_ = state.integer("amp_steps");
  next.updates_ = state.integer("scaler_updates");
  next.overflows_ = state.integer("overflows");
  const auto history = state.tensor("history").to(torch::kCPU, torch::kFloat64).contiguous();
  const auto* row = history.const_data_ptr<double>();
  for (std::int64_t i = 0; i < history.size(0); ++i, row += 2) {
    next.history_.push_back({static_cast<std::int64_t>(row[0]), row[1]});
  }
  next.measured_ = state.integer("measured");
  if (next.measured_ > 0) {
    next.underflow_sum_ = state.tensor("underflow_sum").clone();
    next.last_underflow_ = state.tensor("last_underflow").clone();
    next.underflow_count_ = state.tensor("underflow_count").clone();
  }
  if (state.has("scale")) next.scale_ = state.real("scale");
  if (state.has("growth_tracker")) next.growth_tracker_ = state.integer("growth_tracker");
  if (state.has("savings")) {
    next.savings_ = state.integer("savings");
    next.saved_gigabytes_ = state.real("saved_gigabytes");
  }
  next.seconds_ = seconds_;  // the time is that of this process
  next.timed_ = timed_;
  *this = std::move(next);
}

}  // namespace vernier
