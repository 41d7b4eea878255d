#include <vernier/host.h>
#include <vernier/task_options.h>

namespace vernier {

Sampler::Order read_order(Options& options, const char* meaning) {
  const auto order = options.choose("order", "shuffled", {"shuffled", "sequential"}, meaning);
  return order == "shuffled" ? Sampler::Order::shuffled : Sampler::Order::sequential;
}

void refuse_recompute(const Options& options) {
  for (const auto& option : HostApi::declared(options)) {
    if (option.key != "recompute" || option.value == "\"none\"") continue;
    options.refuse("recompute", "has no effect on this task, which computes no part of its model again; leave it out");
  }
}

}  // namespace vernier
