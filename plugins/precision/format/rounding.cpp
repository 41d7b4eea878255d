#include "rounding.h"

namespace formats {

using vernier::Options;
using vernier::ScaleBlock;
using vernier::UnitOperand;

namespace {
using Kind = vernier::NumberFormat::Kind;

// "h.0.mlp/dw.g" as "h.0.mlp/g": the operands of a layer and letter share a history.
std::string history_of(const std::string& key) {
  return key.substr(0, key.rfind('/') + 1) + key.back();
}
}  // namespace

RoundingOptions RoundingOptions::read(Options& options, const RoundingOptions& other) {
  auto read = other;
  read.scaling = options.choose("scaling", other.scaling.c_str(), {"auto", "tensor", "delayed", "none"},
                                "of formats without blocks; auto: one scale a tensor, up to 8 bits");
  read.amax_history_len = options.get("amax_history_len", other.amax_history_len,
                                      "delayed: updates that are looked back on", vernier::between(1, 65536));
  read.amax_compute = options.choose("amax_compute", other.amax_compute.c_str(), {"max", "most_recent"},
                                     "delayed: which of the history's magnitudes makes the scale");
  for (const char* key : {"amax_history_len", "amax_compute"}) {
    if (read.scaling != "delayed" && options.given(key)) options.refuse(key, "is for scaling = \"delayed\"");
  }
  read.scale_rule = options.choose("scale_rule", other.scale_rule.c_str(), {"auto", "floor", "ceil", "even", "rceil"},
                                   "of block scales that are powers of two; auto: the format's");
  read.headroom =
      options.get("headroom", other.headroom, "share of the format's largest number that scales are for; 1: all of it",
                  vernier::between(0.125, 1));
  read.rounding = options.choose("rounding", other.rounding.c_str(), {"nearest", "away", "zero", "stochastic"},
                                 "how a number is rounded");
  read.random_bits = options.get("random_bits", other.random_bits, "of stochastic rounding", vernier::between(1, 23));
  read.square_weights = options.get("square_weights", other.square_weights, "blocks of weights are square");
  read.uneven_blocks = options.choose("uneven_blocks", other.uneven_blocks.c_str(), {"shorter", "refuse"},
                                      "if the block size does not divide the reduced dimension");
  return read;
}

FormatQuantizer::FormatQuantizer(const Options& options, const char* key, vernier::TensorFormat format,
                                 const RoundingOptions& rounding)
    : format_(std::move(format)),
      draw_{vernier::rounding_named(rounding.rounding), 0, static_cast<int>(rounding.random_bits)},
      square_weights_(rounding.square_weights),
      refuses_uneven_(rounding.uneven_blocks == "refuse") {
  if (format_.element.kind == Kind::power_of_two) {
    options.refuse(key, "is \"" + format_.name + "\", a format of scales: it has neither sign nor zero");
  }
  const auto& scaling = rounding.scaling;
  const bool is_one = scaling == "tensor" || scaling == "delayed" || (scaling == "auto" && format_.element.bits <= 8);
  if (format_.block == 0 && is_one) format_.block = -1;
  if (format_.block < 0 && scaling == "delayed") {
    format_.element.saturate = true;  // numbers may be beyond the scale
    delayed_.emplace(rounding.amax_history_len, rounding.amax_compute == "most_recent");
    remember("delayed", delayed_);
  }
  if (rounding.scale_rule != "auto" && format_.has_block_scale && format_.scale.kind == Kind::power_of_two) {
    format_.rule = vernier::scale_rule_named(rounding.scale_rule);
  }
  if (format_.block != 0) format_.headroom = static_cast<float>(rounding.headroom);
}

bool FormatQuantizer::serves_both(bool is_weight) const {
  return format_.block <= 0 || (is_weight && square_weights_);
}

// The draws depend on the place of a number in the layer's own tensor, so the operand is turned back first.
UnitOperand FormatQuantizer::quantize(const vernier::Operand& of) {
  const auto x = of.is_turned ? of.numbers.transpose(-2, -1) : of.numbers;
  last_ = {delayed_ ? delayed_->of(history_of(of.key), format_, x, of.is_recorded) : format_, vernier::per_tensor,
           draw_};
  if (const auto n = format_.block; n > 0) {
    const bool is_square = of.is_weight && square_weights_;
    last_.block = is_square ? ScaleBlock{n, n} : of.is_turned ? ScaleBlock{n, 1} : ScaleBlock{1, n};
  }
  last_.draw.seed = of.seed;
  const auto& [format, block, draw] = last_;
  auto y = of.is_for_unit ? vernier::unit_operand(x, format, block, draw)
                          : UnitOperand{vernier::round_to(x, format, block, draw)};
  return of.is_turned ? turned(y) : y;
}

void FormatQuantizer::end_update() {
  if (delayed_) delayed_->end_update();
}

}  // namespace formats
