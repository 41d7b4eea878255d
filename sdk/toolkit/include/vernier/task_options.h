// Options that several tasks have, for constructors of tasks.
#pragma once

#include <vernier/options.h>
#include <vernier/sampler.h>

namespace vernier {

// Reads the option `order`: "shuffled" (the default) or "sequential". meaning: "of the windows in an epoch".
VERNIER_API Sampler::Order read_order(Options& options, const char* meaning);

// Refuses the option `recompute`. A task calls it if it calls no part of its model through recomputed().
VERNIER_API void refuse_recompute(const Options& options);

}  // namespace vernier
