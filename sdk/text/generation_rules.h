// Shared by sampling and beam search.
#pragma once

#include <vernier/text/generation.h>

#include <vector>

namespace vernier {

// The scores [vocabulary] without tokens that end a text, if it has too few new tokens (made) or is too short (size).
torch::Tensor without_ends(const torch::Tensor& scores, const GenerationOptions& options, std::int64_t made,
                           std::int64_t size);

}  // namespace vernier
