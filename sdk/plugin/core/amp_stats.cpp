#include <torch/types.h>
#include <vernier/amp_stats.h>
#include <vernier/error.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace vernier {

using OrderedJson = nlohmann::ordered_json;

void AmpStats::add(const Step& step) {
  ++total_;
  if (step.seconds > 0) {
    seconds_ += step.seconds;
    ++timed_;
  }
  if (!step.is_amp) return;
  ++amp_;
  if (step.overflowed) ++overflows_;
  if (step.scale) set_scale(total_, *step.scale);
}

void AmpStats::set_scale(std::int64_t step, double scale) {
  if (!history_.empty() && history_.back().scale == scale) return;
  if (!history_.empty()) ++updates_;
  history_.push_back({step, scale});
  if (history_.size() > longest_history) history_.pop_front();
}

void AmpStats::add_underflow(const torch::Tensor& share) {
  last_underflow_ = share.detach().to(torch::kFloat32);
  underflow_sum_ = underflow_sum_.defined() ? underflow_sum_ + last_underflow_ : last_underflow_;
  ++measured_;
}

std::optional<double> AmpStats::underflow() const {
  if (measured_ == 0) return std::nullopt;
  return underflow_sum_.item<double>() / static_cast<double>(measured_);
}

std::optional<double> AmpStats::last_underflow() const {
  if (measured_ == 0) return std::nullopt;
  return last_underflow_.item<double>();
}

void AmpStats::reset() {
  *this = AmpStats();
}

std::string AmpStats::json() const {
  const auto share = [](const std::optional<double>& value) {
    return value ? OrderedJson(*value) : OrderedJson(nullptr);
  };
  OrderedJson history = OrderedJson::array();
  for (const auto& [step, scale] : history_) history.push_back({{"step", step}, {"scale", scale}});
  const OrderedJson all = {{"total_steps", total_},
                           {"amp_steps", amp_},
                           {"scaler_updates", updates_},
                           {"overflows", overflows_},
                           {"overflow_ratio", overflow_ratio()},
                           {"mean_step_seconds", mean_step_seconds()},
                           {"underflow", {{"mean", share(underflow())}, {"last", share(last_underflow())}}},
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
  }
  next.seconds_ = seconds_;  // the time is that of this process
  next.timed_ = timed_;
  *this = std::move(next);
}

}  // namespace vernier
