#include <vernier/host.h>
#include <vernier/task_options.h>

namespace vernier {

Sampler::Order read_order(Options& options, const char* meaning) {
  const auto order = options.choose("order", "shuffled", {"shuffled", "sequential"}, meaning);
  return order == "shuffled" ? Sampler::Order::shuffled : Sampler::Order::sequential;
}

std::optional<Keep> read_recompute(Options& options) {
  const auto recompute = options.choose("recompute", "none", {"none", "full", "selective"},
                                        "full: backward computes parts of the model again, to save memory; "
                                        "selective: it keeps the results of their matrix products");
  options.saves_memory(
      "recompute", "full",
      "activations are computed again in backward, with the same bits: a step takes about a third longer");
  if (recompute == "none") return std::nullopt;
  return recompute == "full" ? Keep::inputs : Keep::matmuls;
}

void refuse_recompute(const Options& options) {
  for (const auto& option : HostApi::declared(options)) {
    if (option.key != "recompute" || value_text(option.value) == "\"none\"") continue;
    options.refuse("recompute", "has no effect on this task, which computes no part of its model again; leave it out");
  }
}

}  // namespace vernier
