// fp8: computes linear layers in 8-bit floats, each operand with a scale, and everything else as bf16. On a GPU of
// compute capability 8.9 (9.0 for rowwise and block) it is faster than bf16. On a CPU it is emulated: the same numbers,
// but slower. It needs no loss scaler. The layers that the model calls first and last, which suffer most, stay in bf16,
// and so do layers whose widths are not multiples of 16.
//
//   recipe = "delayed"           delayed | current | rowwise | rowwise_with_high_precision_grad_weight | block:
//                                what has one scale, and when it is found: vernier/float8_linear.h
//   format = "auto"              hybrid: E4M3 forward, E5M2 for gradients; e4m3: for all; auto: hybrid for delayed and
//                                current, e4m3 for the others
//   margin = 0                   scales are divided by 2^margin
//   power_of_two_scales = "auto" yes | no | auto: no for delayed and current, yes for the others
//   amax_history_len = 1024      delayed: updates in the history of magnitudes
//   amax_compute = "max"         delayed: the scale comes from the largest of them, or from the "most_recent"
//   first_last_in_bf16 = true    the first update is in bf16 then, to find these layers
// The other options are those of vernier/mixed_precision.h and vernier/precision_rules.h. A rule with use = "fp8"
// computes a layer in fp8 that would stay in bf16, its first and last ones too.
//
// Sources: Micikevicius et al., FP8 Formats for Deep Learning, 2022; recipes and defaults are those of Transformer
// Engine (delayed: DelayedScaling, current: Float8CurrentScaling, block: Float8BlockScaling) and torchao (rowwise…). As
// in Transformer Engine, a skipped update changes histories and scales like any other: an inf in it fixes the scale for
// as long as it is the largest in the history.
#include <vernier/error.h>
#include <vernier/mixed_precision.h>

namespace {

vernier::Float8Recipe read_recipe(vernier::Options& options) {
  const auto name = options.choose(
      "recipe", "delayed", {"delayed", "current", "rowwise", "rowwise_with_high_precision_grad_weight", "block"},
      "of what a scale is: of a tensor, a row, a block; delayed: from earlier updates");
  const auto format = options.choose("format", "auto", {"auto", "hybrid", "e4m3", "e5m2"},
                                     "hybrid: E4M3 forward, E5M2 for gradients; auto: as the recipe's source has it");
  vernier::Float8Recipe recipe;
  try {
    recipe = vernier::float8_recipe(name, format);
  } catch (const vernier::Error& error) {
    options.refuse("format", "is refused: " + std::string(error.what()));
  }
  recipe.margin = options.get("margin", 0, "scales are divided by 2^margin", vernier::between(0, 16));
  const auto power_of_two = options.choose("power_of_two_scales", "auto", {"auto", "yes", "no"},
                                           "scales are rounded down to one; auto: not for delayed and current");
  if (power_of_two != "auto") recipe.power_of_two_scales = power_of_two == "yes";
  recipe.amax_history_len =
      options.get("amax_history_len", 1024, "delayed: updates that are looked back on", vernier::between(1, 65536));
  recipe.most_recent = options.choose("amax_compute", "max", {"max", "most_recent"},
                                      "delayed: which of the history's magnitudes makes the scale") == "most_recent";
  for (const char* key : {"amax_history_len", "amax_compute"}) {
    if (!recipe.delayed && options.given(key)) options.refuse(key, "is for recipe = \"delayed\", and it is " + name);
  }
  return recipe;
}

class Fp8 final : public vernier::MixedPrecision {
 public:
  explicit Fp8(vernier::Options& options) : MixedPrecision(options, torch::kBFloat16) {
    auto recipe = read_recipe(options);
    use_float8(std::move(recipe), options.get("first_last_in_bf16", true, "the layers that are called first and last"));
  }
};

}  // namespace

VERNIER_PLUGIN(Fp8, "fp8", "1.0.0")
