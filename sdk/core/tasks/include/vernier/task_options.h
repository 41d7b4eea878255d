// Options that several tasks have, for constructors of tasks.
#pragma once

#include <vernier/activation_checkpoint.h>
#include <vernier/options.h>
#include <vernier/sampler.h>

#include <optional>

namespace vernier {

// Reads the option `order`: "shuffled" (the default) or "sequential". meaning: "of the windows in an epoch".
VERNIER_API Sampler::Order read_order(Options& options, const char* meaning);

// Reads the option `recompute`: none, full or selective. Returns what backward keeps of the parts of a model that it
// computes again; nothing: it computes none again.
VERNIER_API std::optional<Keep> read_recompute(Options& options);

// Refuses the option `recompute`. A task calls it if it calls no part of its model through recomputed().
VERNIER_API void refuse_recompute(const Options& options);

}  // namespace vernier
