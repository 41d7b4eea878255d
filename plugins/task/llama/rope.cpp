#include "rope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llama {

namespace {

// Factor of yarn's amplitude (Peng et al. 2023, arXiv:2309.00071, equation 22).
double yarn_amplitude(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

}  // namespace

Rope::Kind Rope::kind_of(const language::Config& part, bool is_phi) {
  const char* key = part.has("rope_type") ? "rope_type" : "type";
  if (!part.has(key) && part.has("factor")) {
    part.refuse("rope_type",
                ", so it is not known how factor stretches the positions; add \"rope_type\": \"linear\", "
                "or dynamic, llama3 or yarn");
  }
  const auto name = part.text(key, "default");
  if (name == "default") return Kind::plain;
  if (is_phi) {
    if (name == "longrope" || name == "su" || name == "yarn") return Kind::longrope;  // older names
    part.refuse(key, ", and must be default or longrope for this model");
  }
  if (name == "linear") return Kind::linear;
  if (name == "dynamic") return Kind::dynamic;
  if (name == "llama3") return Kind::llama3;
  if (name == "yarn") return Kind::yarn;
  part.refuse(key, ", and must be default, linear, dynamic, llama3 or yarn");
}

Rope::Rope(const language::Config& part, const RopeOptions& options)
    : kind_(kind_of(part, options.is_phi)), width_(options.width), longest_(options.longest) {
  theta_ = part.number("rope_theta", options.theta, 1.0);
  const auto share = part.number("partial_rotary_factor", options.partial, 0.0);
  if (!options.turns_in_part && share != 1.0) {
    part.refuse("partial_rotary_factor", ", and heads that turn in part are not known to this task");
  }
  width_ = static_cast<std::int64_t>(static_cast<double>(width_) * share);
  if (width_ < 2 || width_ > options.width || width_ % 2 != 0) {
    part.refuse("partial_rotary_factor", c10::str(", and an even number of a head's ", options.width, " must turn"));
  }
  if (kind_ == Kind::plain) return;
  const auto own = part.number("original_max_position_embeddings", static_cast<double>(longest_), 1.0);
  original_ = options.original > 0 ? options.original : own;
  if (kind_ == Kind::longrope) {
    read_longrope(part);
    return;
  }
  factor_ = part.require_number("factor", 1.0);
  if (kind_ == Kind::llama3) {
    low_ = part.require_number("low_freq_factor", 0.0);
    high_ = part.require_number("high_freq_factor", 0.0);
    if (high_ <= low_) part.refuse("high_freq_factor", ", and must be above low_freq_factor");
  }
  if (kind_ == Kind::yarn) read_yarn(part, original_);
}

std::int64_t Rope::cacheable() const {
  if (kind_ == Kind::dynamic) return longest_;
  return kind_ == Kind::longrope ? static_cast<std::int64_t>(original_) : 0;
}

// Ding et al. 2024, arXiv:2402.13753, as Phi-3 has it: other divisors for texts above the original length.
void Rope::read_longrope(const language::Config& part) {
  short_ = part.numbers("short_factor");
  long_ = part.numbers("long_factor");
  for (const auto* key : {"short_factor", "long_factor"}) {
    const auto& list = std::string(key) == "short_factor" ? short_ : long_;
    if (std::ssize(list) != width_ / 2) part.refuse(key, c10::str(", and must have ", width_ / 2, " numbers"));
  }
  factor_ = part.number("factor", static_cast<double>(longest_) / original_, 0.0);
  const double own = factor_ <= 1 ? 1.0 : std::sqrt(1 + std::log(factor_) / std::log(original_));
  amplitude_ = part.number("attention_factor", own, 0.0);
}

// The number of the frequency that turns so often within the original length.
double Rope::correction(double rotations, double original) const {
  return static_cast<double>(width_) * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta_));
}

