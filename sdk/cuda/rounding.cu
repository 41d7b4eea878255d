// The rounding of 16-bit weights. Also compiled for the host (host_library.cpp).
#include "rounding.h"

#include "functions.h"

namespace vernier::gpu {

Trouble round_weights(const Rounding& how, const RoundedWeight* weights, std::int64_t count, Stream stream) {
  if (how.is_stochastic) {
    using Kernel = StochasticRounding;
    return in_launches<RoundedWeight, 64, Kernel::sequence * Kernel::sequences>(
        weights, count, [&](const auto& chunks, auto blocks, auto) {
          return launch(Kernel{chunks, how.seed, how.draw}, blocks, stream);
        });
  }
  return in_launches<RoundedWeight, 64, 8192>(weights, count, [&](const auto& chunks, auto blocks, auto) {
    return launch(KahanRounding{chunks, how.skip}, blocks, stream);
  });
}

}  // namespace vernier::gpu
