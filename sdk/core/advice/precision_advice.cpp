#include "precision_advice.h"

#include <c10/util/StringUtil.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace vernier {

namespace {

using Lines = std::vector<std::string>;

// Layers that are listed in one line: each once, folded.
class Names {
 public:
  void add(const std::string& layer) {
    const auto name = layer.empty() ? "the model" : folded(layer);
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) names_.push_back(name);
  }
  // Adds a line that begins with these layers, if there are any.
  void advise(Lines& lines, const std::string& trouble) const {
    constexpr std::size_t shown = 6;
    if (names_.empty()) return;
    const auto first = c10::Join(", ", std::span(names_).first(std::min(names_.size(), shown)));
    lines.push_back(first + (names_.size() > shown ? c10::str(" and ", names_.size() - shown, " more") : "") + trouble);
  }

 private:
  std::vector<std::string> names_;
};

std::string rule(const std::string& what, const char* use) {
  return "[[precision.rule]] " + what + " use = \"" + use + "\"";
}

std::string name_of_dtype(torch::ScalarType dtype) {
  return dtype == torch::kFloat16 ? "float16" : dtype == torch::kBFloat16 ? "bfloat16" : "float32";
}

void advise_on_batch_norm(const DryRun& dry_run, Lines& lines) {
  constexpr std::int64_t few = 16;
  Names of_micro_batches, of_few, in_16_bits;
  std::int64_t values = few;
  for (const auto& seen : dry_run.operations) {
    if (seen.op != "batch_norm" || seen.sizes.size() < 2) continue;
    std::int64_t count = 1;
    for (std::size_t i = 0; i < seen.sizes.size(); ++i) count *= i == 1 ? 1 : seen.sizes[i];
    if (dry_run.micro_batch_samples < dry_run.samples) of_micro_batches.add(seen.layer);
    if (count < few) of_few.add(seen.layer);
    if (count < few) values = std::min(values, count);
    if (is_16_bit(seen.weight)) in_16_bits.add(seen.layer);
  }
  of_micro_batches.advise(
      lines, c10::str(": batch normalisation sees a micro-batch of ", dry_run.micro_batch_samples,
                      " samples, not the batch of ", dry_run.samples, "; use fewer micro-batches, or group norm"));
  of_few.advise(lines, c10::str(": batch normalisation over ", values,
                                " values a channel is noise; use larger micro-batches, or group norm"));
  in_16_bits.advise(
      lines, ": batch normalisation whose averages are in 16 bits stands still after a while; keep it in float32");
}

void advise_on_wide_softmax(const DryRun& dry_run, Lines& lines) {
  constexpr std::int64_t wide = 8192;
  for (const auto& seen : dry_run.operations) {
    const bool is_softmax = seen.op == "softmax" || seen.op == "log_softmax" || seen.op == "cross_entropy_loss";
    const std::int64_t width =
        seen.sizes.empty()
            ? 0
            : seen.sizes[seen.op == "cross_entropy_loss" && seen.sizes.size() > 1 ? 1 : seen.sizes.size() - 1];
    if (!is_softmax || width < wide || !is_16_bit(seen.input)) continue;
    const auto layer = seen.after.empty() ? "" : " out of " + seen.after;
    lines.push_back(c10::str(seen.op, layer, ": ", width, " logits in ", name_of_dtype(seen.input),
                             seen.input == torch::kFloat16 ? " overflow at 65504 and" : "",
                             " differ in two or three digits only; ",
                             rule("match = \"" + (seen.after.empty() ? "*" : seen.after) + "\"", "fp32")));
  }
}

void advise_on_range(const DryRun& dry_run, Lines& lines) {
  constexpr double end = 65504, near = end / 8;
  for (const auto& seen : dry_run.operations) {
    if (seen.largest < near) continue;  // NaN is not
    const auto where = seen.layer.empty() ? seen.op + (seen.after.empty() ? "" : " after " + seen.after)
                                          : seen.layer + " (" + seen.op + ")";
    const auto match = seen.layer.empty() ? "op = \"" + seen.op + "\"" : "match = \"" + seen.layer + "\"";
    lines.push_back(c10::str(where,
                             std::isfinite(seen.largest) ? c10::str(": reaches ", seen.largest) : ": is not finite",
                             " in float16, which ends at 65504; ", rule(match, "bf16")));
  }
}