void Rope::read_yarn(const language::Config& part, double original) {
  low_ = correction(part.number("beta_fast", 32.0, 0.0), original);
  high_ = correction(part.number("beta_slow", 1.0, 0.0), original);
  if (part.flag("truncate", true)) low_ = std::floor(low_), high_ = std::ceil(high_);
  low_ = std::max(low_, 0.0);
  high_ = std::min(high_, static_cast<double>(width_ - 1));
  if (low_ == high_) high_ += 0.001;
  const double scale = part.number("mscale", 0.0, 0.0), scale_all = part.number("mscale_all_dim", 0.0, 0.0);
  const double own = scale != 0 && scale_all != 0 ? yarn_amplitude(factor_, scale) / yarn_amplitude(factor_, scale_all)
                                                  : yarn_amplitude(factor_, 1.0);
  amplitude_ = part.number("attention_factor", own, 0.0);
}

// In float32 throughout and in the order of transformers, so that far positions turn by the same angles.
torch::Tensor Rope::frequencies(std::int64_t time) const {
  double theta = theta_;
  if (kind_ == Kind::dynamic) {
    const auto length = static_cast<double>(std::max(time, longest_)), most = static_cast<double>(longest_);
    const auto width = static_cast<double>(width_);
    theta *= std::pow(factor_ * length / most - (factor_ - 1), width / (width - 2));
  }
  const auto steps = at::arange(0, width_, 2, torch::kInt64).to(torch::kFloat32) / static_cast<double>(width_);
  const auto periods = at::pow(theta, steps);
  if (kind_ == Kind::longrope) {
    const auto& divisors = static_cast<double>(time) > original_ ? long_ : short_;
    return 1.0 / (torch::tensor(divisors, torch::kFloat32) * periods);
  }
  const auto plain = 1.0 / periods;
  if (kind_ == Kind::linear) return plain / factor_;
  if (kind_ == Kind::llama3) {
    const auto lengths = 2 * std::numbers::pi / plain;
    const auto slow = at::where(lengths > original_ / low_, plain / factor_, plain);
    const auto share = (original_ / lengths - low_) / (high_ - low_);
    const auto between = (1 - share) * slow / factor_ + share * slow;
    const auto is_between = (lengths >= original_ / high_).logical_and(lengths <= original_ / low_);
    return at::where(is_between, between, slow);
  }
  if (kind_ == Kind::yarn) {
    const auto ramp = (at::arange(width_ / 2, torch::kFloat32) - low_) / (high_ - low_);
    const auto kept = 1 - ramp.clamp(0, 1);
    return 1.0 / (factor_ * periods) * (1 - kept) + plain * kept;
  }
  return plain;
}

std::pair<torch::Tensor, torch::Tensor> Rope::tables(std::int64_t time, torch::Device device, std::int64_t longest) {
  longest = cacheable() == 0 ? 0 : std::max(longest > 0 ? longest : time, cacheable());  // up to there all are the same
  const bool fits = newest_.first.defined() && newest_.first.device() == device && newest_longest_ == longest;
  const auto had = fits ? newest_.first.size(0) : 0;
  if (had < time) {
    const torch::NoGradGuard no_grad;
    const auto angles = at::outer(at::arange(std::max(time, 2 * had), torch::kFloat32), frequencies(longest));
    newest_ = {(angles.cos() * amplitude_).to(device), (angles.sin() * amplitude_).to(device)};
    newest_longest_ = longest;
  }
  return {newest_.first.narrow(0, 0, time), newest_.second.narrow(0, 0, time)};
}

torch::Tensor turned(const torch::Tensor& x, const torch::Tensor& cosines, const torch::Tensor& sines, bool is_paired) {
  const auto width = 2 * cosines.size(-1), rest = x.size(-1) - width;
  if (rest > 0) {
    return at::cat({turned(x.narrow(-1, 0, width), cosines, sines, is_paired), x.narrow(-1, width, rest)}, -1);
  }
  const auto parts = is_paired ? x.unflatten(-1, {-1, 2}).unbind(-1) : x.chunk(2, -1);
  const auto one = parts[0] * cosines - parts[1] * sines, other = parts[1] * cosines + parts[0] * sines;
  return is_paired ? at::stack({one, other}, -1).flatten(-2) : at::cat({one, other}, -1);
}

}  // namespace llama
