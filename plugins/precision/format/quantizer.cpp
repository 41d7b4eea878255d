// format: a number format with its scales, for [distributed] message. Operands of precision/format name the format
// itself.
//   format = "e4m3"        a name of `vernier formats`
//   scaling = "auto"       of formats without blocks: tensor | none; auto: one scale a tensor, up to 8 bits
//   scale_rule = "auto"    of block scales that are powers of two: floor | ceil | even | rceil
//   headroom = 1.0         share of the format's largest number that scales are for
//   rounding = "nearest"   nearest | away | zero | stochastic
//   random_bits = 23       of stochastic rounding
//   square_weights = false of operands w of precision/format
#include "rounding.h"

class Format final : public formats::FormatQuantizer {
 public:
  explicit Format(vernier::Options& options) : FormatQuantizer(options, "message", vernier::read_format(options)) {}
};

VERNIER_PLUGIN(Format, "format", "1.0.0")