void advise_on_norms(const DryRun& dry_run, Lines& lines) {
  Names norms;
  auto dtype = torch::kFloat32;
  bool sums = false;
  for (const auto& seen : dry_run.operations) {
    sums |= seen.op == "add" && is_16_bit(seen.output);
    if (seen.op != "layer_norm" && seen.op != "rms_norm" && seen.op != "group_norm") continue;
    if (!sums || !is_16_bit(seen.input)) continue;
    norms.add(seen.layer);
    dtype = seen.input;
  }
  norms.advise(lines, ": normalises sums that were made in " + name_of_dtype(dtype) +
                          "; deep networks lose what early layers added; " + rule("op = \"add\"", "fp32"));
}

void advise_on_embeddings(const DryRun& dry_run, Lines& lines) {
  Names tables;
  for (const auto& seen : dry_run.operations) {
    if (seen.op != "embedding" && seen.op != "embedding_bag") continue;
    const auto& low = dry_run.without_masters;
    if (std::find(low.begin(), low.end(), seen.layer + ".weight") != low.end()) tables.add(seen.layer);
  }
  tables.advise(lines,
                ": an embedding's 16-bit weights without float32 masters; rows that are rare get steps too "
                "small to move them; keep masters (level O2), or round stochastically");
}

std::string shape_of(const Seen& seen) {
  return c10::str(seen.weight_sizes[0], "x", seen.weight_sizes[1]);
}

bool has_sides_of(const Seen& seen, std::int64_t multiple) {
  return seen.weight_sizes[0] % multiple == 0 && seen.weight_sizes[1] % multiple == 0;
}

void advise_on_shapes(const DryRun& dry_run, Lines& lines) {
  Names slow, not_for_fp8;
  std::string slow_shape, fp8_shape;
  for (const auto& seen : dry_run.operations) {
    if (seen.weight_sizes.empty() || !is_16_bit(seen.output)) continue;
    if (dry_run.on_gpu && !has_sides_of(seen, 8)) {
      slow.add(seen.layer);
      slow_shape = shape_of(seen);
    } else if (!has_sides_of(seen, 16)) {
      not_for_fp8.add(seen.layer);
      fp8_shape = shape_of(seen);
    }
  }
  slow.advise(lines, ": tensor cores want sides that are multiples of 8, and " + slow_shape + " is not; pad it");
  not_for_fp8.advise(
      lines, ": fp8 takes sides that are multiples of 16, and " + fp8_shape + " is not; it would stay in 16 bits");
}

// Relative distance of the gradients from those in float32, by layer; RMS.
void advise_on_gradients(const DryRun& dry_run, const DryRun& in_float32, Lines& lines) {
  constexpr double much = 0.1;
  Names layers;
  double worst = 0;
  for (const auto& [name, gradient] : dry_run.gradients) {
    const auto found = in_float32.gradients.find(name);
    if (found == in_float32.gradients.end() || found->second.sizes() != gradient.sizes()) continue;
    const double norm = found->second.norm().item<double>();
    const double error = (gradient - found->second).norm().item<double>();
    if (norm == 0 || error / norm <= much || std::isnan(error)) continue;
    worst = std::max(worst, error / norm);
    layers.add(name);
  }
  layers.advise(lines,
                c10::str(": gradients of this batch are up to ", std::round(worst * 100), " % off those in float32"));
}

}  // namespace

bool is_16_bit(torch::ScalarType dtype) {
  return dtype == torch::kFloat16 || dtype == torch::kBFloat16;
}

std::vector<std::string> advise(const DryRun& dry_run, const std::optional<DryRun>& in_float32) {
  Lines lines;
  if (!std::isfinite(dry_run.loss)) lines.push_back("the loss of the first batch is not a finite number");
  if (dry_run.overflowed) {
    lines.push_back(
        "gradients of the first batch are not finite: the first updates are skipped until the scale is small "
        "enough; a smaller init_scale saves them");
  }
  advise_on_batch_norm(dry_run, lines);
  advise_on_wide_softmax(dry_run, lines);
  advise_on_range(dry_run, lines);
  advise_on_norms(dry_run, lines);
  advise_on_embeddings(dry_run, lines);
  advise_on_shapes(dry_run, lines);
  if (in_float32 && !dry_run.is_random && !dry_run.overflowed) advise_on_gradients(dry_run, *in_float32, lines);
  return lines;
}

}  // namespace vernier
